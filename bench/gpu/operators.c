#include "bench/gpu/operators.h"

#include "bench/gpu/calculated.h"
#include "bench/gpu/library_rates.h"
#include "kernels/dry/dry.h"

#include <stdio.h>
#include <string.h>

/* Sizes of the measured operators. Single letters name the dimensions as in kernels/ops.h. */
struct sizes {
    /* tokens of image and caption, layer width, feed-forward width, heads, head size */
    int32_t T, C, F, H, D;
    int32_t chunk;     /* rows of a feed-forward chunk, as the device chooses them */
    int32_t chunks[3]; /* further numbers of rows per feed-forward chunk, for comparison */
    int32_t text, text_C, text_F;
    int32_t latent, side; /* side of a square image, in latent values and in pixels */
    int32_t wide;         /* channels of the VAE decoder's middle block */
    int32_t unet;         /* channels of a UNet's first level, for the same image size */
    int32_t flux_T, flux_C, flux_F;
    int32_t t5_H, t5_D, t5_F;
    int32_t video_T, video_C, video_F, video_chunk; /* sizes of a video model: 81 frames of 832 x 480 */
    int32_t vae_channels, vae_side; /* channels and side of a video VAE decoder's last level */
    int32_t roof;
};

static const struct sizes real = {.T = 4128,
                                  .C = 3840,
                                  .F = 10240,
                                  .H = 30,
                                  .D = 128,
                                  .chunk = 2176,
                                  .chunks = {516, 1408, 2064},
                                  .text = 512,
                                  .text_C = 2560,
                                  .text_F = 9728,
                                  .latent = 128,
                                  .side = 1024,
                                  .wide = 512,
                                  .unet = 320,
                                  .flux_T = 4608,
                                  .flux_C = 3072,
                                  .flux_F = 12288,
                                  .t5_H = 64,
                                  .t5_D = 64,
                                  .t5_F = 10240,
                                  .video_T = 32760,
                                  .video_C = 5120,
                                  .video_F = 13824,
                                  .video_chunk = 2048,
                                  .vae_channels = 256,
                                  .vae_side = 480,
                                  .roof = 8192};
static const struct sizes tiny = {.T = 40,
                                  .C = 256,
                                  .F = 320,
                                  .H = 2,
                                  .D = 128,
                                  .chunk = 20,
                                  .chunks = {8, 12, 24},
                                  .text = 16,
                                  .text_C = 256,
                                  .text_F = 320,
                                  .latent = 8,
                                  .side = 32,
                                  .wide = 32,
                                  .unet = 32,
                                  .flux_T = 48,
                                  .flux_C = 256,
                                  .flux_F = 320,
                                  .t5_H = 4,
                                  .t5_D = 64,
                                  .t5_F = 320,
                                  .video_T = 96,
                                  .video_C = 256,
                                  .video_F = 320,
                                  .video_chunk = 32,
                                  .vae_channels = 32,
                                  .vae_side = 16,
                                  .roof = 64};

struct call {
    const struct sizes *s;
    struct context *x;
    int32_t n[4];
    enum dtype weights;
};

static struct tensor matrix(struct call *c, enum dtype dtype, int32_t rows, int32_t columns) {
    return context_tensor(c->x, dtype, 2, (int32_t[]){rows, columns});
}

/* Allocates an input of matrix products or attention, in the same way as the models' forward functions. */
static struct tensor operand(struct call *c, int32_t rows, int32_t columns) {
    return context_operand(c->x, 2, (int32_t[]){rows, columns});
}

static struct tensor row(struct call *c, int32_t columns) {
    return context_tensor(c->x, DTYPE_F32, 1, &columns);
}

static struct tensor picture(struct call *c, int32_t side, int32_t channels) {
    return context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){side, side, channels});
}

/* Allocates a weight of any type, and its scales if the type stores scales separately. */
static struct tensor stored_weight(struct call *c, int32_t rows, int32_t columns) {
    struct tensor t = matrix(c, c->weights, rows, columns);
    bool apart = dtype_tiled_values(t.dtype) || t.dtype == DTYPE_I8 || t.dtype == DTYPE_I4_ROT256;
    t.scales = &t; /* temporary non-NULL value: only the size of the scales is computed */
    int32_t bytes = (int32_t)tensor_scales_bytes(&t);
    t.scales = apart ? matrix(c, DTYPE_U8, 1, bytes).data : NULL;
    return t;
}

/* A matrix product. c->n holds: rows, inputs, outputs. */
static void linear(struct call *c) {
    struct tensor in = operand(c, c->n[0], c->n[1]), weight = stored_weight(c, c->n[2], c->n[1]);
    op_linear(c->x, matrix(c, DTYPE_F32, c->n[0], c->n[2]), in, weight, (struct epilogue){0});
}

static void linear_gelu(struct call *c) {
    struct tensor in = operand(c, c->n[0], c->n[1]), weight = matrix(c, c->weights, c->n[2], c->n[1]);
    struct epilogue e = {.bias = row(c, c->n[2]), .activation = ACTIVATION_GELU_TANH};
    op_linear(c->x, operand(c, c->n[0], c->n[2]), in, weight, e);
}

static void linear_gated(struct call *c) {
    struct tensor in = operand(c, c->n[0], c->n[1]), out = matrix(c, DTYPE_F32, c->n[0], c->n[2]);
    struct epilogue e = {.bias = row(c, c->n[2]), .gate = row(c, c->n[2]), .residual = out};
    op_linear(c->x, out, in, matrix(c, c->weights, c->n[2], c->n[1]), e);
}

static void linear_few(struct call *c) {
    struct tensor out = matrix(c, DTYPE_F32, c->n[0], c->n[2]), in = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_linear_few(c->x, out, in, stored_weight(c, c->n[2], c->n[1]), row(c, c->n[2]), ACTIVATION_SILU);
}

/* Attention. c->n holds: tokens, heads, key heads, head size. Causal if there are fewer key heads than
 * heads, as in a text encoder. */
static void attention(struct call *c) {
    struct tensor q = operand(c, c->n[0], c->n[1] * c->n[3]), k = operand(c, c->n[0], c->n[2] * c->n[3]);
    struct tensor v = operand(c, c->n[0], c->n[2] * c->n[3]), out = operand(c, c->n[0], q.dim[1]);
    op_attention(c->x, out, q, k, v,
                 (struct attention_options){
                     .queries = c->n[1], .keys = c->n[2], .scale = 0.1f, .causal = c->n[2] < c->n[1]});
}

/* Attention with a relative position bias (T5). c->n holds: tokens, heads, head size. */
static void attention_biased(struct call *c) {
    struct tensor q = operand(c, c->n[0], c->n[1] * c->n[2]);
    struct tensor k = operand(c, c->n[0], q.dim[1]), v = operand(c, c->n[0], q.dim[1]);
    struct attention_options heads = {.queries = c->n[1], .keys = c->n[1], .scale = 1};
    heads.relative_bias = matrix(c, DTYPE_F32, c->n[1], 2 * c->n[0] - 1);
    op_attention(c->x, operand(c, c->n[0], q.dim[1]), q, k, v, heads);
}

/* Relative position bias (T5). c->n holds: tokens, heads. */
static void relative_bias(struct call *c) {
    struct distance_buckets buckets = {.max_distance = 128};
    struct tensor table = matrix(c, DTYPE_BF16, 32, c->n[1]);
    op_relative_bias(c->x, matrix(c, DTYPE_F32, c->n[1], 2 * c->n[0] - 1), table, buckets);
}

/* RMS norm with modulation; the output is the input of a matrix product. c->n holds: rows, columns. */
static void rms_norm(struct call *c) {
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_rms_norm(c->x, operand(c, c->n[0], c->n[1]), in, row(c, c->n[1]), 1e-6f,
                (struct modulation){.scale = row(c, c->n[1])});
}

static void rms_norm_gated(struct call *c) {
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]), out = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_rms_norm(c->x, out, in, row(c, c->n[1]), 1e-6f,
                (struct modulation){.gate = row(c, c->n[1]), .base = out});
}

static void layer_norm(struct call *c) {
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]), out = operand(c, c->n[0], c->n[1]);
    op_layer_norm(c->x, out, in, (struct affine){.scale = row(c, c->n[1])}, 1e-6f);
}

static void layer_norm_modulated(struct call *c) {
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]), out = operand(c, c->n[0], c->n[1]);
    struct affine affine = {.scale = row(c, c->n[1]), .shift = row(c, c->n[1])};
    op_layer_norm(c->x, out, in, affine, 1e-6f);
}

static void rope_table(struct call *c) {
    int32_t side = c->s->latent / 2;
    struct rope_options o = {.theta = 256,
                             .n_axes = 3,
                             .axis_dim = {32, 48, 48},
                             .n_grids = 1,
                             .grid = {{.extent = {1, side, side}}}};
    op_rope_table(c->x, context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){side * side, 64, 2}), &o);
}

/* RoPE. c->n holds: tokens, heads, head size, rotated pairs. */
static void rope(struct call *c) {
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1] * c->n[2]);
    struct tensor out = operand(c, c->n[0], in.dim[1]);
    struct tensor table = context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){c->n[0], c->n[2] / 2, 2});
    struct rotation rotation = {
        .heads = c->n[1], .pairs = (enum rope_pairs)c->n[3], .norm = row(c, c->n[2]), .eps = 1e-6f};
    op_rope(c->x, out, in, table, rotation);
}

/* Part of one axis in a RoPE table (LTX). c->n holds: positions, frequencies. */
static void rope_axis(struct call *c) {
    struct rope_axis axis = {.theta = 1e4, .step = 1, .numerator = 1, .denominator = 1, .size = 2048};
    op_rope_axis(c->x, context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){c->n[0], c->n[1], 2}), axis);
}

/* RoPE with a table of one part per axis (LTX). c->n holds: frames, side of a frame in tokens, heads, head
 * size. */
static void rope_by_axes(struct call *c) {
    enum { AXES = 3 };
    int32_t frames = c->n[0], side = c->n[1], pairs = c->n[2] * c->n[3] / 2;
    struct tensor in = matrix(c, DTYPE_F32, frames * side * side, 2 * pairs);
    struct tensor table = context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){frames + 2 * side, pairs / AXES, 2});
    struct rotation rotation = {.heads = c->n[2],
                                .pairs = ROPE_HALVES,
                                .axes = {AXES, {frames, side, side}, .n_unrotated = pairs % AXES}};
    op_rope(c->x, operand(c, in.dim[0], in.dim[1]), in, table, rotation);
}

/* GLU with one gate per head (LTX-2.3). c->n holds: tokens, heads, head size. */
static void head_gates(struct call *c) {
    struct tensor a = matrix(c, DTYPE_F32, c->n[0], c->n[1]),
                  b = matrix(c, DTYPE_F32, c->n[0], c->n[1] * c->n[2]);
    op_glu(c->x, operand(c, c->n[0], b.dim[1]), a, b, ACTIVATION_SIGMOID_TWICE);
}

/* Group ranges of a text encoder's hidden states (LTX-2). c->n holds: tokens, columns. */
static void group_range(struct call *c) {
    enum { GROUPS = 4 };
    struct tensor in = context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){1, c->n[0], c->n[1]});
    op_group_range(c->x, matrix(c, DTYPE_F32, GROUPS, 2), in, GROUPS, 8, 1e-6f);
}

/* Operators on waves (LTX-2's vocoder). c->n holds: samples, channels. */
static void leaky_relu(struct call *c) {
    struct tensor wave = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_map(c->x, wave, wave, MAP_LEAKY_RELU, 0.1f);
}

static void snake(struct call *c) {
    struct snake weights = {row(c, c->n[1]), row(c, c->n[1]), row(c, SNAKE_TAPS), row(c, SNAKE_TAPS)};
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_snake(c->x, matrix(c, DTYPE_F32, c->n[0], c->n[1]), in, weights);
}

static void sinc_up(struct call *c) {
    enum { RATIO = 3 };
    struct tensor in = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_sinc_up(c->x, matrix(c, DTYPE_F32, RATIO * c->n[0], c->n[1]), in, (struct tensor){0}, RATIO);
}

static void swiglu(struct call *c) {
    struct tensor a = matrix(c, DTYPE_F32, c->n[0], c->n[1]), b = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_glu(c->x, operand(c, c->n[0], c->n[1]), a, b, ACTIVATION_SILU);
}

static void geglu(struct call *c) {
    struct tensor a = matrix(c, DTYPE_F32, c->n[0], c->n[1]), b = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_glu(c->x, operand(c, c->n[0], c->n[1]), a, b, ACTIVATION_GELU_TANH);
}

static void geglu_erf(struct call *c) {
    struct tensor both = matrix(c, DTYPE_F32, c->n[0], 2 * c->n[1]), a = both, b = both;
    a.dim[1] = b.dim[1] = c->n[1];
    b.data = (float *)b.data + c->n[1];
    op_glu(c->x, operand(c, c->n[0], c->n[1]), b, a, ACTIVATION_GELU_ERF);
}

static void add_row_to_all(struct call *c) {
    struct tensor a = matrix(c, DTYPE_F32, c->n[0], c->n[1]);
    op_add(c->x, a, a, matrix(c, DTYPE_F32, 1, c->n[1]));
}

static void copy_row_by_row(struct call *c) {
    op_copy(c->x, matrix(c, DTYPE_F32, c->n[0], c->n[1]), matrix(c, c->weights, c->n[0], c->n[1]));
}

static void broadcast_row(struct call *c) {
    op_broadcast_row(c->x, matrix(c, DTYPE_F32, c->n[0], c->n[1]), matrix(c, DTYPE_F32, 1, c->n[1]));
}

static struct tensor latent(struct call *c) {
    return context_tensor(c->x, DTYPE_F32, 3, (int32_t[]){16, c->s->latent, c->s->latent});
}

static void patchify(struct call *c) {
    op_patchify(c->x, matrix(c, DTYPE_F32, c->s->latent * c->s->latent / 4, 64), latent(c),
                (struct patches){.side = 2});
}

static void unpatchify(struct call *c) {
    op_unpatchify(c->x, latent(c), matrix(c, DTYPE_F32, c->s->latent * c->s->latent / 4, 64),
                  (struct patches){.side = 2}, -1);
}

static void timestep(struct call *c) {
    op_timestep(c->x, matrix(c, DTYPE_F32, 1, 256), 500, TIMESTEP_USUAL);
}

/* A 3x3 convolution. c->n holds: side of the input, input channels, output channels, upsampling factor. */
static void conv(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, c->n[0] * c->n[3], c->n[2]);
    struct tensor weight = context_tensor(c->x, DTYPE_BF16, 4, (int32_t[]){c->n[2], c->n[1], 3, 3});
    op_conv2d(c->x, out, in, weight, (struct epilogue){.bias = row(c, c->n[2])},
              (struct conv_options){.upsample = c->n[3]});
}

/* A 3x3 convolution of stride 2. c->n holds: input side (twice the output side), input channels, output
 * channels, padding before the first row and column. */
static void conv_strided(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, c->n[0] / 2, c->n[2]);
    struct tensor weight = context_tensor(c->x, DTYPE_BF16, 4, (int32_t[]){c->n[2], c->n[1], 3, 3});
    op_conv2d(c->x, out, in, weight, (struct epilogue){.bias = row(c, c->n[2])},
              (struct conv_options){.upsample = 1, .stride = 2, .pad_before = c->n[3]});
}

static int32_t groups_of(int32_t channels) {
    return channels < 32 ? channels / 4 : 32;
}

/* A VAE resnet's convolution: group norm and SiLU of the input, residual. */
static void conv_resnet(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, c->n[0], c->n[2]);
    struct tensor weight = context_tensor(c->x, DTYPE_BF16, 4, (int32_t[]){c->n[2], c->n[1], 3, 3});
    struct group_norm norm = {matrix(c, DTYPE_F32, groups_of(c->n[1]), 2), row(c, c->n[1]), row(c, c->n[1])};
    op_conv2d(c->x, out, in, weight, (struct epilogue){.bias = row(c, c->n[2]), .residual = out},
              (struct conv_options){.norm = norm, .activation = ACTIVATION_SILU, .upsample = 1});
}

/* A resnet's convolution with RMS norm per pixel, as in Qwen-Image's VAE. */
static void conv_pixel(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, c->n[0], c->n[2]);
    struct tensor weight = context_tensor(c->x, DTYPE_BF16, 4, (int32_t[]){c->n[2], c->n[1], 3, 3});
    struct conv_options o = {.pixel_norm = {row(c, c->n[1]), 1e-26f}, .activation = ACTIVATION_SILU};
    o.upsample = 1;
    op_conv2d(c->x, out, in, weight, (struct epilogue){.bias = row(c, c->n[2]), .residual = out}, o);
}

/* One output frame of a causal 3D convolution over three frames. Each frame is normalised once; this case
 * normalises the newest frame. */
static void conv_over_time(struct call *c) {
    enum { SLICES = 3 };
    int32_t side = c->n[0], channels = c->n[1], n[] = {side * side, channels};
    struct tensor in = matrix(c, DTYPE_F32, n[0], n[1]), out = picture(c, side, channels), frame[SLICES];
    struct epilogue e = {.bias = row(c, channels)};
    for (int i = 0; i < SLICES; i++) frame[i] = picture(c, side, channels);
    op_rms_norm(c->x, tensor_reshape(frame[SLICES - 1], 2, n), in, row(c, channels), 1e-26f,
                (struct modulation){.activation = ACTIVATION_SILU});
    for (int i = 0; i < SLICES; i++, e = (struct epilogue){.residual = out}) {
        struct tensor weight = context_tensor(c->x, DTYPE_BF16, 4, (int32_t[]){channels, channels, 3, 3});
        op_conv2d(c->x, out, frame[i], weight, e, (struct conv_options){.upsample = 1});
    }
}

/* A downsampling shortcut of the VAE (op_mean_down). c->n holds: side of the coarse image, its channels,
 * channels of the fine image. */
static void mean_down(struct call *c) {
    struct tensor in = picture(c, 2 * c->n[0], c->n[2]), before = picture(c, 2 * c->n[0], c->n[2]);
    struct tensor out = picture(c, c->n[0], c->n[1]);
    op_mean_down(c->x, out, in, before, out, (struct shortcut){2, 2, 0});
}

static void repeat_up(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, 2 * c->n[0], c->n[2]);
    op_repeat_up(c->x, out, in, out, (struct shortcut){2, 2, 1});
}

static void group_statistics(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = matrix(c, DTYPE_F32, groups_of(c->n[1]), 2);
    op_group_statistics(c->x, out, in, (struct rows_before){0}, out.dim[0], 1e-6f);
}

static void group_norm(struct call *c) {
    struct tensor in = picture(c, c->n[0], c->n[1]), out = picture(c, c->n[0], c->n[1]);
    struct group_norm norm = {matrix(c, DTYPE_F32, groups_of(c->n[1]), 2), row(c, c->n[1]), row(c, c->n[1])};
    op_group_norm(c->x, out, in, norm);
}

static void latent_to_image(struct call *c) {
    op_latent_to_image(c->x, picture(c, c->s->latent, 16), latent(c),
                       (struct latent_format){.n = 1, .scale = {0.3611f}, .shift = {0.1159f}});
}

static void image_to_rgb(struct call *c) {
    struct tensor in = picture(c, c->s->side, 3), out = context_tensor(c->x, DTYPE_U8, 3, in.dim);
    op_image_to_rgb(c->x, out, in);
}

struct bench_case {
    const char *name, *what;
    void (*forward)(struct call *c);
    int32_t n[4];
    enum dtype weights;
    enum op_class class;
    int calls; /* calls per layer or decoded image: weight in the rate of the class; 0: not counted */
};

struct list {
    struct bench_case cases[200];
    int n;
};

static void add(struct list *l, struct bench_case c) {
    if (l->n < (int)(sizeof l->cases / sizeof *l->cases)) l->cases[l->n++] = c;
}

/* clang-format off */
static void list_products(struct list *l, const struct sizes *s) {
    enum op_class p = CLASS_LINEAR_BF16;
    enum dtype bf16 = DTYPE_BF16;
    add(l, (struct bench_case){"linear", "q, k, v, out", linear, {s->T, s->C, s->C}, bf16, p, 4});
    add(l, (struct bench_case){"linear", "w1, w3, a chunk", linear, {s->chunk, s->C, s->F}, bf16, p, 4});
    add(l, (struct bench_case){"linear", "w2, a chunk", linear, {s->chunk, s->F, s->C}, bf16, p, 2});
    for (int i = 0; i < 3; i++) {
        add(l, (struct bench_case){"linear", "w1, other chunks", linear, {s->chunks[i], s->C, s->F}, bf16, p, 0});
        add(l, (struct bench_case){"linear", "w2, other chunks", linear, {s->chunks[i], s->F, s->C}, bf16, p, 0});
    }
    add(l, (struct bench_case){"linear", "w1 without chunks", linear, {s->T, s->C, s->F}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "q, f16 weights", linear, {s->T, s->C, s->C}, DTYPE_F16, p, 0});
    add(l, (struct bench_case){"linear", "q, f32 weights", linear, {s->T, s->C, s->C}, DTYPE_F32, p, 0});
    add(l, (struct bench_case){"linear", "embedder", linear, {s->T - s->T % 32, 64, s->C}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "final", linear, {s->T - s->T % 32, s->C, 64}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "text feed-forward", linear, {s->text, s->text_C, s->text_F}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "Flux.1's ff, GELU", linear_gelu, {s->flux_T, s->flux_C, s->flux_F}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "Flux.1's ff, gate and residual", linear_gated, {s->flux_T, s->flux_F, s->flux_C}, bf16, p, 0});
    add(l, (struct bench_case){"linear", "the roof's size", linear, {s->roof, s->roof, s->roof}, bf16, p, 0});
}

static void list_attention(struct list *l, const struct sizes *s) {
    static const int32_t heads[] = {40, 64, 80, 96, 128, 160};
    enum op_class a = CLASS_ATTENTION;
    add(l, (struct bench_case){"attention", "a layer", attention, {s->T, s->H, s->H, s->D}, 0, a, 1});
    add(l, (struct bench_case){"attention", "text, causal, grouped", attention, {s->text, 32, 8, s->D}, 0, a, 0});
    for (int i = 0; i < 6; i++)
        add(l, (struct bench_case){"attention", "heads of other sizes", attention, {s->T, s->C / heads[i], s->C / heads[i], heads[i]}, 0, a, 0});
    add(l, (struct bench_case){"attention", "heads of other sizes", attention, {s->T, 4, 4, 384}, 0, a, 0});
    add(l, (struct bench_case){"attention", "T5's, with bias", attention_biased, {s->text, s->t5_H, s->t5_D}, 0, a, 0});
    add(l, (struct bench_case){"attention", "the decoder's", attention, {s->latent * s->latent, 1, 1, s->wide}, 0, a, 0});
}

static void list_bytes(struct list *l, const struct sizes *s) {
    enum op_class b = CLASS_BYTES;
    add(l, (struct bench_case){"rms_norm", "modulated", rms_norm, {s->T, s->C}, 0, b, 2});
    add(l, (struct bench_case){"rms_norm", "gate and residual", rms_norm_gated, {s->T, s->C}, 0, b, 2});
    add(l, (struct bench_case){"rms_norm", "a chunk", rms_norm, {s->chunk, s->C}, 0, b, 0});
    add(l, (struct bench_case){"layer_norm", "", layer_norm, {s->T, s->C}, 0, b, 0});
    add(l, (struct bench_case){"layer_norm", "scale and shift", layer_norm_modulated, {s->flux_T, s->flux_C}, 0, b, 0});
    add(l, (struct bench_case){"rope", "normed heads, interleaved", rope, {s->T, s->H, s->D, ROPE_INTERLEAVED}, 0, b, 2});
    add(l, (struct bench_case){"rope", "normed heads, halves", rope, {s->T, s->H, s->D, ROPE_HALVES}, 0, b, 0});
    add(l, (struct bench_case){"rope_table", "", rope_table, {s->latent * s->latent / 4, 128}, 0, b, 0});
    add(l, (struct bench_case){"rope_axis", "", rope_axis, {s->latent, s->C / 6}, 0, b, 0});
    add(l, (struct bench_case){"rope", "table by axis, halves", rope_by_axes, {s->latent / 8, s->latent / 8, s->H, s->D}, 0, b, 0});
    add(l, (struct bench_case){"glu", "one gate per head", head_gates, {s->T, s->H, s->D}, 0, b, 0});
    add(l, (struct bench_case){"group_range", "", group_range, {s->text, s->text_F}, 0, b, 0});
    add(l, (struct bench_case){"map", "leaky ReLU", leaky_relu, {40 * s->side, s->wide / 4}, 0, b, 0});
    add(l, (struct bench_case){"snake", "", snake, {40 * s->side, s->wide / 4}, 0, b, 0});
    add(l, (struct bench_case){"sinc_up", "ratio 3", sinc_up, {40 * s->side, 2}, 0, b, 0});
    add(l, (struct bench_case){"glu", "a chunk", swiglu, {s->chunk, s->F}, 0, b, 2});
    add(l, (struct bench_case){"glu", "all", swiglu, {s->T, s->F}, 0, b, 0});
    add(l, (struct bench_case){"glu", "T5's, GELU", geglu, {s->text, s->t5_F}, 0, b, 0});
    add(l, (struct bench_case){"add", "a row to all", add_row_to_all, {s->T, s->C}, 0, b, 0});
    add(l, (struct bench_case){"distance_bias", "T5's", relative_bias, {s->text, s->t5_H}, 0, b, 0});
    add(l, (struct bench_case){"widen", "bf16", copy_row_by_row, {s->T, s->C}, DTYPE_BF16, b, 0});
    add(l, (struct bench_case){"widen", "f32", copy_row_by_row, {s->T, s->C}, DTYPE_F32, b, 0});
    add(l, (struct bench_case){"repeat_row", "", broadcast_row, {s->T, s->C}, 0, b, 0});
    add(l, (struct bench_case){"linear_few", "adaLN of 8 steps", linear_few, {8, 256, 4 * s->C}, DTYPE_BF16, b, 0});
    add(l, (struct bench_case){"linear_few", "adaLN of a step", linear_few, {1, 256, 4 * s->C}, DTYPE_BF16, b, 0});
    add(l, (struct bench_case){"patchify", "", patchify, {16, s->latent}, 0, b, 0});
    add(l, (struct bench_case){"unpatchify", "", unpatchify, {16, s->latent}, 0, b, 0});
    add(l, (struct bench_case){"timestep", "", timestep, {1, 256}, 0, b, 0});
}

/* Quantised matrix products, compared with bf16. Dequantisation is a large share of the time for the rows of
 * a chunk, and a small share for the rows of a whole image. */
static void list_quantised(struct list *l, const struct sizes *s) {
    for (int i = 0; i < N_DTYPES; i++) {
        enum dtype type = (enum dtype)i;
        if (type != DTYPE_BF16 && !(dtype_is_weight(type) && dtype_is_quantised(type))) continue;
        add(l, (struct bench_case){"linear", dtype_name(type), linear, {s->T, s->C, s->C}, type, CLASS_LINEAR_BF16, 0});
        add(l, (struct bench_case){"linear", dtype_name(type), linear, {s->chunk, s->C, s->F}, type, CLASS_LINEAR_BF16, 0});
        add(l, (struct bench_case){"linear_few", dtype_name(type), linear_few, {1, 256, 4 * s->C}, type, CLASS_BYTES, 0});
    }
}

/* A layer's products and attention with PRECISION_INT8. */
static void list_int8(struct list *l, const struct sizes *s) {
    enum op_class p = CLASS_LINEAR_INT8;
    enum dtype bf16 = DTYPE_BF16;
    add(l, (struct bench_case){"linear", "int8, q, k, v, out", linear, {s->T, s->C, s->C}, bf16, p, 4});
    add(l, (struct bench_case){"linear", "int8, w1, w3, a chunk", linear, {s->chunk, s->C, s->F}, bf16, p, 4});
    add(l, (struct bench_case){"linear", "int8, w2, a chunk", linear, {s->chunk, s->F, s->C}, bf16, p, 2});
    add(l, (struct bench_case){"linear", "int8, q, stored int8", linear, {s->T, s->C, s->C}, DTYPE_I8, p, 0});
    add(l, (struct bench_case){"attention", "int8, a layer", attention, {s->T, s->H, s->H, s->D}, DTYPE_I8, CLASS_ATTENTION, 0});
}

static void list_decoder(struct list *l, const struct sizes *s) {
    enum op_class c = CLASS_CONV, b = CLASS_BYTES;
    int32_t n = s->wide, side = s->side;
    add(l, (struct bench_case){"conv2d", "in", conv, {side / 8, 16, n, 1}, 0, c, 1});
    add(l, (struct bench_case){"conv2d", "resnet, level 1", conv_resnet, {side / 8, n, n}, 0, c, 10});
    add(l, (struct bench_case){"conv2d", "resnet, level 2", conv_resnet, {side / 4, n, n}, 0, c, 6});
    add(l, (struct bench_case){"conv2d", "resnet, level 3", conv_resnet, {side / 2, n / 2, n / 2}, 0, c, 5});
    add(l, (struct bench_case){"conv2d", "resnet, level 4", conv_resnet, {side, n / 4, n / 4}, 0, c, 5});
    add(l, (struct bench_case){"conv2d", "upsample to level 2", conv, {side / 8, n, n, 2}, 0, c, 1});
    add(l, (struct bench_case){"conv2d", "upsample to level 4", conv, {side / 2, n / 2, n / 2, 2}, 0, c, 1});
    add(l, (struct bench_case){"conv2d", "the encoder's first stride", conv_strided, {side, n / 4, n / 4}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "out", conv, {side, n / 4, 3, 1}, 0, c, 1});
    add(l, (struct bench_case){"group_statistics", "level 1", group_statistics, {side / 8, n}, 0, b, 0});
    add(l, (struct bench_case){"group_statistics", "level 4", group_statistics, {side, n / 4}, 0, b, 0});
    add(l, (struct bench_case){"group_norm", "level 1", group_norm, {side / 8, n}, 0, b, 0});
    add(l, (struct bench_case){"latent_to_image", "", latent_to_image, {16, s->latent}, 0, b, 0});
    add(l, (struct bench_case){"image_to_rgb", "", image_to_rgb, {side, 3}, 0, b, 0});
}

/* Stable Diffusion XL. */
static void list_unet(struct list *l, const struct sizes *s) {
    enum op_class c = CLASS_CONV;
    int32_t n = s->unet, side = s->latent;
    add(l, (struct bench_case){"conv2d", "UNet, in", conv, {side, 4, n, 1}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, resnet, level 1", conv_resnet, {side, n, n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, resnet, level 2", conv_resnet, {side / 2, 2 * n, 2 * n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, resnet, level 3", conv_resnet, {side / 4, 4 * n, 4 * n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, with a skip, level 3", conv_resnet, {side / 4, 8 * n, 4 * n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, downsample to level 3", conv_strided, {side / 2, 2 * n, 2 * n, 1}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, upsample to level 2", conv, {side / 4, 4 * n, 4 * n, 2}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "UNet, out", conv, {side, n, 4, 1}, 0, c, 0});
    add(l, (struct bench_case){"attention", "UNet, level 2", attention, {side * side / 4, n / 32, n / 32, 64}, 0, CLASS_ATTENTION, 0});
    add(l, (struct bench_case){"glu", "UNet, GELU by erf, level 3", geglu_erf, {side * side / 16, 16 * n}, 0, CLASS_BYTES, 0});
}

/* Cases of Qwen-Image: one window of the vision encoder; VAE resnets with the largest image and with the
 * most channels. */
static void list_qwen_image(struct list *l, const struct sizes *s) {
    enum op_class c = CLASS_CONV;
    int32_t n = s->wide * 3 / 16, side = s->side;
    add(l, (struct bench_case){"attention", "Qwen2.5-VL, a window", attention, {64, 16, 16, 80}, 0, CLASS_ATTENTION, 0});
    add(l, (struct bench_case){"conv2d", "Qwen-Image, resnet, level 4", conv_pixel, {side, n, n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "Qwen-Image, resnet, level 1", conv_pixel, {side / 8, 4 * n, 4 * n}, 0, c, 0});
    add(l, (struct bench_case){"conv2d", "Qwen-Image, out", conv_pixel, {side, n, 3}, 0, c, 0});
}

/* Cases of Wan: a transformer layer, and operators of the Wan 2.2 VAE. */
static void list_wan(struct list *l, const struct sizes *s) {
    int32_t T = s->video_T, C = s->video_C, H = C / s->D, n = s->vae_channels, side = s->vae_side;
    enum op_class p = CLASS_LINEAR_BF16, a = CLASS_ATTENTION;
    add(l, (struct bench_case){"attention", "Wan, a layer", attention, {T, H, H, s->D}, 0, a, 0});
    add(l, (struct bench_case){"attention", "Wan 2.2, the encoder's", attention, {side * side / 64, 1, 1, 5 * n / 2}, 0, a, 0});
    add(l, (struct bench_case){"attention", "Wan 2.2, the decoder's", attention, {side * side / 64, 1, 1, 4 * n}, 0, a, 0});
    add(l, (struct bench_case){"linear", "Wan's ff, GELU, a chunk", linear_gelu, {s->video_chunk, C, s->video_F}, DTYPE_BF16, p, 0});
    add(l, (struct bench_case){"linear", "Wan's ff, gate, a chunk", linear_gated, {s->video_chunk, s->video_F, C}, DTYPE_BF16, p, 0});
    add(l, (struct bench_case){"conv2d", "Wan 2.2, over time, level 4", conv_over_time, {side, n}, 0, CLASS_CONV, 0});
    add(l, (struct bench_case){"conv2d", "Wan 2.2, over time, level 1", conv_over_time, {side / 8, 4 * n}, 0, CLASS_CONV, 0});
    add(l, (struct bench_case){"mean_down", "Wan 2.2, level 2", mean_down, {side / 4, n, n / 2}, 0, CLASS_BYTES, 0});
    add(l, (struct bench_case){"repeat_up", "Wan 2.2, level 2", repeat_up, {side / 4, 4 * n, 4 * n}, 0, CLASS_BYTES, 0});
}
/* clang-format on */

struct roofs {
    double products, copy; /* measured peak FLOPs and bytes per second; 0: not measured */
};

static enum status queue_copy(void *user, struct error *e) {
    struct rig *rig = user;
    return cuda_check(cudaMemcpyAsync(rig->memory, rig->memory + rig->bytes / 2, rig->bytes / 2,
                                      cudaMemcpyDeviceToDevice, rig->cuda->compute),
                      "cudaMemcpyAsync", e);
}

static enum status measure_roofs(struct rig *rig, const struct sizes *s, struct roofs *roofs,
                                 struct error *e) {
    double seconds = 0, side = s->roof;
    uint64_t bytes = s == &tiny ? 2 << 20 : (uint64_t)2 << 30;
    *roofs = (struct roofs){0};
    if (library_time_product(rig, s->roof, s->roof, s->roof, &seconds, e) == OK)
        roofs->products = 2 * side * side * side / seconds;
    *e = e->code == DEVICE ? *e : (struct error){0};
    if (e->code == OK && rig_take(rig, bytes, e) == OK && rig_time(rig, queue_copy, rig, &seconds, e) == OK)
        roofs->copy = (double)rig->bytes / seconds;
    return e->code;
}

struct measuring {
    struct rig *rig;
    const struct sizes *s;
    struct roofs roofs;
    const struct cuda_card *card; /* GPU model whose calculated times are added to rows; NULL: none */
    json_t *rows;
    double work[N_OP_CLASSES], seconds[N_OP_CLASSES];
    void (*on_row)(const json_t *row);
};

struct queued {
    struct call call;
    void (*forward)(struct call *c);
};

static enum status queue_case(void *user, struct error *e) {
    struct queued *q = user;
    q->call.x->scratch->used = 0;
    q->forward(&q->call);
    return e->code;
}

/* Finds a case's memory, and its work in FLOPs or bytes, on the dry device: at rates of 1 per second the
 * predicted seconds equal the work. */
static enum status measure_dry(struct measuring *m, struct queued *q, struct context *x, double *work) {
    struct op_rates ones;
    struct arena counting = arena_counting();
    struct dry dry;
    struct context real_context = *x;
    for (int i = 0; i < N_OP_CLASSES; i++) ones.per_second[i] = 1;
    dry_init(&dry, &m->rig->sys, m->rig->device, true);
    dry.rates = &ones;
    x->device = &dry.device;
    x->scratch = &counting;
    queue_case(q, x->error);
    *work = dry.seconds;
    real_context.workspace_bytes = dry.workspace_bytes;
    real_context.scratch->bytes = counting.peak;
    *x = real_context;
    dry_destroy(&dry);
    return x->error->code;
}

/* Returns the precision of a case. Attention has no weights; weights of I8 mark its int8 case. */
static enum precision precision_of(const struct bench_case *c) {
    bool int8 = c->class == CLASS_LINEAR_INT8 || (c->class == CLASS_ATTENTION && c->weights == DTYPE_I8);
    return int8 ? PRECISION_INT8 : PRECISION_BF16;
}

static enum status time_case(struct measuring *m, const struct bench_case *c, double *work, double *seconds,
                             struct error *e) {
    struct arena arena = {0};
    struct context x = {
        .device = m->rig->device, .precision = precision_of(c), .scratch = &arena, .error = e};
    struct queued q = {{.s = m->s, .x = &x, .weights = c->weights}, c->forward};
    const char *refused = m->rig->device->unsupported[precision_of(c)];
    if (refused) return error_set(e, USAGE, "not supported: %s", refused);
    for (int i = 0; i < 4; i++) q.call.n[i] = c->n[i];
    if (measure_dry(m, &q, &x, work) != OK) return e->code;
    if (rig_take(m->rig, arena.bytes + x.workspace_bytes, e) != OK) return e->code;
    arena.base = m->rig->memory;
    x.workspace = arena.base + arena.bytes;
    return rig_time(m->rig, queue_case, &q, seconds, e);
}

static double roof_of(const struct measuring *m, enum op_class class, const char **name) {
    *name = class == CLASS_BYTES ? "copy" : class == CLASS_CONV ? "products/2" : "products";
    return class == CLASS_LINEAR_INT8 ? 0 /* not measured */
           : class == CLASS_BYTES     ? m->roofs.copy
           : class == CLASS_CONV      ? m->roofs.products / 2
                                      : m->roofs.products;
}

static void name_shape(const struct bench_case *c, char *out, size_t bytes) {
    int n = snprintf(out, bytes, "%s%s", c->what, c->what[0] ? " " : "");
    for (int i = 0; i < 4 && (i == 0 || c->n[i]); i++)
        n += snprintf(out + n, bytes - (size_t)n, "%s%d", i ? "x" : "", (int)c->n[i]);
}

static void put_rate(const struct measuring *m, json_t *line, enum op_class class, double work,
                     double seconds) {
    const char *roof_name, *key = class == CLASS_BYTES ? "bytes_per_second" : "flops_per_second";
    double roof = roof_of(m, class, &roof_name);
    json_object_set_new(line, "seconds", json_real(seconds));
    json_object_set_new(line, key, json_real(work / seconds));
    if (roof <= 0) return;
    json_object_set_new(line, "roof", json_string(roof_name));
    json_object_set_new(line, "share", json_real(work / seconds / roof));
}

/* Adds the calculated time of a case, and the efficiency constant for which it equals the measured time. */
static void put_calculated(const struct measuring *m, const struct bench_case *c, json_t *line,
                           double seconds) {
    struct calculated calculated;
    struct arena counting = arena_counting();
    struct error e = {0};
    struct context x = {
        .device = &calculated.device, .precision = precision_of(c), .scratch = &counting, .error = &e};
    struct queued q = {{.s = m->s, .x = &x, .weights = c->weights}, c->forward};
    double value = 0;
    if (!m->card) return;
    for (int i = 0; i < 4; i++) q.call.n[i] = c->n[i];
    calculated_init(&calculated, m->rig->device, m->card);
    if (queue_case(&q, &e) != OK) return;
    json_object_set_new(line, "calculated_seconds", json_real(calculated.seconds));
    const char *constant = calculated_constant(&calculated, seconds, &value);
    if (!constant) return;
    json_object_set_new(line, "constant", json_string(constant));
    json_object_set_new(line, "measured_constant", json_real(value));
}

static void add_row(struct measuring *m, json_t *line, const struct error *e) {
    char text[1024];
    if (e->code != OK) json_object_set_new(line, "error", json_string(error_line(e, text, sizeof text)));
    json_array_append_new(m->rows, line);
    m->on_row(line);
}

/* Measures one benchmark case. False: the GPU is lost, so no further case can be measured. */
static bool measure_case(struct measuring *m, const struct bench_case *c) {
    struct error e = {0};
    char shape[128];
    double work = 0, seconds = 0;
    time_case(m, c, &work, &seconds, &e);
    name_shape(c, shape, sizeof shape);
    json_t *line = json_pack("{s:s, s:s}", "op", c->name, "shape", shape);
    if (e.code == OK && seconds > 0) {
        put_rate(m, line, c->class, work, seconds);
        put_calculated(m, c, line, seconds);
    }
    if (e.code == OK && c->calls) {
        m->work[c->class] += c->calls * work;
        m->seconds[c->class] += c->calls * seconds;
    }
    add_row(m, line, &e);
    rig_give(m->rig);
    return e.code != DEVICE;
}

/* Measures cuBLASLt's matrix products alone, at the sizes of a transformer layer. */
static bool measure_library(struct measuring *m) {
    const struct sizes *s = m->s;
    const int32_t sizes[][3] = {
        {s->T, s->C, s->C},         {s->T, s->C, s->F},         {s->T, s->F, s->C},
        {s->chunk, s->C, s->F},     {s->chunk, s->F, s->C},     {s->chunks[0], s->C, s->F},
        {s->chunks[0], s->F, s->C}, {s->chunks[1], s->C, s->F}, {s->chunks[1], s->F, s->C},
        {s->chunks[2], s->C, s->F}, {s->chunks[2], s->F, s->C}};
    struct error e = {0};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes) && e.code != DEVICE; i++) {
        char shape[64];
        double seconds = 0, work = 2.0 * sizes[i][0] * sizes[i][1] * sizes[i][2];
        e = (struct error){0};
        snprintf(shape, sizeof shape, "%dx%dx%d", (int)sizes[i][0], (int)sizes[i][1], (int)sizes[i][2]);
        json_t *line = json_pack("{s:s, s:s}", "op", "product, the library alone", "shape", shape);
        if (library_time_product(m->rig, sizes[i][0], sizes[i][1], sizes[i][2], &seconds, &e) == OK &&
            seconds > 0)
            put_rate(m, line, CLASS_LINEAR_BF16, work, seconds);
        add_row(m, line, &e);
    }
    return e.code != DEVICE;
}

static json_t *rates_of(const struct measuring *m) {
    json_t *rates = json_object();
    for (int i = 0; i < N_OP_CLASSES; i++)
        if (m->seconds[i] > 0)
            json_object_set_new(rates, op_class_name((enum op_class)i),
                                json_real(m->work[i] / m->seconds[i]));
    return rates;
}

const char *const operators_groups[] = {"products",   "attention", "bytes",     "decoder", "unet",
                                        "qwen_image", "wan",       "quantised", "int8",    NULL};

json_t *operators_measure(struct rig *rig, const struct operators_options *options,
                          void (*on_row)(const json_t *row)) {
    static void (*const lists[])(struct list * l, const struct sizes *s) = {
        list_products,   list_attention, list_bytes,     list_decoder, list_unet,
        list_qwen_image, list_wan,       list_quantised, list_int8};
    struct measuring m = {.rig = rig,
                          .s = options->small ? &tiny : &real,
                          .card = options->card,
                          .rows = json_array(),
                          .on_row = on_row};
    struct list list = {0};
    struct error e = {0};
    char line[1024];
    const char *only = options->group;
    bool sound = measure_roofs(rig, m.s, &m.roofs, &e) != DEVICE;
    if (sound && (!only || !strcmp(only, "products"))) sound = measure_library(&m);
    for (int i = 0; operators_groups[i]; i++)
        if (!only || !strcmp(only, operators_groups[i])) lists[i](&list, m.s);
    for (int i = 0; i < list.n && sound; i++) sound = measure_case(&m, &list.cases[i]);
    json_t *all = json_pack("{s:{s:f, s:f}, s:o, s:o, s:b}", "roofs", "products_flops_per_second",
                            m.roofs.products, "copy_bytes_per_second", m.roofs.copy, "rows", m.rows, "rates",
                            rates_of(&m), "complete", sound);
    if (e.code != OK) json_object_set_new(all, "error", json_string(error_line(&e, line, sizeof line)));
    return all;
}
