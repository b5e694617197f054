/* oneDNN may pack converted weights but reads f32 weights in place: equal values must give equal bits. */
#include "test/lib/seeded.h"

#include "engine/base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/weights.h"
#include "kernels/dry/dry.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sys sys;
static uint64_t seed = 1;

static struct tensor make(enum dtype dtype, int32_t rows, int32_t columns) {
    struct tensor t = tensor_make(NULL, dtype, 2, (int32_t[]){rows, columns});
    t.data = aligned_alloc(ARENA_ALIGN, align_up((uint64_t)tensor_bytes(&t), ARENA_ALIGN));
    assert_non_null(t.data);
    return t;
}

/* Returns a tensor of random signs and mantissas, with magnitudes within a factor of 16. */
static struct tensor random_halves(enum dtype dtype, int32_t rows, int32_t columns) {
    struct tensor t = make(dtype, rows, columns);
    uint16_t *to = t.data, exponents = dtype == DTYPE_BF16 ? 0x3f80 - 0x180 : 0x3c00 - 0xc00;
    uint16_t mantissa = dtype == DTYPE_BF16 ? 0x1ff : 0xfff;
    for (int64_t i = 0; i < tensor_elements(&t); i++) {
        uint64_t bits = random_next(&seed);
        to[i] = (uint16_t)((bits & 0x8000) | (exponents + (bits >> 16 & mantissa)));
    }
    return t;
}

static struct tensor random_floats(int32_t rows, int32_t columns) {
    struct tensor t = make(DTYPE_F32, rows, columns);
    for (int64_t i = 0; i < tensor_elements(&t); i++)
        ((float *)t.data)[i] = (float)(random_next(&seed) >> 40) * 0x1p-23f - 1;
    return t;
}

static void run_linear(struct device *device, struct tensor out, struct tensor in, struct tensor weight) {
    struct error e = {0};
    struct dry dry;
    struct context x = {.device = &dry.device, .error = &e};
    dry_init(&dry, &sys, device, true);
    op_linear(&x, out, in, weight, (struct epilogue){0});
    x.workspace_bytes = dry.workspace_bytes;
    dry_destroy(&dry);
    x.workspace = aligned_alloc(ARENA_ALIGN, align_up(x.workspace_bytes + 1, ARENA_ALIGN));
    x.device = device;
    op_linear(&x, out, in, weight, (struct epilogue){0});
    free(x.workspace);
    assert_int_equal(e.code, OK);
}

static void test_packed_weights_keep_bits(void **state) {
    static const int32_t sizes[][3] = {{1, 64, 16},       {7, 128, 48},   {33, 576, 1040},
                                       {100, 192, 10240}, {65, 320, 770}, {5, 100, 64}};
    struct error e = {0};
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        struct device *device = cpu_open(&sys, threads, &e);
        assert_non_null(device);
        for (int i = 0; i < 12; i++) {
            int32_t T = sizes[i / 2][0], N = sizes[i / 2][1], K = sizes[i / 2][2];
            struct tensor in = random_floats(T, K), out = make(DTYPE_F32, T, N),
                          again = make(DTYPE_F32, T, N);
            struct tensor half = random_halves(i % 2 ? DTYPE_F16 : DTYPE_BF16, N, K),
                          wide = make(DTYPE_F32, N, K);
            weights_widen(wide.data, &half, 0, N);
            run_linear(device, out, in, half);
            run_linear(device, again, in, wide);
            assert_memory_equal(out.data, again.data, (size_t)tensor_bytes(&out));
            free(in.data), free(out.data), free(again.data), free(half.data), free(wide.data);
        }
        device->destroy(device);
    }
}

/* Packed weights give right values with any instruction set, although oneDNN packs only with some. */
static void test_packing_places_every_value(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        int32_t N = 64 * (1 + i % 3), K = 16 * (1 + 3 * i);
        struct tensor half = random_halves(i % 2 ? DTYPE_F16 : DTYPE_BF16, N, K),
                      packed = make(DTYPE_F32, N, K);
        float value, *at = packed.data;
        weights_widen_packed(at, &half);
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) {
                weights_widen_part(&value, &half, n, k, 1);
                assert_memory_equal(&value, &at[(n / 64 * K + k) * 64 + n % 64], sizeof value);
            }
        free(half.data), free(packed.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packing_places_every_value),
        cmocka_unit_test(test_packed_weights_keep_bits),
    };
    sys_init_machine(&sys);
    return tests_run(tests, sizeof tests / sizeof *tests, NULL, NULL);
}
