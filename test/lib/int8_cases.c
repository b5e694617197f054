#include "test/lib/int8_cases.h"

#include "test/lib/cmocka_tests.h"
#include "test/lib/ops_cases.h"
#include "test/lib/quantised_ops.h"

const float int8_scale = 0x1p-3f;

enum dtype int8_rotated_type(int group) {
    return group == 16 ? DTYPE_I8_ROT16 : group == 64 ? DTYPE_I8_ROT64 : DTYPE_I8_ROT256;
}

/* Multiplies a group by ConvRot's matrix, one base-4 digit of the index at a time. */
static void rotate(double *v, int group) {
    for (int step = 1; step < group; step *= 4)
        for (int i = 0; i < group; i++) {
            if (i / step % 4) continue;
            double *at = v + i, sum = at[0] + at[step] + at[2 * step] + at[3 * step], old[4];
            for (int d = 0; d < 4; d++) old[d] = at[d * step];
            for (int d = 0; d < 4; d++) at[d * step] = sum / 2 - old[3 - d];
        }
}

/* Draws a row of codes with at least one 127 or -127, so that f32 values quantise to the same codes. */
static void draw_codes(int8_t *row, int64_t k, enum int8_codes codes) {
    for (int64_t i = 0; i < k; i++)
        row[i] = (int8_t)(codes == INT8_ALL_MAX       ? 127
                          : codes == INT8_ALL_MIN     ? -127
                          : codes == INT8_ALTERNATING ? (i % 2 ? 127 : -127)
                                                      : random_int(-127, 127));
    row[random_int(0, (int)k - 1)] = codes == INT8_ALL_MAX ? 127 : -127;
}

struct int8_coded int8_coded_f32(int32_t rows, int32_t k, int group, enum int8_codes codes, int gap) {
    struct int8_coded c = {pool_alloc((size_t)rows * (size_t)k),
                           tensor_random(DTYPE_F32, SHAPE(rows, k), gap, 1)};
    double v[INT8_GROUP_MOST];
    for (int32_t i = 0; i < rows; i++) {
        draw_codes(c.codes + (int64_t)i * k, k, codes);
        for (int32_t j = 0; j < k; j += group) {
            for (int l = 0; l < group; l++) v[l] = c.codes[(int64_t)i * k + j + l];
            rotate(v, group);
            float *to = (float *)(void *)((char *)c.tensor.data + i * c.tensor.row_bytes) + j;
            for (int l = 0; l < group; l++) to[l] = (float)v[l] * int8_scale;
        }
    }
    return c;
}

struct int8_coded int8_coded_stored(int32_t rows, int32_t k, int group, enum int8_codes codes, bool least) {
    enum { BEFORE = 37 };
    int32_t all = rows + BEFORE;
    struct int8_coded c = {.codes = operand_memory((size_t)all * (size_t)k)};
    for (int32_t i = 0; i < all; i++) draw_codes(c.codes + (int64_t)i * k, k, codes);
    for (int64_t i = 0; least && i < (int64_t)all * k; i++)
        if (c.codes[i] == -127) c.codes[i] = -128;
    c.tensor = tensor_make(c.codes, int8_rotated_type(group), SHAPE(all, k));
    float *scales = operand_memory(sizeof *scales * (size_t)all);
    for (int32_t i = 0; i < all; i++) scales[i] = i < BEFORE ? NAN : 2 * int8_scale;
    c.tensor.scales = scales, c.tensor.scale = 0.5f;
    c.tensor = tensor_slice(c.tensor, BEFORE, rows);
    c.codes += (int64_t)BEFORE * k;
    return c;
}

static struct int8_coded coded_weight(int32_t rows, int32_t k, int group, enum int8_codes codes,
                                      bool stored) {
    return stored ? int8_coded_stored(rows, k, group, codes, true) : int8_coded_f32(rows, k, group, codes, 0);
}

int64_t int8_sum_of(const int8_t *a, const int8_t *b, int32_t k) {
    int64_t sum = 0;
    for (int32_t i = 0; i < k; i++) sum += a[i] * b[i];
    return sum;
}

static void expect_sums(const struct tensor *out, const struct int8_coded *in,
                        const struct int8_coded *weight) {
    int32_t k = in->tensor.dim[1];
    assert_ok(&problem);
    for (int32_t i = 0; i < out->dim[0]; i++)
        for (int32_t j = 0; j < out->dim[1]; j++) {
            int64_t sum = int8_sum_of(in->codes + (int64_t)i * k, weight->codes + (int64_t)j * k, k);
            float expected = (float)sum * int8_scale * int8_scale, got = (float)load(out, i, j);
            if (got != expected)
                fail_msg("%d inputs, row %d, output %d: %.9g, expected %.9g", k, i, j, (double)got,
                         (double)expected);
        }
}

void int8_case_sums(int32_t rows, int32_t outputs, int32_t inputs, int group) {
    for (int c = 0; c < 2 * N_INT8_CODES * N_INT8_CODES; c++) {
        enum int8_codes of_in = (enum int8_codes)(c / 2 / N_INT8_CODES),
                        of_weight = (enum int8_codes)(c / 2 % N_INT8_CODES);
        case_begin();
        struct int8_coded in = int8_coded_f32(rows, inputs, group, of_in, 0),
                          weight = coded_weight(outputs, inputs, group, of_weight, c % 2);
        struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows, outputs), 0, 1);
        op_linear(&x, out, in.tensor, weight.tensor, (struct epilogue){0});
        expect_sums(&out, &in, &weight);
    }
}

double int8_case_epilogue(int32_t rows, int32_t outputs, int32_t inputs, int group, bool stored) {
    enum residual residual = (enum residual)random_int(0, 2);
    case_begin();
    struct int8_coded in = int8_coded_f32(rows, inputs, group, INT8_RANDOM, random_int(0, 3)),
                      weight = coded_weight(outputs, inputs, group, INT8_RANDOM, stored);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows, outputs), random_int(0, 4), 1);
    struct epilogue e = {.activation = (enum activation)random_int(0, ACTIVATION_GELU_ERF)};
    if (random_bool()) e.bias = tensor_random(random_dtype(), SHAPE(outputs), 0, 1);
    if (random_bool()) e.gate = tensor_random(random_dtype(), SHAPE(outputs), 0, 1);
    if (residual == RESIDUAL_OUT) e.residual = out;
    if (residual == RESIDUAL_APART)
        e.residual = tensor_random(DTYPE_F32, SHAPE(rows, outputs), random_int(0, 2), 1);
    double *truth = op_truth(&out);
    for (int64_t at = 0; at < (int64_t)rows * outputs; at++) {
        int64_t row = at / outputs, column = at % outputs;
        int64_t sum = int8_sum_of(in.codes + row * inputs, weight.codes + column * inputs, inputs);
        double v = (double)sum * (double)int8_scale * (double)int8_scale;
        v = activated(e.activation, v + (e.bias.rank ? load(&e.bias, 0, column) : 0));
        v *= e.gate.rank ? load(&e.gate, 0, column) : 1;
        truth[at] = v + (e.residual.rank ? load(&e.residual, row, column) : 0);
    }
    op_linear(&x, out, in.tensor, weight.tensor, e);
    assert_ok(&problem);
    return op_error_of(&out, truth);
}

void int8_case_stored_types(void) {
    static const enum dtype plain[] = {DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < N_QUANTISED + 2; i++) {
        enum dtype dtype = i < 2 ? plain[i] : quantised_types[i - 2];
        int32_t block = dtype_block_values(dtype), n = dtype_tiled_values(dtype) ? 256 : 70;
        if (dtype_is_rotated(dtype)) continue;
        if (n % block && block > 1) n = block;
        same_linear(dtype, 5, n, 512);
        if (64 % block == 0) same_linear(dtype, 3, n, 192);
        if (16 % block == 0) same_linear(dtype, 3, n, 80);
    }
}

void int8_case_special_rows(void) {
    enum { T = 8, N = 70, K = 256, ZERO = 1, NOT_A_NUMBER = 3, INFINITE = 4, TINY = 5, LARGE = 6, BAD = 9 };
    case_begin();
    struct int8_coded in = int8_coded_f32(T, K, K, INT8_RANDOM, 0),
                      weight = int8_coded_f32(N, K, K, INT8_RANDOM, 0);
    struct tensor bias = tensor_random(DTYPE_F32, SHAPE(N), 0, 1), out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
        op_linear(&x, out[i], in.tensor, weight.tensor, (struct epilogue){.bias = bias});
        float(*row)[K] = in.tensor.data;
        memset(row[ZERO], 0, sizeof row[ZERO]);
        row[NOT_A_NUMBER][7] = NAN, row[INFINITE][100] = -INFINITY;
        for (int j = 0; j < K; j++) row[TINY][j] *= 0x1p-140f, row[LARGE][j] *= 0x1p100f;
        ((float *)weight.tensor.data)[BAD * K + 3] = INFINITY;
    }
    assert_ok(&problem);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) {
            double old = load(&out[0], t, n), got = load(&out[1], t, n), b = load(&bias, 0, n);
            if (n == BAD || t == NOT_A_NUMBER || t == INFINITE)
                assert_true(isnan(got));
            else if (t == ZERO)
                assert_true(got == b);
            else if (t == TINY)
                assert_true(fabs(got - b) < 1e-30);
            else if (t == LARGE)
                assert_true(fabs(got - (old - b) * 0x1p100) <= 1e-5 * fabs(got));
            else
                assert_true(got == old);
        }
}

/* Returns the value of a positive E4M3 code. */
static float e4m3_value(unsigned char code) {
    return code < 8 ? ldexpf(code, -9) : ldexpf((float)(8 + code % 8), code / 8 - 10);
}

void int8_case_packed(int32_t rows, int32_t outputs, int32_t inputs) {
    /* group scales: E4M3 codes from LEAST to LEAST + CODES - 1 */
    enum { BEFORE = 5, GROUP = 16, LEAST = 0x20, CODES = 0x58 };
    int32_t all = outputs + BEFORE;
    int64_t head = sizeof quantised_levels, groups = all * (int64_t)(inputs / GROUP);
    case_begin();
    struct tensor packed = tensor_make(NULL, DTYPE_I4_ROT256, SHAPE(all, inputs)),
                  codes = tensor_make(NULL, DTYPE_I8_ROT256, SHAPE(all, inputs)), out[2];
    unsigned char *from = operand_memory((size_t)tensor_bytes(&packed)),
                  *scales = operand_memory((size_t)(head + all * 4 + groups)),
                  *group = scales + head + all * 4;
    int8_t *to = operand_memory((size_t)tensor_bytes(&codes));
    memcpy(scales, quantised_levels, (size_t)head);
    float *row_scales = (float *)(void *)(scales + head);
    for (int32_t i = 0; i < all; i++) row_scales[i] = 0.01f + 0.01f * random_value();
    for (int64_t i = 0; i < groups; i++) group[i] = (unsigned char)(LEAST + random_int(0, CODES - 1));
    for (int64_t i = 0; i < tensor_bytes(&packed); i++) from[i] = (unsigned char)random_bits();
    for (int64_t i = 0; i < tensor_elements(&codes); i++) {
        float level = quantised_levels[from[i / 2] >> i % 2 * 4 & 15],
              code = level * e4m3_value(group[i / GROUP]);
        to[i] = (int8_t)fminf(fmaxf(rintf(code), -127), 127);
    }
    packed.data = from, packed.scales = scales, packed.scale = 0.7f;
    codes.data = to, codes.scales = row_scales, codes.scale = 0.7f;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, inputs), 0, 1);
    for (int i = 0; i < 2; i++) {
        out[i] = tensor_random(DTYPE_F32, SHAPE(rows, outputs), 0, 1);
        op_linear(&x, out[i], in, tensor_slice(i ? codes : packed, BEFORE, outputs), (struct epilogue){0});
    }
    assert_ok(&problem);
    assert_memory_equal(out[0].data, out[1].data, (size_t)tensor_bytes(&out[0]));
}

/* Adds in . down^T . up^T of an adapter to truth [t, n], for weight rows from `first` on. */
static void add_low_rank(double *truth, const struct tensor *in, const struct low_rank *adapter,
                         int32_t first, int32_t n) {
    enum { RANK_MOST = 17 };
    double (*low)(double) = low_rank_rounded ? rounded : NULL, inner[RANK_MOST];
    int32_t rank = adapter->down.dim[0];
    for (int32_t t = 0; t < in->dim[0]; t++) {
        for (int32_t r = 0; r < rank; r++) {
            inner[r] = 0;
            for (int32_t k = 0; k < in->dim[1]; k++)
                inner[r] += rounded(load(in, t, k)) * rounded(load(&adapter->down, r, k));
            if (low) inner[r] = low(inner[r]);
        }
        for (int32_t row = 0; row < adapter->up.dim[0]; row++)
            for (int32_t r = 0, to = adapter->row + row - first; r < rank && to >= 0 && to < n; r++) {
                double up = (double)((float)load(&adapter->up, row, r) * adapter->up.scale);
                truth[(int64_t)t * n + to] += inner[r] * (low ? low(up) : up);
            }
    }
}

double int8_case_adapters(int32_t rows, struct epilogue epilogue) {
    enum { N = 200, K = 192, FIRST = 30, PART = 150 };
    static const struct factors factors[FACTORS_MOST] = {{5, 0, 200, DTYPE_BF16, 1.5f},
                                                         {17, 60, 100, DTYPE_F32, -1}};
    struct low_rank chain[FACTORS_MOST];
    case_begin();
    adapted_scratch();
    struct int8_coded in = int8_coded_f32(rows, K, 64, INT8_RANDOM, 2),
                      weight = int8_coded_f32(N, K, 64, INT8_RANDOM, 0);
    weight.tensor.adapters = adapted_chain(chain, factors, &weight.tensor);
    struct tensor part = tensor_slice(weight.tensor, FIRST, PART),
                  out = tensor_random(DTYPE_F32, SHAPE(rows, PART), 0, 1);
    epilogue.bias = tensor_random(DTYPE_F32, SHAPE(PART), 0, 1);
    if (epilogue.residual.rank) epilogue.residual = out;
    double *truth = op_truth(&out);
    for (int32_t i = 0; i < rows * PART; i++) {
        int64_t sum = int8_sum_of(in.codes + i / PART * K, weight.codes + (FIRST + i % PART) * K, K);
        truth[i] = (double)sum * (double)int8_scale * (double)int8_scale + load(&epilogue.bias, 0, i % PART);
    }
    for (int a = 0; a < 2; a++) add_low_rank(truth, &in.tensor, &chain[a], FIRST, PART);
    for (int32_t i = 0; i < rows * PART; i++)
        truth[i] = activated(epilogue.activation, truth[i]) +
                   (epilogue.residual.rank ? load(&out, i / PART, i % PART) : 0);
    op_linear(&x, out, in.tensor, part, epilogue);
    assert_ok(&problem);
    assert_int_equal(x.scratch->used, 0);
    return op_error_of(&out, truth);
}

static float normal_value(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)random_value();
    return (float)sum / 2;
}

double int8_case_error(float factor, const struct device *device) {
    enum { T = 64, N = 128, K = 1024 };
    double errors[N_PRECISIONS] = {0};
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(T, K), 0, 1),
                  weight = tensor_random(DTYPE_F32, SHAPE(N, K), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
    float *a = in.data, *b = weight.data;
    for (int i = 0; i < T * K; i++) a[i] = normal_value() * (i % K % 64 == 0 ? factor : 1);
    for (int i = 0; i < N * K; i++) b[i] = normal_value();
    double *truth = op_truth(&out);
    for (int i = 0; i < T * N; i++) {
        truth[i] = 0;
        for (int k = 0; k < K; k++) truth[i] += (double)a[i / N * K + k] * (double)b[i % N * K + k];
    }
    printf("  error with channels times %g:", (double)factor);
    for (int p = 0; p < N_PRECISIONS; p++) {
        x.precision = (enum precision)p;
        if (device->unsupported[p]) continue;
        op_linear(&x, out, in, weight, (struct epilogue){0});
        assert_ok(&problem);
        errors[p] = op_error_of(&out, truth);
        printf(" %s %.2e", precision_name((enum precision)p), errors[p]);
    }
    printf("\n");
    x.precision = PRECISION_INT8;
    return errors[PRECISION_INT8];
}
