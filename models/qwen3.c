/* Qwen3 as a text encoder: embeddings, then decoder layers up to the hidden state that is used.
 *
 * A layer: x += out(attention(rope(norm(q)), rope(norm(k)), v)); x += down(silu(gate(n)) * up(n)), with RMS
 * norms before each half, grouped key heads, causal attention, rope on halves. What is usually read,
 * hidden_states[-2], is the input of the last layer: then the last layer and the final norm are not.
 * Reference: transformers 5, models/qwen3/modeling_qwen3.py. */
#include "kernels/ops.h"
#include "models/models.h"

#include <math.h>

enum { VOCABULARY, HIDDEN, Q, KV, HEAD, HEADS, KEY_HEADS, FEED_FORWARD, LAYERS };

struct qwen3_settings {
    double rope_theta;
    float norm_eps;
    int last_layer; /* whose output is read, without the norm; -1: all, with it */
};

struct qwen3_state {
    struct tensor rope;   /* [T, HEAD/2, 2] */
    struct tensor tokens; /* [T, HIDDEN], where the lane's text is no packed tensor; else it is that */
};

struct embedding_weights {
    struct tensor rows; /* [T, HIDDEN], gathered */
};

struct layer_weights {
    struct tensor norm1, q, k, v, q_norm, k_norm, out, norm2, gate, up, down;
};

static const struct weight_spec qwen3_embedding_table[] = {
    {.offset = offsetof(struct embedding_weights, rows),
     .names = {"model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight"},
     .rank = 2,
     .dim = {VOCABULARY, HIDDEN},
     .spread = 1},
};

/* Released files have the prefix "model."; transformers 5 drops it when it saves; GGUF files have names of
 * their own (llama.cpp's gguf-py/gguf/constants.py). */
#define LAYER_WEIGHT(field, tail, gguf, r, ...)                                                              \
    {                                                                                                        \
        .offset = offsetof(struct layer_weights, field),                                                     \
        .names = {"model.layers.%d." tail, "layers.%d." tail, "blk.%d." gguf ".weight"}, .rank = r,          \
        .dim = {__VA_ARGS__}, .spread = (r) > 1                                                              \
    }

static const struct weight_spec qwen3_layer_table[] = {
    LAYER_WEIGHT(norm1, "input_layernorm.weight", "attn_norm", 1, HIDDEN),
    LAYER_WEIGHT(q, "self_attn.q_proj.weight", "attn_q", 2, Q, HIDDEN),
    LAYER_WEIGHT(k, "self_attn.k_proj.weight", "attn_k", 2, KV, HIDDEN),
    LAYER_WEIGHT(v, "self_attn.v_proj.weight", "attn_v", 2, KV, HIDDEN),
    LAYER_WEIGHT(q_norm, "self_attn.q_norm.weight", "attn_q_norm", 1, HEAD),
    LAYER_WEIGHT(k_norm, "self_attn.k_norm.weight", "attn_k_norm", 1, HEAD),
    LAYER_WEIGHT(out, "self_attn.o_proj.weight", "attn_output", 2, HIDDEN, Q),
    LAYER_WEIGHT(norm2, "post_attention_layernorm.weight", "ffn_norm", 1, HIDDEN),
    LAYER_WEIGHT(gate, "mlp.gate_proj.weight", "ffn_gate", 2, FEED_FORWARD, HIDDEN),
    LAYER_WEIGHT(up, "mlp.up_proj.weight", "ffn_up", 2, FEED_FORWARD, HIDDEN),
    LAYER_WEIGHT(down, "mlp.down_proj.weight", "ffn_down", 2, HIDDEN, FEED_FORWARD),
};

struct norm_weights {
    struct tensor norm;
};
static const struct weight_spec qwen3_norm_table[] = {
    {.offset = offsetof(struct norm_weights, norm),
     .names = {"model.norm.weight", "norm.weight", "output_norm.weight"},
     .rank = 1,
     .dim = {HIDDEN}},
};

static struct tensor qwen3_tokens(const struct lane *lane) {
    const struct qwen3_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
}

/* Tokens that lie elsewhere go to where they are read. */
static void qwen3_give(struct context *x, const struct lane *lane) {
    const struct qwen3_state *state = lane->state;
    if (state->tokens.rank) op_copy(x, lane->text, state->tokens);
}

static void qwen3_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct qwen3_settings *settings = scope->settings;
    const struct qwen3_state *state = scope->lane->state;
    op_copy(x, qwen3_tokens(scope->lane), w->rows);
    struct rope_options rope = {
        .theta = settings->rope_theta,
        .n_axes = 1,
        .axis_dim = {2 * state->rope.dim[1]},
        .n_grids = 1,
        .grid = {{.start = {0}, .extent = {state->rope.dim[0]}}},
    };
    op_rope_table(x, state->rope, &rope);
}

/* Queries or keys: heads normed and turned. */
static void qwen3_project_heads(struct context *x, struct tensor out, struct tensor n, struct tensor weight,
                                struct tensor norm, const struct visit_scope *scope) {
    const struct qwen3_settings *settings = scope->settings;
    const struct qwen3_state *state = scope->lane->state;
    struct rotation rotation = {
        .heads = out.dim[1] / norm.dim[0], .pairs = ROPE_HALVES, .norm = norm, .eps = settings->norm_eps};
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, weight, (struct epilogue){0});
    op_rope(x, out, heads, state->rope, rotation);
    x->scratch->used = mark;
}

static void qwen3_attend(struct context *x, const struct layer_weights *w, const struct visit_scope *scope,
                         struct tensor tokens, struct tensor n) {
    int32_t T = tokens.dim[0], head = w->q_norm.dim[0];
    struct tensor q = context_operand(x, 2, (int32_t[]){T, w->q.dim[0]});
    struct tensor k = context_operand(x, 2, (int32_t[]){T, w->k.dim[0]});
    struct tensor v = context_operand(x, 2, (int32_t[]){T, w->v.dim[0]});
    int heads = w->q.dim[0] / head, key_heads = w->k.dim[0] / head;
    qwen3_project_heads(x, q, n, w->q, w->q_norm, scope);
    qwen3_project_heads(x, k, n, w->k, w->k_norm, scope);
    op_linear(x, v, n, w->v, (struct epilogue){0});
    op_attention(
        x, q, q, k, v,
        (struct heads){.queries = heads, .keys = key_heads, .scale = 1 / sqrtf((float)head), .causal = true});
    op_linear(x, tokens, q, w->out, (struct epilogue){.residual = tokens});
}

static void qwen3_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    const struct qwen3_settings *settings = scope->settings;
    struct tensor tokens = qwen3_tokens(scope->lane);
    struct modulation plain = {0};
    struct epilogue none = {0};
    int32_t T = tokens.dim[0];
    struct tensor n = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, plain);
    uint64_t mark = x->scratch->used;
    qwen3_attend(x, w, scope, tokens, n);
    x->scratch->used = mark;
    op_rms_norm(x, n, tokens, w->norm2, settings->norm_eps, plain);
    struct tensor gated = context_operand(x, 2, (int32_t[]){T, w->gate.dim[0]});
    struct tensor gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, w->up.dim[0]});
    op_linear(x, gate, n, w->gate, none);
    op_linear(x, up, n, w->up, none);
    op_glu(x, gated, gate, up, ACTIVATION_SILU);
    op_linear(x, tokens, gated, w->down, (struct epilogue){.residual = tokens});
    if (scope->number == settings->last_layer) qwen3_give(x, scope->lane);
}

static void qwen3_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct qwen3_settings *settings = scope->settings;
    struct tensor tokens = qwen3_tokens(scope->lane);
    op_rms_norm(x, tokens, tokens, w->norm, settings->norm_eps, (struct modulation){0});
    qwen3_give(x, scope->lane);
}

static const struct block_kind qwen3_kind_embedding = {
    .name = "embedding",
    .format = "embed_tokens",
    .weights = qwen3_embedding_table,
    .n_weights = COUNT_OF(qwen3_embedding_table),
    .weights_bytes = sizeof(struct embedding_weights),
    .gathers_rows = true,
    .forward = qwen3_forward_embedding,
};

static const struct block_kind qwen3_kind_layer = {
    .name = "layer",
    .format = "layers.%d",
    .weights = qwen3_layer_table,
    .n_weights = COUNT_OF(qwen3_layer_table),
    .weights_bytes = sizeof(struct layer_weights),
    .forward = qwen3_forward_layer,
};
static const struct block_kind qwen3_kind_norm =
    BLOCK_KIND("norm", "norm", qwen3_norm_table, norm_weights, qwen3_forward_norm, .keeps_types = true);

static bool qwen3_probe(const struct tensor_index *index) {
    return (index_find(index, "model.layers.0.self_attn.q_norm.weight") &&
            index_find(index, "model.embed_tokens.weight")) ||
           (index_find(index, "layers.0.self_attn.q_norm.weight") &&
            index_find(index, "embed_tokens.weight")) ||
           (index_find(index, "blk.0.attn_q_norm.weight") && index_find(index, "token_embd.weight"));
}

static enum status qwen3_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (d[Q] % d[HEAD] == 0 && d[KV] % d[HEAD] == 0 && d[Q] % d[KV] == 0 && d[HEAD] % 2 == 0 &&
        d[HEAD] <= 512 && d[LAYERS] > c->reads.layers_left_out && d[LAYERS] <= FAMILY_BLOCKS_MAX - 1)
        return OK;
    error_set(e, SHAPE, "the text encoder's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "queries %d, keys %d, head %d, layers %d", d[Q], d[KV], d[HEAD], d[LAYERS]);
    return error_expected(e, "queries a multiple of keys, keys of an even head, at least %d layers",
                          c->reads.layers_left_out + 1);
}

static enum status qwen3_configure(struct component *c, const struct config *config, struct error *e) {
    return qwen3_check_dims(c, e) == OK ? component_check_blocks(c, config, c->dims[LAYERS], e) : e->code;
}

static int qwen3_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &qwen3_kind_embedding};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &qwen3_kind_layer,
                                       .number = i,
                                       .unused = i >= c->dims[LAYERS] - c->reads.layers_left_out};
    refs[n++] = (struct block_ref){.kind = &qwen3_kind_norm, .unused = c->reads.layers_left_out};
    return n;
}

static void qwen3_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct qwen3_state *state = lanes[i].state;
        if (!tensor_packed(&lanes[i].text))
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, lanes[i].text.dim, ok);
        state->rope =
            arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){lanes[i].text.dim[0], c->dims[HEAD] / 2, 2}, ok);
    }
}

static const char *const qwen3_ignorable[] = {"lm_head.", "output.weight", NULL};
static const char *const qwen3_architectures[] = {"qwen3", NULL};

#define OF_TABLE(axis)                                                                                       \
    OF_TENSOR(2, axis, "model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")
#define OF_LAYER(rank, tail, gguf)                                                                           \
    OF_TENSOR(rank, 0, "model.layers.0." tail ".weight", "layers.0." tail ".weight", "blk.0." gguf ".weight")

/* Qwen3-4B. */
static const struct dimension qwen3_dimensions[] = {
    {"vocabulary", 151936, 300, 1048576, .place = VOCABULARY, OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 2560, 8, 65536, .place = HIDDEN, OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = HEADS, .key = "num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = HEAD, OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "head_dim"},
    {"text_ff", 9728, 8, 262144, .place = FEED_FORWARD, OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 36, 2, 400, .place = LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = Q, OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = KV, OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* In config.json, as transformers 5 writes it, and in GGUF files. */
static const struct setting qwen3_settings[] = {
    {{"rope_theta", "rope_parameters.rope_theta", "qwen3.rope.freq_base"},
     offsetof(struct qwen3_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "qwen3.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen3_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
};

static const struct expectation qwen3_expects[] = {
    {"hidden_act", "silu"},
    {"rope_parameters.rope_type", "default"},
    {"rope_scaling", NULL},
    {"use_sliding_window", NULL},
    {"attention_bias", NULL},
    {"qwen3.rope.scaling.type", "none"},
    {0},
};

static void qwen3_follow(struct component *c) {
    int32_t *d = c->dims;
    d[Q] = d[HEADS] * d[HEAD];
    d[KV] = d[KEY_HEADS] * d[HEAD];
}

static void qwen3_derive(struct component *c) {
    int32_t *d = c->dims;
    d[HEADS] = d[Q] / d[HEAD];
    d[KEY_HEADS] = d[KV] / d[HEAD];
    ((struct qwen3_settings *)c->settings)->last_layer =
        c->reads.layers_left_out ? d[LAYERS] - 1 - c->reads.layers_left_out : -1;
    c->text_columns = d[HIDDEN];
}

static const struct state_tensor qwen3_state_tensors[] = {STATE_TENSOR(qwen3_state, rope)};

const struct family family_qwen3 = {
    .name = "qwen3",
    .kind = FAMILY_TEXT,
    .word = "text encoder",
    .architectures = qwen3_architectures,
    .config_key = "model_type",
    .config_value = "qwen3",
    .probe = qwen3_probe,
    .dimensions = qwen3_dimensions,
    .n_dimensions = COUNT_OF(qwen3_dimensions),
    .settings = qwen3_settings,
    .n_settings = COUNT_OF(qwen3_settings),
    .expects = qwen3_expects,
    .configure = qwen3_configure,
    .follow = qwen3_follow,
    .derive = qwen3_derive,
    .reads = {.layers_left_out = 1, .tokens = true}, /* hidden_states[-2] */
    .config_rest = "\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, "
                   "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
                   "\"max_position_embeddings\": 40960",
    .blocks = qwen3_blocks,
    .ignorable = qwen3_ignorable,
    .lane_state_bytes = sizeof(struct qwen3_state),
    .state = qwen3_state_tensors,
    .n_state = COUNT_OF(qwen3_state_tensors),
    .declare = qwen3_declare,
};
