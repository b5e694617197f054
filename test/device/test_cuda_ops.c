/* Operators of the CUDA device, on a GPU or under the emulator, against f64: the cases of
 * test/lib/ops_cases.h with this device's shapes. The reference rounds operands of products to bf16, as the
 * device does; attention may have as little as half the error of the rounded reference; convolutions round to
 * TF32.
 *
 * Environment: EMU_ORDER and EMU_SEED set the emulator's thread order, SEED repeats random cases, CASES is
 * their number, ONLY and SKIP are patterns of test names. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"

#include "test/lib/ops_adapted.h"
#include "test/lib/ops_cases.h"

#include <time.h>

/* Under ThreadSanitizer barriers are 100 times slower, so shapes have only 2 to 8 thread blocks. */
#ifdef __SANITIZE_THREAD__
enum { SMALL = 1, RANDOM_CASES = 0, ROWS_ALIKE = 20, PICTURES = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL = 0, RANDOM_CASES = 40, ROWS_ALIKE = 70, PICTURES = 6 };
#else
enum { SMALL = 0, RANDOM_CASES = 100, ROWS_ALIKE = 130, PICTURES = 12 };
#endif

/* Largest errors of each operator, measured under the emulator. Tensor cores of GPUs truncate sums, so
 * products may have 20 times the error (2e-5 for K = 10240). */
struct op_error op_errors[N_OP_KINDS] = {
    [OP_LINEAR] = {1e-05, 0},     [OP_LINEAR_FEW] = {3e-07, 0},      [OP_ATTENTION] = {7e-03, 0},
    [OP_RMS_NORM] = {1e-07, 0},   [OP_LAYER_NORM] = {1.1e-07, 0},    [OP_GROUP_STATISTICS] = {5e-08, 0},
    [OP_GROUP_NORM] = {1e-07, 0}, [OP_ROPE_TABLE] = {5e-08, 0},      [OP_ROPE] = {1e-07, 0},
    [OP_GLU] = {1e-07, 0},        [OP_UNPATCHIFY] = {2.7e-08, 0},    [OP_TIMESTEP] = {5e-08, 0},
    [OP_CONV2D] = {7e-04, 0},     [OP_LATENT_TO_IMAGE] = {5e-08, 0}, [OP_ADD] = {3e-08, 0},
    [OP_MEAN_DOWN] = {5e-08, 0},
};

static void test_linear(void **state) {
    (void)state;
    case_linear(1, 1, 1, DTYPE_F32, 0, false, RESIDUAL_NONE);
    case_linear(7, 36, 20, DTYPE_F16, 0, true, RESIDUAL_APART);
    case_linear(33, 130, 77, DTYPE_F32, 3, false, RESIDUAL_OUT);
    case_linear(5, 40, 64, DTYPE_BF16, 4, true, RESIDUAL_OUT);
    if (SMALL) return;
    case_linear(1, 64, 256, DTYPE_BF16, 0, true, RESIDUAL_NONE);
    case_linear(100, 320, 512, DTYPE_BF16, 0, false, RESIDUAL_OUT);
    case_linear(17, 200, 10240, DTYPE_BF16, 0, true, RESIDUAL_OUT);
    case_linear(5, 200, 10240, DTYPE_F32, 16, true, RESIDUAL_NONE);
    case_linear(300, 512, 300, DTYPE_F32, 0, true, RESIDUAL_NONE);
    case_linear(9, 33, 1001, DTYPE_BF16, 0, false, RESIDUAL_APART); /* unaligned weight rows */
}

/* Products with epilogues; the last two cases have two weight panels (2,112 and 1,988 columns). */
static void test_epilogue(void **state) {
    (void)state;
    static const struct linear_case cases[] = {
        {1, 1, 1, DTYPE_F32, 0, false, true, ACTIVATION_GELU_TANH, RESIDUAL_NONE},
        {7, 36, 20, DTYPE_F16, 0, true, true, ACTIVATION_SILU, RESIDUAL_APART},
        {9, 30, 77, DTYPE_F32, 3, true, false, ACTIVATION_GELU_QUICK, RESIDUAL_OUT},
        {9, 30, 77, DTYPE_F16, 3, true, true, ACTIVATION_GELU_ERF, RESIDUAL_APART},
        {5, 40, 64, DTYPE_BF16, 4, true, true, ACTIVATION_NONE, RESIDUAL_OUT},
        {100, 320, 512, DTYPE_BF16, 0, true, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE},
        {100, 321, 512, DTYPE_BF16, 1, false, true, ACTIVATION_NONE, RESIDUAL_NONE},
        {17, 200, 10240, DTYPE_BF16, 0, true, true, ACTIVATION_NONE, RESIDUAL_OUT},
        {29, 700, 300, DTYPE_BF16, 5, true, true, ACTIVATION_GELU_TANH, RESIDUAL_OUT},
        {2100, 4100, 8, DTYPE_BF16, 0, true, true, ACTIVATION_NONE, RESIDUAL_OUT},
        {2100, 4100, 5, DTYPE_F16, 1, true, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE},
    };
    for (size_t i = 0; i < (SMALL ? 4 : sizeof cases / sizeof *cases); i++) case_epilogue(cases[i]);
}

/* Adapters of parts of fused weights start at unaligned rows; the last case has two panels, and an adapter
 * starts in the second. */
static void test_adapters_match_f64(void **state) {
    (void)state;
    static const struct adapted_case cases[] = {
        {{1, 1, 1, DTYPE_F32, 0, false, false, ACTIVATION_NONE, RESIDUAL_NONE},
         {{1, 0, 1, DTYPE_F32, 1}},
         0,
         0},
        {{7, 36, 20, DTYPE_F16, 1, true, true, ACTIVATION_SILU, RESIDUAL_APART},
         {{4, 0, 36, DTYPE_F16, 0.8f}},
         0,
         0},
        {{9, 60, 77, DTYPE_F32, 3, true, false, ACTIVATION_NONE, RESIDUAL_OUT},
         {{5, 0, 21, DTYPE_F32, 1}, {3, 21, 30, DTYPE_BF16, -0.5f}, {16, 51, 9, DTYPE_BF16, 1}},
         10,
         45},
        {{5, 40, 64, DTYPE_BF16, 4, false, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE},
         {{16, 0, 40, DTYPE_BF16, 1}, {64, 0, 40, DTYPE_BF16, 0.3f}},
         0,
         0},
        {{2100, 4100, 8, DTYPE_BF16, 0, true, true, ACTIVATION_NONE, RESIDUAL_OUT},
         {{4, 0, 4100, DTYPE_BF16, 1}, {8, 3000, 1000, DTYPE_F32, 0.5f}},
         0,
         0},
    };
    low_rank_rounded = true;
    for (size_t i = 0; i < (SMALL ? 4 : sizeof cases / sizeof *cases); i++) case_adapted(&cases[i]);
    for (size_t i = 0; i < 4; i++) case_adapted_few(&cases[i]);
}

/* Products of Z-Image with few tokens; the weights of the last one take several panels. */
static void test_linear_of_families(void **state) {
    (void)state;
    if (SMALL) return;
    case_linear(5, 3840, 1024, DTYPE_BF16, 0, false, RESIDUAL_OUT);
    case_linear(2, 1024, 3840, DTYPE_F16, 0, true, RESIDUAL_NONE);
    case_linear(3, 10240, PICTURES < 12 ? 768 : 3840, DTYPE_BF16, 0, false, RESIDUAL_NONE);
    case_linear(2, 3500, 10240, DTYPE_F16, 0, true, RESIDUAL_APART);
}

static void test_linear_few(void **state) {
    (void)state;
    case_linear_few(1, 1, 1, DTYPE_F32, 0, false, false);
    case_linear_few(9, 7, 100, DTYPE_F16, 3, true, true);
    if (SMALL) return;
    case_linear_few(1, 500, 256, DTYPE_BF16, 0, true, true);
    case_linear_few(9, 77, 1000, DTYPE_F16, 3, true, false);
    case_linear_few(40, 64, 3840, DTYPE_F32, 0, false, true);
    case_linear_few(3, 50, 768, DTYPE_BF16, 5, true, ACTIVATION_GELU_TANH);
    case_linear_few(3, 50, 768, DTYPE_F16, 0, true, ACTIVATION_GELU_QUICK);
    case_linear_few(2, 50, 320, DTYPE_BF16, 0, true, ACTIVATION_GELU_ERF);
    case_linear_few(2, 15360, 256, DTYPE_BF16, 0, true, true);
}

static void test_rows_alike(void **state) {
    (void)state;
    static const int32_t sizes[] = {127, 256, 257, 1000, 1024, 3840};
    for (int32_t k = 1; k <= (SMALL ? 3 : 40); k += k < 20 ? 1 : 5)
        case_rows_alike(k, (enum dtype)(k % 3), k % 2, ROWS_ALIKE);
    for (int i = 0; i < (SMALL ? 1 : 6); i++) case_rows_alike(sizes[i], DTYPE_BF16, i % 2, ROWS_ALIKE / 2);
}

static void test_attention(void **state) {
    (void)state;
    static const struct attention_case cases[] = {
        {1, 1, 1, 1, 20, 0, false, false, 0.2f},      {5, 30, 2, 1, 64, 0, true, true, 0.125f},
        {20, 20, 3, 3, 16, 0, false, false, -0.5f},   {70, 33, 1, 1, 7, 4, false, true, 3},
        {128, 128, 2, 2, 128, 0, false, true, 0.09f}, {130, 77, 4, 2, 40, 8, false, true, 0.15f},
        {300, 300, 6, 2, 20, 4, true, false, 0.3f},   {5, 300, 2, 1, 64, 0, true, true, 0.125f},
        {64, 64, 1, 1, 512, 0, false, false, 0.04f},  {257, 400, 1, 1, 7, 0, false, true, 3},
        {129, 513, 1, 1, 33, 1, false, false, 1},     {5, 37, 38, 38, 64, 0, false, true, 0.125f},
    };
    for (size_t i = 0; i < (SMALL ? 4 : sizeof cases / sizeof *cases); i++) {
        case_attention(cases[i]);
        case_attention_biased(cases[i]);
    }
}

/* Tests attention with every head size that has its own tile size, with the head sizes of the families, and
 * with neighbouring sizes. */
static void test_head_sizes(void **state) {
    (void)state;
    static const int32_t sizes[] = {1,   8,   15,  16,  17,  24,  31,  32,  40,  48,  49,
                                    64,  65,  72,  80,  96,  100, 112, 120, 128, 129, 160,
                                    161, 192, 200, 256, 257, 384, 500, 512, 640, 641, 1024};
    static const int32_t few[] = {40, 80, 128, 160, 384, 640, 1024};
    int n = SMALL ? 7 : (int)(sizeof sizes / sizeof *sizes);
    for (int i = 0; i < n; i++) {
        int32_t d = SMALL ? few[i] : sizes[i], t = SMALL ? 3 + i : 50 + 11 * (i % 4), s = t + (i % 3) * 13;
        if (d == 384 || d == 512 || d == 160) s = t + (SMALL ? 13 : 60);
        attention_case((struct attention_case){t, s, 2, 1 + i % 2, d, i % 2 * 4, i % 3 == 1, i % 4 == 3,
                                               1 / sqrtf((float)d)},
                       i % 5 < 2);
    }
}

/* Attention with one token, with one key, and with scores so far apart that one key gets all the weight. */
static void test_attention_edges(void **state) {
    (void)state;
    case_attention((struct attention_case){1, 1, 2, 2, 64, 0, true, false, 0.125f});
    case_attention((struct attention_case){1, SMALL ? 20 : 200, 4, 2, 40, 0, true, false, 0.15f});
    case_attention((struct attention_case){SMALL ? 5 : 90, 1, 2, 1, 80, 4, false, true, 0.1f});
    case_attention((struct attention_case){SMALL ? 4 : 65, SMALL ? 9 : 65, 1, 1, 96, 0, true, false, 2});
}

static void test_norms(void **state) {
    (void)state;
    case_rms_norm(1, 1, 1, DTYPE_F32, 0, false, false);
    case_rms_norm(5, 20, 6, DTYPE_BF16, 5, false, true);
    case_rms_norm(3, 256, 1, DTYPE_BF16, 0, true, false);
    case_normed_activation(5, 96, 0, ACTIVATION_SILU, true);
    case_normed_activation(3, 37, 1, ACTIVATION_GELU_ERF, false);
    case_layer_norm(1, 3, 0, false, false);
    case_layer_norm(5, 333, 3, true, true);
    for (int with = 0; with < 16; with++) case_affine(3, 77 + with, with % 3, with, with % 2);
    case_group_norm(1, 1, 4, 2, false);
    case_group_norm(5, 7, 36, 4, true);
    case_group_norm(300, 1, 2, 1, false); /* more rows than one thread block of group norm sums */
    if (SMALL) return;
    case_rms_norm(40, 128, 30, DTYPE_BF16, 0, false, true);
    case_rms_norm(7, 1001, 1, DTYPE_F16, 3, true, false);
    case_rms_norm(9, 3840, 1, DTYPE_BF16, 0, true, false);
    case_rms_norm(2, 20000, 1, DTYPE_F32, 0, false, false);
    case_rms_norm(300, 64, 3, DTYPE_F16, 0, false, true);
    case_layer_norm(50, 333, 3, true, true);
    case_rms_norm(2, 5120, 1, DTYPE_BF16, 0, false, false);
    case_layer_norm(2, 5120, 0, true, false);
    case_layer_norm(9, 3840, 0, true, false);
    case_layer_norm(2, 17001, 0, false, true);
    case_affine(2, 17001, 0, WITH_WEIGHT | WITH_BIAS, true);
    case_affine(5, 3072, 0, WITH_SCALE | WITH_SHIFT, false);
    case_group_norm(64, 40, 128, 32, false);
    case_group_norm(30, 300, 6, 1, false);
    case_group_norm(9, 13, 512, 32, true);
}

static void test_rope(void **state) {
    (void)state;
    static const struct rope_case cases[] = {
        {1, 1, 2, 0, ROPE_HALVES, false, DTYPE_F32, true},
        {7, 5, 20, 4, ROPE_INTERLEAVED, false, DTYPE_F32, true},
        {7, 2, 36, 2, ROPE_HALVES, true, DTYPE_F32, true},
        {3, 3, 24, 0, ROPE_HALVES, true, DTYPE_F16, false},
        {3, 3, 26, 0, ROPE_INTERLEAVED, true, DTYPE_BF16, false},
        {33, 5, 20, 4, ROPE_INTERLEAVED, true, DTYPE_F32, false},
        {33, 3, 128, 0, ROPE_HALVES, true, DTYPE_BF16, true},
        {33, 30, 128, 0, ROPE_INTERLEAVED, true, DTYPE_BF16, false},
        {5, 2, 512, 0, ROPE_HALVES, true, DTYPE_BF16, false},
        {5, 3, 276, 0, ROPE_HALVES, true, DTYPE_F32, false},
        {9, 1, 334, 1, ROPE_INTERLEAVED, true, DTYPE_F32, true},
    };
    for (int i = 0; i < 5; i++) case_rope(cases[i]);
    case_timestep(2, 0, TIMESTEP_USUAL);
    case_timestep(256, 999.5f, TIMESTEP_USUAL);
    case_timestep(256, 6500.25f, TIMESTEP_TO_END);
    case_timestep(256, 0.9767442f, TIMESTEP_OF_SIGMA);
    case_rope_grids();
    if (SMALL) return;
    case_rope_kinds();
    case_rope_published();
    for (size_t i = 5; i < sizeof cases / sizeof *cases; i++) case_rope(cases[i]);
}

static void test_elementwise(void **state) {
    (void)state;
    for (int place = 0; place < 3; place++) {
        case_glu(11, 77, 5, place, ACTIVATION_SILU);
        case_glu(5, 130, 3, place, ACTIVATION_GELU_TANH);
        case_glu(9, 33, 0, place, ACTIVATION_GELU_QUICK);
        case_glu(7, 65, 2, place, ACTIVATION_GELU_ERF);
        case_add(7, 45, DTYPE_F32, 2, false, place);
    }
    case_glu(1, 1, 0, 0, ACTIVATION_SILU);
    case_add(1, 1, DTYPE_F16, 0, true, 0);
    case_add(9, 77, DTYPE_BF16, 0, true, 1);
    case_add(6, 20, DTYPE_F16, 1, false, 0);
    case_relative_bias(1, 1, 4, 2, DTYPE_F32, 0);
    case_relative_bias(77, 5, 32, 128, DTYPE_BF16, 3);
    case_copy(5, 33, DTYPE_F16, 3);
    case_copy(5, 33, DTYPE_BF16, 0);
    case_copy(1, 7, DTYPE_F32, 0);
    case_patchify(16, 8, 12, 2, 3);
    case_patchify(3, 5, 1, 1, 0);
    case_walk(3, 6, 10, (struct patches){.side = 3, .order = PATCH_CHANNELS_FIRST, .token_order = {4, 2}}, 0);
    case_shortcuts();
    case_picture(3, 7, 9);
    case_picture(16, 1, 1);
    if (SMALL) return;
    case_glu(3, 10240, 0, 0, ACTIVATION_GELU_TANH);
    case_add(40, 2560, DTYPE_BF16, 0, true, 1);
    case_relative_bias(600, 3, 128, 1000, DTYPE_F16, 0); /* 600 x 1000 values of bias take two launches */
    case_copy(40, 2560, DTYPE_BF16, 0);
    case_patchify(16, 64, 48, 2, 0);
    case_walks();
    case_picture(3, 100, 130);
}

static void test_conv(void **state) {
    (void)state;
    static const struct conv_case cases[] = {
        {1, 1, 3, 16, 3, DTYPE_F32, 1, 0, false, true, RESIDUAL_NONE},
        {8, 8, 16, 3, 3, DTYPE_BF16, 1, 4, true, true, RESIDUAL_NONE},
        {5, 9, 4, 20, 1, DTYPE_F16, 1, 0, false, false, RESIDUAL_APART},
        {6, 7, 10, 12, 3, DTYPE_BF16, 2, PIXEL_NORM, ACTIVATION_SILU, true, RESIDUAL_OUT},
        {12, 7, 20, 36, 3, DTYPE_BF16, 2, 0, false, true, RESIDUAL_OUT},
        {6, 5, 36, 20, 3, DTYPE_F32, 1, 2, true, false, RESIDUAL_OUT},
        {37, 300, 8, 8, 3, DTYPE_F32, 1, 4, true, true, RESIDUAL_APART}, /* bands of output rows: 27 and 10 */
        {9, 3000, 3, 3, 3, DTYPE_F32, 1, 0, false, true, RESIDUAL_NONE}, /* bands of output rows: 4, 4, 1 */
        {16, 16, 128, 128, 3, DTYPE_BF16, 1, 32, true, true, RESIDUAL_OUT},
        {4, 6, 512, 512, 1, DTYPE_F32, 1, 0, false, true, RESIDUAL_NONE},
        {6, 4, 512, 3, 3, DTYPE_F32, 1, 0, false, true, RESIDUAL_NONE},
        {6, 4, 4, 512, 3, DTYPE_F32, 2, 0, false, true, RESIDUAL_NONE},
        /* first convolution of an inpainting UNet */
        {5, 3, 9, 320, 3, DTYPE_F16, 1, 0, false, true, RESIDUAL_NONE},
        {5, 3, 320, 4, 3, DTYPE_F16, 1, 32, true, true, RESIDUAL_NONE},
        {5, 9, 96, 16, 3, DTYPE_BF16, 1, PIXEL_NORM, ACTIVATION_SILU, true, RESIDUAL_OUT},
        {4, 3, 384, 12, 1, DTYPE_F32, 1, PIXEL_NORM, ACTIVATION_NONE, true, RESIDUAL_NONE},
        /* 609 columns: several warps share a row */
        {3, 2, 609, 8, 1, DTYPE_F16, 1, PIXEL_NORM, ACTIVATION_SILU, false, RESIDUAL_NONE},
        /* a row of 8200 columns does not fit in registers and is read again */
        {1, 2, 8200, 8, 1, DTYPE_F32, 1, PIXEL_NORM, ACTIVATION_NONE, true, RESIDUAL_NONE},
        {37, 300, 3, 8, 3, DTYPE_F32, 1, PIXEL_NORM, ACTIVATION_SILU, true, RESIDUAL_APART},
    };
    for (size_t i = 0; i < (SMALL ? 4 : sizeof cases / sizeof *cases); i++) case_conv(cases[i]);
}

/* Convolutions with and without epilogue, padding and residual, in bands of rows, with a short last band. */
static void test_conv_finish(void **state) {
    (void)state;
    struct conv_case c = {SMALL ? 3 : 19, SMALL ? 5 : 300, 8, 16, 3, DTYPE_F32, 1, 0, ACTIVATION_NONE,
                          true,           RESIDUAL_NONE};
    const struct conv_options relu = {.finish = FINISH_RELU}, of_unit = {.finish = FINISH_TO_SIGNED};
    case_conv_sized(c, relu);
    case_conv_sized(c, of_unit);
    c.n = 3;
    case_conv_sized(c, of_unit);
    c.residual = RESIDUAL_APART;
    case_conv_sized(c, relu);
}

/* Upsampling is cropped to odd sizes: the convolution reads zeros beyond the crop. */
static void test_conv_cut(void **state) {
    (void)state;
    struct conv_case c = {5, 4, 12, 20, 3, DTYPE_BF16, 2, 0, ACTIVATION_NONE, true, RESIDUAL_NONE};
    case_conv_sized(c, (struct conv_options){.cut_row = true});
    case_conv_sized(c, (struct conv_options){.cut_column = true});
    c = (struct conv_case){SMALL ? 3 : 19, SMALL ? 5 : 300, 8, 8, 3, DTYPE_F32, 2, 4, ACTIVATION_SILU,
                           true,           RESIDUAL_APART};
    /* several bands of at most 13 output rows */
    case_conv_sized(c, (struct conv_options){.cut_row = true, .cut_column = true});
}

/* Convolutions must round operands to TF32: more exact results would come from a slow cuDNN algorithm. */
static void test_conv_is_tf32(void **state) {
    (void)state;
    if (!SMALL) assert_true(op_errors[OP_CONV2D].measured > 1e-5);
}

static void test_conv_strided(void **state) {
    (void)state;
    static const struct conv_case cases[] = {
        {2, 2, 3, 16, 3, DTYPE_F32, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
        {8, 6, 16, 3, 3, DTYPE_BF16, 1, 0, ACTIVATION_SILU, true, RESIDUAL_NONE},
        {38, 300, 8, 8, 3, DTYPE_F16, 1, 0, ACTIVATION_NONE, false, RESIDUAL_NONE},
        /* bands of 5 output rows, the last one of 2 */
        {34, 1500, 5, 12, 3, DTYPE_F32, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
        {20, 12, 128, 128, 3, DTYPE_BF16, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
    };
    for (size_t i = 0; i < (SMALL ? 2 : sizeof cases / sizeof *cases); i++) {
        struct conv_case c = cases[i];
        struct conv_options o = {.stride = 2};
        case_conv_sized(c, o);
        o.pad_before = 1;
        c.columns -= i & 1;
        c.rows -= (i >> 1) & 1;
        case_conv_sized(c, o);
    }
}

struct conv {
    struct tensor in, weight, out;
    struct epilogue epilogue;
    struct conv_options options;
};

/* Makes a convolution of an image so wide that it is computed in several bands. */
static struct conv make_conv(int up) {
    static const int32_t channels[] = {3, 4, 8, 10, 16, 24};
    int32_t columns = random_int(SMALL ? 5 : 100, SMALL ? 9 : 1200 / up),
            rows = random_int(1, SMALL ? 6 : 40);
    int32_t k = 1 + 2 * random_bool(), c = channels[random_int(0, 5)], n = channels[random_int(0, 5)];
    case_begin();
    struct conv v = {.in = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 0, 1),
                     .weight = tensor_random(random_dtype(), SHAPE(n, c, k, k), 0, 1),
                     .out = tensor_random(DTYPE_F32, SHAPE(rows * up, columns * up, n), 0, 1),
                     .epilogue.bias = tensor_random(random_dtype(), SHAPE(n), 0, 1),
                     .options = {.upsample = up, .activation = (enum activation)(k / 2)}};
    if (up == 1 && (k == 1 || random_bool()))
        v.options.pixel_norm = (struct pixel_norm){tensor_random(random_dtype(), SHAPE(c), 0, 1), 1e-5f};
    else if (up == 1)
        v.options.norm = (struct group_norm){tensor_random(DTYPE_F32, SHAPE(1, 2), 0, 1),
                                             tensor_random(random_dtype(), SHAPE(c), 0, 1),
                                             tensor_random(DTYPE_F32, SHAPE(c), 0, 1)};
    if (random_bool()) v.epilogue.residual = tensor_random(DTYPE_F32, 3, v.out.dim, 0, 1);
    return v;
}

static void assert_same(const struct tensor *a, const struct tensor *b) {
    assert_no_problem();
    assert_memory_equal(a->data, b->data, (size_t)tensor_bytes(a));
}

/* Any rows of a convolution, computed from the whole input, have the bits of the whole result. */
static void test_conv_pieces(void **state) {
    (void)state;
    for (int i = 0; i < PICTURES; i++) {
        random_state = 100 + (uint64_t)i;
        struct conv c = make_conv(random_int(1, 2));
        struct tensor pieces = tensor_random(DTYPE_F32, 3, c.out.dim, 0, 1);
        op_conv2d(&x, c.out, c.in, c.weight, c.epilogue, c.options);
        for (int32_t y = 0, n; y < c.out.dim[0]; y += n) {
            n = random_int(1, c.out.dim[0] - y < 20 ? c.out.dim[0] - y : 20);
            struct epilogue e = c.epilogue;
            if (e.residual.rank) e.residual = tensor_slice(e.residual, y, n);
            c.options.first_row = y;
            op_conv2d(&x, tensor_slice(pieces, y, n), c.in, c.weight, e, c.options);
        }
        assert_same(&c.out, &pieces);
    }
}

/* A convolution's output may overlap its input or residual if it starts conv_lead bytes before. */
static void test_conv_overlap(void **state) {
    (void)state;
    for (int i = 0; i < PICTURES; i++) {
        random_state = 200 + (uint64_t)i;
        struct conv c = make_conv(random_int(1, 2));
        struct epilogue e = c.epilogue;
        bool residual = e.residual.rank;
        const struct tensor *over = residual ? &c.epilogue.residual : &c.in;
        int halo = residual ? 0 : c.weight.dim[2] / 2, up = residual ? 1 : c.options.upsample;
        int64_t in_row = tensor_bytes(over) / over->dim[0], out_row = tensor_bytes(&c.out) / c.out.dim[0];
        int64_t lead = conv_lead(c.out.dim[0], c.out.dim[1], halo, up, in_row, out_row);
        char *memory = operand_memory((size_t)(lead + tensor_bytes(over) + tensor_bytes(&c.out)));
        struct tensor out = c.out, moved = *over;
        out.data = memory;
        moved.data = memory + lead;
        memcpy(moved.data, over->data, (size_t)tensor_bytes(over));
        if (residual) e.residual = moved;
        op_conv2d(&x, c.out, c.in, c.weight, c.epilogue, c.options);
        op_conv2d(&x, out, residual ? c.in : moved, c.weight, e, c.options);
        assert_same(&c.out, &out);
    }
}

/* With stride 2, a convolution's output may start at its input, also in several bands. */
static void test_conv_strided_overlap(void **state) {
    (void)state;
    for (int i = 0; i < PICTURES; i++) {
        random_state = 250 + (uint64_t)i;
        case_begin();
        int32_t rows = 2 * random_int(1, SMALL ? 3 : 30), columns = 2 * random_int(1, SMALL ? 4 : 800);
        int32_t before = i % 2, c = random_int(1, 9), n = random_int(1, (before ? 2 : 4) * c);
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 0, 1);
        struct tensor weight = tensor_random(random_dtype(), SHAPE(n, c, 3, 3), 0, 1);
        struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows / 2, columns / 2, n), 0, 1), over = out;
        struct conv_options o = {.upsample = 1, .stride = 2, .pad_before = before};
        op_conv2d(&x, out, in, weight, (struct epilogue){0}, o);
        over.data = in.data;
        op_conv2d(&x, over, in, weight, (struct epilogue){0}, o);
        assert_same(&out, &over);
    }
}

static void test_statistics_pieces(void **state) {
    (void)state;
    for (int i = 0; i < PICTURES; i++) {
        random_state = 300 + (uint64_t)i;
        int32_t groups = random_int(1, 8), rows = random_int(1, SMALL ? 5 : 50);
        case_begin();
        struct tensor in = tensor_random(
            DTYPE_F32, SHAPE(rows, random_int(1, SMALL ? 9 : 60), groups * random_int(1, 6)), 0, 1);
        struct tensor whole = tensor_random(DTYPE_F32, SHAPE(groups, 2), 0, 1),
                      pieces = tensor_random(DTYPE_F32, SHAPE(groups, 2), 0, 1);
        struct rows_before before = {.sums = tensor_make(NULL, DTYPE_F64, SHAPE(groups, 2))};
        before.sums.data = operand_memory((size_t)tensor_bytes(&before.sums));
        memset(before.sums.data, 0xff, (size_t)tensor_bytes(&before.sums));
        op_group_statistics(&x, whole, in, (struct rows_before){0}, groups, 1e-6f);
        for (int32_t y = 0, n; y < rows; y += n) {
            n = random_int(1, rows - y);
            before.rows = y;
            op_group_statistics(&x, pieces, tensor_slice(in, y, n), before, groups, 1e-6f);
        }
        assert_same(&whole, &pieces);
    }
}

/* Runs one case of each operator that accepts rows with any stride and alignment. */
static void cases_at(int gap) {
    case_linear_few(5, 9, 132, DTYPE_BF16, gap, true, true);
    case_attention((struct attention_case){9, 21, 2, 1, 48, gap, false, false, 0.1f});
    case_rms_norm(3, 64, 2, DTYPE_BF16, gap, false, true);
    case_rms_norm(3, 516, 1, DTYPE_F16, gap, true, false);
    case_layer_norm(3, 516, gap, true, true);
    case_affine(3, 516, gap, WITH_WEIGHT | WITH_BIAS | WITH_SCALE | WITH_SHIFT, false);
    case_attention_biased((struct attention_case){9, 21, 2, 1, 48, gap, false, false, 0.1f});
    case_rope((struct rope_case){5, 2, 40, gap, ROPE_INTERLEAVED, true, DTYPE_BF16, true});
    case_rope((struct rope_case){5, 2, 40, gap, ROPE_HALVES, true, DTYPE_BF16, false});
    case_glu(3, 136, gap, 0, ACTIVATION_GELU_TANH);
    case_add(3, 136, DTYPE_BF16, gap, false, 0);
    case_add(3, 136, DTYPE_F16, gap, true, 1);
    case_copy(3, 72, DTYPE_BF16, gap);
    case_patchify(4, 4, 8, 2, gap);
    case_normed_activation(3, 516, gap, ACTIVATION_SILU, false);
    case_group_norm(3, 5, 16, 4, false);
    case_picture(4, 5, 8);
}

/* Rule R1 (kernels/README.md): unaligned rows give the same bits as rows read with wide loads. */
static void test_places_alike(void **state) {
    (void)state;
    static const struct { int gap, shift; } places[] = {{0, 0}, {4, 0}, {0, 4}, {3, 8}, {1, 12}};
    uint64_t bits = 0;
    for (int i = 0; i < 5; i++) {
        random_state = 400;
        checker.bits = 0;
        checker.shift = places[i].shift;
        cases_at(places[i].gap);
        checker.shift = 0;
        if (i == 0) bits = checker.bits;
        assert_true(checker.bits == bits);
    }
}

static void test_random(void **state) {
    (void)state;
    const char *seed = getenv("SEED"), *cases = getenv("CASES");
    uint64_t start = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    uint64_t n = cases ? strtoull(cases, NULL, 10) : RANDOM_CASES;
    printf("  SEED=%llu\n", (unsigned long long)start);
    for (uint64_t i = 0; i < n; i++) {
        random_state = start * 1000 + i;
        random_case();
    }
}

static void test_precisions(void **state) {
    (void)state;
    assert_non_null(checker.cuda->unsupported[PRECISION_F32]);
    assert_non_null(checker.cuda->unsupported[PRECISION_F16]);
    assert_null(checker.cuda->unsupported[PRECISION_BF16]);
    for (int i = 0; i < N_PRECISIONS; i++)
        if (checker.cuda->unsupported[i])
            assert_string_equal(checker.cuda->unsupported[i], checker.planned->unsupported[i]);
    assert_true(checker.cuda->overhead_bytes == checker.planned->overhead_bytes);
    assert_true(checker.cuda->host_bytes == checker.planned->host_bytes);
}

/* Running a product that was not prepared is an internal error. */
static void test_unprepared(void **state) {
    (void)state;
    case_begin();
    struct op op = {
        .kind = OP_LINEAR,
        .out = tensor_random(DTYPE_F32, SHAPE(11, 13), 0, 1),
        .in = {tensor_random(DTYPE_F32, SHAPE(11, 19), 0, 1), tensor_random(DTYPE_BF16, SHAPE(13, 19), 0, 1)},
        .precision = PRECISION_BF16};
    struct op moved = op_on_device(&op);
    assert_int_equal(checker.cuda->run(checker.cuda, &moved, checker.workspace, &problem), INTERNAL);
    problem = (struct error){0};
    checker_wait();
}

/* Runs last. Checks that every kernel was loaded before its launch, so that launches take no memory during a
 * run. */
static void test_kernels_were_loaded(void **state) {
    (void)state;
    assert_int_equal(emulated_late_kernels(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precisions),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_epilogue),
        cmocka_unit_test(test_adapters_match_f64),
        cmocka_unit_test(test_linear_of_families),
        cmocka_unit_test(test_linear_few),
        cmocka_unit_test(test_rows_alike),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_attention_edges),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_rgb_rounding),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_cut),
        cmocka_unit_test(test_conv_finish),
        cmocka_unit_test(test_conv_strided),
        cmocka_unit_test(test_conv_strided_overlap),
        cmocka_unit_test(test_conv_pieces),
        cmocka_unit_test(test_conv_overlap),
        cmocka_unit_test(test_statistics_pieces),
        cmocka_unit_test(test_places_alike),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_unprepared),
        cmocka_unit_test(test_kernels_were_loaded),
        cmocka_unit_test(test_conv_is_tf32),
        cmocka_unit_test(test_print_errors),
    };
    const char *only = getenv("ONLY"), *skip = getenv("SKIP");
    if (only) cmocka_set_test_filter(only);
    if (skip) cmocka_set_skip_filter(skip);
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
