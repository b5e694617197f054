/* Test cases of the operators and options for video with sound (LTX): rope tables by axis, group ranges,
 * norms without weights, gates per head, tokens of several frames. */
#include "test/lib/ops_tests.h"

/* Computes a table of one axis in f32 where diffusers 0.42 (transformer_ltx2.py) does. */
static void case_rope_axis(int32_t n, int32_t frequencies, struct rope_axis axis) {
    case_begin();
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(n, frequencies, 2), 0, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)n * frequencies; i++) {
        float p = 0;
        for (int64_t k = i / frequencies; k <= i / frequencies + !axis.corner; k++) {
            float coordinate = fmaxf((float)k * (float)axis.step + (float)axis.first, 0) * axis.numerator;
            p += coordinate / axis.denominator;
        }
        if (!axis.corner) p /= 2;
        double power = frequencies > 1 ? pow(axis.theta, (double)(i % frequencies) / (frequencies - 1)) : 1;
        float angle = (2 * (p / axis.size) - 1) * (float)(power * acos(-1) / 2);
        truth[2 * i] = cos((double)angle);
        truth[2 * i + 1] = sin((double)angle);
    }
    op_rope_axis(&x, out, axis);
    op_expect(OP_ROPE_AXIS, &out, truth);
}

struct axes_case {
    struct rope_axes axes;
    int32_t t; /* rows; 0: the whole grid */
    int32_t heads, d;
    int gap;
    enum rope_pairs pairs;
    bool normed, in_place;
};

static void case_rope_axes(struct axes_case r) {
    case_begin();
    int32_t t = 1, rows = 0, inner = 1, n = r.axes.n_axes, pairs = r.heads * r.d / 2, half = r.d / 2;
    for (int a = 0; a < n; a++) t *= r.axes.extent[a], rows += r.axes.extent[a];
    for (int a = n; a < TOKEN_AXES_MAX; a++) inner *= r.axes.extent[a] ? r.axes.extent[a] : 1;
    t = r.t ? r.t : t * inner;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, 2 * pairs), r.gap, 1), out = in;
    struct tensor table = tensor_random(DTYPE_F32, SHAPE(rows, (pairs - r.axes.n_unrotated) / n, 2), 0, 1);
    struct rotation rotation = {.heads = r.heads, .pairs = r.pairs, .axes = r.axes, .eps = 1e-3f};
    if (r.normed) rotation.norm = tensor_random(DTYPE_BF16, SHAPE(r.d), 0, 1);
    if (!r.in_place) out = tensor_random(DTYPE_F32, SHAPE(t, 2 * pairs), 2 * r.gap, 1);
    double *truth = op_truth(&out), *values = op_truth(&in);
    for (int64_t head = 0; head < (int64_t)t * r.heads; head++) {
        int64_t row = head / r.heads, first = head % r.heads * r.d;
        double squares = 0;
        for (int32_t i = 0; i < r.d; i++) squares += pow(load(&in, row, first + i), 2);
        for (int32_t i = 0; i < r.d; i++) {
            values[head * r.d + i] = load(&in, row, first + i);
            if (r.normed)
                values[head * r.d + i] *=
                    load(&rotation.norm, 0, i) / sqrt(squares / r.d + (double)rotation.eps);
        }
    }
    for (int64_t token = 0; token < t; token++)
        for (int32_t p = 0; p < pairs; p++) {
            int64_t at[TOKEN_AXES_MAX], rest = (token + r.axes.first_token) / inner, before = 0;
            for (int a = n - 1; a >= 0; a--) at[a] = rest % r.axes.extent[a], rest /= r.axes.extent[a];
            int32_t rotated = p - r.axes.n_unrotated, axis = rotated % n;
            for (int a = 0; a < axis; a++) before += r.axes.extent[a];
            double c = 1, s = 0;
            if (rotated >= 0) {
                int64_t pair = (before + at[axis]) * table.dim[1] + rotated / n;
                c = load(&table, pair, 0), s = load(&table, pair, 1);
            }
            bool halves = r.pairs == ROPE_HALVES;
            int64_t a = 2 * token * pairs + (halves ? p / half * r.d + p % half : 2 * p);
            int64_t b = a + (halves ? half : 1);
            truth[a] = values[a] * c - values[b] * s;
            truth[b] = values[a] * s + values[b] * c;
        }
    op_rope(&x, out, in, table, rotation);
    op_expect(OP_ROPE, &out, truth);
}

/* Statistics of group ranges, and a group norm with them, without weight and bias. */
static void case_group_range(int32_t rows, int32_t columns, int32_t c, int groups, int gap, bool in_place) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), gap, 3), out = in;
    struct tensor range = tensor_random(DTYPE_F32, SHAPE(groups, 2), 0, 1);
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 1, 1);
    double *truth = op_truth(&range), *normed = op_truth(&in);
    int32_t each = c / groups;
    for (int g = 0; g < groups; g++) {
        double sum = 0, least = INFINITY, most = -INFINITY, n = (double)rows * columns * each;
        for (int64_t i = 0; i < (int64_t)rows * columns * each; i++) {
            double v = load(&in, i / each, g * each + i % each);
            sum += v, least = fmin(least, v), most = fmax(most, v);
        }
        truth[2 * g] = sum / n;
        truth[2 * g + 1] = 8 / (most - least + 1e-3f);
    }
    op_group_range(&x, range, in, groups, 8, 1e-3f);
    op_expect(OP_GROUP_RANGE, &range, truth);
    for (int64_t i = 0; i < tensor_elements(&in); i++) {
        int64_t g = i % c / each;
        normed[i] = (load(&in, i / c, i % c) - load(&range, g, 0)) * load(&range, g, 1);
    }
    op_group_norm(&x, out, in, (struct group_norm){.statistics = range});
    op_expect(OP_GROUP_NORM, &out, normed);
}

/* An RMS norm without weight; `with`: modulation that it has. */
static void case_rms_plain(int32_t t, int32_t c, int gap, int with, bool in_place) {
    enum { GATED = 16 };
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 3), out = in;
    struct modulation m = {0};
    if (with & WITH_SCALE) m.scale = tensor_random(DTYPE_BF16, SHAPE(c), 0, 1);
    if (with & WITH_SHIFT) m.shift = tensor_random(DTYPE_F32, SHAPE(c), 0, 1);
    if (with & GATED) m.gate = tensor_random(DTYPE_F32, SHAPE(c), 0, 1), m.base = in;
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(t, c), 2 * gap, 1);
    double *truth = op_truth(&out);
    for (int64_t row = 0; row < t; row++) {
        double squares = 0;
        for (int32_t i = 0; i < c; i++) squares += pow(load(&in, row, i), 2);
        for (int32_t i = 0; i < c; i++) {
            double v = load(&in, row, i) / sqrt(squares / c + 1e-3f);
            if (with & WITH_SCALE) v *= 1 + load(&m.scale, 0, i);
            if (with & WITH_SHIFT) v += load(&m.shift, 0, i);
            if (with & GATED) v = load(&in, row, i) + tanh(load(&m.gate, 0, i)) * v;
            truth[row * c + i] = v;
        }
    }
    op_rms_norm(&x, out, in, absent, 1e-3f, m);
    op_expect(OP_RMS_NORM, &out, truth);
}

static void case_glu_heads(int32_t t, int32_t heads, int32_t d, int gap, bool in_place,
                           enum activation activation) {
    case_begin();
    int32_t c = heads * d;
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(t, heads), gap, 5),
                  b = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 1), out = b;
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(t, c), 2 * gap, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)t * c; i++)
        truth[i] = activated(activation, load(&a, i / c, i % c / d)) * load(&b, i / c, i % c);
    op_glu(&x, out, a, b, activation);
    op_expect(OP_GLU, &out, truth);
}

/* Moves frame after frame of an image into tokens of several frames, and back. */
static void case_patch_frames(int32_t c, int32_t rows, int32_t columns, struct patches patches, int gap) {
    case_begin();
    int32_t p = patches.side, area = p * p, high = rows * p, wide = columns * p, n = patches.frames;
    struct tensor tokens = tensor_random(DTYPE_F32, SHAPE(rows * columns, c * n * area), gap, 1), images[4];
    double *truth = op_truth(&tokens), *back = op_truth(&tokens);
    for (patches.frame = 0; patches.frame < n; patches.frame++) {
        struct tensor *image = &images[patches.frame];
        *image = patches.pixels ? tensor_random(DTYPE_F32, SHAPE(high, wide, c), gap, 1)
                                : tensor_random(DTYPE_F32, SHAPE(c, high, wide), gap, 1);
        for (int64_t i = 0; i < tensor_elements(image); i++) {
            int32_t channel = (int32_t)(patches.pixels ? i % c : i / ((int64_t)high * wide));
            int32_t pixel = (int32_t)(patches.pixels ? i / c : i % ((int64_t)high * wide));
            int32_t y = pixel / wide, xx = pixel % wide;
            int64_t token = (int64_t)(y / p) * columns + xx / p;
            truth[(token * c + channel) * n * area + patches.frame * area + y % p * p + xx % p] =
                patches.pixels ? load(image, i / c, i % c) : load(image, i / wide, i % wide);
        }
        op_patchify(&x, tokens, *image, patches);
    }
    op_expect(OP_PATCHIFY, &tokens, truth);
    for (patches.frame = n - 1; patches.frame >= 0; patches.frame--) {
        struct tensor *image = &images[patches.frame];
        for (int64_t i = 0; i < tensor_elements(image); i++)
            back[i] = (double)1.7f * load(image, i / tensor_columns(image), i % tensor_columns(image));
        op_unpatchify(&x, *image, tokens, patches, 1.7f);
        op_expect(OP_UNPATCHIFY, image, back);
    }
}

void test_video(void **state) {
    static const struct rope_axis frames = {10000, 8, -7, 1, 23.976f, 20, false},
                                  sound = {10000, 4, -3, 160, 16000, 20, false},
                                  pixels = {10000, 32, 0, 1, 1, 2048, false},
                                  text = {10000, 1, 0, 1, 1, 4096, true};
    static const struct axes_case rope[] = {
        {{1, {3}, 0, 0}, 0, 1, 2, 0, ROPE_HALVES, false, true},
        {{3, {2, 3, 2}, 4, 0}, 0, 5, 16, 4, ROPE_HALVES, false, false},
        {{3, {2, 1, 3}, 2, 0}, 0, 2, 20, 1, ROPE_INTERLEAVED, true, true},
        {{2, {2, 3}, 1, 0}, 0, 3, 26, 0, ROPE_HALVES, true, false},
        {{1, {7}, 0, 0}, 0, 3, 24, 0, ROPE_INTERLEAVED, false, false},
        /* some rows of a grid; frames of 2 x 3 tokens that rotate alike */
        {{3, {2, 3, 4}, 2, 5}, 7, 2, 20, 0, ROPE_HALVES, false, true},
        {{1, {4, 2, 3}, 0, 0}, 0, 2, 16, 1, ROPE_INTERLEAVED, true, false},
        {{1, {4, 6}, 0, 3}, 19, 2, 16, 0, ROPE_HALVES, false, false},
        /* more pairs without rotation than a head has */
        {{3, {2, 5, 3}, 13, 0}, 0, 4, 20, 3, ROPE_INTERLEAVED, false, true},
        {{3, {3, 5, 7}, 2, 0}, 0, 32, 128, 0, ROPE_HALVES, false, true},
        {{1, {33}, 0, 0}, 0, 32, 64, 0, ROPE_HALVES, true, true},
        {{3, {3, 2, 3}, 3, 0}, 0, 5, 222, 2, ROPE_HALVES, false, false},
        {{2, {5, 3}, 0, 0}, 0, 1, 512, 0, ROPE_INTERLEAVED, true, false},
    };
    bool small = ops_on == ON_TSAN;
    case_rope_axis(1, 1, text);
    case_rope_axis(5, small ? 7 : 682, frames);
    case_rope_axis(small ? 3 : 40, small ? 9 : 1024, sound);
    for (size_t i = 0; i < (small ? 9 : sizeof rope / sizeof *rope); i++) case_rope_axes(rope[i]);
    case_group_range(1, 1, 1, 1, 0, false);
    case_group_range(3, 5, 35, 5, 3, true);
    case_group_range(7, 1, 48, 4, 4, false);
    for (int with = 0; with <= 16; with += 4) case_rms_plain(3, 37 + with, with % 5, with, with == 8);
    case_glu_heads(3, 5, 7, 3, true, ACTIVATION_SIGMOID_TWICE);
    case_glu_heads(5, 2, 16, 0, false, ACTIVATION_SIGMOID_TWICE);
    case_glu_heads(1, 1, 9, 1, false, ACTIVATION_NONE);
    for (int i = 0; i < 4; i++)
        case_patch_frames(
            3 + i, 2, 3,
            (struct patches){
                .side = 1 + i / 2, .order = PATCH_CHANNELS_FIRST, .pixels = i % 2, .frames = 1 + i % 3},
            i % 3);
    for (int up = 1; up <= 2; up++)
        case_conv((struct conv_case){5, 3, 12, 7, 3, DTYPE_BF16, up, PLAIN_PIXEL_NORM, ACTIVATION_SILU, true,
                                     RESIDUAL_NONE},
                  (struct conv_options){0});
    if (small) return;
    case_rope_axis(64, 341, pixels);
    case_rope_axis(1024, 40, text);
    case_group_range(1, 40, 49 * 60, 49, 0, true);
    case_group_range(6, 11, 2 * 20001, 2, 0, false);
    case_group_range(700, 9, 12, 3, 0, false);
    for (int with = 0; with <= 16; with += 4) case_rms_plain(5, 4096, 0, with, with == 16);
    case_rms_plain(2, 10240, 0, 0, true);
    case_glu_heads(40, 32, 128, 0, true, ACTIVATION_SIGMOID_TWICE);
    case_glu_heads(9, 30, 50, 1, true, ACTIVATION_SIGMOID_TWICE);
    case_patch_frames(48, 9, 7, (struct patches){.side = 4, .order = PATCH_CHANNELS_FIRST, .frames = 2}, 0);
    case_conv((struct conv_case){37, 300, 8, 8, 3, DTYPE_F32, 1, PLAIN_PIXEL_NORM, ACTIVATION_SILU, true,
                                 RESIDUAL_APART},
              (struct conv_options){0});
    case_conv((struct conv_case){4, 3, 384, 12, 1, DTYPE_F32, 1, PLAIN_PIXEL_NORM, ACTIVATION_NONE, true,
                                 RESIDUAL_NONE},
              (struct conv_options){0});
}
