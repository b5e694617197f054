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
        return scale ? (unsigned char)(0x28 + noise % 32) : noise;
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
    for (int64_t i = 0; !dtype_tiled_values(t->dtype) && i < tensor_scales_bytes(t); i += 4)
        ((float *)(void *)to)[i / 4] = 0.01f + 0.01f * random_value();
    t->scales = to;
}

/* A quantised weight and its f32 values. */
struct twins {
    struct tensor stored, f32;
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
    struct twins twins = {tensor_slice(t, cut, dim[0]), tensor_make(NULL, DTYPE_F32, rank, dim)};
    twins.f32.data = operand_memory((size_t)tensor_bytes(&twins.f32));
    weights_widen(twins.f32.data, &twins.stored, 0, tensor_rows(&twins.stored));
    return twins;
}

struct results {
    struct tensor stored, f32;
};

static struct results make_results(int rank, const int32_t *dim) {
    struct results r = {tensor_random(DTYPE_F32, rank, dim, 1, 1), {0}};
    r.f32 = tensor_random(DTYPE_F32, rank, dim, 1, 0);
    return r;
}

static void expect_same(enum dtype dtype, const struct results *r, const char *what) {
    char line[1200];
    if (problem.code)
        fail_msg("%s of %s: %s", what, dtype_name(dtype), error_line(&problem, line, sizeof line));
    for (int64_t row = 0; row < tensor_rows(&r->f32); row++) {
        const char *a = (char *)r->stored.data + row * r->stored.row_bytes;
        const char *b = (char *)r->f32.data + row * r->f32.row_bytes;
        if (memcmp(a, b, (size_t)tensor_columns(&r->f32) * sizeof(float)) != 0)
            fail_msg("%s with %s weights: row %lld differs from F32", what, dtype_name(dtype),
                     (long long)row);
    }
}

/* Returns the element type of a vector weight (bias, norm) in a test of a quantised matrix type. Tiled types
 * do not apply to vectors, and quantisation blocks must fill the vector. */
static enum dtype vector_type(enum dtype dtype, int32_t n) {
    enum dtype type = dtype_tiled_values(dtype) ? DTYPE_Q6_K : dtype;
    return n % dtype_block_values(type) ? DTYPE_BF16 : type;
}

void same_linear(enum dtype dtype, int32_t t, int32_t n, int32_t k) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 1, 1);
    struct twins weight = make_twins(dtype, SHAPE(n, k));
    struct twins bias = make_twins(vector_type(dtype, n), SHAPE(n)),
                 gate = make_twins(vector_type(dtype, n), SHAPE(n));
    struct results r = make_results(SHAPE(t, n));
    struct epilogue e = {.bias = bias.stored, .gate = gate.stored, .activation = ACTIVATION_SILU};
    op_linear(&x, r.stored, in, weight.stored, e);
    e.bias = bias.f32, e.gate = gate.f32;
    op_linear(&x, r.f32, in, weight.f32, e);
    expect_same(dtype, &r, "linear");
}

static void same_linear_few(enum dtype dtype, int32_t t, int32_t n, int32_t k) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 1, 1);
    struct twins weight = make_twins(dtype, SHAPE(n, k)), bias = make_twins(vector_type(dtype, n), SHAPE(n));
    struct results r = make_results(SHAPE(t, n));
    op_linear_few(&x, r.stored, in, weight.stored, bias.stored, ACTIVATION_SILU);
    op_linear_few(&x, r.f32, in, weight.f32, bias.f32, ACTIVATION_SILU);
    expect_same(dtype, &r, "linear_few");
}

static void same_add(enum dtype dtype, int32_t rows, int32_t columns) {
    case_begin();
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(rows, columns), 0, 1);
    struct twins all = make_twins(dtype, SHAPE(rows, columns)), one = make_twins(dtype, SHAPE(1, columns));
    struct results r = make_results(SHAPE(rows, columns));
    op_add(&x, r.stored, a, all.stored);
    op_add(&x, r.f32, a, all.f32);
    expect_same(dtype, &r, "add");
    op_add(&x, r.stored, a, one.stored);
    op_add(&x, r.f32, a, one.f32);
    expect_same(dtype, &r, "add of one row");
}

static void same_norms(enum dtype dtype, int32_t rows, int32_t columns) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns), 0, 1);
    struct twins v[4];
    for (int i = 0; i < 4; i++) v[i] = make_twins(vector_type(dtype, columns), SHAPE(columns));
    struct results r = make_results(SHAPE(rows, columns));
    op_rms_norm(&x, r.stored, in, v[0].stored, 1e-6f, (struct modulation){0});
    op_rms_norm(&x, r.f32, in, v[0].f32, 1e-6f, (struct modulation){0});
    expect_same(dtype, &r, "rms_norm");
    op_rms_norm(&x, r.stored, in, v[0].stored, 1e-6f, (struct modulation){.scale = v[1].stored});
    op_rms_norm(&x, r.f32, in, v[0].f32, 1e-6f, (struct modulation){.scale = v[1].f32});
    expect_same(dtype, &r, "rms_norm with a scale");
    struct affine stored = {v[0].stored, v[1].stored, v[2].stored, v[3].stored};
    struct affine f32 = {v[0].f32, v[1].f32, v[2].f32, v[3].f32};
    op_layer_norm(&x, r.stored, in, stored, 1e-6f);
    op_layer_norm(&x, r.f32, in, f32, 1e-6f);
    expect_same(dtype, &r, "layer_norm");
    struct tensor statistics = tensor_random(DTYPE_F32, SHAPE(4, 2), 0, 1);
    op_group_norm(&x, r.stored, in, (struct group_norm){statistics, v[0].stored, v[1].stored});
    op_group_norm(&x, r.f32, in, (struct group_norm){statistics, v[0].f32, v[1].f32});
    expect_same(dtype, &r, "group_norm");
}

/* Tests convolutions. Kernels have rows of 1 or 3 values, so rows end inside a quantisation block. */
static void same_conv(enum dtype dtype, int32_t side, int32_t channels, int32_t kernel) {
    case_begin();
    if (dtype_tiled_values(dtype) || dtype_is_rotated(dtype)) return;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(side, side, channels), 0, 1);
    struct twins weight = make_twins(dtype, SHAPE(channels, channels, kernel, kernel));
    struct twins bias = make_twins(dtype_is_quantised(dtype) ? DTYPE_BF16 : dtype, SHAPE(channels));
    struct results r = {.stored = tensor_random(DTYPE_F32, 3, in.dim, 0, 1),
                        .f32 = tensor_random(DTYPE_F32, 3, in.dim, 0, 0)};
    struct conv_options o = {.upsample = 1};
    op_conv2d(&x, r.stored, in, weight.stored, (struct epilogue){.bias = bias.stored}, o);
    op_conv2d(&x, r.f32, in, weight.f32, (struct epilogue){.bias = bias.f32}, o);
    expect_same(dtype, &r, "conv2d");
}

static void same_relative_bias(enum dtype dtype, int32_t tokens, int32_t heads) {
    case_begin();
    struct twins table = make_twins(dtype, SHAPE(32, heads));
    struct results r = make_results(SHAPE(heads, 2 * tokens - 1));
    op_relative_bias(&x, r.stored, table.stored, (struct distance_buckets){128});
    op_relative_bias(&x, r.f32, table.f32, (struct distance_buckets){128});
    expect_same(dtype, &r, "relative_bias");
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
    same_add(dtype, 3, n + odd);
    same_norms(dtype, small_operands ? 1 : 6, n + (block < 8 ? 4 : 0));
    same_relative_bias(dtype, 3, n);
}

void same_convolutions(enum dtype dtype) {
    same_conv(dtype, small_operands ? 3 : 9, 16, 3);
    same_conv(dtype, small_operands ? 2 : 5, 32, 1);
}
