/* CLIP vision encoder (transformers: CLIPVisionModel), above all OpenCLIP-H for WAN 2.1 image-to-video.
 *
 * Patch embeddings after a class token, plus positions, a norm, then layers (clip_layers.h). The output is
 * hidden_states[-2]: all layers but the last, without the final norm. Source: transformers 5.23,
 * models/clip/modeling_clip.py; image_processing_clip.py for resizing and cropping. */
#include "models/clip_layers.h"
#include "models/models.h"

#include <math.h>

enum { POSITIONS = CLIP_DIMS, COLOURS, PATCH, SIDE };

enum { HIDDEN_STATE_FROM_END = 1 };
enum { HEAD_PUBLISHED = 80, PATCH_PUBLISHED = 14 };

struct clip_vision_settings {
    struct clip_layer_settings layer; /* layer settings; layer.heads 0: no head count in the configuration */
    int last_layer;                   /* index of the layer whose output becomes the image embeddings */
    /* Image size after resizing, before the centre crop: the shorter edge, or width and height. 0: absent in
     * the configuration. */
    int shortest, width, height;
    int crop_width, crop_height;
    struct picture_format format;
};

struct clip_vision_state {
    struct tensor tokens; /* [T, width] */
};

/* Naming macro of rows with four names: transformers' (after "vision_model."; P: further prefix), clip.cpp's
 * (unused here), the WAN authors' (after "visual."; C: further prefix), OpenCLIP's. */
#define VISION_NAMED(P, C, end, name, gguf, wan, open)                                                       \
    .names = {P name end, C wan end}, .checkpoint_name = open end

/* clang-format off */
#define PATCH_EMBEDDING(X, S)                                                                                \
    X##WEIGHT(S, class, SHAPED(1, CLIP_WIDTH),                                                               \
              "embeddings.class_embedding", "", "cls_embedding", "class_embedding")                          \
    X##KERNEL(S, patch, CLIP_WIDTH, COLOURS, PATCH,                                                          \
              "embeddings.patch_embedding", "", "patch_embedding", "conv1")                                  \
    X##WEIGHT(S, positions, SHAPED(2, POSITIONS, CLIP_WIDTH),                                                \
              "embeddings.position_embedding.weight", "", "pos_embedding", "positional_embedding")           \
    X##NORM(S, norm, CLIP_WIDTH, "pre_layrnorm", "", "pre_norm", "ln_pre")
struct patch_weights { PATCH_EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_vision_patch_table, PATCH_EMBEDDING, patch_weights, VISION_NAMED, "", "");

#define WAN_LAYER(X, S) CLIP_LAYER(X, S, "transformer.%d.attn.to_qkv.")
WEIGHT_TABLE_NAMED(clip_vision_layer_table, CLIP_OPEN_LAYER, clip_layer_weights, VISION_NAMED,
                   "encoder.layers.%d.", "transformer.%d.");
WEIGHT_TABLE_NAMED(clip_vision_wan_table, WAN_LAYER, clip_layer_weights, VISION_NAMED,
                   "encoder.layers.%d.", "transformer.%d.");

#define FINAL_NORM(X, S) X##NORM(S, norm, CLIP_WIDTH, "post_layernorm", "", "post_norm", "ln_post")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_vision_norm_table, FINAL_NORM, norm_weights, VISION_NAMED, "", "");
/* clang-format on */

static void clip_vision_forward_patch(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct patch_weights *w = weights;
    const struct clip_vision_settings *settings = scope->settings;
    const struct clip_vision_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, of_patches = tensor_slice(tokens, 1, tokens.dim[0] - 1);
    struct tensor whole = tensor_slice(tokens, 0, 1);
    int32_t side = w->patch.dim[2], matrix[] = {tokens.dim[1], w->patch.dim[1] * side * side};
    struct tensor vectors = context_tensor(x, DTYPE_F32, 2, (int32_t[]){of_patches.dim[0], matrix[1]});
    op_patchify(x, vectors, lane_picture(scope->lane),
                (struct patches){.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true});
    op_copy(x, tokens, w->positions);
    op_add(x, whole, whole, tensor_reshape(w->class, 2, whole.dim));
    op_linear(x, of_patches, vectors, tensor_reshape(w->patch, 2, matrix),
              (struct epilogue){.residual = of_patches});
    clip_norm(x, tokens, tokens, &w->norm, settings->layer.norm_eps);
}

BLOCK(clip_vision_kind_patch, "patch", "embeddings", clip_vision_patch_table, patch_weights,
      clip_vision_forward_patch, .never_quantised = true);

static void clip_vision_forward_layer(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct clip_vision_settings *settings = scope->settings;
    const struct clip_vision_state *state = scope->lane->state;
    struct clip_scratch scratch = clip_layer_scratch(x, weights, state->tokens);
    clip_layer(x, weights, &settings->layer, state->tokens, &scratch);
    if (scope->number == settings->last_layer) op_copy(x, scope->lane->text, state->tokens);
}

BLOCK(clip_vision_kind_layer, "layer", "layers.%d", clip_vision_layer_table, clip_layer_weights,
      clip_vision_forward_layer);
BLOCK(clip_vision_kind_wan, "layer", "layers.%d", clip_vision_wan_table, clip_layer_weights,
      clip_vision_forward_layer);

/* The final norm is in files but unused, because the output is an earlier hidden state. */
BLOCK(clip_vision_kind_norm, "norm", "post_layernorm", clip_vision_norm_table, norm_weights, NULL,
      .never_quantised = true);

static const char wan_qkv[] = "transformer.0.attn.to_qkv.weight";

static bool clip_vision_probe(const struct tensor_index *index) {
    return (index_find(index, "embeddings.class_embedding") &&
            index_find(index, "encoder.layers.0.self_attn.q_proj.weight")) ||
           (index_find(index, "class_embedding") &&
            index_find(index, "transformer.resblocks.0.attn.in_proj_weight")) ||
           (index_find(index, "cls_embedding") && index_find(index, wan_qkv));
}

static enum status clip_vision_check_dims(const struct component *c, struct error *e) {
    const struct clip_vision_settings *s = (const struct clip_vision_settings *)c->settings;
    const int32_t *d = c->dims;
    bool heads =
        s->layer.heads > 0 && d[CLIP_WIDTH] % s->layer.heads == 0 && d[CLIP_WIDTH] / s->layer.heads <= 512;
    if (heads && d[SIDE] > 0 && d[COLOURS] == 3 && d[CLIP_LAYERS] > HIDDEN_STATE_FROM_END &&
        d[CLIP_LAYERS] <= FAMILY_BLOCKS_MAX - 2)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent CLIP vision encoder sizes" WHERE "%s" FOUND
                     "width %d, %d heads, %d layers, %d positions, patches [%d, %d, %d]" EXPECTED
                     "a width that is a multiple of num_attention_heads (config.json; default: heads of "
                     "%d), at least %d layers, 3 colours, and one position more than a square of patches",
                     c->index.sources[0].path, d[CLIP_WIDTH], s->layer.heads, d[CLIP_LAYERS], d[POSITIONS],
                     d[COLOURS], d[PATCH], d[PATCH], HEAD_PUBLISHED, HIDDEN_STATE_FROM_END + 1);
}

/* Refuses a preprocessor_config.json whose resized image does not cover the crop, or whose crop is not the
 * encoder's input size. */
static enum status clip_vision_check_pictures(const struct component *c, const struct config *pictures,
                                              struct error *e) {
    const struct clip_vision_settings *s = (const struct clip_vision_settings *)c->settings;
    bool crops = true;
    int side = c->dims[SIDE];
    config_check_list(pictures, "image_mean", 3, e);
    config_check_list(pictures, "image_std", 3, e);
    config_refuse(pictures, "size.longest_edge", e);
    if (config_bool(pictures, "do_center_crop", &crops, e) != OK) return e->code;
    bool both = s->width || s->height;
    bool large = both ? s->width >= side && s->height >= side : s->shortest >= side;
    if (crops && large && s->crop_width == side && s->crop_height == side) return OK;
    error_set(e, META, "the image processor's crop size is not the vision encoder's input size" WHERE "%s",
              pictures->path);
    if (both)
        error_found(e, "resized to %dx%d", s->width, s->height);
    else
        error_found(e, "a shorter edge of %d, %s %dx%d", s->shortest, crops ? "cropped to" : "not cropped to",
                    s->crop_width, s->crop_height);
    return error_expected(e, "resized to at least %dx%d, cropped to that size", side, side);
}

/* Side of the input image in pixels, computed from the number of positions (a class token and a square of
 * patches). 0: the patches form no square. */
static int32_t clip_vision_side(const int32_t *d) {
    int32_t side = (int32_t)lrint(sqrt((double)d[POSITIONS] - 1));
    return d[POSITIONS] > 1 && side * side == d[POSITIONS] - 1 ? side * d[PATCH] : 0;
}

static enum status clip_vision_read_dims(struct component *c, struct error *e) {
    const struct index_entry *positions = index_find(&c->index, "pos_embedding");
    int32_t *d = c->dims;
    const char *patch =
        component_first_existing(c, "embeddings.patch_embedding.weight", "patch_embedding.weight");
    const char *place =
        component_first_existing(c, "embeddings.position_embedding.weight", "positional_embedding");
    if (index_find(&c->index, "conv1.weight")) patch = "conv1.weight";
    d[COLOURS] = component_dim(c, patch, 4, 1, e);
    d[PATCH] = component_dim(c, patch, 4, 2, e);
    d[POSITIONS] = positions ? component_dim(c, "pos_embedding", 3, 1, e) : component_dim(c, place, 2, 0, e);
    d[SIDE] = clip_vision_side(d);
    return e->code;
}

static void clip_vision_default_sizes(struct component *c) {
    struct clip_vision_settings *s = (struct clip_vision_settings *)c->settings;
    if (!s->shortest) s->shortest = c->dims[SIDE];
    if (!s->crop_width) s->crop_width = c->dims[SIDE];
    if (!s->crop_height) s->crop_height = c->dims[SIDE];
}

static enum status clip_vision_configure(struct component *c, const struct config *config, struct error *e) {
    struct clip_vision_settings *s = (struct clip_vision_settings *)c->settings;
    if (!s->layer.heads) s->layer.heads = c->dims[CLIP_WIDTH] / HEAD_PUBLISHED;
    if (clip_vision_read_dims(c, e) != OK || clip_vision_check_dims(c, e) != OK) return e->code;
    clip_vision_default_sizes(c);
    if (e->code == OK && config->pictures && config->pictures->path)
        clip_vision_check_pictures(c, config->pictures, e);
    return e->code;
}

static int clip_vision_blocks(const struct component *c, struct block_ref *refs) {
    const struct block_kind *layer =
        index_find(&c->index, wan_qkv) ? &clip_vision_kind_wan : &clip_vision_kind_layer;
    int n = 0, layers = c->dims[CLIP_LAYERS];
    refs[n++] = (struct block_ref){.kind = &clip_vision_kind_patch};
    for (int i = 0; i < layers; i++)
        refs[n++] =
            (struct block_ref){.kind = layer, .number = i, .unused = i >= layers - HIDDEN_STATE_FROM_END};
    refs[n++] = (struct block_ref){.kind = &clip_vision_kind_norm, .unused = true};
    return n;
}

/* Lanes share one vision encoder state, because they are computed one after another. */
static void clip_vision_declare(const struct component *c, struct lane *lanes, int n_lanes,
                                struct arena *arena, struct arena *pictures, bool *ok) {
    struct tensor tokens =
        arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){c->dims[POSITIONS], c->dims[CLIP_WIDTH]}, ok);
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) ((struct clip_vision_state *)lanes[i].state)->tokens = tokens;
}

/* Computes the sizes of resize and centre crop, as get_resize_output_image_size in transformers'
 * image_transforms.py. */
static struct vision_grid clip_vision_grid_of(const struct component *c, int width, int height) {
    const struct clip_vision_settings *s = (const struct clip_vision_settings *)c->settings;
    int shorter = width < height ? width : height, side = c->dims[SIDE];
    int32_t across = s->width ? s->width : (int32_t)((int64_t)s->shortest * width / shorter);
    int32_t down = s->width ? s->height : (int32_t)((int64_t)s->shortest * height / shorter);
    return (struct vision_grid){
        .width = side,
        .height = side,
        .columns = c->dims[POSITIONS],
        .rows = 1,
        .whole = {across, down, (across - side) / 2, (down - side) / 2},
    };
}

/* Tensors that CLIP vision encoder files may contain and the engine ignores: visual_projection and the text
 * model. */
static const char *const clip_vision_ignorable[] = {"visual_projection.",
                                                    "embeddings.position_ids",
                                                    "head",
                                                    "proj",
                                                    "text_model.",
                                                    "text_projection.",
                                                    "textual.",
                                                    "logit_scale",
                                                    "log_scale",
                                                    NULL};

/* Sizes of the published OpenCLIP ViT-H/14 vision encoder. */
static const struct dimension clip_vision_dimensions[] = {
    {"clip_vision_layers", 32, 2, 400, .place = CLIP_LAYERS,
     OF_BLOCKS("encoder.layers.", "transformer.resblocks.", "transformer."), .key = "num_hidden_layers"},
    {"clip_vision_width", 1280, 8, 65536, .place = CLIP_WIDTH,
     OF_TENSOR(1, 0, "pre_layrnorm.weight", "pre_norm.weight", "ln_pre.weight"), .key = "hidden_size"},
    {"clip_vision_heads", 16, 1, 1024, .place = CLIP_HEADS},
    {"clip_vision_ff", 5120, 8, 262144, .place = CLIP_FEED_FORWARD,
     OF_TENSOR(2, 0, "encoder.layers.0.mlp.fc1.weight", "transformer.0.mlp.0.weight",
               "transformer.resblocks.0.mlp.c_fc.weight"),
     .key = "intermediate_size"},
    {"clip_vision_size", 224, PATCH_PUBLISHED, 4096, .place = SIDE, .key = "image_size", .checked = true},
    {.place = PATCH, .key = "patch_size", .checked = true},
    {.place = COLOURS, .key = "num_channels", .checked = true},
};

#define SETTING(field, type_, published_, least_, most_, ...)                                                \
    { {__VA_ARGS__}, offsetof(struct clip_vision_settings, field), type_, published_, least_, most_ }
#define PER_COLOUR(field, a, b, c, least, most, key)                                                         \
    SETTING(format.field[0], SETTING_FLOAT, a, least, most, key ".0"),                                       \
        SETTING(format.field[1], SETTING_FLOAT, b, least, most, key ".1"),                                   \
        SETTING(format.field[2], SETTING_FLOAT, c, least, most, key ".2")

static const struct setting clip_vision_settings[] = {
    SETTING(layer.heads, SETTING_INT, 0, 1, 1024, "num_attention_heads"),
    SETTING(layer.norm_eps, SETTING_FLOAT, 1e-5, 0, 1, "layer_norm_eps"),
    SETTING(layer.gelu, SETTING_WORD, CLIP_GELU_ERF, 0, 0, "hidden_act", "quick_gelu", "gelu"),
};

enum { EDGE_MOST = 16384 };
static const struct setting clip_vision_pictures[] = {
    SETTING(shortest, SETTING_INT, 0, 1, EDGE_MOST, "size.shortest_edge", "size"),
    SETTING(width, SETTING_INT, 0, 1, EDGE_MOST, "size.width"),
    SETTING(height, SETTING_INT, 0, 1, EDGE_MOST, "size.height"),
    SETTING(crop_width, SETTING_INT, 0, 1, EDGE_MOST, "crop_size.width", "crop_size"),
    SETTING(crop_height, SETTING_INT, 0, 1, EDGE_MOST, "crop_size.height", "crop_size"),
    PER_COLOUR(mean, 0.48145466, 0.4578275, 0.40821073, -10, 10, "image_mean"),
    PER_COLOUR(deviation, 0.26862954, 0.26130258, 0.27577711, 1e-6, 10, "image_std"),
};

static void clip_vision_derive_dims(struct component *c) {
    struct clip_vision_settings *s = (struct clip_vision_settings *)c->settings;
    int32_t *d = c->dims;
    s->layer.heads = d[CLIP_HEADS];
    d[COLOURS] = 3;
    d[PATCH] = PATCH_PUBLISHED;
    d[SIDE] = d[SIDE] / d[PATCH] * d[PATCH];
    d[POSITIONS] = d[SIDE] / d[PATCH] * (d[SIDE] / d[PATCH]) + 1;
    clip_vision_default_sizes(c);
}

static void clip_vision_derive(struct component *c) {
    struct clip_vision_settings *s = (struct clip_vision_settings *)c->settings;
    c->dims[CLIP_HEADS] = s->layer.heads;
    s->last_layer = c->dims[CLIP_LAYERS] - 1 - HIDDEN_STATE_FROM_END;
    c->text_columns = c->dims[CLIP_WIDTH];
    c->picture_format = s->format;
}

static const struct state_tensor clip_vision_state_tensors[] = {STATE_TENSOR(clip_vision_state, tokens)};

const struct family family_clip_vision = {
    .name = "clip_vision",
    .kind = FAMILY_VISION,
    .display_name = "CLIP vision encoder",
    .files = {.config_key = "model_type",
              .config_value = "clip_vision_model",
              .probe = clip_vision_probe,
              .ignorable = clip_vision_ignorable},
    .config = {.dimensions = clip_vision_dimensions,
               .n_dimensions = COUNT_OF(clip_vision_dimensions),
               .settings = clip_vision_settings,
               .n_settings = COUNT_OF(clip_vision_settings),
               .picture_settings = clip_vision_pictures,
               .n_picture_settings = COUNT_OF(clip_vision_pictures),
               .configure = clip_vision_configure,
               .derive_dims = clip_vision_derive_dims,
               .derive = clip_vision_derive,
               .rest = "\"architectures\": [\"CLIPVisionModel\"], \"projection_dim\": 1024",
               .pictures_rest = "\"image_processor_type\": \"CLIPImageProcessor\", \"do_resize\": true, "
                                "\"resample\": 3, \"do_center_crop\": true, \"do_rescale\": true, "
                                "\"rescale_factor\": 0.00392156862745098, \"do_normalize\": true, "
                                "\"do_convert_rgb\": true"},
    .blocks = {.list = clip_vision_blocks},
    .state = {.bytes = sizeof(struct clip_vision_state),
              .tensors = clip_vision_state_tensors,
              .n_tensors = COUNT_OF(clip_vision_state_tensors),
              .declare = clip_vision_declare},
    .lanes = {.vision_grid = clip_vision_grid_of},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 257,
                   .text_rows = 257,
                   .text_columns = 1280,
                   .picture_side = 224}},
};
