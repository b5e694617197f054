/* stderr of the program, on a terminal and in a file: progress line, preview images, sanitized text, summary.
 * This test replaces the functions of the library. */
#include "cli/messages.h"
#include "cli/picture.h"
#include "cli/terminal.h"
#include "test/lib/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mman.h>

/* ---- stderr ---- */

static int stderr_before;
static char captured[1 << 16];

static int terminal_of(int columns, int *other) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    *other = posix_openpt(O_RDWR | O_NOCTTY);
    check(!grantpt(*other) && !unlockpt(*other), "cannot open a pseudoterminal");
    int terminal = open(ptsname(*other), O_RDWR | O_NOCTTY);
    check(terminal >= 0 && !ioctl(terminal, TIOCSWINSZ, &size), "cannot open a terminal of %d columns",
          columns);
    return terminal;
}

/* A thread reads the terminal, whose buffer holds only a few thousand bytes. */
static pthread_t reader;
static bool is_reading;

static void *read_terminal(void *file) {
    size_t bytes = 0;
    ssize_t n = 1;
    for (; n > 0 && bytes<sizeof captured - 1; bytes += n> 0 ? (size_t)n : 0)
        n = read(*(int *)file, captured + bytes, sizeof captured - 1 - bytes);
    captured[bytes] = 0;
    return NULL;
}

/* Redirects stderr to a terminal of `columns` columns, or to a file if `columns` is 0, until capture_end
 * returns the text. */
static int capture_begin(int columns) {
    static int other;
    int file = columns ? terminal_of(columns, &other) : memfd_create("captured", 0);
    stderr_before = dup(2);
    setenv("TERM", "xterm", 1);
    dup2(file, 2);
    if (!columns) return file;
    close(file);
    is_reading = !pthread_create(&reader, NULL, read_terminal, &other);
    check(is_reading, "cannot start a thread");
    return other;
}

static const char *capture_end(int other) {
    dup2(stderr_before, 2); /* closes the terminal, which ends the reader thread */
    close(stderr_before);
    lseek(other, 0, SEEK_SET); /* rewinds a captured file; has no effect on a terminal */
    if (is_reading) pthread_join(reader, NULL);
    if (!is_reading) read_terminal(&other);
    is_reading = false;
    close(other);
    return captured;
}

static void check_contains(const char *text, const char *what, bool expected) {
    check(!!strstr(text, what) == expected, "%s is %s: %s", what, expected ? "missing" : "printed", text);
}

/* ---- the progress line ---- */

static const struct sluice_progress at_step_3 = {.struct_size = sizeof at_step_3,
                                                 .stage = "denoise",
                                                 .step = 3,
                                                 .of = 8,
                                                 .fraction = 0.5,
                                                 .seconds = 60,
                                                 .eta = 65,
                                                 .stall_seconds = 0.5,
                                                 .source = "disk"};

static const char *shown(int columns, int n_pictures, struct sluice_progress now) {
    struct progress progress;
    int other = capture_begin(columns);
    progress_start(&progress, false, n_pictures);
    progress_show(&progress, &now);
    return capture_end(other);
}

/* Returns the width of the last progress line in columns. */
static int columns_of(const char *text) {
    const char *line = strrchr(text, 'K');
    return line ? (int)strlen(line + 1) : -1;
}

static void progress_line_names_stage_step_and_time(void) {
    const char *one = shown(80, 1, at_step_3);
    check_contains(one, "sampling [##########----------], step 3 of 8, 1 min 5 s left", true);
    check_contains(one, "waiting", false);
    check_contains(one, "weights", false);
    check_contains(shown(80, 4, at_step_3), "sampling 4 images [##########----------], step 3 of 8", true);
    check_contains(shown(0, 1, at_step_3), "sampling, step 3 of 8, 50 %, 1 min 5 s left\n", true);
    struct sluice_progress now = at_step_3;
    now.stage = "text_2";
    now.step = now.of = 1;
    check_contains(shown(80, 1, now), "encoding the prompt [", true);
    check_contains(captured, "step", false);
    now.stage = "texture"; /* a stage that only a newer library has */
    check_contains(shown(80, 1, now), "texture [", true);
    now.stage = "decode";
    now.of = 4;
    check_contains(shown(80, 4, now), "decoding (VAE) [", true);
    check_contains(captured, ", image 1 of 4", true);
    now.eta = -1;
    check_contains(shown(80, 4, now), "left", false);
    now.eta = 0.01;
    now.fraction = 1;
    check_contains(shown(80, 4, now), "[####################]", true);
    check_contains(captured, "left", false);
}

/* Waiting is shown if it took more than a quarter of the previous second. */
static void waiting_is_shown_while_it_lasts(void) {
    struct progress progress;
    struct sluice_progress now = at_step_3;
    int other = capture_begin(80);
    progress_start(&progress, false, 1);
    progress_show(&progress, &now);
    now.seconds += 1.5, now.stall_seconds += 0.2, now.step++;
    progress_show(&progress, &now);
    check_contains(capture_end(other), "waiting", false);
    other = capture_begin(80);
    now.seconds += 1.5, now.stall_seconds += 1, now.step++;
    progress_show(&progress, &now);
    check_contains(capture_end(other), ", waiting for the disk", true);
    other = capture_begin(80);
    now.seconds += 1.5, now.stall_seconds += 1, now.source = "bus";
    progress_show(&progress, &now);
    check_contains(capture_end(other), ", waiting for the bus", true);
    other = capture_begin(80);
    now.seconds += 1.5, now.step++;
    progress_show(&progress, &now);
    check_contains(capture_end(other), "waiting", false);
}

static void progress_line_fits_the_terminal(void) {
    struct sluice_progress now = at_step_3;
    now.step = now.of = 10000;
    now.eta = 100 * 3600;
    now.stall_seconds = 60;
    for (int columns = 20; columns <= 200; columns++)
        for (int n = 1; n <= 64; n += 63) {
            int width = columns_of(shown(columns, n, now));
            check(width > 0 && width < columns, "%d columns of %d", width, columns);
        }
    check_contains(captured, "waiting for the disk", true);
}

static void progress_line_ends_with_the_last_image(void) {
    for (int columns = 0; columns <= 80; columns += 80) {
        struct progress progress;
        struct sluice_progress now = at_step_3;
        int other = capture_begin(columns);
        progress_start(&progress, false, 1);
        progress_show(&progress, &now);
        message_note("wrote");
        progress_finish(&progress);
        now.stage = "decode", now.fraction = 1, now.seconds += 60;
        progress_show(&progress, &now);
        const char *text = strstr(capture_end(other), "wrote");
        check(text && strcspn(text, "\r\n") + strspn(text + strcspn(text, "\r\n"), "\r\n") == strlen(text),
              "%d columns: more after the last image: %s", columns, captured);
    }
}

/* ---- sizes ---- */

static void sizes_have_three_digits(void) {
    static const struct {
        double bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {10.25 * 1024, "10.2 KiB"},
                 {9.999 * 1024, "10.0 KiB"},
                 {99.97 * 1024, "100 KiB"},
                 {419.3 * 1048576, "419 MiB"},
                 {12.34 * 1073741824, "12.3 GiB"},
                 {5e15, "4547 TiB"}};
    char text[32];
    check(strcmp(progress_duration(91.7, text), "1 min 32 s") == 0, "91.7 s: %s", text);
    check(strcmp(progress_duration(59.7, text), "1 min 0 s") == 0, "59.7 s: %s", text);
    check(strcmp(progress_duration(7199.7, text), "2 h 0 min") == 0, "7199.7 s: %s", text);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check(strcmp(progress_bytes(sizes[i].bytes, text), sizes[i].text) == 0, "%.0f: %s, not %s",
              sizes[i].bytes, text, sizes[i].text);
}

/* ---- sanitized text ---- */

static void unsafe_characters_are_replaced(void) {
    static const struct {
        const char *text, *plain, *json;
    } rows[] = {
        {"", "", ""},
        {"a fox", "a fox", "a fox"},
        {"caf\u00E9 \u72D0 \U0001F98A \u00A0", "caf\u00E9 \u72D0 \U0001F98A \u00A0",
         "caf\u00E9 \u72D0 \U0001F98A \u00A0"},
        {"\x1B[2J\t\r", "?[2J??", "\x1B[2J\t\r"}, /* JSON text keeps control characters below 0x20 */
        {"\x7F", "?", "\\u007F"},
        {"\xC2\x80|\xC2\x9F", "?|?", "\\u0080|\\u009F"},
        {"\u202Ea\u2066b\u2069\u200F\u061C", "?a?b???", "\\u202Ea\\u2066b\\u2069\\u200F\\u061C"},
        {"\u2028\u2029", "??", "\\u2028\\u2029"},
        {"\xFF|\xC0\x80|\xED\xA0\x80|\xF4\x90\x80\x80", "?|??|???|????", "?|??|???|????"},
        {"a\xE7\x8B", "a??", "a??"}, /* cut off */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64], json[128], *from = strcpy(text, rows[i].text);
        FILE *to = fmemopen(json, sizeof json, "w");
        sanitize_print_json(to, rows[i].text);
        fclose(to);
        check(strcmp(sanitize_text(from), rows[i].plain) == 0, "row %zu: %s, not %s", i, from, rows[i].plain);
        check(strcspn(json, "\n") == strlen(rows[i].json) &&
                  !strncmp(json, rows[i].json, strlen(rows[i].json)),
              "row %zu as JSON: %s", i, json);
    }
}

/* The live line is cut at a byte: an incomplete UTF-8 character is replaced. */
static void live_line_is_sanitized(void) {
    int other = capture_begin(6);
    message_live("abcd\u72D0e");
    message_note("%s", "one\ntwo\u202E");
    check_contains(capture_end(other), "Kabcd?", true);
    check_contains(captured, "one?two?", true);
}

/* ---- preview images ---- */

/* Replaces the program's PNG encoder: writes raw pixels. */
int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e) {
    const struct sluice_image *image = content->image;
    fprintf(to, "%d %d\n", image->width, image->height);
    fwrite(image->rgb, 3, (size_t)image->width * (size_t)image->height, to);
    return SLUICE_OK;
}

static int value_of(char digit) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = digit ? strchr(digits, digit) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes base64 up to the first character outside its alphabet. Returns the number of bytes. */
static size_t decode_base64(const char *from, uint8_t *to, size_t room) {
    unsigned group = 0;
    size_t n = 0;
    for (int bits = 0; value_of(*from) >= 0 && n < room; from++) {
        group = group << 6 | (unsigned)value_of(*from);
        bits += 6;
        if (bits >= 8) to[n++] = (uint8_t)(group >> (bits -= 8));
    }
    return n;
}

/* Decodes the first image, which kitty's protocol sends in chunks. Returns the number of bytes. */
static size_t kitty_bytes(const char *text, uint8_t *to, size_t room) {
    size_t n = 0;
    const char *at = strstr(text, "\033_Ga=T,f=100,q=2,C=1,");
    for (bool more = at; more;) {
        at = strstr(at, "m=");
        more = at && at[2] == '1';
        size_t bytes = at ? decode_base64(at + 4, to + n, room - n) : 0;
        check(at && bytes <= 3072 && (!more || bytes == 3072), "a chunk of %zu bytes", bytes);
        n += bytes;
        if (at) at += 4;
    }
    return n;
}

static const uint8_t *grey(int width, int height) {
    static uint8_t rgb[900 * 900 * 3];
    for (int i = 0; i < width * height * 3; i++) rgb[i] = (uint8_t)(i / 3 % width % 2 ? 200 : 100);
    return rgb;
}

static const char *previews_on(const char *term, const char *program, int n, const char *between) {
    struct sluice_preview preview = {.struct_size = sizeof preview, .width = 60, .height = 30};
    struct terminal terminal = {0};
    int other = capture_begin(80);
    setenv("TERM", term, 1);
    setenv("TERM_PROGRAM", program, 1);
    preview.rgb = grey(60, 30);
    for (int i = 0; i < n && terminal_shows_pictures(); i++) {
        if (i && between) message_note("%s", between);
        terminal_show(&terminal, &preview);
    }
    return capture_end(other);
}

static int count(const char *text, const char *what) {
    int n = 0;
    while ((text = strstr(text, what))) n++, text++;
    return n;
}

static void terminal_is_recognised_by_environment(void) {
    const char *none[] = {"xterm", "xterm-256color", "screen", "tmux-256color"};
    check_contains(previews_on("xterm-kitty", "", 1, NULL), "\033_Ga=T", true);
    check_contains(previews_on("xterm-ghostty", "", 1, NULL), "\033_Ga=T", true);
    check_contains(previews_on("xterm-256color", "WezTerm", 1, NULL), "\033]1337;File=inline=1;", true);
    check_contains(previews_on("xterm-256color", "iTerm.app", 1, NULL), "\033]1337;File=inline=1;", true);
    check_contains(previews_on("screen-256color", "iTerm.app", 1, NULL), "\033", false);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        check(!*previews_on(none[i], "", 1, NULL), "an image is shown for TERM=%s: %s", none[i], captured);
    setenv("TMUX", "/tmp/tmux", 1);
    check(!*previews_on("xterm-kitty", "", 1, NULL), "an image is shown in tmux: %s", captured);
    unsetenv("TMUX");
    int other = capture_begin(0);
    setenv("TERM", "xterm-kitty", 1);
    check(!terminal_shows_pictures(), "a file counts as a terminal");
    capture_end(other);
}

/* A preview replaces the previous preview, unless a message was printed in between. */
static void next_preview_replaces_the_last(void) {
    uint8_t bytes[8000];
    size_t n = kitty_bytes(previews_on("xterm-kitty", "", 3, NULL), bytes, sizeof bytes);
    check(n == 6 + 60 * 30 * 3 && !memcmp(bytes, "60 30\n", 6) && !memcmp(bytes + 6, grey(60, 30), n - 6),
          "wrong image of %zu bytes", n);
    check_contains(captured, "c=48,r=12,", true); /* text cells are twice as high as wide */
    check(count(captured, "\n") == 12 && count(captured, "\033[12A") == 3,
          "a preview does not replace the last one: %s", captured);
    previews_on("xterm-kitty", "", 3, "a note");
    check(count(captured, "\n") == 36 + 2, "a preview replaces a message: %s", captured);
    const char *inline_one = strstr(previews_on("xterm", "iTerm.app", 1, NULL), "=1:");
    n = inline_one ? decode_base64(inline_one + 3, bytes, sizeof bytes) : 0;
    check(n == 6 + 60 * 30 * 3 && !memcmp(bytes + 6, grey(60, 30), n - 6), "wrong inline image");
}

/* 900 x 30 pixels are averaged in boxes of 3 x 3. */
static void large_previews_are_shrunk(void) {
    static uint8_t bytes[300 * 300 * 3 + 64];
    struct sluice_preview preview = {
        .struct_size = sizeof preview, .width = 900, .height = 30, .rgb = grey(900, 30)};
    struct terminal terminal = {0};
    int other = capture_begin(80);
    setenv("TERM", "xterm-kitty", 1);
    terminal_show(&terminal, &preview);
    size_t n = kitty_bytes(capture_end(other), bytes, sizeof bytes);
    check(n == 7 + 300 * 10 * 3 && !memcmp(bytes, "300 10\n", 7), "%zu bytes", n);
    check(bytes[7] == 133 && bytes[10] == 166, "means of %d and %d", bytes[7], bytes[10]);
    check_contains(captured, "c=79,r=1,", true);
}

/* ---- summary of a run ---- */

static const char *report_text;

int sluice_report(sluice_session *session, char **json, struct sluice_error *error) {
    *json = strdup(report_text);
    return SLUICE_OK;
}

void sluice_free(char *text) {
    free(text);
}

char *sluice_error_line(const struct sluice_error *error, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s", error->what);
    return out;
}

/* Prints the summary of a run of 100 s that waited `waited` s for weights in stage denoise, which streams
 * `bytes` bytes in each of its evaluations. */
static const char *summary_of(double waited, int evaluations, int bytes, const char *bound) {
    static char text[1024];
    snprintf(text, sizeof text,
             "{\"seconds\":100, \"stages\":[{\"name\":\"text\", \"stall_seconds\":9}, {\"name\":\"denoise\", "
             "\"stall_seconds\":%g}], \"plan\":{\"stages\":[{\"evaluations\":1, "
             "\"streamed_bytes_per_evaluation\":5, \"bound\":\"disk\"}, {\"evaluations\":%d, "
             "\"streamed_bytes_per_evaluation\":%d, \"bound\":\"%s\"}]}}",
             waited, evaluations, bytes, bound);
    report_text = text;
    struct summary summary = {.n_pictures = 2, .seconds = 101};
    int other = capture_begin(0);
    summary_print(&summary);
    return capture_end(other);
}

static void advice_only_if_waiting_was_avoidable(void) {
    static const char nothing[] = "done: 2 images in 1 min 41 s\n";
    check_contains(summary_of(40, 8, 5, "disk"), "40 s of 1 min 40 s were spent waiting for the disk", true);
    check_contains(captured, "(--max-ram)", true);
    check_contains(captured, "--type", true);
    check_contains(summary_of(40, 8, 5, "bus"), "waiting for the PCIe bus. More memory (--max-vram)", true);
    check(strcmp(summary_of(4, 8, 5, "disk"), nothing) == 0, "advice is printed: %s", captured);
    check(strcmp(summary_of(40, 1, 5, "disk"), nothing) == 0, "advice is printed: %s",
          captured); /* no advice, because the weights have to be read once anyway */
    check(strcmp(summary_of(40, 8, 0, "disk"), nothing) == 0, "advice is printed: %s", captured);
}

int main(void) {
    progress_line_names_stage_step_and_time();
    waiting_is_shown_while_it_lasts();
    progress_line_fits_the_terminal();
    progress_line_ends_with_the_last_image();
    sizes_have_three_digits();
    unsafe_characters_are_replaced();
    live_line_is_sanitized();
    terminal_is_recognised_by_environment();
    next_preview_replaces_the_last();
    large_previews_are_shrunk();
    advice_only_if_waiting_was_avoidable();
    return finish();
}
