/* CPU operators against independent arithmetic in f64, and the guarantees of device.h for every call.
 *
 * All calls go through the checking device of ops_checker.h; a test case only describes operands and expected
 * values. The environment variable SEED repeats a random run. */
#include "test/ops/ops_checker.h"

#include "test/lib/ops_tests.h"

/* Largest errors of each operator, measured with AVX-512, AVX2 and SSE4.1 and two threads. */
struct op_error op_errors[N_OP_KINDS] = {
    [OP_LINEAR] = {6.11e-07, 0},
    [OP_LINEAR_FEW] = {2.99e-07, 0},
    [OP_ATTENTION] = {9.11e-07, 0},
    [OP_RMS_NORM] = {8.2e-08, 0},
    [OP_LAYER_NORM] = {5e-08, 0},
    [OP_GROUP_STATISTICS] = {4.6e-08, 0},
    [OP_GROUP_NORM] = {5.9e-08, 0},
    [OP_ROPE_TABLE] = {1.87e-08, 0},
    [OP_ROPE] = {6e-08, 0},
    [OP_GLU] = {6.8e-08, 0},
    [OP_UNPATCHIFY] = {2.53e-08, 0},
    [OP_TIMESTEP] = {1.93e-08, 0},
    [OP_CONV2D] = {1.12e-06, 0},
    [OP_LATENT_TO_IMAGE] = {4.51e-08, 0},
    [OP_ADD] = {2.88e-08, 0},
    [OP_MEAN_DOWN] = {5e-08, 0},
    [OP_ROPE_AXIS] = {2.1e-08, 0},
    [OP_GROUP_RANGE] = {6e-08, 0},
    [OP_ADD_POSITIONS] = {1.04e-07, 0},
    [OP_MAP] = {1e-07, 0},
    [OP_SNAKE] = {3e-07, 0},
    [OP_SINC_UP] = {1e-07, 0},
};

/* Angles of diffusers 0.42 with PyTorch 2.15 (LTX2AudioVideoRotaryPosEmbed, LTX2RotaryPosEmbed1d), bit for
 * bit. */
static void test_rope_angles_match_diffusers(void **state) {
    static const struct {
        struct rope_axis axis;
        int32_t k, i, n;
        float angle;
    } cases[] = {
        {{10000, 8, -7, 1, 50, 20, false}, 1, 681, 682, -0x1.e5f7120000000p+13f},
        {{10000, 8, -7, 1, 23.976f, 20, false}, 12, 500, 682, -0x1.9fb2ce0000000p+9f},
        {{10000, 8, -7, 1, 24, 20, false}, 15, 681, 682, -0x1.f7254a0000000p+12f},
        {{10000, 8, -7, 1, 25, 20, false}, 7, 340, 682, -0x1.ebc7340000000p+6f},
        {{10000, 8, -7, 1, 23.976f, 20, false}, 7, 681, 682, -0x1.7e5d300000000p+13f},
        {{10000, 32, 0, 1, 1, 2048, false}, 23, 677, 682, -0x1.ee166e0000000p+11f},
        {{10000, 4, -3, 160, 16000, 20, false}, 0, 1023, 1024, -0x1.eaa0de0000000p+13f},
        {{10000, 4, -3, 160, 16000, 20, false}, 1, 1000, 1024, -0x1.8ddcea0000000p+13f},
        {{10000, 4, -3, 160, 16000, 20, false}, 77, 1023, 1024, -0x1.542cf20000000p+13f},
        {{10000, 4, -3, 160, 16000, 20, false}, 125, 777, 1024, -0x1.ad96320000000p+9f},
        {{10000, 1, 0, 1, 1, 4096, true}, 1021, 1919, 1920, -0x1.ec4fdc0000000p+12f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rope_axis *axis = &cases[i].axis;
        float angle =
            rope_axis_position(axis, cases[i].k) * rope_axis_frequency(axis, cases[i].i, cases[i].n);
        assert_true(angle == cases[i].angle);
    }
}

static void test_result_of_row_is_independent(void **state) {
    enum { ROWS = 1000 };
    for (int32_t k = 1; k <= 70; k++) case_rows_alike(k, (enum dtype)(k % 3), (enum activation)(k % 2), ROWS);
    static const int32_t sizes[] = {127, 256, 257, 1000, 1024, 3840};
    for (int i = 0; i < 6; i++) case_rows_alike(sizes[i], DTYPE_BF16, (enum activation)(i % 2), ROWS);
}

/* Bucket limits of T5's relative positions in transformers 5.23 with PyTorch 2.15: first[i] is the smallest
 * distance in bucket i + 1. */
static void test_relative_bias_buckets_match_transformers(void **state) {
    static const struct {
        int32_t n, max;
        int32_t first[31];
    } tables[] = {
        /* 32 buckets up to distance 128, as in T5; distances 16, 32 and 64 are bucket limits */
        {32, 128, {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}},
        {8, 20, {1, 2, 7}},
        {16, 1000, {1, 2, 3, 4, 16, 64, 252}},
        {64, 128, {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                   19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
    };
    for (int i = 0; i < 4; i++)
        for (int32_t d = 0, bucket = 0; d <= 2048; d++) {
            int32_t half = tables[i].n / 2;
            if (bucket < half - 1 && d == tables[i].first[bucket]) bucket++;
            assert_int_equal(distance_bucket(-d, tables[i].n, tables[i].max), bucket);
            if (d > 0) assert_int_equal(distance_bucket(d, tables[i].n, tables[i].max), half + bucket);
        }
    assert_int_equal(distance_bucket(INT32_MIN, 32, 128), 15);
    assert_int_equal(distance_bucket(INT32_MAX, 32, 128), 31);
    /* Relative position distances where f32 arithmetic gives another bucket than exact arithmetic. */
    static const int32_t edges[][4] = {{72, 50, 30, 26},   {72, 392, 84, 26}, {92, 164, 107, 41},
                                       {96, 81, 36, 31},   {96, 81, 54, 39},  {108, 125, 45, 35},
                                       {116, 282, 119, 47}};
    for (int i = 0; i < 7; i++)
        assert_int_equal(distance_bucket(-edges[i][2], edges[i][0], edges[i][1]), edges[i][3]);
}

/* Returns the smallest sufficient lead (distance in bytes from output to input) over all bands of up to
 * `band` rows at any position. */
static int64_t lead_needed(int32_t rows, int32_t band, int halo, int up, int64_t in_row, int64_t out_row) {
    int64_t most = 0;
    for (int32_t end = 1; end <= rows; end++)
        for (int32_t height = 1; height <= band && height <= end; height++) {
            int32_t first = end - height - halo;
            int64_t lead = end * out_row - (first > 0 ? first / up : 0) * in_row;
            if (lead > most) most = lead;
        }
    return most;
}

/* conv_lead (bytes from output to input) is at least the needed lead; only image edges may need less. */
static void test_lead_is_sufficient(void **state) {
    for (int i = 0; i < 400; i++) {
        int up = random_int(1, 2), halo = random_int(0, 2);
        int32_t rows = up * random_int(1, 100), columns = random_int(60, 3000),
                band = conv_band_rows(columns);
        rows -= random_int(0, up - 1); /* the upsampled image may be cropped by a row */
        int64_t in_row = random_int(1, 9), out_row = random_int(1, 9);
        int64_t needed = lead_needed(rows, band, halo, up, in_row, out_row);
        int64_t lead = conv_lead(rows, columns, halo, up, in_row, out_row);
        int64_t edge = ((band < rows ? band : rows) + halo + up) * in_row;
        assert_true(lead >= needed && lead <= needed + edge);
    }
    assert_true(conv_band_rows(1) == 8192 && conv_band_rows(1024) == 8 && conv_band_rows(1 << 14) == 4);
}

/* A convolution with so many weights that panels of outputs are repacked one after another. */
static void test_conv_panels(void **state) {
    static const struct conv_case cases[] = {
        {3, 5, 920, 288, 3, DTYPE_F16, 1, 4, ACTIVATION_SILU, true, RESIDUAL_APART},
        {3, 3, 915, 288, 3, DTYPE_F32, 1, 0, ACTIVATION_NONE, false, RESIDUAL_OUT},
        {5, 2, 1544, 1536, 1, DTYPE_F32, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
        /* 280 outputs do not fill whole panels */
        {2, 3, 1000, 280, 3, DTYPE_F32, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
        {5, 7, 920, 288, 3, DTYPE_BF16, 1, 0, ACTIVATION_NONE, true, RESIDUAL_NONE},
    };
    for (int i = 0; i < 4; i++) case_conv(cases[i], (struct conv_options){0});
    case_conv(cases[4], (struct conv_options){.stride = 2, .pad_before = 1});
}

static void test_exp(void **state) {
    double worst = 0;
    /* x from 0 to 87 and from 0 to -87 */
    for (int sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0; bits < 0x42ae0000u; bits += 97) {
            union float_bits f = {.bits = bits | (uint32_t)sign << 31};
            double truth = exp((double)f.value), ulp = ldexp(1, ilogb(truth) - 23);
            worst = fmax(worst, fabs((double)exp_f32(f.value) - truth) / ulp);
        }
    printf("  exp: %.3f ulp\n", worst);
    assert_true(worst < 1.3);
    assert_true(isnan(exp_f32(NAN)));
}

/* Errors of activation functions are relative to |x|, because below x = -6 the result is nearly 0. Errors of
 * the sigmoids are absolute. */
static void test_activations(void **state) {
    static float (*const of[])(float) = {[ACTIVATION_SILU] = silu_f32,
                                         [ACTIVATION_GELU_TANH] = gelu_tanh_f32,
                                         [ACTIVATION_GELU_QUICK] = gelu_quick_f32,
                                         [ACTIVATION_GELU_ERF] = gelu_erf_f32,
                                         [ACTIVATION_SIGMOID] = sigmoid_f32,
                                         [ACTIVATION_SIGMOID_TWICE] = sigmoid_twice_f32};
    for (int a = ACTIVATION_SILU; a <= ACTIVATION_SIGMOID_TWICE; a++) {
        double worst = 0;
        bool absolute = a >= ACTIVATION_SIGMOID;
        if (!of[a]) continue;
        for (int sign = 0; sign < 2; sign++)
            for (uint32_t bits = 0x0d800000u; bits < 0x5f000000u; bits += 389) { /* |x| from 2^-100 to 2^63 */
                union float_bits f = {.bits = bits | (uint32_t)sign << 31};
                double x_f64 = f.value, wrong = fabs((double)of[a](f.value) - activated(a, x_f64));
                worst = fmax(worst, absolute ? wrong : wrong / fabs(x_f64));
            }
        printf("  activation %d: %.3g%s\n", a, worst, absolute ? "" : " |x|");
        assert_true(worst < (a == ACTIVATION_SIGMOID_TWICE ? 2.4e-7 : 1.2e-7));
        assert_true(isnan(of[a](NAN)));
    }
}

static void test_f16(void **state) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        struct tensor t = tensor_make(&(uint16_t){(uint16_t)h}, DTYPE_F16, SHAPE(1));
        float value = half_f16_f32((uint16_t)h);
        if ((h & 0x7c00) != 0x7c00)
            assert_true((double)value == load(&t, 0, 0) && !signbit(value) == !(h & 0x8000));
        else
            assert_true(h & 0x3ff ? isnan(value) : isinf(value) && !signbit(value) == !(h & 0x8000));
    }
}

static void test_invalid_convolutions_are_rejected(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(4, 6, 8), 0, 1),
                  odd = tensor_random(DTYPE_F32, SHAPE(3, 6, 8), 0, 1),
                  weight = tensor_random(DTYPE_F32, SHAPE(8, 8, 3, 3), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(2, 3, 8), 0, 1);
    struct conv_options o = {.upsample = 1, .stride = 2}, other = o;
    op_conv2d(&x, out, in, weight, (struct epilogue){.activation = ACTIVATION_SILU}, o);
    expect_error_text("operator conv2d: invalid epilogue");
    op_conv2d(&x, out, in, weight, (struct epilogue){.residual = out}, o);
    expect_error_text("operator conv2d: invalid options");
    op_conv2d(&x, out, odd, weight, (struct epilogue){0}, o);
    expect_error_text("expected even rows and columns for stride 2");
    other.pad_before = 2;
    op_conv2d(&x, out, in, weight, (struct epilogue){0}, other);
    expect_error_text("operator conv2d: invalid before");
    other = (struct conv_options){.upsample = 1, .pad_before = 1};
    op_conv2d(&x, in, in, weight, (struct epilogue){0}, other);
    expect_error_text("expected 0, or 1 with stride 2");
    other = (struct conv_options){.upsample = 1, .cut_row = true};
    op_conv2d(&x, tensor_slice(in, 0, 3), in, weight, (struct epilogue){0}, other);
    expect_error_text("operator conv2d: invalid cut");
    other = o;
    op_conv2d(&x, out, in, tensor_random(DTYPE_F32, SHAPE(8, 8, 1, 1), 0, 1), (struct epilogue){0}, o);
    expect_error_text("expected a kernel of 3 for stride 2");
    op_conv2d(&x, in, in, weight, (struct epilogue){0}, o);
    expect_error_text("operator conv2d: invalid out");
    other.stride = 3;
    op_conv2d(&x, out, in, weight, (struct epilogue){0}, other);
    expect_error_text("operator conv2d: invalid stride");
}

static void test_invalid_token_layouts_are_rejected(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(4, 6, 8), 0, 1),
                  tokens = tensor_random(DTYPE_F32, SHAPE(24, 8), 0, 1),
                  table = tensor_random(DTYPE_F32, SHAPE(24, 4, 2), 0, 1),
                  weight = tensor_random(DTYPE_F32, SHAPE(8, 8, 3, 3), 0, 1),
                  row = tensor_random(DTYPE_F32, SHAPE(8), 0, 1);
    op_patchify(&x, tokens, in, (struct patches){.side = 1, .pixels = true, .token_order = {.block = 4}});
    expect_error_text("expected patches in whole blocks");
    op_patchify(&x, tokens, in, (struct patches){.side = 1, .pixels = true, .token_order = {3, 2}});
    expect_error_text("expected patches in whole blocks");
    op_unpatchify(&x, in, tokens, (struct patches){.side = 1}, 1);
    expect_error_text("operator unpatchify: invalid tokens");
    struct rope_options o = {
        .theta = 2, .n_axes = 2, .axis_dim = {4, 4}, .n_grids = 1, .grid = {{.extent = {4, 6}}}};
    o.grid[0].token_order.block = 4;
    op_rope_table(&x, table, &o);
    expect_error_text("whole blocks of tokens");
    o.grid[0] = (struct rope_grid){.extent = {24}, .diagonal = true, .token_order.window = 1};
    op_rope_table(&x, table, &o);
    expect_error_text("whole blocks of tokens");
    o = (struct rope_options){.theta = 2,
                              .n_axes = 2,
                              .axis_dim = {4, 4},
                              .mrope = true,
                              .mrope_interleaved = true,
                              .n_grids = 1,
                              .grid = {{.extent = {4, 6}}}};
    op_rope_table(&x, table, &o);
    expect_error_text("expected 1 to 4 even axes");
    op_add_positions(&x, tokens, tokens, weight, (struct position_grid){1, 4, 6, {0, 4}});
    expect_error_text("expected tokens in whole blocks");
    struct conv_options conv = {.upsample = 1, .pixel_norm.weight = tensor_slice(row, 0, 4)};
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(4, 6, 8), 0, 1);
    op_conv2d(&x, out, in, weight, (struct epilogue){0}, conv);
    expect_error_text("operator conv2d: invalid pixel norm");
    conv.pixel_norm.weight = row;
    conv.norm = (struct group_norm){tensor_reshape(tensor_slice(row, 0, 2), 2, (int32_t[]){1, 2}), row, row};
    op_conv2d(&x, out, in, weight, (struct epilogue){0}, conv);
    expect_error_text("operator conv2d: invalid pixel norm");
    conv = (struct conv_options){.upsample = 1, .stride = 2, .pixel_norm.weight = row};
    op_conv2d(&x, tensor_random(DTYPE_F32, SHAPE(2, 3, 8), 0, 1), in, weight, (struct epilogue){0}, conv);
    expect_error_text("no norm, upsampling or residual with stride 2");
}

/* Rejected residual shortcuts: images whose sizes do not fit, outputs that overlap unread inputs. */
static void test_invalid_shortcuts_are_rejected(void **state) {
    case_begin();
    struct tensor fine = tensor_random(DTYPE_F32, SHAPE(4, 6, 8), 0, 1),
                  coarse = tensor_random(DTYPE_F32, SHAPE(2, 3, 32), 0, 1);
    struct shortcut s = {.frames = 1, .side = 2};
    op_mean_down(&x, tensor_random(DTYPE_F32, SHAPE(2, 3, 5), 0, 1), fine, absent, absent, s);
    expect_error_text("expected channels that divide the values");
    op_mean_down(&x, coarse, fine, fine, absent, s);
    expect_error_text("operator mean_down: invalid before");
    op_mean_down(&x, tensor_random(DTYPE_F32, SHAPE(2, 2, 8), 0, 1), fine, absent, absent, s);
    expect_error_text("operator mean_down: invalid fine image");
    op_repeat_up(&x, fine, coarse, coarse, s);
    expect_error_text("operator repeat_up: invalid base");
    struct tensor inside = coarse;
    inside.dim[2] = 8;
    inside.data = fine.data, inside.row_bytes = 32;
    op_repeat_up(&x, fine, inside, absent, s);
    expect_error_text("expected memory that does not overlap an input");
    s.frame = 1;
    op_repeat_up(&x, fine, coarse, absent, s);
    expect_error_text("operator repeat_up: invalid shortcut");
}

/* Rejected waves: sizes that do not fit the ratio, missing weights, an output over unread rows. */
static void test_invalid_waves_are_rejected(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(4, 6), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(4, 6), 0, 1);
    struct tensor vector = tensor_random(DTYPE_F32, SHAPE(6), 0, 1),
                  taps = tensor_random(DTYPE_F32, SHAPE(12), 0, 1);
    op_map(&x, out, in, MAP_MAGNITUDE, 0);
    expect_error_text("operator map: invalid out: found F32 [4, 6], 24 bytes a row, expected F32 [4, 3]");
    op_map(&x, in, tensor_random(DTYPE_F32, SHAPE(4, 5), 0, 1), MAP_MAGNITUDE, 0);
    expect_error_text("expected an even number of columns");
    op_snake(&x, in, in, (struct snake){vector, vector, taps, taps});
    expect_error_text("expected memory that does not overlap an input");
    op_snake(&x, out, in, (struct snake){vector, vector, taps, vector});
    expect_error_text("operator snake: invalid downsampling filter");
    op_snake(&x, out, in, (struct snake){.beta = vector, .up = taps, .down = taps});
    expect_error_text("operator snake: invalid alpha");
    op_sinc_up(&x, out, in, absent, 2);
    expect_error_text("operator sinc_up: invalid out: found F32 [4, 6], 24 bytes a row, expected F32 [8, 6]");
    op_sinc_up(&x, out, in, absent, 17);
    expect_error_text("expected a ratio from 1 to 16");
}

/* Rejected tables by axis, ranges, gates per head and frames of patches. */
static void test_invalid_video_operands_are_rejected(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(24, 16), 0, 1), out = in,
                  table = tensor_random(DTYPE_F32, SHAPE(9, 2, 2), 0, 1),
                  image = tensor_random(DTYPE_F32, SHAPE(4, 6, 8), 0, 1),
                  gates = tensor_random(DTYPE_F32, SHAPE(24, 3), 0, 1),
                  row = tensor_random(DTYPE_F32, SHAPE(16), 0, 1);
    struct rotation r = {.heads = 2, .axes = {3, {2, 3, 4}, 2, 0}};
    op_rope(&x, out, in, table, r);
    assert_ok(&problem);
    r.axes.n_unrotated = 3;
    op_rope(&x, out, in, table, r);
    expect_error_text("expected tokens of a grid, and 1 to 3 axes");
    r.axes = (struct rope_axes){3, {2, 3, 4}, 2, 1};
    op_rope(&x, out, in, table, r);
    expect_error_text("expected tokens of a grid, and 1 to 3 axes");
    r.axes = (struct rope_axes){4, {2, 3, 4}, 0, 0};
    op_rope(&x, out, in, table, r);
    expect_error_text("expected tokens of a grid, and 1 to 3 axes");
    r.axes = (struct rope_axes){2, {4, 6}, 4, 0};
    op_rope(&x, out, in, table, r);
    expect_error_text("operator rope: invalid table");
    struct rope_axis axis = {10000, 8, -7, 1, 24, 20, false};
    axis.denominator = 0;
    op_rope_axis(&x, table, axis);
    expect_error_text("operator rope_axis: invalid axis");
    axis.denominator = 24, axis.step = INT32_MAX / 8;
    op_rope_axis(&x, table, axis);
    expect_error_text("positions below 2^31");
    op_group_range(&x, tensor_random(DTYPE_F32, SHAPE(3, 2), 0, 1), image, 3, 8, 1e-6f);
    expect_error_text("expected channels in whole groups");
    op_glu(&x, out, gates, in, ACTIVATION_SIGMOID_TWICE);
    expect_error_text("one column for each head of b");
    gates.dim[1] = 2, gates.row_bytes = in.row_bytes, gates.data = in.data;
    op_glu(&x, out, gates, in, ACTIVATION_SIGMOID_TWICE);
    expect_error_text("memory that does not overlap a");
    op_rms_norm(&x, out, in, absent, 1, (struct modulation){.zero_centered = true});
    expect_error_text("expected a weight that is stored minus 1");
    op_rms_norm(&x, out, in, absent, 1, (struct modulation){.gate = tensor_slice(row, 0, 8)});
    expect_error_text("operator rms_norm: invalid gate");
    struct patches patches = {.side = 1, .pixels = true, .frames = 2};
    op_patchify(&x, in, image, patches);
    expect_error_text("one of the frames, with channels first");
    patches.order = PATCH_CHANNELS_FIRST;
    patches.frame = 2;
    op_patchify(&x, in, image, patches);
    expect_error_text("one of the frames, with channels first");
    patches.frame = 1, patches.frames = 3;
    op_unpatchify(&x, image, in, patches, 1);
    expect_error_text("operator unpatchify: invalid tokens");
    struct conv_options conv = {.upsample = 1, .stride = 2, .pixel_norm.eps = 1e-8f};
    op_conv2d(&x, tensor_random(DTYPE_F32, SHAPE(2, 3, 8), 0, 1), image,
              tensor_random(DTYPE_F32, SHAPE(8, 8, 3, 3), 0, 1), (struct epilogue){0}, conv);
    expect_error_text("no norm, upsampling or residual with stride 2");
}

static bool stop(void *user) {
    error_set(&problem, CANCELLED, "cancelled");
    return false;
}

static void test_invalid_operands_are_rejected(void **state) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(4, 8), 0, 1),
                  weight = tensor_random(DTYPE_F32, SHAPE(6, 9), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(4, 6), 0, 1),
                  empty = tensor_make(NULL, DTYPE_F32, SHAPE(0, 8));
    struct tensor row = tensor_random(DTYPE_F32, SHAPE(8), 0, 1);
    op_linear(&x, out, in, weight, (struct epilogue){0});
    expect_error_text("operator linear: invalid weight: found F32 [6, 9], 36 bytes a row, expected any "
                      "weight type [any, 8]");
    op_copy(&x, empty, empty);
    expect_error_text("operator copy: invalid out");
    op_attention(&x, in, in, in, in, (struct attention_options){.queries = 3, .keys = 1, .scale = 1});
    expect_error_text("operator attention: invalid q");
    op_glu(&x, out, in, in, ACTIVATION_SILU);
    expect_error_text("operator glu: invalid out");
    op_rms_norm(&x, in, in, row, 1, (struct modulation){.gate = row, .activation = ACTIVATION_SILU});
    expect_error_text("operator rms_norm: invalid activation");
    op_linear(&x, tensor_random(DTYPE_F32, SHAPE(4, 4), 0, 1), in, in, (struct epilogue){.gate = row});
    expect_error_text("operator linear: invalid gate");
    op_attention(&x, in, in, in, in,
                 (struct attention_options){.queries = 2, .keys = 2, .scale = 1, .relative_bias = in});
    expect_error_text("operator attention: invalid relative bias");
    op_layer_norm(&x, out, out, (struct affine){.shift = row}, 0);
    expect_error_text("operator layer_norm: invalid shift");
    op_add(&x, in, in, tensor_slice(in, 0, 2));
    expect_error_text("operator add: invalid b");
    op_relative_bias(&x, tensor_random(DTYPE_F32, SHAPE(8, 3), 0, 1), in, (struct distance_buckets){1});
    expect_error_text("operator relative_bias: invalid table");
    int calls = checker.calls;
    x.workspace_bytes = 100;
    op_rms_norm(&x, in, in, tensor_random(DTYPE_F32, SHAPE(8), 0, 1), 1, (struct modulation){0});
    expect_error_text("operator rms_norm: the workspace is too small: found 100 bytes, expected 512 bytes");
    x.workspace_bytes = WORKSPACE_MAX;
    x.tick = stop;
    op_copy(&x, in, in);
    assert_int_equal(problem.code, CANCELLED);
    x.tick = NULL;
    op_copy(&x, in, in);
    assert_int_equal(calls, checker.calls);
    problem = (struct error){0};
    struct op op = {.kind = OP_LINEAR, .out = out, .in = {in, tensor_random(DTYPE_F32, SHAPE(6, 8), 0, 1)}};
    checker.one->run(checker.one, &op, workspace, &problem);
    expect_error_text("was not prepared");
}

static void test_context_tensor(void **state) {
    struct arena arena = {.base = workspace, .bytes = 1024};
    x.scratch = &arena;
    assert_true(context_tensor(&x, DTYPE_F32, SHAPE(4, 32)).data == workspace);
    assert_true(context_tensor(&x, DTYPE_F32, SHAPE(4, 33)).data == NULL);
    expect_error_text("scratch memory of the visit is too small");
    assert_true(context_tensor(&x, DTYPE_F32, SHAPE(4, 0)).data == NULL);
    expect_error_text("scratch memory of the visit is too small");
    x.scratch = NULL;
}

static void test_no_reference_code(void **state) {
    enum { CHANNELS = 10 };
    static const int32_t channels[CHANNELS] = {8, 16, 32, 40, 64, 128, 256, 512, 1280, 2560};
    struct onednn *o = onednn_open(&checker.sys, 2, &problem);
    for (int i = 0; i < CHANNELS; i++)
        for (int j = 0; j < CHANNELS; j++)
            for (int k = 1; k <= 3; k += 2) {
                struct onednn_key key = {ONEDNN_CONV,
                                         {random_int(1, 40), random_int(1, 500), channels[i], channels[j], k,
                                          k == 3 && (i + j) % 2}};
                struct onednn_facts facts = onednn_facts(o, &key);
                assert_true(facts.supported && !facts.reference);
                key.kind = ONEDNN_REPACK;
                facts = onednn_facts(o, &key);
                assert_true(facts.supported);
            }
    for (int i = 0; i < 100; i++) {
        struct onednn_key key = {i & 1 ? ONEDNN_PRODUCT : ONEDNN_PRODUCT_T,
                                 {random_size(2000), random_size(2000), random_size(4000)}};
        struct onednn_facts facts = onednn_facts(o, &key);
        assert_true(facts.supported && !facts.reference);
    }
    onednn_close(o);
}

static int64_t heap_left_by_device(void) {
    int64_t before = heap_live;
    struct onednn *o = onednn_open(&checker.sys, 2, &problem);
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(
            onednn_prepare(o, &(struct onednn_key){ONEDNN_CONV, {4 + i, 9, 24, 16, 3}}, &problem), OK);
        assert_int_equal(onednn_prepare(o, &(struct onednn_key){ONEDNN_PRODUCT, {900 + i, 9, 24}}, &problem),
                         OK);
    }
    onednn_close(o);
    return heap_live - before;
}

/* Closing a device frees everything that it prepared. oneDNN 3.2 keeps some bytes after the first device was
 * closed (11 KB with AVX-512, 34 KB with AVX2), so the second device is checked. */
static void test_close_frees_everything(void **state) {
    heap_left_by_device();
    assert_true(heap_left_by_device() < 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_few),
        cmocka_unit_test(test_result_of_row_is_independent),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_relative_bias_buckets_match_transformers),
        cmocka_unit_test(test_rope_angles_match_diffusers),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_video),
        cmocka_unit_test(test_waves),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_cut),
        cmocka_unit_test(test_conv_finish),
        cmocka_unit_test(test_conv_dense),
        cmocka_unit_test(test_conv_strided),
        cmocka_unit_test(test_conv_panels),
        cmocka_unit_test(test_lead_is_sufficient),
        cmocka_unit_test(test_conv_pieces),
        cmocka_unit_test(test_conv_strided_pieces),
        cmocka_unit_test(test_conv_overlap),
        cmocka_unit_test(test_conv_strided_overlap),
        cmocka_unit_test(test_statistics_pieces),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_invalid_operands_are_rejected),
        cmocka_unit_test(test_invalid_convolutions_are_rejected),
        cmocka_unit_test(test_invalid_token_layouts_are_rejected),
        cmocka_unit_test(test_invalid_shortcuts_are_rejected),
        cmocka_unit_test(test_invalid_video_operands_are_rejected),
        cmocka_unit_test(test_invalid_waves_are_rejected),
        cmocka_unit_test(test_context_tensor),
        cmocka_unit_test(test_no_reference_code),
        cmocka_unit_test(test_rgb_rounding),
        cmocka_unit_test(test_close_frees_everything),
        cmocka_unit_test(test_print_errors),
    };
    ops_on = ON_CPU, ops_random_cases = 200, ops_pictures = 20;
    return tests_run(tests, sizeof tests / sizeof *tests, ops_set_up, ops_tear_down);
}
