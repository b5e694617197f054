/* Text on stderr: see messages.h. Messages use write(2), not stdio, because a signal handler prints one. */
#include "cli/messages.h"

#include "cli/fields.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ---- text that is safe to print on a terminal ---- */

/* Decodes the code point at text. *length: its bytes, 0 if malformed. */
static uint32_t decode(const char *text, size_t bytes, size_t *length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    size_t n = c[0] < 0x80 ? 1 : c[0] < 0xC2 ? 0 : c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4;
    *length = 0;
    if (n == 0 || n > bytes || c[0] > 0xF4) return 0;
    uint32_t code = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((c[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (c[i] & 0x3Fu);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    if (!surrogate && code <= 0x10FFFF && (n == 1 || code >= least[n])) *length = n;
    return code;
}

size_t sanitize_utf8_length(const char *text, size_t bytes) {
    size_t length;
    decode(text, bytes, &length);
    return length;
}

/* False for control characters (C0, DEL, C1), Unicode's Bidi_Control, and line and paragraph separators. */
static bool is_plain(uint32_t code) {
    bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    bool direction = code == 0x061C || code == 0x200E || code == 0x200F ||
                     (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
    return !control && !direction && code != 0x2028 && code != 0x2029;
}

char *sanitize_text(char *text) {
    char *from = text, *to = text, *end = text + strlen(text);
    while (from < end) {
        size_t length;
        uint32_t code = decode(from, (size_t)(end - from), &length);
        bool plain = length && is_plain(code);
        if (!plain) *to = '?';
        if (plain) memmove(to, from, length);
        to += plain ? length : 1;
        from += length ? length : 1;
    }
    *to = 0;
    return text;
}

void sanitize_json(json_t *value) {
    size_t i;
    const char *key;
    json_t *inner;
    if (json_is_string(value)) {
        char *text = strdup(json_string_value(value));
        json_string_set_nocheck(value, text ? sanitize_text(text) : "?");
        free(text);
    }
    json_array_foreach(value, i, inner) sanitize_json(inner);
    json_object_foreach(value, key, inner) sanitize_json(inner);
}

void sanitize_print_json(FILE *to, const char *json) {
    size_t bytes = strlen(json);
    while (bytes) {
        size_t length;
        uint32_t code = decode(json, bytes, &length);
        /* In JSON text, an unescaped control character can only be a line end between tokens. */
        bool as_is = length && (is_plain(code) || code < 0x20);
        if (as_is) fwrite(json, 1, length, to);
        if (!as_is) fprintf(to, length ? "\\u%04X" : "?", (unsigned)code); /* code < U+10000 */
        if (!length) length = 1;
        json += length;
        bytes -= length;
    }
    fputc('\n', to);
}

/* ---- messages ---- */

static atomic_flag last_line_taken = ATOMIC_FLAG_INIT;
static atomic_bool live; /* the progress line is on the screen, without a newline */
static atomic_bool in_picture;
static atomic_uint notes;

static void message_put(const char *text, size_t bytes) {
    while (bytes) {
        ssize_t done = write(STDERR_FILENO, text, bytes);
        if (done <= 0) return; /* stderr is closed */
        text += done;
        bytes -= (size_t)done;
    }
}

bool message_on_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* Clears the progress line and writes prefix, text and newline with one write(2). */
static void put_line(const char *prefix, const char *text) {
    char *line = NULL;
    const char *clear = atomic_exchange(&live, false) ? "\r\033[K" : "";
    int bytes = asprintf(&line, "%s%s%s\n", clear, prefix, text);
    if (bytes < 0) return;
    line[bytes - 1] = 0;
    sanitize_text(line + strlen(clear));
    bytes = (int)strlen(line);
    line[bytes] = '\n';
    atomic_fetch_add(&notes, 1);
    message_put(line, (size_t)bytes + 1);
    free(line);
}

void message_note(const char *format, ...) {
    char *text = NULL;
    va_list list;
    va_start(list, format);
    int bytes = vasprintf(&text, format, list);
    va_end(list);
    if (bytes < 0) return;
    put_line(strncmp(text, "sluice: ", 8) ? "" : " ",
             text); /* only the final error line may begin with "sluice: " */
    free(text);
}

int message_columns(void) {
    struct winsize size = {0};
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return !known ? 79 : size.ws_col < 480 ? size.ws_col - 1 : 479;
}

void message_live(const char *text) {
    char line[512];
    enum { CLEAR_BYTES = 4 };
    snprintf(line, sizeof line, "\r\033[K%.*s", message_columns(), text);
    sanitize_text(line + CLEAR_BYTES);
    atomic_store(&live, true);
    message_put(line, strlen(line));
}

void message_live_end(void) {
    if (atomic_exchange(&live, false)) message_put("\n", 1);
}

void message_live_clear(void) {
    if (atomic_exchange(&live, false)) message_put("\r\033[K", 4);
}

void message_picture(const char *codes, size_t bytes) {
    message_live_clear();
    atomic_store(&in_picture, true);
    message_put(codes, bytes);
    atomic_store(&in_picture, false);
}

unsigned message_count(void) {
    return atomic_load(&notes);
}

void message_failure(const struct sluice_error *error) {
    char line[1024];
    if (atomic_flag_test_and_set(&last_line_taken)) return;
    put_line("sluice: ", sluice_error_line(error, line, sizeof line));
}

bool message_cancelled_in_handler(void) {
    if (atomic_flag_test_and_set(&last_line_taken)) return false;
    if (atomic_load(&in_picture))
        message_put("\033\\\n", 3); /* ends the escape sequence that draws an image */
    if (atomic_exchange(&live, false)) message_put("\n", 1);
    message_put("sluice: cancelled\n", 18);
    return true;
}

/* ---- progress ---- */

char *progress_duration(double seconds, char *out) {
    if (seconds < 9.95) {
        snprintf(out, 32, "%.1f s", seconds);
    } else if (seconds < 59.5) {
        snprintf(out, 32, "%.0f s", seconds);
    } else if (seconds < 3599.5) {
        int rounded = (int)(seconds + 0.5);
        snprintf(out, 32, "%d min %d s", rounded / 60, rounded % 60);
    } else {
        int64_t minutes = (int64_t)(seconds / 60 + 0.5);
        snprintf(out, 32, "%.0f h %d min", (double)(minutes / 60), (int)(minutes % 60));
    }
    return out;
}

char *progress_bytes(double bytes, char *out) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    /* three significant digits: 99.95 would be printed as 100.0 */
    int decimals = !unit || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f %s", decimals, bytes, units[unit]);
    return out;
}

/* Progress text for a stage; an unknown stage keeps its name. */
static void name_stage(const struct progress *progress, const char *stage, char *out, size_t out_bytes) {
    static const struct {
        const char *stage, *one, *several;
    } names[] = {
        {"text", "encoding the prompt", "encoding the prompt"},
        {"vision", "encoding the input image (vision)", "encoding the input images (vision)"},
        {"encode", "encoding the input image (VAE)", "encoding the input images (VAE)"},
        {"hoist", "preparing", "preparing"},
        {"denoise", "sampling", "sampling %d %ss"},
        {"decode", "decoding (VAE)", "decoding (VAE)"},
        {"sound", "decoding the sound", "decoding the sounds"},
        {"vocoder", "synthesising the sound", "synthesising the sounds"},
        {"upscale", "enlarging", "enlarging"},
        {"upsample", "enlarging the latent", "enlarging the latent"},
    };
    snprintf(out, out_bytes, "%s", stage);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i].stage);
        if (strncmp(stage, names[i].stage, length) || (stage[length] && stage[length] != '_')) continue;
        snprintf(out, out_bytes, progress->n_pictures > 1 ? names[i].several : names[i].one,
                 progress->n_pictures, progress->are_videos ? "video" : "image");
    }
}

/* Writes "sampling, step 3 of 8, 2 min 5 s left, waiting for the disk"; on a terminal with a bar in the
 * columns that the text leaves free, in a log with the percentage. */
static void describe_line(const struct progress *progress, const struct sluice_progress *now, char *out,
                          size_t out_bytes) {
    enum { LEAST_CELLS = 4, MOST_CELLS = 20 };
    char what[64], bar[MOST_CELLS + 4] = "", step[48] = "", far[16] = "", left[48] = "", time[32], words[160];
    name_stage(progress, now->stage, what, sizeof what);
    const char *noun = strncmp(now->stage, "denoise", 7) == 0 ? "step"
                       : progress->n_pictures == now->of      ? (progress->are_videos ? "video" : "image")
                                                              : "part";
    if (now->step > 0 && now->of > 1) snprintf(step, sizeof step, ", %s %d of %d", noun, now->step, now->of);
    if (!progress->live) snprintf(far, sizeof far, ", %.0f %%", 100 * now->fraction);
    if (now->eta >= 0 && now->fraction < 1)
        snprintf(left, sizeof left, ", %s left", progress_duration(now->eta, time));
    snprintf(words, sizeof words, "%s%s%s%s%s", step, far, left,
             progress->is_waiting ? ", waiting for the " : "", progress->is_waiting ? now->source : "");
    int cells = progress->live ? message_columns() - (int)(strlen(what) + strlen(words)) - 3 : 0;
    if (cells > MOST_CELLS) cells = MOST_CELLS;
    if (cells >= LEAST_CELLS) {
        int full = (int)(now->fraction * cells + 0.5);
        memcpy(bar, " [", 2);
        for (int i = 0; i < cells; i++) bar[2 + i] = i < full ? '#' : '-';
        memcpy(bar + 2 + cells, "]", 2);
    }
    snprintf(out, out_bytes, "%s%s%s", what, bar, words);
}

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, bool silent, int n_pictures) {
    memset(progress, 0, sizeof *progress);
    progress->n_pictures = n_pictures;
    progress->silent = silent;
    progress->live = message_on_terminal();
}

void progress_finish(struct progress *progress) {
    progress->silent = true;
    if (progress->live) message_live_clear();
}

void progress_show(struct progress *progress, const struct sluice_progress *now) {
    char line[320];
    double seconds = now->seconds - progress->checked_seconds;
    if (seconds >= 1) {
        progress->is_waiting = now->stall_seconds - progress->checked_stall > 0.25 * seconds;
        progress->checked_seconds = now->seconds;
        progress->checked_stall = now->stall_seconds;
    }
    /* On a terminal the progress line is redrawn ten times a second. A log gets a line for each stage, for a
     * step if 3 s have passed, and every 15 s. */
    double since = now->seconds - progress->shown_seconds;
    bool stage = strncmp(progress->stage, now->stage, sizeof progress->stage - 1) != 0;
    bool step = progress->step != now->step;
    bool due = progress->live ? stage || step || since >= 0.1 || now->fraction >= 1
                              : stage || (step && since >= 3) || since >= 15;
    if (progress->silent || !due) return;
    describe_line(progress, now, line, sizeof line);
    snprintf(progress->stage, sizeof progress->stage, "%s", now->stage);
    progress->step = now->step;
    progress->shown_seconds = now->seconds;
    if (progress->live) {
        message_live(line);
    } else {
        message_note("%s", line);
    }
}

/* ---- summary: every number comes from the library's report, only sums are computed here ---- */

/* Returns the stage of the plan that belongs to stage i_stage of the run's report. */
static const json_t *planned_stage(const json_t *report, size_t i_stage) {
    return json_array_get(json_object_get(json_object_get(report, "plan"), "stages"), i_stage);
}

/* Returns what limits a stage's weight reads: "disk" or "bus" (PCIe). */
static const char *stall_source(const json_t *report, size_t i_stage) {
    return strcmp(field_string(planned_stage(report, i_stage), "bound"), "bus") ? "disk" : "bus";
}

/* Prints advice if at least 5 % of the time was spent rereading weights. */
static void print_advice(const json_t *report) {
    size_t i, worst = 0;
    json_t *stage;
    double waited = 0, most = 0, seconds = field_number(report, "seconds");
    char all[32], of_it[32];
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        double stall = field_number(stage, "stall_seconds");
        const json_t *plan = planned_stage(report, i);
        if (field_number(plan, "evaluations") <= 1 ||
            field_number(plan, "streamed_bytes_per_evaluation") <= 0)
            continue; /* no advice: weights are read only once, so more memory would not save reads */
        waited += stall;
        if (stall > most) worst = i;
        if (stall > most) most = stall;
    }
    if (!(waited >= 0.05 * seconds) || waited <= 0) return;
    bool bus = strcmp(stall_source(report, worst), "bus") == 0;
    message_note("%s of %s were spent waiting for the %s. More memory (%s) or smaller weights (--type) would "
                 "help; `sluice plan` shows how much",
                 progress_duration(waited, of_it), progress_duration(seconds, all), bus ? "PCIe bus" : "disk",
                 bus ? "--max-vram" : "--max-ram");
}

static void print_stage(const json_t *stage) {
    char read[32], planned[32], measured[32], best[48] = "";
    const json_t *efficiency = json_object_get(stage, "efficiency");
    if (json_is_number(efficiency))
        snprintf(best, sizeof best, ", lower bound %.2f s (efficiency %.0f %%)",
                 field_number(stage, "floor_seconds"), 100 * json_number_value(efficiency));
    message_note("stage %s: %.2f s (computing %.2f s, waiting %.2f s; CPU time %.2f s user, %.2f s system), "
                 "read %s at "
                 "%.2f GB/s%s; peak RAM so far %s, planned %s",
                 field_string(stage, "name"), field_number(stage, "seconds"),
                 field_number(stage, "compute_seconds"), field_number(stage, "stall_seconds"),
                 field_number(stage, "user_seconds"), field_number(stage, "system_seconds"),
                 progress_bytes(field_number(stage, "bytes_moved"), read),
                 field_number(stage, "gbytes_per_second"), best,
                 progress_bytes(field_number(stage, "measured_ram_bytes"), measured),
                 progress_bytes(field_number(stage, "planned_ram_bytes"), planned));
}

void summary_print(const struct summary *summary) {
    char spent[32], *text = NULL;
    struct sluice_error ignored;
    message_note("done: %d %s%s in %s", summary->n_pictures, summary->are_videos ? "video" : "image",
                 summary->n_pictures == 1 ? "" : "s", progress_duration(summary->seconds, spent));
    if (sluice_report(summary->session, &text, &ignored) || !text) return;
    json_t *report = json_loads(text, 0, NULL), *stage;
    size_t i;
    sluice_free(text);
    if (report) print_advice(report);
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (summary->verbose && field_number(stage, "stall_block_seconds") > 0)
            message_note("stage %s waited %.2f s for the %s, longest for block %s (%.2f s)",
                         field_string(stage, "name"), field_number(stage, "stall_seconds"),
                         stall_source(report, i), field_string(stage, "stall_block"),
                         field_number(stage, "stall_block_seconds"));
    }
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (summary->verbose) print_stage(stage);
    }
    json_decref(report);
}
