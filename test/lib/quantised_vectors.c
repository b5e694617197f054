#include "test/lib/quantised_vectors.h"

const enum dtype quantised_types[N_QUANTISED] = {
    DTYPE_I8,          DTYPE_F8_E4M3,  DTYPE_F8_E5M2,  DTYPE_Q4_0,      DTYPE_Q4_1,      DTYPE_Q5_0,
    DTYPE_Q5_1,        DTYPE_Q8_0,     DTYPE_Q2_K,     DTYPE_Q3_K,      DTYPE_Q4_K,      DTYPE_Q5_K,
    DTYPE_Q6_K,        DTYPE_IQ4_NL,   DTYPE_IQ4_XS,   DTYPE_MXFP4,     DTYPE_NVFP4,     DTYPE_NVFP4_TILED,
    DTYPE_MXFP8_TILED, DTYPE_I8_ROT16, DTYPE_I8_ROT64, DTYPE_I8_ROT256, DTYPE_NVFP4_AWQ, DTYPE_I4_ROT256,
};
void *(*quantised_alloc)(size_t bytes);

/* Reads the tensor with the given name and sets *there to its index entry; NULL if the file lacks the tensor.
 */
static void *quantised_part(const struct tensor_index *index, const char *name,
                            const struct index_entry **there) {
    const struct index_entry *entry = index_find(index, name);
    struct error e = {0};
    *there = entry;
    if (!entry) return NULL;
    void *to = quantised_alloc(entry->bytes);
    assert_int_equal(source_read(&index->sources[entry->source], to, entry->bytes, entry->offset, &e), OK);
    return to;
}

struct quantised quantised_read(enum dtype dtype) {
    char path[PATH_MAX];
    static struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "test/golden/quantised/%s.safetensors", dtype_name(dtype));
    assert_int_equal(safetensors_open(&sys, path, &index, &e), OK);
    const struct index_entry *at;
    float *values = quantised_part(&index, "values", &at);
    struct quantised q = {.values = tensor_make(values, DTYPE_F32, 2, at->dim)};
    q.weights = tensor_make(NULL, dtype, 2, at->dim);
    q.weights.data = quantised_part(&index, "bytes", &at);
    assert_int_equal(at->bytes, tensor_bytes(&q.weights));
    q.weights.scales = quantised_part(&index, "scales", &at);
    float *scale = quantised_part(&index, "scale", &at);
    if (scale) q.weights.scale = *scale;
    memcpy(q.sweep, quantised_part(&index, "sweep", &at), sizeof q.sweep);
    index_destroy(&index);
    return q;
}

void quantised_canonical_nan(float *values, int64_t n) {
    static const uint32_t nan = 0x7fc00000;
    for (int64_t i = 0; i < n; i++)
        if (isnan(values[i])) memcpy(&values[i], &nan, sizeof nan);
}

static unsigned char sweep_noise(uint32_t i) {
    i *= 0x9e3779b1u;
    i = (i ^ i >> 15) * 0x85ebca77u;
    return (unsigned char)(i ^ i >> 13);
}

struct sweep sweep_of(enum dtype dtype) {
    static const struct sweep sweeps[N_DTYPES] = {
        [DTYPE_Q4_0] = {{0, -1}, 0, 8 << 16},   [DTYPE_Q4_1] = {{0, 2}, 0, 8 << 16},
        [DTYPE_Q5_0] = {{0, -1}, 0, 8 << 16},   [DTYPE_Q5_1] = {{0, 2}, 0, 8 << 16},
        [DTYPE_Q8_0] = {{0, -1}, 0, 16 << 16},  [DTYPE_Q2_K] = {{80, 82}, 0, 1 << 16},
        [DTYPE_Q3_K] = {{108, -1}, 0, 1 << 16}, [DTYPE_Q4_K] = {{0, 2}, 0, 1 << 16},
        [DTYPE_Q5_K] = {{0, 2}, 0, 1 << 16},    [DTYPE_Q6_K] = {{208, -1}, 0, 1 << 16},
        [DTYPE_IQ4_NL] = {{0, -1}, 0, 8 << 16}, [DTYPE_IQ4_XS] = {{0, -1}, 0, 1 << 16},
        [DTYPE_MXFP4] = {{-1, -1}, 1, 1 << 14}, [DTYPE_NVFP4] = {{-1, -1}, 4, 1 << 12},
    };
    return sweeps[dtype];
}

static void sweep_block(enum dtype dtype, uint32_t block, unsigned char *to) {
    struct sweep s = sweep_of(dtype);
    uint32_t size = (uint32_t)dtype_block_bytes(dtype);
    for (uint32_t i = 0; i < size; i++) to[i] = sweep_noise(block * size + i);
    for (int which = 0; which < 2; which++) {
        uint32_t scale = block * (which ? 40503 : 1);
        if (s.f16[which] < 0 || s.bytes) continue;
        to[s.f16[which]] = (unsigned char)scale;
        to[s.f16[which] + 1] = (unsigned char)(scale >> 8);
    }
    for (int k = 0; k < s.bytes; k++) to[k] = (unsigned char)(block * (uint32_t)s.bytes + (uint32_t)k);
}

/* Levels of w4a8 files: comfy-kitchen 0.2.40, tensor/w4a8_packed.py. */
const float quantised_levels[16] = {-0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f,
                                    -0.155210f, -0.050720f, 0.052541f,  0.156985f,  0.265284f,  0.379533f,
                                    0.502636f,  0.638953f,  0.794876f,  0.980671f};

/* Makes the sweep tensor of types whose scales are a separate tensor: 256 rows of 256 values. */
static struct tensor sweep_ramp(enum dtype dtype) {
    struct tensor t = tensor_make(quantised_alloc(1 << 16), dtype, 2, (int32_t[]){256, 256});
    int64_t row_bytes = t.row_bytes, step = 256 / row_bytes, tiled = dtype_tiled_values(dtype);
    t.scales = t.data; /* any pointer but NULL: tensor_scales_bytes returns 0 for a tensor without scales */
    int64_t n_scales = tensor_scales_bytes(&t), head = tensor_scales_head(&t), row_scales = 256 * 4;
    unsigned char *codes = t.data, *scales = quantised_alloc((size_t)n_scales), *at = scales + head;
    for (int64_t i = 0; i < 256 * row_bytes; i++)
        codes[i] = (unsigned char)(i / row_bytes + i % row_bytes * step);
    for (int64_t i = 0; i < head; i++) scales[i] = sweep_noise((uint32_t)i);
    if (dtype == DTYPE_I4_ROT256) memcpy(scales, quantised_levels, sizeof quantised_levels);
    for (int64_t i = 0; i < n_scales - head; i++) {
        int64_t row = i / (256 / (tiled ? tiled : 1) * 128) * 128 + i % 512 / 16 + i % 16 / 4 * 32;
        at[i] = tiled ? (unsigned char)row : sweep_noise((uint32_t)i);
        if (!tiled && i >= row_scales) at[i] = (unsigned char)((i - row_scales) / 16); /* group scales */
    }
    t.scales = scales;
    return t;
}

struct tensor sweep_piece(enum dtype dtype, uint32_t piece) {
    struct sweep s = sweep_of(dtype);
    if (!s.blocks && piece == 0) return sweep_ramp(dtype);
    if (piece * SWEEP_BLOCKS >= s.blocks) return (struct tensor){0};
    int32_t dim[] = {16, SWEEP_BLOCKS / 16 * dtype_block_values(dtype)};
    struct tensor t = tensor_make(NULL, dtype, 2, dim);
    t.data = quantised_alloc((size_t)tensor_bytes(&t));
    for (uint32_t i = 0; i < SWEEP_BLOCKS; i++)
        sweep_block(dtype, piece * SWEEP_BLOCKS + i,
                    (unsigned char *)t.data + i * (uint32_t)dtype_block_bytes(dtype));
    return t;
}
