/* Test cases of the operators on sound waves. Expected values follow diffusers 0.42
 * (pipelines/ltx2/vocoder.py) step by step: padding with the edge values, transposed convolution, crop. */
#include "test/lib/ops_tests.h"

static double *wave_channel(const struct tensor *in, int32_t c) {
    double *values = pool_alloc(sizeof *values * (size_t)in->dim[0]);
    for (int32_t i = 0; i < in->dim[0]; i++) values[i] = load(in, i, c);
    return values;
}

/* UpSample1d: n values, padded by `pad` copies of the edge values, then a transposed convolution with stride
 * `ratio` and `taps` taps, times ratio, without its first pad_left values. Returns n * ratio values. */
static double *wave_up(const double *values, int32_t n, int32_t ratio, int32_t pad, int32_t pad_left,
                       const double *tap, int32_t taps) {
    int32_t padded = n + 2 * pad, long_n = (padded - 1) * ratio + taps;
    double *out = pool_alloc(sizeof *out * (size_t)long_n);
    for (int32_t i = 0; i < long_n; i++) out[i] = 0;
    for (int32_t i = 0; i < padded; i++) {
        int32_t from = i < pad ? 0 : i - pad < n ? i - pad : n - 1;
        for (int32_t k = 0; k < taps; k++) out[i * ratio + k] += ratio * values[from] * tap[k];
    }
    return out + pad_left;
}

static double map_truth(const struct tensor *in, int64_t row, int64_t c, enum map_form form, double limit) {
    double v = load(in, row, c);
    switch (form) {
    case MAP_LEAKY_RELU:
        return v < 0 ? limit * v : v;
    case MAP_MAGNITUDE:
        return hypot(v, load(in, row, tensor_columns(in) / 2 + c));
    case MAP_LOG:
        return log(fmax(v, limit));
    case MAP_TANH:
        return tanh(v);
    case MAP_CLAMP:
        return fmin(fmax(v, -limit), limit);
    case MAP_SCALE:
        return limit * v;
    case MAP_FILL:
        return limit;
    }
    return 0;
}

static void case_map(int32_t t, int32_t c, int gap, enum map_form form, float limit, bool in_place) {
    case_begin();
    int32_t each = form == MAP_MAGNITUDE ? 2 : 1;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, each * c), gap, 3), out = in;
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(t, c), 2 * gap, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)t * c; i++) truth[i] = map_truth(&in, i / c, i % c, form, (double)limit);
    op_map(&x, out, in, form, limit);
    op_expect(OP_MAP, &out, truth);
}

static void case_snake(int32_t t, int32_t c, enum dtype dtype, int gap) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 2);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(t, c), 2 * gap, 1);
    struct snake snake = {.alpha = tensor_random(dtype, SHAPE(c), 0, 1.5),
                          .beta = tensor_random(dtype, SHAPE(c), 0, 1.5),
                          .up = tensor_random(DTYPE_F32, SHAPE(SNAKE_TAPS), 0, 0.3),
                          .down = tensor_random(dtype, SHAPE(SNAKE_TAPS), 0, 0.3)};
    double *truth = op_truth(&out), up[SNAKE_TAPS];
    for (int k = 0; k < SNAKE_TAPS; k++) up[k] = load(&snake.up, 0, k);
    for (int32_t channel = 0; channel < c; channel++) {
        size_t used = pool_used;
        double *fine = wave_up(wave_channel(&in, channel), t, 2, 5, 15, up, SNAKE_TAPS);
        double alpha = exp(load(&snake.alpha, 0, channel)), beta = exp(load(&snake.beta, 0, channel));
        for (int32_t i = 0; i < 2 * t; i++) fine[i] += pow(sin(fine[i] * alpha), 2) / (beta + 1e-9);
        for (int32_t i = 0; i < t; i++) {
            double sum = 0;
            for (int32_t k = 0; k < SNAKE_TAPS; k++) {
                int32_t at = 2 * i + k - 5;
                sum += load(&snake.down, 0, k) * fine[at < 0 ? 0 : at < 2 * t ? at : 2 * t - 1];
            }
            truth[(int64_t)i * c + channel] = sum;
        }
        pool_used = used;
    }
    op_snake(&x, out, in, snake);
    op_expect(OP_SNAKE, &out, truth);
}

/* place: 0 nothing is added; 1 the output is separate from the base; 2 it overwrites the base. */
static void case_sinc_up(int32_t t, int32_t c, int32_t ratio, int gap, int place) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 1), base = absent;
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(ratio * t, c), 2 * gap, 1);
    if (place) base = place == 2 ? out : tensor_random(DTYPE_F32, 2, out.dim, gap, 1);
    const double pi = acos(-1), rolloff = 0.99;
    int32_t taps = 14 * ratio + 1;
    double *truth = op_truth(&out), *tap = pool_alloc(sizeof *tap * (size_t)taps);
    for (int32_t k = 0; k < taps; k++) {
        double time = ((double)k / ratio - 7) * rolloff, near = fmin(fmax(time, -6), 6);
        tap[k] =
            pow(cos(near * pi / 12), 2) * (time == 0 ? 1 : sin(pi * time) / (pi * time)) * rolloff / ratio;
    }
    for (int32_t channel = 0; channel < c; channel++) {
        size_t used = pool_used;
        double *fine = wave_up(wave_channel(&in, channel), t, ratio, 7, 14 * ratio, tap, taps);
        for (int32_t i = 0; i < ratio * t; i++)
            truth[(int64_t)i * c + channel] = fine[i] + (place ? load(&base, i, channel) : 0);
        pool_used = used;
    }
    op_sinc_up(&x, out, in, base, ratio);
    op_expect(OP_SINC_UP, &out, truth);
}

void test_waves(void **state) {
    (void)state;
    static const struct {
        enum map_form form;
        float limit;
    } maps[] = {{MAP_LEAKY_RELU, 0.1f}, {MAP_MAGNITUDE, 0}, {MAP_LOG, 0.4f}, {MAP_TANH, 0},
                {MAP_CLAMP, 1},         {MAP_SCALE, -0.3f}, {MAP_FILL, 0.7f}};
    for (int i = 0; i < 7; i++) {
        case_map(9, 45, 0, maps[i].form, maps[i].limit, false);
        case_map(5, 52, 4 * i, maps[i].form, maps[i].limit, maps[i].form != MAP_MAGNITUDE);
    }
    case_snake(1, 1, DTYPE_F32, 0);
    case_snake(3, 2, DTYPE_F16, 1);
    case_snake(7, 67, DTYPE_F32, 3);
    case_snake(11, 24, DTYPE_BF16, 0);
    for (int place = 0; place < 3; place++) case_sinc_up(5 + place, 2, 3, place, place);
    case_sinc_up(1, 1, 1, 0, 0);
    case_sinc_up(23, 5, 16, 1, 1);
    if (ops_on == ON_TSAN) return;
    case_snake(150, 33, DTYPE_F32, 0); /* several tiles of rows and of channels on CUDA */
    case_snake(1100, 3, DTYPE_F32, 1);
    case_sinc_up(300, 2, 3, 0, 2);
    case_map(300, 130, 0, MAP_LOG, 0.1f, true);
}
