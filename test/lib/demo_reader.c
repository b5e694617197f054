#include "test/lib/demo_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const colour_words[N_COLOURS] = {"red",    "green",  "blue",  "yellow",
                                             "orange", "purple", "black", "white"};
const char *const shape_words[N_SHAPES + 1] = {"circle", "square", "triangle", "star", "nothing"};
static const int palette[N_COLOURS][3] = {{215, 30, 35},  {40, 165, 60},  {35, 75, 220}, {250, 225, 40},
                                          {250, 140, 20}, {150, 40, 180}, {20, 20, 20},  {245, 245, 245}};

/* ---- colours ---- */

/* A colour is clear if the second nearest is this much farther away; what lies between two (a blurred edge, a
 * model that hedges) belongs to neither. */
static const double clear_ratio = 1.2;

static int colour_class(const uint8_t *rgb) {
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

static bool canvas_open(struct canvas *c, const struct picture *p) {
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
static void init_scale(const struct canvas *c, uint8_t *mask, uint8_t from, int passes) {
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
static int flood(const struct canvas *c, int start) {
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

/* ---- shapes ---- */

/* As draw.py draws them, with half-side 1, y down, around the centroid: standard deviations of their pixels.
 */
static const double shape_spread[N_SHAPES][2] = {
    {.5, .5}, {.519615, .519615}, {.408248, .424264}, {0.374973, 0.374973}};
/* The right half of the star's outline, from the top; the left one mirrors it. */
static const double star_half[6][2] = {{0, -1.05},         {.264503, -.364058}, {.998609, -.324468},
                                       {.427975, .139058}, {.617174, .849468},  {0, .45}};

static bool in_star(double x, double y) {
    bool inside = false;
    for (int i = 0; i < 5; i++) {
        const double *a = star_half[i], *b = star_half[i + 1];
        if ((a[1] > y) != (b[1] > y) && x < a[0] + (y - a[1]) / (b[1] - a[1]) * (b[0] - a[0]))
            inside = !inside;
    }
    return inside;
}

static bool in_template(int shape, double x, double y) {
    switch (shape) {
    case CIRCLE:
        return x * x + y * y <= 1;
    case SQUARE:
        return fmax(fabs(x), fabs(y)) <= .9;
    case TRIANGLE:
        return y <= .6 && fabs(x) <= (y + 1.2) / 1.8;
    default:
        return in_star(fabs(x), y);
    }
}

/* Where a component is: its box, its centroid, its standard deviations and its pixels. */
struct extent {
    struct box box;
    double x, y, spread_x, spread_y;
    int n;
};

static struct extent part_extent(const struct canvas *c) {
    struct extent e = {.box = {c->width, c->height, 0, 0}};
    for (int i = 0; i < c->n; i++) {
        int x = i % c->width, y = i / c->width;
        if (!c->part[i]) continue;
        if (x < e.box.x0) e.box.x0 = x;
        if (y < e.box.y0) e.box.y0 = y;
        if (x >= e.box.x1) e.box.x1 = x + 1;
        if (y >= e.box.y1) e.box.y1 = y + 1;
        e.x += x + .5;
        e.y += y + .5;
        e.spread_x += (x + .5) * (x + .5);
        e.spread_y += (y + .5) * (y + .5);
        e.n++;
    }
    e.x /= e.n;
    e.y /= e.n;
    /* Never 0: an eroded and dilated component is 3 pixels wide. */
    e.spread_x = sqrt(e.spread_x / e.n - e.x * e.x);
    e.spread_y = sqrt(e.spread_y / e.n - e.y * e.y);
    return e;
}

/* Intersection over union of the component with the template stretched to its standard deviations, centroid
 * on centroid. Stretched to the box instead, as draw.py's reader has it, a star whose tips are blurred away
 * reads as a circle or a triangle; not stretched at all, an oblong square does. */
static double overlap(const struct canvas *c, const struct extent *e, int shape) {
    double scale_x = e->spread_x / shape_spread[shape][0], scale_y = e->spread_y / shape_spread[shape][1];
    int both = 0, wanted = 0;
    for (int i = 0; i < c->n; i++) {
        double x = (i % c->width + .5 - e->x) / scale_x, y = (i / c->width + .5 - e->y) / scale_y;
        bool inside = in_template(shape, x, y);
        wanted += inside;
        both += inside && c->part[i];
    }
    return (double)both / (e->n + wanted - both);
}

/* What resembles its best template less than this, or has to be stretched more along one axis than the other,
 * is no shape. True drawings overlap by 0.85 and more and are stretched by 1.1 at most. */
static const double least_overlap = .65, most_stretch = 1.6;

static bool is_stretched(const struct extent *e, int shape) {
    double ratio = e->spread_x / shape_spread[shape][0] / (e->spread_y / shape_spread[shape][1]);
    return ratio > most_stretch || ratio < 1 / most_stretch;
}

static struct component_file describe(const struct canvas *c, int colour) {
    struct extent e = part_extent(c);
    double side = c->width < c->height ? c->width : c->height;
    struct component_file p = {.colour = colour, .n_pixels = e.n};
    p.dx = ((e.box.x0 + e.box.x1) / 2. - c->width / 2.) / side;
    p.dy = ((e.box.y0 + e.box.y1) / 2. - c->height / 2.) / side;
    for (int shape = 0; shape < N_SHAPES; shape++) {
        double o = overlap(c, &e, shape);
        if (o > p.overlap) {
            p.overlap = o;
            p.shape = shape;
        }
    }
    if (p.overlap < least_overlap || is_stretched(&e, p.shape)) p.shape = NO_SHAPE;
    return p;
}

/* ---- the reader ---- */

/* Components smaller than this share of the picture are not shapes; the smallest that is drawn takes 2.4 %.
 */
static const double least_share = .008;

/* The commonest colour within 3 pixels of the edge: shapes hardly ever reach it. */
static int background_class(const struct canvas *c) {
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
static void read_colour(const struct canvas *c, int colour, struct reading *r) {
    int seam = (c->width < c->height ? c->width : c->height) / 128;
    seam = seam < 1 ? 1 : seam;
    for (int i = 0; i < c->n; i++) c->mask[i] = c->label[i] == colour;
    init_scale(c, c->mask, 1, seam);
    for (int i = 0; i < c->n; i++) {
        if (!c->mask[i]) continue;
        memset(c->part, 0, (size_t)c->n);
        int n = flood(c, i);
        if (n < least_share * c->n || r->n_parts == COMPONENT_FILES_MAX) continue;
        init_scale(c, c->part, 0, seam);
        r->file[r->n_parts++] = describe(c, colour);
    }
}

struct reading read_picture(const struct picture *p) {
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
