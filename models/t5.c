/* T5's encoder as a text encoder: embeddings, encoder layers, a norm.
 *
 * A layer: x += o(attention(q(n), k(n), v(n))); x += wo(gelu(wi_0(n)) * wi_1(n)), with RMS norms before each
 * half and no bias anywhere. Scores are not scaled; what stands for positions is a bias of the distance
 * between query and key, which the first layer's table gives to all layers. Padding is attended to, as the
 * pipelines of diffusers do. Reference: transformers 5, models/t5/modeling_t5.py. */
#include "kernels/ops.h"
#include "models/models.h"
#include "models/row_chunk.h"

enum { VOCABULARY, HIDDEN, Q, HEADS, HEAD, BUCKETS, FEED_FORWARD, LAYERS };

enum { BUCKETS_MAX = 128 }; /* that op_relative_bias takes */

struct t5_settings {
    float norm_eps;
    int max_distance;
    int last_layer; /* whose output is read, without the norm; -1: all, with it */
};

struct t5_state {
    struct tensor bias;   /* [HEADS, 2T-1]: of distances from 1-T to T-1 */
    struct tensor tokens; /* [T, HIDDEN], where the lane's text is no packed tensor; else it is that */
};

struct embedding_weights {
    struct tensor rows; /* [T, HIDDEN], gathered */
};

struct bias_weights {
    struct tensor table;
};

struct layer_weights {
    struct tensor norm1, q, k, v, out, norm2, gate, up, down;
};

struct norm_weights {
    struct tensor norm;
};

static const struct weight_spec t5_embedding_table[] = {
    {.offset = offsetof(struct embedding_weights, rows),
     .names = {"shared.weight", "encoder.embed_tokens.weight", "token_embd.weight"},
     .rank = 2,
     .dim = {VOCABULARY, HIDDEN},
     .spread = 1},
};

/* A weight and the name that it has in GGUF files (llama.cpp's gguf-py/gguf/constants.py). */
#define NAMED(structure, field, spread_, name, gguf, rank_, ...)                                             \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name ".weight", "enc." gguf ".weight"},       \
        .rank = rank_, .dim = {__VA_ARGS__}, .spread = spread_                                               \
    }

#define BIAS_OF(layer)      "encoder.block." layer ".layer.0.SelfAttention.relative_attention_bias"
#define GGUF_BIAS_OF(layer) "blk." layer ".attn_rel_b"

static const struct weight_spec t5_bias_table[] = {
    NAMED(bias_weights, table, 1, BIAS_OF("0"), GGUF_BIAS_OF("0"), 2, BUCKETS, HEADS),
};

#define ATTENTION_WEIGHT(field, tail, ...)                                                                   \
    NAMED(layer_weights, field, 1, "encoder.block.%d.layer.0.SelfAttention." tail, "blk.%d.attn_" tail, 2,   \
          __VA_ARGS__)
#define DENSE_WEIGHT(field, tail, gguf, ...)                                                                 \
    NAMED(layer_weights, field, 1, "encoder.block.%d.layer.1.DenseReluDense." tail, "blk.%d.ffn_" gguf, 2,   \
          __VA_ARGS__)

static const struct weight_spec t5_layer_table[] = {
    NAMED(layer_weights, norm1, 0, "encoder.block.%d.layer.0.layer_norm", "blk.%d.attn_norm", 1, HIDDEN),
    ATTENTION_WEIGHT(q, "q", Q, HIDDEN),
    ATTENTION_WEIGHT(k, "k", Q, HIDDEN),
    ATTENTION_WEIGHT(v, "v", Q, HIDDEN),
    ATTENTION_WEIGHT(out, "o", HIDDEN, Q),
    NAMED(layer_weights, norm2, 0, "encoder.block.%d.layer.1.layer_norm", "blk.%d.ffn_norm", 1, HIDDEN),
    DENSE_WEIGHT(gate, "wi_0", "gate", FEED_FORWARD, HIDDEN),
    DENSE_WEIGHT(up, "wi_1", "up", FEED_FORWARD, HIDDEN),
    DENSE_WEIGHT(down, "wo", "down", HIDDEN, FEED_FORWARD),
};

static const struct weight_spec t5_norm_table[] = {
    NAMED(norm_weights, norm, 0, "encoder.final_layer_norm", "output_norm", 1, HIDDEN),
};

static struct tensor t5_tokens(const struct lane *lane) {
    const struct t5_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
}

/* Tokens that lie elsewhere go to where they are read. */
static void t5_give(struct context *x, const struct lane *lane) {
    const struct t5_state *state = lane->state;
    if (state->tokens.rank) op_copy(x, lane->text, state->tokens);
}

static void t5_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    op_copy(x, t5_tokens(scope->lane), w->rows);
}

static void t5_forward_bias(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct bias_weights *w = weights;
    const struct t5_settings *settings = scope->settings;
    const struct t5_state *state = scope->lane->state;
    op_relative_bias(x, state->bias, w->table,
                     (struct distance_buckets){.max_distance = settings->max_distance});
}

static void t5_attend(struct context *x, const struct layer_weights *w, const struct visit_scope *scope) {
    const struct t5_settings *settings = scope->settings;
    const struct t5_state *state = scope->lane->state;
    struct tensor tokens = t5_tokens(scope->lane);
    struct epilogue none = {0};
    int32_t wide[] = {tokens.dim[0], w->q.dim[0]};
    int heads = state->bias.dim[0];
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, wide);
    struct tensor k = context_operand(x, 2, wide), v = context_operand(x, 2, wide);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, (struct modulation){0});
    op_linear(x, q, n, w->q, none);
    op_linear(x, k, n, w->k, none);
    op_linear(x, v, n, w->v, none);
    op_attention(x, q, q, k, v,
                 (struct heads){.queries = heads, .keys = heads, .scale = 1, .relative_bias = state->bias});
    op_linear(x, tokens, q, w->out, (struct epilogue){.residual = tokens});
}

static void t5_feed_forward(struct context *x, const struct layer_weights *w,
                            const struct visit_scope *scope) {
    const struct t5_settings *settings = scope->settings;
    struct tensor tokens = t5_tokens(scope->lane);
    struct epilogue none = {0};
    int32_t T = tokens.dim[0], chunk = row_chunk(x, T), wide[] = {chunk, w->gate.dim[0]};
    struct tensor n = context_operand(x, 2, (int32_t[]){chunk, tokens.dim[1]});
    struct tensor gated = context_operand(x, 2, wide), gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, wide);
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), h = tensor_slice(n, 0, rows);
        struct tensor gate_rows = tensor_slice(gate, 0, rows), up_rows = tensor_slice(up, 0, rows);
        struct tensor gated_rows = tensor_slice(gated, 0, rows);
        op_rms_norm(x, h, t, w->norm2, settings->norm_eps, (struct modulation){0});
        op_linear(x, gate_rows, h, w->gate, none);
        op_linear(x, up_rows, h, w->up, none);
        op_glu(x, gated_rows, gate_rows, up_rows, ACTIVATION_GELU_TANH);
        op_linear(x, t, gated_rows, w->down, (struct epilogue){.residual = t});
    }
}

static void t5_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    uint64_t mark = x->scratch->used;
    t5_attend(x, weights, scope);
    x->scratch->used = mark;
    t5_feed_forward(x, weights, scope);
    if (scope->number == ((const struct t5_settings *)scope->settings)->last_layer) t5_give(x, scope->lane);
}

static void t5_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct t5_settings *settings = scope->settings;
    struct tensor tokens = t5_tokens(scope->lane);
    op_rms_norm(x, tokens, tokens, w->norm, settings->norm_eps, (struct modulation){0});
    t5_give(x, scope->lane);
}

static const struct block_kind t5_kind_embedding = BLOCK_KIND(
    "embedding", "shared", t5_embedding_table, embedding_weights, t5_forward_embedding, .gathers_rows = true);
static const struct block_kind t5_kind_bias =
    BLOCK_KIND("position_bias", "relative_attention_bias", t5_bias_table, bias_weights, t5_forward_bias,
               .keeps_types = true);
static const struct block_kind t5_kind_layer =
    BLOCK_KIND("layer", "block.%d", t5_layer_table, layer_weights, t5_forward_layer);
static const struct block_kind t5_kind_norm =
    BLOCK_KIND("norm", "final_layer_norm", t5_norm_table, norm_weights, t5_forward_norm, .keeps_types = true);

static bool t5_probe(const struct tensor_index *index) {
    return (index_find(index, BIAS_OF("0") ".weight") &&
            index_find(index, "encoder.final_layer_norm.weight")) ||
           (index_find(index, "enc." GGUF_BIAS_OF("0") ".weight") &&
            index_find(index, "enc.output_norm.weight"));
}

static enum status t5_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (d[Q] % d[HEADS] == 0 && d[Q] / d[HEADS] <= 512 && d[BUCKETS] % 4 == 0 && d[BUCKETS] <= BUCKETS_MAX &&
        d[LAYERS] > c->reads.layers_left_out && d[LAYERS] <= FAMILY_BLOCKS_MAX - 3)
        return OK;
    error_set(e, SHAPE, "the T5 text encoder's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "queries %d, heads %d, buckets of distances %d, layers %d", d[Q], d[HEADS], d[BUCKETS],
                d[LAYERS]);
    return error_expected(e, "queries of whole heads of at most 512, and %d buckets at most, a multiple of 4",
                          BUCKETS_MAX);
}

/* Relatives that share the names but not the computation: T5 1.0, whose feed-forward has no gate, and UMT5,
 * in which every layer has a bias of its own. */
static enum status t5_check_relatives(const struct component *c, struct error *e) {
    bool ungated = index_find(&c->index, "encoder.block.0.layer.1.DenseReluDense.wi.weight") ||
                   (index_find(&c->index, "enc.blk.0.ffn_up.weight") &&
                    !index_find(&c->index, "enc.blk.0.ffn_gate.weight"));
    bool biases = index_find(&c->index, BIAS_OF("1") ".weight") ||
                  index_find(&c->index, "enc." GGUF_BIAS_OF("1") ".weight");
    if (!ungated && !biases) return OK;
    error_set(e, UNSUPPORTED, "a text encoder that is no T5 1.1");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, ungated ? "a feed-forward without a gate, as T5 1.0 has"
                           : "a distance bias in the second layer, as UMT5 has");
    return error_expected(e, "T5 1.1 (t5xxl)");
}

static enum status t5_configure(struct component *c, const struct config *config, struct error *e) {
    struct t5_settings *s = (struct t5_settings *)c->settings;
    if (t5_check_dims(c, e) != OK || component_check_blocks(c, config, c->dims[LAYERS], e) != OK)
        return e->code;
    s->max_distance = 128;
    return config_int(config, "relative_attention_max_distance", c->dims[BUCKETS] / 4 + 1, 1 << 20,
                      &s->max_distance, e);
}

static int t5_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &t5_kind_embedding};
    refs[n++] = (struct block_ref){.kind = &t5_kind_bias};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){
            .kind = &t5_kind_layer, .number = i, .unused = i >= c->dims[LAYERS] - c->reads.layers_left_out};
    refs[n++] = (struct block_ref){.kind = &t5_kind_norm, .unused = c->reads.layers_left_out};
    return n;
}

static void t5_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                       struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct t5_state *state = lanes[i].state;
        if (!tensor_packed(&lanes[i].text))
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, lanes[i].text.dim, ok);
        int32_t distances = 2 * lanes[i].text.dim[0] - 1;
        state->bias = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){c->dims[HEADS], distances}, ok);
    }
}

/* The decoder; the embedding table under its second name; a tokenizer stored as a tensor. */
static const char *const t5_ignorable[] = {
    "decoder.", "lm_head.", "encoder.embed_tokens.", "spiece_model", "dec.", "output.weight", NULL};
static const char *const t5_architectures[] = {"t5encoder", "t5", NULL};

#define OF_TABLE(axis) OF_TENSOR(2, axis, "shared.weight", "encoder.embed_tokens.weight", "token_embd.weight")
#define OF_BIAS(axis)  OF_TENSOR(2, axis, BIAS_OF("0") ".weight", "enc." GGUF_BIAS_OF("0") ".weight")

/* T5 1.1 XXL. */
static const struct dimension t5_dimensions[] = {
    {"t5_vocabulary", 32128, 300, 1048576, .place = VOCABULARY, OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 4096, 8, 65536, .place = HIDDEN, OF_TABLE(1), .key = "d_model"},
    {"t5_heads", 64, 1, 1024, .place = HEADS, OF_BIAS(1), .key = "num_heads"},
    {"t5_head_dim", 64, 1, 512, .place = HEAD, .key = "d_kv"},
    {"t5_ff", 10240, 8, 262144, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", "enc.blk.0.ffn_gate.weight"),
     .key = "d_ff"},
    {"t5_layers", 24, 1, 400, .place = LAYERS, OF_BLOCKS("encoder.block.", "enc.blk."), .key = "num_layers"},
    {"t5_buckets", 32, 4, BUCKETS_MAX, .place = BUCKETS, OF_BIAS(0), .key = "relative_attention_num_buckets"},
    {.place = Q,
     OF_TENSOR(2, 0, "encoder.block.0.layer.0.SelfAttention.q.weight", "enc.blk.0.attn_q.weight")},
    {.place = LAYERS, .key = "num_decoder_layers"},
};

/* In config.json and in GGUF files. */
static const struct setting t5_settings[] = {
    {{"layer_norm_epsilon", "t5.attention.layer_norm_rms_epsilon",
      "t5encoder.attention.layer_norm_rms_epsilon"},
     offsetof(struct t5_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
};

static const struct expectation t5_expects[] = {
    {"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "gelu_new"}, {0}};

static void t5_follow(struct component *c) {
    int32_t *d = c->dims;
    d[Q] = d[HEADS] * d[HEAD];
    d[BUCKETS] = d[BUCKETS] / 4 * 4;
}

static void t5_derive(struct component *c) {
    c->dims[HEAD] = c->dims[Q] / c->dims[HEADS];
    ((struct t5_settings *)c->settings)->last_layer =
        c->reads.layers_left_out ? c->dims[LAYERS] - 1 - c->reads.layers_left_out : -1;
    c->text_columns = c->dims[HIDDEN];
}

static const struct state_tensor t5_state_tensors[] = {STATE_TENSOR(t5_state, bias)};

const struct family family_t5 = {
    .name = "t5",
    .kind = FAMILY_TEXT,
    .word = "T5 text encoder",
    .architectures = t5_architectures,
    .config_key = "model_type",
    .config_value = "t5",
    .probe = t5_probe,
    .dimensions = t5_dimensions,
    .n_dimensions = COUNT_OF(t5_dimensions),
    .settings = t5_settings,
    .n_settings = COUNT_OF(t5_settings),
    .expects = t5_expects,
    .refuse = t5_check_relatives,
    .configure = t5_configure,
    .follow = t5_follow,
    .derive = t5_derive,
    .reads = {.tokens = true},
    .config_rest = "\"architectures\": [\"T5EncoderModel\"], \"relative_attention_max_distance\": 128, "
                   "\"feed_forward_proj\": \"gated-gelu\", \"is_gated_act\": true, "
                   "\"dense_act_fn\": \"gelu_new\", \"is_encoder_decoder\": true, "
                   "\"tie_word_embeddings\": false, \"pad_token_id\": 0, \"eos_token_id\": 1, "
                   "\"decoder_start_token_id\": 0",
    .blocks = t5_blocks,
    .ignorable = t5_ignorable,
    .lane_state_bytes = sizeof(struct t5_state),
    .state = t5_state_tensors,
    .n_state = COUNT_OF(t5_state_tensors),
    .declare = t5_declare,
};
