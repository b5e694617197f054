/* The drawing functions also measure: a pass on a one-pixel surface, which draws nothing, finds the sheet's
 * height. */
#include "bench/contact_sheet.h"

#include <cairo/cairo.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ENLARGED = 2,                        /* magnification of the images on the sheet */
    MARGIN = 40,                         /* empty border around the sheet in pixels */
    GAP = 16,                            /* pixels between cards */
    PAD = 14,                            /* padding of a card (an image with its label) in pixels */
    LABEL_LINE = 19,                     /* line height of a label in pixels */
    HEAD = 84,                           /* height of title and subtitle in pixels */
    FOOT = 34,                           /* height of the footer line in pixels */
    INNER = 4 * 256 + 3 * GAP + 8 * PAD, /* width of a row of four square images */
    WIDTH = INNER + 2 * MARGIN,
};

static void set_grey(cairo_t *c, double grey) {
    cairo_set_source_rgb(c, grey, grey, grey);
}

static void font(cairo_t *c, double size, cairo_font_weight_t weight) {
    cairo_select_font_face(c, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL, weight);
    cairo_set_font_size(c, size);
}

static void rounded(cairo_t *c, double x, double y, double width, double height, double radius) {
    const double quarter = 1.5707963267948966;
    cairo_new_sub_path(c);
    cairo_arc(c, x + width - radius, y + radius, radius, -quarter, 0);
    cairo_arc(c, x + width - radius, y + height - radius, radius, 0, quarter);
    cairo_arc(c, x + radius, y + height - radius, radius, quarter, 2 * quarter);
    cairo_arc(c, x + radius, y + radius, radius, 2 * quarter, 3 * quarter);
    cairo_close_path(c);
}

static double text_width(cairo_t *c, const char *text) {
    cairo_text_extents_t extents;
    cairo_text_extents(c, text, &extents);
    return extents.x_advance;
}

static void text_at(cairo_t *c, double x, double y, const char *text) {
    cairo_move_to(c, x, y);
    cairo_show_text(c, text);
}

/* Breaks the text at spaces into lines of at most `width` pixels, the first with its baseline at y; a longer
 * word gets its own line. Draws only if `visible`. Returns the number of lines. */
static int wrapped(cairo_t *c, const char *text, double x, double y, double width, int visible) {
    char line[256] = "", longer[512];
    int n_lines = 0;
    while (*text) {
        size_t word = strcspn(text, " ");
        snprintf(longer, sizeof longer, "%s%s%.*s", line, *line ? " " : "", (int)(word < 200 ? word : 200),
                 text);
        if (*line && text_width(c, longer) > width) {
            if (visible) text_at(c, x, y + LABEL_LINE * n_lines, line);
            n_lines++, *line = 0;
            continue;
        }
        snprintf(line, sizeof line, "%.255s", longer);
        text += word, text += strspn(text, " ");
    }
    if (*line && visible) text_at(c, x, y + LABEL_LINE * n_lines, line);
    return n_lines + (*line != 0);
}

/* Draws a row of the sheet: as many images as fit side by side. */
struct row {
    int first, n, picture_height, n_lines, height;
};

static struct row row_from(cairo_t *c, const struct contact_sheet *sheet, int first) {
    struct row row = {.first = first};
    int x = 0;
    for (int i = first; i < sheet->n_pictures; i++, row.n++) {
        const struct sheet_picture *p = &sheet->pictures[i];
        int width = ENLARGED * p->width, height = ENLARGED * p->height;
        if (row.n && x + width + 2 * PAD > INNER) break;
        x += width + 2 * PAD + GAP;
        if (height > row.picture_height) row.picture_height = height;
        int n_lines = wrapped(c, p->prompt, 0, 0, width, 0);
        if (n_lines > row.n_lines) row.n_lines = n_lines;
    }
    row.height = PAD + row.picture_height + 8 + LABEL_LINE * row.n_lines + PAD;
    return row;
}

/* Converts RGB triples to Cairo's 32 bits per pixel. */
static cairo_surface_t *surface_of(const struct sheet_picture *p) {
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, p->width, p->height);
    if (cairo_surface_status(surface)) return surface;
    size_t stride = (size_t)cairo_image_surface_get_stride(surface);
    unsigned char *data = cairo_image_surface_get_data(surface);
    cairo_surface_flush(surface);
    for (int y = 0; y < p->height; y++) {
        uint32_t *to = (uint32_t *)(void *)(data + (size_t)y * stride);
        const uint8_t *from = p->rgb + 3 * (size_t)y * (size_t)p->width;
        for (int x = 0; x < p->width; x++, from += 3) {
            to[x] = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
        }
    }
    cairo_surface_mark_dirty(surface);
    return surface;
}

static void draw_picture(cairo_t *c, const struct sheet_picture *p, double x, double y) {
    cairo_surface_t *surface = surface_of(p);
    cairo_save(c);
    rounded(c, x, y, ENLARGED * p->width, ENLARGED * p->height, 8);
    cairo_clip_preserve(c);
    cairo_translate(c, x, y);
    cairo_scale(c, ENLARGED, ENLARGED);
    cairo_set_source_surface(c, surface, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(c), CAIRO_FILTER_BILINEAR);
    /* Extends the image's edge pixels, so that bilinear filtering does not blend them with the
     * background. */
    cairo_pattern_set_extend(cairo_get_source(c), CAIRO_EXTEND_PAD);
    cairo_paint(c);
    cairo_restore(c);
    cairo_surface_destroy(surface);
    /* Outlines the image, so that a white image is visible on its white card. */
    rounded(c, x + .5, y + .5, ENLARGED * p->width - 1, ENLARGED * p->height - 1, 8);
    cairo_set_source_rgba(c, 0, 0, 0, .16);
    cairo_stroke(c);
}

static void draw_card(cairo_t *c, const struct sheet_picture *p, const struct row *row, double x, double y) {
    double width = ENLARGED * p->width, height = ENLARGED * p->height;
    rounded(c, x + .5, y + .5, width + 2 * PAD - 1, row->height - 1, 14);
    set_grey(c, 1);
    cairo_fill_preserve(c);
    set_grey(c, .86);
    cairo_stroke(c);
    draw_picture(c, p, x + PAD, y + PAD + (row->picture_height - height) / 2);
    set_grey(c, .15);
    wrapped(c, p->prompt, x + PAD, y + PAD + row->picture_height + 8 + 14, width, 1);
}

/* Draws the whole contact sheet if `visible`. Returns its height in pixels. */
static int rows(cairo_t *c, const struct contact_sheet *sheet, int visible) {
    int y = MARGIN + HEAD;
    font(c, 14, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_line_width(c, 1);
    for (int i = 0; i < sheet->n_pictures;) {
        struct row row = row_from(c, sheet, i);
        int x = MARGIN;
        for (; i < row.first + row.n; i++) {
            if (visible) draw_card(c, &sheet->pictures[i], &row, x, y);
            x += ENLARGED * sheet->pictures[i].width + 2 * PAD + GAP;
        }
        y += row.height + GAP;
    }
    return y - GAP + FOOT + MARGIN;
}

static int height_of(const struct contact_sheet *sheet) {
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1);
    cairo_t *c = cairo_create(surface);
    int height = rows(c, sheet, 0);
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    return height;
}

static void draw_sheet(cairo_t *c, const struct contact_sheet *sheet, int height) {
    cairo_set_source_rgb(c, .953, .957, .965);
    cairo_paint(c);
    set_grey(c, .1);
    font(c, 30, CAIRO_FONT_WEIGHT_BOLD);
    text_at(c, MARGIN, MARGIN + 28, sheet->title);
    set_grey(c, .35);
    font(c, 15, CAIRO_FONT_WEIGHT_NORMAL);
    text_at(c, MARGIN, MARGIN + 58, sheet->subtitle);
    font(c, 14, CAIRO_FONT_WEIGHT_NORMAL);
    text_at(c, MARGIN, height - MARGIN, sheet->footer);
    rows(c, sheet, 1);
}

static const char *save(cairo_surface_t *surface, const char *file) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s.%ld.part", file, (long)getpid()) >= (int)sizeof part)
        return "name too long";
    cairo_status_t status = cairo_surface_write_to_png(surface, part);
    const char *failed = status ? cairo_status_to_string(status) : NULL;
    if (!failed && rename(part, file)) failed = strerror(errno);
    if (failed) unlink(part);
    return failed;
}

const char *contact_sheet_write(const struct contact_sheet *sheet, const char *file) {
    int height = height_of(sheet);
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH, height);
    cairo_t *c = cairo_create(surface);
    draw_sheet(c, sheet, height);
    const char *failed = cairo_status(c) ? cairo_status_to_string(cairo_status(c)) : save(surface, file);
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    return failed;
}
