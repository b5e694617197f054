#include "test/lib/ops_tests.h"

#include <time.h>

int ops_on, ops_random_cases, ops_pictures;

#define F32         DTYPE_F32
#define F16         DTYPE_F16
#define BF16        DTYPE_BF16
#define PLAIN       ACTIVATION_NONE
#define SILU        ACTIVATION_SILU
#define GELU_TANH   ACTIVATION_GELU_TANH
#define GELU_QUICK  ACTIVATION_GELU_QUICK
#define RELU        ACTIVATION_RELU
#define SIGMOID     ACTIVATION_SIGMOID
#define GELU_ERF    ACTIVATION_GELU_ERF
#define APART       RESIDUAL_APART
#define OVER_OUT    RESIDUAL_OUT
#define NO_RESIDUAL RESIDUAL_NONE

void test_linear(void **state) {
    static const struct {
        int on;
        struct linear_case c; /* t, n, k, type, gap, bias, gate, activation, residual */
    } cases[] = {
        {ON_ALL, {1, 1, 1, F32, 0, false, false, PLAIN, NO_RESIDUAL}},
        {ON_ALL, {7, 36, 20, F16, 0, true, false, PLAIN, APART}},
        {ON_ALL, {33, 130, 77, F32, 3, false, false, PLAIN, OVER_OUT}},
        {ON_CUDA | ON_TSAN, {5, 40, 64, BF16, 4, true, false, PLAIN, OVER_OUT}},
        {ON_BOTH, {1, 64, 256, BF16, 0, true, false, PLAIN, NO_RESIDUAL}},
        {ON_BOTH, {100, 320, 512, BF16, 0, false, false, PLAIN, OVER_OUT}},
        /* weight panels of 64 outputs on the CPU, the last one of 8 */
        {ON_BOTH, {17, 200, 10240, BF16, 0, true, false, PLAIN, OVER_OUT}},
        {ON_BOTH, {5, 200, 10240, F32, 16, true, false, PLAIN, NO_RESIDUAL}},
        {ON_CPU, {3, 70, 20000, F16, 0, false, false, PLAIN, NO_RESIDUAL}},
        {ON_BOTH, {300, 512, 300, F32, 0, true, false, PLAIN, NO_RESIDUAL}},
        /* weights packed for oneDNN: 1040 columns are 65 tiles of 16, an odd number */
        {ON_CPU, {33, 576, 1040, F16, 0, true, false, PLAIN, OVER_OUT}},
        {ON_CUDA, {9, 33, 1001, BF16, 0, false, false, PLAIN, APART}}, /* unaligned weight rows */

        {ON_ALL, {1, 1, 1, F32, 0, false, true, GELU_TANH, NO_RESIDUAL}},
        {ON_ALL, {7, 36, 20, F16, 0, true, true, SILU, APART}},
        {ON_CUDA | ON_TSAN, {9, 30, 77, F32, 3, true, false, GELU_QUICK, OVER_OUT}},
        {ON_CUDA | ON_TSAN, {9, 30, 77, F16, 3, true, true, GELU_ERF, APART}},
        {ON_CPU, {33, 130, 77, F32, 3, true, false, GELU_QUICK, NO_RESIDUAL}},
        {ON_CPU, {33, 130, 77, F16, 3, true, true, GELU_ERF, APART}},
        {ON_CUDA, {5, 40, 64, BF16, 4, true, true, PLAIN, OVER_OUT}},
        {ON_BOTH, {100, 320, 512, BF16, 0, true, false, GELU_TANH, NO_RESIDUAL}},
        {ON_CPU, {100, 320, 512, BF16, 0, false, true, PLAIN, NO_RESIDUAL}},
        {ON_CUDA, {100, 321, 512, BF16, 1, false, true, PLAIN, NO_RESIDUAL}},
        {ON_BOTH, {17, 200, 10240, BF16, 0, true, true, PLAIN, OVER_OUT}},
        {ON_CPU, {33, 576, 1040, F16, 2, false, false, GELU_TANH, OVER_OUT}},
        {ON_BOTH, {29, 700, 300, BF16, 5, true, true, GELU_TANH, OVER_OUT}},
        /* two weight panels on CUDA, of 2,112 and 1,988 columns */
        {ON_CUDA, {2100, 4100, 8, BF16, 0, true, true, PLAIN, OVER_OUT}},
        {ON_CUDA, {2100, 4100, 5, F16, 1, true, false, GELU_TANH, NO_RESIDUAL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].on & ops_on) case_linear(cases[i].c);
}

void test_linear_few(void **state) {
    static const struct linear_case cases[] = {
        {1, 1, 1, F32, 0, false, .activation = PLAIN},
        {9, 7, 100, F16, 3, true, .activation = SILU},
        {1, 500, 256, BF16, 0, true, .activation = SILU},
        {9, 77, 1000, F16, 3, true, .activation = PLAIN},
        {40, 64, 3840, F32, 0, false, .activation = SILU},
        {3, 50, 768, BF16, 5, true, .activation = GELU_TANH},
        {3, 50, 768, F16, 0, true, .activation = GELU_QUICK},
        {2, 50, 320, BF16, 0, true, .activation = GELU_ERF},
        {2, 15360, 256, BF16, 0, true, .activation = SILU},
    };
    for (size_t i = 0; i < (ops_on == ON_TSAN ? 2 : sizeof cases / sizeof *cases); i++)
        case_linear_few(cases[i]);
}

void test_attention(void **state) {
    static const struct {
        int on;
        struct attention_case c; /* t, s, heads, key_heads, d, gap, causal, in_place, scale */
    } cases[] = {
        {ON_ALL, {1, 1, 1, 1, 20, 0, false, false, 0.2f}},
        {ON_ALL, {20, 20, 3, 3, 16, 0, false, false, -0.5f}},
        {ON_CUDA | ON_TSAN, {5, 30, 2, 1, 64, 0, true, true, 0.125f}},
        {ON_CUDA | ON_TSAN, {70, 33, 1, 1, 7, 4, false, true, 3}},
        {ON_BOTH, {128, 128, 2, 2, 128, 0, false, true, 0.09f}},
        {ON_BOTH, {130, 77, 4, 2, 40, 8, false, true, 0.15f}},
        {ON_BOTH, {300, 300, 6, 2, 20, 4, true, false, 0.3f}},
        {ON_BOTH, {5, 300, 2, 1, 64, 0, true, true, 0.125f}},
        {ON_BOTH, {64, 64, 1, 1, 512, 0, false, false, 0.04f}},
        {ON_BOTH, {257, 400, 1, 1, 7, 0, false, true, 3}},
        {ON_BOTH, {129, 513, 1, 1, 33, 1, false, false, 1}},
        {ON_CUDA, {5, 37, 38, 38, 64, 0, false, true, 0.125f}},
        {ON_CPU, {64, 64, 4, 4, 80, 0, false, true, 0.11f}},
        {ON_CPU, {2, 32760, 1, 1, 128, 0, false, false, 0.09f}},
        {ON_CPU, {40, 70, 1, 1, 640, 0, false, true, 0.04f}},
        {ON_CPU, {33, 35, 1, 1, 1024, 3, false, true, 0.03f}},
        {ON_CPU, {37, 41, 1, 1, 1152, 3, false, true, 0.03f}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int biased = 0; biased < 2 && cases[i].on & ops_on; biased++) case_attention(cases[i].c, biased);
}

void test_norms(void **state) {
    static const struct rms_case rms[] = {
        {1, 1, 1, F32, 0, false, false, PLAIN},      {5, 20, 6, BF16, 5, false, true, PLAIN},
        {3, 256, 1, BF16, 0, true, false, PLAIN},    {5, 96, 1, BF16, 0, false, true, SILU},
        {3, 37, 1, BF16, 1, false, false, GELU_ERF}, {40, 128, 30, BF16, 0, false, true, PLAIN},
        {7, 1001, 1, F16, 3, true, false, PLAIN},    {5, 1024, 1, BF16, 0, false, false, SILU},
        {9, 3840, 1, BF16, 0, true, false, PLAIN},   {2, 20000, 1, F32, 0, false, false, PLAIN},
        {300, 64, 3, F16, 0, false, true, PLAIN},    {2, 5120, 1, BF16, 0, false, false, PLAIN},
    };
    bool small = ops_on == ON_TSAN;
    case_rms_zero_centered((struct rms_case){5, 44, 3, BF16, 4, false, true, PLAIN}, true);
    case_rms_zero_centered((struct rms_case){3, 37, 1, BF16, 1, true, false, PLAIN}, false);
    for (size_t i = 0; i < (small ? 5 : sizeof rms / sizeof *rms); i++) case_rms_norm(rms[i]);
    case_affine(1, 3, 0, 0, false);
    case_affine(5, 333, 3, WITH_SCALE, true);
    for (int with = 0; with < 16; with++) case_affine(3, 77 + with, with % 3, with, with % 2);
    case_group_norm(1, 1, 4, 2, false);
    case_group_norm(5, 7, 36, 4, true);
    case_group_norm(300, 1, 2, 1, false); /* more rows than one thread block of group norm sums */
    if (small) return;
    case_rms_zero_centered((struct rms_case){2, 6144, 1, F32, 0, false, false, SILU}, true);
    case_rms_zero_centered((struct rms_case){40, 128, 20, BF16, 0, false, true, PLAIN}, false);
    case_affine(50, 333, 3, WITH_SCALE, true);
    case_affine(2, 5120, 0, WITH_SCALE, false);
    case_affine(9, 3840, 0, WITH_SCALE, false);
    case_affine(2, 17001, 0, 0, true);
    case_affine(2, 17001, 0, WITH_WEIGHT | WITH_BIAS, true);
    case_affine(5, 3072, 0, WITH_SCALE | WITH_SHIFT, false);
    case_group_norm(64, 40, 128, 32, false);
    case_group_norm(30, 300, 6, 1, false);
    case_group_norm(9, 13, 512, 32, true);
}

void test_rope(void **state) {
    static const struct rope_case cases[] = {
        {1, 1, 2, 0, ROPE_HALVES, false, F32, true},
        {7, 5, 20, 4, ROPE_INTERLEAVED, false, F32, true},
        {7, 2, 36, 2, ROPE_HALVES, true, F32, true},
        {3, 3, 24, 0, ROPE_HALVES, true, F16, false},
        {3, 3, 26, 0, ROPE_INTERLEAVED, true, BF16, false},
        {33, 5, 20, 4, ROPE_INTERLEAVED, true, F32, false},
        {20, 2, 36, 2, ROPE_HALVES, false, F32, false},
        {7, 3, 60, 1, ROPE_INTERLEAVED, true, F16, false},
        {33, 3, 128, 0, ROPE_HALVES, true, BF16, true},
        {33, 30, 128, 0, ROPE_INTERLEAVED, true, BF16, false},
        {5, 2, 512, 0, ROPE_HALVES, true, BF16, false},
        {5, 3, 276, 0, ROPE_HALVES, true, F32, false},
        {9, 1, 334, 1, ROPE_INTERLEAVED, true, F32, true},
    };
    bool small = ops_on == ON_TSAN;
    for (size_t i = 0; i < (small ? 5 : sizeof cases / sizeof *cases); i++) case_rope(cases[i]);
    case_rope_zero_centered((struct rope_case){6, 3, 40, 2, ROPE_INTERLEAVED, true, BF16, false});
    case_rope_zero_centered((struct rope_case){6, 3, 40, 1, ROPE_HALVES, true, F32, true});
    case_timestep(2, 0, TIMESTEP_USUAL);
    case_timestep(256, 999.5f, TIMESTEP_USUAL);
    case_timestep(256, 6500.25f, TIMESTEP_TO_END);
    case_timestep(256, 0.9767442f, TIMESTEP_OF_SIGMA);
    case_rope_tables(small ? 1 : ROPE_TABLES);
}

void test_elementwise(void **state) {
    for (int place = 0; place < 3; place++) {
        case_glu(11, 77, 5, place, SILU);
        case_glu(5, 130, 3, place, GELU_TANH);
        case_glu(9, 33, 0, place, GELU_QUICK);
        case_glu(7, 65, 2, place, GELU_ERF);
        case_glu(6, 51, 1, place, RELU);
        case_glu(8, 49, 1, place, SIGMOID);
        case_add(7, 45, F32, 2, false, place);
        case_add_scaled(7, 45, F32, 2, false, place, 0.7f);
    }
    case_glu(1, 1, 0, 0, SILU);
    if (ops_on == ON_CPU) case_glu(4, 19, 1, 0, PLAIN);
    case_add(1, 1, F16, 0, true, 0);
    case_add(9, 77, BF16, 0, true, 1);
    case_add(9, 77, BF16, 3, false, 1);
    case_add(6, 20, F16, 1, false, 0);
    case_add(6, 33, F32, 4, true, 0);
    case_add_scaled(9, 77, BF16, 0, true, 1, -1.3f);
    case_relative_bias(1, 1, 4, 2, F32, 0);
    case_relative_bias(77, 5, 32, 128, BF16, 3);
    case_add_positions((struct position_grid){1, 1, 1, {0}}, 1, F32, 0, false);
    case_add_positions((struct position_grid){5, 3, 7, {0}}, 33, F16, 3, false);
    case_add_positions((struct position_grid){4, 10, 6, {0, 2}}, 12, BF16, 0, true);
    case_copy(5, 33, F16, 3);
    case_copy(5, 33, BF16, 0);
    case_copy(1, 7, F32, 0);
    case_patch_orders(16, 8, 12, 2, 3);
    case_patch_orders(3, 5, 1, 1, 0);
    case_patchify(
        3, 6, 10,
        (struct patches){.side = 3, .order = PATCH_CHANNELS_FIRST, .pixels = true, .token_order = {4, 2}}, 0);
    case_shortcuts();
    case_picture(3, 7, 9);
    case_picture(16, 1, 1);
    if (ops_on == ON_TSAN) return;
    case_glu(3, 10240, 0, 0, GELU_TANH);
    case_add(6, 200, F16, 1, false, 0);
    case_add(40, 2560, BF16, 0, true, 1);
    case_relative_bias(600, 3, 16, 1000, F16, 0);
    case_relative_bias(600, 3, 128, 1000, F16, 0); /* 600 x 1000 values of bias take two launches */
    case_add_positions((struct position_grid){16, 12, 20, {0, 2}}, 1160, BF16, 0, true);
    case_copy(40, 2560, BF16, 0);
    case_patch_orders(16, 64, 48, 2, 0);
    case_token_orders();
    case_picture(3, 100, 130);
    case_picture(RGBA, 33, 50);
}

void test_rgb_rounding(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(1, 86, 3), 0, 1);
    struct tensor out = tensor_make(operand_memory(258), DTYPE_U8, SHAPE(1, 86, 3));
    float *value = in.data;
    for (int i = 0; i < 258; i++) value[i] = 2 * ((float)i + 0.5f) / 255 - 1;
    value[255] = -1.01f, value[256] = NAN, value[257] = INFINITY;
    op_image_to_rgb(&x, out, in);
    const uint8_t *rgb = out.data;
    int ties = 0;
    for (int i = 0; i < 255; i++) {
        float scaled = 255 * (value[i] / 2 + 0.5f);
        ties += scaled == (float)i + 0.5f;
        assert_int_equal(rgb[i], (int)nearbyint((double)scaled));
    }
    assert_true(ties > 100);
    assert_true(rgb[255] == 0 && rgb[256] == 0 && rgb[257] == 255);
}

void test_conv(void **state) {
    static const struct conv_case cases[] = {
        {1, 1, 3, 16, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {8, 8, 16, 3, 3, BF16, 1, 4, SILU, true, NO_RESIDUAL},
        {5, 9, 4, 20, 1, F16, 1, 0, PLAIN, false, APART},
        {6, 7, 10, 12, 3, BF16, 2, PIXEL_NORM, SILU, true, OVER_OUT},
        {1, 1, 1, 1, 3, F32, 2, PIXEL_NORM, PLAIN, false, NO_RESIDUAL},
        {12, 7, 20, 36, 3, BF16, 2, 0, PLAIN, true, OVER_OUT},
        {6, 5, 36, 20, 3, F32, 1, 2, SILU, false, OVER_OUT},
        {9, 600, 8, 4, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {37, 300, 8, 8, 3, F32, 1, 4, SILU, true, APART},        /* bands of output rows: 27 and 10 */
        {9, 3000, 3, 3, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL}, /* bands of output rows: 4, 4, 1 */
        {16, 16, 128, 128, 3, BF16, 1, 32, SILU, true, OVER_OUT},
        {4, 6, 512, 512, 1, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {6, 4, 512, 3, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {6, 4, 4, 512, 3, F32, 2, 0, PLAIN, true, NO_RESIDUAL},
        /* first convolution of an inpainting UNet */
        {5, 3, 9, 320, 3, F16, 1, 0, PLAIN, true, NO_RESIDUAL},
        {5, 3, 320, 4, 3, F16, 1, 32, SILU, true, NO_RESIDUAL},
        /* pooled branch of a tiny decoder */
        {5, 7, 48, 12, 1, BF16, 1, 4, RELU, false, OVER_OUT},
        {5, 9, 96, 16, 3, BF16, 1, PIXEL_NORM, SILU, true, OVER_OUT},
        {4, 3, 384, 12, 1, F32, 1, PIXEL_NORM, PLAIN, true, NO_RESIDUAL},
        /* 609 columns: on CUDA several warps share a row */
        {3, 2, 609, 8, 1, F16, 1, PIXEL_NORM, SILU, false, NO_RESIDUAL},
        /* on CUDA a row of 8200 columns does not fit in registers and is read again */
        {1, 2, 8200, 8, 1, F32, 1, PIXEL_NORM, PLAIN, true, NO_RESIDUAL},
        {37, 300, 3, 8, 3, F32, 1, PIXEL_NORM, SILU, true, APART},
        {8, 9, 3, 8, 3, F16, 1, PIXEL_NORM, SILU, true, NO_RESIDUAL},
    };
    for (size_t i = 0; i < (ops_on == ON_TSAN ? 4 : sizeof cases / sizeof *cases); i++)
        case_conv(cases[i], (struct conv_options){0});
}

void test_conv_finish(void **state) {
    bool small = ops_on == ON_TSAN;
    struct conv_case c = {small ? 3 : 19, small ? 5 : 600, 8, 16, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL};
    const struct conv_options relu = {.finish = FINISH_RELU}, of_unit = {.finish = FINISH_TO_SIGNED};
    case_conv(c, relu);
    case_conv(c, of_unit);
    c.n = 3;
    case_conv(c, of_unit);
    c.residual = APART;
    case_conv(c, relu);
}

/* The layers of upscalers: leaky ReLU and PReLU, a scaled residual, and the columns of a dense block. */
void test_conv_dense(void **state) {
    bool small = ops_on == ON_TSAN;
    struct conv_case c = {small ? 3 : 19, small ? 5 : 600, 8, 16, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL};
    const struct conv_options leaky = {.finish = FINISH_LEAKY_RELU, .slope = 0.2f},
                              prelu = {.finish = FINISH_PRELU}, scaled = {.scale = 0.2f};
    case_conv(c, leaky);
    case_conv(c, prelu);
    c.dtype = BF16, c.n = 5;
    case_conv(c, prelu);
    case_conv(c, leaky);
    case_conv_columns(c, leaky);
    c.n = 16, c.bias = false;
    case_conv_columns(c, leaky);
    c.residual = APART;
    case_conv_columns(c, scaled);
    c.residual = OVER_OUT, c.rows = 5, c.columns = 7;
    case_conv_columns(c, scaled);
    case_conv(c, scaled);
}

void test_conv_cut(void **state) {
    bool small = ops_on == ON_TSAN;
    const struct conv_options both = {.cut_row = true, .cut_column = true};
    struct conv_case c = {5, 4, 12, 20, 3, BF16, 2, 0, PLAIN, true, NO_RESIDUAL};
    case_conv(c, (struct conv_options){.cut_row = true});
    case_conv(c, (struct conv_options){.cut_column = true});
    case_conv(c, both);
    c = (struct conv_case){1, 1, 8, 8, 3, F32, 2, 0, PLAIN, false, OVER_OUT};
    case_conv(c, both); /* upsampling and cropping leave one pixel */
    c = (struct conv_case){small ? 3 : 19, small ? 5 : 300, 8, 8, 3, F32, 2, 4, SILU, true, APART};
    case_conv(c, both); /* bands of 13 output rows, the last one cropped */
}

void test_conv_strided(void **state) {
    static const struct conv_case cases[] = {
        {2, 2, 3, 16, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {8, 6, 16, 3, 3, BF16, 1, 0, SILU, true, NO_RESIDUAL},
        {38, 300, 8, 8, 3, F16, 1, 0, PLAIN, false, NO_RESIDUAL},
        /* bands of output rows: 5, 5, 5 and 2 */
        {34, 1500, 5, 12, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
        {20, 12, 128, 128, 3, BF16, 1, 0, PLAIN, true, NO_RESIDUAL},
        {4, 6, 4, 512, 3, F32, 1, 0, PLAIN, true, NO_RESIDUAL},
    };
    for (size_t i = 0; i < (ops_on == ON_TSAN ? 2 : sizeof cases / sizeof *cases); i++) {
        case_conv(cases[i], (struct conv_options){.stride = 2});
        /* even and odd numbers of rows and columns; CUDA takes one combination a case */
        for (size_t odd = 0; odd < 4; odd++) {
            struct conv_case c = cases[i];
            c.columns -= odd & 1;
            c.rows -= odd >> 1;
            if (ops_on == ON_CPU || odd == i % 4)
                case_conv(c, (struct conv_options){.stride = 2, .pad_before = 1});
        }
    }
}

void test_random(void **state) {
    const char *seed = getenv("SEED"), *cases = getenv("CASES");
    uint64_t start = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    uint64_t n = cases ? strtoull(cases, NULL, 10) : (uint64_t)ops_random_cases;
    printf("  SEED=%llu\n", (unsigned long long)start);
    for (uint64_t i = 0; i < n; i++) {
        random_state = start * 1000 + i;
        random_case();
    }
}
