/* Colour quantisation by median cut. Colours are counted in cells of 8 levels per channel. A
 * box of cells, at first all cells, is split along its longest edge so that each part has half of the pixels,
 * until there are 256 boxes; a box's mean is its colour (Heckbert, "Color image quantization for frame buffer
 * display", 1982). */
#include "cli/palette.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BITS = 5, CELLS = 1 << 3 * CELL_BITS, CELL_LEVELS = 1 << CELL_BITS, SHIFT = 8 - CELL_BITS };

struct cell {
    uint32_t n, sum[3];
};

/* A box of colour cells: palette.order[first .. first + n). */
struct box {
    int first, n;
    uint64_t pixels;
    int axis, length; /* longest edge of the box: its colour channel 0 to 2, its length in cells */
};

struct palette {
    struct cell cells[CELLS];
    uint16_t order[CELLS], sorted[CELLS];
    struct box boxes[PALETTE_COLOURS];
    int n_boxes;
    int16_t nearest[CELLS]; /* index of a cell's nearest colour; -1: not computed yet */
    int width;
    int error[]; /* dithering error of the current and the next row, in sixteenths: [2][width + 2][3] */
};

static size_t row_values(int width) {
    return 3 * ((size_t)width + 2);
}

struct palette *palette_new(int width) {
    struct palette *palette = malloc(sizeof *palette + 2 * row_values(width) * sizeof *palette->error);
    if (palette) palette->width = width;
    return palette;
}

static int cell_of(const int rgb[3]) {
    return rgb[0] >> SHIFT << 2 * CELL_BITS | rgb[1] >> SHIFT << CELL_BITS | rgb[2] >> SHIFT;
}

static int level(int cell, int axis) {
    return cell >> (2 - axis) * CELL_BITS & (CELL_LEVELS - 1);
}

static void measure_box(const struct palette *p, struct box *box) {
    int least[3] = {INT_MAX, INT_MAX, INT_MAX}, most[3] = {0};
    box->pixels = 0;
    box->length = -1;
    for (int i = box->first; i < box->first + box->n; i++) {
        box->pixels += p->cells[p->order[i]].n;
        for (int c = 0; c < 3; c++) {
            int at = level(p->order[i], c);
            if (at < least[c]) least[c] = at;
            if (at > most[c]) most[c] = at;
        }
    }
    for (int c = 0; c < 3; c++)
        if (most[c] - least[c] > box->length) box->length = most[c] - least[c], box->axis = c;
}

static void sort_along(struct palette *p, const struct box *box) {
    int begin[CELL_LEVELS + 1] = {0};
    for (int i = 0; i < box->n; i++) begin[level(p->order[box->first + i], box->axis) + 1]++;
    for (int l = 0; l < CELL_LEVELS; l++) begin[l + 1] += begin[l];
    for (int i = 0; i < box->n; i++) {
        uint16_t cell = p->order[box->first + i];
        p->sorted[begin[level(cell, box->axis)]++] = cell;
    }
    memcpy(p->order + box->first, p->sorted, (size_t)box->n * sizeof *p->order);
}

/* Splits a box into two boxes, neither empty. */
static void split_box(struct palette *p, struct box *box) {
    struct box *other = &p->boxes[p->n_boxes++];
    uint64_t below = 0;
    int n = 0;
    sort_along(p, box);
    while (n + 1 < box->n && (!n || 2 * below < box->pixels)) below += p->cells[p->order[box->first + n++]].n;
    *other = (struct box){.first = box->first + n, .n = box->n - n};
    box->n = n;
    measure_box(p, box);
    measure_box(p, other);
}

static void choose_colours(struct palette *p, uint32_t *colours) {
    struct box *box = &p->boxes[0];
    *box = (struct box){0};
    for (int i = 0; i < CELLS; i++)
        if (p->cells[i].n) p->order[box->n++] = (uint16_t)i;
    p->n_boxes = 1;
    measure_box(p, box);
    while (box && p->n_boxes < PALETTE_COLOURS) {
        /* splits the box with the largest product of pixel count and squared length; if no product is above
         * 0, all boxes are single cells */
        double most = 0;
        box = NULL;
        for (int i = 0; i < p->n_boxes; i++) {
            double wrong = (double)p->boxes[i].pixels * p->boxes[i].length * p->boxes[i].length;
            if (wrong > most) most = wrong, box = &p->boxes[i];
        }
        if (box) split_box(p, box);
    }
    for (int i = 0; i < PALETTE_COLOURS; i++) {
        uint64_t sum[3] = {0}, n = 0;
        for (int k = 0; i < p->n_boxes && k < p->boxes[i].n; k++) {
            const struct cell *cell = &p->cells[p->order[p->boxes[i].first + k]];
            n += cell->n;
            for (int c = 0; c < 3; c++) sum[c] += cell->sum[c];
        }
        for (int c = 0; c < 3; c++) sum[c] = n ? (sum[c] + n / 2) / n : 0;
        colours[i] = 0xFF000000u | (uint32_t)(sum[0] << 16 | sum[1] << 8 | sum[2]);
    }
}

static int channel(uint32_t colour, int c) {
    return colour >> (16 - 8 * c) & 255;
}

static int find_nearest(const struct palette *p, const uint32_t *colours, int cell) {
    int best = 0, least = INT_MAX, middle = 1 << (SHIFT - 1);
    for (int i = 0; i < p->n_boxes; i++) {
        int distance = 0;
        for (int c = 0; c < 3; c++) {
            int d = channel(colours[i], c) - (level(cell, c) << SHIFT) - middle;
            distance += d * d;
        }
        if (distance < least) least = distance, best = i;
    }
    return best;
}

/* Chooses dithered colours for a row. this, next: dithering error of this and the next row, in sixteenths. */
static void dither_row(struct palette *p, const uint8_t *rgb, const uint32_t *colours, int *this, int *next,
                       uint8_t *indices) {
    for (int x = 0; x < p->width; x++, rgb += 3) {
        int wanted[3], *at = this + 3 * (x + 1), *below = next + 3 * (x + 1);
        for (int c = 0; c < 3; c++) {
            int value = rgb[c] + at[c] / 16;
            wanted[c] = value < 0 ? 0 : value > 255 ? 255 : value;
        }
        int cell = cell_of(wanted);
        if (p->nearest[cell] < 0) p->nearest[cell] = (int16_t)find_nearest(p, colours, cell);
        indices[x] = (uint8_t)p->nearest[cell];
        for (int c = 0; c < 3; c++) {
            int error = wanted[c] - channel(colours[indices[x]], c);
            at[c + 3] += 7 * error;
            below[c - 3] += 3 * error;
            below[c] += 5 * error;
            below[c + 3] += error;
        }
    }
}

void palette_reduce(struct palette *p, const uint8_t *rgb, int height, uint32_t *colours, uint8_t *indices,
                    int stride) {
    size_t values = row_values(p->width);
    int *rows[2] = {p->error, p->error + values};
    memset(p->cells, 0, sizeof p->cells);
    for (size_t i = 0; i < (size_t)p->width * (size_t)height; i++) {
        struct cell *cell = &p->cells[cell_of((int[]){rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]})];
        cell->n++;
        for (int c = 0; c < 3; c++) cell->sum[c] += rgb[3 * i + (size_t)c];
    }
    choose_colours(p, colours);
    memset(p->nearest, -1, sizeof p->nearest);
    memset(p->error, 0, 2 * values * sizeof *p->error);
    for (int y = 0; y < height; y++) {
        int *this = rows[y % 2], *next = rows[1 - y % 2];
        dither_row(p, rgb + 3 * (size_t)p->width * (size_t)y, colours, this, next,
                   indices + (ptrdiff_t)stride * y);
        memset(this, 0, values * sizeof *this);
    }
}
