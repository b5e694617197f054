#include "test/lib/quantised_ops.h"

#include "kernels/cpu/weights.h"

bool small_operands;

/* Returns a byte that encodes a finite value or block scale of the type, from a random byte `noise`. */
static unsigned char ordinary(enum dtype dtype, bool scale, unsigned char noise) {
    switch (dtype) {
    case DTYPE_F8_E4M3:
    case DTYPE_MXFP8_TILED:
        return scale ? (unsigned char)(118 + noise % 8) : (noise & 127) == 127 ? noise ^ 1 : noise;
    case DTYPE_F8_E5M2:
        return (unsigned char)((noise & 0x87) | 0x38);
    case DTYPE_NVFP4:
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
        return scale ? (unsigned char)(0x28 + noise % 32) : noise;
    case DTYPE_I4_ROT256: /* group scales from 30 to 208 */
        return scale ? (unsigned char)(0x5f + noise % 23) : noise;
    case DTYPE_MXFP4:
        return scale ? (unsigned char)(118 + noise % 8) : noise;
    default:
        return noise;
    }
}

static void fill_quantised(struct tensor *t) {
    struct sweep s = sweep_of(t->dtype);
    int64_t size = dtype_block_bytes(t->dtype);
    unsigned char *to = t->data;
    for (int64_t i = 0; i < tensor_bytes(t); i++)
        to[i] = ordinary(t->dtype, i % size < s.bytes, (unsigned char)random_bits());
    for (int64_t i = 0; !s.bytes && s.blocks && i < tensor_bytes(t); i += size)
        for (int which = 0; which < 2; which++)
            if (s.f16[which] >= 0) to[i + s.f16[which] + 1] = (unsigned char)(0x1c + random_bits() % 4);
}

static void fill_scales(struct tensor *t) {
    unsigned char *to = operand_memory((size_t)tensor_scales_bytes(t));
    for (int64_t i = 0; i < tensor_scales_bytes(t); i++)
        to[i] = ordinary(t->dtype, true, (unsigned char)random_bits());
    int64_t head = tensor_scales_head(t);
    if (t->dtype == DTYPE_I4_ROT256) memcpy(to, quantised_levels, sizeof quantised_levels);
    for (int64_t i = 0; t->dtype == DTYPE_NVFP4_AWQ && i < head; i += 2) to[i + 1] = 0x3f; /* 0.5 to 2 */
    for (int64_t i = 0; !dtype_tiled_values(t->dtype) && i < t->scale_rows; i++)
        ((float *)(void *)(to + head))[i] = 0.01f + 0.01f * random_value();
    t->scales = to;
}

/* A stored weight and its values in f32; or the results of an operator on both, which must be equal. */
struct twins {
    struct tensor of[2];
};

/* Makes matrices as slices of larger ones, so that their scales do not directly follow their data. */
static struct twins make_twins(enum dtype dtype, int rank, const int32_t *dim) {
    enum { BEFORE = 37, BEFORE_BLOCKS = 64 };
    int32_t larger[TENSOR_RANK_MAX], cut = rank == 2 ? BEFORE : 0;
    memcpy(larger, dim, sizeof *dim * (size_t)rank);
    if (cut && dim[1] % dtype_block_values(dtype)) cut = BEFORE_BLOCKS;
    larger[0] += cut;
    struct tensor t = tensor_make(NULL, dtype, rank, larger);
    if (dtype_is_quantised(dtype)) {
        t.data = operand_memory((size_t)tensor_bytes(&t));
        fill_quantised(&t);
        t.scales = t.data; /* any pointer but NULL, so that the computed tensor size includes the scales */
        bool has = dtype_tiled_values(dtype) || (rank == 2 && dtype_scales_rows(dtype));
        has ? fill_scales(&t) : (void)(t.scales = NULL);
    } else {
        t = tensor_random(dtype, rank, larger, 0, 1);
    }
    t.scale = 0.7f;
    struct twins twins = {{tensor_slice(t, cut, dim[0]), tensor_make(NULL, DTYPE_F32, rank, dim)}};
    twins.of[1].data = operand_memory((size_t)tensor_bytes(&twins.of[1]));
    weights_widen(twins.of[1].data, &twins.of[0], 0, tensor_rows(&twins.of[0]));
    return twins;
}

/* Makes a vector weight (bias, norm) for a test of a quantised matrix type. Tiled types do not apply to
 * vectors, and quantisation blocks must fill the vector. */
static struct twins make_vector(enum dtype dtype, int32_t n) {
    enum dtype type = dtype_tiled_values(dtype) || dtype == DTYPE_I4_ROT256 ? DTYPE_Q6_K : dtype;
    return make_twins(n % dtype_block_values(type) ? DTYPE_BF16 : type, SHAPE(n));
}

/* gap: number of unused values between rows */
static struct twins make_results(int rank, const int32_t *dim, int gap) {
    struct twins r = {{tensor_random(DTYPE_F32, rank, dim, gap, 1)}};
    r.of[1] = tensor_random(DTYPE_F32, rank, dim, gap, 0);
    return r;
}

static void expect_same(enum dtype dtype, const struct twins *r, const char *what) {
    char line[1200];
    if (problem.code)
        fail_msg("%s of %s: %s", what, dtype_name(dtype), error_line(&problem, line, sizeof line));
    for (int64_t row = 0; row < tensor_rows(&r->of[1]); row++) {
        const char *a = (char *)r->of[0].data + row * r->of[0].row_bytes;
        const char *b = (char *)r->of[1].data + row * r->of[1].row_bytes;
        if (memcmp(a, b, (size_t)tensor_columns(&r->of[1]) * sizeof(float)) != 0)
            fail_msg("%s with %s weights: row %lld differs from F32", what, dtype_name(dtype),
                     (long long)row);
    }
}

void same_linear(enum dtype dtype, int32_t t, int32_t n, int32_t k) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 1, 1);
    struct twins weight = make_twins(dtype, SHAPE(n, k)), bias = make_vector(dtype, n),
                 gate = make_vector(dtype, n), out = make_results(SHAPE(t, n), 1);
    for (int i = 0; i < 2; i++)
        op_linear(&x, out.of[i], in, weight.of[i],
                  (struct epilogue){.bias = bias.of[i], .gate = gate.of[i], .activation = ACTIVATION_SILU});
    expect_same(dtype, &out, "linear");
}

static void same_linear_few(enum dtype dtype, int32_t t, int32_t n, int32_t k) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 1, 1);
    struct twins weight = make_twins(dtype, SHAPE(n, k)), bias = make_vector(dtype, n),
                 out = make_results(SHAPE(t, n), 1);
    for (int i = 0; i < 2; i++) op_linear_few(&x, out.of[i], in, weight.of[i], bias.of[i], ACTIVATION_SILU);
    expect_same(dtype, &out, "linear_few");
}

/* one_row: the weight has one row, which op_add adds to every row of `a` */
static void same_add(enum dtype dtype, int32_t rows, int32_t columns, bool one_row) {
    case_begin();
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(rows, columns), 0, 1);
    struct twins b = make_twins(dtype, SHAPE(one_row ? 1 : rows, columns)),
                 out = make_results(SHAPE(rows, columns), 1);
    for (int i = 0; i < 2; i++) op_add(&x, out.of[i], a, b.of[i]);
    expect_same(dtype, &out, one_row ? "add of one row" : "add");
}

static void same_positions(enum dtype dtype, int32_t side, int32_t columns) {
    case_begin();
    struct position_grid grid = {side, 4, 6, {0, 2}};
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(24, columns), 0, 1);
    struct twins table = make_twins(dtype, SHAPE(side * side, columns)),
                 out = make_results(SHAPE(24, columns), 1);
    for (int i = 0; i < 2; i++) op_add_positions(&x, out.of[i], a, table.of[i], grid);
    expect_same(dtype, &out, "add_positions");
}

static void same_norms(enum dtype dtype, int32_t rows, int32_t columns) {
    static const char *const names[] = {"rms_norm", "rms_norm with a scale", "layer_norm", "group_norm"};
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns), 0, 1);
    struct tensor statistics = tensor_random(DTYPE_F32, SHAPE(4, 2), 0, 1);
    struct twins v[4], out = make_results(SHAPE(rows, columns), 1);
    for (int k = 0; k < 4; k++) v[k] = make_vector(dtype, columns);
    for (int norm = 0; norm < 4; norm++) {
        for (int i = 0; i < 2; i++) {
            struct modulation m = {0};
            if (norm == 1) m.scale = v[1].of[i];
            if (norm < 2)
                op_rms_norm(&x, out.of[i], in, v[0].of[i], 1e-6f, m);
            else if (norm == 2)
                op_layer_norm(&x, out.of[i], in,
                              (struct affine){v[0].of[i], v[1].of[i], v[2].of[i], v[3].of[i]}, 1e-6f);
            else
                op_group_norm(&x, out.of[i], in, (struct group_norm){statistics, v[0].of[i], v[1].of[i]});
        }
        expect_same(dtype, &out, names[norm]);
    }
}

/* Tests convolutions. Kernels have rows of 1 or 3 values, so rows end inside a quantisation block. */
static void same_conv(enum dtype dtype, int32_t side, int32_t channels, int32_t kernel) {
    case_begin();
    if (dtype_tiled_values(dtype) || dtype_is_rotated(dtype)) return;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(side, side, channels), 0, 1);
    struct twins weight = make_twins(dtype, SHAPE(channels, channels, kernel, kernel));
    struct twins bias = make_twins(dtype_is_quantised(dtype) ? DTYPE_BF16 : dtype, SHAPE(channels)),
                 out = make_results(3, in.dim, 0);
    for (int i = 0; i < 2; i++)
        op_conv2d(&x, out.of[i], in, weight.of[i], (struct epilogue){.bias = bias.of[i]},
                  (struct conv_options){.upsample = 1});
    expect_same(dtype, &out, "conv2d");
}

static void same_relative_bias(enum dtype dtype, int32_t tokens, int32_t heads) {
    case_begin();
    struct twins table = make_twins(dtype, SHAPE(32, heads)),
                 out = make_results(SHAPE(heads, 2 * tokens - 1), 1);
    for (int i = 0; i < 2; i++) op_relative_bias(&x, out.of[i], table.of[i], (struct distance_buckets){128});
    expect_same(dtype, &out, "relative_bias");
}

void same_everywhere(enum dtype dtype) {
    int32_t block = dtype_block_values(dtype), odd = block < 8 ? 3 : 0;
    int32_t n = dtype_tiled_values(dtype) ? 256 : block < 32 ? 32 : block;
    same_linear(dtype, 5, n + odd, 512 + odd);
    same_linear(dtype, 3, n, 256); /* a width for which a device may use bf16 weights without conversion */
    same_linear_few(dtype, 1, n, 256 + odd);
    same_linear_few(dtype, small_operands ? 2 : 7, n + odd, 512);
    /* Rows that end inside a quantisation block. */
    if (block >= 16 && !dtype_tiled_values(dtype) && !dtype_is_rotated(dtype)) {
        same_linear(dtype, 3, n, block / 2 * 3);
        same_linear_few(dtype, 1, n, block / 2 * 3);
        same_linear_few(dtype, 3, n, block / 2 * 3);
        same_relative_bias(dtype, 3, block / 2 * 3);
    }
    same_add(dtype, 3, n + odd, false);
    same_add(dtype, 3, n + odd, true);
    same_positions(dtype, 3, n + odd);
    same_norms(dtype, small_operands ? 1 : 6, n + (block < 8 ? 4 : 0));
    same_relative_bias(dtype, 3, n);
}

void same_convolutions(enum dtype dtype) {
    same_conv(dtype, small_operands ? 3 : 9, 16, 3);
    same_conv(dtype, small_operands ? 2 : 5, 32, 1);
}
