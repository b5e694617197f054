#include "test/lib/demo_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const colour_words[N_COLOURS] = {"red",    "green",  "blue",  "yellow",
                                             "orange", "purple", "black", "white"};
const char *const shape_words[N_SHAPES + 1] = {"circle", "square", "triangle", "star", "nothing"};
static const int palette[N_COLOURS][3] = {{215, 30, 35},  {40, 165, 60},  {35, 75, 220}, {250, 225, 40},
                                          {250, 140, 20}, {150, 40, 180}, {20, 20, 20},  {245, 245, 245}};

/* A pixel's colour is clear if the second nearest palette colour is this much farther away. A mixture of two
 * colours (a blurred edge, an undecided model) counts as neither colour. */
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

/* label: colour class of each pixel; mask: pixels of one colour; part: pixels of one component; spare: second
 * buffer of erosion and dilation. */
struct workspace {
    int width, height, n;
    uint8_t *label, *mask, *part, *spare;
    int *stack;
};

struct box {
    int x0, y0, x1, y1; /* bounding box: columns x0 to x1 - 1, rows y0 to y1 - 1 */
};

static bool workspace_open(struct workspace *c, const struct picture *p) {
    int n = p->width * p->height;
    uint8_t *bytes = calloc((size_t)n, 4 + sizeof(int));
    *c = (struct workspace){p->width, p->height, n, NULL, NULL, NULL, NULL, NULL};
    if (!bytes) return false;
    c->stack = (int *)(void *)bytes; /* the stack comes first, because its elements (int) need alignment */
    c->label = bytes + (size_t)n * sizeof(int);
    c->mask = c->label + n;
    c->part = c->mask + n;
    c->spare = c->part + n;
    for (int i = 0; i < n; i++) c->label[i] = (uint8_t)colour_class(p->rgb + 3 * (size_t)i);
    return true;
}

/* Flips pixels of value `from` that touch a pixel of another value: `from` 1 erodes, `from` 0 dilates. Pixels
 * beyond the image's edge count as equal to the pixel itself. */
static void erode_or_dilate(const struct workspace *c, uint8_t *mask, uint8_t from, int passes) {
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

/* Moves the pixels of the 4-connected component around `start` from `mask` to `part`, which must be empty;
 * returns its number of pixels. */
static int flood(const struct workspace *c, int start) {
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

/* Standard deviations of a shape's pixels around the centroid, for draw.py's shapes with half-side 1 and y
 * pointing down. */
static const double shape_spread[N_SHAPES][2] = {
    {.5, .5}, {.519615, .519615}, {.408248, .424264}, {0.374973, 0.374973}};
/* The right half of the star's outline, from the top; the left half mirrors it. */
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

struct extent {
    struct box box;
    double x, y, spread_x, spread_y;
    int n;
};

static struct extent part_extent(const struct workspace *c) {
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
    /* Deviations are never 0: erosion and dilation leave components of at least 3 pixels' width. */
    e.spread_x = sqrt(e.spread_x / e.n - e.x * e.x);
    e.spread_y = sqrt(e.spread_y / e.n - e.y * e.y);
    return e;
}

/* Returns the IoU of the component with the template, centroid on centroid, stretched to the component's
 * standard deviations. If the template were stretched to the bounding box, as in draw.py's reader, a star
 * with blurred tips would be read as a circle or a triangle. If it were not stretched at all, an oblong
 * square would be misread too. */
static double overlap(const struct workspace *c, const struct extent *e, int shape) {
    double scale_x = e->spread_x / shape_spread[shape][0], scale_y = e->spread_y / shape_spread[shape][1];
    int both = 0, n_template = 0;
    for (int i = 0; i < c->n; i++) {
        double x = (i % c->width + .5 - e->x) / scale_x, y = (i / c->width + .5 - e->y) / scale_y;
        bool inside = in_template(shape, x, y);
        n_template += inside;
        both += inside && c->part[i];
    }
    return (double)both / (e->n + n_template - both);
}

/* A component whose best IoU is below least_overlap, or whose template must be stretched along one axis by
 * more than most_stretch relative to the other, is no shape. Correct drawings have an IoU of at least 0.85
 * and a stretch of at most 1.1. */
static const double least_overlap = .65, most_stretch = 1.6;

static bool is_stretched(const struct extent *e, int shape) {
    double ratio = e->spread_x / shape_spread[shape][0] / (e->spread_y / shape_spread[shape][1]);
    return ratio > most_stretch || ratio < 1 / most_stretch;
}

static struct detected_region describe(const struct workspace *c, int colour) {
    struct extent e = part_extent(c);
    double side = c->width < c->height ? c->width : c->height;
    struct detected_region p = {.colour = colour, .n_pixels = e.n};
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

/* Components below this share of the image are not shapes; the smallest drawn shape takes 2.4 %. */
static const double least_share = .008;

/* Returns the most common colour within 3 pixels of the edge, which shapes hardly ever reach. */
static int background_class(const struct workspace *c) {
    int count[N_COLOURS + 1] = {0}, best = 0;
    for (int i = 0; i < c->n; i++) {
        int x = i % c->width, y = i / c->width;
        if (x < 3 || y < 3 || x >= c->width - 3 || y >= c->height - 3) count[c->label[i]]++;
    }
    for (int i = 1; i < N_COLOURS; i++)
        if (count[i] > count[best]) best = i;
    return best;
}

/* Finds the shapes of one colour. Anti-aliasing leaves seams of mixed colour around shapes (red on yellow has
 * an orange rim): erosion removes the seams, and dilation restores the shapes' size. */
static void read_colour(const struct workspace *c, int colour, struct reading *r) {
    int seam = (c->width < c->height ? c->width : c->height) / 128;
    seam = seam < 1 ? 1 : seam;
    for (int i = 0; i < c->n; i++) c->mask[i] = c->label[i] == colour;
    erode_or_dilate(c, c->mask, 1, seam);
    for (int i = 0; i < c->n; i++) {
        if (!c->mask[i]) continue;
        memset(c->part, 0, (size_t)c->n);
        int n = flood(c, i);
        if (n < least_share * c->n || r->n_regions == REGIONS_MAX) continue;
        erode_or_dilate(c, c->part, 0, seam);
        r->region[r->n_regions++] = describe(c, colour);
    }
}

struct reading read_picture(const struct picture *p) {
    struct reading r = {.background = UNCLEAR};
    struct workspace c;
    if (!workspace_open(&c, p)) return r;
    r.background = background_class(&c);
    for (int i = 0; i < c.n; i++)
        if (c.label[i] != UNCLEAR) r.share[c.label[i]] += 1. / c.n;
    for (int colour = 0; colour < N_COLOURS; colour++)
        if (colour != r.background) read_colour(&c, colour, &r);
    free(c.stack);
    return r;
}
