#include "cli/terminal.h"

#include "cli/picture.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Images are shrunk to at most SIDE_MOST pixels per side; 12 text rows are about 250 pixels high. */
enum { SIDE_MOST = 384, ROWS_MOST = 12, CHUNK = 4096 };

/* Writes the escape sequence of a PNG in base64, shown in columns x rows text cells. */
typedef void terminal_put(FILE *to, const char *base64, int columns, int rows);

static bool env_is(const char *variable, const char *value) {
    const char *found = getenv(variable);
    return found && !strcmp(found, value);
}

/* Kitty's protocol: a PNG in chunks, shown at the cursor without moving it (C=1), without answers (q=2). It
 * replaces the image of the same number i. Source: https://sw.kovidgoyal.net/kitty/graphics-protocol */
static void put_kitty(FILE *to, const char *base64, int columns, int rows) {
    size_t left = strlen(base64);
    fprintf(to, "\033_Ga=T,f=100,q=2,C=1,i=%d,p=1,c=%d,r=%d,", (int)getpid(), columns, rows);
    for (size_t n; left; left -= n, base64 += n) {
        n = left < CHUNK ? left : CHUNK;
        fprintf(to, "m=%d;%.*s\033\\", n < left, (int)n, base64);
        if (n < left) fputs("\033_G", to);
    }
}

/* iTerm2's protocol. Source: https://iterm2.com/documentation-images.html */
static void put_iterm(FILE *to, const char *base64, int columns, int rows) {
    fprintf(to, "\033]1337;File=inline=1;width=%d;height=%d;preserveAspectRatio=1:%s\a", columns, rows,
            base64);
}

/* Returns the image protocol of the terminal on stderr; NULL if the terminal shows no images. */
static terminal_put *protocol(void) {
    const char *term = getenv("TERM");
    if (!message_on_terminal() || getenv("TMUX") || getenv("STY") || !strncmp(term, "screen", 6) ||
        !strncmp(term, "tmux", 4))
        return NULL;
    if (!strcmp(term, "xterm-kitty") || !strcmp(term, "xterm-ghostty")) return put_kitty;
    if (env_is("TERM_PROGRAM", "iTerm.app") || env_is("TERM_PROGRAM", "WezTerm")) return put_iterm;
    return NULL;
}

bool terminal_shows_pictures(void) {
    return protocol();
}

/* Lays the preview over white if it has alpha, and shrinks it by box averages of k x k pixels. Drops
 * incomplete boxes at the right and bottom edge. The caller frees the rows; NULL: out of memory. */
static uint8_t *shrink(const struct sluice_preview *preview, int k, int width, int height) {
    uint8_t *out = malloc((size_t)width * (size_t)height * 3), *to = out;
    for (int y = 0; y < height && out; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++) {
                unsigned sum = 0;
                for (int i = 0; i < k * k; i++) {
                    size_t at = (size_t)(y * k + i / k) * (size_t)preview->width + (size_t)(x * k + i % k);
                    int value = preview->rgb[3 * at + (size_t)c];
                    sum += preview->alpha ? picture_over_white(value, preview->alpha[at]) : value;
                }
                *to++ = (uint8_t)(sum / (unsigned)(k * k));
            }
    return out;
}

/* Encodes bytes as base64, freed by the caller; NULL: out of memory. */
static char *encode_base64(const uint8_t *bytes, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *out = malloc((n + 2) / 3 * 4 + 1), *to = out;
    for (size_t i = 0; i < n && out; i += 3) {
        unsigned group = (unsigned)bytes[i] << 16;
        if (i + 1 < n) group |= (unsigned)bytes[i + 1] << 8;
        if (i + 2 < n) group |= bytes[i + 2];
        for (int k = 0; k < 4; k++) *to++ = i + (size_t)k > n ? '=' : digits[group >> (18 - 6 * k) & 63];
    }
    if (out) *to = 0;
    return out;
}

/* Encodes an image as PNG in base64, freed by the caller; NULL: out of memory. */
static char *encode_png(const uint8_t *rgb, int width, int height) {
    struct sluice_image image = {
        .struct_size = sizeof image, .width = width, .height = height, .rgb = rgb, .frames = 1};
    struct sluice_error ignored;
    char *png = NULL, *base64 = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&png, &bytes);
    if (!to) return NULL;
    int status = picture_encode_png(to, "the terminal", &(struct picture_content){.image = &image}, &ignored);
    if (!fclose(to) && !status) base64 = encode_base64((const uint8_t *)png, bytes);
    free(png);
    return base64;
}

/* Computes the image's size in text cells, which are about twice as high as wide. */
static void fit_cells(int width, int height, int *columns, int *rows) {
    struct winsize size = {0};
    bool known = !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_row > 3;
    int most = known && size.ws_row / 2 < ROWS_MOST ? size.ws_row / 2 : ROWS_MOST;
    *rows = most;
    *columns = (2 * most * width + height / 2) / height;
    if (*columns > message_columns()) {
        *columns = message_columns();
        *rows = (*columns * height + width) / (2 * width);
    }
    if (*columns < 1) *columns = 1;
    if (*rows < 1) *rows = 1;
}

void terminal_show(struct terminal *terminal, const struct sluice_preview *preview) {
    int longer = preview->width > preview->height ? preview->width : preview->height;
    int k = (longer + SIDE_MOST - 1) / SIDE_MOST, width = preview->width / k, height = preview->height / k;
    int columns, rows;
    if (!width || !height) return;
    uint8_t *small = shrink(preview, k, width, height);
    char *base64 = small ? encode_png(small, width, height) : NULL, *text = NULL;
    size_t bytes = 0;
    FILE *to = base64 ? open_memstream(&text, &bytes) : NULL;
    fit_cells(width, height, &columns, &rows);
    if (to) {
        /* Scrolls by the height of the image, or reuses the area of the previous image, before saving the
         * cursor: scrolling later would move the saved position. */
        bool again = terminal->shown && terminal->rows == rows && terminal->notes == message_count();
        for (int i = 0; i < rows && !again; i++) putc('\n', to);
        fprintf(to, "\033[%dA\r\0337", rows);
        protocol()(to, base64, columns, rows);
        fprintf(to, "\0338\033[%dB", rows);
        *terminal = (struct terminal){true, message_count(), rows};
    }
    if (to && !fclose(to)) message_picture(text, bytes);
    free(text);
    free(base64);
    free(small);
}
