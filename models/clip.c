/* CLIP text encoders: OpenAI's (CLIP-L) and OpenCLIP's (H, G); transformers: CLIPTextModel,
 * CLIPTextModelWithProjection. Output: a pooled row for the whole prompt, a row for each token, or both.
 *
 * Token plus position embeddings, then layers (clip_layers.h) with causal attention, then the final norm. The
 * pooled row is the end token's hidden state, optionally multiplied by text_projection. Token rows may come
 * from an earlier layer (clip_skip), with or without the final norm. A prompt of several windows is a
 * sequence of independent texts: positions restart in each window, and attention does not cross windows.
 * Source: transformers 5, models/clip/modeling_clip.py. */
#include "kernels/ops.h"
#include "models/clip_layers.h"
#include "models/slots.h"

#include <stdio.h>
#include <string.h>

enum { VOCABULARY = CLIP_DIMS, POSITIONS, PROJECTION };

enum { HEAD = 64 }; /* attention head size of all published CLIP text encoders */

struct clip_settings {
    struct clip_layer_settings layer;
    /* Hidden states that the encoder writes to lane.text without clip_skip. n_layers includes last layers
     * that the weight file lacks (diffusers' OpenCLIP-H has 23 of 24 layers). */
    struct encoder_output output;
    bool projected;
};

struct clip_state {
    struct tensor tokens; /* [T, width] */
    struct tensor pooled; /* pooled row before the projection: [1, width]; rank 0 without projection */
};

/* Naming macro of rows with four names: transformers' (transformers 4 adds "text_model."; P: further prefix),
 * clip.cpp's (models/convert_hf_to_gguf.py), the WAN authors' (unused here), OpenCLIP's. */
#define CLIP_NAMED(P, C, end, name, gguf, wan, open)                                                         \
    .names = {"text_model." P name end, P name end, "t." gguf end}, .checkpoint_name = open end

/* clang-format off */
/* rows: embeddings of the prompt's tokens, [T, width]. */
#define EMBEDDING(X, S)                                                                                      \
    X##TABLE(S, rows, VOCABULARY, CLIP_WIDTH,                                                                \
             "embeddings.token_embedding", "token_embd", "", "token_embedding")
struct embedding_weights { EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_embedding_table, EMBEDDING, embedding_weights, CLIP_NAMED, "", "");

#define POSITION(X, S)                                                                                       \
    X##WEIGHT(WITH(S, .embedding_lookup = true), table, SHAPED(2, POSITIONS, CLIP_WIDTH),                    \
              "embeddings.position_embedding.weight", "position_embd.weight", "", "positional_embedding")
struct position_weights { POSITION(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_position_table, POSITION, position_weights, CLIP_NAMED, "", "");

WEIGHT_TABLE_NAMED(clip_layer_table, CLIP_OPEN_LAYER, clip_layer_weights, CLIP_NAMED,
                   "encoder.layers.%d.", "");

#define FINAL_NORM(X, S) X##NORM(S, norm, CLIP_WIDTH, "final_layer_norm", "post_ln", "", "ln_final")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_norm_table, FINAL_NORM, norm_weights, CLIP_NAMED, "", "");

/* OpenCLIP's files, and stable-diffusion.cpp's under transformers' name, store text_projection transposed. */
#define TEXT_PROJECTION(X, S)                                                                                \
    X##WEIGHT(S, projection, SHAPED(2, PROJECTION, CLIP_WIDTH),                                              \
              NULL, "text_projection.weight", "t.text_projection.weight")
#define TRANSPOSED(X, S)                                                                                     \
    X##TABLE(S, projection, CLIP_WIDTH, PROJECTION,                                                          \
             NULL, "text_projection", "text_model.text_projection")
struct projection_weights { TEXT_PROJECTION(FIELD_, ) };
WEIGHT_TABLE_NAMED(clip_projection_table, TEXT_PROJECTION, projection_weights, NAMED_FULLY, "", "");
WEIGHT_TABLE_NAMED(clip_transposed_table, TRANSPOSED, projection_weights, NAMED_FULLY, "", "");
/* clang-format on */

static void clip_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    op_copy(x, state->tokens, w->rows);
}

static struct tensor clip_window(const struct lane *lane, struct tensor rows, int i) {
    int window = lane->window ? lane->window : lane->n_tokens;
    return tensor_slice(rows, i * window, window);
}

static int clip_windows(const struct lane *lane) {
    return lane->window ? lane->n_tokens / lane->window : 1;
}

static void clip_forward_position(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct position_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    for (int i = 0; i < clip_windows(scope->lane); i++) {
        struct tensor tokens = clip_window(scope->lane, state->tokens, i);
        op_add(x, tokens, tokens, tensor_slice(w->table, 0, tokens.dim[0]));
    }
}

/* The hidden states of this lane. clip_skip selects another layer; it does not change whether the final norm
 * applies. */
static struct encoder_output clip_output(const struct clip_settings *s, const struct lane *lane) {
    struct encoder_output output = s->output;
    if (!lane->clip_skip || hidden_states_count(&output.states, output.n_layers) > 1) return output;
    bool normed = hidden_states_use_norm(&output.states, output.n_layers);
    output.states = (struct hidden_states){.layers = {-lane->clip_skip},
                                           .final_norm = normed ? FINAL_NORM_OF_ALL : FINAL_NORM_OF_NONE};
    return output;
}

static void clip_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct clip_settings *settings = scope->settings;
    const struct lane *lane = scope->lane;
    const struct clip_state *state = lane->state;
    struct clip_scratch scratch = clip_layer_scratch(x, weights, clip_window(lane, state->tokens, 0));
    for (int i = 0; i < clip_windows(lane); i++)
        clip_layer(x, weights, &settings->layer, clip_window(lane, state->tokens, i), &scratch);
    struct encoder_output output = clip_output(settings, lane);
    if (lane->text.rank) hidden_states_write(x, &output, lane, state->tokens, scope->number);
}

static void clip_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct clip_settings *settings = scope->settings;
    const struct lane *lane = scope->lane;
    const struct clip_state *state = lane->state;
    if (lane->pooled.rank)
        clip_norm(x, settings->projected ? state->pooled : lane->pooled,
                  tensor_slice(state->tokens, lane->pooled_row, 1), &w->norm, settings->layer.norm_eps);
    struct encoder_output output = clip_output(settings, lane);
    if (!lane->text.rank || !hidden_states_use_norm(&output.states, output.n_layers)) return;
    hidden_states_norm(x, &output, lane, context_tensor(x, DTYPE_F32, 2, state->tokens.dim),
                       (struct affine){.weight = w->norm.weight, .bias = w->norm.bias},
                       settings->layer.norm_eps);
}

static void clip_forward_projection(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct projection_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    op_linear_few(x, scope->lane->pooled, state->pooled, w->projection, (struct tensor){0}, ACTIVATION_NONE);
}

/* Pooled output if text_projection is stored transposed. op_patchify with 1x1 patches transposes the tensor
 * back. */
static void clip_forward_transposed(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct projection_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    int32_t rows = w->projection.dim[0], columns = w->projection.dim[1];
    struct tensor as_image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){rows, 1, columns});
    struct tensor projection = context_tensor(x, DTYPE_F32, 2, (int32_t[]){columns, rows});
    op_copy(x, tensor_reshape(as_image, 2, w->projection.dim), w->projection);
    op_patchify(x, projection, as_image, (struct patches){.side = 1});
    op_linear_few(x, scope->lane->pooled, state->pooled, projection, (struct tensor){0}, ACTIVATION_NONE);
}

BLOCK(clip_kind_embedding, "embedding", "token_embedding", clip_embedding_table, embedding_weights,
      clip_forward_embedding, .embedding_table = true);
BLOCK(clip_kind_position, "position", "position_embedding", clip_position_table, position_weights,
      clip_forward_position, .never_quantised = true);
BLOCK(clip_kind_layer, "layer", "layers.%d", clip_layer_table, clip_layer_weights, clip_forward_layer);
BLOCK(clip_kind_norm, "norm", "final_layer_norm", clip_norm_table, norm_weights, clip_forward_norm,
      .never_quantised = true);
BLOCK(clip_kind_projection, "projection", "text_projection", clip_projection_table, projection_weights,
      clip_forward_projection, .never_quantised = true);
BLOCK(clip_kind_transposed, "transposed projection", "text_projection", clip_transposed_table,
      projection_weights, clip_forward_transposed, .never_quantised = true);

static const struct index_entry *clip_find(const struct tensor_index *index, const char *name,
                                           const char *gguf, const char *open) {
    char prefixed[2 * BLOCK_NAME_MAX];
    snprintf(prefixed, sizeof prefixed, "text_model.%s", name);
    const struct index_entry *entry = index_find(index, prefixed);
    if (!entry) entry = index_find(index, name);
    if (!entry) entry = index_find(index, gguf);
    return entry ? entry : index_find(index, open);
}

static const struct index_entry *clip_find_token_embedding(const struct tensor_index *index) {
    return clip_find(index, "embeddings.token_embedding.weight", "t.token_embd.weight",
                     "token_embedding.weight");
}

static bool clip_probe(const struct tensor_index *index) {
    return clip_find_token_embedding(index) &&
           clip_find(index, "encoder.layers.0.self_attn.out_proj.weight", "t.blk.0.attn_out.weight",
                     "transformer.resblocks.0.attn.out_proj.weight");
}

static bool clip_is_named_by_openclip(const struct component *c) {
    return index_find(&c->index, "transformer.resblocks.0.attn.out_proj.weight");
}

/* Widths of CLIP-L, OpenCLIP-H and OpenCLIP-G. A test model of another width matches any of the three
 * encoders. */
enum { WIDTH_L = 768, WIDTH_H = 1024, WIDTH_G = 1280 };

static bool clip_has_width(const struct tensor_index *view, int32_t width) {
    const struct index_entry *table = clip_find_token_embedding(view);
    int32_t has = table && table->rank == 2 ? table->dim[1] : width;
    return has == width || (has != WIDTH_L && has != WIDTH_H && has != WIDTH_G);
}

bool clip_is_l(const struct tensor_index *view) {
    return clip_has_width(view, WIDTH_L);
}

bool clip_is_h(const struct tensor_index *view) {
    return clip_has_width(view, WIDTH_H);
}

bool clip_is_g(const struct tensor_index *view) {
    return clip_has_width(view, WIDTH_G);
}

static enum status clip_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    const struct clip_settings *s = (const struct clip_settings *)c->settings;
    if (s->layer.heads >= 1 && d[CLIP_WIDTH] % s->layer.heads == 0 && d[CLIP_WIDTH] / s->layer.heads <= 512 &&
        d[CLIP_LAYERS] >= hidden_states_min_layers(&c->reads.hidden) &&
        d[CLIP_LAYERS] <= FAMILY_BLOCKS_MAX - 4)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent CLIP text encoder sizes" WHERE "%s" FOUND
                     "width %d, %d heads, %d layers" EXPECTED
                     "a width that is a multiple of num_attention_heads (config.json; default: heads of 64)",
                     c->index.sources[0].path, d[CLIP_WIDTH], s->layer.heads, d[CLIP_LAYERS]);
}

/* Returns the text_projection tensor or NULL; sets *transposed for OpenCLIP's layout. */
static const struct index_entry *clip_find_projection(const struct component *c, bool *transposed) {
    const struct block_ref as_is = {.kind = &clip_kind_projection}, other = {.kind = &clip_kind_transposed};
    const struct index_entry *entry = block_find_weight(&as_is, clip_projection_table, &c->index);
    *transposed = !entry;
    return entry ? entry : block_find_weight(&other, clip_transposed_table, &c->index);
}

static enum status clip_configure(struct component *c, const struct config *config, struct error *e) {
    struct clip_settings *s = (struct clip_settings *)c->settings;
    bool erf = s->layer.gelu == CLIP_GELU_ERF, transposed;
    const char *projects = c->reads.projected_class;
    if (projects && strcmp(config_string(config, "architectures.0", ""), projects) != 0)
        c->reads.projected = false;
    const struct index_entry *projection = clip_find_projection(c, &transposed);
    if (!s->layer.heads) s->layer.heads = c->dims[CLIP_WIDTH] / HEAD;
    config_bool(config, "clip.use_gelu", &erf, e);
    s->layer.gelu = erf ? CLIP_GELU_ERF : CLIP_GELU_QUICK;
    c->dims[PROJECTION] = projection && projection->rank == 2 ? projection->dim[transposed] : 0;
    return e->code == OK ? clip_check_dims(c, e) : e->code;
}

static int clip_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    bool transposed;
    bool stored = clip_find_projection(c, &transposed);
    refs[n++] = (struct block_ref){.kind = &clip_kind_embedding};
    refs[n++] = (struct block_ref){.kind = &clip_kind_position};
    for (int i = 0; i < c->dims[CLIP_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &clip_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &clip_kind_norm};
    if (c->reads.pooled && c->reads.projected)
        refs[n++] =
            (struct block_ref){.kind = stored && transposed ? &clip_kind_transposed : &clip_kind_projection};
    return n;
}

/* Skips the layers after the layer that outputs the token rows, unless the lane needs the pooled row. */
static bool clip_skips_block(const struct component *c, const struct block *block, const struct lane *lane) {
    struct encoder_output output = clip_output((const struct clip_settings *)c->settings, lane);
    if (lane->pooled.rank) return false;
    if (block->kind == &clip_kind_norm) return !hidden_states_use_norm(&output.states, output.n_layers);
    if (block->kind == &clip_kind_layer)
        return block->number >= hidden_states_used_layers(&output.states, output.n_layers);
    return block->kind != &clip_kind_position;
}

static void clip_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    const struct clip_settings *s = (const struct clip_settings *)c->settings;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct clip_state *state = lanes[i].state;
        int32_t shape[] = {lanes[i].n_tokens, c->dims[CLIP_WIDTH]};
        state->tokens = arena_tensor(arena, DTYPE_F32, 2, shape, ok);
        shape[0] = 1;
        if (s->projected) state->pooled = arena_tensor(arena, DTYPE_F32, 2, shape, ok);
    }
}

static enum status clip_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                    struct error *e) {
    for (int i = 0; i < n_lanes; i++) {
        int tokens = lanes[i].window ? lanes[i].window : lanes[i].n_tokens;
        if (tokens <= c->dims[POSITIONS]) continue;
        return error_set(e, SHAPE,
                         "the prompt is longer than the CLIP text encoder's position table" WHERE "%s" FOUND
                         "%d positions" EXPECTED "%d, one for each token",
                         c->index.sources[0].path, c->dims[POSITIONS], tokens);
    }
    return OK;
}

/* Tensors that CLIP text encoder files may contain and the engine ignores: unused projections, the vision
 * model, and position_ids of older transformers. */
static const char *const clip_ignorable[] = {"text_model.embeddings.position_ids",
                                             "embeddings.position_ids",
                                             "text_projection",
                                             "text_model.text_projection",
                                             "vision_model.",
                                             "visual_projection.",
                                             "visual.",
                                             "v.",
                                             "text_encoders.clip_l.text_projection",
                                             NULL};
static const char *const clip_architectures[] = {"clip", NULL};

#define OF_EITHER(axis, name, gguf, open)                                                                    \
    OF_TENSOR(2, axis, "text_model." name ".weight", name ".weight", "t." gguf ".weight", open)

/* Sizes of the published CLIP ViT-L/14 text encoder. */
static const struct dimension clip_dimensions[] = {
    {"clip_vocabulary", 49408, 300, 1048576, .place = VOCABULARY,
     OF_EITHER(0, "embeddings.token_embedding", "token_embd", "token_embedding.weight"), .key = "vocab_size"},
    {"pooled", 768, 8, 65536, .place = CLIP_WIDTH,
     OF_EITHER(1, "embeddings.token_embedding", "token_embd", "token_embedding.weight"),
     .key = "hidden_size"},
    {"clip_heads", 12, 1, 1024, .place = CLIP_HEADS},
    {"clip_ff", 3072, 8, 262144, .place = CLIP_FEED_FORWARD,
     OF_EITHER(0, "encoder.layers.0.mlp.fc1", "blk.0.ffn_down", "transformer.resblocks.0.mlp.c_fc.weight"),
     .key = "intermediate_size"},
    {"clip_layers", 12, 1, 400, .place = CLIP_LAYERS,
     OF_BLOCKS("text_model.encoder.layers.", "encoder.layers.", "t.blk.", "transformer.resblocks."),
     .key = "num_hidden_layers"},
    {"clip_positions", 77, 2, 4096, .place = POSITIONS,
     OF_EITHER(0, "embeddings.position_embedding", "position_embd", "positional_embedding"),
     .key = "max_position_embeddings"},
    {"clip_projection", 768, 8, 65536, .place = PROJECTION, .key = "projection_dim"},
};

/* Settings of a CLIP text encoder from config.json or GGUF metadata. Without a head count, heads are 64 wide.
 */
static const struct setting clip_settings[] = {
    {{"num_attention_heads", "clip.text.attention.head_count"},
     offsetof(struct clip_settings, layer.heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"layer_norm_eps", "clip.text.attention.layer_norm_epsilon"},
     offsetof(struct clip_settings, layer.norm_eps),
     SETTING_FLOAT,
     1e-5,
     0,
     1},
    {{"hidden_act", "quick_gelu", "gelu"},
     offsetof(struct clip_settings, layer.gelu),
     SETTING_WORD,
     CLIP_GELU_QUICK,
     0,
     0},
};

static void clip_derive_dims(struct component *c) {
    ((struct clip_settings *)c->settings)->layer.heads = c->dims[CLIP_HEADS];
}

/* Number of layers of OpenCLIP-H. Stable Diffusion 2 reads layer 23, and diffusers' files lack layer 24. */
enum { LAYERS_H = 24 };

#define CONFIG_REST(class)                                                                                   \
    "\"architectures\": [\"" class "\"], \"bos_token_id\": 0, \"eos_token_id\": 2, \"pad_token_id\": 1"

static void clip_derive(struct component *c) {
    struct clip_settings *s = (struct clip_settings *)c->settings;
    const struct hidden_states *hidden = &c->reads.hidden;
    int n_states = hidden_states_count(hidden, c->dims[CLIP_LAYERS]);
    bool cut = n_states == 1 && hidden->final_norm == FINAL_NORM_OF_ALL && hidden->layers[0] < -1 &&
               !clip_is_named_by_openclip(c) && c->dims[CLIP_LAYERS] != LAYERS_H;
    int n_absent = cut ? -1 - hidden->layers[0] : 0;
    c->dims[CLIP_HEADS] = s->layer.heads;
    s->output = (struct encoder_output){.states = *hidden, .n_layers = c->dims[CLIP_LAYERS] + n_absent};
    s->layer.causal = true;
    s->projected = c->reads.pooled && c->reads.projected;
    if (c->reads.projected) c->config_rest = CONFIG_REST("CLIPTextModelWithProjection");
    c->skip_least = n_states == 1 ? n_absent + 1 : 0;
    c->skip_most = n_states == 1 ? s->output.n_layers : 0;
    c->text_columns = c->reads.tokens ? n_states * c->dims[CLIP_WIDTH] : 0;
    c->pooled_columns = c->reads.pooled ? c->dims[s->projected ? PROJECTION : CLIP_WIDTH] : 0;
}

static const struct state_tensor clip_state_tensors[] = {STATE_TENSOR(clip_state, tokens),
                                                         STATE_TENSOR(clip_state, pooled)};

const struct family family_clip = {
    .name = "clip",
    .kind = FAMILY_TEXT,
    .display_name = "CLIP text encoder",
    .files = {.architectures = clip_architectures,
              .config_key = "model_type",
              .config_value = "clip_text_model",
              .probe = clip_probe,
              .ignorable = clip_ignorable},
    .config = {.dimensions = clip_dimensions,
               .n_dimensions = COUNT_OF(clip_dimensions),
               .settings = clip_settings,
               .n_settings = COUNT_OF(clip_settings),
               .configure = clip_configure,
               .derive_dims = clip_derive_dims,
               .derive = clip_derive,
               .rest = CONFIG_REST("CLIPTextModel")},
    .reads = {.pooled = true},
    .blocks = {.list = clip_blocks, .skips = clip_skips_block},
    .state = {.bytes = sizeof(struct clip_state),
              .tensors = clip_state_tensors,
              .n_tensors = COUNT_OF(clip_state_tensors),
              .declare = clip_declare},
    .lanes = {.check = clip_check_lanes},
    .predicted = {{.kind = "layer", .alone = true, .tokens = 77, .text_rows = 77, .text_columns = 768}},
};
