/* Each output is a weighted sum of the inputs that a kernel covers, which is as much wider as the picture
 * gets smaller; weights are whole numbers of a power of two, sums are rounded to 8 bits after each direction.
 * Only rows are held, not a picture between the directions: as many as one output row sees.
 *
 * Sources: Pillow 13, src/libImaging/Resample.c; PyTorch 2.15, aten/src/ATen/native/cpu/UpSampleKernel.cpp.
 */
#include "engine/pictures/resample.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ALIGNMENT = 16 };

static double lanczos(double x) {
    double a = M_PI * x;
    if (x == 0) return 1;
    return fabs(x) < 3 ? 3 * sin(a) * sin(a / 3) / (a * a) : 0;
}

/* Keys' cubic with a = -1/2. */
static double cubic(double x) {
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static const struct {
    double (*kernel)(double x);
    int lobes;
    int bits;      /* of weights; 0: as many as let the largest be of 16 bits */
    bool may_turn; /* goes down first where that loses more than twice as many pixels as across */
} resamplers[] = {
    [PILLOW_LANCZOS] = {lanczos, 3, 22, true},
    [TORCH_BICUBIC] = {cubic, 2, 0, false},
};

static int taps_most(struct direction d) {
    double wider = d.from > d.to ? (double)d.from / d.to : 1;
    return 2 * (int)ceil(resamplers[d.by].lobes * wider) + 1;
}

/* Where the kernel lies that makes an output. */
struct place {
    double centre, wider, sum; /* sum: of the weights, before they are divided by it */
    struct window window;
};

static double weight(struct direction d, const struct place *p, int k) {
    return resamplers[d.by].kernel((k - p->centre + 0.5) / p->wider);
}

/* Output i of all. */
static struct place place(struct direction d, int i) {
    double step = (double)d.from / d.to, wider = step > 1 ? step : 1;
    struct place p = {.centre = (i + 0.5) * step, .wider = wider};
    double reach = resamplers[d.by].lobes * wider;
    int first = p.centre > reach ? (int)(p.centre - reach + 0.5) : 0, end = (int)(p.centre + reach + 0.5);
    if (end > d.from) end = d.from;
    p.window = (struct window){first, end - first};
    for (int k = first; k < end; k++) p.sum += weight(d, &p, k);
    return p;
}

/* Of output i of those that are made; weights: taps_most of them. */
static struct window weigh(struct direction d, int i, int32_t *weights) {
    struct place p = place(d, d.first + i);
    for (int k = 0; k < p.window.n; k++)
        weights[k] = (int32_t)lround(weight(d, &p, p.window.first + k) / p.sum * (1 << d.bits));
    return p.window;
}

/* With so many bits the largest weight of all outputs has 16, its sign included. */
static int bits_of_largest(struct direction d) {
    enum { BITS_MOST = 22 };
    double largest = 0;
    int bits = 0;
    for (int i = 0; i < d.to; i++) {
        struct place p = place(d, i);
        for (int k = 0; k < p.window.n; k++)
            largest = fmax(largest, weight(d, &p, p.window.first + k) / p.sum);
    }
    while (bits < BITS_MOST && (int)(0.5 + largest * (1 << (bits + 1))) < 1 << 15) bits++;
    return bits;
}

static uint8_t rounded(int32_t sum, int bits) {
    int32_t value = (sum + (1 << (bits - 1))) >> bits;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Values of a row when rows are summed. */
static size_t row_values(const struct resampling *r) {
    return 3 * (size_t)(r->down_first ? r->across.from : r->across.n);
}

/* The next part of memory, which stays NULL while parts are only counted. */
static void *resample_carve(char *memory, uint64_t *at, size_t bytes) {
    void *part = memory ? memory + *at : NULL;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

/* Lays the parts out from memory on (NULL: only counts); the bytes that they take. */
static uint64_t lay_out(struct resampling *r, struct picture_size from, const struct picture_part *part,
                        char *memory) {
    struct picture_size to = part->whole;
    uint64_t bytes = 0;
    enum resampler by = part->by;
    *r = (struct resampling){
        .across = {from.width, to.width, part->x, part->size.width, by, resamplers[by].bits},
        .down = {from.height, to.height, part->y, part->size.height, by, resamplers[by].bits}};
    r->down_first = resamplers[by].may_turn && to.height < from.height &&
                    from.height - to.height > 2 * (from.width - to.width);
    r->taps_across = taps_most(r->across);
    r->taps_down = taps_most(r->down);
    size_t columns = (size_t)r->across.n;
    r->windows = resample_carve(memory, &bytes, columns * sizeof *r->windows);
    r->weights = resample_carve(memory, &bytes, columns * (size_t)r->taps_across * sizeof *r->weights);
    r->weights_down = resample_carve(memory, &bytes, (size_t)r->taps_down * sizeof *r->weights_down);
    r->sums = resample_carve(memory, &bytes, row_values(r) * sizeof *r->sums);
    r->rows = resample_carve(memory, &bytes, (size_t)r->taps_down * row_values(r));
    r->row = resample_carve(memory, &bytes, r->down_first ? row_values(r) : 0);
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
    if (!r->across.bits) r->across.bits = bits_of_largest(r->across);
    if (!r->down.bits) r->down.bits = bits_of_largest(r->down);
    for (int x = 0; x < r->across.n; x++)
        r->windows[x] = weigh(r->across, x, r->weights + (size_t)x * (size_t)r->taps_across);
    r->next = weigh(r->down, 0, r->weights_down);
}

bool resample_done(const struct resampling *r) {
    return r->made == r->down.n;
}

static void sum_across(const struct resampling *r, const uint8_t *from, uint8_t *to) {
    for (int x = 0; x < r->across.n; x++, to += 3) {
        const int32_t *weights = r->weights + (size_t)x * (size_t)r->taps_across;
        const uint8_t *pixel = from + 3 * (size_t)r->windows[x].first;
        int32_t sum[3] = {0};
        for (int k = 0; k < r->windows[x].n; k++, pixel += 3)
            for (int c = 0; c < 3; c++) sum[c] += pixel[c] * weights[k];
        for (int c = 0; c < 3; c++) to[c] = rounded(sum[c], r->across.bits);
    }
}

static uint8_t *held_row(const struct resampling *r, int y) {
    return r->rows + (size_t)(y % r->taps_down) * row_values(r);
}

/* The rows of the next one's window become one. */
static void sum_down(const struct resampling *r, uint8_t *to) {
    size_t n = row_values(r);
    memset(r->sums, 0, n * sizeof *r->sums);
    for (int k = 0; k < r->next.n; k++) {
        const uint8_t *row = held_row(r, r->next.first + k);
        for (size_t i = 0; i < n; i++) r->sums[i] += row[i] * r->weights_down[k];
    }
    for (size_t i = 0; i < n; i++) to[i] = rounded(r->sums[i], r->down.bits);
}

static void make_row(struct resampling *r) {
    uint8_t *to = r->to + (size_t)r->made * r->pitch;
    sum_down(r, r->down_first ? r->row : to);
    if (r->down_first) sum_across(r, r->row, to);
    if (++r->made < r->down.n) r->next = weigh(r->down, r->made, r->weights_down);
}

void resample_take(struct resampling *r, const uint8_t *row) {
    int y = r->taken++;
    if (resample_done(r) || y >= r->down.from) return;
    if (y >= r->next.first && r->down_first) memcpy(held_row(r, y), row, row_values(r));
    if (y >= r->next.first && !r->down_first) sum_across(r, row, held_row(r, y));
    while (!resample_done(r) && y >= r->next.first + r->next.n - 1) make_row(r);
}

enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, enum resampler by,
                           struct picture_size size, uint8_t *to, struct error *e) {
    struct picture_size from = {picture->width, picture->height};
    struct picture_part all = {.by = by, .whole = size, .size = size};
    uint64_t bytes = resample_bytes(from, &all);
    struct resampling r;
    void *memory = sys->alloc(sys, LINE_HOST, bytes);
    if (!memory) {
        error_set(e, MEMORY, "no memory to resize a picture");
        if (picture->name) error_where(e, "%s", picture->name);
        return error_expected(e, "%" PRIu64 " bytes", bytes);
    }
    resample_begin(&r, from, &all, memory, to, 3 * (size_t)size.width);
    for (size_t y = 0; y < (size_t)from.height; y++)
        resample_take(&r, picture->rgb + 3 * y * (size_t)from.width);
    sys->release(sys, memory);
    return OK;
}
