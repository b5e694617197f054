/* A plain reader: what is drawn in a picture of flat shapes on a plain background. Colour classes by the
 * nearest colour of the palette, shapes as connected components, their kind by overlap with templates.
 *
 * models/demo_train/draw.py has the same reader in Python, and the palette and shapes drawn there are those
 * here. Pure: no state, no files, nothing of the engine. Any size; out of memory reads as an empty picture.
 */
#ifndef SLUICE_TEST_DEMO_READER_H
#define SLUICE_TEST_DEMO_READER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N_COLOURS = 8, N_SHAPES = 4, PARTS_MAX = 64, UNCLEAR = N_COLOURS, FIT = 32 };
enum shape { CIRCLE, SQUARE, TRIANGLE, STAR };

static const char *const colour_words[N_COLOURS] = {"red",    "green",  "blue",  "yellow",
                                                    "orange", "purple", "black", "white"};
static const char *const shape_words[N_SHAPES] = {"circle", "square", "triangle", "star"};
static const int palette[N_COLOURS][3] = {{215, 30, 35},  {40, 165, 60},  {35, 75, 220}, {250, 225, 40},
                                          {250, 140, 20}, {150, 40, 180}, {20, 20, 20},  {245, 245, 245}};

struct picture {
    int width, height;
    const uint8_t *rgb; /* height rows of width triples, packed */
};

struct part {
    int colour, shape, n_pixels;
    double overlap; /* with the shape's template, 0 to 1 */
    double dx, dy;  /* from the picture's centre to the box's, in shorter sides */
};

struct reading {
    int background, n_parts;
    struct part part[PARTS_MAX];
    double share[N_COLOURS]; /* of the picture's area */
};

/* ---- colours ---- */

/* A colour is clear if the second nearest is this much farther away; what lies between two (a blurred edge, a
 * model that hedges) belongs to neither. */
static const double clear_ratio = 1.2;

static inline int colour_class(const uint8_t *rgb) {
    int best = 0, first = INT32_MAX, second = INT32_MAX;
    for (int i = 0; i < N_COLOURS; i++) {
        int distance = 0;
        for (int k = 0; k < 3; k++) distance += (rgb[k] - palette[i][k]) * (rgb[k] - palette[i][k]);
        if (distance < first) {
            second = first;
            first = distance;
            best = i;
        } else if (distance < second) {
            second = distance;
        }
    }
    return second > clear_ratio * clear_ratio * first ? best : UNCLEAR;
}

/* ---- masks ---- */

/* label: colour classes. mask: of one colour. part: of one component. spare: the other half of a pass. */
struct canvas {
    int width, height, n;
    uint8_t *label, *mask, *part, *spare;
    int *stack;
};

struct box {
    int x0, y0, x1, y1; /* half open */
};

static inline bool canvas_open(struct canvas *c, const struct picture *p) {
    int n = p->width * p->height;
    uint8_t *bytes = calloc((size_t)n, 4 + sizeof(int));
    *c = (struct canvas){p->width, p->height, n, NULL, NULL, NULL, NULL, NULL};
    if (!bytes) return false;
    c->stack = (int *)(void *)bytes; /* first: it must be aligned */
    c->label = bytes + (size_t)n * sizeof(int);
    c->mask = c->label + n;
    c->part = c->mask + n;
    c->spare = c->part + n;
    for (int i = 0; i < n; i++) c->label[i] = (uint8_t)colour_class(p->rgb + 3 * (size_t)i);
    return true;
}

/* Pixels of value `from` beside a pixel of the other value take that: from 1 erodes, from 0 dilates. What
 * lies outside the picture is as the pixel itself. */
static inline void spread(const struct canvas *c, uint8_t *mask, uint8_t from, int passes) {
    for (; passes > 0; passes--) {
        memcpy(c->spare, mask, (size_t)c->n);
        for (int i = 0; i < c->n; i++) {
            const uint8_t *m = c->spare + i;
            int x = i % c->width;
            if ((x > 0 && m[-1] != from) || (x + 1 < c->width && m[1] != from) ||
                (i >= c->width && m[-c->width] != from) || (i + c->width < c->n && m[c->width] != from))
                mask[i] = !from;
        }
    }
}

/* Moves the 4-connected component around start from mask to part, which is empty; its pixels. */
static inline int flood(const struct canvas *c, int start) {
    int n = 0, top = 0;
    c->stack[top++] = start;
    c->mask[start] = 0;
    while (top > 0) {
        int i = c->stack[--top], x = i % c->width;
        int next[4] = {x > 0 ? i - 1 : -1, x + 1 < c->width ? i + 1 : -1, i - c->width, i + c->width};
        c->part[i] = 1;
        n++;
        for (int k = 0; k < 4; k++) {
            if (next[k] < 0 || next[k] >= c->n || !c->mask[next[k]]) continue;
            c->mask[next[k]] = 0;
            c->stack[top++] = next[k];
        }
    }
    return n;
}

static inline struct box part_box(const struct canvas *c) {
    struct box b = {c->width, c->height, 0, 0};
    for (int i = 0; i < c->n; i++) {
        int x = i % c->width, y = i / c->width;
        if (!c->part[i]) continue;
        if (x < b.x0) b.x0 = x;
        if (y < b.y0) b.y0 = y;
        if (x >= b.x1) b.x1 = x + 1;
        if (y >= b.y1) b.y1 = y + 1;
    }
    return b;
}

/* ---- shapes ---- */

/* The star's corners, stretched to the box from -1 to 1. */
static inline void star_corner(int i, double *x, double *y) {
    const double pi = 3.14159265358979323846;
    double radius = i % 2 ? .45 : 1.05, bottom = 1.05 * cos(pi / 5), width = 1.05 * sin(2 * pi / 5);
    *x = radius * sin(i * pi / 5) / width;
    *y = (-radius * cos(i * pi / 5) + 1.05) / (1.05 + bottom) * 2 - 1;
}

static inline bool in_star(double x, double y) {
    bool inside = false;
    for (int i = 0; i < 10; i++) {
        double ax, ay, bx, by;
        star_corner(i, &ax, &ay);
        star_corner((i + 1) % 10, &bx, &by);
        if ((ay > y) != (by > y) && x < ax + (y - ay) / (by - ay) * (bx - ax)) inside = !inside;
    }
    return inside;
}

/* x and y from -1 to 1 over the shape's own box, y down. */
static inline bool in_template(int shape, double x, double y) {
    switch (shape) {
    case CIRCLE:
        return x * x + y * y <= 1;
    case SQUARE:
        return true;
    case TRIANGLE:
        return 2 * fabs(x) <= y + 1;
    default:
        return in_star(x, y);
    }
}

/* Intersection over union of the part, stretched from its box, with a template. */
static inline double overlap(const struct canvas *c, struct box b, int shape) {
    int both = 0, either = 0;
    for (int i = 0; i < FIT * FIT; i++) {
        double u = (i % FIT + .5) / FIT, v = (i / FIT + .5) / FIT;
        int x = b.x0 + (int)(u * (b.x1 - b.x0)), y = b.y0 + (int)(v * (b.y1 - b.y0));
        bool drawn = c->part[y * c->width + x], wanted = in_template(shape, 2 * u - 1, 2 * v - 1);
        both += drawn && wanted;
        either += drawn || wanted;
    }
    return (double)both / either;
}

static inline struct part describe(const struct canvas *c, int colour, int n_pixels) {
    struct box b = part_box(c);
    double side = c->width < c->height ? c->width : c->height;
    struct part p = {.colour = colour, .n_pixels = n_pixels};
    p.dx = ((b.x0 + b.x1) / 2. - c->width / 2.) / side;
    p.dy = ((b.y0 + b.y1) / 2. - c->height / 2.) / side;
    for (int shape = 0; shape < N_SHAPES; shape++) {
        double o = overlap(c, b, shape);
        if (o > p.overlap) {
            p.overlap = o;
            p.shape = shape;
        }
    }
    return p;
}

/* ---- the reader ---- */

/* Components smaller than this share of the picture are not shapes; the smallest that is drawn takes 2.4 %.
 */
static const double least_share = .008;

/* The commonest colour within 3 pixels of the edge: shapes hardly ever reach it. */
static inline int background_class(const struct canvas *c) {
    int count[N_COLOURS + 1] = {0}, best = 0;
    for (int i = 0; i < c->n; i++) {
        int x = i % c->width, y = i / c->width;
        if (x < 3 || y < 3 || x >= c->width - 3 || y >= c->height - 3) count[c->label[i]]++;
    }
    for (int i = 1; i < N_COLOURS; i++)
        if (count[i] > count[best]) best = i;
    return best;
}

/* Anti-aliasing leaves seams of mixed colour around shapes (red on yellow has an orange rim): eroding removes
 * them, and dilating what is left gives a shape its size back. */
static inline void read_colour(const struct canvas *c, int colour, struct reading *r) {
    int seam = (c->width < c->height ? c->width : c->height) / 128;
    seam = seam < 1 ? 1 : seam;
    for (int i = 0; i < c->n; i++) c->mask[i] = c->label[i] == colour;
    spread(c, c->mask, 1, seam);
    for (int i = 0; i < c->n; i++) {
        if (!c->mask[i]) continue;
        memset(c->part, 0, (size_t)c->n);
        int n = flood(c, i);
        if (n < least_share * c->n || r->n_parts == PARTS_MAX) continue;
        spread(c, c->part, 0, seam);
        r->part[r->n_parts++] = describe(c, colour, n);
    }
}

static inline struct reading read_picture(const struct picture *p) {
    struct reading r = {.background = UNCLEAR};
    struct canvas c;
    if (!canvas_open(&c, p)) return r;
    r.background = background_class(&c);
    for (int i = 0; i < c.n; i++)
        if (c.label[i] != UNCLEAR) r.share[c.label[i]] += 1. / c.n;
    for (int colour = 0; colour < N_COLOURS; colour++)
        if (colour != r.background) read_colour(&c, colour, &r);
    free(c.stack);
    return r;
}

#endif
