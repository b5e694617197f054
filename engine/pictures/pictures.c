/* Input pictures as tensors: implements pictures.h. */
#include "engine/pictures/pictures.h"

#include <assert.h>
#include <math.h>

/* The picture's name in errors. */
static const char *name_of(const struct sluice_picture *picture) {
    return picture->name ? picture->name : "";
}

enum status picture_check(const struct sluice_picture *picture, const char *what, struct error *e) {
    bool sized = picture->width >= 1 && picture->width <= PICTURE_SIDE_MAX && picture->height >= 1 &&
                 picture->height <= PICTURE_SIDE_MAX;
    if (sized && (picture->rgb || picture->read)) return OK;
    if (!picture->struct_size)
        return error_set(
            e, USAGE, "%s: struct_size is not set" FOUND "0" EXPECTED "sizeof(struct sluice_picture)", what);
    if (sized)
        return error_set(e, USAGE,
                         "%s has no pixels and no read function" WHERE "%s" EXPECTED
                         "rgb with %dx%d pixels, or read",
                         what, name_of(picture), picture->width, picture->height);
    return error_set(e, LIMIT,
                     "%s has an unsupported size" WHERE "%s" FOUND "%dx%d" EXPECTED "sides of 1 to %d pixels",
                     what, name_of(picture), picture->width, picture->height, PICTURE_SIDE_MAX);
}

/* Grey with the rounding of Pillow's convert("L") (ITU-R 601 in 16 bits). */
static uint8_t grey_of(const uint8_t *rgb) {
    return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/* True if a mask pixel's grey is at least half of white (127.5): the image is repainted there. */
static bool repaints(const uint8_t *rgb) {
    return grey_of(rgb) >= 128;
}

static float signed_value(uint8_t v) {
    return 2 * ((float)v / 255) - 1;
}

float mask_level(const struct sluice_picture *mask, int y, int x) {
    return (signed_value(grey_of(mask->rgb + 3 * ((size_t)y * (size_t)mask->width + (size_t)x))) + 1) / 2;
}

void picture_to_tensor(const struct sluice_picture *picture, const struct sluice_picture *mask,
                       bool repainted, struct tensor out) {
    float *to = out.data;
    size_t pixels = (size_t)picture->width * (size_t)picture->height;
    bool alpha = out.dim[out.rank - 1] == RGBA;
    assert(out.dtype == DTYPE_F32 && tensor_packed(&out));
    assert(tensor_elements(&out) == (int64_t)pixels * (alpha ? RGBA : 3));
    assert(!mask || (mask->width == picture->width && mask->height == picture->height));
    for (size_t i = 0; i < pixels; i++) {
        bool visible = !mask || repaints(mask->rgb + 3 * i) == repainted;
        for (size_t c = 3 * i; c < 3 * i + 3; c++) *to++ = visible ? signed_value(picture->rgb[c]) : 0;
        if (alpha) *to++ = visible ? signed_value(picture->alpha ? picture->alpha[i] : 255) : 0;
    }
}

void picture_to_control(const struct sluice_picture *picture, const struct sluice_picture *mask, float factor,
                        float offset, float hole, struct tensor out) {
    float *to = out.data;
    size_t pixels = (size_t)picture->width * (size_t)picture->height;
    assert(out.dtype == DTYPE_F32 && tensor_packed(&out) && tensor_elements(&out) == (int64_t)pixels * 3);
    assert(!mask || (mask->width == picture->width && mask->height == picture->height));
    for (size_t i = 0; i < pixels; i++) {
        bool visible = !mask || !repaints(mask->rgb + 3 * i);
        for (size_t c = 3 * i; c < 3 * i + 3; c++)
            *to++ = visible ? factor * ((float)picture->rgb[c] / 255) + offset : hole;
    }
}

/* Linear interpolation between two pixels: the indices of the two pixels and the weight of the second. */
struct lerp_position {
    int first, second;
    float weight;
};

/* Source position of output i of n in m pixels, as in PyTorch's interpolate without antialiasing
 * (align_corners=False). */
static struct lerp_position lerp_position_of(int i, int n, int m) {
    float at = ((float)i + 0.5F) * ((float)m / (float)n) - 0.5F;
    int first = at < 0 ? 0 : (int)at;
    if (first > m - 1) first = m - 1;
    return (struct lerp_position){first, first < m - 1 ? first + 1 : first, at < 0 ? 0 : at - (float)first};
}

/* Value of colour c, interpolated between four pixels. */
static float bilinear(const struct sluice_picture *p, struct lerp_position y, struct lerp_position x,
                      size_t c) {
    const uint8_t *above = p->rgb + 3 * (size_t)y.first * (size_t)p->width + c,
                  *below = p->rgb + 3 * (size_t)y.second * (size_t)p->width + c;
    size_t left = 3 * (size_t)x.first, right = 3 * (size_t)x.second;
    float over = signed_value(above[left]) * (1 - x.weight) + signed_value(above[right]) * x.weight;
    float under = signed_value(below[left]) * (1 - x.weight) + signed_value(below[right]) * x.weight;
    return over * (1 - y.weight) + under * y.weight;
}

struct picture_size picture_letterbox_size(struct picture_size from, struct picture_size out_size) {
    double down = (double)out_size.height / from.height, across = (double)out_size.width / from.width;
    double scale = down < across ? down : across;
    return (struct picture_size){(int)(from.width * scale), (int)(from.height * scale)};
}

void picture_letterbox(const struct sluice_picture *picture, struct tensor out) {
    struct picture_size out_size = {out.dim[1], out.dim[0]};
    struct picture_size size =
        picture_letterbox_size((struct picture_size){picture->width, picture->height}, out_size);
    int top = (out_size.height - size.height) / 2, left = (out_size.width - size.width) / 2;
    float *to = out.data;
    for (int y = 0; y < out_size.height; y++)
        for (int x = 0; x < out_size.width; x++) {
            bool inside = y >= top && y < top + size.height && x >= left && x < left + size.width;
            struct lerp_position down = lerp_position_of(y - top, size.height, picture->height),
                                 across = lerp_position_of(x - left, size.width, picture->width);
            for (size_t c = 0; c < 3; c++) *to++ = inside ? bilinear(picture, down, across, c) : 1;
        }
}

void picture_to_vision(const struct sluice_picture *picture, const float mean[3], const float deviation[3],
                       struct tensor out) {
    float *to = out.data;
    size_t pixels = (size_t)picture->width * (size_t)picture->height;
    assert(out.dtype == DTYPE_F32 && tensor_elements(&out) == (int64_t)pixels * 3 && tensor_packed(&out));
    for (int c = 0; c < 3; c++)
        for (size_t i = 0; i < pixels; i++) {
            int value = picture->rgb[3 * i + (size_t)c];
            if (picture->alpha) value = picture_over_white(value, picture->alpha[i]);
            to[3 * i + (size_t)c] = ((float)value - mean[c] * 255) / (deviation[c] * 255);
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
            to[(channel * Y + y / side) * X + x / side] = repaints(mask->rgb + 3 * (y * width + x)) ? 1 : 0;
        }
}

void mask_to_latent(const struct sluice_picture *mask, int factor, struct tensor out) {
    float *to = out.data;
    size_t width = (size_t)mask->width, side = (size_t)factor, Y = (size_t)out.dim[0], X = (size_t)out.dim[1];
    assert(out.dtype == DTYPE_F32 && out.rank == 2 && tensor_packed(&out));
    assert(Y == (size_t)mask->height / side && X == width / side);
    for (size_t y = 0; y < Y; y++)
        for (size_t x = 0; x < X; x++)
            to[y * X + x] = repaints(mask->rgb + 3 * (y * side * width + x * side)) ? 1 : 0;
}

/* Interpolates linearly between two pixels of row y of a mask, whose pixels count as 0 or 1. */
static float mask_lerp(const struct sluice_picture *mask, int y, struct lerp_position x) {
    const uint8_t *row = mask->rgb + 3 * (size_t)y * (size_t)mask->width;
    return (repaints(row + 3 * x.first) ? 1 - x.weight : 0) + (repaints(row + 3 * x.second) ? x.weight : 0);
}

void mask_to_latent_bilinear(const struct sluice_picture *mask, int factor, struct tensor out) {
    float *to = out.data;
    assert(out.dtype == DTYPE_F32 && out.rank == 2 && tensor_packed(&out));
    assert(out.dim[0] == mask->height / factor && out.dim[1] == mask->width / factor);
    for (int i = 0; i < out.dim[0]; i++)
        for (int k = 0; k < out.dim[1]; k++) {
            struct lerp_position y = lerp_position_of(i, out.dim[0], mask->height),
                                 x = lerp_position_of(k, out.dim[1], mask->width);
            *to++ = mask_lerp(mask, y.first, x) * (1 - y.weight) + mask_lerp(mask, y.second, x) * y.weight;
        }
}

void posterior_sample(struct tensor moments, const float *noise, const struct latent_format *format,
                      struct tensor out) {
    const float *from = moments.data;
    float *to = out.data;
    size_t channels = (size_t)out.dim[0], pixels = (size_t)tensor_rows(&moments);
    size_t apart = tensor_packed(&out) ? pixels : (size_t)out.row_bytes / sizeof(float);
    assert(moments.dtype == DTYPE_F32 && out.dtype == DTYPE_F32);
    assert((size_t)tensor_columns(&moments) == 2 * channels && tensor_packed(&moments));
    assert((size_t)tensor_elements(&out) == channels * pixels && (tensor_packed(&out) || out.rank == 2));
    for (size_t c = 0; c < channels; c++) {
        float scale = format->scale[format->n > 1 ? c : 0], shift = format->shift[format->n > 1 ? c : 0];
        for (size_t p = 0; p < pixels; p++) {
            float z = from[p * 2 * channels + c];
            float logvar = fminf(fmaxf(from[(p * 2 + 1) * channels + c], -30), 20);
            if (noise) z += expf(0.5f * logvar) * noise[c * pixels + p];
            to[c * apart + p] = (z - shift) * scale;
        }
    }
}

/* FLUX.1 Kontext's training sizes (diffusers 0.42, pipeline_flux_kontext.py, PREFERRED_KONTEXT_RESOLUTIONS).
 * Sorted by width, so that ties between aspect ratios resolve as in diffusers. */
static const struct picture_size kontext_sizes[] = {
    {672, 1568}, {688, 1504}, {720, 1456},  {752, 1392}, {800, 1328}, {832, 1248},
    {880, 1184}, {944, 1104}, {1024, 1024}, {1104, 944}, {1184, 880}, {1248, 832},
    {1328, 800}, {1392, 752}, {1456, 720},  {1504, 688}, {1568, 672}};

enum { TRAINED_PIXELS_MAX = 800 * 1328, ASPECT_MAX = 4 };

struct picture_size picture_area_size(struct picture_size from, int64_t area, int multiple) {
    double aspect = (double)from.width / from.height;
    double width = sqrt((double)area * aspect), height = width / aspect;
    return (struct picture_size){(int)nearbyint(width / multiple) * multiple,
                                 (int)nearbyint(height / multiple) * multiple};
}

struct picture_size picture_area_size_up(struct picture_size from, int64_t area, int multiple) {
    double aspect = (double)from.width / from.height;
    double width = sqrt((double)area * aspect), height = width / aspect;
    return (struct picture_size){(int)ceil(width / multiple) * multiple,
                                 (int)ceil(height / multiple) * multiple};
}

struct picture_size picture_limited_size(struct picture_size from, int64_t area) {
    int64_t pixels = (int64_t)from.width * from.height;
    double scale = sqrt((double)area / (double)pixels);
    if (pixels <= area) return from;
    return (struct picture_size){(int)(from.width * scale), (int)(from.height * scale)};
}

enum status picture_limited_check(const struct sluice_picture *picture, struct error *e) {
    enum { SIDE_MIN = 64, LIMITED_ASPECT_MAX = 8 };
    int width = picture->width, height = picture->height;
    int64_t shorter = width < height ? width : height, longer = width < height ? height : width;
    if (shorter >= SIDE_MIN && longer <= shorter * LIMITED_ASPECT_MAX) return OK;
    return error_set(e, SHAPE,
                     "the reference image is too small or too narrow" WHERE "%s" FOUND "%dx%d" EXPECTED
                     "sides of %d pixels or more, and an aspect ratio within %d to 1",
                     name_of(picture), width, height, SIDE_MIN, LIMITED_ASPECT_MAX);
}

enum status picture_reference_size(const struct sluice_picture *picture, int multiple,
                                   struct picture_size *size, struct error *e) {
    int width = picture->width, height = picture->height;
    *size = (struct picture_size){width, height};
    if (width < multiple || height < multiple)
        return error_set(e, SHAPE,
                         "the reference image is too small" WHERE "%s" FOUND "%dx%d" EXPECTED
                         "sides of %d pixels or more",
                         name_of(picture), width, height, multiple);
    bool large = (int64_t)width * height > TRAINED_PIXELS_MAX;
    if (large && (width > (int64_t)height * ASPECT_MAX || height > (int64_t)width * ASPECT_MAX))
        return error_set(e, SHAPE,
                         "the reference image is too large for its aspect ratio" WHERE "%s" FOUND
                         "%dx%d" EXPECTED "at most %d pixels, or an aspect ratio within %d to 1",
                         name_of(picture), width, height, TRAINED_PIXELS_MAX, ASPECT_MAX);
    double aspect = (double)width / height, least = INFINITY;
    for (size_t i = 0; large && i < sizeof kontext_sizes / sizeof *kontext_sizes; i++) {
        double away = fabs(aspect - (double)kontext_sizes[i].width / kontext_sizes[i].height);
        if (away >= least) continue;
        *size = kontext_sizes[i];
        least = away;
    }
    size->width -= size->width % multiple;
    size->height -= size->height % multiple;
    return OK;
}
