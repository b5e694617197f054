/* Language models as text encoders: embeddings, decoder layers, final norm; then the families Qwen3, Mistral
 * and Qwen2.5-VL.
 *
 * A layer: x += out(attention(rope(q), rope(k), v)); x += down(silu(gate(n)) * up(n)), with RMS norms before
 * attention and feed-forward, grouped-query attention with a causal mask, rope on halves of a head. Families
 * differ in their weight tables: Qwen2.5-VL has biases of q, k and v, Qwen3 norms of the heads of q and k,
 * Mistral neither; absent weights are skipped. Vision tokens (lane.vision_spans) replace token embeddings in
 * a prompt with images, and rope then has three axes (M-RoPE). Source: transformers 5.23,
 * models/qwen3/modeling_qwen3.py, models/mistral/modeling_mistral.py,
 * models/qwen2_5_vl/modeling_qwen2_5_vl.py. */
#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/models.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Indices into component.dims. */
enum {
    QWEN_VOCABULARY,
    QWEN_HIDDEN,
    QWEN_Q,
    QWEN_KV,
    QWEN_HEAD,
    QWEN_HEADS,
    QWEN_KEY_HEADS,
    QWEN_FEED_FORWARD,
    QWEN_LAYERS,
};

enum { MROPE_SECTIONS = 3 };

struct qwen_settings {
    double rope_theta;
    float norm_eps;
    int heads;        /* number of query heads; 0: absent in the configuration */
    bool interleaved; /* rope rotates pairs of adjacent dimensions; false: dimensions half a head apart */
    int mrope_section[MROPE_SECTIONS]; /* M-RoPE: rope pairs of a head for time, row, column; 0: rope has one
                                          axis */
    struct encoder_output output;      /* hidden states that the encoder writes to lane.text */
};

struct qwen_state {
    struct tensor rope;   /* [T, HEAD/2, 2] */
    struct tensor tokens; /* hidden states: [T, HIDDEN]; rank 0: lane.text holds them */
};

/* Naming macro of rows with two names: transformers' (released files have the prefix "model.", transformers 5
 * saves without it) and llama.cpp's in GGUF files (gguf-py/gguf/constants.py). */
#define QWEN_NAMED(P, C, end, name, gguf) .names = {"model." P name end, P name end, C gguf end}

/* clang-format off */
/* rows: embeddings of the prompt's text tokens, [T, HIDDEN]. */
#define EMBEDDING(X, S) X##TABLE(S, rows, QWEN_VOCABULARY, QWEN_HIDDEN, "embed_tokens", "token_embd")
struct embedding_weights { EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(qwen_embedding_table, EMBEDDING, embedding_weights, QWEN_NAMED, "", "");

/* Weights of a decoder layer. MORE: list of the weights that differ between families. */
#define LAYER(X, S, MORE)                                                                                    \
    X##VECTOR(S, norm1, QWEN_HIDDEN, "input_layernorm", "attn_norm")                                         \
    X##MATRIX(S, q, QWEN_Q, QWEN_HIDDEN, "self_attn.q_proj", "attn_q")                                       \
    X##MATRIX(S, k, QWEN_KV, QWEN_HIDDEN, "self_attn.k_proj", "attn_k")                                      \
    X##MATRIX(S, v, QWEN_KV, QWEN_HIDDEN, "self_attn.v_proj", "attn_v")                                      \
    MORE(X, S)                                                                                               \
    X##MATRIX(S, out, QWEN_HIDDEN, QWEN_Q, "self_attn.o_proj", "attn_output")                                \
    X##VECTOR(S, norm2, QWEN_HIDDEN, "post_attention_layernorm", "ffn_norm")                                 \
    X##MATRIX(S, gate, QWEN_FEED_FORWARD, QWEN_HIDDEN, "mlp.gate_proj", "ffn_gate")                          \
    X##MATRIX(S, up, QWEN_FEED_FORWARD, QWEN_HIDDEN, "mlp.up_proj", "ffn_up")                                \
    X##MATRIX(S, down, QWEN_HIDDEN, QWEN_FEED_FORWARD, "mlp.down_proj", "ffn_down")
#define NORMS(X, S)                                                                                          \
    X##VECTOR(S, q_norm, QWEN_HEAD, "self_attn.q_norm", "attn_q_norm")                                       \
    X##VECTOR(S, k_norm, QWEN_HEAD, "self_attn.k_norm", "attn_k_norm")
#define BIASES(X, S)                                                                                         \
    X##BIAS(S, q_bias, QWEN_Q, "self_attn.q_proj", "attn_q")                                                 \
    X##BIAS(S, k_bias, QWEN_KV, "self_attn.k_proj", "attn_k")                                                \
    X##BIAS(S, v_bias, QWEN_KV, "self_attn.v_proj", "attn_v")
#define NORMS_AND_BIASES(X, S) NORMS(X, S) BIASES(X, S)
struct qwen_layer_weights { LAYER(FIELD_, , NORMS_AND_BIASES) };

#define FINAL_NORM(X, S) X##VECTOR(S, norm, QWEN_HIDDEN, "norm", "output_norm")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(qwen_norm_table, FINAL_NORM, norm_weights, QWEN_NAMED, "", "");
/* clang-format on */

/* Dimension table rows of dims that are axes of the embedding table or of a first-layer tensor. */
#define QWEN_OF_TABLE(axis)                                                                                  \
    OF_TENSOR(2, axis, "model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")
#define QWEN_OF_LAYER(rank, tail, gguf)                                                                      \
    OF_TENSOR(rank, 0, "model.layers.0." tail ".weight", "layers.0." tail ".weight", "blk.0." gguf ".weight")

static struct tensor qwen_tokens(const struct lane *lane) {
    const struct qwen_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
}

/* Rows of a prompt with masked padding, in order: n_copied + n_keyless rows of padding, n_keys keys, padding
 * after the keys. Attention is causal: padding before the keys reads no key, and its attention output is 0 as
 * in PyTorch 2.5 and later. Its rows are therefore equal: the last one is computed (n_keyless 1), the rows
 * before it are copied from it. Padding after the keys reads all keys. */
struct key_rows {
    int32_t n_copied, n_keyless, n_keys;
};

static struct key_rows qwen_key_rows(const struct lane *lane) {
    int32_t first = lane->keys.first, n_keyless = first > 0;
    return (struct key_rows){.n_copied = first - n_keyless,
                             .n_keyless = n_keyless,
                             .n_keys = lane->keys.n ? lane->keys.n : qwen_tokens(lane).dim[0]};
}

/* Segment of a prompt: consecutive text tokens and the image after them. */
struct prompt_segment {
    int32_t first, n;                /* index of the first text token; number of text tokens, possibly 0 */
    const struct vision_span *image; /* image after the text tokens; NULL: end of the prompt */
};

static struct prompt_segment prompt_segment(const struct lane *lane, int32_t n_tokens, int i) {
    struct prompt_segment run = {0};
    if (i)
        run.first = lane->vision_spans[i - 1].first +
                    lane->vision_spans[i - 1].height * lane->vision_spans[i - 1].width;
    if (i < LANE_REFERENCES_MAX && lane->vision_spans[i].height) run.image = &lane->vision_spans[i];
    run.n = (run.image ? run.image->first : n_tokens) - run.first;
    return run;
}

static int qwen_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
    int n = 0;
    (void)c;
    (void)i_table;
    for (int i = 0;; i++) {
        struct prompt_segment run = prompt_segment(lane, lane->n_tokens, i);
        for (int32_t k = 0; k < run.n; k++, n++)
            if (rows) rows[n] = lane->tokens[run.first + k];
        if (!run.image) return n;
    }
}

static void qwen_place_tokens(struct context *x, const struct lane *lane, struct tensor rows) {
    struct tensor tokens = qwen_tokens(lane);
    for (int i = 0, n = 0;; i++) {
        struct prompt_segment run = prompt_segment(lane, tokens.dim[0], i);
        if (run.n) op_copy(x, tensor_slice(tokens, run.first, run.n), tensor_slice(rows, n, run.n));
        n += run.n;
        if (!run.image) return;
        op_copy(x, tensor_slice(tokens, run.image->first, run.image->rows.dim[0]), run.image->rows);
    }
}

/* Position grids of M-RoPE: one for each text segment and image. Text after an image continues after the
 * longer side of its token grid. */
enum { QWEN_GRIDS_MAX = 2 * LANE_REFERENCES_MAX + 1 };
_Static_assert((int)QWEN_GRIDS_MAX <= (int)ROPE_GRIDS_MAX, "rope table of a prompt with the most images");

static void qwen_list_grids(const struct lane *lane, int32_t n_tokens, struct rope_options *rope) {
    int32_t p = 0;
    for (int i = 0;; i++) {
        struct prompt_segment run = prompt_segment(lane, n_tokens, i);
        const struct vision_span *image = run.image;
        if (run.n)
            rope->grid[rope->n_grids++] =
                (struct rope_grid){.start = {p, p, p}, .extent = {run.n}, .diagonal = true};
        p += run.n;
        if (!image) return;
        rope->grid[rope->n_grids++] =
            (struct rope_grid){.start = {p, p, p}, .extent = {1, image->height, image->width}};
        p += image->height > image->width ? image->height : image->width;
    }
}

/* Fills the rope table: one position axis, or three (M-RoPE), whose frequencies are computed in float32 as in
 * transformers. */
static struct rope_options qwen_rope(const struct qwen_settings *settings, int head) {
    struct rope_options rope = {.theta = settings->rope_theta, .n_axes = 1, .axis_dim = {head}};
    if (!settings->mrope_section[0]) return rope;
    rope.n_axes = MROPE_SECTIONS;
    rope.mrope = rope.f32_frequencies = true;
    for (int i = 0; i < MROPE_SECTIONS; i++) rope.axis_dim[i] = 2 * settings->mrope_section[i];
    return rope;
}

static void qwen_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct qwen_settings *settings = scope->settings;
    const struct qwen_state *state = scope->lane->state;
    qwen_place_tokens(x, scope->lane, w->rows);
    struct rope_options rope = qwen_rope(settings, 2 * state->rope.dim[1]);
    int32_t T = state->rope.dim[0], keys = qwen_key_rows(scope->lane).n_keys;
    /* Masked padding after a prompt with images has the position of the first token, 0 (transformers'
     * get_rope_index). After a prompt without images, padding continues the positions. */
    int32_t placed = scope->lane->vision_spans[0].height ? keys : T;
    qwen_list_grids(scope->lane, placed, &rope);
    op_rope_table(x, tensor_slice(state->rope, 0, placed), &rope);
    struct tensor rows = tensor_reshape(state->rope, 2, (int32_t[]){T, 2 * state->rope.dim[1]});
    if (T > placed) op_broadcast_row(x, tensor_slice(rows, placed, T - placed), tensor_slice(rows, 0, 1));
}

struct projection {
    struct tensor weight, bias, norm;
};

/* Computes queries or keys: linear layer, then norm (if the family has one) and rope of each head. n: normed
 * rows; its first row is the first key. */
static void qwen_project_heads(struct context *x, struct tensor out, struct tensor n, struct projection w,
                               const struct visit_scope *scope) {
    const struct qwen_settings *settings = scope->settings;
    const struct qwen_state *state = scope->lane->state;
    struct rotation rotation = {.heads = out.dim[1] / (2 * state->rope.dim[1]),
                                .pairs = settings->interleaved ? ROPE_INTERLEAVED : ROPE_HALVES,
                                .norm = w.norm,
                                .eps = settings->norm_eps};
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, w.weight, (struct epilogue){.bias = w.bias});
    op_rope(x, out, heads, tensor_slice(state->rope, scope->lane->keys.first, out.dim[0]), rotation);
    x->scratch->used = mark;
}

/* Adds the attention output to tokens [T, HIDDEN]: the rows from the first key to the end of the prompt.
 * n: the same rows, normed. */
static void qwen_attend(struct context *x, const struct qwen_layer_weights *w,
                        const struct visit_scope *scope, struct tensor tokens, struct tensor n) {
    const struct qwen_state *state = scope->lane->state;
    int32_t T = tokens.dim[0], keys = qwen_key_rows(scope->lane).n_keys, head = 2 * state->rope.dim[1];
    struct tensor q = context_operand(x, 2, (int32_t[]){T, w->q.dim[0]});
    struct tensor k = context_operand(x, 2, (int32_t[]){keys, w->k.dim[0]});
    struct tensor v = context_operand(x, 2, (int32_t[]){keys, w->v.dim[0]});
    struct tensor n_keys = tensor_slice(n, 0, keys), q_keys = tensor_slice(q, 0, keys);
    struct attention_options options = {.queries = w->q.dim[0] / head,
                                        .keys = w->k.dim[0] / head,
                                        .scale = 1 / sqrtf((float)head),
                                        .causal = true};
    qwen_project_heads(x, q, n, (struct projection){w->q, w->q_bias, w->q_norm}, scope);
    qwen_project_heads(x, k, n_keys, (struct projection){w->k, w->k_bias, w->k_norm}, scope);
    op_linear(x, v, n_keys, w->v, (struct epilogue){.bias = w->v_bias});
    op_attention(x, q_keys, q_keys, k, v, options);
    options.causal = false; /* padding after the keys reads all keys */
    struct tensor q_padding = tensor_slice(q, keys, T - keys);
    if (T > keys) op_attention(x, q_padding, q_padding, k, v, options);
    op_linear(x, tokens, q, w->out, (struct epilogue){.residual = tokens});
}

static void qwen_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct qwen_layer_weights *w = weights;
    const struct qwen_settings *settings = scope->settings;
    struct tensor all = qwen_tokens(scope->lane);
    struct modulation plain = {0};
    struct epilogue none = {0};
    struct key_rows rows = qwen_key_rows(scope->lane);
    int32_t T = all.dim[0] - rows.n_copied;
    struct tensor tokens = tensor_slice(all, rows.n_copied, T);
    struct tensor n = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, plain);
    uint64_t mark = x->scratch->used;
    qwen_attend(x, w, scope, tensor_slice(tokens, rows.n_keyless, T - rows.n_keyless),
                tensor_slice(n, rows.n_keyless, T - rows.n_keyless));
    x->scratch->used = mark;
    op_rms_norm(x, n, tokens, w->norm2, settings->norm_eps, plain);
    struct tensor gated = context_operand(x, 2, (int32_t[]){T, w->gate.dim[0]});
    struct tensor gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, w->up.dim[0]});
    op_linear(x, gate, n, w->gate, none);
    op_linear(x, up, n, w->up, none);
    op_glu(x, gated, gate, up, ACTIVATION_SILU);
    op_linear(x, tokens, gated, w->down, (struct epilogue){.residual = tokens});
    if (rows.n_copied) op_broadcast_row(x, tensor_slice(all, 0, rows.n_copied), tensor_slice(tokens, 0, 1));
    hidden_states_write(x, &settings->output, scope->lane,
                        ((const struct qwen_state *)scope->lane->state)->tokens, scope->number);
}

static void qwen_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct qwen_settings *settings = scope->settings;
    const struct qwen_state *state = scope->lane->state;
    hidden_states_norm(x, &settings->output, scope->lane, state->tokens, (struct affine){.weight = w->norm},
                       settings->norm_eps);
}

BLOCK(qwen_kind_embedding, "embedding", "embed_tokens", qwen_embedding_table, embedding_weights,
      qwen_forward_embedding, .embedding_table = true);
BLOCK(qwen_kind_norm, "norm", "norm", qwen_norm_table, norm_weights, qwen_forward_norm,
      .never_quantised = true);

/* Lists the encoder's blocks; layer: the family's block kind of a decoder layer. */
static int qwen_list_blocks(const struct component *c, const struct block_kind *layer,
                            struct block_ref *refs) {
    int n = 0, layers = c->dims[QWEN_LAYERS], used = hidden_states_used_layers(&c->reads.hidden, layers);
    refs[n++] = (struct block_ref){.kind = &qwen_kind_embedding};
    for (int i = 0; i < layers; i++)
        refs[n++] = (struct block_ref){.kind = layer, .number = i, .unused = i >= used};
    refs[n++] = (struct block_ref){.kind = &qwen_kind_norm,
                                   .unused = !hidden_states_use_norm(&c->reads.hidden, layers)};
    return n;
}

/* True if the index has the embedding table and this first-layer tensor, under any naming scheme. */
static bool qwen_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail) {
    const char *const styles[][3] = {{"model.layers.0.", tail, "model.embed_tokens.weight"},
                                     {"layers.0.", tail, "embed_tokens.weight"},
                                     {"blk.0.", gguf_tail, "token_embd.weight"}};
    for (int i = 0; i < COUNT_OF(styles); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", styles[i][0], styles[i][1]);
        if (index_find(index, name) && index_find(index, styles[i][2])) return true;
    }
    return false;
}

/* Callback family_config.configure. SHAPE: inconsistent dims. */
static enum status qwen_check_dims(struct component *c, const struct config *config, struct error *e) {
    (void)config;
    const int32_t *d = c->dims;
    int32_t head = d[QWEN_HEAD];
    if (head > 0 && d[QWEN_Q] % head == 0 && d[QWEN_KV] % head == 0 && d[QWEN_Q] % d[QWEN_KV] == 0 &&
        head % 2 == 0 && head <= 512 && d[QWEN_LAYERS] >= hidden_states_min_layers(&c->reads.hidden) &&
        d[QWEN_LAYERS] <= FAMILY_BLOCKS_MAX - 1)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent text encoder sizes" WHERE "%s" FOUND
                     "queries %d, keys %d, head %d, layers %d" EXPECTED
                     "queries a multiple of keys, keys a multiple of an even head size, at least %d layers",
                     c->index.sources[0].path, d[QWEN_Q], d[QWEN_KV], head, d[QWEN_LAYERS],
                     hidden_states_min_layers(&c->reads.hidden));
}

/* Callback family_config.derive. settings->heads must be set before. */
static void qwen_derive(struct component *c) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int32_t *d = c->dims;
    d[QWEN_HEADS] = d[QWEN_Q] / d[QWEN_HEAD];
    d[QWEN_KEY_HEADS] = d[QWEN_KV] / d[QWEN_HEAD];
    s->output = (struct encoder_output){c->reads.hidden, d[QWEN_LAYERS]};
    c->text_columns = hidden_states_count(&c->reads.hidden) * d[QWEN_HIDDEN];
}

static void qwen_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct qwen_state *state = lanes[i].state;
        int32_t tokens[] = {lanes[i].text.dim[0], c->dims[QWEN_HIDDEN]};
        if (hidden_states_need_rows(&c->reads.hidden, &lanes[i]))
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        state->rope = arena_tensor(arena, DTYPE_F32, 3,
                                   (int32_t[]){lanes[i].text.dim[0], c->dims[QWEN_HEAD] / 2, 2}, ok);
    }
}

static const char *const qwen_ignorable[] = {"lm_head.", "output.weight", NULL};
static const struct state_tensor qwen_state_tensors[] = {STATE_TENSOR(qwen_state, rope),
                                                         STATE_TENSOR(qwen_state, tokens)};

/* Qwen3 as a text encoder (transformers: Qwen3Model). Queries and keys are normed, projections have no bias;
 * the rest is shared. Pipelines usually read hidden_states[-2], the input of the last layer; the
 * last layer and the final norm are then not loaded. */

#define QWEN3_LAYER(X, S) LAYER(X, S, NORMS)
WEIGHT_TABLE_NAMED(qwen3_layer_table, QWEN3_LAYER, qwen_layer_weights, QWEN_NAMED, "layers.%d.", "blk.%d.");
BLOCK(qwen3_kind_layer, "layer", "layers.%d", qwen3_layer_table, qwen_layer_weights, qwen_forward_layer);

static bool qwen3_probe(const struct tensor_index *index) {
    return qwen_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight");
}

static int qwen3_blocks(const struct component *c, struct block_ref *refs) {
    return qwen_list_blocks(c, &qwen3_kind_layer, refs);
}

static const char *const qwen3_architectures[] = {"qwen3", NULL};

/* Published sizes: Qwen3-4B. */
static const struct dimension qwen3_dimensions[] = {
    {"vocabulary", 151936, 300, 1048576, .place = QWEN_VOCABULARY, QWEN_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 2560, 8, 65536, .place = QWEN_HIDDEN, QWEN_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = QWEN_HEADS, .key = "num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = QWEN_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = QWEN_HEAD, QWEN_OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "head_dim"},
    {"text_ff", 9728, 8, 262144, .place = QWEN_FEED_FORWARD, QWEN_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 36, 2, 400, .place = QWEN_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = QWEN_Q, QWEN_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = QWEN_KV, QWEN_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings of Qwen3 from config.json (transformers 4 and 5) or GGUF metadata. */
static const struct setting qwen3_settings[] = {
    {{"rope_theta", "rope_parameters.rope_theta", "qwen3.rope.freq_base"},
     offsetof(struct qwen_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "qwen3.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen_settings, norm_eps),
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

static void qwen3_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[QWEN_Q] = d[QWEN_HEADS] * d[QWEN_HEAD];
    d[QWEN_KV] = d[QWEN_KEY_HEADS] * d[QWEN_HEAD];
}

const struct family family_qwen3 = {
    .name = "qwen3",
    .kind = FAMILY_TEXT,
    .display_name = "text encoder",
    .files = {.architectures = qwen3_architectures,
              .config_key = "model_type",
              .config_value = "qwen3",
              .probe = qwen3_probe,
              .ignorable = qwen_ignorable},
    .config = {.dimensions = qwen3_dimensions,
               .n_dimensions = COUNT_OF(qwen3_dimensions),
               .settings = qwen3_settings,
               .n_settings = COUNT_OF(qwen3_settings),
               .expects = qwen3_expects,
               .configure = qwen_check_dims,
               .derive_dims = qwen3_derive_dims,
               .derive = qwen_derive,
               .rest = "\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, "
                       "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
                       "\"max_position_embeddings\": 40960"},
    .reads = {.hidden = {.layers = {-2}}, .tokens = true},
    .blocks = {.list = qwen3_blocks, .rows = qwen_rows},
    .state = {.bytes = sizeof(struct qwen_state),
              .tensors = qwen_state_tensors,
              .n_tensors = COUNT_OF(qwen_state_tensors),
              .declare = qwen_declare},
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 2560}},
};

/* Published head size of Mistral and Qwen2.5-VL. Tensor shapes do not determine the head size. */
enum { HEAD_PUBLISHED = 128 };

/* Head size from the configured head count, or the published one without a count; 0: the count does not
 * divide the rows of q. */
static int qwen_head_size(const struct component *c) {
    int heads = ((const struct qwen_settings *)c->settings)->heads, q = c->dims[QWEN_Q];
    return !heads ? HEAD_PUBLISHED : q % heads ? 0 : q / heads;
}

/* Mistral Small 3 as a text encoder (transformers: MistralModel, in Mistral3ForConditionalGeneration).
 * Projections have neither norms nor biases. The vision tower is ignored.
 *
 * llama.cpp orders the rows of q and k so that rope rotates adjacent pairs (convert_hf_to_gguf.py, permute).
 * Files whose tensors have llama.cpp's names have this order, also after `sluice convert`, which changes
 * neither names nor order. Adapters have transformers' row order and are refused for these files. */

#define MISTRAL_LAYER(X, S) LAYER(X, S, NONE)
#define NONE(X, S)
WEIGHT_TABLE_NAMED(mistral_layer_table, MISTRAL_LAYER, qwen_layer_weights, QWEN_NAMED, "layers.%d.",
                   "blk.%d.");
BLOCK(mistral_kind_layer, "layer", "layers.%d", mistral_layer_table, qwen_layer_weights, qwen_forward_layer);

/* Detects Mistral by its tensors and excludes architectures that have more: Qwen3 (norms of heads), Qwen2
 * (biases), Gemma (norms before or after the feed-forward). */
static bool mistral_probe(const struct tensor_index *index) {
    return qwen_has_tensors(index, "mlp.gate_proj.weight", "ffn_gate.weight") &&
           qwen_has_tensors(index, "self_attn.q_proj.weight", "attn_q.weight") &&
           !qwen_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight") &&
           !qwen_has_tensors(index, "self_attn.q_proj.bias", "attn_q.bias") &&
           !qwen_has_tensors(index, "pre_feedforward_layernorm.weight", "post_ffw_norm.weight");
}

static enum status mistral_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"rope_freqs.", "Llama 3.1 or later, whose rope frequencies are scaled"}, {0}};
    return component_refuse_similar(c, relatives, "Mistral Small 3", e);
}

static enum status mistral_configure(struct component *c, const struct config *config, struct error *e) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    const char *model = config_string(config, "model_type", "");
    if (*model && strcmp(model, "mistral") != 0 && strcmp(model, "mistral3") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"mistral3\" or \"mistral\"",
                         config->path, model);
    c->dims[QWEN_HEAD] = qwen_head_size(c);
    s->interleaved = index_find(&c->index, "blk.0.attn_q.weight");
    if (s->interleaved) c->adapters_refused = "rows of q and k in llama.cpp's order";
    return qwen_check_dims(c, config, e);
}

static int mistral_blocks(const struct component *c, struct block_ref *refs) {
    return qwen_list_blocks(c, &mistral_kind_layer, refs);
}

static const char *const mistral_architectures[] = {"llama", "mistral3", NULL};
static const char *const mistral_model_types[] = {"mistral3", NULL};
static const char *const mistral_ignorable[] = {"lm_head.",
                                                "output.weight",
                                                "vision_tower.",
                                                "multi_modal_projector.",
                                                "model.vision_tower.",
                                                "model.multi_modal_projector.",
                                                "tekken_model",
                                                NULL};

/* Published sizes: Mistral Small 3.2 24B. */
static const struct dimension mistral_dimensions[] = {
    {"vocabulary", 131072, 300, 1048576, .place = QWEN_VOCABULARY, QWEN_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 5120, 8, 65536, .place = QWEN_HIDDEN, QWEN_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = QWEN_HEADS},
    {"text_key_heads", 8, 1, 1024, .place = QWEN_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = QWEN_HEAD, .key = "head_dim"},
    {"text_ff", 32768, 8, 262144, .place = QWEN_FEED_FORWARD, QWEN_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 40, 1, 400, .place = QWEN_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = QWEN_Q, QWEN_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = QWEN_KV, QWEN_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings from config.json (of the language model alone or with a vision tower) or GGUF metadata. */
static const struct setting mistral_settings[] = {
    {{"num_attention_heads", "text_config.num_attention_heads", "llama.attention.head_count",
      "mistral3.attention.head_count"},
     offsetof(struct qwen_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"rope_theta", "rope_parameters.rope_theta", "text_config.rope_theta",
      "text_config.rope_parameters.rope_theta", "llama.rope.freq_base", "mistral3.rope.freq_base"},
     offsetof(struct qwen_settings, rope_theta),
     SETTING_DOUBLE,
     1e9,
     1,
     1e12},
    {{"rms_norm_eps", "text_config.rms_norm_eps", "llama.attention.layer_norm_rms_epsilon",
      "mistral3.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen_settings, norm_eps),
     SETTING_FLOAT,
     1e-5,
     0,
     1},
};

static const struct expectation mistral_expects[] = {
    {"text_config.model_type", "mistral"},
    {"hidden_act", "silu"},
    {"text_config.hidden_act", "silu"},
    {"rope_parameters.rope_type", "default"},
    {"text_config.rope_parameters.rope_type", "default"},
    {"rope_scaling", NULL},
    {"text_config.rope_scaling", NULL},
    {"llama.rope.scaling.type", "none"},
    {"mistral3.rope.scaling.type", "none"},
    {0},
};

static void mistral_derive_dims(struct component *c) {
    qwen3_derive_dims(c);
    ((struct qwen_settings *)c->settings)->heads = c->dims[QWEN_HEADS];
}

const struct family family_mistral = {
    .name = "mistral",
    .kind = FAMILY_TEXT,
    .display_name = "Mistral text encoder",
    .files = {.architectures = mistral_architectures,
              .config_key = "model_type",
              .config_value = "mistral",
              .config_others = mistral_model_types,
              .probe = mistral_probe,
              .refuse = mistral_refuse,
              .ignorable = mistral_ignorable},
    .config = {.dimensions = mistral_dimensions,
               .n_dimensions = COUNT_OF(mistral_dimensions),
               .settings = mistral_settings,
               .n_settings = COUNT_OF(mistral_settings),
               .expects = mistral_expects,
               .configure = mistral_configure,
               .derive_dims = mistral_derive_dims,
               .derive = qwen_derive,
               .rest = "\"architectures\": [\"MistralForCausalLM\"], \"tie_word_embeddings\": false, "
                       "\"hidden_act\": \"silu\", \"max_position_embeddings\": 131072, "
                       "\"sliding_window\": null"},
    .reads = {.tokens = true},
    .blocks = {.list = mistral_blocks},
    .state = {.bytes = sizeof(struct qwen_state),
              .tensors = qwen_state_tensors,
              .n_tensors = COUNT_OF(qwen_state_tensors),
              .declare = qwen_declare},
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 5120}},
};

/* Language model of Qwen2.5-VL as a text encoder whose prompts may contain images. Projections to queries,
 * keys and values have a bias, no norms; the rest is shared. The vision encoder is the family of
 * qwen25vl_vision.c, in the same file or another one. */

#define QWEN25VL_LAYER(X, S) LAYER(X, S, BIASES)
WEIGHT_TABLE_NAMED(qwen25vl_layer_table, QWEN25VL_LAYER, qwen_layer_weights, QWEN_NAMED, "layers.%d.",
                   "blk.%d.");
BLOCK(qwen25vl_kind_layer, "layer", "layers.%d", qwen25vl_layer_table, qwen_layer_weights,
      qwen_forward_layer);

/* Tensor that Qwen3 has and Qwen2.5 lacks. With the prefix "language_model.", which text models lack, the
 * file is Qwen3-VL. */
static const char qwen3_norm[] = "layers.0.self_attn.q_norm.";

static bool is_qwen3_vl(const struct tensor_index *index) {
    const char *prefix = index_prefix(index);
    return strstr(prefix, "language_model.") && index_find(index, "layers.0.self_attn.q_norm.weight");
}

/* True for Qwen2.5-VL, and for Qwen3-VL, which qwen25vl_refuse rejects by name. */
static bool qwen25vl_probe(const struct tensor_index *index) {
    return qwen_has_tensors(index, "self_attn.q_proj.bias", "attn_q.bias") || is_qwen3_vl(index);
}

static enum status qwen25vl_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {{qwen3_norm, "the language model of Qwen3-VL"},
                                                            {0}};
    return component_refuse_similar(c, relatives, "the language model of Qwen2.5-VL", e);
}

/* Default mrope_section: rope pairs of a head for time, row and column, in the published proportion. */
static void qwen25vl_default_sections(struct component *c) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int pairs = c->dims[QWEN_HEAD] / 2, spatial = pairs < 4 ? 1 : pairs * 3 / 8;
    s->mrope_section[0] = pairs - 2 * spatial;
    s->mrope_section[1] = s->mrope_section[2] = spatial;
}

static enum status qwen25vl_configure(struct component *c, const struct config *config, struct error *e) {
    static const char *const rope_types[] = {"rope_scaling.type", "text_config.rope_scaling.type"};
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int32_t *d = c->dims;
    /* Qwen2, Qwen2.5 and Qwen2-VL have the same tensor names and shapes. */
    const char *model = config_string(config, "model_type", "");
    if (*model && strcmp(model, "qwen2_5_vl") != 0 && strcmp(model, "qwen2_5_vl_text") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"qwen2_5_vl\"",
                         config->path, model);
    /* Older configurations of Qwen2.5-VL have the rope type "mrope". */
    for (int i = 0; i < COUNT_OF(rope_types); i++)
        if (strcmp(config_string(config, rope_types[i], ""), "mrope") != 0)
            config_expect(config, rope_types[i], "default", e);
    if (e->code != OK) return e->code;
    d[QWEN_HEAD] = qwen_head_size(c);
    int *n = s->mrope_section, pairs = d[QWEN_HEAD] / 2;
    if (!n[0] && !n[1] && !n[2]) qwen25vl_default_sections(c);
    if (qwen_check_dims(c, config, e) != OK) return e->code;
    if (n[0] > 0 && n[1] > 0 && n[2] > 0 && n[0] + n[1] + n[2] == pairs) return OK;
    return error_set(e, META,
                     "'mrope_section' does not match the head size" WHERE "%s" FOUND "%d, %d, %d" EXPECTED
                     "three positive numbers with a sum of %d",
                     c->index.sources[0].path, n[0], n[1], n[2], pairs);
}

static int qwen25vl_blocks(const struct component *c, struct block_ref *refs) {
    return qwen_list_blocks(c, &qwen25vl_kind_layer, refs);
}

static const char *const qwen25vl_architectures[] = {"qwen2vl", NULL};

/* Published sizes: Qwen2.5-VL-7B. */
static const struct dimension qwen25vl_dimensions[] = {
    {"vocabulary", 152064, 300, 1048576, .place = QWEN_VOCABULARY, QWEN_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 3584, 8, 65536, .place = QWEN_HIDDEN, QWEN_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 28, 1, 1024, .place = QWEN_HEADS},
    {"text_key_heads", 4, 1, 1024, .place = QWEN_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_ff", 18944, 8, 262144, .place = QWEN_FEED_FORWARD, QWEN_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 28, 1, 400, .place = QWEN_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = QWEN_Q, QWEN_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = QWEN_KV, QWEN_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

#define SECTION(i)                                                                                           \
    {                                                                                                        \
        {"rope_scaling.mrope_section." #i, "rope_parameters.mrope_section." #i,                              \
         "text_config.rope_scaling.mrope_section." #i, "text_config.rope_parameters.mrope_section." #i,      \
         "qwen2vl.rope.dimension_sections." #i},                                                             \
            offsetof(struct qwen_settings, mrope_section) + (i) * sizeof(int), SETTING_INT, 0, 0, 256        \
    }

/* Settings from GGUF metadata or config.json, whose keys transformers wrote at top level, in text_config, or
 * in both. */
static const struct setting qwen25vl_settings[] = {
    {{"num_attention_heads", "text_config.num_attention_heads", "qwen2vl.attention.head_count"},
     offsetof(struct qwen_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"rope_theta", "rope_parameters.rope_theta", "text_config.rope_theta",
      "text_config.rope_parameters.rope_theta", "qwen2vl.rope.freq_base"},
     offsetof(struct qwen_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "text_config.rms_norm_eps", "qwen2vl.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
    SECTION(0),
    SECTION(1),
    SECTION(2),
};

static const struct expectation qwen25vl_expects[] = {
    {"hidden_act", "silu"},
    {"text_config.hidden_act", "silu"},
    {"rope_scaling.rope_type", "default"},
    {"rope_parameters.rope_type", "default"},
    {"text_config.rope_scaling.rope_type", "default"},
    {"text_config.rope_parameters.rope_type", "default"},
    {"use_sliding_window", NULL},
    {"text_config.use_sliding_window", NULL},
    {"qwen2vl.rope.scaling.type", "none"},
    {0},
};

static void qwen25vl_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[QWEN_HEAD] = d[QWEN_HIDDEN] / d[QWEN_HEADS];
    d[QWEN_Q] = d[QWEN_HEADS] * d[QWEN_HEAD];
    d[QWEN_KV] = d[QWEN_KEY_HEADS] * d[QWEN_HEAD];
    ((struct qwen_settings *)c->settings)->heads = d[QWEN_HEADS];
    qwen25vl_default_sections(c);
}

const struct family family_qwen25vl = {
    .name = "qwen25vl",
    .kind = FAMILY_TEXT,
    .display_name = "Qwen2.5-VL text encoder",
    .files = {.architectures = qwen25vl_architectures,
              .config_key = "model_type",
              .config_value = "qwen2_5_vl",
              .probe = qwen25vl_probe,
              .refuse = qwen25vl_refuse,
              .ignorable = qwen_ignorable},
    .config = {.dimensions = qwen25vl_dimensions,
               .n_dimensions = COUNT_OF(qwen25vl_dimensions),
               .settings = qwen25vl_settings,
               .n_settings = COUNT_OF(qwen25vl_settings),
               .expects = qwen25vl_expects,
               .configure = qwen25vl_configure,
               .derive_dims = qwen25vl_derive_dims,
               .derive = qwen_derive,
               .rest =
                   "\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"hidden_act\": \"silu\", "
                   "\"tie_word_embeddings\": false, \"max_position_embeddings\": 128000, "
                   "\"vision_start_token_id\": 151652, \"vision_end_token_id\": 151653, "
                   "\"image_token_id\": 151655, \"video_token_id\": 151656"},
    .reads = {.tokens = true},
    .blocks = {.list = qwen25vl_blocks, .rows = qwen_rows},
    .state = {.bytes = sizeof(struct qwen_state),
              .tensors = qwen_state_tensors,
              .n_tensors = COUNT_OF(qwen_state_tensors),
              .declare = qwen_declare},
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 3584}},
};
