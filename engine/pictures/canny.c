#include "engine/pictures/canny.h"

#include <stdlib.h>
#include <string.h>

/* A gradient above LOW is an edge if it is connected to a gradient above HIGH. */
enum { LOW = 100, HIGH = 200 };

/* Tangent of 22.5 degrees with 15 fractional bits. The tangent of 67.5 degrees is larger by 2. */
enum { TANGENT_BITS = 15, TANGENT_22 = 13573 };

/* Gradient of a pixel in the colour with the largest norm. norm: |x| + |y|. */
struct gradient {
    int16_t x, y, norm;
};

/* While edges are traced, the three bytes of a pixel are: its class; the index of the next neighbour to
 * visit; the index of the direction from which the trace reached it, SEED where the trace began. */
enum { CLASS, NEXT, FROM };
enum { NO_EDGE, WEAK, EDGE };
enum { NEIGHBOURS = 8, SEED = NEIGHBOURS };

static const struct {
    int x, y;
} neighbours[NEIGHBOURS] = {{-1, -1}, {0, -1}, {1, -1}, {-1, 0}, {1, 0}, {-1, 1}, {0, 1}, {1, 1}};

uint64_t canny_bytes(int width) {
    return 3 * ((uint64_t)width + 2) * sizeof(struct gradient);
}

static int clamp(int i, int n) {
    return i < 0 ? 0 : i < n ? i : n - 1;
}

/* Writes the gradients of row y to out[1] to out[width]; out[0] and out[width + 1] stay 0. Pixels outside the
 * picture repeat its border. */
static void write_gradients(const uint8_t *rgb, int width, int height, int y, struct gradient *out) {
    const size_t pitch = 3 * (size_t)width;
    const uint8_t *above = rgb + pitch * (size_t)clamp(y - 1, height), *row = rgb + pitch * (size_t)y,
                  *below = rgb + pitch * (size_t)clamp(y + 1, height);
    for (int i = 0; i < width; i++) {
        size_t left = 3 * (size_t)clamp(i - 1, width), at = 3 * (size_t)i,
               right = 3 * (size_t)clamp(i + 1, width);
        struct gradient most = {0, 0, -1};
        for (size_t c = 0; c < 3; c++) {
            int x = above[right + c] - above[left + c] + 2 * (row[right + c] - row[left + c]) +
                    below[right + c] - below[left + c];
            int down = below[left + c] - above[left + c] + 2 * (below[at + c] - above[at + c]) +
                       below[right + c] - above[right + c];
            int norm = abs(x) + abs(down);
            if (norm > most.norm) most = (struct gradient){(int16_t)x, (int16_t)down, (int16_t)norm};
        }
        out[i + 1] = most;
    }
}

/* True if the norm at `at` is a maximum among the two neighbours in the direction of the gradient, rounded to
 * one of four directions. above, below: the same column of the neighbouring rows. Ties as in OpenCV. */
static bool is_maximum(const struct gradient *above, const struct gradient *at,
                       const struct gradient *below) {
    int64_t x = abs(at->x), y = (int64_t)abs(at->y) << TANGENT_BITS, flat = x * TANGENT_22,
            steep = flat + (x << (TANGENT_BITS + 1));
    if (y < flat) return at->norm > at[-1].norm && at->norm >= at[1].norm;
    if (y > steep) return at->norm > above->norm && at->norm >= below->norm;
    int s = (at->x ^ at->y) < 0 ? -1 : 1;
    return at->norm > above[-s].norm && at->norm > below[s].norm;
}

/* Writes the CLASS byte of each pixel of a row. */
static void classify(const struct gradient *above, const struct gradient *row, const struct gradient *below,
                     int width, uint8_t *rgb) {
    for (int i = 1; i <= width; i++, rgb += 3) {
        int norm = row[i].norm;
        bool edge = norm > LOW && is_maximum(above + i, row + i, below + i);
        rgb[CLASS] = !edge ? NO_EDGE : norm > HIGH ? EDGE : WEAK;
    }
}

/* Turns all weak pixels that are connected to (x, y) into edges, depth first. The pixels' NEXT and FROM bytes
 * are the stack, so a trace of any length needs no memory. */
static void trace(uint8_t *rgb, int width, int height, int x, int y) {
    uint8_t *at = rgb + 3 * ((size_t)y * (size_t)width + (size_t)x);
    at[NEXT] = 0;
    at[FROM] = SEED;
    for (;;) {
        if (at[NEXT] == NEIGHBOURS) {
            if (at[FROM] == SEED) return;
            int back = at[FROM];
            x -= neighbours[back].x;
            y -= neighbours[back].y;
        } else {
            int d = at[NEXT]++, i = x + neighbours[d].x, k = y + neighbours[d].y;
            if (i < 0 || i >= width || k < 0 || k >= height) continue;
            uint8_t *to = rgb + 3 * ((size_t)k * (size_t)width + (size_t)i);
            if (to[CLASS] != WEAK) continue;
            to[CLASS] = EDGE;
            to[NEXT] = 0;
            to[FROM] = (uint8_t)d;
            x = i;
            y = k;
        }
        at = rgb + 3 * ((size_t)y * (size_t)width + (size_t)x);
    }
}

enum status canny_edges(struct sys *sys, uint8_t *rgb, int width, int height, struct error *e) {
    struct gradient *rows[3], *memory = sys->alloc(sys, LINE_HOST, canny_bytes(width));
    if (!memory) return error_set(e, MEMORY, "no memory for the edges of a control image");
    memset(memory, 0, canny_bytes(width));
    for (int i = 0; i < 3; i++) rows[i] = memory + (size_t)i * ((size_t)width + 2);
    /* rows: gradients of rows y - 1, y and y + 1; zeros outside the picture. The gradients of row y + 1 are
     * the last to read row y of the picture; then classes overwrite the row. */
    write_gradients(rgb, width, height, 0, rows[2]);
    for (int y = 0; y < height; y++) {
        struct gradient *first = rows[0];
        rows[0] = rows[1];
        rows[1] = rows[2];
        rows[2] = first;
        if (y + 1 < height)
            write_gradients(rgb, width, height, y + 1, rows[2]);
        else
            memset(rows[2], 0, ((size_t)width + 2) * sizeof **rows);
        classify(rows[0], rows[1], rows[2], width, rgb + 3 * (size_t)width * (size_t)y);
    }
    sys->release(sys, memory);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            if (rgb[3 * ((size_t)y * (size_t)width + (size_t)x)] == EDGE) trace(rgb, width, height, x, y);
    for (size_t i = 0; i < (size_t)width * (size_t)height; i++)
        memset(rgb + 3 * i, rgb[3 * i] == EDGE ? 255 : 0, 3);
    return OK;
}
