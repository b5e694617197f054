/* CPU operators with weights of every stored type give the same bits as with the dequantised f32 weights.
 * test_ops.c compares f32 with f64 arithmetic. */
#include "test/ops/ops_checker.h"

#include "test/lib/quantised_ops.h"

#include "kernels/cpu/weights.h"
#include "test/lib/cmocka_tests.h"

static const enum dtype plain[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

TEST(stored_types_equal_f32) {
    x.precision = PRECISION_F32;
    for (int i = 0; i < 3; i++) same_everywhere(plain[i]), same_convolutions(plain[i]);
    for (int i = 0; i < N_QUANTISED; i++)
        same_everywhere(quantised_types[i]), same_convolutions(quantised_types[i]);
}

/* Covers weight panels of 64 outputs with a narrower last one, sizes that oneDNN may pack (multiples of 64
 * and of 16), and rows whose last part is short. */
TEST(panels_of_stored_types_equal_f32) {
    for (int i = 0; i < N_QUANTISED; i++) {
        enum dtype dtype = quantised_types[i];
        int32_t block = dtype_block_values(dtype) < 256 ? dtype_block_values(dtype) : 256;
        same_linear(dtype, 7, 256, 1024 + (block < 32 ? 16 : block));
        if (block < 32) same_linear(dtype, 3, 80, 10240);
        same_linear(dtype, 33, 768, 256);
    }
}

/* oneDNN may pack converted f16 and bf16 weights but reads f32 weights in place. */
TEST(packed_weights_keep_bits) {
    static const int32_t sizes[][3] = {{1, 64, 16},       {7, 128, 48},   {33, 576, 1040},
                                       {100, 192, 10240}, {65, 320, 770}, {5, 100, 64}};
    for (int i = 0; i < 12; i++)
        same_linear(plain[1 + i % 2], sizes[i / 2][0], sizes[i / 2][1], sizes[i / 2][2]);
}

/* Packed weights have the right values with any instruction set, although oneDNN packs only with some. */
TEST(packing_places_every_value) {
    for (int i = 0; i < 6; i++) {
        int32_t N = 64 * (1 + i % 3), K = 16 * (1 + 3 * i);
        case_begin();
        struct tensor half = tensor_random(plain[1 + i % 2], SHAPE(N, K), 0, 1);
        float value, *at = tensor_random(DTYPE_F32, SHAPE(N, K), 0, 1).data;
        weights_widen_packed(at, &half);
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) {
                weights_widen_part(&value, &half, n, k, 1);
                assert_memory_equal(&value, &at[(n / 64 * K + k) * 64 + n % 64], sizeof value);
            }
    }
}

TEST(stored_types_equal_in_bf16) {
    if (checker.two->unsupported[PRECISION_BF16]) skip();
    x.precision = PRECISION_BF16;
    test_panels_of_stored_types_equal_f32(state);
    for (int i = 0; i < N_QUANTISED; i++) same_linear(quantised_types[i], 5, 256, 512);
    x.precision = PRECISION_F32;
}

int main(void) {
    quantised_alloc = pool_alloc;
    return run_all_tests(ops_set_up, ops_tear_down);
}
