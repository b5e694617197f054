/* WAN 2.1 and 2.2: sizes in files, recipes and published models. The transformer itself: wan.c. */
#include "models/mmdit.h"
#include "models/slots.h"
#include "models/wan.h"

/* WAN_MASK: mask channels of I2V, one per video frame of a latent frame. WAN_LATENT_PIXELS: mask channels of
 * VACE, one per pixel of a latent pixel. */
enum { WAN_MASK = 4, WAN_LATENT_PIXELS = 64 };

enum status wan_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"casual_audio_encoder.", "WAN 2.2 S2V (driven by audio)"},
        {"audio_injector.", "WAN 2.2 S2V (driven by audio)"},
        {"audio_proj.", "a WAN driven by audio (HuMo, InfiniteTalk)"},
        {"face_adapter.", "WAN 2.2 Animate (driven by face and pose)"},
        {"pose_patch_embedding.", "WAN 2.2 Animate (driven by face and pose)"},
        {"control_adapter.", "WAN Fun-Camera (driven by a camera path)"},
        {"ref_conv.", "WAN Fun-Control (control video and reference image)"},
        {"fps_embedding.", "SkyReels V2 (diffusion forcing)"},
        {0},
    };
    return component_refuse_similar(c, relatives, "WAN 2.1 or 2.2 T2V, I2V, FLF2V, TI2V or VACE", e);
}

/* Size of an axis of an optional tensor; 0 if the tensor is absent. */
static int32_t wan_dim_if(const struct component *c, const char *name, const char *checkpoint_name, int rank,
                          int axis, struct error *e) {
    const char *is = component_first_existing(c, name, checkpoint_name);
    return index_find(&c->index, is) ? component_dim(c, is, rank, axis, e) : 0;
}

/* Returns the input channels of a patch embedding. Weights with four axes have output and input channels
 * merged. */
static int32_t wan_patch_in_channels(const struct component *c, const char *name, struct error *e) {
    const struct index_entry *entry = index_find(&c->index, name);
    int32_t dim = c->dims[DIM];
    if (entry && entry->rank == 4 && dim > 0 && entry->dim[0] % dim == 0) return entry->dim[0] / dim;
    return component_dim(c, name, 5, 1, e);
}

static enum status wan_check_dims(const struct component *c, struct error *e) {
    enum { DIM_MAX = 1 << 16, HEAD_LEAST = 6, HEAD_MAX = 512, SQUARE = MMDIT_PATCH * MMDIT_PATCH };
    const int32_t *d = c->dims;
    bool fits = d[DIM] <= DIM_MAX && d[FEED_FORWARD] <= 8 * DIM_MAX && d[HEAD] >= HEAD_LEAST &&
                d[HEAD] <= HEAD_MAX && d[HEAD] % 2 == 0 && d[DIM] % d[HEAD] == 0 && d[LAYERS] >= 1 &&
                d[HINTS] <= d[LAYERS] && d[PATCH] % SQUARE == 0 && d[FREQUENCIES] % 2 == 0 &&
                !(d[HINTS] && d[IMAGE]) && 2 * (d[LAYERS] + d[HINTS]) + 8 <= FAMILY_BLOCKS_MAX;
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "unsupported WAN transformer: width, heads or number of blocks" WHERE "%s" FOUND
                     "width %d, head size %d, %d blocks, %d values per output token" EXPECTED
                     "a width that is a multiple of an even head size (attention_head_dim in config.json)",
                     c->index.sources[0].path, d[DIM], d[HEAD], d[LAYERS], d[PATCH]);
}

/* Accepts the input channels of T2V (latent) and I2V (latent, mask, conditioning image's latent). */
static enum status wan_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int32_t latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH), more = 2 * latent + WAN_MASK;
    if (d[IN] == latent || (d[IN] == more && !d[HINTS])) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported WAN variant: number of input channels (as in Fun-Control)" WHERE "%s" FOUND
                     "%d input channels, %d output channels" EXPECTED "%d (T2V), or %d (I2V) input channels",
                     c->index.sources[0].path, d[IN], latent, latent, more);
}

/* Reads or derives the block after which each hint is added: increasing, from block 0. */
static enum status wan_read_vace_layers(struct component *c, const struct config *config, struct error *e) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int n = c->dims[HINTS], layers = c->dims[LAYERS];
    if (!n) return OK;
    bool listed = config_list_length(config, "vace_layers");
    for (int i = 0; i < n && !listed; i++) s->vace_layers[i] = (float)(i * (layers / n));
    for (int i = 0; i < n; i++) {
        int at = (int)s->vace_layers[i], before = i ? (int)s->vace_layers[i - 1] : -1;
        if (at > before && at < layers && (i || !at)) continue;
        error_set(e, META, "invalid 'vace_layers'" WHERE "%s",
                  config->path ? config->path : c->index.sources[0].path);
        if (i)
            error_found(e, "block %d after block %d", at, before);
        else
            error_found(e, "a first entry of %d", at);
        return error_expected(e, "block numbers that start at 0 and increase, below %d", layers);
    }
    return OK;
}

void wan_derive(struct component *c) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int32_t *d = c->dims;
    d[ONE] = 1;
    d[TWO] = 2;
    d[SIX] = 6;
    d[SIDE] = MMDIT_PATCH;
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    d[CONCAT_IMAGE] = d[IN] != d[LATENT];
    d[IMAGE_DIM] = d[IMAGE] ? d[DIM] : 0;
    s->layers = d[LAYERS];
    s->head = d[HEAD];
    c->text_columns = d[TEXT];
    c->latent_channels = d[LATENT];
    c->concat_channels = d[HINTS] ? d[HINTS_IN] : d[IN] - d[LATENT];
    c->image_columns = d[IMAGE];
    c->image_rows = d[IMAGE_ROWS];
    c->config_value = d[HINTS] ? "WanVACETransformer3DModel" : NULL;
    c->variant = d[HINTS] ? WAN_VACE : d[IMAGE] ? WAN_I2V : d[CONCAT_IMAGE] ? WAN22_I2V : WAN_T2V;
}

enum status wan_configure(struct component *c, const struct config *config, struct error *e) {
    enum { HEAD_PUBLISHED = 128 }; /* head size if config.json gives none */
    int32_t *d = c->dims;
    int head = HEAD_PUBLISHED, heads = 0;
    config_int(config, "num_heads", 1, 512, &heads, e); /* num_heads is a key of the authors' config.json */
    if (heads && d[DIM] % heads == 0) head = d[DIM] / heads;
    config_int(config, "attention_head_dim", 1, 512, &head, e);
    d[HEAD] = head;
    d[IN] = wan_patch_in_channels(c, "patch_embedding.weight", e);
    if (d[HINTS]) d[HINTS_IN] = wan_patch_in_channels(c, "vace_patch_embedding.weight", e);
    d[IMAGE] =
        wan_dim_if(c, WAN_CONDITION "image_embedder.ff.net.0.proj.weight", "img_emb.proj.1.weight", 2, 1, e);
    d[IMAGE_ROWS] = wan_dim_if(c, WAN_CONDITION "image_embedder.pos_embed", "img_emb.emb_pos", 3, 1, e);
    if (e->code != OK || wan_check_dims(c, e) != OK || wan_check_inputs(c, e) != OK) return e->code;
    return wan_read_vace_layers(c, config, e);
}

/* Sizes of the published WAN 2.1 T2V, 14.3 B parameters. */
const struct dimension wan_dimensions[N_WAN_DIMENSIONS] = {
    {"heads", 40, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"wan_head", 128, 6, 512, .place = HEAD, .key = "attention_head_dim"},
    {"wan_ff", 13824, 8, 524288, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "blocks.0.ffn.net.0.proj.weight", "blocks.0.ffn.0.weight"), .key = "ffn_dim"},
    {"layers", 40, 1, 400, .place = LAYERS, OF_BLOCKS("blocks."), .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT,
     OF_TENSOR(2, 1, WAN_CONDITION "text_embedder.linear_1.weight", "text_embedding.0.weight"),
     .key = "text_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"},
    {"wan_goes_on", 0, 0, 1, .place = CONCAT_IMAGE},
    {"clip_vision_width", 0, 0, 65536, .place = IMAGE, .key = "image_dim", .form = FORM_NULL_IF_0},
    {"wan_image_rows", 0, 0, 65536, .place = IMAGE_ROWS, .key = "pos_embed_seq_len", .form = FORM_NULL_IF_0},
    {"wan_hints", 0, 0, WAN_HINTS_MAX, .place = HINTS, OF_BLOCKS("vace_blocks.")},
    {.place = DIM, OF_TENSOR(1, 0, "patch_embedding.bias")},
    {.place = IN, .key = "in_channels"},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "head.head.weight")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, WAN_CONDITION "time_embedder.linear_1.weight", "time_embedding.0.weight"),
     .key = "freq_dim"},
    {.place = IMAGE_DIM, .key = "added_kv_proj_dim", .form = FORM_NULL_IF_0},
    {.place = HINTS_IN, .key = "vace_in_channels", .form = FORM_ABSENT_IF_0},
};

const struct setting wan_settings_rows[N_WAN_SETTINGS] = {
    {{"eps"}, offsetof(struct wan_settings, eps), SETTING_FLOAT, 1e-6, 0, 1}};
const struct setting_list wan_lists[N_WAN_LISTS] = {{.key = "vace_layers",
                                                     .offset = offsetof(struct wan_settings, vace_layers),
                                                     .capacity = WAN_HINTS_MAX,
                                                     .count = HINTS,
                                                     .least = 0,
                                                     .most = 400,
                                                     .derived = true}};

void wan_derive_dims(struct component *c) {
    struct wan_settings *s = (struct wan_settings *)c->settings;
    int32_t *d = c->dims;
    if (d[HINTS] > d[LAYERS]) d[HINTS] = d[LAYERS];
    for (int i = 0; i < d[HINTS]; i++) s->vace_layers[i] = (float)(i * (d[LAYERS] / d[HINTS]));
    d[HEAD] = d[HEAD] / 2 * 2;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[LATENT] + d[CONCAT_IMAGE] * (d[LATENT] + WAN_MASK);
    d[HINTS_IN] = d[HINTS] ? 2 * d[LATENT] + WAN_LATENT_PIXELS : 0;
}

/* clang-format off */
/* Preview colours, fitted by stable-diffusion.cpp (src/runtime/latent-preview.h at 2e0f042). The channels of
 * WAN 2.1, WAN 2.2 A14B and Qwen-Image latents have the same meaning. */
static const float colours_wan[][3] = {
    {0.0075615F, -0.074209F, 0.239914F}, {0.001826F, -0.00534F, -0.018571F},
    {0.106132F, 0.0315165F, 0.0083895F}, {0.1164995F, 0.203238F, 0.1100625F},
    {-0.025932F, -0.041192F, -0.034698F}, {0.0425025F, -0.080746F, 0.0053445F},
    {-0.1226845F, -0.253423F, -0.058505F}, {-0.0755725F, 0.0088605F, 0.0036035F},
    {-0.1466195F, -0.103968F, -0.2105675F}, {-0.0938605F, 0.0253915F, 0.0888245F},
    {-0.0065335F, 0.132982F, 0.083289F}, {0.0141635F, 0.0546645F, 0.054321F},
    {-0.1026715F, 0.0219955F, 0.074457F}, {0.0071535F, -0.0243235F, -0.0036095F},
    {0.108575F, 0.026537F, 0.1599615F}, {0.0776785F, 0.041578F, 0.03239F}};
const struct latent_colours latent_colours_wan = {16, colours_wan, {0.364865F, 0.382512F, 0.2715735F}, 0};

/* Preview colours of WAN 2.2 TI2V 5B. */
static const float colours_wan22[][3] = {
    {0.008563F, -0.013615F, -0.0096285F}, {-0.0568695F, -0.0143575F, -0.0114425F},
    {-0.000053F, 0.010747F, 0.0023145F}, {-0.0066365F, -0.0535685F, -0.016819F},
    {-0.0001905F, 0.0001395F, 0.0129385F}, {-0.007108F, -0.0019875F, 0.020264F},
    {0.000819F, -0.000374F, 0.005511F}, {0.014619F, -0.0033485F, 0.0179665F},
    {0.0108205F, -0.007937F, 0.0202655F}, {-0.050992F, -0.03508F, -0.0144275F},
    {0.0166035F, -0.010534F, 0.0013315F}, {-0.0523555F, 0.0608365F, 0.0514905F},
    {0.0413235F, -0.0024955F, 0.0286185F}, {-0.0136875F, 0.0157905F, 0.003434F},
    {-0.022717F, 0.014722F, 0.0096435F}, {-0.023286F, -0.0062685F, 0.0033375F},
    {0.0373545F, 0.016845F, 0.0126445F}, {-0.0041255F, -0.0013725F, -0.0034995F},
    {0.0063425F, -0.030928F, -0.024329F}, {0.021152F, -0.0035195F, 0.0001475F},
    {-0.003822F, -0.0304215F, -0.016571F}, {0.0799545F, 0.022814F, 0.1837705F},
    {0.0475855F, 0.043219F, 0.0051355F}, {0.003406F, 0.0098215F, 0.0148185F},
    {0.0017335F, -0.0053525F, 0.007126F}, {-0.0498405F, -0.033136F, -0.0031215F},
    {0.0236785F, 0.01852F, 0.0000925F}, {-0.0208985F, -0.0446125F, -0.0161285F},
    {0.004464F, 0.008514F, 0.009342F}, {-0.0211275F, 0.0080225F, 0.0034245F},
    {0.005634F, 0.018231F, 0.0186935F}, {0.0057765F, -0.0081875F, -0.0242945F},
    {0.023133F, -0.0135945F, 0.0284895F}, {0.00482F, -0.008788F, 0.015162F},
    {-0.022897F, -0.0180415F, -0.005308F}, {0.011209F, 0.0198915F, -0.0164695F},
    {-0.026357F, -0.0077625F, 0.003719F}, {0.096502F, 0.1117705F, 0.1320875F},
    {-0.029703F, -0.004094F, 0.0114335F}, {-0.078371F, -0.1318955F, -0.0036925F},
    {-0.0078585F, 0.008285F, 0.0169845F}, {0.0189845F, 0.0549175F, 0.1002245F},
    {-0.000391F, -0.004783F, -0.004029F}, {0.0053545F, 0.02648F, -0.0220975F},
    {0.0086355F, 0.0229195F, 0.0172845F}, {0.004712F, 0.006544F, -0.000857F},
    {-0.0124025F, -0.029689F, -0.016878F}, {-0.0391465F, 0.014535F, 0.0130645F}};
static const struct latent_colours latent_colours_wan22 = {48, colours_wan22, {0.50658F, 0.451754F, 0.4643385F}, 0};
/* clang-format on */

/* clang-format off */
static const struct hf_source taew21_source[] = {
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0},
    {0},
};
static const struct hf_source wan_files[] = {
    {"Wan-AI/Wan2.1-T2V-1.3B-Diffusers", NULL, NULL, 0},
    {"Wan-AI/Wan2.1-T2V-14B-Diffusers", NULL, NULL, 0},
    {0},
};
static const struct hf_source wan_i2v_files[] = {
    {"Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", NULL, NULL, 0},
    {"Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers", NULL, NULL, 0},
    {0},
};
static const struct hf_source wan_vace_files[] = {
    {"Wan-AI/Wan2.1-VACE-1.3B-diffusers", NULL, NULL, 0},
    {"Wan-AI/Wan2.1-VACE-14B-diffusers", NULL, NULL, 0},
    {0},
};
static const struct hf_source wan22_files[] = {
    {"Wan-AI/Wan2.2-T2V-A14B-Diffusers", NULL, NULL, 0},
    {0},
};
static const struct hf_source wan22_i2v_files[] = {
    {"Wan-AI/Wan2.2-I2V-A14B-Diffusers", NULL, NULL, 0},
    {0},
};
static const struct hf_source wan_ti2v_files[] = {
    {"Wan-AI/Wan2.2-TI2V-5B-Diffusers", NULL, NULL, 0},
    {"lightx2v/Autoencoders", "--taesd", "taew2_2.safetensors", 0},
    {0},
};
/* clang-format on */

/* clang-format off */
#define VISION_CLIP                                                                                          \
    {.family = &family_clip_vision, .flag = "--clip_vision", .optional = true, .folder = "image_encoder",    \
     .class = "CLIPVisionModel",                                                                             \
     .prefixes = (const char *const[]){"", "vision_model.", "visual.", "clip_vision.vision_model.", NULL}}
#define CLIP_PROCESSOR {"CLIPImageProcessor", "image_processor", false}

/* Text encoder of WAN: diffusers 0.42, pipelines/wan. The encoder reads the prompt without padding; the
 * denoiser reads 512 rows, padded with zeros (condition.padded_to). stable-diffusion.cpp has the same flag
 * for Flux.1's T5. */
#define TEXT_UMT5                                                                                            \
    {.family = &family_umt5, .flag = "--t5xxl", .folder = "text_encoder",                                    \
     .prefixes = (const char *const[]){"", "text_encoders.umt5xxl.transformer.", "text_encoders.umt5xxl.",   \
                                       "umt5xxl.", "text_encoders.t5xxl.transformer.",                       \
                                       "text_encoders.t5xxl.", "t5xxl.", NULL},                              \
     .text = {.clean_html = true, .eos = "</s>", .tokens_max = 512,                                          \
              .tokenizer = "unigram", .tokenizer_folder = "tokenizer",                                       \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or spiece.model of "     \
                                "google/umt5-xxl",                                                           \
              .classes = {"UMT5EncoderModel", "T5TokenizerFast"}}}

/* WAN's scheduler is UniPC (diffusers 0.42, pipelines/wan). */
#define SAMPLING_WAN                                                                                         \
    {.prediction = &prediction_flow_timestep, .schedule = &schedule_flow_unipc, .sampler = &sampler_unipc,   \
     .grid = {.grid_f64 = true}, .grid_from_class = true}

#define VAE_WAN22                                                                                            \
    {.family = &family_vae_wan22, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},        \
    {.family = &family_vae_wan22_encoder, .folder = "vae"},                                                  \
    TINY_DECODER(family_taehv, .weights_name = "taew2_2",                                                    \
                 .dimension = {{"latent_channels", 48}, {"taehv_patch", 2}})

/* clang-format on */

/* WAN: diffusers 0.42, pipelines/wan. Shifts, steps and guidance are those of the authors' configurations
 * (Wan2.1 generate.py, Wan2.2 wan/configs); image sizes depend on the model, as in these configurations. The
 * sampler is the one in the published scheduler_config.json. Text is 512 rows, zero-padded. Of two
 * transformers, the first is for high noise. */
/* The two transformers have one array of prefixes: one file cannot hold both, because their tensor names are
 * equal. */
static const char *const wan_prefixes[] = DENOISER_PREFIXES;
enum { WAN_TEXT_ROWS = 512, WAN_FRAMES_MAX = 1 + 4 * 255 };
/* clang-format off */
/* Default negative prompt in the programs of WAN's authors. */
#define WAN_NEGATIVE                                                                                         \
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，"                                                         \
    "低质量，JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，"                                                            \
    "畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，"                                                                \
    "背景人很多，倒着走"
#define WAN(text_slot, ...)                                                                                  \
    .text = {.condition = {{.slot = text_slot, .what = CONDITION_TOKENS, .padded_to = WAN_TEXT_ROWS}},       \
             .n_conditions = 1, .default_negative = WAN_NEGATIVE},                                           \
    .denoising.guide = guidance_cfg, .denoising.sampling = SAMPLING_WAN,                                     \
    .denoising.shift_rule = FLOW_SHIFT_FIXED, .defaults.strength = 1,                                        \
    .patch = 2, .frames_max = WAN_FRAMES_MAX, __VA_ARGS__
#define WAN_480P .defaults.width = 832, .defaults.height = 480, .defaults.frames = 81, .defaults.fps = 16
#define HIGH_NOISE(...)                                                                                      \
    {.family = &family_wan, .flag = "--high-noise-diffusion-model", .display_name = "high-noise transformer", \
     .folder = "transformer", .prefixes = wan_prefixes, .name_words = {"high", "highnoise"}, __VA_ARGS__}
#define LOW_NOISE(...)                                                                                       \
    {.family = &family_wan, .flag = "--diffusion-model", .display_name = "low-noise transformer",            \
     .folder = "transformer_2", .prefixes = wan_prefixes, .name_words = {"low", "lownoise"}, __VA_ARGS__}
#define WAN_I2V_DIMS .dimension = {{"wan_goes_on", 1}}
#define WAN_I2V_CLIP_DIMS    .dimension = {{"wan_goes_on", 1}, {"clip_vision_width", 1280}}
/* clang-format on */

const struct recipe recipe_wan = {
    .slot = {TEXT_UMT5, DENOISER(family_wan), VAE_WAN},
    WAN(0, WAN_480P, .denoising.flow_shift = 5, .defaults.steps = 50, .defaults.cfg_scale = 5),
    .denoising.span = {{1, INFINITY}},
    .name = "wan",
    .colours = &latent_colours_wan,
    .selection.variant = WAN_T2V,
    .selection.pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .images.init = INIT_NONE,
    .published = {.title = "WAN 2.1 T2V", .reference = DIFFUSERS, .sources = {wan_files, taew21_source}},
};

const struct recipe recipe_wan_i2v = {
    .slot = {VISION_CLIP, TEXT_UMT5, DENOISER(family_wan, WAN_I2V_CLIP_DIMS), VAE_WAN},
    WAN(1, WAN_480P, .denoising.flow_shift = 5, .defaults.steps = 40, .defaults.cfg_scale = 5),
    .denoising.span = {{2, INFINITY}},
    .name = "wan_i2v",
    .colours = &latent_colours_wan,
    .text.processor = CLIP_PROCESSOR,
    .selection.variant = WAN_I2V,
    .selection.pipelines = {"WanImageToVideoPipeline", "WanPipeline"},
    .images.concat = CONCAT_I2V,
    .images.init = INIT_FIRST_FRAME,
    .published = {.title = "WAN 2.1 I2V, FLF2V (with `--end-img`)",
                  .reference = DIFFUSERS,
                  .sources = {wan_i2v_files, taew21_source}},
};

const struct recipe recipe_wan22 = {
    .slot = {TEXT_UMT5, HIGH_NOISE(), LOW_NOISE(), VAE_WAN},
    WAN(0, WAN_480P, .denoising.flow_shift = 12, .defaults.steps = 40, .defaults.cfg_scale = 4,
        .defaults.cfg_scale_low = 3),
    .denoising.span = {{1, INFINITY}, {2, 0.875}},
    .name = "wan22",
    .colours = &latent_colours_wan,
    .selection.variant = WAN_T2V,
    .selection.pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .images.init = INIT_NONE,
    .published = {.title = "WAN 2.2 T2V A14B",
                  .reference = DIFFUSERS,
                  .sources = {wan22_files, taew21_source}},
};

const struct recipe recipe_wan22_i2v = {
    .slot = {TEXT_UMT5, HIGH_NOISE(WAN_I2V_DIMS), LOW_NOISE(WAN_I2V_DIMS), VAE_WAN},
    WAN(0, WAN_480P, .denoising.flow_shift = 5, .defaults.steps = 40, .defaults.cfg_scale = 3.5),
    .denoising.span = {{1, INFINITY}, {2, 0.9}},
    .name = "wan22_i2v",
    .colours = &latent_colours_wan,
    .selection.variant = WAN22_I2V,
    .selection.pipelines = {"WanImageToVideoPipeline", "WanPipeline"},
    .images.concat = CONCAT_I2V,
    .images.init = INIT_FIRST_FRAME,
    .published = {.title = "WAN 2.2 I2V A14B",
                  .reference = DIFFUSERS,
                  .sources = {wan22_i2v_files, taew21_source}},
};

const struct recipe recipe_wan_ti2v = {
    .slot = {TEXT_UMT5,
             DENOISER(
                 family_wan,
                 .dimension = {{"heads", 24}, {"wan_ff", 14336}, {"layers", 30}, {"latent_channels", 48}}),
             VAE_WAN22},
    WAN(0, .defaults.width = 1280, .defaults.height = 704, .denoising.flow_shift = 5, .defaults.steps = 50,
        .defaults.cfg_scale = 5, .defaults.frames = 121, .defaults.fps = 24),
    .denoising.span = {{1, INFINITY}},
    .name = "wan_ti2v",
    .colours = &latent_colours_wan22,
    .selection.variant = WAN_T2V,
    .selection.pipelines = {"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"},
    .images.init = INIT_FIRST_FRAME,
    .published = {.title = "WAN 2.2 TI2V 5B", .reference = DIFFUSERS, .sources = {wan_ti2v_files}},
};

const struct recipe recipe_wan_vace = {
    .slot = {TEXT_UMT5, DENOISER(family_wan, .dimension = {{"wan_hints", 8}}), VAE_WAN},
    WAN(0, WAN_480P, .denoising.flow_shift = 16, .defaults.steps = 50, .defaults.cfg_scale = 5),
    .denoising.span = {{1, INFINITY}},
    .name = "wan_vace",
    .colours = &latent_colours_wan,
    .selection.variant = WAN_VACE,
    .selection.pipelines = {"WanVACEPipeline"},
    .images.concat = CONCAT_CONTROL,
    .images.init = INIT_NONE,
    .images.references_max = 3,
    .published = {.title = "WAN 2.1 VACE",
                  .reference = DIFFUSERS,
                  .sources = {wan_vace_files, taew21_source}},
};
