/* Vision encoder of Qwen3-VL (transformers: Qwen3VLVisionModel). Its output tokens are part of the prompt of
 * the language model (qwen3vl.c).
 *
 * Patches of 16x16 pixels become tokens, ordered in merge blocks of 2x2, and get rows of a learned position
 * table that is interpolated to the image. A layer: x += out(attention(rope(q), rope(k), v)); x +=
 * down(gelu(up(n))), with layer norms before attention and feed-forward, biases everywhere, rope on halves of
 * a head over row and column; tokens attend to the whole image. Finally the four tokens of a merge block are
 * merged into one: lane.text, columns 0 to OUT - 1. After some layers a separate merger writes a deepstack
 * feature of each merge block to the next OUT columns of lane.text; the language model adds it to its hidden
 * states. Source: transformers 5.23, models/qwen3_vl/modeling_qwen3_vl.py. */
#include "models/models.h"
#include "models/qwen_vision.h"

#include <math.h>
#include <stdio.h>

enum {
    POSITIONS = QWEN_VISION_DIMS, /* rows of the position table: a square */
    DEEPSTACK,                    /* number of deepstack features */
};

enum { DEEPSTACK_MAX = 8 };

struct tower_settings {
    struct qwen_vision_settings common;
    float deepstack[DEEPSTACK_MAX]; /* numbers of the layers after which deepstack features are written */
    int side;                       /* rows and columns of the position table */
};

static const float norm_eps = 1e-6F; /* constant in transformers */

/* clang-format off */
#define POSITION_TABLE(X, S)                                                                                 \
    X##BIAS(S, bias, WIDTH, "patch_embed.proj", "v.patch_embd")                                              \
    X##TABLE(S, positions, POSITIONS, WIDTH, "pos_embed", "v.position_embd")
#define PATCH_EMBEDDING(X, S) QWEN_PATCH_SLICES(X, S) POSITION_TABLE(X, S)
#define PATCH_HALVES(X, S)    QWEN_PATCH_HALVES(X, S) POSITION_TABLE(X, S)
struct tower_patch_weights { PATCH_EMBEDDING(FIELD_, ) };
WEIGHT_TABLE(tower_patch_table, PATCH_EMBEDDING, tower_patch_weights, "", "");
WEIGHT_TABLE(tower_patch_halves_table, PATCH_HALVES, tower_patch_weights, "", "");

/* Names of GGUF files: llama.cpp, gguf-py/gguf/constants.py. */
#define LAYER(X, S)                                                                                          \
    X##NORM(S, norm1, WIDTH, "norm1", "ln1")                                                                 \
    X##LINEAR(S, q, WIDTH, WIDTH, "attn.qkv[0/3]", "attn_qkv[0/3]")                                          \
    X##LINEAR(S, k, WIDTH, WIDTH, "attn.qkv[1/3]", "attn_qkv[1/3]")                                          \
    X##LINEAR(S, v, WIDTH, WIDTH, "attn.qkv[2/3]", "attn_qkv[2/3]")                                          \
    X##LINEAR(S, out, WIDTH, WIDTH, "attn.proj", "attn_out")                                                 \
    X##NORM(S, norm2, WIDTH, "norm2", "ln2")                                                                 \
    X##LINEAR(S, up, FEED_FORWARD, WIDTH, "mlp.linear_fc1", "ffn_up")                                        \
    X##LINEAR(S, down, WIDTH, FEED_FORWARD, "mlp.linear_fc2", "ffn_down")
struct tower_layer_weights { LAYER(FIELD_, ) };
WEIGHT_TABLE_NAMED(tower_layer_table, LAYER, tower_layer_weights, QWEN_VISION_NAMED, "blocks.%d.", "v.blk.%d.");

/* norm: before the tokens of a merge block are joined (merger), or after (deepstack). */
#define MERGER(X, S)                                                                                         \
    X##NORM(S, norm, WIDTH, "merger.norm", "v.post_ln")                                                      \
    X##LINEAR(S, in, MERGED_WIDTH, MERGED_WIDTH, "merger.linear_fc1", "mm.0")                                \
    X##LINEAR(S, out, OUT, MERGED_WIDTH, "merger.linear_fc2", "mm.2")
struct tower_merger_weights { MERGER(FIELD_, ) };
WEIGHT_TABLE_NAMED(tower_merger_table, MERGER, tower_merger_weights, QWEN_VISION_NAMED, "", "");

/* GGUF files number the features by their layers. */
#define DEEPSTACK_MERGER(X, S)                                                                               \
    X##NORM(S, norm, MERGED_WIDTH, "norm")                                                                   \
    X##LINEAR(S, in, MERGED_WIDTH, MERGED_WIDTH, "linear_fc1", "fc1")                                        \
    X##LINEAR(S, out, OUT, MERGED_WIDTH, "linear_fc2", "fc2")
WEIGHT_TABLE(tower_deepstack_table, DEEPSTACK_MERGER, tower_merger_weights,
             "deepstack_merger_list.%d.", "v.deepstack.%d.");
/* clang-format on */

static void tower_forward_patch(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct tower_patch_weights *w = weights;
    const struct tower_settings *settings = scope->settings;
    const struct qwen_vision_state *state = scope->lane->state;
    const struct token_grid *grid = &state->grid;
    qwen_vision_embed(x, &(struct qwen_patch_kernel){w->first, w->second, w->bias}, scope);
    op_add_positions(x, state->tokens, state->tokens, w->positions,
                     (struct position_grid){settings->side, grid->rows, grid->columns, grid->token_order});
}

BLOCK(tower_kind_patch, "patch", "patch_embed", tower_patch_table, tower_patch_weights, tower_forward_patch,
      .never_quantised = true);
BLOCK(tower_kind_patch_halves, "patch", "patch_embed", tower_patch_halves_table, tower_patch_weights,
      tower_forward_patch, .never_quantised = true);

static void tower_norm(struct context *x, struct tensor out, struct tensor in,
                       const struct linear_weights *w) {
    op_layer_norm(x, out, in, (struct affine){.weight = w->weight, .bias = w->bias}, norm_eps);
}

static void tower_attend(struct context *x, const struct tower_layer_weights *w,
                         const struct qwen_vision_state *state, struct tensor n) {
    struct tensor tokens = state->tokens, q = context_operand(x, 2, tokens.dim);
    struct tensor k = context_operand(x, 2, tokens.dim), v = context_operand(x, 2, tokens.dim);
    int32_t head = 2 * state->rope.dim[1], n_heads = tokens.dim[1] / head;
    qwen_vision_project_heads(x, q, n, &w->q, state->rope);
    qwen_vision_project_heads(x, k, n, &w->k, state->rope);
    op_linear(x, v, n, w->v.weight, (struct epilogue){.bias = w->v.bias});
    op_attention(
        x, q, q, k, v,
        (struct attention_options){.queries = n_heads, .keys = n_heads, .scale = 1 / sqrtf((float)head)});
    op_linear(x, tokens, q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = tokens});
}

static void tower_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct tower_layer_weights *w = weights;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, n = context_operand(x, 2, tokens.dim);
    uint64_t mark = x->scratch->used;
    tower_norm(x, n, tokens, &w->norm1);
    tower_attend(x, w, state, n);
    x->scratch->used = mark;
    tower_norm(x, n, tokens, &w->norm2);
    struct tensor up = context_operand(x, 2, (int32_t[]){tokens.dim[0], w->up.weight.dim[0]});
    op_linear(x, up, n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
    op_linear(x, tokens, up, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = tokens});
}

BLOCK(tower_kind_layer, "layer", "blocks.%d", tower_layer_table, tower_layer_weights, tower_forward_layer);

/* Writes part `part` of lane.text, [rows, OUT], from the normed tokens n [T, WIDTH] of merge blocks. */
static void tower_write_merged(struct context *x, const struct tower_merger_weights *w,
                               const struct visit_scope *scope, struct tensor n, int part) {
    struct tensor rows = scope->lane->text;
    int32_t joined[] = {rows.dim[0], w->in.weight.dim[1]}, out = w->out.weight.dim[0];
    struct tensor inner = context_operand(x, 2, joined);
    op_linear(x, inner, tensor_reshape(n, 2, joined), w->in.weight,
              (struct epilogue){.bias = w->in.bias, .activation = ACTIVATION_GELU_ERF});
    op_linear(x, tensor_slice_columns(rows, part * out, out), inner, w->out.weight,
              (struct epilogue){.bias = w->out.bias});
}

/* Merge blocks are in raster order, so merged tokens need no reordering. */
static void tower_forward_merger(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct tower_merger_weights *w = weights;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor n = context_operand(x, 2, state->tokens.dim);
    tower_norm(x, n, state->tokens, &w->norm);
    tower_write_merged(x, w, scope, n, 0);
}

static void tower_forward_deepstack(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct tower_merger_weights *w = weights;
    const struct qwen_vision_state *state = scope->lane->state;
    int32_t joined[] = {scope->lane->text.dim[0], w->in.weight.dim[1]};
    struct tensor n = context_operand(x, 2, joined);
    tower_norm(x, n, tensor_reshape(state->tokens, 2, joined), &w->norm);
    tower_write_merged(x, w, scope, n, 1 + scope->number);
}

BLOCK(tower_kind_merger, "merger", "merger", tower_merger_table, tower_merger_weights, tower_forward_merger);
BLOCK(tower_kind_deepstack, "deepstack", "deepstack_merger_list.%d", tower_deepstack_table,
      tower_merger_weights, tower_forward_deepstack);

static bool qwen3vl_vision_probe(const struct tensor_index *index) {
    return (index_find(index, "patch_embed.proj.weight") && index_find(index, "pos_embed.weight") &&
            index_find(index, "blocks.0.mlp.linear_fc1.weight")) ||
           (index_find(index, "v.patch_embd.weight.1") && index_find(index, "v.position_embd.weight") &&
            index_find(index, "v.blk.0.attn_qkv.weight"));
}

static const char deepstack_key[] = "vision_config.deepstack_visual_indexes";
static const char *const deepstack_names[] = {"deepstack_merger_list.%d.norm.weight",
                                              "v.deepstack.%d.norm.weight", NULL};

/* Fills the list of deepstack layers from tensor names in GGUF files, else from the configuration. Without
 * both, towers with 27 (8B, 32B) or 24 layers (2B, 4B) get the published list. META: unknown or not
 * ascending. */
static enum status tower_find_deepstack(struct component *c, const struct config *config, struct error *e) {
    static const char *const gguf[] = {"v.deepstack.%d.norm.weight", NULL};
    struct tower_settings *s = (struct tower_settings *)c->settings;
    int n = 0, layers = c->dims[LAYERS], published = layers == 27 ? 8 : layers == 24 ? 5 : 0;
    bool ascends = true;
    for (int i = 0; i < layers && qwen_vision_is_gguf(c); i++)
        if (component_has_block(c, gguf, i) && n < DEEPSTACK_MAX) s->deepstack[n++] = (float)i;
    bool listed = qwen_vision_is_gguf(c) || config_list_length(config, deepstack_key);
    for (int i = 0; i < c->dims[DEEPSTACK] && !listed; i++)
        s->deepstack[i] = (float)(published + i * (published == 8 ? 8 : 6));
    for (int i = 0; i < c->dims[DEEPSTACK]; i++) {
        int before = i ? (int)s->deepstack[i - 1] : -1;
        ascends &= (int)s->deepstack[i] > before && (int)s->deepstack[i] < layers;
    }
    if (ascends && (listed || (published && c->dims[DEEPSTACK] == 3))) return OK;
    return error_set(e, META,
                     "unknown layers of the deepstack features" WHERE "%s" FOUND
                     "%d features of %d layers" EXPECTED "%s in config.json, ascending",
                     c->index.sources[0].path, c->dims[DEEPSTACK], layers, deepstack_key);
}

/* Returns the rows and columns of the square position table; rounded up if its row count is no square. */
static int table_side(const struct component *c) {
    int side = 0;
    while (side * side < c->dims[POSITIONS]) side++;
    return side;
}

static enum status tower_check_dims(struct component *c, struct error *e) {
    const struct tower_settings *s = (const struct tower_settings *)c->settings;
    const int32_t *d = c->dims;
    int heads = s->common.heads, side = table_side(c);
    bool fits = heads > 0 && d[WIDTH] % heads == 0 && d[HEAD] % 4 == 0 && d[HEAD] <= 512;
    fits &= (int64_t)d[WIDTH] * s->common.merge_size * s->common.merge_size == d[MERGED_WIDTH];
    fits &= side * side == d[POSITIONS] && d[PATCH] <= 64 && d[DEEPSTACK] <= DEEPSTACK_MAX;
    if (fits && d[COLOURS] == 3 && d[FRAMES] == 2 && d[LAYERS] > 0 &&
        d[LAYERS] <= FAMILY_BLOCKS_MAX - 2 - DEEPSTACK_MAX)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent vision encoder sizes" WHERE "%s" FOUND
        "width %d, heads %d, %d layers, %d deepstack features, patches [%d, %d, %d, %d], %d merged to %d, "
        "%d positions" EXPECTED "a head size that is a multiple of 4, at most %d features, patches [3, 2, n, "
        "n], a square number of positions",
        c->index.sources[0].path, d[WIDTH], heads, d[LAYERS], d[DEEPSTACK], d[COLOURS], d[FRAMES], d[PATCH],
        d[PATCH], s->common.merge_size, d[MERGED_WIDTH], d[POSITIONS], DEEPSTACK_MAX);
}

static enum status qwen3vl_vision_configure(struct component *c, const struct config *config,
                                            struct error *e) {
    if (qwen_vision_read_patch(c, e) != OK || tower_check_dims(c, e) != OK ||
        tower_find_deepstack(c, config, e) != OK)
        return e->code;
    return qwen_vision_check_config(c, config, e);
}

static int qwen3vl_vision_blocks(const struct component *c, struct block_ref *refs) {
    const struct tower_settings *s = (const struct tower_settings *)c->settings;
    int n = 0, feature = 0;
    refs[n++] =
        (struct block_ref){.kind = qwen_vision_is_gguf(c) ? &tower_kind_patch_halves : &tower_kind_patch};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &tower_kind_layer, .number = i};
        if (feature == c->dims[DEEPSTACK] || (int)s->deepstack[feature] != i) continue;
        refs[n++] = (struct block_ref){
            .kind = &tower_kind_deepstack, .number = feature, .number_offset = i - feature};
        feature++;
    }
    refs[n++] = (struct block_ref){.kind = &tower_kind_merger};
    return n;
}

static const char *const qwen3vl_vision_architectures[] = {"clip", NULL};
static const char *const qwen3vl_vision_model_types[] = {"qwen3_vl_vision", NULL};

/* Published sizes: Qwen3-VL-8B. */
static const struct dimension qwen3vl_vision_dimensions[] = {
    {"vision_layers", 27, 1, 400, .place = LAYERS, OF_BLOCKS("blocks.", "v.blk."),
     .key = "vision_config.depth"},
    {"vision_width", 1152, 8, 65536, .place = WIDTH,
     OF_TENSOR(1, 0, "merger.norm.weight", "v.post_ln.weight"), .key = "vision_config.hidden_size"},
    {"vision_heads", 16, 1, 1024, .place = HEADS},
    {"vision_ff", 4304, 8, 262144, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "blocks.0.mlp.linear_fc1.weight", "v.blk.0.ffn_up.weight"),
     .key = "vision_config.intermediate_size"},
    {"hidden", 4096, 8, 65536, .place = OUT, OF_TENSOR(2, 0, "merger.linear_fc2.weight", "mm.2.weight"),
     .key = "vision_config.out_hidden_size"},
    {"vision_positions", 2304, 1, 1 << 20, .place = POSITIONS,
     OF_TENSOR(2, 0, "pos_embed.weight", "v.position_embd.weight"),
     .key = "vision_config.num_position_embeddings"},
    {.place = MERGED_WIDTH, OF_TENSOR(2, 1, "merger.linear_fc2.weight", "mm.2.weight")},
    {.place = DEEPSTACK, .having = deepstack_names},
    {.place = COLOURS, .key = "vision_config.in_channels"},
    {.place = FRAMES, .key = "vision_config.temporal_patch_size"},
    {.place = PATCH, .key = "vision_config.patch_size"},
};

static const struct setting qwen3vl_vision_settings[] = {
    QWEN_VISION_SETTING(heads, SETTING_INT, 16, 1, 1024, "vision_config.num_heads", "num_heads",
                        "clip.vision.attention.head_count"),
    QWEN_VISION_SETTING(merge_size, SETTING_INT, 2, 1, 16, "vision_config.spatial_merge_size",
                        "spatial_merge_size", "clip.vision.spatial_merge_size"),
    QWEN_VISION_SETTING(activation, SETTING_WORD, 0, 0, 0, "vision_config.hidden_act", "gelu_pytorch_tanh"),
    QWEN_VISION_SETTING(rope_theta, SETTING_DOUBLE, 1e4, 1, 1e12, "vision_config.rope_parameters.rope_theta"),
};

static const float published_deepstack[] = {8, 16, 24};
static const struct setting_list qwen3vl_vision_lists[] = {
    {.key = deepstack_key,
     .offset = offsetof(struct tower_settings, deepstack),
     .capacity = DEEPSTACK_MAX,
     .count = DEEPSTACK,
     .least = 0,
     .most = 1023,
     .published = published_deepstack,
     .n_published = COUNT_OF(published_deepstack),
     .derived = true}};

static const struct expectation qwen3vl_vision_expects[] = {
    {"vision_config.rope_parameters.rope_type", "axial"},
    {"clip.projector_type", "qwen3vl_merger"},
    {0},
};

static const struct setting qwen3vl_vision_pictures[] = {
    QWEN_PIXELS(min_pixels, 65536, "size.shortest_edge", "min_pixels"),
    QWEN_PIXELS(max_pixels, 16777216, "size.longest_edge", "max_pixels"),
    QWEN_PER_COLOUR(mean, 0.5, 0.5, 0.5, -10, 10, "image_mean"),
    QWEN_PER_COLOUR(deviation, 0.5, 0.5, 0.5, 1e-6, 10, "image_std"),
};

/* Chooses the deepstack layers of generated weights: as published, or the first layers of a small tower. */
static void qwen3vl_vision_derive_dims(struct component *c) {
    struct tower_settings *s = (struct tower_settings *)c->settings;
    int32_t *d = c->dims;
    int layers = d[LAYERS], features = COUNT_OF(published_deepstack);
    s->common.heads = d[HEADS];
    d[HEAD] = d[WIDTH] / d[HEADS];
    d[MERGED_WIDTH] = d[WIDTH] * s->common.merge_size * s->common.merge_size;
    d[COLOURS] = 3;
    d[FRAMES] = 2;
    d[PATCH] = 16;
    d[DEEPSTACK] = layers < features ? layers : features;
    for (int i = 0; i < d[DEEPSTACK]; i++)
        s->deepstack[i] = (float)(layers == 27 ? 8 * (i + 1) : layers == 24 ? 5 + 6 * i : i);
}

static void qwen3vl_vision_derive(struct component *c) {
    struct tower_settings *s = (struct tower_settings *)c->settings;
    s->side = table_side(c);
    c->dims[HEADS] = s->common.heads;
    c->deepstack_features = c->dims[DEEPSTACK];
    c->text_columns = (1 + c->dims[DEEPSTACK]) * c->dims[OUT];
    c->picture_format = s->common.format;
}

const struct family family_qwen3vl_vision = {
    .name = "qwen3vl_vision",
    .kind = FAMILY_VISION,
    .display_name = "Qwen3-VL vision encoder",
    .files = {.architectures = qwen3vl_vision_architectures,
              .config_key = "model_type",
              .config_value = "qwen3_vl",
              .config_others = qwen3vl_vision_model_types,
              .probe = qwen3vl_vision_probe},
    .config = {.dimensions = qwen3vl_vision_dimensions,
               .n_dimensions = COUNT_OF(qwen3vl_vision_dimensions),
               .settings = qwen3vl_vision_settings,
               .n_settings = COUNT_OF(qwen3vl_vision_settings),
               .lists = qwen3vl_vision_lists,
               .n_lists = COUNT_OF(qwen3vl_vision_lists),
               .picture_settings = qwen3vl_vision_pictures,
               .n_picture_settings = COUNT_OF(qwen3vl_vision_pictures),
               .expects = qwen3vl_vision_expects,
               .configure = qwen3vl_vision_configure,
               .derive_dims = qwen3vl_vision_derive_dims,
               .derive = qwen3vl_vision_derive,
               .pictures_rest = "\"image_processor_type\": \"Qwen2VLImageProcessor\", \"processor_class\": "
                                "\"Qwen3VLProcessor\", \"patch_size\": 16, " QWEN_PICTURES_REST},
    .blocks = {.list = qwen3vl_vision_blocks},
    .state = QWEN_VISION_STATE,
    .lanes = {.vision_grid = qwen_vision_grid_of},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 64 * 64,
                   .text_rows = 32 * 32,
                   .text_columns = 4 * 4096,
                   .picture_side = 1024}},
};
