/* LTX-2 and 2.3: sizes in files, recipes and published models. Blocks of the transformer: ltx2.c. */
#include "models/ltx2.h"
#include "models/slots.h"

bool ltx2_has_sound(const struct tensor_index *index) {
    return index_find(index, "audio_adaln_single.linear.weight") ||
           (index_find(index, "audio_time_embed.linear.weight") &&
            index_find(index, "av_cross_attn_video_scale_shift.linear.weight"));
}

enum status ltx2_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"keyframes_abs_pos_embedding", "LTX-2.5 (Gemma 4, keyframes)"},
        {0},
    };
    if (!ltx2_has_sound(&c->index))
        return error_set(e, UNSUPPORTED,
                         "this is LTX-Video 0.9, a model without sound" WHERE "%s" EXPECTED
                         "LTX-2 or LTX-2.3",
                         c->index.sources[0].path);
    return component_refuse_similar(c, relatives, "LTX-2 or LTX-2.3", e);
}

/* Refuses mixtures of LTX-2 and LTX-2.3, which differ in gates, tables and the prompt's embedding. */
static enum status ltx2_check_version(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int vectors = d[GATED] ? 9 : 6;
    if (d[TABLE] == vectors && d[SOUND_TABLE] == vectors && (d[CAPTION] == 0) == (d[GATED] == 1)) return OK;
    return error_set(
        e, UNSUPPORTED,
        "unsupported LTX-2 variant" WHERE "%s" FOUND
        "%s 'to_gate_logits', %s 'caption_projection', modulation tables of %d and %d rows" EXPECTED
        "LTX-2 ('caption_projection', 6 rows) or LTX-2.3 ('to_gate_logits', 9 rows)",
        c->index.sources[0].path, d[GATED] ? "with" : "without", d[CAPTION] ? "with" : "without", d[TABLE],
        d[SOUND_TABLE]);
}

static enum status ltx2_check_dims(const struct component *c, struct error *e) {
    enum { DIM_MAX = 1 << 16, AXES = 3 };
    const int32_t *d = c->dims;
    /* In attention between the streams, rope divides the sound's width by the video's number of heads too. */
    bool fits = d[DIM] <= DIM_MAX && d[SOUND_DIM] <= DIM_MAX && d[DIM] % (2 * d[HEADS]) == 0 &&
                d[DIM] / d[HEADS] <= ROPE_HEAD_MAX && d[SOUND_DIM] % (2 * d[SOUND_HEADS]) == 0 &&
                d[SOUND_DIM] / d[SOUND_HEADS] <= ROPE_HEAD_MAX && d[SOUND_DIM] % (2 * d[HEADS]) == 0 &&
                d[SOUND_DIM] / d[HEADS] <= ROPE_HEAD_MAX && d[DIM] >= 2 * AXES && d[FREQUENCIES] % 2 == 0 &&
                d[FEED_FORWARD] <= 8 * DIM_MAX && d[SOUND_FEED_FORWARD] <= 8 * DIM_MAX && d[LAYERS] >= 1 &&
                4 * d[LAYERS] + 12 <= FAMILY_BLOCKS_MAX;
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "inconsistent transformer sizes" WHERE "%s" FOUND
                     "width %d with %d heads, sound width %d with %d heads, %d blocks" EXPECTED
                     "widths that are multiples of even head sizes of at most 512 (num_attention_heads and "
                     "audio_num_attention_heads in config.json)",
                     c->index.sources[0].path, d[DIM], d[HEADS], d[SOUND_DIM], d[SOUND_HEADS], d[LAYERS]);
}

/* Refuses values of the configuration for which there is no code. */
static enum status ltx2_check_config(const struct config *config, struct error *e) {
    static const struct {
        const char *key;
        int value;
    } fixed[] = {
        {"timestep_scale_multiplier", 1000},
        {"causal_offset", 1},
        {"vae_scale_factors.0", 8},
        {"vae_scale_factors.1", 32},
        {"vae_scale_factors.2", 32},
        {"audio_scale_factor", 4},
        {"patch_size", 1},
        {"patch_size_t", 1},
        {"audio_patch_size", 1},
        {"audio_patch_size_t", 1},
    };
    static const struct {
        const char *key;
        bool value;
    } flags[] = {{"rope_double_precision", true},
                 {"use_middle_indices_grid", true},
                 {"use_prompt_adaln_single", true},
                 {"norm_elementwise_affine", false}};
    for (int i = 0; i < COUNT_OF(fixed); i++) {
        int value = fixed[i].value;
        if (config_int(config, fixed[i].key, value, value, &value, e) != OK) return e->code;
    }
    for (int i = 0; i < COUNT_OF(flags); i++) {
        bool value = flags[i].value;
        if (config_bool(config, flags[i].key, &value, e) != OK) return e->code;
        if (value != flags[i].value)
            return error_set(e, UNSUPPORTED,
                             "unsupported LTX-2 variant" WHERE "%s" FOUND "%s %s" EXPECTED "%s", config->path,
                             flags[i].key, value ? "true" : "false", value ? "false" : "true");
    }
    return OK;
}

/* Reads the number of heads: key_heads of the configuration, else the width divided by the head size. */
static int32_t ltx2_heads(const struct config *config, const char *key_heads, const char *key_head,
                          int head_published, int32_t dim, struct error *e) {
    int head = head_published, heads = 0;
    config_int(config, key_head, 1, 512, &head, e);
    config_int(config, key_heads, 1, 512, &heads, e);
    return heads ? heads : dim >= head ? dim / head : 1;
}

enum status ltx2_configure(struct component *c, const struct config *config, struct error *e) {
    static const char caption[] = "caption_projection.linear_1.weight";
    int32_t *d = c->dims;
    if (ltx2_check_config(config, e) != OK) return e->code;
    d[CAPTION] = index_find(&c->index, caption) ? component_dim(c, caption, 2, 1, e) : 0;
    d[HEADS] = ltx2_heads(config, "num_attention_heads", "attention_head_dim", 128, d[DIM], e);
    d[SOUND_HEADS] =
        ltx2_heads(config, "audio_num_attention_heads", "audio_attention_head_dim", 64, d[SOUND_DIM], e);
    if (e->code != OK || ltx2_check_version(c, e) != OK) return e->code;
    return ltx2_check_dims(c, e);
}

#define OF_LAYER(rank, axis, name) OF_TENSOR(rank, axis, "transformer_blocks.0." name)
/* Sizes of the published LTX-2, 18.9 B parameters. */
const struct dimension ltx2_dimensions[N_LTX2_DIMENSIONS] = {
    {"heads", 32, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"ltx2_head", 128, 2, 512, .place = HEAD, .key = "attention_head_dim"},
    {"sound_heads", 32, 1, 512, .place = SOUND_HEADS, .key = "audio_num_attention_heads"},
    {"sound_head", 64, 2, 512, .place = SOUND_HEAD, .key = "audio_attention_head_dim"},
    {"layers", 48, 1, 200, .place = LAYERS, OF_BLOCKS("transformer_blocks."), .key = "num_layers"},
    {"latent_channels", 128, 1, 1024, .place = CHANNELS,
     OF_TENSOR(2, 1, "proj_in.weight", "patchify_proj.weight"), .key = "in_channels"},
    {"sound_values", 128, 1, 1024, .place = SOUND_CHANNELS,
     OF_TENSOR(2, 1, "audio_proj_in.weight", "audio_patchify_proj.weight"), .key = "audio_in_channels"},
    {"ltx2_caption", 3840, 0, 65536, .place = CAPTION, .key = "caption_channels", .form = FORM_ABSENT_IF_0},
    {"ltx2_gated", 0, 0, 1, .place = GATED, OF_LAYER(0, 0, "attn1.to_gate_logits.weight"),
     .key = "gated_attn", .form = FORM_BOOL},
    {.place = DIM, OF_TENSOR(2, 0, "proj_in.weight", "patchify_proj.weight"), .key = "cross_attention_dim"},
    {.place = SOUND_DIM,
     OF_TENSOR(2, 0, "audio_proj_in.weight", "audio_patchify_proj.weight"),
     .key = "audio_cross_attention_dim"},
    {.place = FEED_FORWARD, OF_LAYER(2, 0, "ff.net.0.proj.weight")},
    {.place = SOUND_FEED_FORWARD, OF_LAYER(2, 0, "audio_ff.net.0.proj.weight")},
    {.place = TABLE, OF_LAYER(2, 0, "scale_shift_table")},
    {.place = SOUND_TABLE, OF_LAYER(2, 0, "audio_scale_shift_table")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_embed.emb.timestep_embedder.linear_1.weight",
               "adaln_single.emb.timestep_embedder.linear_1.weight")},
    {.place = SOUND_GATED, .key = "audio_gated_attn", .form = FORM_BOOL},
    {.place = TEXT_MODULATED, .key = "cross_attn_mod", .form = FORM_BOOL},
    {.place = SOUND_TEXT_MODULATED, .key = "audio_cross_attn_mod", .form = FORM_BOOL},
    {.place = CAPTIONED, .key = "use_prompt_embeddings", .form = FORM_BOOL},
    {.place = CHANNELS_OUT, .key = "out_channels"},
    {.place = SOUND_CHANNELS_OUT, .key = "audio_out_channels"},
};

/* Keys of diffusers, then of the authors. */
#define SETTING_OF(field, type, published, least, most, ...)                                                 \
    { {__VA_ARGS__}, offsetof(struct ltx2_settings, field), type, published, least, most }
const struct setting ltx2_settings_rows[N_LTX2_SETTINGS] = {
    SETTING_OF(eps, SETTING_FLOAT, 1e-6, 0, 1, "norm_eps"),
    SETTING_OF(gate_time_scale, SETTING_FLOAT, 1000, 0, 1e6, "cross_attn_timestep_scale_multiplier",
               "av_ca_timestep_scale_multiplier"),
    SETTING_OF(theta, SETTING_DOUBLE, 10000, 1, 1e9, "rope_theta", "positional_embedding_theta"),
    SETTING_OF(time_size, SETTING_FLOAT, 20, 1e-3, 1e6, "pos_embed_max_pos",
               "positional_embedding_max_pos.0"),
    SETTING_OF(height_size, SETTING_FLOAT, 2048, 1e-3, 1e6, "base_height", "positional_embedding_max_pos.1"),
    SETTING_OF(width_size, SETTING_FLOAT, 2048, 1e-3, 1e6, "base_width", "positional_embedding_max_pos.2"),
    SETTING_OF(sound_time_size, SETTING_FLOAT, 20, 1e-3, 1e6, "audio_pos_embed_max_pos",
               "audio_positional_embedding_max_pos.0"),
    SETTING_OF(sample_rate, SETTING_FLOAT, 16000, 1, 1e6, "audio_sampling_rate"),
    SETTING_OF(hop, SETTING_FLOAT, 160, 1, 1e6, "audio_hop_length"),
    SETTING_OF(perturbed, SETTING_BOOL, 1, 0, 1, "perturbed_attn"),
};

const struct expectation ltx2_expects[] = {
    {"rope_type", "split"},
    {"frequencies_precision", "float64"},
    {"use_keyframes_abs_pos_embedding", NULL},
    {0},
};

void ltx2_derive_dims(struct component *c) {
    enum { FEED_FORWARD_FACTOR = 4 };
    int32_t *d = c->dims;
    d[HEAD] = d[HEAD] / 2 * 2;
    d[SOUND_HEAD] = d[SOUND_HEAD] / 2 * 2;
    d[DIM] = d[HEADS] * d[HEAD];
    d[SOUND_DIM] = d[SOUND_HEADS] * d[SOUND_HEAD];
    d[FEED_FORWARD] = FEED_FORWARD_FACTOR * d[DIM];
    d[SOUND_FEED_FORWARD] = FEED_FORWARD_FACTOR * d[SOUND_DIM];
    if (d[GATED]) d[CAPTION] = 0;
    d[TABLE] = d[SOUND_TABLE] = d[GATED] ? 9 : 6;
    d[FREQUENCIES] = 256;
}

void ltx2_derive(struct component *c) {
    struct ltx2_settings *s = (struct ltx2_settings *)c->settings;
    int32_t *d = c->dims;
    d[TWO] = 2;
    d[FIVE] = 5;
    d[HEAD] = d[DIM] / d[HEADS];
    d[SOUND_HEAD] = d[SOUND_DIM] / d[SOUND_HEADS];
    d[TABLE_DIM] = d[TABLE] * d[DIM];
    d[FOUR_DIM] = 4 * d[DIM];
    d[TWO_DIM] = 2 * d[DIM];
    d[SOUND_TABLE_DIM] = d[SOUND_TABLE] * d[SOUND_DIM];
    d[SOUND_FOUR_DIM] = 4 * d[SOUND_DIM];
    d[SOUND_TWO_DIM] = 2 * d[SOUND_DIM];
    d[SOUND_GATED] = d[TEXT_MODULATED] = d[SOUND_TEXT_MODULATED] = d[GATED];
    d[CAPTIONED] = d[CAPTION] > 0;
    d[CHANNELS_OUT] = d[CHANNELS];
    d[SOUND_CHANNELS_OUT] = d[SOUND_CHANNELS];
    s->heads = d[HEADS];
    s->sound_heads = d[SOUND_HEADS];
    c->text_columns = d[CAPTION] ? 2 * d[CAPTION] : d[DIM] + d[SOUND_DIM];
    c->latent_channels = d[CHANNELS];
    c->variant = d[GATED] ? LTX2_GATED : LTX2_PROMPT_ROWS;
}

/* Default negative prompt of the authors' programs and of diffusers (pipelines/ltx2/utils.py). */
static const char ltx2_negative[] =
    "blurry, out of focus, overexposed, underexposed, low contrast, washed out colors, excessive noise, "
    "grainy texture, poor lighting, flickering, motion blur, distorted proportions, unnatural skin tones, "
    "deformed facial features, asymmetrical face, missing facial features, extra limbs, disfigured hands, "
    "wrong hand count, artifacts around text, inconsistent perspective, camera shake, incorrect depth of "
    "field, background too sharp, background clutter, distracting reflections, harsh shadows, inconsistent "
    "lighting direction, color banding, cartoonish rendering, 3D CGI look, unrealistic materials, uncanny "
    "valley effect, incorrect ethnicity, wrong gender, exaggerated expressions, wrong gaze direction, "
    "mismatched lip sync, silent or muted audio, distorted voice, robotic voice, echo, background noise, "
    "off-sync audio, incorrect dialogue, added dialogue, repetitive speech, jittery movement, awkward "
    "pauses, incorrect timing, unnatural transitions, inconsistent framing, tilted camera, flat lighting, "
    "inconsistent tone, cinematic oversaturation, stylized filters, or AI artifacts.";

/* Sigmas of the distilled models, without the final 0 (pipelines/ltx2/utils.py). */
static const double ltx2_sigmas[] = {1, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875};

/* clang-format off */
static const struct hf_source ltx2_files[] = {
    {"Lightricks/LTX-2", NULL, NULL, 0},
    {"Lightricks/LTX-2", NULL, "ltx-2-19b-dev.safetensors", 0},
    {"unsloth/LTX-2-GGUF", "--diffusion-model", "ltx-2-19b-dev-*.gguf", 0},
    {0},
};
static const struct hf_source ltx2_distilled_files[] = {
    {"Lightricks/LTX-2", NULL, "ltx-2-19b-distilled.safetensors", 0},
    {"Lightricks/LTX-2", NULL, "ltx-2-19b-distilled-fp8.safetensors", 0},
    {0},
};
static const struct hf_source ltx23_files[] = {
    {"Lightricks/LTX-2.3", NULL, "ltx-2.3-22b-dev.safetensors", 0},
    {"unsloth/LTX-2.3-GGUF", "--diffusion-model", "ltx-2.3-22b-dev-*.gguf", 0},
    {0},
};
static const struct hf_source ltx23_distilled_files[] = {
    {"Lightricks/LTX-2.3", NULL, "ltx-2.3-22b-distilled-1.1.safetensors", 0},
    {"unsloth/LTX-2.3-GGUF", "--diffusion-model", "distilled-1.1/ltx-2.3-22b-distilled-1.1-*.gguf", 0},
    {"unsloth/LTX-2.3-GGUF", "--vae", "vae/ltx-2.3-22b-distilled_video_vae.safetensors", 1450},
    {"Kijai/LTX2.3_comfy", "--audio-vae", "vae/LTX23_audio_vae_bf16.safetensors", 365},
    {0},
};
static const struct hf_source ltx2_shared_files[] = {
    {"Comfy-Org/ltx-2", "--llm", "split_files/text_encoders/gemma_3_12B_it_fp8_scaled.safetensors", 0},
    {"unsloth/gemma-3-12b-it-GGUF", "--llm", "gemma-3-12b-it-*.gguf", 0},
    {0},
};

/* Rows of the connectors' output, which the denoiser reads without a mask. */
enum { LTX2_TEXT_ROWS = 1024, LTX2_FRAMES_MAX = 1 + 8 * 255 };

/* The authors store all components but Gemma in one file. ComfyUI and GGUF users have the connectors in the
 * transformer's file, the projection in its own file, and audio VAE and vocoder in one file. Arguments:
 * planned dimensions that differ from those of LTX-2.3. */
#define LTX2_TEXT(projection, connectors)                                                                    \
    TEXT_GEMMA3(),                                                                                           \
    {.family = &family_ltx2_projection, .flag = "--text-projection", .shares_file_with = "--connectors",      \
     .folder = "connectors",                                                                                 \
     .prefixes = NAMES({"", "text_embedding_projection.", NULL}), .reads = "--llm",                          \
     .dimension = projection},                                                                               \
    {.family = &family_ltx2_connectors, .flag = "--connectors", .shares_file_with = "--diffusion-model",     \
     .folder = "connectors", .prefixes = NAMES(DENOISER_PREFIXES), .reads = "--text-projection",             \
     .text.tokens_max = LTX2_TEXT_ROWS, .dimension = connectors}
#define DIMENSIONS(...) __VA_ARGS__
#define LTX2_OF_2_0                                                                                          \
    LTX2_TEXT(DIMENSIONS({{"separate_texts", 0}, {"video_text", 3840}, {"audio_text", 3840}}),               \
              DIMENSIONS({{"video_heads", 30}, {"audio_heads", 30}, {"audio_head", 128},                     \
                          {"video_layers", 2}, {"audio_layers", 2}, {"gates", 0}})),                         \
    DENOISER(family_ltx2)
#define LTX2_OF_2_3                                                                                          \
    LTX2_TEXT({{0}}, {{0}}), DENOISER(family_ltx2, .dimension = {{"ltx2_gated", 1}, {"ltx2_caption", 0}})
#define LTX2_VAES(vocoder)                                                                                   \
    {.family = &family_vae_ltx2, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},         \
    {.family = &family_vae_ltx2_encoder, .folder = "vae"},                                                   \
    {.family = &family_ltx2_audio_vae, .flag = "--audio-vae", .optional = true, .folder = "audio_vae",                         \
     .prefixes = NAMES({"", "audio_vae.", NULL})},                                                           \
 {.family = &family_ltx2_vocoder, .flag = "--vocoder", .optional = true, .shares_file_with = "--audio-vae",                 \
     .folder = "vocoder", .prefixes = NAMES({"", "vocoder.", NULL}), .dimension = vocoder}

/* LTX-2: diffusers 0.42, pipelines/ltx2. Guidance and steps are the defaults of the pipelines and of the
 * authors' programs. Arguments: fields of the recipe. */
#define LTX2(...)                                                                                            \
    .text = {.condition = {{.slot = 2, .what = CONDITION_TOKENS}}, .n_conditions = 1,                        \
             .default_negative = ltx2_negative},                                                             \
    .images = {.init = INIT_FIRST_FRAME},                                                                    \
    .denoising = {.span = {{3, INFINITY}}, .guide = guidance_cfg, .guides_denoised = true,                   \
                  .sampling = {.prediction = &prediction_flow_timestep, .schedule = &schedule_flow,          \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_rule = FLOW_SHIFT_BY_TOKENS, .shift_terminal = 0.1,                                 \
                  .shift_line = {.base_shift = 0.95, .max_shift = 2.05, .base_tokens = 1024,                 \
                                 .max_tokens = 4096}},                                                       \
    .sound = {.channels = 8, .bins = 16, .latents_per_second = 25},                                          \
    .patch = 1, .frames_max = LTX2_FRAMES_MAX, __VA_ARGS__
#define LTX2_DEV(block)                                                                                      \
    .defaults = {.width = 768, .height = 512, .frames = 121, .fps = 24, .steps = 30, .cfg_scale = 3,         \
                 .strength = 1,                                                                              \
                 .guides = {.audio_cfg_scale = 7, .stg_scale = 1, .modality_scale = 3, .cfg_rescale = 0.7,   \
                            .stg_blocks = {block, -1}}}
#define LTX2_DISTILLED                                                                                       \
    .defaults = {.width = 768, .height = 512, .frames = 121, .fps = 24, .steps = 8, .cfg_scale = 1,          \
                 .strength = 1, .guides = {.audio_cfg_scale = 1, .modality_scale = 1, .stg_blocks = {-1}}},  \
    .denoising.sigmas = ltx2_sigmas, .denoising.n_sigmas = COUNT_OF(ltx2_sigmas)
#define LTX2_PIPELINES                                                                                       \
    .pipelines = {"LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline"}
/* clang-format on */

const struct recipe recipe_ltx2 = {
    .slot = {LTX2_OF_2_0, LTX2_VAES(DIMENSIONS({{"vocoder_extended", 0}, {"vocoder_channels", 1024}}))},
    LTX2(LTX2_DEV(29)),
    .name = "ltx2",
    .selection = {.variant = LTX2_PROMPT_ROWS, LTX2_PIPELINES},
    .published = {.title = "LTX-2", .reference = DIFFUSERS, .sources = {ltx2_files, ltx2_shared_files}},
};

const struct recipe recipe_ltx2_distilled = {
    .slot = {LTX2_OF_2_0, LTX2_VAES(DIMENSIONS({{"vocoder_extended", 0}, {"vocoder_channels", 1024}}))},
    LTX2(LTX2_DISTILLED),
    .name = "ltx2_distilled",
    .selection = {.variant = LTX2_PROMPT_ROWS, .name_word = "distilled", LTX2_PIPELINES},
    .published = {.title = "LTX-2 distilled",
                  .parts_compared_in = &recipe_ltx2,
                  .sources = {ltx2_distilled_files, ltx2_shared_files}},
};

const struct recipe recipe_ltx23 = {
    .slot = {LTX2_OF_2_3, LTX2_VAES({{0}})},
    LTX2(LTX2_DEV(28)),
    .name = "ltx23",
    .selection = {.variant = LTX2_GATED, LTX2_PIPELINES},
    .published = {.title = "LTX-2.3", .reference = DIFFUSERS, .sources = {ltx23_files, ltx2_shared_files}},
};

const struct recipe recipe_ltx23_distilled = {
    .slot = {LTX2_OF_2_3, LTX2_VAES({{0}})},
    LTX2(LTX2_DISTILLED),
    .name = "ltx23_distilled",
    .selection = {.variant = LTX2_GATED, .name_word = "distilled", LTX2_PIPELINES},
    .published = {.title = "LTX-2.3 distilled",
                  .parts_compared_in = &recipe_ltx23,
                  .sources = {ltx23_distilled_files, ltx2_shared_files}},
};
