/* Decoder of LTX-2's audio VAE: a sound latent [8, 1, L, 16] becomes a log-mel spectrogram of two channels,
 * 4L - 3 frames of 64 bins.
 *
 * Latent values are multiplied by the standard deviation of their channel and bin, plus its mean. Then, on
 * images with time as rows and bins as columns: conv_in, two resnets, three levels of resnets with a
 * nearest-neighbour upsampling convolution (2x rows and columns) between levels, norm, SiLU, conv_out. Norms
 * are x / sqrt(mean over channels of x^2 + 1e-6), without weight.
 *
 * Convolutions are causal in time: two rows of zeros above, none below. op_conv2d pads one row of zeros above
 * and below. Every feature map therefore has one more row of zeros above it, and the last row of the result
 * is not computed. The reference drops the first row of an upsampling convolution; here such a convolution
 * reads the map without the row of zeros and computes 2T - 1 rows.
 *
 * Three buffers hold feature maps in turn; each operator runs over the whole map. Reference: diffusers 0.42,
 * models/autoencoders/autoencoder_kl_ltx2_audio.py. The encoder in the files is not used. */
#include "models/models.h"

enum { AUDIO_LEVELS = 3, AUDIO_BUFFERS = 3 };

static const float audio_eps = 1e-6f;

/* Indices into component.dims. */
enum audio_dim {
    AUDIO_LATENT,
    AUDIO_CHANNELS, /* AUDIO_CHANNELS + i: channels of level i; level 0 is the last */
    AUDIO_RESNETS = AUDIO_CHANNELS + AUDIO_LEVELS, /* resnets per level */
    AUDIO_OUTPUTS,                                 /* channels of the spectrogram */
    AUDIO_VALUES,                                  /* values of a latent frame: channels * bins */
    AUDIO_K1,
    AUDIO_K3,
    AUDIO_IN, /* input and output channels of a resnet, set by audio_block_dims */
    AUDIO_OUT,
    AUDIO_SHORTCUT, /* 1: the resnet changes the number of channels and has a shortcut convolution */
};

struct audio_state {
    struct tensor buffer[AUDIO_BUFFERS]; /* memory of feature maps */
    struct tensor map;                   /* current feature map [T, bins, C], after a row of zeros */
    int current;                         /* index of the buffer that holds `map` */
};

/* clang-format off */
#define AUDIO_LATENT_IN(X, S)                                                                                \
    X##WEIGHT(S, mean, SHAPED(1, AUDIO_VALUES), "latents_mean", "per_channel_statistics.mean-of-means")      \
    X##WEIGHT(S, deviation, (.rank = 1, .dim = {AUDIO_VALUES}), "latents_std",                               \
              "per_channel_statistics.std-of-means")                                                         \
    X##CONV(S, conv, AUDIO_CHANNELS + AUDIO_LEVELS - 1, AUDIO_LATENT, AUDIO_K3, "decoder.conv_in.conv")
struct audio_in_weights { AUDIO_LATENT_IN(FIELD_, ) };
WEIGHT_TABLE(audio_in_table, AUDIO_LATENT_IN, audio_in_weights, "", "");

#define AUDIO_RESNET(X, S)                                                                                   \
    X##CONV(S, conv1, AUDIO_OUT, AUDIO_IN, AUDIO_K3, "conv1.conv")                                           \
    X##CONV(S, conv2, AUDIO_OUT, AUDIO_OUT, AUDIO_K3, "conv2.conv")                                          \
    X##CONV(IF_DIM(S, AUDIO_SHORTCUT), shortcut, AUDIO_OUT, AUDIO_IN, AUDIO_K1, "nin_shortcut.conv")
struct audio_resnet_weights { AUDIO_RESNET(FIELD_, ) };
WEIGHT_TABLE(audio_mid_table, AUDIO_RESNET, audio_resnet_weights, "decoder.mid.block_%d.", "decoder.mid.block_%d.");
WEIGHT_TABLE(audio_resnet_table, AUDIO_RESNET, audio_resnet_weights, "decoder.up.%d.block.%d.",
             "decoder.up.%d.block.%d.");
CONV_TABLE(audio_up_table, AUDIO_OUT, AUDIO_OUT, AUDIO_K3, "decoder.up.%d.upsample.conv.conv");
CONV_TABLE(audio_out_table, AUDIO_OUTPUTS, AUDIO_CHANNELS, AUDIO_K3, "decoder.conv_out.conv");
/* clang-format on */

static const struct conv_options audio_plain = {.upsample = 1};

static struct conv_options audio_normed(void) {
    return (struct conv_options){.upsample = 1, .pixel_norm.eps = audio_eps, .activation = ACTIVATION_SILU};
}

/* Returns a feature map [T, bins, C] in `memory`, for the caller to write. Fills a row of zeros before it. */
static struct tensor audio_map(struct context *x, struct tensor memory, int32_t T, int32_t bins, int32_t C) {
    int32_t dim[3] = {T + 1, bins, C};
    struct tensor all = tensor_reshape(tensor_slice(memory, 0, dim[0] * bins * C), 3, dim);
    struct tensor zeros = tensor_slice(all, 0, 1);
    op_map(x, zeros, zeros, MAP_FILL, 0);
    return tensor_slice(all, 1, T);
}

/* Returns the feature map together with the row of zeros before it. */
static struct tensor audio_padded(struct tensor map) {
    map.dim[0] += 1;
    if (map.data) map.data = (char *)map.data - map.row_bytes * map.dim[1];
    return map;
}

/* Returns a buffer that is neither the current one nor `other`. */
static int audio_free(const struct audio_state *state, int other) {
    int i = 0;
    while (i == state->current || i == other) i++;
    return i;
}

static void audio_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct audio_in_weights *w = weights;
    struct audio_state *state = scope->lane->state;
    struct tensor sound = scope->lane->sound;
    int32_t C = sound.dim[0], T = sound.dim[2], bins = sound.dim[3], none[3] = {1, 1, 1};
    struct tensor latent = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, T, bins});
    /* Group statistics of a zero with eps 1 are mean 0 and deviation 1: the norm is deviation * z + mean. */
    struct tensor zero = context_tensor(x, DTYPE_F32, 3, none);
    struct group_norm norm = {.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, 2})};
    op_map(x, zero, zero, MAP_FILL, 0);
    op_group_statistics(x, norm.statistics, zero, (struct rows_before){0}, 1, 1);
    for (int32_t c = 0; c < C; c++) {
        int32_t dim[2] = {T, bins};
        norm.weight = tensor_slice(w->deviation, c * bins, bins);
        norm.bias = tensor_slice(w->mean, c * bins, bins);
        op_group_norm(x, tensor_reshape(tensor_slice(latent, c, 1), 2, dim),
                      tensor_reshape(tensor_slice(sound, c, 1), 2, dim), norm);
    }
    struct tensor memory = context_tensor(x, DTYPE_F32, 1, (int32_t[]){(T + 1) * bins * C});
    struct tensor in = audio_map(x, memory, T, bins, C);
    op_patchify(x, tensor_reshape(in, 2, (int32_t[]){T * bins, C}), latent,
                (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
    state->current = 0;
    state->map = audio_map(x, state->buffer[0], T, bins, w->conv.weight.dim[0]);
    op_conv2d(x, state->map, audio_padded(in), w->conv.weight, (struct epilogue){.bias = w->conv.bias},
              audio_plain);
}

static void audio_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct audio_resnet_weights *w = weights;
    struct audio_state *state = scope->lane->state;
    struct tensor in = state->map, out = in;
    int32_t T = in.dim[0], bins = in.dim[1], C = w->conv1.weight.dim[0];
    int inner = audio_free(state, state->current), target = state->current;
    struct tensor h = audio_map(x, state->buffer[inner], T, bins, C);
    op_conv2d(x, h, audio_padded(in), w->conv1.weight, (struct epilogue){.bias = w->conv1.bias},
              audio_normed());
    if (w->shortcut.weight.rank) {
        target = audio_free(state, inner);
        out = audio_map(x, state->buffer[target], T, bins, C);
        op_conv2d(x, out, in, w->shortcut.weight, (struct epilogue){.bias = w->shortcut.bias}, audio_plain);
    }
    op_conv2d(x, out, audio_padded(h), w->conv2.weight,
              (struct epilogue){.bias = w->conv2.bias, .residual = out}, audio_normed());
    state->current = target;
    state->map = out;
}

static void audio_forward_up(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct audio_state *state = scope->lane->state;
    struct tensor in = state->map;
    int target = audio_free(state, state->current);
    state->map = audio_map(x, state->buffer[target], 2 * in.dim[0] - 1, 2 * in.dim[1], in.dim[2]);
    state->current = target;
    op_conv2d(x, state->map, in, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 2});
}

static void audio_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct audio_state *state = scope->lane->state;
    struct tensor in = state->map, mel = scope->lane->mel;
    int32_t T = in.dim[0], bins = in.dim[1], C = w->weight.dim[0];
    struct tensor out = context_tensor(x, DTYPE_F32, 3, (int32_t[]){T, bins, C});
    op_conv2d(x, out, audio_padded(in), w->weight, (struct epilogue){.bias = w->bias}, audio_normed());
    struct tensor values = tensor_reshape(out, 2, (int32_t[]){T * bins, C});
    for (int32_t c = 0; c < C; c++) {
        struct tensor channel = tensor_slice_columns(mel, c * bins, bins);
        struct tensor plane = channel;
        plane.rank = 3, plane.dim[0] = 1, plane.dim[1] = T, plane.dim[2] = bins;
        op_unpatchify(x, plane, tensor_slice_columns(values, c, 1),
                      (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST}, 1);
    }
}

BLOCK(audio_kind_in, "conv_in", "decoder.conv_in", audio_in_table, audio_in_weights, audio_forward_in,
      .never_quantised = true);
BLOCK(audio_kind_mid, "mid_resnet", "decoder.mid.block_%d", audio_mid_table, audio_resnet_weights,
      audio_forward_resnet, .never_quantised = true);
BLOCK(audio_kind_resnet, "resnet", "decoder.up.%d.block.%d", audio_resnet_table, audio_resnet_weights,
      audio_forward_resnet, .never_quantised = true);
BLOCK(audio_kind_up, "upsample", "decoder.up.%d.upsample", audio_up_table, linear_weights, audio_forward_up,
      .never_quantised = true);
BLOCK(audio_kind_out, "conv_out", "decoder.conv_out", audio_out_table, linear_weights, audio_forward_out,
      .never_quantised = true);

static bool audio_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.up.0.block.0.conv1.conv.weight") &&
           index_find(index, "decoder.mid.block_1.conv1.conv.weight");
}

static enum status audio_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"decoder.mid.attn_1.", "an audio VAE with attention"},
        {"decoder.up.3.", "an audio VAE with more levels"},
        {"decoder.norm_out.", "an audio VAE with group norms"},
        {NULL, NULL}};
    return component_refuse_similar(c, relatives, "LTX-2's audio VAE", e);
}

static enum status audio_configure(struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    (void)config;
    if (d[AUDIO_VALUES] % d[AUDIO_LATENT] == 0) return OK;
    return error_set(e, SHAPE,
                     "'latents_mean' has the wrong length" WHERE "%s" FOUND "%d" EXPECTED
                     "a multiple of the %d latent channels",
                     c->index.sources[0].path, d[AUDIO_VALUES], d[AUDIO_LATENT]);
}

static void audio_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    for (int i = 1; i < AUDIO_LEVELS; i++) d[AUDIO_CHANNELS + i] = d[AUDIO_CHANNELS] << i;
    d[AUDIO_VALUES] = d[AUDIO_LATENT] * ((d[AUDIO_CHANNELS] + d[AUDIO_LATENT] - 1) / d[AUDIO_LATENT]);
}

static void audio_derive(struct component *c) {
    int32_t *d = c->dims;
    d[AUDIO_K1] = 1;
    d[AUDIO_K3] = 3;
    c->latent_channels = d[AUDIO_LATENT];
    c->frame_factor = 1 << (AUDIO_LEVELS - 1);
    c->sound_bins = d[AUDIO_VALUES] / d[AUDIO_LATENT];
    c->mel_columns = d[AUDIO_OUTPUTS] * (d[AUDIO_VALUES] / d[AUDIO_LATENT]) << (AUDIO_LEVELS - 1);
}

static int audio_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &audio_kind_in};
    for (int i = 0; i < 2; i++) refs[n++] = (struct block_ref){.kind = &audio_kind_mid, .number = 1 + i};
    for (int level = AUDIO_LEVELS - 1; level >= 0; level--) {
        for (int i = 0; i < c->dims[AUDIO_RESNETS]; i++)
            refs[n++] =
                (struct block_ref){.kind = &audio_kind_resnet, .number = BLOCK_NUMBER_STEP * level + i};
        if (level) refs[n++] = (struct block_ref){.kind = &audio_kind_up, .number = level};
    }
    refs[n++] = (struct block_ref){.kind = &audio_kind_out};
    return n;
}

static void audio_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const int32_t *channels = c->dims + AUDIO_CHANNELS;
    int level = AUDIO_LEVELS - 1, first = 0;
    if (ref->kind == &audio_kind_up) level = ref->number;
    if (ref->kind == &audio_kind_resnet) {
        level = ref->number / BLOCK_NUMBER_STEP;
        first = ref->number % BLOCK_NUMBER_STEP == 0 && level < AUDIO_LEVELS - 1;
    }
    dims[AUDIO_OUT] = channels[level];
    dims[AUDIO_IN] = channels[level + first];
    dims[AUDIO_SHORTCUT] = dims[AUDIO_IN] != dims[AUDIO_OUT];
}

static enum status audio_check(const struct component *c, const struct lane *lanes, int n_lanes,
                               struct error *e) {
    const int32_t *d = c->dims;
    (void)n_lanes;
    if (lanes[0].sound.dim[0] == d[AUDIO_LATENT] &&
        lanes[0].sound.dim[3] == d[AUDIO_VALUES] / d[AUDIO_LATENT])
        return OK;
    return error_set(e, SHAPE,
                     "the audio VAE does not fit the pipeline's sound latent" WHERE "%s" FOUND
                     "%d channels of %d bins" EXPECTED "%d channels of %d bins",
                     c->index.n_sources ? c->index.sources[0].path : c->family->name, d[AUDIO_LATENT],
                     d[AUDIO_VALUES] / d[AUDIO_LATENT], lanes[0].sound.dim[0], lanes[0].sound.dim[3]);
}

/* All lanes share the buffers, because they run one after another. Each buffer holds the largest feature map:
 * a level's first map has the channels of the level before it. */
static void audio_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    struct audio_state first = {0};
    int32_t T = lanes[0].sound.dim[2], bins = lanes[0].sound.dim[3], channels = 0;
    int64_t most = 0;
    (void)arena;
    for (int level = AUDIO_LEVELS - 1; level >= 0; level--, T = 2 * T - 1, bins *= 2) {
        int32_t own = c->dims[AUDIO_CHANNELS + level];
        channels = level == AUDIO_LEVELS - 1 || own > channels ? own : channels;
        int64_t values = (int64_t)(T + 1) * bins * channels;
        most = values > most ? values : most;
        channels = own;
    }
    if (most > INT32_MAX) *ok = false;
    for (int i = 0; i < AUDIO_BUFFERS; i++)
        first.buffer[i] =
            arena_tensor(pictures, DTYPE_F32, 1, (int32_t[]){most > INT32_MAX ? 1 : (int32_t)most}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct audio_state *)lanes[i].state = first;
}

static const char *const audio_ignorable[] = {"encoder.", "per_channel_statistics.", NULL};

static const struct expectation audio_expects[] = {
    {"norm_type", "pixel"}, {"causality_axis", "height"}, {"attn_resolutions", NULL}, {0}};

#define AUDIO_CONV1(level) "decoder.up." #level ".block.0.conv1.conv.weight"
static const struct dimension audio_dimensions[] = {
    {"sound_latent_channels", 8, 1, 128, .place = AUDIO_LATENT,
     OF_TENSOR(4, 1, "decoder.conv_in.conv.weight"), .key = "latent_channels"},
    {"audio_channels", 128, 1, 8192, .place = AUDIO_CHANNELS, OF_TENSOR(4, 0, AUDIO_CONV1(0)),
     .key = "base_channels"},
    {"audio_resnets", 3, 1, 99, .place = AUDIO_RESNETS, OF_BLOCKS("decoder.up.0.block.")},
    {"sound_channels", 2, 1, 16, .place = AUDIO_OUTPUTS, OF_TENSOR(4, 0, "decoder.conv_out.conv.weight"),
     .key = "output_channels"},
    {.place = AUDIO_CHANNELS + 1, OF_TENSOR(4, 0, AUDIO_CONV1(1))},
    {.place = AUDIO_CHANNELS + 2, OF_TENSOR(4, 0, AUDIO_CONV1(2))},
    {.place = AUDIO_VALUES, OF_TENSOR(1, 0, "latents_mean", "per_channel_statistics.mean-of-means")},
};

const struct family family_ltx2_audio_vae = {
    .name = "ltx2_audio_vae",
    .kind = FAMILY_SOUND_DECODER,
    .display_name = "audio VAE",
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLLTX2Audio",
              .probe = audio_probe,
              .refuse = audio_refuse,
              .ignorable = audio_ignorable},
    .config = {.dimensions = audio_dimensions,
               .n_dimensions = COUNT_OF(audio_dimensions),
               .expects = audio_expects,
               .configure = audio_configure,
               .derive_dims = audio_derive_dims,
               .derive = audio_derive},
    .blocks = {.list = audio_blocks, .dims = audio_block_dims},
    .state = {.bytes = sizeof(struct audio_state), .declare = audio_declare},
    .lanes = {.check = audio_check},
    /* A resnet of the last level, for 5 seconds of sound. */
    .predicted = {{.kind = "resnet", .number = 1, .tokens = 501 * 64, .sound = {8, 126, 16}}},
};
