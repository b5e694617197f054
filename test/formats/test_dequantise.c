/* Dequantisation: every stored type against independent decoders, bit for bit, by rows, parts of rows, slices
 * and panels. */
#include "test/lib/cmocka_tests.h"
#include "test/lib/quantised_vectors.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <nettle/sha2.h>

enum { TAKEN_MOST = 64 };
static void *taken[TAKEN_MOST];
static int n_taken;

static void *take(size_t bytes) {
    assert_true(n_taken < TAKEN_MOST);
    taken[n_taken] = malloc(bytes);
    assert_non_null(taken[n_taken]);
    return taken[n_taken++];
}

static void give_back(void) {
    while (n_taken) free(taken[--n_taken]);
}

static void expect_bits(enum dtype dtype, float *found, const float *expected, int64_t n) {
    quantised_canonical_nan(found, n);
    for (int64_t i = 0; i < n; i++) {
        union float_bits a = {.value = found[i]}, b = {.value = expected[i]};
        if (a.bits != b.bits)
            fail_msg("%s: value %lld is %08x (%g), expected %08x (%g)", dtype_name(dtype), (long long)i,
                     (unsigned)a.bits, (double)a.value, (unsigned)b.bits, (double)b.value);
    }
}

TEST(values_bit_for_bit) {
    for (int i = 0; i < N_QUANTISED; i++) {
        struct quantised q = quantised_read(quantised_types[i]);
        int64_t n = tensor_elements(&q.values);
        float *found = take((size_t)n * sizeof *found);
        weights_widen(found, &q.weights, 0, q.values.dim[0]);
        expect_bits(quantised_types[i], found, q.values.data, n);
        give_back();
    }
}

TEST(all_codes_bit_for_bit) {
    for (int i = 0; i < N_QUANTISED; i++) {
        enum dtype dtype = quantised_types[i];
        struct quantised q = quantised_read(dtype);
        unsigned char digest[sizeof q.sweep];
        struct sha256_ctx sha;
        sha256_init(&sha);
        for (uint32_t piece = 0;; piece++) {
            struct tensor t = sweep_piece(dtype, piece);
            if (!t.rank) break;
            size_t bytes = (size_t)tensor_elements(&t) * sizeof(float);
            float *values = take(bytes);
            weights_widen(values, &t, 0, t.dim[0]);
            quantised_canonical_nan(values, tensor_elements(&t));
            sha256_update(&sha, bytes, (uint8_t *)values);
            give_back();
        }
        sha256_digest(&sha, sizeof digest, digest);
        if (memcmp(digest, q.sweep, sizeof digest) != 0)
            fail_msg("%s: wrong values in the sweep over all codes", dtype_name(dtype));
        give_back();
    }
}

/* Dequantises slices of rows, rows with padding between them, and parts that split quantisation blocks. */
TEST(partial_rows) {
    for (int i = 0; i < N_QUANTISED; i++) {
        enum dtype dtype = quantised_types[i];
        struct quantised q = quantised_read(dtype);
        int32_t rows = q.values.dim[0], columns = q.values.dim[1];
        const float *values = q.values.data;
        float *found = take((size_t)(rows * columns) * sizeof *found);
        for (int32_t first = 0; first < rows; first += 7) {
            struct tensor slice = tensor_slice(q.weights, first, rows - first < 5 ? rows - first : 5);
            weights_widen(found, &slice, 0, slice.dim[0]);
            expect_bits(dtype, found, values + (int64_t)first * columns, tensor_elements(&slice));
            for (int32_t from = 0, n = 1; from + n <= columns; from += n, n += 3) {
                weights_widen_part(found, &slice, slice.dim[0] - 1, from, n);
                expect_bits(dtype, found, values + (int64_t)(first + slice.dim[0] - 1) * columns + from, n);
            }
        }
        struct tensor gaps = q.weights;
        gaps.row_bytes += 3 * dtype_block_bytes(dtype);
        gaps.data = memset(take((size_t)(rows * gaps.row_bytes)), 0xff, (size_t)(rows * gaps.row_bytes));
        for (int32_t row = 0; row < rows; row++)
            memcpy((char *)gaps.data + row * gaps.row_bytes,
                   (char *)q.weights.data + row * q.weights.row_bytes, (size_t)q.weights.row_bytes);
        weights_widen(found, &gaps, 1, rows - 1);
        expect_bits(dtype, found, values + columns, (int64_t)(rows - 1) * columns);
        give_back();
    }
}

/* The packed kernel of a convolution has rows of 3 values, which split quantisation blocks. */
TEST(rows_without_whole_blocks) {
    for (int i = 0; i < N_QUANTISED; i++) {
        enum dtype dtype = quantised_types[i];
        struct quantised q = quantised_read(dtype);
        int32_t n = 3 * (int32_t)(tensor_elements(&q.values) / 3 / dtype_block_values(dtype) *
                                  dtype_block_values(dtype));
        if (dtype_block_values(dtype) > 1 && !q.weights.scales) {
            struct tensor kernel = tensor_make(q.weights.data, dtype, 2, (int32_t[]){n / 3, 3});
            float *found = take((size_t)n * sizeof *found);
            weights_widen(found, &kernel, 5, n / 3 - 5);
            expect_bits(dtype, found, (float *)q.values.data + 15, n - 15);
            weights_widen_part(found, &kernel, 100, 1, 2);
            expect_bits(dtype, found, (float *)q.values.data + 301, 2);
        }
        give_back();
    }
}

TEST(rounding_to_bf16) {
    for (int i = 0; i < N_QUANTISED; i++) {
        struct quantised q = quantised_read(quantised_types[i]);
        int64_t rows = q.values.dim[0], columns = q.values.dim[1];
        uint16_t *found = take((size_t)(rows * columns) * sizeof *found);
        weights_round(found, &q.weights, 1, rows - 1);
        for (int64_t j = 0; j < (rows - 1) * columns; j++) {
            uint16_t expected = half_f32_bf16(((float *)q.values.data)[columns + j]);
            if (isnan(half_bf16_f32(expected)))
                assert_true(isnan(half_bf16_f32(found[j])));
            else
                assert_int_equal(found[j], expected);
        }
        give_back();
    }
}

/* Repeats the matrix's rows up to 64; a matrix of more rows is cut. */
static struct tensor repeated(const struct quantised *q) {
    int32_t rows = q->values.dim[0];
    if (rows > 64) return tensor_slice(q->weights, 0, 64);
    struct tensor w = tensor_make(NULL, q->weights.dtype, 2, (int32_t[]){64, q->values.dim[1]});
    float *scales = take(64 * sizeof *scales);
    w.data = take((size_t)tensor_bytes(&w));
    w.scale = q->weights.scale;
    if (q->weights.scales) w.scales = scales;
    for (int32_t row = 0; row < 64; row++) {
        memcpy((char *)w.data + row * w.row_bytes,
               (char *)q->weights.data + row % rows * q->weights.row_bytes, (size_t)w.row_bytes);
        if (w.scales) scales[row] = ((const float *)q->weights.scales)[row % rows];
    }
    return w;
}

TEST(packed_panels) {
    for (int i = 0; i < N_QUANTISED; i++) {
        struct quantised q = quantised_read(quantised_types[i]);
        struct tensor w = repeated(&q);
        int64_t k = w.dim[1], rows = q.values.dim[0];
        float *found = take((size_t)(64 * k) * sizeof *found), *values = q.values.data;
        weights_widen_packed(found, &w);
        quantised_canonical_nan(found, 64 * k);
        for (int64_t row = 0; row < 64; row++)
            for (int64_t column = 0; column < k; column++)
                assert_memory_equal(&found[column * 64 + row], &values[row % rows * k + column],
                                    sizeof *found);
        give_back();
    }
}

int main(void) {
    quantised_alloc = take;
    return run_all_tests(NULL, NULL);
}
