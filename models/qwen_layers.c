#include "models/qwen_layers.h"

#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>

struct embedding_weights {
    struct tensor rows; /* [T, HIDDEN]: embeddings of the text tokens */
};

static const struct weight_spec qwen_embedding_table[] = {
    {.offset = offsetof(struct embedding_weights, rows),
     .names = {"model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight"},
     .rank = 2,
     .dim = {QWEN_VOCABULARY, QWEN_HIDDEN},
     .init_scale = 1},
};

struct norm_weights {
    struct tensor norm;
};
static const struct weight_spec qwen_norm_table[] = {
    {.offset = offsetof(struct norm_weights, norm),
     .names = {"model.norm.weight", "norm.weight", "output_norm.weight"},
     .rank = 1,
     .dim = {QWEN_HIDDEN}},
};

static struct tensor qwen_tokens(const struct lane *lane) {
    const struct qwen_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
}

/* Columns of lane.text that receive hidden state number i of settings->hidden. */
static struct tensor qwen_output(const struct lane *lane, int i, int32_t columns) {
    return tensor_slice_columns(lane->text, i * columns, columns);
}

/* Segment of a prompt: consecutive text tokens and the image after them. */
struct prompt_segment {
    int32_t first, n;                /* first text token, and number of text tokens, possibly 0 */
    const struct vision_span *image; /* NULL: end of the prompt */
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

int qwen_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
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
                (struct rope_grid){.start = {p}, .extent = {run.n}, .diagonal = true};
        p += run.n;
        if (!image) return;
        rope->grid[rope->n_grids++] =
            (struct rope_grid){.start = {p, p, p}, .extent = {1, image->height, image->width}};
        p += image->height > image->width ? image->height : image->width;
    }
}

/* Rope over one axis, or M-RoPE, whose frequencies transformers computes in float32. */
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
    qwen_list_grids(scope->lane, state->rope.dim[0], &rope);
    op_rope_table(x, state->rope, &rope);
}

struct projection {
    struct tensor weight, bias, norm;
};

/* Queries or keys: linear, norm of each head if the family has one, rope. */
static void qwen_project_heads(struct context *x, struct tensor out, struct tensor n, struct projection w,
                               const struct visit_scope *scope) {
    const struct qwen_settings *settings = scope->settings;
    const struct qwen_state *state = scope->lane->state;
    struct rotation rotation = {.heads = out.dim[1] / (2 * state->rope.dim[1]),
                                .pairs = ROPE_HALVES,
                                .norm = w.norm,
                                .eps = settings->norm_eps};
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, w.weight, (struct epilogue){.bias = w.bias});
    op_rope(x, out, heads, state->rope, rotation);
    x->scratch->used = mark;
}

static void qwen_attend(struct context *x, const struct qwen_layer_weights *w,
                        const struct visit_scope *scope, struct tensor tokens, struct tensor n) {
    const struct qwen_state *state = scope->lane->state;
    int32_t T = tokens.dim[0], head = 2 * state->rope.dim[1];
    struct tensor q = context_operand(x, 2, (int32_t[]){T, w->q.dim[0]});
    struct tensor k = context_operand(x, 2, (int32_t[]){T, w->k.dim[0]});
    struct tensor v = context_operand(x, 2, (int32_t[]){T, w->v.dim[0]});
    int heads = w->q.dim[0] / head, key_heads = w->k.dim[0] / head;
    qwen_project_heads(x, q, n, (struct projection){w->q, w->q_bias, w->q_norm}, scope);
    qwen_project_heads(x, k, n, (struct projection){w->k, w->k_bias, w->k_norm}, scope);
    op_linear(x, v, n, w->v, (struct epilogue){.bias = w->v_bias});
    op_attention(x, q, q, k, v,
                 (struct attention_options){
                     .queries = heads, .keys = key_heads, .scale = 1 / sqrtf((float)head), .causal = true});
    op_linear(x, tokens, q, w->out, (struct epilogue){.residual = tokens});
}

void qwen_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct qwen_layer_weights *w = weights;
    const struct qwen_settings *settings = scope->settings;
    struct tensor tokens = qwen_tokens(scope->lane);
    struct modulation plain = {0};
    struct epilogue none = {0};
    int32_t T = tokens.dim[0];
    struct tensor n = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, plain);
    uint64_t mark = x->scratch->used;
    qwen_attend(x, w, scope, tokens, n);
    x->scratch->used = mark;
    op_rms_norm(x, n, tokens, w->norm2, settings->norm_eps, plain);
    struct tensor gated = context_operand(x, 2, (int32_t[]){T, w->gate.dim[0]});
    struct tensor gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, w->up.dim[0]});
    op_linear(x, gate, n, w->gate, none);
    op_linear(x, up, n, w->up, none);
    op_glu(x, gated, gate, up, ACTIVATION_SILU);
    op_linear(x, tokens, gated, w->down, (struct epilogue){.residual = tokens});
    const struct hidden_states *hidden = &settings->hidden;
    bool separate = ((const struct qwen_state *)scope->lane->state)->tokens.rank;
    for (int i = 0; i < hidden_states_count(hidden) && separate; i++)
        if (hidden->from_end[i] && scope->number == settings->layers - 1 - hidden->from_end[i])
            op_copy(x, qwen_output(scope->lane, i, tokens.dim[1]), tokens);
}

/* Norms hidden state number i, which the tokens hold, and writes it to lane.text. */
static void qwen_norm_output(struct context *x, struct tensor norm, const struct visit_scope *scope, int i) {
    const struct qwen_settings *settings = scope->settings;
    const struct qwen_state *state = scope->lane->state;
    struct tensor tokens = qwen_tokens(scope->lane);
    op_rms_norm(x, tokens, tokens, norm, settings->norm_eps, (struct modulation){0});
    if (state->tokens.rank) op_copy(x, qwen_output(scope->lane, i, tokens.dim[1]), tokens);
}

/* The last layer's output comes first: the tokens' memory is then free for earlier states. */
static void qwen_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct qwen_state *state = scope->lane->state;
    const struct hidden_states *hidden = &((const struct qwen_settings *)scope->settings)->hidden;
    struct tensor tokens = qwen_tokens(scope->lane);
    for (int i = 0; i < hidden_states_count(hidden); i++)
        if (!hidden->from_end[i]) qwen_norm_output(x, w->norm, scope, i);
    for (int i = 0; i < hidden_states_count(hidden) && hidden->final_norm; i++) {
        if (!hidden->from_end[i]) continue;
        if (state->tokens.rank) op_copy(x, tokens, qwen_output(scope->lane, i, tokens.dim[1]));
        qwen_norm_output(x, w->norm, scope, i);
    }
}

static const struct block_kind qwen_kind_embedding = {
    .name = "embedding",
    .format = "embed_tokens",
    .weights = qwen_embedding_table,
    .n_weights = COUNT_OF(qwen_embedding_table),
    .weights_bytes = sizeof(struct embedding_weights),
    .embedding_table = true,
    .forward = qwen_forward_embedding,
};
static const struct block_kind qwen_kind_norm =
    BLOCK_KIND("norm", "norm", qwen_norm_table, norm_weights, qwen_forward_norm, .never_quantised = true);

int qwen_list_blocks(const struct component *c, const struct block_kind *layer, struct block_ref *refs) {
    int n = 0, layers = c->dims[QWEN_LAYERS], least = hidden_states_least(&c->reads.hidden);
    refs[n++] = (struct block_ref){.kind = &qwen_kind_embedding};
    for (int i = 0; i < layers; i++)
        refs[n++] = (struct block_ref){.kind = layer, .number = i, .unused = i >= layers - least};
    refs[n++] = (struct block_ref){.kind = &qwen_kind_norm, .unused = least && !c->reads.hidden.final_norm};
    return n;
}

bool qwen_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail) {
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

static enum status qwen_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int32_t head = d[QWEN_HEAD];
    if (head > 0 && d[QWEN_Q] % head == 0 && d[QWEN_KV] % head == 0 && d[QWEN_Q] % d[QWEN_KV] == 0 &&
        head % 2 == 0 && head <= 512 && d[QWEN_LAYERS] > hidden_states_most(&c->reads.hidden) &&
        d[QWEN_LAYERS] <= FAMILY_BLOCKS_MAX - 1)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent text encoder sizes" WHERE "%s" FOUND
                     "queries %d, keys %d, head %d, layers %d" EXPECTED
                     "queries a multiple of keys, keys a multiple of an even head size, at least %d layers",
                     c->index.sources[0].path, d[QWEN_Q], d[QWEN_KV], head, d[QWEN_LAYERS],
                     hidden_states_most(&c->reads.hidden) + 1);
}

enum status qwen_configure(struct component *c, const struct config *config, struct error *e) {
    return qwen_check_dims(c, e) == OK ? component_check_blocks(c, config, c->dims[QWEN_LAYERS], e) : e->code;
}

void qwen_derive(struct component *c) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int32_t *d = c->dims;
    d[QWEN_HEADS] = d[QWEN_Q] / d[QWEN_HEAD];
    d[QWEN_KEY_HEADS] = d[QWEN_KV] / d[QWEN_HEAD];
    s->layers = d[QWEN_LAYERS];
    s->hidden = c->reads.hidden;
    c->text_columns = hidden_states_count(&s->hidden) * d[QWEN_HIDDEN];
}

void qwen_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                  struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct qwen_state *state = lanes[i].state;
        int32_t tokens[] = {lanes[i].text.dim[0], c->dims[QWEN_HIDDEN]};
        if (!tensor_packed(&lanes[i].text) || hidden_states_count(&c->reads.hidden) > 1)
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        state->rope = arena_tensor(arena, DTYPE_F32, 3,
                                   (int32_t[]){lanes[i].text.dim[0], c->dims[QWEN_HEAD] / 2, 2}, ok);
    }
}

const char *const qwen_ignorable[] = {"lm_head.", "output.weight", NULL};
const struct state_tensor qwen_state_tensors[1] = {STATE_TENSOR(qwen_state, rope)};
