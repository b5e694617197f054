/* SigLIP vision encoder (transformers: SiglipVisionModel), So400m with patches of 14 for Flux.1 Redux.
 *
 * Patch embeddings plus learned positions, then all layers (clip_layers.h), then a norm. The output is one
 * row per patch. The image is resized to SIDE x SIDE, whatever its aspect ratio; pixels right of and below
 * the last whole patch are unread (384 = 27 patches of 14, and 6). Source: transformers 5.23,
 * models/siglip/modeling_siglip.py; image_processing_siglip.py for pixels. */
#include "models/clip_layers.h"
#include "models/models.h"

#include <math.h>

enum { POSITIONS = CLIP_DIMS, COLOURS, PATCH, SIDE };
enum { HEADS_PUBLISHED = 16, SIDE_PUBLISHED = 384, PATCH_PUBLISHED = 14 };

struct siglip_settings {
    struct clip_layer_settings layer;
    int side; /* width and height of the resized image, in pixels */
};

struct siglip_state {
    struct tensor tokens; /* [T, width] */
};

/* Naming macro for WEIGHT_TABLE_NAMED: transformers' names, without the other formats' names of
 * clip_layers.h. */
#define SIGLIP_NAMED(P, C, end, name, ...) .names = {P name end}

/* clang-format off */
#define PATCH_EMBEDDING(X, S)                                                                                \
    X##CONV(S, patch, CLIP_WIDTH, COLOURS, PATCH, "embeddings.patch_embedding", "")                          \
    X##WEIGHT(S, positions, SHAPED(2, POSITIONS, CLIP_WIDTH), "embeddings.position_embedding.weight", "")
struct patch_weights { PATCH_EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(siglip_patch_table, PATCH_EMBEDDING, patch_weights, SIGLIP_NAMED, "", "");
WEIGHT_TABLE_NAMED(siglip_layer_table, CLIP_OPEN_LAYER, clip_layer_weights, SIGLIP_NAMED,
                   "encoder.layers.%d.", "");
#define FINAL_NORM(X, S) X##NORM(S, norm, CLIP_WIDTH, "post_layernorm", "")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(siglip_norm_table, FINAL_NORM, norm_weights, SIGLIP_NAMED, "", "");
/* clang-format on */

static void siglip_forward_patch(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct patch_weights *w = weights;
    const struct siglip_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, kernel = w->patch.weight;
    int32_t side = kernel.dim[2], matrix[] = {tokens.dim[1], kernel.dim[1] * side * side};
    struct tensor vectors = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], matrix[1]});
    op_patchify(x, vectors, lane_picture(scope->lane),
                (struct patches){.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true});
    op_copy(x, tokens, w->positions);
    op_linear(x, tokens, vectors, tensor_reshape(kernel, 2, matrix),
              (struct epilogue){.bias = w->patch.bias, .residual = tokens});
}

BLOCK(siglip_kind_patch, "patch", "embeddings", siglip_patch_table, patch_weights, siglip_forward_patch,
      .never_quantised = true);

static void siglip_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct siglip_settings *settings = scope->settings;
    const struct siglip_state *state = scope->lane->state;
    struct clip_scratch scratch = clip_layer_scratch(x, weights, state->tokens);
    clip_layer(x, weights, &settings->layer, state->tokens, &scratch);
}

BLOCK(siglip_kind_layer, "layer", "layers.%d", siglip_layer_table, clip_layer_weights, siglip_forward_layer);

static void siglip_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct siglip_settings *settings = scope->settings;
    const struct siglip_state *state = scope->lane->state;
    clip_norm(x, scope->lane->text, state->tokens, &w->norm, settings->layer.norm_eps);
}

BLOCK(siglip_kind_norm, "norm", "post_layernorm", siglip_norm_table, norm_weights, siglip_forward_norm,
      .never_quantised = true);

static bool siglip_probe(const struct tensor_index *index) {
    return index_find(index, "embeddings.patch_embedding.bias") &&
           index_find(index, "embeddings.position_embedding.weight") &&
           index_find(index, "encoder.layers.0.self_attn.q_proj.weight") &&
           index_find(index, "post_layernorm.weight");
}

/* Patches per side of the input image; 0: the positions form no square. */
static int32_t siglip_columns(const int32_t *d) {
    int32_t columns = (int32_t)lrint(sqrt((double)d[POSITIONS]));
    return columns * columns == d[POSITIONS] ? columns : 0;
}

static enum status siglip_configure(struct component *c, const struct config *config, struct error *e) {
    struct siglip_settings *s = (struct siglip_settings *)c->settings;
    int32_t *d = c->dims;
    d[COLOURS] = component_dim(c, "embeddings.patch_embedding.weight", 4, 1, e);
    d[PATCH] = component_dim(c, "embeddings.patch_embedding.weight", 4, 2, e);
    d[POSITIONS] = component_dim(c, "embeddings.position_embedding.weight", 2, 0, e);
    if (e->code != OK) return e->code;
    /* Without a configuration: the published side if the positions fit it, else whole patches. */
    int32_t columns = siglip_columns(d);
    bool fits = d[PATCH] > 0 && s->side / d[PATCH] == columns;
    if (!fits && !config_find(config, "image_size")) s->side = columns * d[PATCH];
    bool heads =
        s->layer.heads > 0 && d[CLIP_WIDTH] % s->layer.heads == 0 && d[CLIP_WIDTH] / s->layer.heads <= 512;
    if (heads && columns > 0 && d[PATCH] > 0 && s->side / d[PATCH] == columns && d[COLOURS] == 3 &&
        d[CLIP_LAYERS] <= FAMILY_BLOCKS_MAX - 2)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent SigLIP vision encoder sizes" WHERE "%s" FOUND
        "width %d, %d heads, %d layers, %d positions, patches [%d, %d, %d], image_size %d" EXPECTED
        "a width that is a multiple of num_attention_heads (config.json; default: %d), 3 colours, "
        "and a square of positions, one for each whole patch of image_size",
        c->index.sources[0].path, d[CLIP_WIDTH], s->layer.heads, d[CLIP_LAYERS], d[POSITIONS], d[COLOURS],
        d[PATCH], d[PATCH], s->side, HEADS_PUBLISHED);
}

static int siglip_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &siglip_kind_patch};
    for (int i = 0; i < c->dims[CLIP_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &siglip_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &siglip_kind_norm};
    return n;
}

/* Lanes share one state, because images are encoded one after another. */
static void siglip_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                           struct arena *pictures, bool *ok) {
    struct tensor tokens =
        arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){c->dims[POSITIONS], c->dims[CLIP_WIDTH]}, ok);
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) ((struct siglip_state *)lanes[i].state)->tokens = tokens;
}

/* The resized image is cropped to whole patches at its top left corner: the convolution reads no others. */
static struct vision_grid siglip_grid_of(const struct component *c, int width, int height) {
    int32_t side = c->dims[SIDE], columns = siglip_columns(c->dims);
    (void)width, (void)height;
    return (struct vision_grid){.width = columns * c->dims[PATCH],
                                .height = columns * c->dims[PATCH],
                                .columns = columns,
                                .rows = columns,
                                .whole = {side, side, 0, 0}};
}

/* Tensors of files that Redux does not read: the pooling head, and the text model of a whole SigLIP. */
static const char *const siglip_ignorable[] = {
    "head.", "embeddings.position_ids", "text_model.", "logit_bias", "logit_scale", NULL};

/* Sizes of google/siglip-so400m-patch14-384, 428 M parameters with the head. */
static const struct dimension siglip_dimensions[] = {
    {"siglip_layers", 27, 1, 400, .place = CLIP_LAYERS, OF_BLOCKS("encoder.layers."),
     .key = "num_hidden_layers"},
    {"siglip_width", 1152, 8, 65536, .place = CLIP_WIDTH, OF_TENSOR(1, 0, "post_layernorm.weight"),
     .key = "hidden_size"},
    {"siglip_heads", HEADS_PUBLISHED, 1, 1024, .place = CLIP_HEADS},
    {"siglip_ff", 4304, 8, 262144, .place = CLIP_FEED_FORWARD,
     OF_TENSOR(2, 0, "encoder.layers.0.mlp.fc1.weight"), .key = "intermediate_size"},
    {"siglip_size", SIDE_PUBLISHED, PATCH_PUBLISHED, 4096, .place = SIDE},
    {.place = PATCH, .key = "patch_size", .checked = true},
    {.place = COLOURS, .key = "num_channels", .checked = true},
};

#define SETTING(field, type_, published_, least_, most_, ...)                                                \
    { {__VA_ARGS__}, offsetof(struct siglip_settings, field), type_, published_, least_, most_ }
static const struct setting siglip_settings[] = {
    SETTING(layer.heads, SETTING_INT, HEADS_PUBLISHED, 1, 1024, "num_attention_heads"),
    SETTING(side, SETTING_INT, SIDE_PUBLISHED, 1, 4096, "image_size"),
    SETTING(layer.norm_eps, SETTING_FLOAT, 1e-6, 0, 1, "layer_norm_eps"),
    SETTING(layer.gelu, SETTING_WORD, CLIP_GELU_TANH, 0, 0, "hidden_act", "quick_gelu", "gelu",
            "gelu_pytorch_tanh"),
};

static void siglip_derive_dims(struct component *c) {
    struct siglip_settings *s = (struct siglip_settings *)c->settings;
    int32_t *d = c->dims;
    s->layer.heads = d[CLIP_HEADS];
    s->side = d[SIDE];
    d[COLOURS] = 3;
    d[PATCH] = PATCH_PUBLISHED;
    d[POSITIONS] = d[SIDE] / d[PATCH] * (d[SIDE] / d[PATCH]);
}

static void siglip_derive(struct component *c) {
    const struct siglip_settings *s = (const struct siglip_settings *)c->settings;
    c->dims[CLIP_HEADS] = s->layer.heads;
    c->dims[SIDE] = s->side;
    c->text_columns = c->dims[CLIP_WIDTH];
    c->picture_format = (struct picture_format){.mean = {0.5F, 0.5F, 0.5F}, .deviation = {0.5F, 0.5F, 0.5F}};
}

static const struct state_tensor siglip_state_tensors[] = {STATE_TENSOR(siglip_state, tokens)};

const struct family family_siglip = {
    .name = "siglip",
    .kind = FAMILY_VISION,
    .display_name = "SigLIP vision encoder",
    .files = {.config_key = "model_type",
              .config_value = "siglip_vision_model",
              .probe = siglip_probe,
              .ignorable = siglip_ignorable},
    .config = {.dimensions = siglip_dimensions,
               .n_dimensions = COUNT_OF(siglip_dimensions),
               .settings = siglip_settings,
               .n_settings = COUNT_OF(siglip_settings),
               .configure = siglip_configure,
               .derive_dims = siglip_derive_dims,
               .derive = siglip_derive,
               .rest = "\"architectures\": [\"SiglipVisionModel\"]"},
    .blocks = {.list = siglip_blocks},
    .state = {.bytes = sizeof(struct siglip_state),
              .tensors = siglip_state_tensors,
              .n_tensors = COUNT_OF(siglip_state_tensors),
              .declare = siglip_declare},
    .lanes = {.vision_grid = siglip_grid_of},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 729,
                   .text_rows = 729,
                   .text_columns = 1152,
                   .picture_side = 27 * PATCH_PUBLISHED}},
};
