/* Text connectors of LTX-2 and 2.3 as a text encoder without tokens: one transformer for the video's text and
 * one for the sound's. Both read the text projection's rows (lane.source): the same columns in LTX-2, columns
 * of their own in 2.3. Their outputs lie side by side in lane.text, the video's first.
 *
 * The first rows are the prompt's; learned registers fill the others: row r has register r % REGISTERS. A
 * block: x += out(attention(rms(x))); x += down(gelu(up(rms(x)))); the norms have no weights, attention has
 * no mask. RMS norms with weight over all heads of q and k, then rope with one axis: positions row / 4096.
 * LTX-2.3 multiplies each head's output by 2 sigmoid(gate of the normed row). A norm follows the last block.
 * Source: diffusers 0.42, pipelines/ltx2/connectors.py, models/transformers/transformer_ltx2.py. */
#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/models.h"
#include "models/row_chunk.h"

#include <math.h>

/* Indices into component.dims. WIDTH to FEED_FORWARD: of the block's connector; GATES: 0 without gates. */
enum {
    REGISTERS,
    VIDEO,
    AUDIO,
    VIDEO_HEADS,
    AUDIO_HEADS,
    VIDEO_HEAD,
    AUDIO_HEAD,
    VIDEO_LAYERS,
    AUDIO_LAYERS,
    GATED,
    WIDTH,
    GATES,
    FEED_FORWARD,
};

static const float connector_eps = 1e-6F;

struct connector {
    int32_t source, width, heads, layers; /* first column in lane.source; columns; heads; blocks */
};

struct connectors_settings {
    double theta, positions; /* rope base; number of positions */
    int interleaved;         /* rope rotates adjacent values instead of halves of a head */
    struct connector of[2];  /* of the video's text; of the sound's */
};

/* Both connectors use the same memory, one after the other. */
struct connectors_state {
    struct tensor tokens; /* [T, width of the wider connector] */
    struct tensor rope;   /* [T, width / 2, 2] */
};

struct registers_weights {
    struct tensor rows;
};

struct connector_weights {
    struct linear_weights q, k, v, gates, out, up, down;
    struct tensor q_norm, k_norm;
};

/* clang-format off */
#define REGISTER_ROWS(X, S)                                                                                  \
    X##WEIGHT(S, rows, (.rank = 2, .dim = {REGISTERS, WIDTH}, .init_scale = 1), "learnable_registers")
WEIGHT_TABLE(video_registers_table, REGISTER_ROWS, registers_weights,
             "video_connector.", "video_embeddings_connector.");
WEIGHT_TABLE(audio_registers_table, REGISTER_ROWS, registers_weights,
             "audio_connector.", "audio_embeddings_connector.");

#define LAYER(X, S)                                                                                          \
    X##LINEAR(S, q, WIDTH, WIDTH, "attn1.to_q")                                                              \
    X##LINEAR(S, k, WIDTH, WIDTH, "attn1.to_k")                                                              \
    X##LINEAR(S, v, WIDTH, WIDTH, "attn1.to_v")                                                              \
    X##VECTOR(S, q_norm, WIDTH, "attn1.norm_q", "attn1.q_norm")                                              \
    X##VECTOR(S, k_norm, WIDTH, "attn1.norm_k", "attn1.k_norm")                                              \
    X##LINEAR(IF_DIM(S, GATES), gates, GATES, WIDTH, "attn1.to_gate_logits")                                 \
    X##LINEAR(S, out, WIDTH, WIDTH, "attn1.to_out.0")                                                        \
    X##LINEAR(S, up, FEED_FORWARD, WIDTH, "ff.net.0.proj")                                                   \
    X##LINEAR(S, down, WIDTH, FEED_FORWARD, "ff.net.2")
WEIGHT_TABLE(video_layer_table, LAYER, connector_weights, "video_connector.transformer_blocks.%d.",
             "video_embeddings_connector.transformer_1d_blocks.%d.");
WEIGHT_TABLE(audio_layer_table, LAYER, connector_weights, "audio_connector.transformer_blocks.%d.",
             "audio_embeddings_connector.transformer_1d_blocks.%d.");
/* clang-format on */

/* The part of a state tensor that a connector of this width uses: [T, width] or [T, width, 2]. */
static struct tensor connector_tensor(struct tensor whole, int32_t width) {
    return tensor_make(whole.data, DTYPE_F32, whole.rank, (int32_t[]){whole.dim[0], width, 2});
}

/* Fills the token rows and the rope table of a connector. */
static void connector_begin(struct context *x, const void *weights, const struct visit_scope *scope, int i) {
    const struct registers_weights *w = weights;
    const struct connectors_settings *s = scope->settings;
    const struct connectors_state *state = scope->lane->state;
    const struct connector *c = &s->of[i];
    struct tensor tokens = connector_tensor(state->tokens, c->width), source = scope->lane->source;
    int32_t T = tokens.dim[0], n = source.rank ? source.dim[0] : 0, R = w->rows.dim[0];
    if (n > T) n = T;
    if (n)
        op_copy(x, tensor_slice(tokens, 0, n),
                tensor_slice_columns(tensor_slice(source, 0, n), c->source, c->width));
    for (int32_t row = n, rows; row < T; row += rows) {
        rows = R - row % R < T - row ? R - row % R : T - row;
        op_copy(x, tensor_slice(tokens, row, rows), tensor_slice(w->rows, row % R, rows));
    }
    op_rope_axis(x, connector_tensor(state->rope, c->width / 2),
                 (struct rope_axis){.theta = s->theta,
                                    .step = 1,
                                    .numerator = 1,
                                    .denominator = 1,
                                    .size = (float)s->positions,
                                    .corner = true});
}

/* Computes queries or keys: linear layer, norm over all heads, rope. */
static void connector_project(struct context *x, struct tensor out, struct tensor n,
                              const struct linear_weights *w, struct tensor norm, struct tensor rope,
                              struct rotation rotation) {
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, w->weight, (struct epilogue){.bias = w->bias});
    op_rms_norm(x, heads, heads, norm, connector_eps, (struct modulation){0});
    op_rope(x, out, heads, rope, rotation);
    x->scratch->used = mark;
}

static void connector_attend(struct context *x, const struct connector_weights *w, struct tensor tokens,
                             struct tensor rope, const struct connectors_settings *s, int32_t heads) {
    uint64_t mark = x->scratch->used;
    int32_t T = tokens.dim[0], width = tokens.dim[1];
    struct rotation rotation = {.heads = heads,
                                .pairs = s->interleaved ? ROPE_INTERLEAVED : ROPE_HALVES,
                                .axes = {.n_axes = 1, .extent = {T}}};
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    struct tensor k = context_operand(x, 2, tokens.dim), v = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, (struct tensor){0}, connector_eps, (struct modulation){0});
    connector_project(x, q, n, &w->q, w->q_norm, rope, rotation);
    connector_project(x, k, n, &w->k, w->k_norm, rope, rotation);
    op_linear(x, v, n, w->v.weight, (struct epilogue){.bias = w->v.bias});
    /* The gates multiply f32 values, before they are rounded to operands. */
    struct tensor attended = w->gates.weight.rank ? context_unrounded(x, q) : q;
    op_attention(x, attended, q, k, v,
                 (struct attention_options){
                     .queries = heads, .keys = heads, .scale = 1 / sqrtf((float)(width / heads))});
    if (w->gates.weight.rank) {
        struct tensor gates = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, heads});
        op_linear(x, gates, n, w->gates.weight, (struct epilogue){.bias = w->gates.bias});
        op_glu(x, q, gates, attended, ACTIVATION_SIGMOID_TWICE);
    }
    op_linear(x, tokens, q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = tokens});
    x->scratch->used = mark;
}

static void connector_feed_forward(struct context *x, const struct connector_weights *w,
                                   struct tensor tokens) {
    int32_t T = tokens.dim[0], chunk = row_chunk(x, T);
    struct tensor n = context_operand(x, 2, (int32_t[]){chunk, tokens.dim[1]});
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, w->up.weight.dim[0]});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), h = tensor_slice(n, 0, rows);
        struct tensor up = tensor_slice(wide, 0, rows);
        op_rms_norm(x, h, t, (struct tensor){0}, connector_eps, (struct modulation){0});
        op_linear(x, up, h, w->up.weight,
                  (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
        op_linear(x, t, up, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = t});
    }
}

static void connector_forward(struct context *x, const void *weights, const struct visit_scope *scope,
                              int i) {
    const struct connectors_settings *s = scope->settings;
    const struct connectors_state *state = scope->lane->state;
    const struct connector *c = &s->of[i];
    struct tensor tokens = connector_tensor(state->tokens, c->width);
    connector_attend(x, weights, tokens, connector_tensor(state->rope, c->width / 2), s, c->heads);
    connector_feed_forward(x, weights, tokens);
    if (scope->number < c->layers - 1) return;
    op_rms_norm(x, tokens, tokens, (struct tensor){0}, connector_eps, (struct modulation){0});
    op_copy(x, tensor_slice_columns(scope->lane->text, i ? s->of[0].width : 0, c->width), tokens);
}

static void connectors_begin_video(struct context *x, const void *w, const struct visit_scope *scope) {
    connector_begin(x, w, scope, 0);
}
static void connectors_begin_audio(struct context *x, const void *w, const struct visit_scope *scope) {
    connector_begin(x, w, scope, 1);
}
static void connectors_forward_video(struct context *x, const void *w, const struct visit_scope *scope) {
    connector_forward(x, w, scope, 0);
}
static void connectors_forward_audio(struct context *x, const void *w, const struct visit_scope *scope) {
    connector_forward(x, w, scope, 1);
}

BLOCK(connectors_kind_video_registers, "video registers", "video_connector.registers", video_registers_table,
      registers_weights, connectors_begin_video, .never_quantised = true);
BLOCK(connectors_kind_video_layer, "video layer", "video_connector.layers.%d", video_layer_table,
      connector_weights, connectors_forward_video);
BLOCK(connectors_kind_audio_registers, "audio registers", "audio_connector.registers", audio_registers_table,
      registers_weights, connectors_begin_audio, .never_quantised = true);
BLOCK(connectors_kind_audio_layer, "audio layer", "audio_connector.layers.%d", audio_layer_table,
      connector_weights, connectors_forward_audio);

#define VIDEO_BLOCKS                                                                                         \
    "video_connector.transformer_blocks.", "video_embeddings_connector.transformer_1d_blocks."
#define AUDIO_BLOCKS                                                                                         \
    "audio_connector.transformer_blocks.", "audio_embeddings_connector.transformer_1d_blocks."
#define GATE_LOGITS                                                                                          \
    "video_connector.transformer_blocks.0.attn1.to_gate_logits.weight",                                      \
        "video_embeddings_connector.transformer_1d_blocks.0.attn1.to_gate_logits.weight"
#define REGISTERS_OF(stream)                                                                                 \
    stream "_connector.learnable_registers", stream "_embeddings_connector.learnable_registers"

static bool connectors_probe(const struct tensor_index *index) {
    return index_find(index, "video_connector.learnable_registers") ||
           index_find(index, "video_embeddings_connector.learnable_registers");
}

static void connectors_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    bool audio = ref->kind == &connectors_kind_audio_layer || ref->kind == &connectors_kind_audio_registers;
    dims[WIDTH] = c->dims[audio ? AUDIO : VIDEO];
    dims[GATES] = c->dims[GATED] ? c->dims[audio ? AUDIO_HEADS : VIDEO_HEADS] : 0;
    dims[FEED_FORWARD] = 4 * dims[WIDTH];
}

static int connectors_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &connectors_kind_video_registers};
    for (int i = 0; i < c->dims[VIDEO_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &connectors_kind_video_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &connectors_kind_audio_registers};
    for (int i = 0; i < c->dims[AUDIO_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &connectors_kind_audio_layer, .number = i};
    return n;
}

/* Number of heads: of the configuration, else one for each gate, else heads of 128 values. */
static enum status connectors_read_heads(const struct component *c, const struct config *config,
                                         const char *key, const char *gates, const char *other_gates,
                                         int32_t width, int32_t *heads, struct error *e) {
    const struct index_entry *entry = index_find(&c->index, gates);
    int n = width / 128;
    if (!entry) entry = index_find(&c->index, other_gates);
    if (entry) n = entry->dim[0];
    if (config_int(config, key, 1, 1024, &n, e) != OK) return e->code;
    *heads = n;
    if (n && width % n == 0 && width / n % 2 == 0 && width / n <= 512) return OK;
    return error_set(e, SHAPE,
                     "unsupported width of a text connector" WHERE "%s" FOUND "%d columns, %d heads" EXPECTED
                     "even heads of at most 512 values",
                     c->index.sources[0].path, width, n);
}

static enum status connectors_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    bool precise = true, separate = d[GATED];
    connectors_read_heads(c, config, "video_connector_num_attention_heads", GATE_LOGITS, d[VIDEO],
                          &d[VIDEO_HEADS], e);
    if (e->code == OK)
        connectors_read_heads(
            c, config, "audio_connector_num_attention_heads",
            "audio_connector.transformer_blocks.0.attn1.to_gate_logits.weight",
            "audio_embeddings_connector.transformer_1d_blocks.0.attn1.to_gate_logits.weight", d[AUDIO],
            &d[AUDIO_HEADS], e);
    config_bool(config, "rope_double_precision", &precise, e);
    config_bool(config, "per_modality_projections", &separate, e);
    if (e->code != OK) return e->code;
    d[VIDEO_HEAD] = d[VIDEO] / d[VIDEO_HEADS];
    d[AUDIO_HEAD] = d[AUDIO] / d[AUDIO_HEADS];
    if (!precise)
        return error_set(e, UNSUPPORTED,
                         "unsupported rope of the text connectors" WHERE "%s" FOUND
                         "rope_double_precision false" EXPECTED "true",
                         config->path);
    if (separate != (d[GATED] != 0))
        return error_set(e, UNSUPPORTED,
                         "unsupported text connectors" WHERE "%s" FOUND "%s" EXPECTED
                         "separate text projections and gates (LTX-2.3), or neither (LTX-2)",
                         config->path, d[GATED] ? "gates, one text projection" : "no gates");
    if (separate || d[VIDEO] == d[AUDIO]) return OK;
    return error_set(e, SHAPE,
                     "the two text connectors without gates differ in width" WHERE "%s" FOUND
                     "%d and %d" EXPECTED "the same width",
                     c->index.sources[0].path, d[VIDEO], d[AUDIO]);
}

static void connectors_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[VIDEO] = d[VIDEO_HEADS] * d[VIDEO_HEAD];
    d[AUDIO] = d[AUDIO_HEADS] * d[AUDIO_HEAD];
}

static void connectors_derive(struct component *c) {
    struct connectors_settings *s = (struct connectors_settings *)c->settings;
    const int32_t *d = c->dims;
    s->of[0] = (struct connector){0, d[VIDEO], d[VIDEO_HEADS], d[VIDEO_LAYERS]};
    s->of[1] = (struct connector){d[GATED] ? d[VIDEO] : 0, d[AUDIO], d[AUDIO_HEADS], d[AUDIO_LAYERS]};
    c->text_columns = d[VIDEO] + d[AUDIO];
    c->source_columns = d[GATED] ? c->text_columns : d[VIDEO];
}

static void connectors_declare(const struct component *c, struct lane *lanes, int n_lanes,
                               struct arena *arena, struct arena *pictures, bool *ok) {
    int32_t width = c->dims[VIDEO] > c->dims[AUDIO] ? c->dims[VIDEO] : c->dims[AUDIO];
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct connectors_state *state = lanes[i].state;
        int32_t rows = lanes[i].text.dim[0];
        state->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, width}, ok);
        state->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){rows, width / 2, 2}, ok);
    }
}

/* Published sizes: LTX-2.3. */
static const struct dimension connectors_dimensions[] = {
    {"registers", 128, 1, 1024, .place = REGISTERS, OF_TENSOR(2, 0, REGISTERS_OF("video")),
     .key = "video_connector_num_learnable_registers"},
    {"video_heads", 32, 1, 1024, .place = VIDEO_HEADS, .key = "video_connector_num_attention_heads"},
    {"audio_heads", 32, 1, 1024, .place = AUDIO_HEADS, .key = "audio_connector_num_attention_heads"},
    {"video_head", 128, 2, 512, .place = VIDEO_HEAD, .key = "video_connector_attention_head_dim"},
    {"audio_head", 64, 2, 512, .place = AUDIO_HEAD, .key = "audio_connector_attention_head_dim"},
    {"video_layers", 8, 1, 400, .place = VIDEO_LAYERS, OF_BLOCKS(VIDEO_BLOCKS),
     .key = "video_connector_num_layers"},
    {"audio_layers", 8, 1, 400, .place = AUDIO_LAYERS, OF_BLOCKS(AUDIO_BLOCKS),
     .key = "audio_connector_num_layers"},
    {"gates", 1, 0, 1, .place = GATED, OF_TENSOR(0, 0, GATE_LOGITS), .key = "video_gated_attn",
     .form = FORM_BOOL},
    {.place = REGISTERS, .key = "audio_connector_num_learnable_registers"},
    {.place = GATED, .key = "audio_gated_attn", .form = FORM_BOOL},
    {.place = VIDEO, OF_TENSOR(2, 1, REGISTERS_OF("video"))},
    {.place = AUDIO, OF_TENSOR(2, 1, REGISTERS_OF("audio"))},
};

static const struct setting connectors_settings[] = {
    {{"rope_theta"}, offsetof(struct connectors_settings, theta), SETTING_DOUBLE, 10000, 1, 1e9},
    {{"connector_rope_base_seq_len"},
     offsetof(struct connectors_settings, positions),
     SETTING_DOUBLE,
     4096,
     1,
     1e6},
    {{"rope_type", "split", "interleaved"},
     offsetof(struct connectors_settings, interleaved),
     SETTING_WORD,
     0,
     0,
     0},
};

static const struct state_tensor connectors_state_tensors[] = {STATE_TENSOR(connectors_state, tokens),
                                                               STATE_TENSOR(connectors_state, rope)};

static const char *const connectors_names[] = {"video_connector.", "audio_connector.",
                                               "video_embeddings_connector.", "audio_embeddings_connector.",
                                               NULL};

const struct family family_ltx2_connectors = {
    .name = "ltx2_connectors",
    .kind = FAMILY_TEXT,
    .display_name = "text connectors of LTX-2",
    .files = {.config_key = "_class_name",
              .config_value = "LTX2TextConnectors",
              .probe = connectors_probe,
              .names = connectors_names},
    .config = {.dimensions = connectors_dimensions,
               .n_dimensions = COUNT_OF(connectors_dimensions),
               .settings = connectors_settings,
               .n_settings = COUNT_OF(connectors_settings),
               .configure = connectors_configure,
               .derive_dims = connectors_derive_dims,
               .derive = connectors_derive,
               .rest = "\"rope_double_precision\": true"},
    .reads = {.tokens = true},
    .blocks = {.list = connectors_blocks, .dims = connectors_block_dims},
    .state = {.bytes = sizeof(struct connectors_state),
              .tensors = connectors_state_tensors,
              .n_tensors = COUNT_OF(connectors_state_tensors),
              .declare = connectors_declare},
    .predicted =
        {{.kind = "video layer", .alone = true, .tokens = 1024, .text_rows = 1024, .text_columns = 6144}},
};
