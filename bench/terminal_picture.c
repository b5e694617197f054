/* Image protocols of terminals. Kitty: sw.kovidgoyal.net/kitty/graphics-protocol (PNG with a=T,f=100, in
 * chunks of 4096). iTerm2: iterm2.com/documentation-images (OSC 1337 File). Sixel: libsixel. */
#include "bench/terminal_picture.h"

#include <cairo/cairo.h>
#include <nettle/base64.h>
#include <sixel/sixel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int is_one_of(const char *term, const char *const *names) {
    for (; *names; names++) {
        if (!strncmp(term, *names, strlen(*names))) return 1;
    }
    return 0;
}

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

enum terminal_kind terminal_kind(void) {
    static const char *const sixel[] = {"foot", "mlterm", "xterm-sixel", "contour", NULL};
    static const char *const multiplexers[] = {"tmux", "screen", NULL};
    const char *term = environment("TERM"), *program = environment("TERM_PROGRAM"),
               *depth = environment("COLORTERM");
    if (!isatty(1) || !*term || !strcmp(term, "dumb")) return TERMINAL_NONE;
    /* Terminal multiplexers (tmux, screen) inherit the terminal's environment variables but do not pass
     * images through. */
    if (!is_one_of(term, multiplexers)) {
        if (!strcmp(term, "xterm-kitty") || *environment("KITTY_WINDOW_ID")) return TERMINAL_KITTY;
        if (!strcmp(program, "iTerm.app") || !strcmp(program, "WezTerm")) return TERMINAL_ITERM;
        if (is_one_of(term, sixel)) return TERMINAL_SIXEL;
    }
    return !strcmp(depth, "truecolor") || !strcmp(depth, "24bit") ? TERMINAL_TRUECOLOR : TERMINAL_256;
}

static struct winsize terminal_size(void) {
    struct winsize size = {0};
    if (ioctl(1, TIOCGWINSZ, &size) || !size.ws_col) size.ws_col = 80;
    return size;
}

/* Returns the file in base64, freed by the caller, or NULL if it cannot be read. */
static char *file_base64(const char *file, size_t *n_bytes, size_t *n_chars) {
    FILE *f = fopen(file, "rb");
    uint8_t *bytes = NULL;
    char *text = NULL;
    long size = -1;
    if (f && !fseek(f, 0, SEEK_END)) size = ftell(f);
    if (size > 0) bytes = malloc((size_t)size);
    if (bytes && !fseek(f, 0, SEEK_SET) && fread(bytes, 1, (size_t)size, f) == (size_t)size) {
        *n_bytes = (size_t)size, *n_chars = BASE64_ENCODE_RAW_LENGTH((size_t)size);
        text = malloc(*n_chars);
    }
    if (text) base64_encode_raw(text, (size_t)size, bytes);
    free(bytes);
    if (f) fclose(f);
    return text;
}

/* Kitty protocol: q=2 suppresses the terminal's reply, which the shell would read as input. */
static void kitty(const char *text, size_t n_chars, int columns) {
    const size_t most = 4096;
    for (size_t at = 0; at < n_chars; at += most) {
        size_t n = n_chars - at < most ? n_chars - at : most;
        printf("\033_G");
        if (!at) printf("a=T,f=100,q=2,c=%d,", columns);
        printf("m=%d;%.*s\033\\", at + n < n_chars, (int)n, text + at);
    }
    putchar('\n');
}

static void iterm(const char *text, size_t n_bytes, size_t n_chars, int columns) {
    printf("\033]1337;File=inline=1;size=%zu;width=%d;preserveAspectRatio=1:", n_bytes, columns);
    fwrite(text, 1, n_chars, stdout);
    printf("\a\n");
}

/* Width of the image in terminal columns: at most 120, enough for readable labels. A wider image would be
 * higher than the terminal. */
static int picture_columns(void) {
    int columns = terminal_size().ws_col;
    return columns < 120 ? columns : 120;
}

static const char *show_file(const char *png_file, enum terminal_kind kind) {
    size_t n_bytes = 0, n_chars = 0;
    char *text = file_base64(png_file, &n_bytes, &n_chars);
    if (!text) return "cannot read it";
    if (kind == TERMINAL_KITTY) kitty(text, n_chars, picture_columns());
    if (kind == TERMINAL_ITERM) iterm(text, n_bytes, n_chars, picture_columns());
    free(text);
    return NULL;
}

static const char *sixel(const char *png_file) {
    struct winsize size = terminal_size();
    char width[32];
    snprintf(width, sizeof width, "%d", size.ws_xpixel && size.ws_xpixel < 1200 ? size.ws_xpixel : 1200);
    sixel_encoder_t *encoder = NULL;
    SIXELSTATUS status = sixel_encoder_new(&encoder, NULL);
    fflush(stdout);
    if (!SIXEL_FAILED(status)) status = sixel_encoder_setopt(encoder, SIXEL_OPTFLAG_WIDTH, width);
    if (!SIXEL_FAILED(status)) status = sixel_encoder_encode(encoder, png_file);
    if (encoder) sixel_encoder_unref(encoder);
    if (SIXEL_FAILED(status)) return sixel_helper_format_error(status);
    putchar('\n');
    return NULL;
}

/* Scales the image to the given number of columns, with two pixels per character, one above the other. */
static cairo_surface_t *scale_down(cairo_surface_t *picture, int columns) {
    int width = cairo_image_surface_get_width(picture), height = cairo_image_surface_get_height(picture);
    int n_rows = (int)((int64_t)height * columns / width) & ~1;
    cairo_surface_t *small = cairo_image_surface_create(CAIRO_FORMAT_RGB24, columns, n_rows);
    cairo_t *c = cairo_create(small);
    cairo_scale(c, (double)columns / width, (double)n_rows / height);
    cairo_set_source_surface(c, picture, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(c), CAIRO_FILTER_GOOD); /* averages when downscaling */
    cairo_pattern_set_extend(cairo_get_source(c), CAIRO_EXTEND_PAD);
    cairo_paint(c);
    cairo_destroy(c);
    cairo_surface_flush(small);
    return small;
}

/* Levels of a channel in xterm's colour cube (colours 16 to 231). */
static unsigned cube_level(unsigned value) {
    static const unsigned levels[6] = {0, 95, 135, 175, 215, 255};
    unsigned best = 0;
    for (unsigned i = 1; i < 6; i++) {
        if (abs((int)(value - levels[i])) < abs((int)(value - levels[best]))) best = i;
    }
    return best;
}

static void colour(int code, uint32_t rgb, enum terminal_kind kind) {
    unsigned r = rgb >> 16 & 255, g = rgb >> 8 & 255, b = rgb & 255;
    if (kind == TERMINAL_TRUECOLOR) {
        printf("\033[%d;2;%u;%u;%um", code, r, g, b);
    } else {
        printf("\033[%d;5;%um", code, 16 + 36 * cube_level(r) + 6 * cube_level(g) + cube_level(b));
    }
}

static const char *half_blocks(const char *png_file, enum terminal_kind kind) {
    cairo_surface_t *picture = cairo_image_surface_create_from_png(png_file);
    cairo_surface_t *small = cairo_surface_status(picture) ? cairo_surface_reference(picture)
                                                           : scale_down(picture, picture_columns());
    cairo_status_t status = cairo_surface_status(small);
    const unsigned char *data = status ? NULL : cairo_image_surface_get_data(small);
    size_t stride = status ? 0 : (size_t)cairo_image_surface_get_stride(small);
    for (int y = 0; !status && y < cairo_image_surface_get_height(small); y += 2) {
        const uint32_t *upper = (const uint32_t *)(const void *)(data + (size_t)y * stride);
        const uint32_t *lower = (const uint32_t *)(const void *)(data + (size_t)(y + 1) * stride);
        for (int x = 0; x < cairo_image_surface_get_width(small); x++) {
            colour(38, upper[x], kind), colour(48, lower[x], kind);
            printf("\u2580");
        }
        printf("\033[0m\n");
    }
    cairo_surface_destroy(small), cairo_surface_destroy(picture);
    return status ? cairo_status_to_string(status) : NULL;
}

const char *terminal_picture_show(const char *png_file, enum terminal_kind kind) {
    const char *failed = NULL;
    if (kind == TERMINAL_KITTY || kind == TERMINAL_ITERM) failed = show_file(png_file, kind);
    if (kind == TERMINAL_SIXEL) failed = sixel(png_file);
    if (kind == TERMINAL_TRUECOLOR || kind == TERMINAL_256) failed = half_blocks(png_file, kind);
    fflush(stdout);
    return failed;
}
