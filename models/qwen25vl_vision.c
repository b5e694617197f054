/* Vision encoder of Qwen2.5-VL (transformers: Qwen2_5_VisionTransformerPretrainedModel). Its output tokens
 * are part of the prompt of the language model (qwen25vl.c).
 *
 * Patches of 14x14 pixels become tokens. Tokens are ordered window by window, and within a window in merge
 * blocks of 2x2, so that tokens that attend to each other, or are merged, are contiguous. A layer: x +=
 * out(attention(rope(q), rope(k), v)); x += down(silu(gate(n)) * up(n)), with RMS norms before attention and
 * feed-forward, biases everywhere, rope on halves of a head over row and column. Most layers attend within a
 * window, a few to the whole image. Finally the four tokens of a merge block are merged into one, and tokens
 * return to raster order.
 * Source: transformers 5.23, models/qwen2_5_vl/modeling_qwen2_5_vl.py. */
#include "models/models.h"
#include "models/qwen_vision.h"

#include <math.h>
#include <stdio.h>

/* Maximum length of the list of layers with full attention. */
enum { FULL_LAYERS_MAX = 16 };

struct vision_settings {
    struct qwen_vision_settings common;
    int full_layers[FULL_LAYERS_MAX];
    int full_every; /* every full_every-th layer has full attention; 0: the layers listed in full_layers */
};

static const float norm_eps = 1e-6F; /* constant in transformers */

/* clang-format off */
struct patch_weights { QWEN_PATCH_SLICES(FIELD_, ) };
WEIGHT_TABLE(vision_patch_table, QWEN_PATCH_SLICES, patch_weights, "", "");
WEIGHT_TABLE(vision_patch_halves_table, QWEN_PATCH_HALVES, patch_weights, "", "");

/* Safetensors files have one fused tensor for q, k and v, GGUF files separate tensors. */
#define LAYER(X, S)                                                                                          \
    X##VECTOR(S, norm1, WIDTH, "norm1", "ln1")                                                               \
    X##LINEAR(S, q, WIDTH, WIDTH, "attn.qkv[0/3]", "attn_q")                                                 \
    X##LINEAR(S, k, WIDTH, WIDTH, "attn.qkv[1/3]", "attn_k")                                                 \
    X##LINEAR(S, v, WIDTH, WIDTH, "attn.qkv[2/3]", "attn_v")                                                 \
    X##LINEAR(S, out, WIDTH, WIDTH, "attn.proj", "attn_out")                                                 \
    X##VECTOR(S, norm2, WIDTH, "norm2", "ln2")                                                               \
    X##LINEAR(S, gate, FEED_FORWARD, WIDTH, "mlp.gate_proj", "ffn_gate")                                     \
    X##LINEAR(S, up, FEED_FORWARD, WIDTH, "mlp.up_proj", "ffn_up")                                           \
    X##LINEAR(S, down, WIDTH, FEED_FORWARD, "mlp.down_proj", "ffn_down")
struct vision_layer_weights { LAYER(FIELD_, ) };
WEIGHT_TABLE_NAMED(vision_layer_table, LAYER, vision_layer_weights, QWEN_VISION_NAMED, "blocks.%d.", "v.blk.%d.");

#define MERGER(X, S)                                                                                         \
    X##VECTOR(S, norm, WIDTH, "merger.ln_q", "v.post_ln")                                                    \
    X##LINEAR(S, in, MERGED_WIDTH, MERGED_WIDTH, "merger.mlp.0", "mm.0")                                     \
    X##LINEAR(S, out, OUT, MERGED_WIDTH, "merger.mlp.2", "mm.2")
struct merger_weights { MERGER(FIELD_, ) };
WEIGHT_TABLE_NAMED(vision_merger_table, MERGER, merger_weights, QWEN_VISION_NAMED, "", "");
/* clang-format on */

static void vision_forward_patch(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct patch_weights *w = weights;
    qwen_vision_embed(x, &(struct qwen_patch_kernel){.first = w->first, .second = w->second}, scope);
}

BLOCK(vision_kind_patch, "patch", "patch_embed", vision_patch_table, patch_weights, vision_forward_patch,
      .never_quantised = true);
BLOCK(vision_kind_patch_halves, "patch", "patch_embed", vision_patch_halves_table, patch_weights,
      vision_forward_patch, .never_quantised = true);

static bool vision_has_full_attention(const struct vision_settings *s, int layer) {
    if (s->full_every > 0) return layer % s->full_every == s->full_every - 1;
    for (int i = 0; i < FULL_LAYERS_MAX; i++)
        if (s->full_layers[i] == layer) return true;
    return false;
}

static int32_t vision_least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Attention window by window, in token order; windows at the right and bottom edges are smaller. */
static void vision_window_attention(struct context *x, struct token_grid grid, struct tensor q,
                                    struct tensor k, struct tensor v, struct attention_options heads) {
    int32_t side = grid.token_order.window;
    for (int32_t row = 0, first = 0; row < grid.rows; row += side)
        for (int32_t column = 0; column < grid.columns; column += side) {
            int32_t n = vision_least(side, grid.rows - row) * vision_least(side, grid.columns - column);
            struct tensor queries = tensor_slice(q, first, n);
            op_attention(x, queries, queries, tensor_slice(k, first, n), tensor_slice(v, first, n), heads);
            first += n;
        }
}

static void vision_attend(struct context *x, const struct vision_layer_weights *w,
                          const struct visit_scope *scope, struct tensor n) {
    const struct vision_settings *settings = scope->settings;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor tokens = state->tokens;
    int32_t head = 2 * state->rope.dim[1], n_heads = tokens.dim[1] / head;
    struct attention_options heads = {.queries = n_heads, .keys = n_heads, .scale = 1 / sqrtf((float)head)};
    struct tensor q = context_operand(x, 2, tokens.dim), k = context_operand(x, 2, tokens.dim);
    struct tensor v = context_operand(x, 2, tokens.dim);
    qwen_vision_project_heads(x, q, n, &w->q, state->rope);
    qwen_vision_project_heads(x, k, n, &w->k, state->rope);
    op_linear(x, v, n, w->v.weight, (struct epilogue){.bias = w->v.bias});
    if (vision_has_full_attention(settings, scope->number))
        op_attention(x, q, q, k, v, heads);
    else
        vision_window_attention(x, state->grid, q, k, v, heads);
    op_linear(x, tokens, q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = tokens});
}

static void vision_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vision_layer_weights *w = weights;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, n = context_operand(x, 2, tokens.dim);
    int32_t T = tokens.dim[0];
    op_rms_norm(x, n, tokens, w->norm1, norm_eps, (struct modulation){0});
    uint64_t mark = x->scratch->used;
    vision_attend(x, w, scope, n);
    x->scratch->used = mark;
    op_rms_norm(x, n, tokens, w->norm2, norm_eps, (struct modulation){0});
    struct tensor gated = context_operand(x, 2, (int32_t[]){T, w->gate.weight.dim[0]});
    struct tensor gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, w->up.weight.dim[0]});
    op_linear(x, gate, n, w->gate.weight, (struct epilogue){.bias = w->gate.bias});
    op_linear(x, up, n, w->up.weight, (struct epilogue){.bias = w->up.bias});
    op_glu(x, gated, gate, up, ACTIVATION_SILU);
    op_linear(x, tokens, gated, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = tokens});
}

BLOCK(vision_kind_layer, "layer", "blocks.%d", vision_layer_table, vision_layer_weights,
      vision_forward_layer);

static void vision_forward_merger(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct merger_weights *w = weights;
    const struct qwen_vision_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, rows = scope->lane->text;
    struct token_grid grid = state->grid;
    int32_t side = grid.token_order.block, joined[] = {rows.dim[0], w->in.weight.dim[1]};
    struct tensor inner = context_operand(x, 2, joined);
    /* contiguous, so that a reshape joins the tokens of a merge block */
    struct tensor n = context_tensor(x, inner.dtype, 2, tokens.dim);
    struct tensor merged = context_tensor(x, DTYPE_F32, 2, rows.dim);
    op_rms_norm(x, n, tokens, w->norm, norm_eps, (struct modulation){0});
    op_linear(x, inner, tensor_reshape(n, 2, joined), w->in.weight,
              (struct epilogue){.bias = w->in.bias, .activation = ACTIVATION_GELU_ERF});
    op_linear(x, merged, inner, w->out.weight, (struct epilogue){.bias = w->out.bias});
    struct tensor raster =
        tensor_reshape(rows, 3, (int32_t[]){grid.rows / side, grid.columns / side, rows.dim[1]});
    struct patches order = {.side = 1, .pixels = true, .token_order = {grid.token_order.window / side, 0}};
    op_unpatchify(x, raster, merged, order, 1);
}

BLOCK(vision_kind_merger, "merger", "merger", vision_merger_table, merger_weights, vision_forward_merger);

/* True for the vision encoders of Qwen2.5-VL and Qwen2-VL; qwen25vl_vision_refuse refuses the latter. */
static bool qwen25vl_vision_probe(const struct tensor_index *index) {
    return (index_find(index, "patch_embed.proj.weight") && index_find(index, "merger.ln_q.weight") &&
            index_find(index, "blocks.0.attn.qkv.weight")) ||
           (index_find(index, "v.patch_embd.weight.1") && index_find(index, "mm.0.weight") &&
            index_find(index, "v.blk.0.attn_q.weight"));
}

static enum status qwen25vl_vision_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"blocks.0.mlp.fc1.", "the vision encoder of Qwen2-VL"},
        {"v.blk.0.ln1.bias", "the vision encoder of Qwen2-VL"},
        {0},
    };
    return component_refuse_similar(c, relatives, "the vision encoder of Qwen2.5-VL", e);
}

static enum status vision_check_dims(const struct component *c, struct error *e) {
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    const int32_t *d = c->dims;
    bool heads = s->heads > 0 && d[WIDTH] % s->heads == 0 && d[HEAD] % 4 == 0 && d[HEAD] <= 512;
    bool merges = (int64_t)d[WIDTH] * s->merge_size * s->merge_size == d[MERGED_WIDTH] && d[PATCH] <= 64;
    bool windows = s->window >= d[PATCH] * s->merge_size;
    if (heads && merges && windows && d[COLOURS] == 3 && d[FRAMES] == 2 && d[LAYERS] > 0 &&
        d[LAYERS] <= FAMILY_BLOCKS_MAX - 2)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent vision encoder sizes" WHERE "%s" FOUND
        "width %d, heads %d, %d layers, patches [%d, %d, %d, %d], %d merged to %d, windows %d" EXPECTED
        "a head size that is a multiple of 4, patches [3, 2, n, n], merge blocks within windows",
        c->index.sources[0].path, d[WIDTH], s->heads, d[LAYERS], d[COLOURS], d[FRAMES], d[PATCH], d[PATCH],
        s->merge_size, d[MERGED_WIDTH], s->window);
}

/* Ends the list of full-attention layers (full_layers) after the entries of config.json; without such a list
 * the published entries stay. */
static void vision_end_full_layers(struct vision_settings *s, const struct config *config) {
    char nested[64], flat[64];
    for (int i = 0, listed = 0; i < FULL_LAYERS_MAX; i++) {
        snprintf(nested, sizeof nested, "vision_config.fullatt_block_indexes.%d", i);
        snprintf(flat, sizeof flat, "fullatt_block_indexes.%d", i);
        bool there = config_find(config, nested) || config_find(config, flat);
        listed += there;
        if (listed && !there) s->full_layers[i] = -1;
    }
}

enum { HEAD_PUBLISHED = 80 };

static enum status qwen25vl_vision_configure(struct component *c, const struct config *config,
                                             struct error *e) {
    static const char *const lists[] = {"vision_config.fullatt_block_indexes.16", "fullatt_block_indexes.16"};
    struct vision_settings *s = (struct vision_settings *)c->settings;
    if (!s->common.heads) s->common.heads = c->dims[WIDTH] / HEAD_PUBLISHED;
    vision_end_full_layers(s, config);
    for (int i = 0; i < COUNT_OF(lists); i++)
        if (config_find(config, lists[i])) config_refuse(config, lists[i], e);
    if (e->code != OK || qwen_vision_read_patch(c, e) != OK || vision_check_dims(c, e) != OK) return e->code;
    return qwen_vision_check_config(c, config, e);
}

static int qwen25vl_vision_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] =
        (struct block_ref){.kind = qwen_vision_is_gguf(c) ? &vision_kind_patch_halves : &vision_kind_patch};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &vision_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &vision_kind_merger};
    return n;
}

static const char *const qwen25vl_vision_architectures[] = {"clip", NULL};

/* Published sizes: Qwen2.5-VL-7B. */
static const struct dimension qwen25vl_vision_dimensions[] = {
    {"vision_layers", 32, 1, 400, .place = LAYERS, OF_BLOCKS("blocks.", "v.blk."),
     .key = "vision_config.depth"},
    {"vision_width", 1280, 8, 65536, .place = WIDTH,
     OF_TENSOR(1, 0, "merger.ln_q.weight", "v.post_ln.weight"), .key = "vision_config.hidden_size"},
    {"vision_heads", 16, 1, 1024, .place = HEADS},
    {"vision_ff", 3420, 8, 262144, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "blocks.0.mlp.gate_proj.weight", "v.blk.0.ffn_gate.weight"),
     .key = "vision_config.intermediate_size"},
    {"hidden", 3584, 8, 65536, .place = OUT, OF_TENSOR(2, 0, "merger.mlp.2.weight", "mm.2.weight"),
     .key = "vision_config.out_hidden_size"},
    {.place = MERGED_WIDTH, OF_TENSOR(2, 1, "merger.mlp.2.weight", "mm.2.weight")},
    {.place = COLOURS, .key = "vision_config.in_channels"},
    {.place = FRAMES, .key = "vision_config.temporal_patch_size"},
    {.place = PATCH, .key = "vision_config.patch_size"},
};

#define FULL(i, published)                                                                                   \
    {                                                                                                        \
        {"vision_config.fullatt_block_indexes." #i, "fullatt_block_indexes." #i},                            \
            offsetof(struct vision_settings, full_layers) + (i) * sizeof(int), SETTING_INT, published, 0,    \
            1023                                                                                             \
    }

static const struct setting qwen25vl_vision_settings[] = {
    QWEN_VISION_SETTING(heads, SETTING_INT, 0, 1, 1024, "vision_config.num_heads", "num_heads",
                        "clip.vision.attention.head_count"),
    QWEN_VISION_SETTING(merge_size, SETTING_INT, 2, 1, 16, "vision_config.spatial_merge_size",
                        "spatial_merge_size", "clip.vision.spatial_merge_size"),
    QWEN_VISION_SETTING(window, SETTING_INT, 112, 1, 65536, "vision_config.window_size", "window_size",
                        "clip.vision.window_size"),
    {{"vision_config.n_wa_pattern", "clip.vision.n_wa_pattern"},
     offsetof(struct vision_settings, full_every),
     SETTING_INT,
     0,
     1,
     1024},
    QWEN_VISION_SETTING(activation, SETTING_WORD, 0, 0, 0, "vision_config.hidden_act", "silu"),
    FULL(0, 7),
    FULL(1, 15),
    FULL(2, 23),
    FULL(3, 31),
    FULL(4, -1),
    FULL(5, -1),
    FULL(6, -1),
    FULL(7, -1),
    FULL(8, -1),
    FULL(9, -1),
    FULL(10, -1),
    FULL(11, -1),
    FULL(12, -1),
    FULL(13, -1),
    FULL(14, -1),
    FULL(15, -1),
    QWEN_VISION_SETTING(rope_theta, SETTING_DOUBLE, 1e4, 1, 1e12, "vision_config.rope_parameters.rope_theta"),
};

static const struct expectation qwen25vl_vision_expects[] = {
    {"vision_config.rope_parameters.rope_type", "axial"},
    {"clip.projector_type", "qwen2.5vl_merger"},
    {0},
};

static const struct setting qwen25vl_vision_pictures[] = {
    QWEN_PIXELS(min_pixels, 56 * 56, "size.shortest_edge", "min_pixels"),
    QWEN_PIXELS(max_pixels, 12845056, "size.longest_edge", "max_pixels"),
    QWEN_PER_COLOUR(mean, 0.48145466, 0.4578275, 0.40821073, -10, 10, "image_mean"),
    QWEN_PER_COLOUR(deviation, 0.26862954, 0.26130258, 0.27577711, 1e-6, 10, "image_std"),
};

/* Chooses the layers with full attention for generated weights: the last of fewer than 8 layers, else 4
 * layers at equal distances. */
static void qwen25vl_vision_derive_dims(struct component *c) {
    enum { PUBLISHED = 4, FEW = 8 };
    struct vision_settings *s = (struct vision_settings *)c->settings;
    int32_t *d = c->dims;
    s->common.heads = d[HEADS];
    d[HEAD] = d[WIDTH] / d[HEADS];
    d[MERGED_WIDTH] = d[WIDTH] * s->common.merge_size * s->common.merge_size;
    d[COLOURS] = 3;
    d[FRAMES] = 2;
    d[PATCH] = 14;
    for (int i = 0; i < PUBLISHED; i++)
        s->full_layers[i] = d[LAYERS] < FEW ? (i ? -1 : d[LAYERS] - 1) : (i + 1) * d[LAYERS] / PUBLISHED - 1;
}

static void qwen25vl_vision_derive(struct component *c) {
    const struct qwen_vision_settings *s = (const struct qwen_vision_settings *)c->settings;
    c->dims[HEADS] = s->heads;
    c->text_columns = c->dims[OUT];
    c->picture_format = s->format;
}

const struct family family_qwen25vl_vision = {
    .name = "qwen25vl_vision",
    .kind = FAMILY_VISION,
    .display_name = "Qwen2.5-VL vision encoder",
    .files = {.architectures = qwen25vl_vision_architectures,
              .config_key = "model_type",
              .config_value = "qwen2_5_vl",
              .probe = qwen25vl_vision_probe,
              .refuse = qwen25vl_vision_refuse},
    .config = {.dimensions = qwen25vl_vision_dimensions,
               .n_dimensions = COUNT_OF(qwen25vl_vision_dimensions),
               .settings = qwen25vl_vision_settings,
               .n_settings = COUNT_OF(qwen25vl_vision_settings),
               .picture_settings = qwen25vl_vision_pictures,
               .n_picture_settings = COUNT_OF(qwen25vl_vision_pictures),
               .expects = qwen25vl_vision_expects,
               .configure = qwen25vl_vision_configure,
               .derive_dims = qwen25vl_vision_derive_dims,
               .derive = qwen25vl_vision_derive,
               .pictures_rest = "\"image_processor_type\": \"Qwen2VLImageProcessor\", \"processor_class\": "
                                "\"Qwen2_5_VLProcessor\", \"patch_size\": 14, " QWEN_PICTURES_REST},
    .blocks = {.list = qwen25vl_vision_blocks},
    .state = QWEN_VISION_STATE,
    .lanes = {.vision_grid = qwen_vision_grid_of},
    /* A layer with window attention. */
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 74 * 74,
                   .text_rows = 37 * 37,
                   .text_columns = 3584,
                   .picture_side = 1036}},
};
