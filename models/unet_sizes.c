/* A UNet's sizes: see unet_sizes.h. */
#include "models/models.h"
#include "models/unet_sizes.h"

#include <stdio.h>
#include <string.h>

enum { DIM_MAX = 1 << 15, HEAD_MAX = 512, UNET_SIDE_MAX = 4096 };

/* ---- files ---- */

/* Bytes for a name with what follows it. */
enum { UNET_NAME_BYTES = 2 * BLOCK_NAME_MAX };

static const struct {
    const char *resnet, *resnet_original, *attention, *attention_original;
} unet_names[UNET_SIDES] = {
    [UNET_DOWN] = {UNET_DOWN_RESNET, UNET_DOWN_RESNET_ORIGINAL, UNET_DOWN_ATTENTION,
                   UNET_DOWN_ATTENTION_ORIGINAL},
    [UNET_MID] = {UNET_MID_RESNET, UNET_MID_RESNET_ORIGINAL, UNET_MID_ATTENTION, UNET_MID_ATTENTION_ORIGINAL},
    [UNET_UP] = {UNET_UP_RESNET, UNET_UP_RESNET_ORIGINAL, UNET_UP_ATTENTION, UNET_UP_ATTENTION_ORIGINAL},
};

static bool unet_is_original(const struct component *c) {
    return index_find(&c->index, "input_blocks.0.0.weight") != NULL;
}

/* The name of a place's resnet or transformer as these files have it, with a tail. */
static const char *unet_name(const struct component *c, struct unet_place place, bool attention,
                             const char *tail, char out[UNET_NAME_BYTES]) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    char format[UNET_NAME_BYTES];
    struct block_ref ref = unet_ref(s, place);
    bool original = unet_is_original(c);
    const char *name = original    ? attention ? unet_names[place.side].attention_original
                                               : unet_names[place.side].resnet_original
                       : attention ? unet_names[place.side].attention
                                   : unet_names[place.side].resnet;
    snprintf(format, sizeof format, "%s%s", name, tail);
    return block_weight_name(format, ref.number + (original ? ref.original : 0), out);
}

/* The first convolution of a place's resnet, or NULL. */
static const struct index_entry *unet_find_resnet(const struct component *c, struct unet_place place) {
    char name[UNET_NAME_BYTES];
    const char *tail = unet_is_original(c) ? ".in_layers.2.weight" : ".conv1.weight";
    return index_find(&c->index, unet_name(c, place, false, tail, name));
}

/* In the authors' row a level ends where it is downsampled. */
static void unet_count_levels(const struct component *c, struct unet_settings *s) {
    char name[UNET_NAME_BYTES];
    int places = index_last_block(&c->index, "input_blocks.") + 1, first = 1;
    if (!unet_is_original(c)) {
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

static enum status unet_bad_levels(const struct component *c, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    error_set(e, SHAPE, "the UNet's levels cannot be used");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d levels of %d resnets", s->levels, s->resnets);
    return error_expected(e, "1 to %d of 1 to %d", UNET_LEVELS_MAX, UNET_RESNETS_MAX);
}

static void unet_read_channels(struct component *c, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    for (int i = 0; i < s->levels; i++) {
        char name[UNET_NAME_BYTES];
        const char *tail = unet_is_original(c) ? ".in_layers.2.weight" : ".conv1.weight";
        unet_name(c, (struct unet_place){UNET_DOWN, i, 0, 0}, false, tail, name);
        c->dims[CHANNELS + i] = component_dim(c, name, 4, 0, e);
    }
}

/* Of the first transformer the width of the prompt, and whether its projections are convolutions. */
static void unet_read_transformer(struct component *c, struct unet_place place, struct error *e) {
    char name[UNET_NAME_BYTES];
    const char *tail = ".transformer_blocks.0.attn2.to_k.weight";
    if (c->dims[CONTEXT]) return;
    c->dims[CONTEXT] = component_dim(c, unet_name(c, place, true, tail, name), 2, 1, e);
    const struct index_entry *in = index_find(&c->index, unet_name(c, place, true, ".proj_in.weight", name));
    c->dims[CONVOLVED] = in && in->rank > 2 ? in->rank - 2 : 0;
}

static void unet_read_layers(struct component *c, struct error *e) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    for (int i = 0, n = unet_n_places(s); i < n && e->code == OK; i++) {
        char name[UNET_NAME_BYTES];
        struct unet_place place = unet_place_at(s, i);
        bool second = place.side == UNET_MID && place.resnet; /* the middle has one transformer */
        int layers =
            second ? 0
                   : index_last_block(&c->index, unet_name(c, place, true, ".transformer_blocks.", name)) + 1;
        if (layers > UNET_LAYERS_MAX) {
            error_set(e, SHAPE, "a transformer of the UNet has too many layers");
            error_where(e, "%s", c->index.sources[0].path);
            error_found(e, "%d at '%s'", layers, name);
            error_expected(e, "at most %d", UNET_LAYERS_MAX);
        }
        s->layers[i] = (unsigned char)layers;
        if (layers && e->code == OK) unet_read_transformer(c, place, e);
    }
}

/* diffusers' attention_head_dim is their number, and 8 where its configuration does not say it. Without any,
 * those whose projections are convolutions (Stable Diffusion 1) have 8, others heads of 64. */
static void unet_read_heads(struct component *c, const struct config *config, struct error *e) {
    enum { HEADS_MAX = 512, USUAL = 8, WIDTH = 64 };
    static const char *const keys[] = {"attention_head_dim", "num_attention_heads"};
    struct unet_settings *s = (struct unet_settings *)c->settings;
    bool told = config_find(config, "_class_name") != NULL;
    for (int i = 0; i < s->levels; i++) {
        s->heads[i] = told || c->dims[CONVOLVED] ? USUAL : c->dims[CHANNELS + i] / WIDTH;
        for (int k = 0; k < 2; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s.%d", keys[k], i);
            const char *either = config_find(config, key) ? key : keys[k];
            config_int(config, either, 1, HEADS_MAX, &s->heads[i], e);
        }
    }
}

static enum status unet_read(struct component *c, const struct config *config, struct error *e) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    unet_count_levels(c, s);
    if (s->levels < 1 || s->levels > UNET_LEVELS_MAX || s->resnets < 1 || s->resnets > UNET_RESNETS_MAX)
        return unet_bad_levels(c, e);
    while (s->mid_resnets < 2 && unet_find_resnet(c, (struct unet_place){UNET_MID, 0, s->mid_resnets, 0}))
        s->mid_resnets++;
    unet_read_channels(c, e);
    if (e->code == OK) unet_read_layers(c, e);
    unet_read_heads(c, config, e);
    return e->code;
}

/* ---- what is refused ---- */

enum status unet_refuse(const struct component *c, struct error *e) {
    static const struct relative relatives[] = {
        {"controlnet_", "a ControlNet, which is no model by itself"},
        {"input_hint_block.", "a ControlNet, which is no model by itself"},
        {"class_embedding.", "a UNet that is told a class"},
        {"label_emb.weight", "a UNet that is told a class"},
        {"encoder_hid_proj", "a UNet that reads another encoder's text"},
        {"add_embedding.image", "a UNet that is told a picture's embedding"},
        {"add_embedding.text", "a UNet that is told a text's embedding"},
        {"down_blocks.0.motion_modules.", "a UNet of videos"},
        {"down_blocks.0.resnets.0.temporal_res_block.", "a UNet of videos"},
        {"input_blocks.1.0.time_stack.", "a UNet of videos"},
        {"down_blocks.0.attentions.0.transformer_blocks.0.fuser.", "a UNet that is told boxes"},
        {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.", "a UNet with an adapter"},
        {"down_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.", "a UNet with an adapter"},
        {0},
    };
    return component_refuse_relatives(c, relatives, "a UNet of Stable Diffusion 1, 2 or XL", e);
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

/* Numbers of a configuration that have one value here. */
static void unet_check_numbers(const struct config *config, struct error *e) {
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
    error_set(e, UNSUPPORTED, "the configuration asks for sines before cosines");
    error_where(e, "%s", config->path);
    error_found(e, "\"flip_sin_to_cos\": false");
}

/* Blocks of other types have other mathematics behind the same names. */
static void unet_check_types(const struct component *c, const struct config *config, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    for (int i = 0; i < s->levels; i++) {
        int up = s->levels - 1 - i;
        char key[32];
        snprintf(key, sizeof key, "down_block_types.%d", i);
        config_expect(config, key, s->layers[i * s->resnets] ? "CrossAttnDownBlock2D" : "DownBlock2D", e);
        snprintf(key, sizeof key, "up_block_types.%d", i);
        config_expect(config, key, s->layers[up * s->resnets] ? "CrossAttnUpBlock2D" : "UpBlock2D", e);
    }
    if (s->mid_resnets == 2) config_expect(config, "mid_block_type", "UNetMidBlock2DCrossAttn", e);
}

static enum status unet_check_dims(const struct component *c, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    const int32_t *d = c->dims;
    int bad = 0, blocks = 3;
    for (int i = 0; i < s->levels; i++) {
        int32_t C = d[CHANNELS + i];
        if (C > DIM_MAX || C % s->groups || s->heads[i] < 1 || C % s->heads[i] || C / s->heads[i] > HEAD_MAX)
            bad = C;
    }
    for (int i = 0; i < unet_n_places(s); i++) blocks += 5 + 2 * s->layers[i];
    if (!bad && blocks <= FAMILY_BLOCKS_MAX && d[CONTEXT] && d[FREQUENCIES] % 2 == 0 &&
        (!d[ADDED] || d[POOLED] > 0) && s->number_columns % 2 == 0 && d[TIME] <= DIM_MAX)
        return OK;
    error_set(e, SHAPE, "the UNet's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d channels in %d groups, %d blocks, %d columns of text, %d of pooled text and sizes",
                bad, s->groups, blocks, d[CONTEXT], d[ADDED]);
    return error_expected(e, "whole groups and whole heads of at most %d, at most %d blocks", HEAD_MAX,
                          FAMILY_BLOCKS_MAX);
}

/* Beside the latent a model that fills reads the mask and the masked picture's latent. */
static enum status unet_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (d[READ] == d[LATENT] || d[READ] == 2 * d[LATENT] + 1) return OK;
    error_set(e, UNSUPPORTED, "a UNet that reads something beside the latent which nothing gives");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d channels", d[READ]);
    return error_expected(e, "%d, or %d (inpainting); a second latent (%d, pix2pix) is not supported",
                          d[LATENT], 2 * d[LATENT] + 1, 2 * d[LATENT]);
}

/* The refiner is the one that is told a score in place of the size that is wanted, and the one of those that
 * are told sizes whose smallest level has no transformers. */
static bool unet_is_refiner(const struct component *c) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    return c->dims[ADDED] && !s->layers[(s->levels - 1) * s->resnets];
}

/* Consistency models were distilled from Stable Diffusion 1 and XL. */
static enum status unet_check_guidance(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    bool has_recipe = d[READ] == d[LATENT] && (d[ADDED] ? !unet_is_refiner(c) : d[CONVOLVED]);
    if (!d[GUIDANCE] || (has_recipe && d[GUIDANCE] > 2 && d[GUIDANCE] % 2 == 0)) return OK;
    error_set(e, UNSUPPORTED, "a UNet that is told its guidance, of a kind that nothing draws with");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d columns of guidance, %d channels in, %d columns of text", d[GUIDANCE], d[READ],
                d[CONTEXT]);
    return error_expected(e, "a UNet of Stable Diffusion 1 or XL that draws from the latent alone");
}

enum status unet_configure(struct component *c, const struct config *config, struct error *e) {
    enum { SIZES = 6, SIZES_AND_SCORE = 5 };
    struct unet_settings *s = (struct unet_settings *)c->settings;
    const char *added = component_either(c, "add_embedding.linear_1.weight", "label_emb.0.0.weight");
    const char *guided =
        component_either(c, "time_embedding.cond_proj.weight", "time_embed.cond_proj.weight");
    int32_t *d = c->dims;
    if (unet_read(c, config, e) != OK) return e->code;
    bool linear = !d[CONVOLVED];
    if (index_find(&c->index, guided)) d[GUIDANCE] = component_dim(c, guided, 2, 1, e);
    if (index_find(&c->index, added)) d[ADDED] = component_dim(c, added, 2, 1, e);
    d[NUMBERS] = !d[ADDED] ? 0 : unet_is_refiner(c) ? SIZES_AND_SCORE : SIZES;
    d[POOLED] = d[ADDED] - d[NUMBERS] * s->number_columns;
    config_bool(config, "use_linear_projection", &linear, e);
    if (!linear) d[CONVOLVED] = UNET_CONVOLVED;
    unet_check_numbers(config, e);
    unet_check_types(c, config, e);
    if (e->code != OK || unet_check_dims(c, e) != OK || unet_check_inputs(c, e) != OK) return e->code;
    return unet_check_guidance(c, e);
}

/* ---- made up ---- */

static void unet_follow_places(struct component *c) {
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
    for (int i = 0, n = unet_n_places(s); i < n; i++) {
        struct unet_place place = unet_place_at(s, i);
        int layers = d[LAYERS + unet_depth(s, place)];
        if (place.side == UNET_MID && !layers) layers = d[MID_LAYERS];
        if (place.side == UNET_MID && place.resnet) layers = 0;
        s->layers[i] = (unsigned char)layers;
    }
}

/* ---- config.json ---- */

static void unet_tell(struct component *c) {
    enum { PLAIN_TYPE = 1, ATTENDING_TYPE };
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    int mid = s->mid_resnets ? s->layers[s->levels * s->resnets] : 0;
    for (int i = 0; i < s->levels; i++) {
        int layers = s->layers[i * s->resnets], told = layers;
        if (!layers) told = i + 1 == s->levels && mid ? mid : 1;
        d[HEADS + i] = s->heads[i];
        d[LAYERS_TOLD + i] = told;
        d[DOWN_TYPE + i] = d[UP_TYPE + s->levels - 1 - i] = layers ? ATTENDING_TYPE : PLAIN_TYPE;
    }
    d[LINEAR_TOLD] = !d[CONVOLVED];
    d[ADDED_KIND] = d[ADDED] > 0;
}

/* ---- rows ---- */

static const char *const unet_down_types[] = {NULL, "DownBlock2D", "CrossAttnDownBlock2D"};
static const char *const unet_up_types[] = {NULL, "UpBlock2D", "CrossAttnUpBlock2D"};
static const char *const unet_added_kinds[] = {NULL, "text_time"};

/* Of each level: an array in config.json. */
#define TOLD(i, place_, key_, ...)                                                                           \
    { .place = (place_) + (i), .key = key_ "." #i, __VA_ARGS__ }
#define TOLD_LEVELS(place, key, ...)                                                                         \
    TOLD(0, place, key, __VA_ARGS__), TOLD(1, place, key, __VA_ARGS__), TOLD(2, place, key, __VA_ARGS__),    \
        TOLD(3, place, key, __VA_ARGS__)
#define CHANNELS_OF(i, published)                                                                            \
    { "unet" #i, published, (i) ? 0 : 8, 8192, .place = CHANNELS + (i) }
#define LAYERS_OF(i, published)                                                                              \
    { "unet_layers" #i, published, 0, UNET_LAYERS_MAX, .place = LAYERS + (i) }

/* Stable Diffusion 1: 0.86 B. */
const struct dimension unet_dimensions[N_UNET_DIMENSIONS] = {
    CHANNELS_OF(0, 320),
    CHANNELS_OF(1, 640),
    CHANNELS_OF(2, 1280),
    CHANNELS_OF(3, 1280),
    LAYERS_OF(0, 1),
    LAYERS_OF(1, 1),
    LAYERS_OF(2, 1),
    LAYERS_OF(3, 0),
    {"unet_middle_layers", 1, 0, UNET_LAYERS_MAX, .place = MID_LAYERS},
    {"unet_resnets", 2, 1, UNET_RESNETS_MAX, .place = RESNETS},
    {"unet_heads", 8, 0, 512, .place = EQUAL_HEADS},
    {"unet_groups", 32, 1, 4096, .place = GROUPS},
    {"unet_convolved", UNET_CONVOLVED, 0, UNET_CONVOLVED, .place = CONVOLVED},
    {"unet_text", 768, 8, 65536, .place = CONTEXT},
    {"unet_pooled", 0, 0, 65536, .place = POOLED},
    {"unet_numbers", 0, 0, LANE_NUMBERS_MAX, .place = NUMBERS},
    {"unet_fill", 0, 0, 1, .place = FILL},
    {"latent_channels", 4, 1, 1024, .place = LATENT, OF_TENSOR(4, 0, "conv_out.weight", "out.2.weight"),
     .key = "out_channels"},
    {"unet_guidance", 0, 0, 4096, .place = GUIDANCE},
    {.place = GUIDANCE, .key = "time_cond_proj_dim", .form = FORM_NULL_IF_0},
    {.place = READ, OF_TENSOR(4, 1, "conv_in.weight", "input_blocks.0.0.weight"), .key = "in_channels"},
    {.place = TIME, OF_TENSOR(2, 0, "time_embedding.linear_1.weight", "time_embed.0.weight")},
    {.place = FREQUENCIES, OF_TENSOR(2, 1, "time_embedding.linear_1.weight", "time_embed.0.weight")},
    {.place = RESNETS, .key = "layers_per_block"},
    {.place = CONTEXT, .key = "cross_attention_dim"},
    {.place = LINEAR_TOLD, .key = "use_linear_projection", .form = FORM_BOOL},
    {.place = ADDED_KIND, .key = "addition_embed_type", .words = unet_added_kinds},
    {.place = ADDED, .key = "projection_class_embeddings_input_dim", .form = FORM_NULL_IF_0},
    TOLD_LEVELS(CHANNELS, "block_out_channels", .form = FORM_ABSENT_IF_0),
    TOLD_LEVELS(HEADS, "attention_head_dim", .form = FORM_ABSENT_IF_0),
    TOLD_LEVELS(LAYERS_TOLD, "transformer_layers_per_block", .form = FORM_ABSENT_IF_0),
    TOLD_LEVELS(DOWN_TYPE, "down_block_types", .words = unet_down_types),
    TOLD_LEVELS(UP_TYPE, "up_block_types", .words = unet_up_types),
};

#define SETTING(key, field, type_, published, least, most)                                                   \
    { {key}, offsetof(struct unet_settings, field), type_, published, least, most }
const struct setting unet_settings_rows[N_UNET_SETTINGS] = {
    SETTING("norm_num_groups", groups, SETTING_INT, 32, 1, 4096),
    SETTING("norm_eps", norm_eps, SETTING_FLOAT, 1e-5, 1e-12, 1),
    SETTING("addition_time_embed_dim", number_columns, SETTING_INT, 256, 2, 8192),
    SETTING("sample_size", side, SETTING_INT, 64, 1, UNET_SIDE_MAX),
};

void unet_follow(struct component *c) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    unet_follow_places(c);
    d[FREQUENCIES] = d[CHANNELS];
    d[TIME] = 4 * d[CHANNELS];
    d[READ] = d[LATENT] + d[FILL] * (d[LATENT] + 1);
    d[ADDED] = d[NUMBERS] ? d[POOLED] + d[NUMBERS] * s->number_columns : 0;
}

static int unet_variant(const struct component *c) {
    const int32_t *d = c->dims;
    bool fills = d[READ] != d[LATENT];
    if (d[GUIDANCE]) return d[ADDED] ? UNET_SDXL_GUIDED : UNET_SD1_GUIDED;
    if (d[ADDED]) return unet_is_refiner(c) ? UNET_SDXL_REFINER : fills ? UNET_SDXL_INPAINT : UNET_SDXL;
    if (d[CONVOLVED]) return fills ? UNET_SD1_INPAINT : UNET_SD1;
    return fills ? UNET_SD2_INPAINT : UNET_SD2;
}

void unet_derive(struct component *c) {
    int32_t *d = c->dims;
    d[K1] = 1;
    d[K3] = 3;
    unet_tell(c);
    c->text_columns = d[CONTEXT];
    c->pooled_columns = d[ADDED] ? d[POOLED] : 0;
    c->latent_channels = d[LATENT];
    c->concat_channels = d[READ] - d[LATENT];
    c->latent_side = ((const struct unet_settings *)c->settings)->side;
    c->variant = unet_variant(c);
    if (d[ADDED]) c->architecture = "sdxl";
}
