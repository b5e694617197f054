/* UNets of Stable Diffusion 1, 2 and XL: sizes in files, recipes and published models. The UNet itself:
 * unet.c. */
#include "models/slots.h"
#include "models/unet.h"

#include <stdio.h>
#include <string.h>

enum { DIM_MAX = 1 << 15, HEAD_MAX = 512, UNET_SIDE_MAX = 4096 };

enum { UNET_NAME_BYTES = 2 * BLOCK_NAME_MAX };

static const struct {
    const char *resnet, *resnet_checkpoint, *attention, *attention_checkpoint;
} unet_names[UNET_SIDES] = {
    [UNET_DOWN] = {UNET_DOWN_RESNET, UNET_CHECKPOINT_DOWN_RESNET, UNET_DOWN_ATTENTION,
                   UNET_CHECKPOINT_DOWN_ATTENTION},
    [UNET_MID] = {UNET_MID_RESNET, UNET_CHECKPOINT_MID_RESNET, UNET_MID_ATTENTION,
                  UNET_CHECKPOINT_MID_ATTENTION},
    [UNET_UP] = {UNET_UP_RESNET, UNET_CHECKPOINT_UP_RESNET, UNET_UP_ATTENTION, UNET_CHECKPOINT_UP_ATTENTION},
};

static bool unet_has_checkpoint_names(const struct component *c) {
    return index_find(&c->index, "input_blocks.0.0.weight") != NULL;
}

/* Tensor name of a position's resnet or transformer plus a suffix, in the file's naming scheme. */
static const char *unet_name(const struct component *c, struct unet_position position, bool attention,
                             const char *tail, char out[UNET_NAME_BYTES]) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    char format[UNET_NAME_BYTES];
    struct block_ref ref = unet_ref(s, position);
    bool checkpoint_names = unet_has_checkpoint_names(c);
    const char *name = checkpoint_names ? attention ? unet_names[position.side].attention_checkpoint
                                                    : unet_names[position.side].resnet_checkpoint
                       : attention      ? unet_names[position.side].attention
                                        : unet_names[position.side].resnet;
    snprintf(format, sizeof format, "%s%s", name, tail);
    return block_weight_name(format, ref.number + (checkpoint_names ? ref.number_offset : 0), out);
}

/* Index entry of the first convolution weight of a position's resnet; NULL if absent. */
static const struct index_entry *unet_find_resnet(const struct component *c, struct unet_position position) {
    char name[UNET_NAME_BYTES];
    const char *tail = unet_has_checkpoint_names(c) ? ".in_layers.2.weight" : ".conv1.weight";
    return index_find(&c->index, unet_name(c, position, false, tail, name));
}

/* Counts levels. In the authors' checkpoints a level ends at its downsampling convolution. */
static void unet_count_levels(const struct component *c, struct unet_settings *s) {
    char name[UNET_NAME_BYTES];
    int places = index_last_block(&c->index, "input_blocks.") + 1, first = 1;
    if (!unet_has_checkpoint_names(c)) {
        s->levels = index_last_block(&c->index, "down_blocks.") + 1;
        s->resnets = index_last_block(&c->index, "down_blocks.0.resnets.") + 1;
        return;
    }
    while (first < places && first <= UNET_RESNETS_MAX + 1 &&
           !index_find(&c->index, block_weight_name("input_blocks.%d.0.op.weight", first, name)))
        first++;
    s->resnets = first - 1;
    s->levels = places / first;
}

static enum status unet_refuse_levels(const struct component *c, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    return error_set(e, SHAPE,
                     "unsupported UNet: number of levels or resnets" WHERE "%s" FOUND
                     "%d levels with %d resnets each" EXPECTED "1 to %d levels with 1 to %d resnets each",
                     c->index.sources[0].path, s->levels, s->resnets, UNET_LEVELS_MAX, UNET_RESNETS_MAX);
}

static void unet_read_channels(struct component *c, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    for (int i = 0; i < s->levels; i++) {
        char name[UNET_NAME_BYTES];
        const char *tail = unet_has_checkpoint_names(c) ? ".in_layers.2.weight" : ".conv1.weight";
        unet_name(c, (struct unet_position){UNET_DOWN, i, 0, 0}, false, tail, name);
        c->dims[CHANNELS + i] = component_dim(c, name, 4, 0, e);
    }
}

/* Reads two dims from the first transformer: the prompt embedding width, and whether projections are 1x1
 * convolutions. in: index entry of its first projection; NULL: absent. */
static void unet_read_transformer(struct component *c, struct unet_position position,
                                  const struct index_entry *in, struct error *e) {
    char name[UNET_NAME_BYTES];
    const char *tail = ".transformer_blocks.0.attn2.to_k.weight";
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    if (in) c->dims[CONV_AXES] = in->rank > 2 ? in->rank - 2 : 0;
    if (c->dims[CONTEXT] || !s->layers[unet_index(s, position)]) return;
    c->dims[CONTEXT] = component_dim(c, unet_name(c, position, true, tail, name), 2, 1, e);
}

static void unet_read_layers(struct component *c, struct error *e) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    for (int i = 0, n = unet_n_positions(s); i < n && e->code == OK; i++) {
        char name[UNET_NAME_BYTES];
        struct unet_position position = unet_position_at(s, i);
        bool second = position.side == UNET_MID &&
                      position.resnet; /* no transformer follows the mid block's second resnet */
        int layers =
            second
                ? 0
                : index_last_block(&c->index, unet_name(c, position, true, ".transformer_blocks.", name)) + 1;
        if (layers > UNET_LAYERS_MAX) {
            error_set(e, SHAPE,
                      "unsupported UNet: a transformer has too many layers" WHERE "%s" FOUND
                      "%d layers under '%s'" EXPECTED "at most %d layers",
                      c->index.sources[0].path, layers, name, UNET_LAYERS_MAX);
        }
        const struct index_entry *in =
            index_find(&c->index, unet_name(c, position, true, ".proj_in.weight", name));
        s->layers[i] = (unsigned char)layers;
        s->attends[i] = layers || (in && !second);
        if (s->attends[i] && e->code == OK) unet_read_transformer(c, position, in, e);
    }
}

/* diffusers' attention_head_dim holds the number of heads, default 8. Without a configuration: 8 if
 * projections are convolutions (Stable Diffusion 1), else heads of width 64. */
static void unet_read_heads(struct component *c, const struct config *config, struct error *e) {
    enum { HEADS_MAX = 512, USUAL = 8, WIDTH = 64 };
    static const char *const keys[] = {"attention_head_dim", "num_attention_heads"};
    struct unet_settings *s = (struct unet_settings *)c->settings;
    bool configured = config_find(config, "_class_name") != NULL;
    for (int i = 0; i < s->levels; i++) {
        s->heads[i] = configured || c->dims[CONV_AXES] ? USUAL : c->dims[CHANNELS + i] / WIDTH;
        for (int k = 0; k < 2; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s.%d", keys[k], i);
            const char *either = config_find(config, key) ? key : keys[k];
            config_int(config, either, 1, HEADS_MAX, &s->heads[i], e);
        }
    }
}

static enum status unet_read_positions(struct component *c, const struct config *config, struct error *e) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    unet_count_levels(c, s);
    if (s->levels < 1 || s->levels > UNET_LEVELS_MAX || s->resnets < 1 || s->resnets > UNET_RESNETS_MAX)
        return unet_refuse_levels(c, e);
    while (s->mid_resnets < 2 && unet_find_resnet(c, (struct unet_position){UNET_MID, 0, s->mid_resnets, 0}))
        s->mid_resnets++;
    unet_read_channels(c, e);
    if (e->code == OK) unet_read_layers(c, e);
    unet_read_heads(c, config, e);
    return e->code;
}

enum status unet_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"class_embedding.", "a class-conditional UNet"},
        {"label_emb.weight", "a class-conditional UNet"},
        {"encoder_hid_proj", "a UNet for another text encoder (encoder_hid_proj)"},
        {"add_embedding.image", "a UNet conditioned on an image embedding"},
        {"add_embedding.text", "a UNet conditioned on a text embedding"},
        {"down_blocks.0.motion_modules.", "a video UNet"},
        {"down_blocks.0.resnets.0.temporal_res_block.", "a video UNet"},
        {"input_blocks.1.0.time_stack.", "a video UNet"},
        {"down_blocks.0.attentions.0.transformer_blocks.0.fuser.", "a UNet conditioned on boxes (GLIGEN)"},
        {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.",
         "a UNet with an IP-Adapter or attention processor merged in"},
        {"down_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.",
         "a UNet with an IP-Adapter or attention processor merged in"},
        {0},
    };
    return component_refuse_similar(c, relatives, "a UNet of Stable Diffusion 1, 2 or XL", e);
}

const struct expectation unet_expects[] = {
    {"act_fn", "silu"},
    {"addition_embed_type", "text_time"},
    {"attention_type", "default"},
    {"center_input_sample", NULL},
    {"class_embed_type", NULL},
    {"class_embeddings_concat", NULL},
    {"cross_attention_norm", NULL},
    {"dual_cross_attention", NULL},
    {"encoder_hid_dim", NULL},
    {"encoder_hid_dim_type", NULL},
    {"num_class_embeds", NULL},
    {"only_cross_attention", NULL},
    {"resnet_skip_time_act", NULL},
    {"resnet_time_scale_shift", "default"},
    {"time_embedding_act_fn", NULL},
    {"time_embedding_type", "positional"},
    {"timestep_post_act", NULL},
    {0},
};

static void unet_check_constants(const struct config *config, struct error *e) {
    static const struct {
        const char *key;
        double value;
    } only[] = {{"freq_shift", 0},
                {"downsample_padding", 1},
                {"mid_block_scale_factor", 1},
                {"resnet_out_scale_factor", 1}};
    bool cos_first = true;
    double value;
    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        config_float(config, only[i].key, only[i].value, only[i].value, &value, e);
    if (config_bool(config, "flip_sin_to_cos", &cos_first, e) != OK || cos_first) return;
    error_set(e, UNSUPPORTED,
              "unsupported UNet: timestep sinusoids with sine first" WHERE "%s" FOUND
              "\"flip_sin_to_cos\": false" EXPECTED "\"flip_sin_to_cos\": true",
              config->path);
}

/* Refuses unsupported block types, which compute differently under the same tensor names. */
static void unet_check_types(const struct component *c, const struct config *config, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    for (int i = 0; i < s->levels; i++) {
        int up = s->levels - 1 - i;
        char key[32];
        snprintf(key, sizeof key, "down_block_types.%d", i);
        config_expect(config, key, s->attends[i * s->resnets] ? "CrossAttnDownBlock2D" : "DownBlock2D", e);
        snprintf(key, sizeof key, "up_block_types.%d", i);
        config_expect(config, key, s->attends[up * s->resnets] ? "CrossAttnUpBlock2D" : "UpBlock2D", e);
    }
    if (s->mid_resnets == 2) config_expect(config, "mid_block_type", "UNetMidBlock2DCrossAttn", e);
}

enum status unet_check_dims(const struct component *c, bool reads_text, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    const int32_t *d = c->dims;
    int bad = 0, blocks = 3;
    for (int i = 0; i < s->levels; i++) {
        int32_t C = d[CHANNELS + i];
        if (C > DIM_MAX || C % s->groups || s->heads[i] < 1 || C % s->heads[i] || C / s->heads[i] > HEAD_MAX)
            bad = C;
    }
    for (int i = 0; i < unet_n_positions(s); i++) blocks += 5 + 2 * s->layers[i];
    if (!bad && blocks <= FAMILY_BLOCKS_MAX && (d[CONTEXT] || !reads_text) && d[FREQUENCIES] % 2 == 0 &&
        (!d[ADDED] || d[POOLED] > 0) && s->time_id_columns % 2 == 0 && d[TIME] <= DIM_MAX)
        return OK;
    return error_set(
        e, SHAPE,
        "unsupported UNet: channels, heads or embedding widths" WHERE "%s" FOUND
        "%d channels in %d groups, %d blocks, cross_attention_dim %d, add_embedding of %d columns" EXPECTED
        "channels divisible into groups and into whole heads of at most %d channels, at most %d blocks",
        c->index.sources[0].path, bad, s->groups, blocks, d[CONTEXT], d[ADDED], HEAD_MAX, FAMILY_BLOCKS_MAX);
}

/* Accepts UNets that read the latent alone or, for inpainting, also mask and latent of the masked image. */
static enum status unet_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (d[IN_CHANNELS] == d[LATENT] || d[IN_CHANNELS] == 2 * d[LATENT] + 1) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported UNet: number of input channels" WHERE "%s" FOUND
                     "%d channels in conv_in" EXPECTED
                     "%d, or %d (inpainting); %d (InstructPix2Pix, pix2pix) is not supported",
                     c->index.sources[0].path, d[IN_CHANNELS], d[LATENT], 2 * d[LATENT] + 1, 2 * d[LATENT]);
}

/* True for SDXL's refiner: the UNet with add_time_ids whose smallest level has no transformers. The refiner
 * has five add_time_ids: an aesthetic score replaces the target size. */
static bool unet_is_refiner(const struct component *c) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    return c->dims[ADDED] && !s->layers[(s->levels - 1) * s->resnets];
}

/* Accepts a guidance embedding (LCM) only in UNets of Stable Diffusion 1 and SDXL. */
static enum status unet_check_guidance(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    bool has_recipe = d[IN_CHANNELS] == d[LATENT] && (d[ADDED] ? !unet_is_refiner(c) : d[CONV_AXES]);
    if (!d[GUIDANCE] || (has_recipe && d[GUIDANCE] > 2 && d[GUIDANCE] % 2 == 0)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported UNet: guidance embedding (LCM) on another base model" WHERE "%s" FOUND
                     "guidance embedding of %d columns, %d input channels, cross_attention_dim %d" EXPECTED
                     "an LCM of Stable Diffusion 1 or SDXL that reads the latent alone",
                     c->index.sources[0].path, d[GUIDANCE], d[IN_CHANNELS], d[CONTEXT]);
}

enum status unet_read(struct component *c, const struct config *config, struct error *e) {
    const char *added = component_first_existing(c, "add_embedding.linear_1.weight", "label_emb.0.0.weight");
    int32_t *d = c->dims;
    if (unet_read_positions(c, config, e) != OK) return e->code;
    bool linear = !d[CONV_AXES];
    if (index_find(&c->index, added)) d[ADDED] = component_dim(c, added, 2, 1, e);
    config_bool(config, "use_linear_projection", &linear, e);
    if (!linear) d[CONV_AXES] = UNET_CONV_AXES;
    unet_check_constants(config, e);
    unet_check_types(c, config, e);
    return e->code;
}

enum status unet_configure(struct component *c, const struct config *config, struct error *e) {
    enum { SIZES = 6, SIZES_AND_SCORE = 5 };
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    const char *guided =
        component_first_existing(c, "time_embedding.cond_proj.weight", "time_embed.cond_proj.weight");
    int32_t *d = c->dims;
    if (unet_read(c, config, e) != OK) return e->code;
    if (index_find(&c->index, guided)) d[GUIDANCE] = component_dim(c, guided, 2, 1, e);
    d[TIME_IDS] = !d[ADDED] ? 0 : unet_is_refiner(c) ? SIZES_AND_SCORE : SIZES;
    d[POOLED] = d[ADDED] - d[TIME_IDS] * s->time_id_columns;
    if (e->code != OK || unet_check_dims(c, true, e) != OK || unet_check_inputs(c, e) != OK) return e->code;
    return unet_check_guidance(c, e);
}

void unet_derive_positions(struct component *c) {
    enum { WIDTH = 64 };
    struct unet_settings *s = (struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    s->groups = d[GROUPS];
    s->resnets = d[RESNETS];
    s->mid_resnets = 2;
    while (s->levels < UNET_LEVELS_MAX && d[CHANNELS + s->levels]) s->levels++;
    for (int i = 0; i < s->levels; i++) {
        s->heads[i] = d[EQUAL_HEADS] ? d[EQUAL_HEADS] : d[CHANNELS + i] / WIDTH;
        if (!s->heads[i]) s->heads[i] = 1;
    }
    for (int i = 0, n = unet_n_positions(s); i < n; i++) {
        struct unet_position position = unet_position_at(s, i);
        int layers = d[LAYERS + unet_depth(s, position)];
        if (position.side == UNET_MID && !layers) layers = d[MID_LAYERS];
        if (position.side == UNET_MID && position.resnet) layers = 0;
        s->layers[i] = (unsigned char)layers;
        s->attends[i] = layers > 0;
    }
}

void unet_set_config_dims(struct component *c) {
    enum { PLAIN_TYPE = 1, ATTENTION_TYPE };
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    int mid = s->mid_resnets ? s->layers[s->levels * s->resnets] : 0;
    for (int i = 0; i < s->levels; i++) {
        int layers = s->layers[i * s->resnets], written = layers;
        if (!layers) written = i + 1 == s->levels && mid ? mid : 1;
        d[CONFIG_HEADS + i] = s->heads[i];
        d[CONFIG_LAYERS + i] = written;
        d[DOWN_TYPE + i] = d[UP_TYPE + s->levels - 1 - i] =
            s->attends[i * s->resnets] ? ATTENTION_TYPE : PLAIN_TYPE;
    }
    d[CONFIG_LINEAR] = !d[CONV_AXES];
    d[CONFIG_ADDITION] = d[ADDED] > 0;
}

const char *const unet_down_types[] = {NULL, "DownBlock2D", "CrossAttnDownBlock2D"};
static const char *const unet_up_types[] = {NULL, "UpBlock2D", "CrossAttnUpBlock2D"};
const char *const unet_addition_types[] = {NULL, "text_time"};

/* Sizes of the published Stable Diffusion 1, 0.86 B parameters. */
const struct dimension unet_dimensions[N_UNET_DIMENSIONS] = {
    UNET_SIZES,
    {"unet_fill", 0, 0, 1, .place = INPAINTS},
    {"latent_channels", 4, 1, 1024, .place = LATENT, OF_TENSOR(4, 0, "conv_out.weight", "out.2.weight"),
     .key = "out_channels"},
    {"unet_guidance", 0, 0, 4096, .place = GUIDANCE},
    {.place = GUIDANCE, .key = "time_cond_proj_dim", .form = FORM_NULL_IF_0},
    UNET_CONFIG,
    CONFIG_LEVELS(UP_TYPE, "up_block_types", .words = unet_up_types),
};

const struct setting unet_settings_rows[N_UNET_SETTINGS] = {
    UNET_COMMON_SETTINGS,
    UNET_SETTING("sample_size", side, SETTING_INT, 64, 1, UNET_SIDE_MAX),
};

void unet_derive_dims(struct component *c) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    unet_derive_positions(c);
    d[FREQUENCIES] = d[CHANNELS];
    d[TIME] = 4 * d[CHANNELS];
    d[IN_CHANNELS] = d[LATENT] + d[INPAINTS] * (d[LATENT] + 1);
    d[ADDED] = d[TIME_IDS] ? d[POOLED] + d[TIME_IDS] * s->time_id_columns : 0;
}

static int unet_variant(const struct component *c) {
    const int32_t *d = c->dims;
    bool inpaints = d[IN_CHANNELS] != d[LATENT];
    if (d[GUIDANCE]) return d[ADDED] ? UNET_SDXL_GUIDED : UNET_SD1_GUIDED;
    if (d[ADDED]) return unet_is_refiner(c) ? UNET_SDXL_REFINER : inpaints ? UNET_SDXL_INPAINT : UNET_SDXL;
    if (d[CONV_AXES]) return inpaints ? UNET_SD1_INPAINT : UNET_SD1;
    return inpaints ? UNET_SD2_INPAINT : UNET_SD2;
}

void unet_derive(struct component *c) {
    int32_t *d = c->dims;
    d[K1] = 1;
    d[K3] = 3;
    unet_set_config_dims(c);
    c->text_columns = d[CONTEXT];
    c->pooled_columns = d[ADDED] ? d[POOLED] : 0;
    c->latent_channels = d[LATENT];
    c->concat_channels = d[IN_CHANNELS] - d[LATENT];
    c->latent_side = ((const struct unet_settings *)c->settings)->side;
    c->variant = unet_variant(c);
    if (d[ADDED]) c->architecture = "sdxl";
}

/* clang-format off */
/* Preview colours, fitted by stable-diffusion.cpp (src/runtime/latent-preview.h at 2e0f042): Stable Diffusion 1
 * and 2, then XL. */
static const float colours_sd1[][3] = {
    {0.168683F, 0.108172F, 0.128693F}, {0.082818F, 0.193414F, 0.023497F},
    {-0.1339015F, 0.118518F, 0.1117585F}, {-0.089011F, -0.100431F, -0.339257F}};
static const struct latent_colours latent_colours_sd1 = {
    4, colours_sd1, {0.491261F, 0.472083F, 0.4470875F}, 0.18215F};

static const float colours_sdxl[][3] = {
    {0.1291515F, 0.13882F, 0.1648495F}, {-0.1498505F, 0.052723F, 0.007097F},
    {0.025261F, 0.0930815F, -0.0716285F}, {-0.105969F, -0.074946F, -0.040018F}};
static const struct latent_colours latent_colours_sdxl = {
    4, colours_sdxl, {0.5721905F, 0.4833435F, 0.5035305F}, 0.13025F};
/* clang-format on */

/* clang-format off */
static const struct hf_source taesd_source[] = {
    {"madebyollin/taesd", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source taesdxl_source[] = {
    {"madebyollin/taesdxl", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source sd1_files[] = {
    {"stable-diffusion-v1-5/stable-diffusion-v1-5", NULL, NULL, 0},
    {"stable-diffusion-v1-5/stable-diffusion-v1-5", NULL, "v1-5-pruned-emaonly.safetensors", 4270},
    {0},
};
static const struct hf_source sd1_inpaint_files[] = {
    {"stable-diffusion-v1-5/stable-diffusion-inpainting", NULL, NULL, 0},
    {0},
};
static const struct hf_source sd2_files[] = {
    {"stabilityai/stable-diffusion-2-1", NULL, NULL, 0},
    {"stabilityai/sd-turbo", NULL, NULL, 0},
    {0},
};
static const struct hf_source sd2_inpaint_files[] = {
    {"stabilityai/stable-diffusion-2-inpainting", NULL, NULL, 0},
    {0},
};
static const struct hf_source sdxl_files[] = {
    {"stabilityai/stable-diffusion-xl-base-1.0", NULL, NULL, 0},
    {"stabilityai/stable-diffusion-xl-base-1.0", NULL, "sd_xl_base_1.0.safetensors", 6940},
    {"stabilityai/sdxl-turbo", NULL, NULL, 0},
    {0},
};
static const struct hf_source sdxl_inpaint_files[] = {
    {"diffusers/stable-diffusion-xl-1.0-inpainting-0.1", NULL, NULL, 0},
    {0},
};
static const struct hf_source sdxl_refiner_files[] = {
    {"stabilityai/stable-diffusion-xl-refiner-1.0", NULL, NULL, 0},
    {0},
};
static const struct hf_source sd1_lcm_files[] = {
    {"SimianLuo/LCM_Dreamshaper_v7", NULL, NULL, 0},
    {0},
};
static const struct hf_source sdxl_lcm_files[] = {
    {"latent-consistency/lcm-sdxl", "--diffusion-model", "diffusion_pytorch_model.safetensors", 0},
    {0},
};
/* clang-format on */

/* Published schedulers (scheduler_config.json): PNDM for Stable Diffusion 1, DDIM for 2, Euler for XL. */
/* clang-format off */
#define SAMPLING_STABLE_DIFFUSION(schedule_, sampler_, levels)                                               \
    .prediction = &prediction_eps, .schedule = &(schedule_), .sampler = &(sampler_),                         \
    .grid = {.spacing = SPACING_LEADING, .steps_offset = 1, .original_steps = 50, .ays_sigmas = (levels)},   \
    .noise = NOISE_STABLE_DIFFUSION
#define SAMPLING_SD1                                                                                         \
    {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_ddim, sampler_pndm, ays_sigmas_sd1),                       \
     .fixes_legacy_config = true}
#define SAMPLING_SD2                                                                                         \
    {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_ddim, sampler_ddim, NULL), .fixes_legacy_config = true}
#define SAMPLING_SDXL {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_euler, sampler_euler, ays_sigmas_sdxl)}
#define SAMPLING_LCM  {SAMPLING_STABLE_DIFFUSION(schedule_diffusers_lcm, sampler_lcm, NULL)}

/* OpenCLIP-H with the dimensions of diffusers' files, which have the first 23 of its 24 layers. */
#define TEXT_CLIP_H                                                                                          \
    {.family = &family_clip, .flag = "--clip_h", .display_name = "OpenCLIP-H text encoder",                  \
     .folder = "text_encoder",                                                                               \
     .prefixes = (const char *const[]){"", "text_encoders.clip_h.transformer.", "text_encoders.clip_h.",     \
                                       "clip_h.", "cond_stage_model.model.", "cond_stage_model.transformer.", \
                                       "conditioner.embedders.0.model.", NULL},                              \
     .matches = clip_is_h,                                                                                   \
     .dimension = {{"pooled", 1024}, {"clip_heads", 16}, {"clip_ff", 4096}, {"clip_layers", 23}},            \
     .published = erf_gelu,                                                                                  \
     TEXT_CLIP("", CLIP_WINDOWS_MAX, "stabilityai/stable-diffusion-2-1", "CLIPTextModel", "CLIPTokenizer"),  \
     .text.pad_with_id_0 = true}
/* clang-format on */

/* Stable Diffusion 1, 2, XL: diffusers 0.42, pipelines/stable_diffusion and stable_diffusion_xl. Steps,
 * guidance and strength are those of each pipeline's __call__; guidance of Stable Diffusion 1 and 2 is
 * rounded down (7.5 to 7). Sizes are those of the published UNets. */
static const struct published_setting sd_vae[] = {{"scaling_factor", 0.18215}, {"shift_factor", 0}, {0}};
static const struct published_setting sdxl_vae[] = {{"scaling_factor", 0.13025}, {"shift_factor", 0}, {0}};
static const struct published_setting sd2_unet[] = {{"sample_size", 96}, {0}};
static const struct published_setting sdxl_unet[] = {{"sample_size", 128}, {0}};
/* clang-format off */
#define VAE_KL_4(settings, tiny)                                                                             \
    {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES),            \
     .dimension = {{"latent_channels", 4}, {"vae_quant", 1}}, .published = settings},                        \
    {.family = &family_vae_kl_encoder, .folder = "vae",                                                      \
     .dimension = {{"latent_channels", 4}, {"vae_quant", 1}}, .published = settings},                        \
    TINY_DECODER(family_taesd, .weights_name = tiny, .dimension = {{"latent_channels", 4}})
#define UNET(settings, inpaints, ...)                                                                        \
    {.family = &family_unet, .flag = "--diffusion-model", .folder = "unet", .prefixes = NAMES(DENOISER_PREFIXES), \
     .published = settings, .dimension = {{"unet_fill", inpaints}, __VA_ARGS__}}
#define SD_DEFAULTS(of)                                                                                      \
    .patch = 1, .denoising.sampling = of, .denoising.flow_shift = 1, .denoising.guide = guidance_cfg,        \
    .images.samples_posterior = true, .defaults.steps = 50

#define SD1(inpaints, guided)                                                                                \
    .slot = {TEXT_CLIP_L(CLIP_WINDOWS_MAX), UNET(NULL, inpaints, {"unet_guidance", guided}),                 \
             VAE_KL_4(sd_vae, "taesd")},                                                                     \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS}}, .n_conditions = 1},                       \
    .denoising.span = {{1, INFINITY}},                                                                       \
    .defaults.width = 512, .defaults.height = 512, .colours = &latent_colours_sd1
#define SD2(inpaints)                                                                                        \
    .slot = {TEXT_CLIP_H,                                                                                    \
             UNET(sd2_unet, inpaints, {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 1024}),        \
             VAE_KL_4(sd_vae, "taesd")},                                                                     \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS,                                             \
                            .hidden = {.layers = {-2}, .final_norm = FINAL_NORM_OF_ALL}}},                   \
             .n_conditions = 1},                                                                             \
    .denoising.span = {{1, INFINITY}}, SD_DEFAULTS(SAMPLING_SD2),                                            \
    .defaults.width = 768, .defaults.height = 768, .defaults.cfg_scale = 7, .colours = &latent_colours_sd1
#define SDXL(inpaints, guided)                                                                               \
    .slot = {TEXT_CLIP_L(CLIP_WINDOWS_MAX), {TEXT_CLIP_G(CLIP_WINDOWS_MAX)},                                 \
             UNET(sdxl_unet, inpaints, {"unet3", 0}, {"unet_layers0", 0}, {"unet_layers1", 2},               \
                  {"unet_layers2", 10}, {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 2048},       \
                  {"unet_pooled", 1280}, {"unet_numbers", 6}, {"unet_guidance", guided}),                    \
             VAE_KL_4(sdxl_vae, "taesdxl")},                                                                 \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}}},                \
                           {.slot = 1, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}},                 \
                            .concat_columns = true},                                                         \
                           {.slot = 1, .what = CONDITION_POOLED, .projected = true}},                        \
             .n_conditions = 3, .force_zeros_for_empty_prompt = true},                                       \
    .denoising.span = {{2, INFINITY}}, .denoising.add_time_ids = ADD_TIME_IDS_SIZES,                         \
    .defaults.width = 1024, .defaults.height = 1024, .colours = &latent_colours_sdxl
/* Latent consistency models (LCM): default guidance of pipelines/latent_consistency_models and, for SDXL, of
 * the model card; these models need few steps and read the guidance scale through an embedding. */
#define LCM_DEFAULTS                                                                                         \
    .patch = 1, .denoising.sampling = SAMPLING_LCM, .denoising.flow_shift = 1, .denoising.guide = guidance_cfg, \
    .denoising.takes_guidance = true, .images.samples_posterior = true,                                      \
    .defaults.steps = 4, .defaults.cfg_scale = 1
/* clang-format on */

const struct recipe recipe_sd1 = {
    SD1(0, 0),
    SD_DEFAULTS(SAMPLING_SD1),
    .defaults.cfg_scale = 7,
    .name = "sd15",
    .selection.variant = UNET_SD1,
    .selection.pipelines = {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline",
                            "StableDiffusionInpaintPipeline"},
    .defaults.strength = 0.8,
    .published = {.title = "Stable Diffusion 1.5 and finetunes",
                  .reference = DIFFUSERS,
                  .sources = {sd1_files, taesd_source}},
};

const struct recipe recipe_sd1_inpaint = {
    SD1(1, 0),
    SD_DEFAULTS(SAMPLING_SD1),
    .defaults.cfg_scale = 7,
    .name = "sd15_inpaint",
    .selection.variant = UNET_SD1_INPAINT,
    .selection.pipelines = {"StableDiffusionInpaintPipeline", "StableDiffusionPipeline"},
    .images.concat = CONCAT_INPAINT,
    .defaults.strength = 1,
    .published = {.title = "Stable Diffusion 1.5 inpainting",
                  .reference = DIFFUSERS,
                  .sources = {sd1_inpaint_files, taesd_source}},
};

/* Stable Diffusion 2. Source of the probed tensor and of the threshold 0.09: ComfyUI,
 * comfy/supported_models.py, SD20. */
const struct recipe recipe_sd2 = {
    SD2(0),
    .denoising.prediction_probe = {{"output_blocks.11.1.transformer_blocks.0.norm1.bias",
                                    "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"},
                                   0.09},
    .defaults.distilled = {.latent_side = 64, .steps = 4}, /* SD-Turbo */
    .name = "sd2",
    .selection.variant = UNET_SD2,
    .selection.pipelines = {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline",
                            "StableDiffusionInpaintPipeline"},
    .defaults.strength = 0.8,
    .published = {.title = "Stable Diffusion 2.1, SD-Turbo",
                  .reference = DIFFUSERS,
                  .sources = {sd2_files, taesd_source}},
};

const struct recipe recipe_sd2_inpaint = {
    SD2(1),
    .name = "sd2_inpaint",
    .selection.variant = UNET_SD2_INPAINT,
    .selection.pipelines = {"StableDiffusionInpaintPipeline", "StableDiffusionPipeline"},
    .images.concat = CONCAT_INPAINT,
    .defaults.strength = 1,
    .published = {.title = "Stable Diffusion 2 inpainting",
                  .parts_compared_in = &recipe_sd1_inpaint,
                  .sources = {sd2_inpaint_files, taesd_source}},
};

const struct recipe recipe_sdxl = {
    SDXL(0, 0),
    SD_DEFAULTS(SAMPLING_SDXL),
    .defaults.cfg_scale = 5,
    .defaults.distilled = {.latent_side = 64, .steps = 4}, /* SDXL-Turbo */
    .name = "sdxl",
    .selection.variant = UNET_SDXL,
    .selection.pipelines = {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline",
                            "StableDiffusionXLInpaintPipeline"},
    .defaults.strength = 0.3,
    .published = {.title = "SDXL, SDXL-Turbo and finetunes",
                  .reference = DIFFUSERS,
                  .sources = {sdxl_files, taesdxl_source}},
};

const struct recipe recipe_sdxl_inpaint = {
    SDXL(1, 0),
    SD_DEFAULTS(SAMPLING_SDXL),
    .defaults.cfg_scale = 5,
    .name = "sdxl_inpaint",
    .selection.variant = UNET_SDXL_INPAINT,
    .selection.pipelines = {"StableDiffusionXLInpaintPipeline", "StableDiffusionXLPipeline"},
    .images.concat = CONCAT_INPAINT,
    .defaults.strength = 0.9999,
    .published = {.title = "SDXL inpainting",
                  .parts_compared_in = &recipe_sd1_inpaint,
                  .sources = {sdxl_inpaint_files, taesdxl_source}},
};

const struct recipe recipe_sd1_lcm = {
    SD1(0, 256),
    LCM_DEFAULTS,
    .name = "sd15_lcm",
    .selection.variant = UNET_SD1_GUIDED,
    .selection.pipelines = {"LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline",
                            "StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"},
    .defaults.guidance = 8.5,
    .defaults.strength = 0.8,
    .published = {.title = "LCM of Stable Diffusion 1.5",
                  .parts_compared_in = &recipe_sd1,
                  .sources = {sd1_lcm_files, taesd_source}},
};

const struct recipe recipe_sdxl_lcm = {
    SDXL(0, 256),
    LCM_DEFAULTS,
    .name = "sdxl_lcm",
    .selection.variant = UNET_SDXL_GUIDED,
    .selection.pipelines = {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"},
    .defaults.guidance = 8,
    .defaults.strength = 0.3,
    .published = {.title = "LCM of SDXL",
                  .parts_compared_in = &recipe_sdxl,
                  .sources = {sdxl_lcm_files, taesdxl_source}},
};

/* The refiner is made for img2img on images of SDXL's base model, but can also start from noise. */
const struct recipe recipe_sdxl_refiner = {
    .slot = {{TEXT_CLIP_G(CLIP_WINDOWS_MAX)},
             UNET(sdxl_unet, 0, {"unet0", 384}, {"unet1", 768}, {"unet2", 1536}, {"unet3", 1536},
                  {"unet_layers0", 0}, {"unet_layers1", 4}, {"unet_layers2", 4}, {"unet_middle_layers", 4},
                  {"unet_heads", 0}, {"unet_convolved", 0}, {"unet_text", 1280}, {"unet_pooled", 1280},
                  {"unet_numbers", 5}),
             VAE_KL_4(sdxl_vae, "taesdxl")},
    .text.condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}}},
                       {.slot = 0, .what = CONDITION_POOLED, .projected = true}},
    .text.n_conditions = 2,
    .denoising.span = {{1, INFINITY}},
    SD_DEFAULTS(SAMPLING_SDXL),
    .denoising.add_time_ids = ADD_TIME_IDS_SIZES_AND_SCORE,
    .name = "sdxl_refiner",
    .colours = &latent_colours_sdxl,
    .selection.variant = UNET_SDXL_REFINER,
    .selection.pipelines = {"StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLPipeline",
                            "StableDiffusionXLInpaintPipeline"},
    .defaults.width = 1024,
    .defaults.height = 1024,
    .defaults.cfg_scale = 5,
    .defaults.strength = 0.3,
    .published = {.title = "SDXL refiner",
                  .reference = DIFFUSERS,
                  .sources = {sdxl_refiner_files, taesdxl_source}},
};
