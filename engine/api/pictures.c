/* Pictures of a request: see pictures.h. */
#include "engine/api/pictures.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- what may be read ---- */

static void error_of_picture(const struct sluice_picture *picture, struct error *e) {
    if (picture->name) error_where(e, "%s", picture->name);
}

enum status picture_check(const struct sluice_picture *picture, const char *what, struct error *e) {
    bool sized = picture->width >= 1 && picture->width <= PICTURE_SIDE_MAX && picture->height >= 1 &&
                 picture->height <= PICTURE_SIDE_MAX;
    if (sized && picture->rgb) return OK;
    if (sized) {
        error_set(e, USAGE, "%s has no pixels", what);
        error_of_picture(picture, e);
        return error_expected(e, "%d by %d of them", picture->width, picture->height);
    }
    error_set(e, LIMIT, "%s has a size that is not allowed", what);
    error_of_picture(picture, e);
    error_found(e, "%dx%d", picture->width, picture->height);
    return error_expected(e, "sides of 1 to %d pixels", PICTURE_SIDE_MAX);
}

enum status picture_check_size(const struct sluice_picture *picture, const char *what,
                               struct picture_size expected, struct error *e) {
    if (picture->width == expected.width && picture->height == expected.height) return OK;
    error_set(e, SHAPE, "%s has another size than the picture that is drawn", what);
    error_of_picture(picture, e);
    error_found(e, "%dx%d", picture->width, picture->height);
    return error_expected(e, "%dx%d", expected.width, expected.height);
}

/* ---- numbers of pixels ---- */

/* Grey as Pillow's convert("L") rounds it (ITU-R 601 in 16 bits); half of white is 127.5. */
static bool draws(const uint8_t *rgb) {
    return (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16 >= 128;
}

void picture_to_tensor(const struct sluice_picture *picture, const struct sluice_picture *mask,
                       struct tensor out) {
    float *to = out.data;
    size_t pixels = (size_t)picture->width * (size_t)picture->height;
    assert(out.dtype == DTYPE_F32 && tensor_elements(&out) == (int64_t)pixels * 3 && tensor_packed(&out));
    assert(!mask || (mask->width == picture->width && mask->height == picture->height));
    for (size_t i = 0; i < pixels; i++) {
        bool hidden = mask && draws(mask->rgb + 3 * i);
        for (size_t c = 3 * i; c < 3 * i + 3; c++)
            to[c] = hidden ? 0 : 2 * ((float)picture->rgb[c] / 255) - 1;
    }
}

void mask_to_channels(const struct sluice_picture *mask, int factor, struct tensor out) {
    float *to = out.data;
    size_t width = (size_t)mask->width, height = (size_t)mask->height, side = (size_t)factor;
    size_t Y = height / side, X = width / side;
    assert(out.dtype == DTYPE_F32 && out.rank == 3 && tensor_packed(&out));
    assert((size_t)out.dim[0] == side * side && (size_t)out.dim[1] == Y && (size_t)out.dim[2] == X);
    for (size_t y = 0; y < Y * side; y++)
        for (size_t x = 0; x < X * side; x++) {
            size_t channel = y % side * side + x % side;
            to[(channel * Y + y / side) * X + x / side] = draws(mask->rgb + 3 * (y * width + x)) ? 1 : 0;
        }
}

void posterior_sample(struct tensor moments, const float *noise, const struct latent_format *format,
                      struct tensor out) {
    const float *from = moments.data;
    float *to = out.data;
    size_t channels = (size_t)out.dim[0], pixels = (size_t)tensor_rows(&moments);
    assert(moments.dtype == DTYPE_F32 && out.dtype == DTYPE_F32);
    assert((size_t)tensor_columns(&moments) == 2 * channels && tensor_packed(&moments));
    assert((size_t)tensor_elements(&out) == channels * pixels && tensor_packed(&out));
    for (size_t c = 0; c < channels; c++) {
        float scale = format->scale[format->n > 1 ? c : 0], shift = format->shift[format->n > 1 ? c : 0];
        for (size_t p = 0; p < pixels; p++) {
            float z = from[p * 2 * channels + c];
            float logvar = fminf(fmaxf(from[(p * 2 + 1) * channels + c], -30), 20);
            if (noise) z += expf(0.5f * logvar) * noise[c * pixels + p];
            to[c * pixels + p] = (z - shift) * scale;
        }
    }
}

/* ---- sizes of pictures to refer to ---- */

/* The sizes that FLUX.1 Kontext was trained with, and the rule of choosing by aspect: diffusers 0.42,
 * pipeline_flux_kontext.py, PREFERRED_KONTEXT_RESOLUTIONS. By width, so that the first of equals is theirs.
 */
static const struct picture_size trained[] = {
    {672, 1568}, {688, 1504}, {720, 1456},  {752, 1392}, {800, 1328}, {832, 1248},
    {880, 1184}, {944, 1104}, {1024, 1024}, {1104, 944}, {1184, 880}, {1248, 832},
    {1328, 800}, {1392, 752}, {1456, 720},  {1504, 688}, {1568, 672}};

enum { TRAINED_PIXELS_MAX = 800 * 1328, ASPECT_MAX = 4 };

static struct picture_size nearest_trained(int width, int height) {
    double aspect = (double)width / height, least = INFINITY;
    struct picture_size nearest = trained[0];
    for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) {
        double away = fabs(aspect - (double)trained[i].width / trained[i].height);
        if (away < least) nearest = trained[i];
        if (away < least) least = away;
    }
    return nearest;
}

static enum status refuse_reference(const struct sluice_picture *picture, const char *why, struct error *e) {
    error_set(e, SHAPE, "the reference picture is too %s", why);
    error_of_picture(picture, e);
    return error_found(e, "%dx%d", picture->width, picture->height);
}

enum status picture_reference_size(const struct sluice_picture *picture, int multiple,
                                   struct picture_size *size, struct error *e) {
    int width = picture->width, height = picture->height;
    *size = (struct picture_size){width, height};
    if (width < multiple || height < multiple) {
        refuse_reference(picture, "small", e);
        return error_expected(e, "sides of %d pixels or more", multiple);
    }
    bool large = (int64_t)width * height > TRAINED_PIXELS_MAX;
    if (large && (width > (int64_t)height * ASPECT_MAX || height > (int64_t)width * ASPECT_MAX)) {
        refuse_reference(picture, "large for its aspect", e);
        return error_expected(e, "at most %d pixels, or sides within %d to 1", TRAINED_PIXELS_MAX,
                              ASPECT_MAX);
    }
    if (large) *size = nearest_trained(width, height);
    size->width -= size->width % multiple;
    size->height -= size->height % multiple;
    return OK;
}

/* ---- resampling ---- */

/* Pillow 13's Resample.c: each output is a weighted sum of the inputs that a Lanczos kernel of 3 lobes
 * covers, which is as much wider as the picture gets smaller; weights are whole numbers of 2^-22, sums are
 * rounded to 8 bits after each direction. Only rows are held, not a picture between the directions: as many
 * as one output row sees. */
enum { LOBES = 3, WEIGHT_BITS = 22 };

/* From so many values to so many. */
struct direction {
    int from, to;
};

/* Which values an output sees. */
struct window {
    int first, n;
};

static int taps_most(struct direction d) {
    double wider = d.from > d.to ? (double)d.from / d.to : 1;
    return 2 * (int)ceil(LOBES * wider) + 1;
}

static double lanczos(double x) {
    double a = M_PI * x;
    if (x == 0) return 1;
    return fabs(x) < LOBES ? LOBES * sin(a) * sin(a / LOBES) / (a * a) : 0;
}

/* weights: taps_most of them. */
static struct window weigh(struct direction d, int i, int32_t *weights) {
    double step = (double)d.from / d.to, wider = step > 1 ? step : 1;
    double centre = (i + 0.5) * step, reach = LOBES * wider, sum = 0;
    int first = centre > reach ? (int)(centre - reach + 0.5) : 0, end = (int)(centre + reach + 0.5);
    if (end > d.from) end = d.from;
    for (int k = first; k < end; k++) sum += lanczos((k - centre + 0.5) / wider);
    for (int k = first; k < end; k++)
        weights[k - first] = (int32_t)lround(lanczos((k - centre + 0.5) / wider) / sum * (1 << WEIGHT_BITS));
    return (struct window){first, end - first};
}

static uint8_t rounded(int32_t sum) {
    int32_t value = (sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

struct resampling {
    struct direction across, down;
    bool down_first;
    int taps_across, taps_down;
    struct window *windows; /* across.to */
    int32_t *weights;       /* across.to times taps_across */
    int32_t *weights_down;  /* taps_down, of the row that is being made */
    int32_t *sums;          /* of a row that comes down */
    uint8_t *rows; /* across first: taps_down rows, row y in place y % taps_down; down first: the one row that
                      has come down */
};

/* Values of a row when rows are summed. */
static size_t row_values(const struct resampling *r) {
    return 3 * (size_t)(r->down_first ? r->across.from : r->across.to);
}

/* Lays the parts out from memory on (NULL: only counts); the bytes that they take. */
static uint64_t lay_out(struct resampling *r, struct picture_size from, struct picture_size to,
                        char *memory) {
    *r = (struct resampling){.across = {from.width, to.width}, .down = {from.height, to.height}};
    r->down_first = to.height < from.height && from.height - to.height > 2 * (from.width - to.width);
    r->taps_across = taps_most(r->across);
    r->taps_down = taps_most(r->down);
    size_t windows = (size_t)to.width * sizeof *r->windows;
    size_t weights = (size_t)to.width * (size_t)r->taps_across * sizeof *r->weights;
    size_t weights_down = (size_t)r->taps_down * sizeof *r->weights_down;
    size_t sums = row_values(r) * sizeof *r->sums;
    size_t rows = (size_t)(r->down_first ? 1 : r->taps_down) * row_values(r);
    if (memory) {
        r->windows = (void *)memory;
        r->weights = (void *)(memory + windows);
        r->weights_down = (void *)(memory + windows + weights);
        r->sums = (void *)(memory + windows + weights + weights_down);
        r->rows = (void *)(memory + windows + weights + weights_down + sums);
    }
    return windows + weights + weights_down + sums + rows;
}

uint64_t picture_resize_bytes(struct picture_size from, struct picture_size to) {
    struct resampling r;
    return lay_out(&r, from, to, NULL);
}

static void sum_across(const struct resampling *r, const uint8_t *from, uint8_t *to) {
    for (int x = 0; x < r->across.to; x++, to += 3) {
        const int32_t *weights = r->weights + (size_t)x * (size_t)r->taps_across;
        const uint8_t *pixel = from + 3 * (size_t)r->windows[x].first;
        int32_t sum[3] = {0};
        for (int k = 0; k < r->windows[x].n; k++, pixel += 3)
            for (int c = 0; c < 3; c++) sum[c] += pixel[c] * weights[k];
        for (int c = 0; c < 3; c++) to[c] = rounded(sum[c]);
    }
}

static const uint8_t *source_row(const struct sluice_picture *from, int y) {
    return from->rgb + 3 * (size_t)y * (size_t)from->width;
}

static uint8_t *held_row(const struct resampling *r, int y) {
    return r->rows + (size_t)(y % r->taps_down) * row_values(r);
}

/* The window's rows, of the picture or of those that are held, become one. */
static void sum_down(const struct resampling *r, const struct sluice_picture *from, struct window window,
                     uint8_t *to) {
    size_t n = row_values(r);
    memset(r->sums, 0, n * sizeof *r->sums);
    for (int k = 0; k < window.n; k++) {
        int y = window.first + k;
        const uint8_t *row = r->down_first ? source_row(from, y) : held_row(r, y);
        for (size_t i = 0; i < n; i++) r->sums[i] += row[i] * r->weights_down[k];
    }
    for (size_t i = 0; i < n; i++) to[i] = rounded(r->sums[i]);
}

static void resample(const struct resampling *r, const struct sluice_picture *from, uint8_t *to) {
    for (int x = 0; x < r->across.to; x++)
        r->windows[x] = weigh(r->across, x, r->weights + (size_t)x * (size_t)r->taps_across);
    for (int y = 0, held = 0; y < r->down.to; y++, to += 3 * (size_t)r->across.to) {
        struct window window = weigh(r->down, y, r->weights_down);
        for (; held < window.first + window.n && !r->down_first; held++)
            sum_across(r, source_row(from, held), held_row(r, held));
        sum_down(r, from, window, r->down_first ? r->rows : to);
        if (r->down_first) sum_across(r, r->rows, to);
    }
}

enum status picture_resize(struct sys *sys, const struct sluice_picture *picture, struct picture_size size,
                           uint8_t *to, struct error *e) {
    struct picture_size from = {picture->width, picture->height};
    struct resampling r;
    char *memory = sys->alloc(sys, LINE_HOST, picture_resize_bytes(from, size));
    if (!memory) {
        error_set(e, MEMORY, "no memory to resize a picture");
        error_of_picture(picture, e);
        return error_expected(e, "%" PRIu64 " bytes", picture_resize_bytes(from, size));
    }
    lay_out(&r, from, size, memory);
    resample(&r, picture, to);
    sys->release(sys, memory);
    return OK;
}
