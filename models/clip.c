/* CLIP's text model: of a whole prompt one row, the pooled one, or a row for each token, or both.
 *
 * Embeddings plus positions, then layers: x += out(causal attention(n)); x += fc2(quick_gelu(fc1(n))), with
 * layer norms before each half and biases everywhere; a norm, of which the row of the token that ends the
 * text is the pooled one. Tokens may be those of an earlier layer, without the norm. Reference: transformers
 * 5, models/clip/modeling_clip.py. */
#include "kernels/ops.h"
#include "models/models.h"

#include <math.h>
#include <stdio.h>

enum { VOCABULARY, WIDTH, POSITIONS, HEADS, FEED_FORWARD, LAYERS };

enum { HEAD = 64 }; /* of all published ones */

struct clip_settings {
    float norm_eps;
    int heads;
    int last_layer; /* whose output is given as tokens, without the norm; -1: all, with it */
};

struct clip_state {
    struct tensor tokens; /* [T, WIDTH] */
};

struct embedding_weights {
    struct tensor rows; /* [T, WIDTH], gathered */
};

struct position_weights {
    struct tensor table;
};

struct linear_weights {
    struct tensor weight, bias;
};

struct layer_weights {
    struct linear_weights norm1, q, k, v, out, norm2, up, down;
};

struct norm_weights {
    struct linear_weights norm;
};

/* transformers 5 drops the prefix when it saves a text model alone. GGUF files have these names, or those
 * that clip.cpp's models/convert_hf_to_gguf.py makes: its ffn_down is what comes first. */
#define NAMED(structure, field, spread_, name, gguf, rank_, ...)                                             \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {"text_model." name, name, "t." gguf},         \
        .rank = rank_, .dim = {__VA_ARGS__}, .spread = spread_                                               \
    }
#define LINEAR(field, name, gguf, rows, columns)                                                             \
    NAMED(layer_weights, field.weight, 1, "encoder.layers.%d." name ".weight", "blk.%d." gguf ".weight", 2,  \
          rows, columns),                                                                                    \
        NAMED(layer_weights, field.bias, 1, "encoder.layers.%d." name ".bias", "blk.%d." gguf ".bias", 1,    \
              rows)
#define NORM(structure, field, name, gguf)                                                                   \
    NAMED(structure, field.weight, 0, name ".weight", gguf ".weight", 1, WIDTH),                             \
        NAMED(structure, field.bias, 1, name ".bias", gguf ".bias", 1, WIDTH)

static const struct weight_spec clip_embedding_table[] = {
    NAMED(embedding_weights, rows, 1, "embeddings.token_embedding.weight", "token_embd.weight", 2, VOCABULARY,
          WIDTH),
};

static const struct weight_spec clip_position_table[] = {
    NAMED(position_weights, table, 1, "embeddings.position_embedding.weight", "position_embd.weight", 2,
          POSITIONS, WIDTH),
};

static const struct weight_spec clip_layer_table[] = {
    NORM(layer_weights, norm1, "encoder.layers.%d.layer_norm1", "blk.%d.ln1"),
    LINEAR(q, "self_attn.q_proj", "attn_q", WIDTH, WIDTH),
    LINEAR(k, "self_attn.k_proj", "attn_k", WIDTH, WIDTH),
    LINEAR(v, "self_attn.v_proj", "attn_v", WIDTH, WIDTH),
    LINEAR(out, "self_attn.out_proj", "attn_out", WIDTH, WIDTH),
    NORM(layer_weights, norm2, "encoder.layers.%d.layer_norm2", "blk.%d.ln2"),
    LINEAR(up, "mlp.fc1", "ffn_down", FEED_FORWARD, WIDTH),
    LINEAR(down, "mlp.fc2", "ffn_up", WIDTH, FEED_FORWARD),
};

static const struct weight_spec clip_norm_table[] = {NORM(norm_weights, norm, "final_layer_norm", "post_ln")};

static void clip_product(struct context *x, struct tensor out, struct tensor in,
                         const struct linear_weights *w) {
    op_linear(x, out, in, w->weight, (struct epilogue){.bias = w->bias});
}

static void clip_norm(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w,
                      const struct visit_scope *scope) {
    const struct clip_settings *settings = scope->settings;
    op_layer_norm(x, out, in, (struct affine){.weight = w->weight, .bias = w->bias}, settings->norm_eps);
}

static void clip_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    op_copy(x, state->tokens, w->rows);
}

static void clip_forward_position(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct position_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    op_add(x, state->tokens, state->tokens, tensor_slice(w->table, 0, state->tokens.dim[0]));
}

static void clip_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    const struct clip_settings *settings = scope->settings;
    const struct clip_state *state = scope->lane->state;
    struct tensor tokens = state->tokens;
    int heads = settings->heads;
    float scale = 1 / sqrtf((float)(tokens.dim[1] / heads));
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    struct tensor k = context_operand(x, 2, tokens.dim), v = context_operand(x, 2, tokens.dim);
    struct tensor up = context_operand(x, 2, (int32_t[]){tokens.dim[0], w->up.weight.dim[0]});
    clip_norm(x, n, tokens, &w->norm1, scope);
    clip_product(x, q, n, &w->q);
    clip_product(x, k, n, &w->k);
    clip_product(x, v, n, &w->v);
    op_attention(x, q, q, k, v,
                 (struct heads){.queries = heads, .keys = heads, .scale = scale, .causal = true});
    op_linear(x, tokens, q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = tokens});
    clip_norm(x, n, tokens, &w->norm2, scope);
    op_linear(x, up, n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_QUICK});
    op_linear(x, tokens, up, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = tokens});
    if (scope->number == settings->last_layer && scope->lane->text.rank)
        op_copy(x, scope->lane->text, tokens);
}

static void clip_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct clip_state *state = scope->lane->state;
    const struct clip_settings *settings = scope->settings;
    const struct lane *lane = scope->lane;
    if (lane->pooled.rank)
        clip_norm(x, lane->pooled, tensor_slice(state->tokens, lane->pooled_row, 1), &w->norm, scope);
    if (!lane->text.rank || settings->last_layer >= 0) return;
    struct tensor n = context_tensor(x, DTYPE_F32, 2, state->tokens.dim);
    clip_norm(x, n, state->tokens, &w->norm, scope);
    op_copy(x, lane->text, n); /* whose rows may be parts of longer ones */
}

static const struct block_kind clip_kind_embedding =
    BLOCK_KIND("embedding", "token_embedding", clip_embedding_table, embedding_weights,
               clip_forward_embedding, .gathers_rows = true);
static const struct block_kind clip_kind_position =
    BLOCK_KIND("position", "position_embedding", clip_position_table, position_weights, clip_forward_position,
               .keeps_types = true);
static const struct block_kind clip_kind_layer =
    BLOCK_KIND("layer", "layers.%d", clip_layer_table, layer_weights, clip_forward_layer);
static const struct block_kind clip_kind_norm = BLOCK_KIND(
    "norm", "final_layer_norm", clip_norm_table, norm_weights, clip_forward_norm, .keeps_types = true);

static bool clip_has(const struct tensor_index *index, const char *name, const char *gguf) {
    char prefixed[2 * BLOCK_NAME_MAX];
    snprintf(prefixed, sizeof prefixed, "text_model.%s", name);
    return index_find(index, prefixed) || index_find(index, name) || index_find(index, gguf);
}

static bool clip_probe(const struct tensor_index *index) {
    return clip_has(index, "embeddings.token_embedding.weight", "t.token_embd.weight") &&
           clip_has(index, "encoder.layers.0.self_attn.out_proj.weight", "t.blk.0.attn_out.weight");
}

static enum status clip_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    const struct clip_settings *s = (const struct clip_settings *)c->settings;
    if (s->heads >= 1 && d[WIDTH] % s->heads == 0 && d[WIDTH] / s->heads <= 512 &&
        d[LAYERS] > c->reads.layers_left_out && d[LAYERS] <= FAMILY_BLOCKS_MAX - 3)
        return OK;
    error_set(e, SHAPE, "the CLIP text encoder's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "width %d, %d heads, %d layers", d[WIDTH], s->heads, d[LAYERS]);
    return error_expected(
        e, "a width of whole heads (num_attention_heads in config.json; without it heads of 64)");
}

static enum status clip_configure(struct component *c, const struct config *config, struct error *e) {
    struct clip_settings *settings = (struct clip_settings *)c->settings;
    (void)config;
    if (!settings->heads) settings->heads = c->dims[WIDTH] / HEAD;
    return clip_check_dims(c, e);
}

static int clip_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &clip_kind_embedding};
    refs[n++] = (struct block_ref){.kind = &clip_kind_position};
    int left_out = c->reads.pooled ? 0 : c->reads.layers_left_out;
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){
            .kind = &clip_kind_layer, .number = i, .unused = i >= c->dims[LAYERS] - left_out};
    refs[n++] = (struct block_ref){.kind = &clip_kind_norm, .unused = left_out};
    return n;
}

static void clip_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct clip_state *state = lanes[i].state;
        int32_t shape[] = {lanes[i].n_tokens, c->dims[WIDTH]};
        state->tokens = arena_tensor(arena, DTYPE_F32, 2, shape, ok);
    }
}

static enum status clip_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                    struct error *e) {
    for (int i = 0; i < n_lanes; i++) {
        if (lanes[i].n_tokens <= c->dims[POSITIONS]) continue;
        error_set(e, SHAPE, "the CLIP text encoder has fewer positions than a prompt has tokens");
        error_where(e, "%s", c->index.sources[0].path);
        error_found(e, "%d", c->dims[POSITIONS]);
        return error_expected(e, "%d", lanes[i].n_tokens);
    }
    return OK;
}

/* Projections to the space that text shares with pictures, the model of pictures; position_ids is 0, 1, 2,
 * ..., which older versions of transformers stored. */
static const char *const clip_ignorable[] = {"text_model.embeddings.position_ids",
                                             "embeddings.position_ids",
                                             "text_projection",
                                             "logit_scale",
                                             "vision_model.",
                                             "visual_projection.",
                                             "v.",
                                             "text_encoders.clip_l.logit_scale",
                                             "text_encoders.clip_l.text_projection",
                                             NULL};
static const char *const clip_architectures[] = {"clip", NULL};

#define OF_EITHER(axis, name, gguf)                                                                          \
    OF_TENSOR(2, axis, "text_model." name ".weight", name ".weight", "t." gguf ".weight")

/* CLIP ViT-L/14. */
static const struct dimension clip_dimensions[] = {
    {"clip_vocabulary", 49408, 300, 1048576, .place = VOCABULARY,
     OF_EITHER(0, "embeddings.token_embedding", "token_embd"), .key = "vocab_size"},
    {"pooled", 768, 8, 65536, .place = WIDTH, OF_EITHER(1, "embeddings.token_embedding", "token_embd"),
     .key = "hidden_size"},
    {"clip_heads", 12, 1, 1024, .place = HEADS},
    {"clip_ff", 3072, 8, 262144, .place = FEED_FORWARD,
     OF_EITHER(0, "encoder.layers.0.mlp.fc1", "blk.0.ffn_down"), .key = "intermediate_size"},
    {"clip_layers", 12, 1, 400, .place = LAYERS,
     OF_BLOCKS("text_model.encoder.layers.", "encoder.layers.", "t.blk."), .key = "num_hidden_layers"},
    {"clip_positions", 77, 2, 4096, .place = POSITIONS,
     OF_EITHER(0, "embeddings.position_embedding", "position_embd"), .key = "max_position_embeddings"},
    {.place = WIDTH, .key = "projection_dim"},
};

/* In config.json and in GGUF files. Heads are 64 wide where nothing says their number. */
static const struct setting clip_settings[] = {
    {{"num_attention_heads", "clip.text.attention.head_count"},
     offsetof(struct clip_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"layer_norm_eps", "clip.text.attention.layer_norm_epsilon"},
     offsetof(struct clip_settings, norm_eps),
     SETTING_FLOAT,
     1e-5,
     0,
     1},
};

static const struct expectation clip_expects[] = {{"hidden_act", "quick_gelu"}, {"clip.use_gelu", NULL}, {0}};

static void clip_follow(struct component *c) {
    ((struct clip_settings *)c->settings)->heads = c->dims[HEADS];
}

static void clip_derive(struct component *c) {
    struct clip_settings *s = (struct clip_settings *)c->settings;
    c->dims[HEADS] = s->heads;
    s->last_layer = c->reads.layers_left_out ? c->dims[LAYERS] - 1 - c->reads.layers_left_out : -1;
    c->text_columns = c->reads.tokens ? c->dims[WIDTH] : 0;
    c->pooled_columns = c->reads.pooled ? c->dims[WIDTH] : 0;
}

static const struct state_tensor clip_state_tensors[] = {STATE_TENSOR(clip_state, tokens)};

const struct family family_clip = {
    .name = "clip",
    .kind = FAMILY_TEXT,
    .word = "CLIP text encoder",
    .architectures = clip_architectures,
    .config_key = "model_type",
    .config_value = "clip_text_model",
    .probe = clip_probe,
    .dimensions = clip_dimensions,
    .n_dimensions = COUNT_OF(clip_dimensions),
    .settings = clip_settings,
    .n_settings = COUNT_OF(clip_settings),
    .expects = clip_expects,
    .configure = clip_configure,
    .follow = clip_follow,
    .derive = clip_derive,
    .reads = {.pooled = true},
    .config_rest = "\"architectures\": [\"CLIPTextModel\"], \"hidden_act\": \"quick_gelu\", "
                   "\"bos_token_id\": 0, \"eos_token_id\": 2, \"pad_token_id\": 1",
    .blocks = clip_blocks,
    .ignorable = clip_ignorable,
    .lane_state_bytes = sizeof(struct clip_state),
    .state = clip_state_tensors,
    .n_state = COUNT_OF(clip_state_tensors),
    .declare = clip_declare,
    .check_lanes = clip_check_lanes,
};
