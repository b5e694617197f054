/* Separable resampling. Each output value is a weighted sum of the input values under a kernel; the kernel is
 * wider when the picture shrinks. Weights are fixed-point integers. Sums are rounded to 8 bits after the
 * horizontal and after the vertical pass. Only as many rows are held as one output row needs.
 *
 * Sources: Pillow 13, src/libImaging/Resample.c; PyTorch 2.15, aten/src/ATen/native/cpu/UpSampleKernel.cpp.
 */
#include "engine/pictures/resample.h"

#include "kernels/ops.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ALIGNMENT = 16 };

static double lanczos(double x) {
    double a = M_PI * x;
    if (x == 0) return 1;
    return fabs(x) < 3 ? 3 * sin(a) * sin(a / 3) / (a * a) : 0;
}

/* Keys' cubic kernel with a = -1/2. */
static double cubic(double x) {
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static const struct {
    double (*kernel)(double x);
    int lobes;
    int bits; /* fractional bits of the fixed-point weights; 0: as many as fit 16-bit weights */
    bool vertical_first_allowed; /* vertical pass first if it drops many more pixels than the horizontal */
} resamplers[] = {
    [PILLOW_LANCZOS] = {lanczos, 3, 22, true},
    [TORCH_BICUBIC] = {cubic, 2, 0, false},
};

static int max_taps(struct direction d) {
    double wider = d.from > d.to ? (double)d.from / d.to : 1;
    return 2 * (int)ceil(resamplers[d.by].lobes * wider) + 1;
}

/* Position of the resampling kernel for one output value. */
struct kernel_position {
    double centre, wider, sum; /* sum: the sum of the kernel's weights, before normalisation */
    struct window window;
};

static double weight(struct direction d, const struct kernel_position *p, int k) {
    return resamplers[d.by].kernel((k - p->centre + 0.5) / p->wider);
}

static struct kernel_position kernel_position(struct direction d, int i) {
    double step = (double)d.from / d.to, wider = step > 1 ? step : 1;
    struct kernel_position p = {.centre = (i + 0.5) * step, .wider = wider};
    double reach = resamplers[d.by].lobes * wider;
    int first = p.centre > reach ? (int)(p.centre - reach + 0.5) : 0, end = (int)(p.centre + reach + 0.5);
    if (end > d.from) end = d.from;
    p.window = (struct window){first, end - first};
    for (int k = first; k < end; k++) p.sum += weight(d, &p, k);
    return p;
}

/* Computes the integer weights of output value d.first + i. weights: array of max_taps values. */
static struct window weights_of(struct direction d, int i, int32_t *weights) {
    struct kernel_position p = kernel_position(d, d.first + i);
    for (int k = 0; k < p.window.n; k++)
        weights[k] = (int32_t)lround(weight(d, &p, p.window.first + k) / p.sum * (1 << d.bits));
    return p.window;
}

/* The largest number of fractional bits with which all weights fit 16 bits, sign included. */
static int max_weight_bits(struct direction d) {
    enum { BITS_MAX = 22 };
    double largest = 0;
    int bits = 0;
    for (int i = 0; i < d.to; i++) {
        struct kernel_position p = kernel_position(d, i);
        for (int k = 0; k < p.window.n; k++)
            largest = fmax(largest, weight(d, &p, p.window.first + k) / p.sum);
    }
    while (bits < BITS_MAX && (int)(0.5 + largest * (1 << (bits + 1))) < 1 << 15) bits++;
    return bits;
}

static uint8_t rounded(int32_t sum, int bits) {
    int32_t value = (sum + (1 << (bits - 1))) >> bits;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Number of values per row in the vertical pass. */
static size_t row_values(const struct resampling *r) {
    return r->channels * (size_t)(r->down_first ? r->across.from : r->across.n);
}

/* Takes the next buffer from the caller's memory; returns NULL while buffers are only counted. */
static void *take_memory(char *memory, uint64_t *at, size_t bytes) {
    void *part = memory ? memory + *at : NULL;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

/* Lays the buffers out in `memory` (NULL: only counts their bytes); returns the bytes of all buffers. */
static uint64_t lay_out(struct resampling *r, struct picture_size from, const struct picture_part *part,
                        char *memory) {
    struct picture_size to = part->whole;
    uint64_t bytes = 0;
    enum resampler by = part->by;
    *r = (struct resampling){
        .channels = part->alpha ? RGBA : 3,
        .across = {from.width, to.width, part->x, part->size.width, by, resamplers[by].bits},
        .down = {from.height, to.height, part->y, part->size.height, by, resamplers[by].bits}};
    r->down_first = resamplers[by].vertical_first_allowed && to.height < from.height &&
                    from.height - to.height > 2 * (from.width - to.width);
    r->taps_across = max_taps(r->across);
    r->taps_down = max_taps(r->down);
    size_t columns = (size_t)r->across.n;
    r->windows = take_memory(memory, &bytes, columns * sizeof *r->windows);
    r->weights = take_memory(memory, &bytes, columns * (size_t)r->taps_across * sizeof *r->weights);
    r->weights_down = take_memory(memory, &bytes, (size_t)r->taps_down * sizeof *r->weights_down);
    r->sums = take_memory(memory, &bytes, row_values(r) * sizeof *r->sums);
    r->rows = take_memory(memory, &bytes, (size_t)r->taps_down * row_values(r));
    r->row = take_memory(memory, &bytes, r->down_first ? row_values(r) : 0);
    r->pixels = take_memory(memory, &bytes, part->alpha ? RGBA * (size_t)from.width : 0);
    r->result = take_memory(memory, &bytes, part->alpha ? RGBA * columns : 0);
    return bytes;
}

uint64_t resample_bytes(struct picture_size from, const struct picture_part *part) {
    struct resampling r;
    return lay_out(&r, from, part, NULL);
}

void resample_begin(struct resampling *r, struct picture_size from, const struct picture_part *part,
                    void *memory, uint8_t *to, size_t pitch) {
    lay_out(r, from, part, memory);
    r->to = to;
    r->pitch = pitch;
    if (!r->across.bits) r->across.bits = max_weight_bits(r->across);
    if (!r->down.bits) r->down.bits = max_weight_bits(r->down);
    for (int x = 0; x < r->across.n; x++)
        r->windows[x] = weights_of(r->across, x, r->weights + (size_t)x * (size_t)r->taps_across);
    r->next = weights_of(r->down, 0, r->weights_down);
}

bool resample_done(const struct resampling *r) {
    return r->made == r->down.n;
}

static void sum_horizontal(const struct resampling *r, const uint8_t *from, uint8_t *to) {
    size_t n = r->channels;
    for (int x = 0; x < r->across.n; x++, to += n) {
        const int32_t *weights = r->weights + (size_t)x * (size_t)r->taps_across;
        const uint8_t *pixel = from + n * (size_t)r->windows[x].first;
        int32_t sum[RGBA] = {0};
        for (int k = 0; k < r->windows[x].n; k++, pixel += n)
            for (size_t c = 0; c < n; c++) sum[c] += pixel[c] * weights[k];
        for (size_t c = 0; c < n; c++) to[c] = rounded(sum[c], r->across.bits);
    }
}

static uint8_t *held_row(const struct resampling *r, int y) {
    return r->rows + (size_t)(y % r->taps_down) * row_values(r);
}

/* Multiplies the colours of RGBA pixels by alpha / 255, rounded to nearest as in Pillow (rgba2rgbA). */
static void premultiply(uint8_t *to, const uint8_t *from, int n) {
    for (int x = 0; x < n; x++, to += RGBA, from += RGBA) {
        for (int c = 0; c < 3; c++) {
            int product = from[c] * from[3] + 128;
            to[c] = (uint8_t)((product + (product >> 8)) >> 8);
        }
        to[3] = from[3];
    }
}

/* Stores a resampled row, its colours divided by alpha / 255 and rounded down as in Pillow (rgbA2rgba). */
static void store_with_alpha(const struct resampling *r, uint8_t *to) {
    uint8_t *alpha = r->alpha + (size_t)r->made * r->alpha_pitch;
    const uint8_t *from = r->result;
    for (int x = 0; x < r->across.n; x++, to += 3, from += RGBA) {
        int a = from[3];
        for (int c = 0; c < 3; c++) {
            int value = a ? 255 * from[c] / a : from[c];
            to[c] = (uint8_t)(value > 255 ? 255 : value);
        }
        alpha[x] = from[3];
    }
}

/* Computes the next output row from the held rows under its kernel. */
static void finish_row(struct resampling *r) {
    bool alpha = r->channels == RGBA;
    uint8_t *stored = r->to + (size_t)r->made * r->pitch, *to = alpha ? r->result : stored;
    uint8_t *down = r->down_first ? r->row : to;
    size_t n = row_values(r);
    memset(r->sums, 0, n * sizeof *r->sums);
    for (int k = 0; k < r->next.n; k++) {
        const uint8_t *row = held_row(r, r->next.first + k);
        for (size_t i = 0; i < n; i++) r->sums[i] += row[i] * r->weights_down[k];
    }
    for (size_t i = 0; i < n; i++) down[i] = rounded(r->sums[i], r->down.bits);
    if (r->down_first) sum_horizontal(r, r->row, to);
    if (alpha) store_with_alpha(r, stored);
    if (++r->made < r->down.n) r->next = weights_of(r->down, r->made, r->weights_down);
}

void resample_push_row(struct resampling *r, const uint8_t *row) {
    int y = r->taken++;
    if (resample_done(r) || y >= r->down.from) return;
    if (r->channels == RGBA) {
        premultiply(r->pixels, row, r->across.from);
        row = r->pixels;
    }
    if (y >= r->next.first && r->down_first) memcpy(held_row(r, y), row, row_values(r));
    if (y >= r->next.first && !r->down_first) sum_horizontal(r, row, held_row(r, y));
    while (!resample_done(r) && y >= r->next.first + r->next.n - 1) finish_row(r);
}

enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, enum resampler by,
                           struct picture_size size, uint8_t *to, struct error *e) {
    struct picture_size from = {picture->width, picture->height};
    struct picture_part all = {.by = by, .whole = size, .size = size};
    size_t columns = (size_t)from.width;
    uint64_t needed = resample_bytes(from, &all), bytes = needed + (picture->alpha ? 3 * columns : 0);
    struct resampling r;
    char *memory = sys->alloc(sys, LINE_HOST, bytes);
    if (!memory)
        return error_set(e, MEMORY, "no memory to resize a picture" WHERE "%s" EXPECTED "%" PRIu64 " bytes",
                         picture->name ? picture->name : "", bytes);
    resample_begin(&r, from, &all, memory, to, 3 * (size_t)size.width);
    for (size_t y = 0; y < (size_t)from.height; y++) {
        const uint8_t *row = picture->rgb + 3 * y * columns;
        if (picture->alpha) {
            uint8_t *white = (uint8_t *)memory + needed;
            for (size_t i = 0; i < 3 * columns; i++)
                white[i] = picture_over_white(row[i], picture->alpha[y * columns + i / 3]);
            row = white;
        }
        resample_push_row(&r, row);
    }
    sys->release(sys, memory);
    return OK;
}
