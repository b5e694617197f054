/* Random weights of every type, dequantised: finite, with the requested standard deviation. */

#include "test/lib/cmocka_tests.h"
#include "engine/bench/random_weights.h"
#include "kernels/cpu/weights.h"

#include <math.h>

enum { ROWS = 160, COLUMNS = 768, PIECES = 3 };

struct statistics {
    double mean, size, largest;
};

static struct statistics measure(const struct tensor *t) {
    float *values = malloc(ROWS * COLUMNS * sizeof *values);
    struct statistics m = {0};
    assert_non_null(values);
    weights_widen(values, t, 0, ROWS);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        double v = (double)values[i];
        if (!isfinite(v)) fail_msg("%s: value %d is %g", dtype_name(t->dtype), i, v);
        m.mean += v / (ROWS * COLUMNS);
        m.size += v * v / (ROWS * COLUMNS);
        if (fabs(v) > m.largest) m.largest = fabs(v);
    }
    free(values);
    m.size = sqrt(m.size);
    return m;
}

/* Makes the weights in pieces, as a file is written, and returns their statistics. */
static struct statistics make(enum dtype dtype, double init_scale, bool scaled, bool row_scales) {
    struct tensor t = tensor_make(NULL, dtype, 2, (int32_t[]){ROWS, COLUMNS});
    uint64_t bytes = (uint64_t)tensor_bytes(&t), random = 5;
    uint64_t scales_bytes = 4 * ROWS;
    if (scaled) t.scale = random_weights_scale(&t, init_scale);
    char *data = malloc(bytes), *scales = NULL;
    for (int i = 0; i < PIECES; i++) {
        uint64_t block = (uint64_t)dtype_block_bytes(dtype), all = bytes / block;
        uint64_t from = all * (uint64_t)i / PIECES * block, to = all * (uint64_t)(i + 1) / PIECES * block;
        random_weights_fill(&random, &t, init_scale, data + from, to - from);
    }
    t.data = data;
    if (row_scales || dtype_tiled_values(dtype)) {
        t.scales = data; /* tensor_scales_bytes needs a pointer that is not NULL */
        scales_bytes = (uint64_t)tensor_scales_bytes(&t);
        scales = malloc(scales_bytes);
        random_weights_fill_scales(&random, &t, init_scale, scales, scales_bytes);
        t.scales = scales;
        if (row_scales) t.scale = 1;
    }
    struct statistics m = measure(&t);
    free(data);
    free(scales);
    return m;
}

/* Measured over all types: standard deviation 0.988 to 1.031 of the requested one, mean up to 0.0225 and
 * largest value 7.5 times the requested standard deviation. */
static void check(enum dtype dtype, double init_scale, bool scaled, bool row_scales) {
    struct statistics m = make(dtype, init_scale, scaled, row_scales);
    double asked = 2 * init_scale * sqrt(3.0 / COLUMNS) / sqrt(12);
    if (m.size < 0.98 * asked || m.size > 1.05 * asked || fabs(m.mean) > 0.03 * asked ||
        m.largest > 8 * asked)
        fail_msg("%s, standard deviation %g%s: mean %g, found %g instead of %g, largest %g",
                 dtype_name(dtype), init_scale, row_scales ? " by rows" : "", m.mean, m.size, asked,
                 m.largest);
}

TEST(mean_and_deviation_of_all_types) {
    for (int dtype = 0; dtype < N_DTYPES; dtype++)
        for (double init_scale = 0.5; init_scale < 9 && dtype_is_weight((enum dtype)dtype);
             init_scale += 3.5) {
            bool eight = dtype_scales_rows((enum dtype)dtype);
            bool alone = dtype != DTYPE_I8 && !dtype_is_rotated((enum dtype)dtype);
            bool nvfp4 = dtype == DTYPE_NVFP4_TILED || dtype == DTYPE_NVFP4_AWQ;
            if (alone) check((enum dtype)dtype, init_scale, nvfp4, false);
            if (eight && dtype != DTYPE_I4_ROT256) check((enum dtype)dtype, init_scale, true, false);
            if (eight) check((enum dtype)dtype, init_scale, true, true);
        }
}

TEST(norms_around_one) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) {
        struct statistics m = make(types[i], 0, false, false);
        assert_true(fabs(m.mean - 1) < 0.01 && m.largest < 1.2 && m.size < 1.01);
    }
}

int main(void) {
    return run_all_tests(NULL, NULL);
}
