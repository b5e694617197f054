/* Vocoders of LTX-2: turn a log-mel spectrogram [T, channels * bins] into samples.
 *
 * A generator (HiFi-GAN) is a convolution over time, then levels, then an activation and a last convolution.
 * A level is a transposed convolution (upsampling by the level's factor, half as many channels) and residual
 * blocks of different kernel sizes, whose results are averaged. LTX-2.0: leaky ReLU, tanh at the end, 24 kHz.
 * LTX-2.3: snake activation (op_snake), 16 kHz, then bandwidth extension: a second generator reads the
 * log-mel spectrogram of these samples. Its samples at 48 kHz are added to the first ones, which are
 * upsampled by a windowed sinc, and the sum is clamped.
 *
 * A convolution of k taps is a sum of k matrix products: tap j reads the input rows shifted by dilation (j -
 * k/2). Files store kernels as [N, C, k]; each block copies its taps to k matrices in scratch memory. A
 * convolution's input lies between rows of zeros. A transposed convolution with factor f computes output row
 * f t + r from the taps j with j = r + (k - f)/2 modulo f, each a product with input rows shifted by whole
 * rows.
 *
 * Each operator runs over the whole wave. A level uses three buffers: p for its input, q for the upsampled
 * wave, s for the sum of the residual blocks. After the upsampling the residual blocks work in p. The next
 * level's p is s. Two more buffers hold a convolution's input and output.
 *
 * Reference: diffusers 0.42, pipelines/ltx2/vocoder.py. */
#include "models/models.h"

#include <math.h>
#include <stdio.h>

enum {
    VOCODER_LEVELS_MAX = 8,
    VOCODER_KERNELS_MAX = 4, /* residual blocks per level */
    VOCODER_DILATIONS = 3,   /* pairs of convolutions in a residual block; dilation of pair i: 1 + 2i */
    VOCODER_KERNEL_MAX = 15, /* of residual blocks */
    VOCODER_ENDS_KERNEL = 7, /* of a generator's first and last convolution */
    VOCODER_PAD = (2 * VOCODER_DILATIONS - 1) * (VOCODER_KERNEL_MAX / 2), /* rows of zeros on each side */
    VOCODER_GENERATORS = 2,
    VOCODER_WAVES = 3, /* buffers p, q and s */
};

/* Dimensions of a generator, from VOC_GENERATOR + i * GENERATOR_DIMS on. */
enum generator_dim {
    GENERATOR_INPUTS,
    GENERATOR_CHANNELS, /* of the first convolution */
    GENERATOR_OUTPUTS,
    GENERATOR_LEVELS,
    GENERATOR_BLOCKS,                                        /* residual blocks of all levels */
    GENERATOR_BIAS,                                          /* 1: the last convolution has a bias */
    GENERATOR_KERNELS,                                       /* kernels of a level's residual blocks */
    GENERATOR_UPS = GENERATOR_KERNELS + VOCODER_KERNELS_MAX, /* kernels of the upsampling convolutions */
    GENERATOR_DIMS = GENERATOR_UPS + VOCODER_LEVELS_MAX,
};

/* Indices into component.dims. */
enum vocoder_dim {
    VOC_EXTENDED, /* 1: snake activation and bandwidth extension (2.3) */
    VOC_BASIS,    /* rows of the Fourier basis: real parts, then imaginary parts */
    VOC_WINDOW,
    VOC_FREQUENCIES,
    VOC_BINS,
    VOC_ONE,
    VOC_TAPS,
    VOC_IN, /* VOC_IN to VOC_BIAS: of one block, set by vocoder_block_dims */
    VOC_OUT,
    VOC_KERNEL,
    VOC_BIAS,
    VOC_GENERATOR, /* first dimension of the first generator */
};

struct vocoder_settings {
    float factors[VOCODER_GENERATORS][VOCODER_LEVELS_MAX]; /* upsampling factors */
    int32_t levels[VOCODER_GENERATORS], kernels[VOCODER_GENERATORS];
    float slope;          /* of the leaky ReLU */
    int rate, input_rate; /* sampling rates of the result and of the first generator (LTX-2.3), in Hz */
    int hop;              /* samples per frame of the bandwidth extension's spectrogram */
    bool extended;        /* VOC_EXTENDED */
};

struct vocoder_size {
    int32_t rows, columns;
};

struct vocoder_state {
    struct tensor wave[VOCODER_WAVES];
    struct tensor in, out;   /* input and output of one convolution */
    struct tensor base, mel; /* samples of the first generator [N, channels] and their spectrogram */
    /* Size of each level's input p; after the last level: of its result. */
    struct vocoder_size size[VOCODER_GENERATORS][VOCODER_LEVELS_MAX + 2];
};

/* ---- weights ---- */

/* clang-format off */
#define CONV_1D(X, S, field, out, in, kernel, name, checkpoint)                                              \
    X##WEIGHT(S, field.weight, SHAPED(3, out, in, kernel), name ".weight", checkpoint ".weight")             \
    X##BIAS(S, field.bias, out, name, checkpoint)
#define SNAKE(X, S, field, columns, name, checkpoint)                                                        \
    X##WEIGHT(S, field.alpha, SHAPED(1, columns), name ".act.alpha", checkpoint ".act.alpha")                \
    X##WEIGHT(S, field.beta, SHAPED(1, columns), name ".act.beta", checkpoint ".act.beta")                   \
    X##WEIGHT(S, field.up, SHAPED(3, VOC_ONE, VOC_ONE, VOC_TAPS), name ".upsample.filter",                   \
              checkpoint ".upsample.filter")                                                                 \
    X##WEIGHT(S, field.down, SHAPED(3, VOC_ONE, VOC_ONE, VOC_TAPS), name ".downsample.filter",               \
              checkpoint ".downsample.lowpass.filter")

#define VOC_FIRST(X, S) CONV_1D(X, S, conv, VOC_OUT, VOC_IN, VOC_KERNEL, "conv_in", "conv_pre")
struct vocoder_conv_weights { struct linear_weights conv; };
#define VOC_UP(X, S)                                                                                         \
    X##WEIGHT(S, conv.weight, SHAPED(3, VOC_IN, VOC_OUT, VOC_KERNEL), "upsamplers.%d.weight", "ups.%d.weight") \
    X##BIAS(S, conv.bias, VOC_OUT, "upsamplers.%d", "ups.%d")
#define VOC_CONVS(X, S, i, list)                                                                             \
    CONV_1D(X, S, list[i], VOC_OUT, VOC_OUT, VOC_KERNEL, "resnets.%d." #list "." #i, "resblocks.%d." #list "." #i)
#define VOC_ACTS(X, S, i, list)                                                                              \
    SNAKE(X, S, list[i], VOC_OUT, "resnets.%d." #list "." #i, "resblocks.%d." #list "." #i)
#define VOC_LEAKY_BLOCK(X, S)                                                                                \
    VOC_CONVS(X, S, 0, convs1) VOC_CONVS(X, S, 1, convs1) VOC_CONVS(X, S, 2, convs1)                         \
    VOC_CONVS(X, S, 0, convs2) VOC_CONVS(X, S, 1, convs2) VOC_CONVS(X, S, 2, convs2)
#define VOC_SNAKE_BLOCK(X, S)                                                                                \
    VOC_LEAKY_BLOCK(X, S)                                                                                    \
    VOC_ACTS(X, S, 0, acts1) VOC_ACTS(X, S, 1, acts1) VOC_ACTS(X, S, 2, acts1)                               \
    VOC_ACTS(X, S, 0, acts2) VOC_ACTS(X, S, 1, acts2) VOC_ACTS(X, S, 2, acts2)
struct vocoder_block_weights {
    struct linear_weights convs1[VOCODER_DILATIONS], convs2[VOCODER_DILATIONS];
    struct snake acts1[VOCODER_DILATIONS], acts2[VOCODER_DILATIONS]; /* absent in 2.0 */
};
#define VOC_LEAKY_LAST(X, S)                                                                                 \
    X##WEIGHT(S, conv.weight, SHAPED(3, VOC_OUT, VOC_IN, VOC_KERNEL), "conv_out.weight", "conv_post.weight") \
    X##BIAS(IF_DIM(S, VOC_BIAS), conv.bias, VOC_OUT, "conv_out", "conv_post")
#define VOC_SNAKE_LAST(X, S)                                                                                 \
    VOC_LEAKY_LAST(X, S)                                                                                     \
    SNAKE(X, S, act, VOC_IN, "act_out", "act_post")
struct vocoder_last_weights {
    struct linear_weights conv;
    struct snake act; /* absent in 2.0 */
};
#define VOC_MEL(X, S)                                                                                        \
    X##WEIGHT(S, fourier, SHAPED(3, VOC_BASIS, VOC_ONE, VOC_WINDOW), "mel_stft.stft_fn.forward_basis")       \
    X##WEIGHT(S, mel, SHAPED(2, VOC_BINS, VOC_FREQUENCIES), "mel_stft.mel_basis")
struct vocoder_mel_weights { VOC_MEL(FIELD_, ) };

#define VOC_TABLES(name, P, BLOCK_LIST, LAST_LIST)                                                           \
    WEIGHT_TABLE(name##_first_table, VOC_FIRST, vocoder_conv_weights, P, P);                                 \
    WEIGHT_TABLE(name##_up_table, VOC_UP, vocoder_conv_weights, P, P);                                       \
    WEIGHT_TABLE(name##_block_table, BLOCK_LIST, vocoder_block_weights, P, P);                               \
    WEIGHT_TABLE(name##_last_table, LAST_LIST, vocoder_last_weights, P, P)
VOC_TABLES(voc_leaky, "", VOC_LEAKY_BLOCK, VOC_LEAKY_LAST);
VOC_TABLES(voc_snake, "vocoder.", VOC_SNAKE_BLOCK, VOC_SNAKE_LAST);
VOC_TABLES(voc_bandwidth, "bwe_generator.", VOC_SNAKE_BLOCK, VOC_SNAKE_LAST);
WEIGHT_TABLE(voc_mel_table, VOC_MEL, vocoder_mel_weights, "", "");
/* clang-format on */

/* ---- convolutions over time ---- */

/* Returns a wave [T, C] in `memory`, after `pad` rows. */
static struct tensor vocoder_wave(struct tensor memory, int32_t pad, int32_t T, int32_t C) {
    return tensor_reshape(tensor_slice(memory, pad * C, T * C), 2, (int32_t[]){T, C});
}

/* Returns the input of a convolution [T, C] in `memory`, for the caller to write. Fills VOCODER_PAD rows of
 * zeros before and after it. */
static struct tensor vocoder_input(struct context *x, struct tensor memory, int32_t T, int32_t C) {
    for (int32_t end = 0; end < 2; end++) {
        struct tensor zeros = vocoder_wave(memory, end * (VOCODER_PAD + T), VOCODER_PAD, C);
        op_map(x, zeros, zeros, MAP_FILL, 0);
    }
    return vocoder_wave(memory, VOCODER_PAD, T, C);
}

/* Returns rows [first, first + n) of a convolution's input; they may reach into the rows of zeros. */
static struct tensor vocoder_shifted(struct tensor in, int32_t first, int32_t n) {
    if (in.data) in.data = (char *)in.data + first * in.row_bytes;
    in.dim[0] = n;
    return in;
}

/* Copies tap j of a kernel [A, B, k] to a matrix [A, B] in f32. */
static struct tensor vocoder_tap(struct context *x, struct tensor kernel, int32_t j) {
    int32_t k = kernel.dim[2], dim[2] = {kernel.dim[0], kernel.dim[1]};
    struct tensor tap = context_tensor(x, DTYPE_F32, 2, dim), column = kernel;
    column.rank = 2, column.dim[0] = dim[0] * dim[1], column.dim[1] = 1;
    column.row_bytes = k * dtype_bytes(kernel.dtype, 1);
    if (column.data) column.data = (char *)column.data + j * dtype_bytes(kernel.dtype, 1);
    op_copy(x, tensor_reshape(tap, 2, column.dim), column);
    return tap;
}

/* out = residual + in . weight^T + bias. With few outputs, computed as a 1x1 convolution: the CPU device
 * divides the rows of convolutions among its threads, but the columns of products. */
static void vocoder_product(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                            struct tensor bias, struct tensor residual) {
    enum { PRODUCT_COLUMNS = 256 };
    int32_t N = weight.dim[0], C = weight.dim[1];
    struct epilogue e = {.bias = bias, .residual = residual};
    if (N >= PRODUCT_COLUMNS) {
        op_linear(x, out, in, weight, e);
        return;
    }
    struct tensor *rows[] = {&out, &in, &e.residual};
    for (int i = 0; i < COUNT_OF(rows); i++) {
        if (!rows[i]->rank) continue;
        rows[i]->rank = 3, rows[i]->dim[2] = rows[i]->dim[1], rows[i]->dim[1] = 1;
    }
    op_conv2d(x, out, in, tensor_reshape(weight, 4, (int32_t[]){N, C, 1, 1}), e,
              (struct conv_options){.upsample = 1});
}

/* Returns the rows per band of a convolution. A band stays in the processor's cache from tap to tap. Depends
 * on shapes alone (R3, kernels/README.md). */
static int32_t vocoder_band(int32_t C, int32_t N) {
    enum { VALUES = 1 << 20, ROWS_LEAST = 8192 };
    int32_t rows = VALUES / (C > N ? C : N);
    return rows > ROWS_LEAST ? rows : ROWS_LEAST;
}

/* out = residual + convolution of `in` (vocoder_input) + bias. residual: absent, or of out's shape. */
static void vocoder_convolve(struct context *x, struct tensor out, struct tensor in,
                             const struct linear_weights *w, int32_t dilation, struct tensor residual) {
    uint64_t used = x->scratch->used;
    struct tensor tap[VOCODER_KERNEL_MAX], none = {0};
    int32_t T = out.dim[0], k = w->weight.dim[2], band = vocoder_band(in.dim[1], out.dim[1]);
    for (int32_t j = 0; j < k; j++) tap[j] = vocoder_tap(x, w->weight, j);
    for (int32_t first = 0, n; first < T; first += n) {
        n = T - first < band ? T - first : band;
        struct tensor rows = tensor_slice(out, first, n);
        struct tensor added = residual.rank ? tensor_slice(residual, first, n) : none;
        for (int32_t j = 0; j < k; j++)
            vocoder_product(x, rows, vocoder_shifted(in, first + dilation * (j - k / 2), n), tap[j],
                            j ? none : w->bias, j ? rows : added);
    }
    x->scratch->used = used;
}

/* Transposed convolution: out [factor T, N] of `in` [T, C] (vocoder_input); kernel [C, N, k], k - factor
 * even. Computes the phases r of the output one by one; the first tap of a phase adds the bias. */
static void vocoder_upsample(struct context *x, struct tensor out, struct tensor in,
                             const struct linear_weights *w, int32_t factor) {
    int32_t T = in.dim[0], N = out.dim[1], C = in.dim[1], k = w->weight.dim[2], start = (k - factor) / 2;
    uint64_t used = x->scratch->used;
    struct tensor none = {0};
    for (int32_t r = 0; r < factor; r++) {
        struct tensor phase = tensor_slice(out, 0, T);
        phase.row_bytes = factor * out.row_bytes;
        if (phase.data) phase.data = (char *)phase.data + r * out.row_bytes;
        int32_t least = (r + start) % factor, taps = (k - 1 - least) / factor + 1;
        for (int32_t i = 0; i < taps; i++, x->scratch->used = used) {
            int32_t j = (r + start + i * factor) % (taps * factor), shift = (r + start - j) / factor;
            struct tensor tap = vocoder_tap(x, w->weight, j);
            struct tensor weight = context_tensor(x, DTYPE_F32, 2, (int32_t[]){N, C});
            op_patchify(x, weight, tensor_reshape(tap, 3, (int32_t[]){C, 1, N}),
                        (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
            vocoder_product(x, phase, vocoder_shifted(in, shift, T), weight, i ? none : w->bias,
                            i ? phase : none);
        }
    }
}

/* ---- blocks ---- */

static int vocoder_generator(const struct visit_scope *scope) {
    return scope->number / BLOCK_ROW_STEP;
}

/* Waves of a level: input p, upsampled wave q, sum s of the residual blocks. free: p's memory as a wave of
 * q's size. After the last level: only p, the result. */
struct vocoder_level {
    struct tensor p, q, s, free;
};

static struct vocoder_level vocoder_level(const struct visit_scope *scope, int level) {
    const struct vocoder_state *state = scope->lane->state;
    const struct vocoder_size *size = &state->size[vocoder_generator(scope)][level];
    int p = 2 * level % VOCODER_WAVES, q = (p + 1) % VOCODER_WAVES, s = (p + 2) % VOCODER_WAVES;
    struct vocoder_level l = {.p = vocoder_wave(state->wave[p], 0, size[0].rows, size[0].columns)};
    if (!size[1].rows) return l;
    l.q = vocoder_wave(state->wave[q], 0, size[1].rows, size[1].columns);
    l.s = vocoder_wave(state->wave[s], 0, size[1].rows, size[1].columns);
    l.free = vocoder_wave(state->wave[p], 0, size[1].rows, size[1].columns);
    return l;
}

/* Returns a convolution's input that holds the activation of `wave`: snake if there are weights, else leaky
 * ReLU with this slope. */
static struct tensor vocoder_activate(struct context *x, const struct visit_scope *scope, struct tensor wave,
                                      const struct snake *snake, float slope) {
    const struct vocoder_state *state = scope->lane->state;
    struct tensor in = vocoder_input(x, state->in, wave.dim[0], wave.dim[1]);
    if (snake->alpha.rank) {
        struct snake flat = *snake;
        flat.up = tensor_reshape(flat.up, 1, (int32_t[]){SNAKE_TAPS});
        flat.down = tensor_reshape(flat.down, 1, (int32_t[]){SNAKE_TAPS});
        op_snake(x, in, wave, flat);
    } else {
        op_map(x, in, wave, MAP_LEAKY_RELU, slope);
    }
    return in;
}

static void vocoder_forward_first(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vocoder_conv_weights *w = weights;
    const struct vocoder_state *state = scope->lane->state;
    struct tensor mel = vocoder_generator(scope) ? state->mel : scope->lane->mel;
    struct tensor in = vocoder_input(x, state->in, mel.dim[0], mel.dim[1]);
    op_copy(x, in, mel);
    vocoder_convolve(x, vocoder_level(scope, 0).p, in, &w->conv, 1, (struct tensor){0});
}

static void vocoder_forward_up(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vocoder_conv_weights *w = weights;
    const struct vocoder_settings *settings = scope->settings;
    const struct vocoder_state *state = scope->lane->state;
    int level = scope->number % BLOCK_ROW_STEP;
    struct vocoder_level l = vocoder_level(scope, level);
    struct tensor in = vocoder_input(x, state->in, l.p.dim[0], l.p.dim[1]);
    if (settings->extended)
        op_copy(x, in, l.p);
    else
        op_map(x, in, l.p, MAP_LEAKY_RELU, settings->slope);
    vocoder_upsample(x, l.q, in, &w->conv, l.q.dim[0] / l.p.dim[0]);
}

/* Residual block of a level. The first block writes its result to s; the others work in p's memory and add
 * their results to s. The last block divides s by the number of blocks. */
static void vocoder_forward_block(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vocoder_block_weights *w = weights;
    const struct vocoder_settings *settings = scope->settings;
    const struct vocoder_state *state = scope->lane->state;
    int number = scope->number % BLOCK_ROW_STEP, n = settings->kernels[vocoder_generator(scope)];
    struct vocoder_level l = vocoder_level(scope, number / n);
    struct tensor out = number % n ? l.free : l.s, from = l.q;
    struct tensor inner = vocoder_wave(state->out, 0, l.q.dim[0], l.q.dim[1]);
    for (int i = 0; i < VOCODER_DILATIONS; i++, from = out) {
        struct tensor in = vocoder_activate(x, scope, from, &w->acts1[i], settings->slope);
        vocoder_convolve(x, inner, in, &w->convs1[i], 1 + 2 * i, (struct tensor){0});
        in = vocoder_activate(x, scope, inner, &w->acts2[i], settings->slope);
        vocoder_convolve(x, out, in, &w->convs2[i], 1, from);
    }
    if (number % n) op_add(x, l.s, l.s, out);
    if (number % n == n - 1) op_map(x, l.s, l.s, MAP_SCALE, 1 / (float)n);
}

/* PyTorch's default slope: the reference has nn.LeakyReLU() before the last convolution. */
static const float vocoder_last_slope = 0.01f;

static void vocoder_forward_last(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vocoder_last_weights *w = weights;
    const struct vocoder_settings *settings = scope->settings;
    const struct vocoder_state *state = scope->lane->state;
    int generator = vocoder_generator(scope);
    struct tensor wave = settings->extended && !generator ? state->base : scope->lane->wave;
    struct tensor from = vocoder_level(scope, settings->levels[generator]).p;
    struct tensor in = vocoder_activate(x, scope, from, &w->act, vocoder_last_slope);
    vocoder_convolve(x, wave, in, &w->conv, 1, (struct tensor){0});
    if (!settings->extended) op_map(x, wave, wave, MAP_TANH, 0);
    if (!generator) return;
    op_sinc_up(x, wave, state->base, wave, settings->rate / settings->input_rate);
    op_map(x, wave, wave, MAP_CLAMP, 1);
}

/* Log-mel spectrogram of the first generator's samples, with causal windows: a frame's window ends with the
 * frame's samples. op_linear_few computes in f32 on every device: the logarithm magnifies rounding errors of
 * quiet bins. */
static void vocoder_forward_mel(struct context *x, const void *weights, const struct visit_scope *scope) {
    static const float floor_value = 1e-5f;
    const struct vocoder_mel_weights *w = weights;
    const struct vocoder_settings *settings = scope->settings;
    const struct vocoder_state *state = scope->lane->state;
    int32_t samples = state->base.dim[0], frames = state->mel.dim[0], hop = settings->hop;
    int32_t window = w->fourier.dim[2], basis = w->fourier.dim[0], bins = w->mel.dim[0],
            before = window - hop;
    struct tensor one = context_tensor(x, DTYPE_F32, 2, (int32_t[]){before + samples, 1});
    struct tensor windows = context_tensor(x, DTYPE_F32, 2, (int32_t[]){frames, window});
    struct tensor spectrum = context_tensor(x, DTYPE_F32, 2, (int32_t[]){frames, basis});
    struct tensor size = context_tensor(x, DTYPE_F32, 2, (int32_t[]){frames, basis / 2});
    struct tensor mel = context_tensor(x, DTYPE_F32, 2, (int32_t[]){frames, bins}), none = {0};
    struct tensor zeros = tensor_slice(one, 0, before);
    op_map(x, zeros, zeros, MAP_FILL, 0);
    for (int32_t c = 0; c < state->base.dim[1]; c++) {
        op_copy(x, tensor_slice(one, before, samples), tensor_slice_columns(state->base, c, 1));
        for (int32_t at = 0, n; at < window; at += n) {
            n = window - at < hop ? window - at : hop;
            struct tensor part = tensor_make(one.data, DTYPE_F32, 2, (int32_t[]){frames, n});
            part.row_bytes = hop * (int64_t)sizeof(float);
            if (part.data) part.data = (char *)part.data + at * (int64_t)sizeof(float);
            op_copy(x, tensor_slice_columns(windows, at, n), part);
        }
        op_linear_few(x, spectrum, windows, tensor_reshape(w->fourier, 2, (int32_t[]){basis, window}), none,
                      ACTIVATION_NONE);
        op_map(x, size, spectrum, MAP_MAGNITUDE, 0);
        op_linear_few(x, mel, size, w->mel, none, ACTIVATION_NONE);
        op_map(x, tensor_slice_columns(state->mel, c * bins, bins), mel, MAP_LOG, floor_value);
    }
}

#define VOC_KINDS(name)                                                                                      \
    {                                                                                                        \
        .first = BLOCK_KIND("conv_in", "conv_in", name##_first_table, vocoder_conv_weights,                  \
                            vocoder_forward_first, .never_quantised = true),                                 \
        .up = BLOCK_KIND("upsample", "upsamplers.%d", name##_up_table, vocoder_conv_weights,                 \
                         vocoder_forward_up, .never_quantised = true),                                       \
        .block = BLOCK_KIND("resnet", "resnets.%d", name##_block_table, vocoder_block_weights,               \
                            vocoder_forward_block, .never_quantised = true),                                 \
        .last = BLOCK_KIND("conv_out", "conv_out", name##_last_table, vocoder_last_weights,                  \
                           vocoder_forward_last, .never_quantised = true),                                   \
    }
/* Block kinds of the generators: LTX-2.0, LTX-2.3, LTX-2.3's bandwidth extension. */
static const struct vocoder_kinds {
    struct block_kind first, up, block, last;
} vocoder_kinds[] = {VOC_KINDS(voc_leaky), VOC_KINDS(voc_snake), VOC_KINDS(voc_bandwidth)};
BLOCK(vocoder_kind_mel, "mel_stft", "mel_stft", voc_mel_table, vocoder_mel_weights, vocoder_forward_mel,
      .never_quantised = true);

/* ---- the family ---- */

static const int32_t *generator_dims(const struct component *c, int i) {
    return c->dims + VOC_GENERATOR + i * GENERATOR_DIMS;
}

static int vocoder_generators(const struct component *c) {
    return c->dims[VOC_EXTENDED] ? VOCODER_GENERATORS : 1;
}

static const struct vocoder_kinds *kinds_of(const struct component *c, int i) {
    return &vocoder_kinds[c->dims[VOC_EXTENDED] ? 1 + i : 0];
}

/* A bare generator with snake activation is not a vocoder: the tensors of the whole vocoder have a longer
 * prefix. */
static bool vocoder_probe(const struct tensor_index *index) {
    if (index_find(index, "act_out.act.alpha") || index_find(index, "act_post.act.alpha")) return false;
    return (index_find(index, "conv_in.weight") && index_find(index, "resnets.0.convs1.0.weight")) ||
           (index_find(index, "conv_pre.weight") && index_find(index, "resblocks.0.convs1.0.weight")) ||
           index_find(index, "bwe_generator.conv_in.weight") ||
           index_find(index, "bwe_generator.conv_pre.weight");
}

static enum status vocoder_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"resnets.0.convs1.3.", "a vocoder with more convolutions in a residual block"},
        {"resblocks.0.convs1.3.", "a vocoder with more convolutions in a residual block"},
        {NULL, NULL}};
    return component_refuse_similar(c, relatives, "a vocoder of LTX-2.0 or 2.3", e);
}

/* Writes the name of generator i's tensor: diffusers' name (names[0]), or that of the authors (names[1]) if
 * the files have such a tensor. number: for %d. */
static const char *vocoder_name(const struct component *c, int i, const char *const names[2], int number,
                                char out[2 * BLOCK_NAME_MAX]) {
    const char *prefix = !c->dims[VOC_EXTENDED] ? "" : i ? "bwe_generator." : "vocoder.";
    char format[2 * BLOCK_NAME_MAX];
    for (int k = 1; k >= 0; k--) {
        snprintf(format, sizeof format, "%s%s", prefix, names[k]);
        block_weight_name(format, number, out);
        if (index_find(&c->index, out)) break;
    }
    return out;
}

static const char *const vocoder_names_first[] = {"conv_in.weight", "conv_pre.weight"},
                         *const vocoder_names_up[] = {"upsamplers.%d.weight", "ups.%d.weight"},
                         *const vocoder_names_block[] = {"resnets.%d.convs1.0.weight",
                                                         "resblocks.%d.convs1.0.weight"},
                         *const vocoder_names_last[] = {"conv_out.weight", "conv_post.weight"},
                         *const vocoder_names_bias[] = {"conv_out.bias", "conv_post.bias"};

/* Fails with "unsupported vocoder". what: the property with the unsupported value. */
static enum status vocoder_unsupported(const struct component *c, const char *what, int found, int expected,
                                       struct error *e) {
    return error_set(e, UNSUPPORTED, "unsupported vocoder: %s" WHERE "%s" FOUND "%d" EXPECTED "%d", what,
                     c->index.sources[0].path, found, expected);
}

/* Returns the upsampling factor of a transposed convolution with this kernel in the published vocoders, for
 * files without a configuration; 0: unknown. */
static float vocoder_factor_of(int32_t kernel) {
    static const int32_t factors[VOCODER_KERNEL_MAX + 2] = {
        [4] = 2, [8] = 2, [11] = 5, [12] = 6, [15] = 5, [16] = 6};
    return kernel < COUNT_OF(factors) ? (float)factors[kernel] : 0;
}

/* Reads generator i's dims from its tensors, and upsampling factors that the configuration lacks. */
static enum status vocoder_measure(struct component *c, int i, struct error *e) {
    struct vocoder_settings *settings = (struct vocoder_settings *)(void *)c->settings;
    int32_t *d = c->dims + VOC_GENERATOR + i * GENERATOR_DIMS;
    char name[2 * BLOCK_NAME_MAX];
    d[GENERATOR_CHANNELS] = component_dim(c, vocoder_name(c, i, vocoder_names_first, 0, name), 3, 0, e);
    d[GENERATOR_INPUTS] = component_dim(c, name, 3, 1, e);
    d[GENERATOR_OUTPUTS] = component_dim(c, vocoder_name(c, i, vocoder_names_last, 0, name), 3, 0, e);
    d[GENERATOR_BIAS] = index_find(&c->index, vocoder_name(c, i, vocoder_names_bias, 0, name)) != NULL;
    int n = d[GENERATOR_LEVELS] ? d[GENERATOR_BLOCKS] / d[GENERATOR_LEVELS] : 0;
    if (e->code == OK &&
        (n < 1 || n > VOCODER_KERNELS_MAX || d[GENERATOR_BLOCKS] % d[GENERATOR_LEVELS] ||
         d[GENERATOR_LEVELS] > VOCODER_LEVELS_MAX ||
         d[GENERATOR_CHANNELS] >> d[GENERATOR_LEVELS] << d[GENERATOR_LEVELS] != d[GENERATOR_CHANNELS]))
        return vocoder_unsupported(c, "residual blocks", d[GENERATOR_BLOCKS], 3 * d[GENERATOR_LEVELS], e);
    for (int k = 0; k < n && e->code == OK; k++) {
        int32_t *kernel = &d[GENERATOR_KERNELS + k];
        *kernel = component_dim(c, vocoder_name(c, i, vocoder_names_block, k, name), 3, 2, e);
        if (e->code == OK && (*kernel % 2 == 0 || *kernel > VOCODER_KERNEL_MAX))
            return vocoder_unsupported(c, "kernel of a residual block", *kernel, VOCODER_KERNEL_MAX, e);
    }
    for (int level = 0; level < d[GENERATOR_LEVELS] && e->code == OK; level++) {
        int32_t kernel = component_dim(c, vocoder_name(c, i, vocoder_names_up, level, name), 3, 2, e);
        float *factor = &settings->factors[i][level];
        if (!*factor) *factor = vocoder_factor_of(kernel);
        d[GENERATOR_UPS + level] = kernel;
        if (e->code == OK && (*factor < 1 || kernel < (int32_t)*factor || (kernel - (int32_t)*factor) % 2 ||
                              kernel / (int32_t)*factor > VOCODER_PAD))
            return vocoder_unsupported(c, "kernel of an upsampling convolution", kernel, 2 * (int32_t)*factor,
                                       e);
    }
    return e->code;
}

/* Product of a generator's upsampling factors: samples per frame of its input. */
static int32_t vocoder_samples(const struct component *c, int i) {
    const struct vocoder_settings *settings = (const struct vocoder_settings *)(const void *)c->settings;
    int32_t samples = 1;
    for (int level = 0; level < generator_dims(c, i)[GENERATOR_LEVELS]; level++)
        samples *= (int32_t)settings->factors[i][level];
    return samples;
}

static enum status vocoder_configure(struct component *c, const struct config *config, struct error *e) {
    struct vocoder_settings *settings = (struct vocoder_settings *)(void *)c->settings;
    int32_t *d = c->dims;
    static const char basis[] = "mel_stft.stft_fn.forward_basis";
    config_expect(config, "act_fn", d[VOC_EXTENDED] ? "snakebeta" : "leaky_relu", e);
    if (!d[VOC_EXTENDED]) config_expect(config, "final_act_fn", "tanh", e);
    if (!settings->rate) settings->rate = d[VOC_EXTENDED] ? 48000 : 24000;
    for (int i = 0; i < vocoder_generators(c) && e->code == OK; i++) vocoder_measure(c, i, e);
    if (!d[VOC_EXTENDED] || e->code != OK) return e->code;
    d[VOC_BASIS] = component_dim(c, basis, 3, 0, e);
    d[VOC_WINDOW] = component_dim(c, basis, 3, 2, e);
    d[VOC_BINS] = component_dim(c, "mel_stft.mel_basis", 2, 0, e);
    if (e->code != OK) return e->code;
    int32_t samples = vocoder_samples(c, 0), ratio = settings->rate / settings->input_rate;
    int32_t inputs = d[VOC_BINS] * generator_dims(c, 0)[GENERATOR_OUTPUTS];
    if (samples % settings->hop || d[VOC_WINDOW] < settings->hop)
        return vocoder_unsupported(c, "samples per frame of the first generator", samples, settings->hop, e);
    if (ratio < 1 || ratio > SINC_RATIO_MAX || settings->rate % settings->input_rate)
        return vocoder_unsupported(c, "output sampling rate", settings->rate, 3 * settings->input_rate, e);
    if (vocoder_samples(c, 1) != settings->hop * ratio)
        return vocoder_unsupported(c, "samples per frame of the bandwidth extension", vocoder_samples(c, 1),
                                   settings->hop * ratio, e);
    if (inputs != generator_dims(c, 1)[GENERATOR_INPUTS])
        return vocoder_unsupported(c, "inputs of the bandwidth extension",
                                   generator_dims(c, 1)[GENERATOR_INPUTS], inputs, e);
    return OK;
}

/* Sets the dims of a planned vocoder: published structure, with the first generator's number of channels. */
static void vocoder_derive_dims(struct component *c) {
    static const float factors[][VOCODER_LEVELS_MAX] = {{6, 5, 2, 2, 2}, {5, 2, 2, 2, 2, 2}, {6, 5, 2, 2, 2}};
    static const int32_t ups[][VOCODER_LEVELS_MAX] = {
        {16, 15, 8, 4, 4}, {11, 4, 4, 4, 4, 4}, {12, 11, 4, 4, 4}};
    static const int32_t kernels[] = {3, 7, 11};
    struct vocoder_settings *settings = (struct vocoder_settings *)(void *)c->settings;
    int32_t *d = c->dims, channels = d[VOC_GENERATOR + GENERATOR_CHANNELS];
    d[VOC_BASIS] = 514, d[VOC_WINDOW] = 512, d[VOC_BINS] = 64;
    if (!settings->rate) settings->rate = d[VOC_EXTENDED] ? 48000 : 24000;
    for (int i = 0; i < vocoder_generators(c); i++) {
        int32_t *g = d + VOC_GENERATOR + i * GENERATOR_DIMS;
        int published = d[VOC_EXTENDED] ? 1 + i : 0; /* row of factors and ups */
        int levels = published == 1 ? 6 : 5, step = 1 << levels;
        g[GENERATOR_CHANNELS] = ((i ? channels / 3 : channels) + step - 1) / step * step;
        g[GENERATOR_INPUTS] = 128, g[GENERATOR_OUTPUTS] = 2;
        g[GENERATOR_LEVELS] = levels, g[GENERATOR_BLOCKS] = levels * COUNT_OF(kernels);
        g[GENERATOR_BIAS] = !d[VOC_EXTENDED];
        for (int k = 0; k < COUNT_OF(kernels); k++) g[GENERATOR_KERNELS + k] = kernels[k];
        for (int level = 0; level < levels; level++) {
            g[GENERATOR_UPS + level] = ups[published][level];
            settings->factors[i][level] = factors[published][level];
        }
    }
}

static void vocoder_derive(struct component *c) {
    struct vocoder_settings *settings = (struct vocoder_settings *)(void *)c->settings;
    int32_t *d = c->dims, ratio = d[VOC_EXTENDED] ? settings->rate / settings->input_rate : 1;
    d[VOC_ONE] = 1;
    d[VOC_TAPS] = SNAKE_TAPS;
    d[VOC_FREQUENCIES] = d[VOC_BASIS] / 2;
    settings->extended = d[VOC_EXTENDED];
    for (int i = 0; i < vocoder_generators(c); i++) {
        settings->levels[i] = generator_dims(c, i)[GENERATOR_LEVELS];
        settings->kernels[i] = generator_dims(c, i)[GENERATOR_BLOCKS] / settings->levels[i];
    }
    c->sample_rate = settings->rate;
    c->sound_channels = generator_dims(c, 0)[GENERATOR_OUTPUTS];
    c->samples_a_frame = vocoder_samples(c, 0) * ratio;
}

static int vocoder_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    for (int i = 0; i < vocoder_generators(c); i++) {
        const struct vocoder_kinds *kinds = kinds_of(c, i);
        const int32_t *d = generator_dims(c, i);
        int levels = d[GENERATOR_LEVELS], each = d[GENERATOR_BLOCKS] / levels, first = i * BLOCK_ROW_STEP;
        if (i) refs[n++] = (struct block_ref){.kind = &vocoder_kind_mel};
        refs[n++] = (struct block_ref){.kind = &kinds->first, .number = first};
        for (int level = 0; level < levels; level++) {
            refs[n++] = (struct block_ref){.kind = &kinds->up, .number = first + level};
            for (int k = 0; k < each; k++)
                refs[n++] = (struct block_ref){.kind = &kinds->block, .number = first + level * each + k};
        }
        refs[n++] = (struct block_ref){.kind = &kinds->last, .number = first};
    }
    return n;
}

static void vocoder_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int i = ref->number / BLOCK_ROW_STEP, number = ref->number % BLOCK_ROW_STEP;
    const int32_t *d = generator_dims(c, i);
    const struct vocoder_kinds *kinds = kinds_of(c, i);
    int32_t channels = d[GENERATOR_CHANNELS], each = d[GENERATOR_BLOCKS] / d[GENERATOR_LEVELS];
    dims[VOC_BIAS] = 0;
    dims[VOC_KERNEL] = VOCODER_ENDS_KERNEL;
    if (ref->kind == &kinds->first) {
        dims[VOC_IN] = d[GENERATOR_INPUTS], dims[VOC_OUT] = channels;
    } else if (ref->kind == &kinds->up) {
        dims[VOC_IN] = channels >> number, dims[VOC_OUT] = dims[VOC_IN] / 2;
        dims[VOC_KERNEL] = d[GENERATOR_UPS + number];
    } else if (ref->kind == &kinds->block) {
        dims[VOC_OUT] = channels >> (number / each + 1);
        dims[VOC_KERNEL] = d[GENERATOR_KERNELS + number % each];
    } else if (ref->kind == &kinds->last) {
        dims[VOC_IN] = channels >> d[GENERATOR_LEVELS], dims[VOC_OUT] = d[GENERATOR_OUTPUTS];
        dims[VOC_BIAS] = d[GENERATOR_BIAS];
    }
}

static enum status vocoder_check(const struct component *c, const struct lane *lanes, int n_lanes,
                                 struct error *e) {
    int32_t inputs = generator_dims(c, 0)[GENERATOR_INPUTS];
    (void)n_lanes;
    if (lanes[0].mel.dim[1] == inputs) return OK;
    return error_set(e, SHAPE,
                     "the vocoder does not fit the audio VAE" WHERE "%s" FOUND "%d inputs" EXPECTED
                     "%d, the columns of the audio VAE's spectrogram",
                     c->index.n_sources ? c->index.sources[0].path : c->family->name, inputs,
                     lanes[0].mel.dim[1]);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* All lanes share the buffers, because they run one after another. */
static void vocoder_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    const struct vocoder_settings *settings = (const struct vocoder_settings *)(const void *)c->settings;
    struct vocoder_state first = {0};
    int64_t wave = 1, in = 1, rows = lanes[0].mel.dim[0];
    for (int i = 0; i < vocoder_generators(c); i++) {
        const int32_t *d = generator_dims(c, i);
        if (i) rows = rows * vocoder_samples(c, 0) / settings->hop;
        in = larger(in, (rows + 2 * VOCODER_PAD) * d[GENERATOR_INPUTS]);
        int64_t of_level = rows;
        for (int level = 0; level <= d[GENERATOR_LEVELS]; level++) {
            int32_t columns = d[GENERATOR_CHANNELS] >> level;
            wave = larger(wave, of_level * columns);
            in = larger(in, (of_level + 2 * VOCODER_PAD) * columns);
            if (in > INT32_MAX) *ok = false, of_level = 1, in = wave = 1;
            first.size[i][level] = (struct vocoder_size){(int32_t)of_level, columns};
            of_level *= (int64_t)settings->factors[i][level];
        }
    }
    for (int i = 0; i < VOCODER_WAVES; i++)
        first.wave[i] = arena_tensor(pictures, DTYPE_F32, 1, (int32_t[]){(int32_t)wave}, ok);
    first.in = arena_tensor(pictures, DTYPE_F32, 1, (int32_t[]){(int32_t)in}, ok);
    first.out = arena_tensor(pictures, DTYPE_F32, 1, (int32_t[]){(int32_t)wave}, ok);
    if (settings->extended) {
        int32_t samples = lanes[0].mel.dim[0] * vocoder_samples(c, 0);
        const int32_t *next = generator_dims(c, 1);
        first.base = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){samples, next[GENERATOR_OUTPUTS]}, ok);
        first.mel = arena_tensor(arena, DTYPE_F32, 2,
                                 (int32_t[]){samples / settings->hop, next[GENERATOR_INPUTS]}, ok);
    }
    for (int i = 0; i < n_lanes; i++) *(struct vocoder_state *)lanes[i].state = first;
}

static const char *const vocoder_ignorable[] = {"mel_stft.stft_fn.inverse_basis", "resampler.", NULL};

#define VOCODER_SETTING(key, field, type, published, least, most)                                            \
    { {key}, offsetof(struct vocoder_settings, field), type, published, least, most }
static const struct setting vocoder_settings[] = {
    VOCODER_SETTING("leaky_relu_negative_slope", slope, SETTING_FLOAT, 0.1, 0, 1),
    VOCODER_SETTING("output_sampling_rate", rate, SETTING_INT, 0, 1000, 768000),
    VOCODER_SETTING("input_sampling_rate", input_rate, SETTING_INT, 16000, 1000, 768000),
    VOCODER_SETTING("hop_length", hop, SETTING_INT, 80, 1, 65536),
};

#define GENERATOR(i, dim) (VOC_GENERATOR + (i)*GENERATOR_DIMS + (dim))
#define FACTORS(key_, i)                                                                                     \
    {                                                                                                        \
        .key = key_, .offset = offsetof(struct vocoder_settings, factors[i]),                                \
        .capacity = VOCODER_LEVELS_MAX, .count = GENERATOR(i, GENERATOR_LEVELS), .least = 1, .most = 64,     \
        .derived = true                                                                                      \
    }
static const struct setting_list vocoder_lists[] = {FACTORS("upsample_factors", 0),
                                                    FACTORS("bwe_upsample_factors", 1)};

static const struct dimension vocoder_dimensions[] = {
    {"vocoder_extended", 1, 0, 1, .place = VOC_EXTENDED,
     OF_TENSOR(0, 0, "bwe_generator.conv_in.weight", "bwe_generator.conv_pre.weight")},
    {"vocoder_channels", 1536, 1, 8192, .place = GENERATOR(0, GENERATOR_CHANNELS)},
    {.place = GENERATOR(0, GENERATOR_LEVELS),
     OF_BLOCKS("upsamplers.", "ups.", "vocoder.upsamplers.", "vocoder.ups.")},
    {.place = GENERATOR(0, GENERATOR_BLOCKS),
     OF_BLOCKS("resnets.", "resblocks.", "vocoder.resnets.", "vocoder.resblocks.")},
    {.place = GENERATOR(1, GENERATOR_LEVELS), OF_BLOCKS("bwe_generator.upsamplers.", "bwe_generator.ups.")},
    {.place = GENERATOR(1, GENERATOR_BLOCKS),
     OF_BLOCKS("bwe_generator.resnets.", "bwe_generator.resblocks.")},
};

static const char *const vocoder_classes[] = {"LTX2VocoderWithBWE", NULL};

const struct family family_ltx2_vocoder = {
    .name = "ltx2_vocoder",
    .kind = FAMILY_VOCODER,
    .display_name = "vocoder",
    .files = {.config_key = "_class_name",
              .config_value = "LTX2Vocoder",
              .config_others = vocoder_classes,
              .probe = vocoder_probe,
              .refuse = vocoder_refuse,
              .ignorable = vocoder_ignorable},
    .config = {.dimensions = vocoder_dimensions,
               .n_dimensions = COUNT_OF(vocoder_dimensions),
               .settings = vocoder_settings,
               .n_settings = COUNT_OF(vocoder_settings),
               .lists = vocoder_lists,
               .n_lists = COUNT_OF(vocoder_lists),
               .configure = vocoder_configure,
               .derive_dims = vocoder_derive_dims,
               .derive = vocoder_derive},
    .blocks = {.list = vocoder_blocks, .dims = vocoder_block_dims},
    .state = {.bytes = sizeof(struct vocoder_state), .declare = vocoder_declare},
    .lanes = {.check = vocoder_check},
    .f16_operands = true,
    /* The first level's residual block of kernel 3, for 5 seconds. */
    .predicted = {{.kind = "resnet", .alone = true, .tokens = 2505, .sound = {2, 501, 64}}},
};
