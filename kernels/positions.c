/* Host part of operators, for all devices: T5 distance buckets, timestep embeddings, RoPE frequencies, token
 * order, the filter of sinc_up. Values are rounded where the reference implementation rounds. */
#include "kernels/ops.h"

#include <math.h>

/* Rounds to f32 at each step as PyTorch does. The logarithm is computed in double and then rounded, so the
 * bucket does not depend on the C library's logf. */
int32_t distance_bucket(int32_t distance, int32_t n_buckets, int32_t max_distance) {
    int32_t half = n_buckets / 2, exact = half / 2, after = distance > 0 ? half : 0;
    int64_t size = distance < 0 ? -(int64_t)distance : distance;
    if (size < exact) return after + (int32_t)size;
    float whole = (float)log((double)max_distance / exact);
    float part = (float)log((double)((float)size / (float)exact)) / whole * (float)(half - exact);
    return after + (part < (float)(half - exact) ? exact + (int32_t)part : half - 1);
}

/* First dimension of a RoPE pair, the size d in the exponent of theta (the size of the pair's axis, or with
 * mrope of the head), and the theta of the axis. */
static struct rope_place {
    int32_t dimension, of;
    double theta;
} rope_place(const struct rope_options *options, int32_t pair) {
    struct rope_place place = {2 * pair, 0, options->theta};
    for (int a = 0; a < options->n_axes && options->mrope; a++) place.of += options->axis_dim[a];
    if (options->mrope) return place;
    int a = 0;
    for (; place.dimension >= options->axis_dim[a]; a++) place.dimension -= options->axis_dim[a];
    place.of = options->axis_dim[a];
    if (options->theta_factor[a] > 0) place.theta *= options->theta_factor[a];
    return place;
}

int rope_pair_axis(const struct rope_options *options, int32_t i) {
    int axis = i % 3;
    if (options->mrope_interleaved) return i < 3 * (options->axis_dim[axis] / 2) ? axis : 0;
    for (axis = 0; i >= options->axis_dim[axis] / 2; axis++) i -= options->axis_dim[axis] / 2;
    return axis;
}

/* f32_frequencies: exponent, power and inverse are each rounded to f32, as in diffusers (QwenEmbedRope) and
 * transformers (inv_freq). PyTorch's power is one ulp off in 1 of 64 values of Qwen2.5; this power is
 * correctly rounded. */
double rope_frequency(const struct rope_options *options, int32_t i) {
    struct rope_place place = rope_place(options, i);
    double divisor = options->position_divisor > 0 ? options->position_divisor : 1;
    if (!options->f32_frequencies) return 1 / pow(place.theta, (double)place.dimension / place.of) / divisor;
    float exponent = (float)place.dimension / (float)place.of;
    return (double)(1 / (float)pow(place.theta, (double)exponent) / (float)divisor);
}

/* Returns c(k) of struct rope_axis, the coordinate where position k begins. */
static float axis_coordinate(const struct rope_axis *axis, int32_t k) {
    int32_t place = axis->step * k + axis->first;
    return (float)(place > 0 ? place : 0) * axis->numerator / axis->denominator;
}

float rope_axis_position(const struct rope_axis *axis, int32_t k) {
    float p = axis_coordinate(axis, k);
    if (!axis->corner) p = (p + axis_coordinate(axis, k + 1)) / 2;
    return p / axis->size * 2 - 1;
}

float rope_axis_frequency(const struct rope_axis *axis, int32_t i, int32_t n) {
    double exponent = n > 1 ? (double)i / (n - 1) : 0;
    return (float)(pow(axis->theta, exponent) * 3.14159265358979323846 / 2);
}

/* Returns the rows (or columns) of a token window that starts at `first`; the last window may be smaller. */
static int32_t window_part(int32_t window, int32_t first, int32_t of) {
    return of - first < window ? of - first : window;
}

struct token_coords token_coords_at(struct token_order order, int32_t rows, int32_t columns, int64_t i) {
    int32_t side = order.block > 1 ? order.block : 1, window = order.window;
    struct token_coords corner = {0, 0};
    if (window) {
        corner.row = (int32_t)(i / ((int64_t)window * columns)) * window;
        i -= (int64_t)corner.row * columns;
        rows = window_part(window, corner.row, rows);
        corner.column = (int32_t)(i / ((int64_t)rows * window)) * window;
        i -= (int64_t)rows * corner.column;
        columns = window_part(window, corner.column, columns);
    }
    int64_t block = i / (side * side);
    int32_t inside = (int32_t)(i % (side * side)), across = columns / side;
    return (struct token_coords){corner.row + (int32_t)(block / across) * side + inside / side,
                                 corner.column + (int32_t)(block % across) * side + inside % side};
}

struct table_place table_place_at(int32_t i, int32_t n, int32_t side) {
    float at = (float)(i * (side - 1)) / (float)(n > 1 ? n - 1 : 1);
    int32_t first = (int32_t)at;
    return (struct table_place){first, first + 1 < side ? first + 1 : first, at - (float)first};
}

/* Rounds to f32 wherever diffusers does (TimestepEmbedder; get_guidance_scale_embedding of
 * pipelines/latent_consistency_models): at t = 1000 a double angle differs by 3e-5. PyTorch's exp differs by
 * one ulp in 2 of 128 frequencies. */
float timestep_value(float t, enum timestep_form form, int32_t half, int32_t i) {
    float all = (float)log(10000), place = (float)(i % half);
    float exponent =
        form == TIMESTEP_TO_END ? -(all / (float)(half - 1)) * place : -all * place / (float)half;
    float angle = t * (float)exp((double)exponent);
    if (form == TIMESTEP_OF_SIGMA) angle *= 1000;
    bool cosine = (form == TIMESTEP_TO_END) != (i < half);
    return (float)(cosine ? cos((double)angle) : sin((double)angle));
}

/* A sinc of bandwidth 0.99 under a Hann window of 6 zero crossings, 0 beyond. */
float sinc_tap(int32_t ratio, int32_t k) {
    const double pi = 3.14159265358979323846, rolloff = 0.99, crossings = 6;
    double t = ((double)k / ratio - SINC_WIDTH) * rolloff;
    if (fabs(t) >= crossings) return 0;
    double window = cos(t * pi / crossings / 2), sinc = t == 0 ? 1 : sin(pi * t) / (pi * t);
    return (float)(sinc * window * window * rolloff);
}
