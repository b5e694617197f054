/* The cuBLASLt and cuDNN wrappers (kernels/cuda/cublaslt.c, cudnn.c) against fakes of both libraries: shapes,
 * layouts, transposition, bias and residual, errors, released handles. Needs CUDA's headers but no GPU; `make
 * library_fakes` puts the fakes on the library path. */
#include "kernels/cuda/cudnn.h"
#include "engine/base/half.h"
#include "test/emu/f16.h"
#include "kernels/cuda/cublaslt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

enum { VALUES = 8192, SCRATCH = 70 << 20 };

static struct sys sys;
static struct error e;

static int random_below_n(int n) {
    return rand() % n;
}

/* Fills a tensor with values of few bits: sums are exact in any order, and conversion to bf16 or f16 is
 * exact. */
static void fill(float *to) {
    for (int i = 0; i < VALUES; i++) to[i] = (float)(random_below_n(65) - 32) / 8;
}

static void cut(uint16_t *to, bool f16, const float *from) {
    for (int i = 0; i < VALUES; i++) to[i] = f16 ? emu_f16(from[i]) : half_f32_bf16(from[i]);
}

static float in[VALUES], weights[VALUES], bias[VALUES], residual[VALUES], out[VALUES], expected[VALUES];

/* Rounds to bf16 (ties to even) and returns the bits. */
static uint16_t nearest(float value) {
    int exponent;
    frexpf(value, &exponent);
    float rounded = ldexpf(nearbyintf(ldexpf(value, 8 - exponent)), exponent - 8);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Computes the product in a plain loop into `expected`, as f32, bf16 or f16; keeps bytes outside of its rows.
 */
static void multiply(const struct product_key *key, const float *added) {
    memcpy(expected, out, sizeof expected);
    for (int64_t i = 0; i < key->m; i++)
        for (int64_t j = 0; j < key->n; j++) {
            float value = key->bias ? bias[j] : 0;
            if (key->residual) value += added[i * key->residual_row + j];
            for (int64_t k = 0; k < key->k; k++) value += in[i * key->in_row + k] * weights[j * key->k + k];
            if (key->rounded)
                ((uint16_t *)(void *)expected)[i * key->out_row + j] =
                    key->f16 ? emu_f16(value) : nearest(value);
            else
                expected[i * key->out_row + j] = value;
        }
}

static void one_product(struct products *products) {
    static uint16_t rounded_in[VALUES], rounded_weights[VALUES], rounded_bias[VALUES];
    struct product_key key = {
        .m = 1 + random_below_n(9), .n = 1 + random_below_n(12), .k = 1 + random_below_n(14)};
    key.bias = random_below_n(2), key.residual = random_below_n(2), key.wide = random_below_n(2);
    key.f16 = (int16_t)random_below_n(2);
    key.rounded = !key.residual && random_below_n(2);
    key.in_row = key.k + random_below_n(3);
    key.out_row = key.n + random_below_n(3);
    if (key.residual) key.residual_row = random_below_n(2) ? key.out_row : key.n + random_below_n(4);
    fill(in), fill(weights), fill(bias), fill(residual), fill(out);
    cut(rounded_in, key.f16, in), cut(rounded_weights, key.f16, weights);
    cut(rounded_bias, key.f16, bias);
    float *added = key.residual_row == key.out_row && random_below_n(2) ? out : residual;
    multiply(&key, added);
    struct product_operands operands = {rounded_in, rounded_weights, bias, added, out, NULL};
    if (key.rounded) operands.bias = rounded_bias;
    assert_int_equal(products_prepare(products, &key, &e), OK);
    assert_int_equal(products_run(products, &key, &operands, NULL, &e), OK);
    assert_memory_equal(out, expected, sizeof expected);
}

static void test_products_match_plain_loops(void **state) {
    (void)state;
    char name[64];
    struct products *products = products_open(&sys, &e);
    assert_non_null(products);
    products_version(products, name, sizeof name);
    assert_string_equal(name, "cuBLASLt 13.14.15");
    assert_int_equal(products_release(products), 1314);
    for (int i = 0; i < 500; i++) one_product(products);
    void *scratch = aligned_alloc(256, SCRATCH);
    memset(scratch, 0, SCRATCH);
    assert_int_equal(products_warm_up_bytes(products), 0); /* no prepared product is left to warm up */
    struct product_key key = {.m = 2, .n = 3, .k = 8, .in_row = 8, .out_row = 3};
    assert_int_equal(products_prepare(products, &key, &e), OK);
    assert_int_equal(products_warm_up_bytes(products), product_warm_up_bytes(&key));
    assert_int_equal(products_warm_up(products, scratch, SCRATCH, NULL, &e), OK);
    assert_int_equal(products_warm_up_bytes(products), 0);
    assert_int_equal(products_warm_up(products, scratch, PRODUCTS_WORKSPACE, NULL, &e), OK);
    free(scratch);
    products_close(products);
}

/* The most recent algorithm that a wrapper reported. */
static char reported[400];
static int n_reported;

static void record_algorithm(void *user, const char *op, const char *shape, const char *algorithm) {
    (void)user;
    n_reported++;
    snprintf(reported, sizeof reported, "%s %s: %s", op, shape, algorithm);
}

static void test_used_algorithms_are_reported(void **state) {
    (void)state;
    struct products *products = products_open(&sys, &e);
    struct convolutions *convolutions = convolutions_open(&sys, &e);
    struct product_key key = {.m = 5, .n = 12, .k = 8, .in_row = 8, .out_row = 12};
    struct product_operands operands = {in, weights, bias, NULL, out, NULL};
    assert_int_equal(products_prepare(products, &key, &e), OK);
    products_algorithms(products, record_algorithm, NULL);
    assert_int_equal(n_reported, 0);
    assert_int_equal(products_run(products, &key, &operands, NULL, &e), OK);
    products_algorithms(products, record_algorithm, NULL);
    assert_int_equal(n_reported, 1);
    assert_string_equal(reported, "linear 5 x 12 x 8: id 100, tile 101, split 102");
    struct convolution_key small = {4, 6, 8, 8, 3, 2, 0};
    struct convolution_operands pictures = {in, weights, out, NULL};
    assert_int_equal(convolutions_prepare(convolutions, &small, &e), OK);
    assert_int_equal(convolutions_run(convolutions, &small, &pictures, NULL, &e), OK);
    convolutions_algorithms(convolutions, record_algorithm, NULL);
    assert_int_equal(n_reported, 2);
    assert_string_equal(reported,
                        "conv2d 4 x 6 pixels, 8 to 8 channels, kernel 3, stride 2: IMPLICIT_PRECOMP_GEMM");
    convolutions_close(convolutions);
    products_close(products);
}

static void test_failing_products_are_named(void **state) {
    (void)state;
    struct products *products = products_open(&sys, &e);
    struct product_key key = {.m = 5, .n = 13, .k = 8, .in_row = 8, .bias = 1, .out_row = 13};
    struct product_operands operands = {in, weights, bias, NULL, out, NULL};
    char line[800];
    assert_int_equal(products_run(products, &key, &operands, NULL, &e), INTERNAL);
    e = (struct error){0};
    assert_int_equal(products_prepare(products, &key, &e), DEVICE);
    assert_string_equal(error_line(&e, line, sizeof line),
                        "cuBLASLt: choosing an algorithm failed: found not supported (15), expected a matrix "
                        "product of 5 x 13 x 8, bias, row strides 8, 13 and 0");
    e = (struct error){0};
    products_close(products);
}

static void one_convolution(struct convolutions *convolutions) {
    struct convolution_key key = {1 + random_below_n(3),
                                  1 + random_below_n(4),
                                  8 * (1 + random_below_n(4)),
                                  8 * (1 + random_below_n(2)),
                                  1 + random_below_n(3),
                                  1 + random_below_n(2),
                                  random_below_n(2)};
    static uint16_t half_in[VALUES], half_weights[VALUES];
    int k = key.side, s = key.stride, width = convolution_reach(&key, key.columns);
    fill(in), fill(weights), fill(out);
    memcpy(expected, out, sizeof expected);
    for (int i = 0; i < key.rows * key.columns * key.out; i++) {
        int n = i % key.out, x = i / key.out % key.columns, y = i / key.out / key.columns;
        expected[i] = 0;
        for (int t = 0; t < k * k * key.in; t++) {
            int c = t % key.in, dx = t / key.in % k, dy = t / key.in / k;
            expected[i] +=
                in[((y * s + dy) * width + x * s + dx) * key.in + c] * weights[n * k * k * key.in + t];
        }
    }
    struct convolution_operands operands = {in, weights, out, NULL};
    if (key.f16) {
        cut(half_in, true, in), cut(half_weights, true, weights);
        operands.in = half_in, operands.weights = half_weights;
        uint16_t *halves = (uint16_t *)(void *)expected;
        for (int i = 0; i < key.rows * key.columns * key.out; i++)
            halves[i] = emu_f16(expected[i] * CONVOLUTION_HALF_SCALE);
        memcpy(halves + key.rows * key.columns * key.out,
               (uint16_t *)(void *)out + key.rows * key.columns * key.out,
               sizeof out - sizeof(uint16_t) * (size_t)(key.rows * key.columns * key.out));
    }
    assert_int_equal(convolutions_prepare(convolutions, &key, &e), OK);
    assert_int_equal(convolutions_run(convolutions, &key, &operands, NULL, &e), OK);
    assert_memory_equal(out, expected, sizeof expected);
}

static void test_convolutions_match_plain_loops(void **state) {
    (void)state;
    char name[64];
    struct convolutions *convolutions = convolutions_open(&sys, &e);
    assert_non_null(convolutions);
    convolutions_version(convolutions, name, sizeof name);
    assert_string_equal(name, "cuDNN 9.10.11");
    assert_int_equal(convolutions_release(convolutions), 910);
    for (int i = 0; i < 100; i++) one_convolution(convolutions);
    void *scratch = aligned_alloc(256, SCRATCH);
    memset(scratch, 0, SCRATCH);
    assert_int_equal(convolutions_warm_up_bytes(convolutions), 0);
    struct convolution_key key = {.rows = 7, .columns = 7, .in = 8, .out = 8, .side = 3, .stride = 1};
    assert_int_equal(convolutions_prepare(convolutions, &key, &e), OK);
    assert_int_equal(convolutions_warm_up_bytes(convolutions), convolution_warm_up_bytes(&key));
    assert_int_equal(convolutions_warm_up(convolutions, scratch, SCRATCH, NULL, &e), OK);
    assert_int_equal(convolutions_warm_up_bytes(convolutions), 0);
    free(scratch);
    convolutions_close(convolutions);
}

static void test_failing_convolutions_are_named(void **state) {
    (void)state;
    struct convolutions *convolutions = convolutions_open(&sys, &e);
    struct convolution_key key = {4, 6, 40, 8, 3, 2, 0};
    struct convolution_operands operands = {in, weights, out, NULL};
    char line[800];
    assert_int_equal(convolutions_run(convolutions, &key, &operands, NULL, &e), INTERNAL);
    e = (struct error){0};
    assert_int_equal(convolutions_prepare(convolutions, &key, &e), DEVICE);
    assert_string_equal(error_line(&e, line, sizeof line),
                        "cuDNN: choosing an algorithm failed: found not supported (3000), expected a "
                        "convolution of 4 x 6 pixels, 40 to 8 channels, kernel 3, stride 2");
    e = (struct error){0};
    key.in = 48;
    assert_int_equal(convolutions_prepare(convolutions, &key, &e), OK);
    assert_int_equal(convolutions_run(convolutions, &key, &operands, NULL, &e), DEVICE);
    assert_string_equal(e.what, "cuDNN: convolution failed");
    e = (struct error){0};
    convolutions_close(convolutions);
}

static int begin(void **state) {
    (void)state;
    sys_init_machine(&sys);
    srand(1);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_match_plain_loops),
        cmocka_unit_test(test_used_algorithms_are_reported),
        cmocka_unit_test(test_failing_products_are_named),
        cmocka_unit_test(test_convolutions_match_plain_loops),
        cmocka_unit_test(test_failing_convolutions_are_named),
    };
    return cmocka_run_group_tests_name("library_fakes", tests, begin, NULL);
}
