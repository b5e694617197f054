/* T5 and umT5 encoders as text encoders: embeddings, encoder layers, final norm; then the two families.
 *
 * A layer: x += o(attention(q(n), k(n), v(n))); x += wo(gelu(wi_0(n)) * wi_1(n)), with RMS norms before
 * attention and feed-forward, and no linear bias. Attention scores are not scaled. Positions enter as a
 * relative position bias, added to the scores by distance between query and key. T5 has one bias table, in
 * the first layer, umT5 one in every layer. Source: transformers 5, models/t5/modeling_t5.py,
 * models/umt5/modeling_umt5.py. */
#include "engine/run/family.h"
#include "models/models.h"
#include "models/row_chunk.h"

/* Indices into component.dims. */
enum {
    T5_VOCABULARY,
    T5_HIDDEN,
    T5_Q,
    T5_HEADS,
    T5_HEAD,
    T5_BUCKETS,
    T5_FEED_FORWARD,
    T5_LAYERS,
};

enum { T5_BUCKETS_MAX = 128 }; /* maximum number of position buckets, the limit of op_relative_bias */

struct t5_settings {
    float norm_eps;
    int max_distance;
    struct encoder_output output; /* hidden states that the encoder writes to lane.text */
};

struct t5_state {
    struct tensor bias;   /* position bias for distances 1-T to T-1, of the current layer: [HEADS, 2T-1] */
    struct tensor tokens; /* hidden states: [T, HIDDEN]; rank 0: lane.text (rows without gaps) holds them */
};

/* Tensor names of T5 encoders: transformers', llama.cpp's (gguf-py/gguf/constants.py), and the WAN authors'
 * for umT5. */
#define T5_BIAS_OF(layer)   "encoder.block." layer ".layer.0.SelfAttention.relative_attention_bias.weight"
#define T5_GGUF_BIAS(layer) "enc.blk." layer ".attn_rel_b.weight"
#define T5_WAN_BIAS(layer)  "blocks." layer ".pos_embedding.embedding.weight"

#define T5_OF_TABLE(axis)                                                                                    \
    OF_TENSOR(2, axis, "shared.weight", "encoder.embed_tokens.weight", "token_embd.weight",                  \
              "token_embedding.weight")
#define T5_OF_BIAS(axis) OF_TENSOR(2, axis, T5_BIAS_OF("0"), T5_GGUF_BIAS("0"), T5_WAN_BIAS("0"))

/* Dimension table rows of T5 families. Published values: T5 1.1 XXL, except the vocabulary. */
#define T5_DIMENSIONS(vocabulary, least_layers)                                                              \
    {                                                                                                        \
        "t5_vocabulary", vocabulary,         300, 1048576, .place = T5_VOCABULARY,                           \
        T5_OF_TABLE(0),  .key = "vocab_size"},                                                               \
        {"hidden", 4096, 8, 65536, .place = T5_HIDDEN, T5_OF_TABLE(1), .key = "d_model"},                    \
        {"t5_heads", 64, 1, 1024, .place = T5_HEADS, T5_OF_BIAS(1), .key = "num_heads"},                     \
        {"t5_head_dim", 64, 1, 512, .place = T5_HEAD, .key = "d_kv"},                                        \
        {"t5_ff",                                                                                            \
         10240,                                                                                              \
         8,                                                                                                  \
         262144,                                                                                             \
         .place = T5_FEED_FORWARD,                                                                           \
         OF_TENSOR(2, 0, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", "enc.blk.0.ffn_gate.weight",  \
                   "blocks.0.ffn.gate.0.weight"),                                                            \
         .key = "d_ff"},                                                                                     \
        {"t5_layers",        24,                                                                             \
         least_layers,       400,                                                                            \
         .place = T5_LAYERS, OF_BLOCKS("encoder.block.", "enc.blk.", "blocks."),                             \
         .key = "num_layers"},                                                                               \
        {"t5_buckets",                                                                                       \
         32,                                                                                                 \
         4,                                                                                                  \
         T5_BUCKETS_MAX,                                                                                     \
         .place = T5_BUCKETS,                                                                                \
         T5_OF_BIAS(0),                                                                                      \
         .key = "relative_attention_num_buckets"},                                                           \
        {.place = T5_Q,                                                                                      \
         OF_TENSOR(2, 0, "encoder.block.0.layer.0.SelfAttention.q.weight", "enc.blk.0.attn_q.weight",        \
                   "blocks.0.attn.q.weight")},                                                               \
    {                                                                                                        \
        .place = T5_LAYERS, .key = "num_decoder_layers"                                                      \
    }

/* Keys that have the same value in config.json of all T5 and umT5 models. class: transformers' model class.
 */
#define T5_CONFIG_REST(class)                                                                                \
    "\"architectures\": [\"" class "\"], \"relative_attention_max_distance\": 128, "                         \
                                   "\"feed_forward_proj\": \"gated-gelu\", \"is_gated_act\": true, "         \
                                   "\"dense_act_fn\": \"gelu_new\", \"is_encoder_decoder\": true, "          \
                                   "\"tie_word_embeddings\": false, \"pad_token_id\": 0, \"eos_token_id\": " \
                                   "1, "                                                                     \
                                   "\"decoder_start_token_id\": 0"

/* Naming macro of rows with three names: transformers' (prefix "encoder." P), llama.cpp's (prefix "enc." C),
 * the WAN authors'. */
#define T5_NAMED(P, C, end, name, gguf, wan)                                                                 \
    .names = {"encoder." P name end, "enc." C gguf end}, .checkpoint_name = wan end

/* clang-format off */
/* rows: embeddings of the prompt's tokens, [T, T5_HIDDEN]. */
#define EMBEDDING(X, S)                                                                                      \
    X##TABLE(S, rows, T5_VOCABULARY, T5_HIDDEN, "token_embedding.weight",                                    \
             "shared.weight", "encoder.embed_tokens.weight", "token_embd.weight")
struct embedding_weights { EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(t5_embedding_table, EMBEDDING, embedding_weights, NAMED_FULLY, "", "");

#define BIAS(X, S)                                                                                           \
    X##TABLE(S, table, T5_BUCKETS, T5_HEADS, T5_WAN_BIAS("%d"), T5_BIAS_OF("%d"), T5_GGUF_BIAS("%d"))
struct bias_weights { BIAS(FIELD_, ) };
WEIGHT_TABLE_NAMED(t5_bias_table, BIAS, bias_weights, NAMED_FULLY, "", "");

#define LAYER(X, S)                                                                                          \
    X##VECTOR(S, norm1, T5_HIDDEN, "layer.0.layer_norm", "attn_norm", "blocks.%d.norm1")                     \
    X##MATRIX(S, q, T5_Q, T5_HIDDEN, "layer.0.SelfAttention.q", "attn_q", "blocks.%d.attn.q")                \
    X##MATRIX(S, k, T5_Q, T5_HIDDEN, "layer.0.SelfAttention.k", "attn_k", "blocks.%d.attn.k")                \
    X##MATRIX(S, v, T5_Q, T5_HIDDEN, "layer.0.SelfAttention.v", "attn_v", "blocks.%d.attn.v")                \
    X##MATRIX(S, out, T5_HIDDEN, T5_Q, "layer.0.SelfAttention.o", "attn_o", "blocks.%d.attn.o")              \
    X##VECTOR(S, norm2, T5_HIDDEN, "layer.1.layer_norm", "ffn_norm", "blocks.%d.norm2")                      \
    X##MATRIX(S, gate, T5_FEED_FORWARD, T5_HIDDEN,                                                           \
              "layer.1.DenseReluDense.wi_0", "ffn_gate", "blocks.%d.ffn.gate.0")                             \
    X##MATRIX(S, up, T5_FEED_FORWARD, T5_HIDDEN,                                                             \
              "layer.1.DenseReluDense.wi_1", "ffn_up", "blocks.%d.ffn.fc1")                                  \
    X##MATRIX(S, down, T5_HIDDEN, T5_FEED_FORWARD,                                                           \
              "layer.1.DenseReluDense.wo", "ffn_down", "blocks.%d.ffn.fc2")
struct layer_weights { LAYER(FIELD_, ) };
WEIGHT_TABLE_NAMED(t5_layer_table, LAYER, layer_weights, T5_NAMED, "block.%d.", "blk.%d.");

#define FINAL_NORM(X, S) X##VECTOR(S, norm, T5_HIDDEN, "final_layer_norm", "output_norm", "norm")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(t5_norm_table, FINAL_NORM, norm_weights, T5_NAMED, "", "");
/* clang-format on */

static struct tensor t5_tokens(const struct lane *lane) {
    const struct t5_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
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
    int32_t T = tokens.dim[0], first = scope->lane->keys.first;
    int32_t keys = scope->lane->keys.n ? scope->lane->keys.n : T;
    /* Distances from all queries to the keys, which start at token `first`. */
    struct tensor bias = tensor_slice_columns(state->bias, first, T + keys - 1);
    int32_t wide[] = {T, w->q.dim[0]}, wide_keys[] = {keys, w->q.dim[0]};
    int heads = state->bias.dim[0];
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, wide);
    struct tensor k = context_operand(x, 2, wide_keys), v = context_operand(x, 2, wide_keys);
    struct tensor n_keys = tensor_slice(n, first, keys);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, (struct modulation){0});
    op_linear(x, q, n, w->q, none);
    op_linear(x, k, n_keys, w->k, none);
    op_linear(x, v, n_keys, w->v, none);
    op_attention(
        x, q, q, k, v,
        (struct attention_options){.queries = heads, .keys = heads, .scale = 1, .relative_bias = bias});
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
    hidden_states_write(x, &((const struct t5_settings *)scope->settings)->output, scope->lane,
                        ((const struct t5_state *)scope->lane->state)->tokens, scope->number);
}

static void t5_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct t5_settings *settings = scope->settings;
    const struct t5_state *state = scope->lane->state;
    hidden_states_norm(x, &settings->output, scope->lane, state->tokens, (struct affine){.weight = w->norm},
                       settings->norm_eps);
}

BLOCK(t5_kind_embedding, "embedding", "shared", t5_embedding_table, embedding_weights, t5_forward_embedding,
      .embedding_table = true);
BLOCK(t5_kind_bias, "position_bias", "relative_attention_bias.%d", t5_bias_table, bias_weights,
      t5_forward_bias, .never_quantised = true);
BLOCK(t5_kind_layer, "layer", "block.%d", t5_layer_table, layer_weights, t5_forward_layer);
BLOCK(t5_kind_norm, "norm", "final_layer_norm", t5_norm_table, norm_weights, t5_forward_norm,
      .never_quantised = true);

/* Lists the encoder's blocks. A relative position bias precedes every layer (of_every_layer) or only the
 * first layer. */
static int t5_list_blocks(const struct component *c, bool of_every_layer, struct block_ref *refs) {
    int n = 0, layers = c->dims[T5_LAYERS], used = hidden_states_used_layers(&c->reads.hidden, layers);
    refs[n++] = (struct block_ref){.kind = &t5_kind_embedding};
    for (int i = 0; i < layers; i++) {
        bool unused = i >= used;
        if (!i || of_every_layer)
            refs[n++] = (struct block_ref){.kind = &t5_kind_bias, .number = i, .unused = unused};
        refs[n++] = (struct block_ref){.kind = &t5_kind_layer, .number = i, .unused = unused};
    }
    refs[n++] = (struct block_ref){.kind = &t5_kind_norm,
                                   .unused = !hidden_states_use_norm(&c->reads.hidden, layers)};
    return n;
}

static void t5_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                       struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct t5_state *state = lanes[i].state;
        int32_t tokens[] = {lanes[i].text.dim[0], c->dims[T5_HIDDEN]};
        if (hidden_states_need_rows(&c->reads.hidden, &lanes[i]))
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        int32_t distances = 2 * lanes[i].text.dim[0] - 1;
        state->bias = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){c->dims[T5_HEADS], distances}, ok);
    }
}

/* True if the index has a relative position bias in this layer (0 or 1), under any naming scheme. */
static bool t5_has_bias(const struct tensor_index *index, int layer) {
    static const char *const names[2][3] = {{T5_BIAS_OF("0"), T5_GGUF_BIAS("0"), T5_WAN_BIAS("0")},
                                            {T5_BIAS_OF("1"), T5_GGUF_BIAS("1"), T5_WAN_BIAS("1")}};
    for (int i = 0; i < COUNT_OF(names[0]); i++)
        if (index_find(index, names[layer][i])) return true;
    return false;
}

/* True if the feed-forward of the first layer has a gate, which T5 1.0 lacks. */
static bool t5_is_gated(const struct tensor_index *index) {
    return !index_find(index, "encoder.block.0.layer.1.DenseReluDense.wi.weight") &&
           (!index_find(index, "enc.blk.0.ffn_up.weight") || index_find(index, "enc.blk.0.ffn_gate.weight"));
}

static enum status t5_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (d[T5_Q] % d[T5_HEADS] == 0 && d[T5_Q] / d[T5_HEADS] <= 512 && d[T5_BUCKETS] % 4 == 0 &&
        d[T5_BUCKETS] <= T5_BUCKETS_MAX && d[T5_LAYERS] >= hidden_states_min_layers(&c->reads.hidden) &&
        2 * d[T5_LAYERS] <= FAMILY_BLOCKS_MAX - 2)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent %s sizes" WHERE "%s" FOUND
        "queries %d, heads %d, position buckets %d, layers %d" EXPECTED
        "queries a multiple of heads, heads of at most 512, and at most %d buckets, a multiple of 4",
        c->family->display_name, c->index.sources[0].path, d[T5_Q], d[T5_HEADS], d[T5_BUCKETS], d[T5_LAYERS],
        T5_BUCKETS_MAX);
}

static enum status t5_configure(struct component *c, const struct config *config, struct error *e) {
    struct t5_settings *s = (struct t5_settings *)c->settings;
    if (t5_check_dims(c, e) != OK) return e->code;
    s->max_distance = 128;
    return config_int(config, "relative_attention_max_distance", c->dims[T5_BUCKETS] / 4 + 1, 1 << 20,
                      &s->max_distance, e);
}

/* Tensors that T5 files may contain and the engine ignores: the decoder; the embedding table under a second
 * name; a tokenizer stored as a tensor. */
static const char *const t5_ignorable[] = {"decoder.",
                                           "lm_head.",
                                           "encoder.embed_tokens.",
                                           "spiece_model",
                                           "text_encoders.spiece_model",
                                           "dec.",
                                           "output.weight",
                                           NULL};
static const char *const t5_architectures[] = {"t5encoder", "t5", NULL};

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

static void t5_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[T5_Q] = d[T5_HEADS] * d[T5_HEAD];
    d[T5_BUCKETS] = d[T5_BUCKETS] / 4 * 4;
}

static void t5_derive(struct component *c) {
    c->dims[T5_HEAD] = c->dims[T5_Q] / c->dims[T5_HEADS];
    ((struct t5_settings *)c->settings)->output =
        (struct encoder_output){.states = c->reads.hidden, .n_layers = c->dims[T5_LAYERS]};
    c->text_columns = hidden_states_count(&c->reads.hidden, c->dims[T5_LAYERS]) * c->dims[T5_HIDDEN];
}

static const struct state_tensor t5_state_tensors[] = {STATE_TENSOR(t5_state, bias)};

/* T5 1.1 encoder as a text encoder (transformers: T5EncoderModel). All layers use the relative position bias
 * of the first. Attention reads padding unless the recipe masks it (text_recipe.masks_padding): most of
 * diffusers' pipelines pass no attention mask. */

static bool t5_probe(const struct tensor_index *index) {
    bool ends =
        index_find(index, "encoder.final_layer_norm.weight") || index_find(index, "enc.output_norm.weight");
    return ends && t5_has_bias(index, 0) && !t5_has_bias(index, 1);
}

/* Refuses T5 1.0 (no gate in the feed-forward) and umT5 (a relative position bias in every layer). */
static enum status t5_refuse(const struct component *c, struct error *e) {
    bool gated = t5_is_gated(&c->index);
    if (gated && !t5_has_bias(&c->index, 1)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported text encoder: not T5 1.1" WHERE "%s" FOUND "%s" EXPECTED "T5 1.1 (t5xxl)",
                     c->index.sources[0].path,
                     gated ? "a relative_attention_bias in the second layer, as in umT5"
                           : "a feed-forward without a gate (wi_0), as in T5 1.0");
}

static int t5_blocks(const struct component *c, struct block_ref *refs) {
    return t5_list_blocks(c, false, refs);
}

/* Sizes of the published T5 1.1 XXL encoder. */
static const struct dimension t5_dimensions[] = {T5_DIMENSIONS(32128, 1)};

/* Initialisers that T5 and umT5 share. of: the family's name; class: class name in config.json. */
#define T5_FAMILY(of, class)                                                                                 \
    .name = #of, .kind = FAMILY_TEXT,                                                                        \
    .files = {.architectures = t5_architectures,                                                             \
              .config_key = "model_type",                                                                    \
              .config_value = #of,                                                                           \
              .probe = of##_probe,                                                                           \
              .refuse = of##_refuse,                                                                         \
              .ignorable = t5_ignorable},                                                                    \
    .config = {.dimensions = of##_dimensions,                                                                \
               .n_dimensions = COUNT_OF(of##_dimensions),                                                    \
               .settings = t5_settings,                                                                      \
               .n_settings = COUNT_OF(t5_settings),                                                          \
               .expects = t5_expects,                                                                        \
               .configure = t5_configure,                                                                    \
               .derive_dims = t5_derive_dims,                                                                \
               .derive = t5_derive,                                                                          \
               .rest = T5_CONFIG_REST(class)},                                                               \
    .reads = {.tokens = true}, .blocks = {.list = of##_blocks},                                              \
    .state = {.bytes = sizeof(struct t5_state),                                                              \
              .tensors = t5_state_tensors,                                                                   \
              .n_tensors = COUNT_OF(t5_state_tensors),                                                       \
              .declare = t5_declare},                                                                        \
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 4096}}

const struct family family_t5 = {.display_name = "T5 text encoder", T5_FAMILY(t5, "T5EncoderModel")};

/* umT5 encoder as a text encoder (transformers: UMT5EncoderModel): multilingual T5 1.1 with a relative
 * position bias in every layer. The encoder reads a prompt without padding and appends zero rows. diffusers
 * instead pads, masks the padding and zeroes the padding's rows. Source: transformers 5,
 * models/umt5/modeling_umt5.py. */

static bool umt5_probe(const struct tensor_index *index) {
    return t5_has_bias(index, 0) && t5_has_bias(index, 1);
}

static enum status umt5_refuse(const struct component *c, struct error *e) {
    if (t5_is_gated(&c->index) && t5_has_bias(&c->index, 1)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported text encoder: not umT5" WHERE "%s" FOUND "%s" EXPECTED "umT5 (umt5-xxl)",
                     c->index.sources[0].path,
                     t5_is_gated(&c->index) ? "no relative_attention_bias in the second layer, as in T5"
                                            : "a feed-forward without a gate (wi_0)");
}

static int umt5_blocks(const struct component *c, struct block_ref *refs) {
    return t5_list_blocks(c, true, refs);
}

/* Sizes of the published umT5 XXL encoder. */
static const struct dimension umt5_dimensions[] = {T5_DIMENSIONS(256384, 2)};

const struct family family_umt5 = {.display_name = "umT5 text encoder", T5_FAMILY(umt5, "UMT5EncoderModel")};
