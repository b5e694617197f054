/* Decoder layers of language models as text encoders: implements llm_layers.h. Source: transformers 5.23,
 * models/qwen3/modeling_qwen3.py, models/mistral/modeling_mistral.py,
 * models/qwen2_5_vl/modeling_qwen2_5_vl.py, models/qwen3_vl/modeling_qwen3_vl.py,
 * models/gemma3/modeling_gemma3.py. */
#include "models/llm_layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
/* rows: embeddings of the prompt's text tokens, [T, HIDDEN]. */
#define EMBEDDING(X, S) X##TABLE(S, rows, LLM_VOCABULARY, LLM_HIDDEN, "embed_tokens", "token_embd")
struct embedding_weights { EMBEDDING(FIELD_, ) };
WEIGHT_TABLE_NAMED(llm_embedding_table, EMBEDDING, embedding_weights, LLM_NAMED, "", "");

#define FINAL_NORM(X, S) X##VECTOR(S, norm, LLM_HIDDEN, "norm", "output_norm")
struct norm_weights { FINAL_NORM(FIELD_, ) };
WEIGHT_TABLE_NAMED(llm_norm_table, FINAL_NORM, norm_weights, LLM_NAMED, "", "");
/* clang-format on */

/* Returns the hidden states [T, HIDDEN]. */
static struct tensor llm_tokens(const struct lane *lane) {
    const struct llm_state *state = lane->state;
    return state->tokens.rank ? state->tokens : lane->text;
}

/* Rows of a prompt with masked padding, in order: n_copied + n_keyless rows of padding, n_keys keys, padding
 * after the keys. Attention is causal: padding before the keys reads no key, and its attention output is 0 as
 * in PyTorch 2.5 and later. Its rows are therefore equal: the last one is computed (n_keyless 1), the rows
 * before it are copied from it. Padding after the keys reads all keys. */
struct key_rows {
    int32_t n_copied, n_keyless, n_keys;
};

static struct key_rows llm_key_rows(const struct lane *lane) {
    int32_t first = lane->keys.first, n_keyless = first > 0;
    return (struct key_rows){.n_copied = first - n_keyless,
                             .n_keyless = n_keyless,
                             .n_keys = lane->keys.n ? lane->keys.n : llm_tokens(lane).dim[0]};
}

/* Segment of a prompt: consecutive text tokens and the image after them. */
struct prompt_segment {
    int32_t first, n;                /* index of the first text token; number of text tokens, possibly 0 */
    const struct vision_span *image; /* image after the text tokens; NULL: end of the prompt */
};

/* Returns segment i of a prompt of n_tokens. */
static struct prompt_segment prompt_segment(const struct lane *lane, int32_t n_tokens, int i) {
    struct prompt_segment segment = {0};
    if (i)
        segment.first = lane->vision_spans[i - 1].first +
                        lane->vision_spans[i - 1].height * lane->vision_spans[i - 1].width;
    if (i < LANE_REFERENCES_MAX && lane->vision_spans[i].height) segment.image = &lane->vision_spans[i];
    segment.n = (segment.image ? segment.image->first : n_tokens) - segment.first;
    return segment;
}

int llm_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
    int n = 0;
    (void)c;
    (void)i_table;
    for (int i = 0;; i++) {
        struct prompt_segment segment = prompt_segment(lane, lane->n_tokens, i);
        for (int32_t k = 0; k < segment.n; k++, n++)
            if (rows) rows[n] = lane->tokens[segment.first + k];
        if (!segment.image) return n;
    }
}

/* Fills the hidden states: token embeddings (rows, [text tokens, HIDDEN]) and vision tokens. */
static void llm_place_tokens(struct context *x, const struct lane *lane, struct tensor rows) {
    struct tensor tokens = llm_tokens(lane);
    for (int i = 0, n = 0;; i++) {
        struct prompt_segment segment = prompt_segment(lane, tokens.dim[0], i);
        if (segment.n)
            op_copy(x, tensor_slice(tokens, segment.first, segment.n), tensor_slice(rows, n, segment.n));
        n += segment.n;
        if (!segment.image) return;
        struct tensor image = segment.image->rows;
        op_copy(x, tensor_slice(tokens, segment.image->first, image.dim[0]),
                tensor_slice_columns(image, 0, tokens.dim[1]));
    }
}

/* Position grids of M-RoPE: one for each text segment and image. Text after an image continues after the
 * longer side of its token grid. */
enum { LLM_GRIDS_MAX = 2 * LANE_REFERENCES_MAX + 1 };
_Static_assert((int)LLM_GRIDS_MAX <= (int)ROPE_GRIDS_MAX, "rope table of a prompt with the most images");

static void llm_list_grids(const struct lane *lane, int32_t n_tokens, struct rope_options *rope) {
    int32_t p = 0;
    for (int i = 0;; i++) {
        struct prompt_segment segment = prompt_segment(lane, n_tokens, i);
        const struct vision_span *image = segment.image;
        if (segment.n)
            rope->grid[rope->n_grids++] =
                (struct rope_grid){.start = {p, p, p}, .extent = {segment.n}, .diagonal = true};
        p += segment.n;
        if (!image) return;
        rope->grid[rope->n_grids++] =
            (struct rope_grid){.start = {p, p, p}, .extent = {1, image->height, image->width}};
        p += image->height > image->width ? image->height : image->width;
    }
}

/* Returns the rope table's options without grids: one position axis, or three with M-RoPE. M-RoPE and Gemma 3
 * compute frequencies in float32, as transformers does. */
static struct rope_options llm_rope(const struct llm_settings *settings, int head) {
    struct rope_options rope = {.theta = settings->rope_theta,
                                .position_divisor = settings->position_divisor,
                                .n_axes = 1,
                                .axis_dim = {head},
                                .f32_frequencies = settings->local_rope_theta > 0};
    if (!settings->mrope_section[0]) return rope;
    rope.n_axes = MROPE_SECTIONS;
    rope.mrope = rope.f32_frequencies = true;
    rope.mrope_interleaved = settings->mrope_interleaved;
    for (int i = 0; i < MROPE_SECTIONS; i++) rope.axis_dim[i] = 2 * settings->mrope_section[i];
    return rope;
}

static void llm_forward_embedding(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct llm_settings *settings = scope->settings;
    const struct llm_state *state = scope->lane->state;
    llm_place_tokens(x, scope->lane, w->rows);
    struct tensor tokens = llm_tokens(scope->lane);
    /* Models with this factor get no images here, so all rows are token embeddings. */
    if (settings->embedding_factor > 0)
        op_add_scaled(x, tokens, tokens, tokens, settings->embedding_factor - 1);
    hidden_states_write(x, &settings->output, scope->lane, state->tokens, -1);
    struct rope_options rope = llm_rope(settings, 2 * state->rope.dim[1]);
    int32_t T = state->rope.dim[0], keys = llm_key_rows(scope->lane).n_keys;
    /* Masked padding after a prompt with images has the position of the first token, 0 (transformers'
     * get_rope_index). After a prompt without images, padding continues the positions. */
    int32_t placed = scope->lane->vision_spans[0].height ? keys : T;
    llm_list_grids(scope->lane, placed, &rope);
    op_rope_table(x, tensor_slice(state->rope, 0, placed), &rope);
    struct tensor rows = tensor_reshape(state->rope, 2, (int32_t[]){T, 2 * state->rope.dim[1]});
    if (T > placed) op_broadcast_row(x, tensor_slice(rows, placed, T - placed), tensor_slice(rows, 0, 1));
    if (!state->local_rope.rank) return;
    rope.theta = settings->local_rope_theta;
    rope.position_divisor = 1;
    op_rope_table(x, state->local_rope, &rope);
}

static bool llm_is_global(const struct llm_settings *settings, int layer) {
    return settings->global_layers[layer / 8] >> layer % 8 & 1;
}

struct projection {
    struct tensor weight, bias, norm;
};

/* Computes queries or keys: linear layer, then norm (if the family has one) and rope of each head. n: normed
 * rows; its first row is the first key. */
static void llm_project_heads(struct context *x, struct tensor out, struct tensor n, struct projection w,
                              const struct visit_scope *scope) {
    const struct llm_settings *settings = scope->settings;
    const struct llm_state *state = scope->lane->state;
    bool local = state->local_rope.rank && !llm_is_global(settings, scope->number);
    struct tensor table = local ? state->local_rope : state->rope;
    struct rotation rotation = {.heads = out.dim[1] / (2 * state->rope.dim[1]),
                                .pairs = settings->interleaved ? ROPE_INTERLEAVED : ROPE_HALVES,
                                .norm = w.norm,
                                .zero_centered = settings->zero_centered,
                                .eps = settings->norm_eps};
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, w.weight, (struct epilogue){.bias = w.bias});
    op_rope(x, out, heads, tensor_slice(table, scope->lane->keys.first, out.dim[0]), rotation);
    x->scratch->used = mark;
}

/* tokens [T, HIDDEN] += rms_norm(in . weight^T). norm: weight of the norm; rank 0: no norm. */
static void llm_add_output(struct context *x, struct tensor tokens, struct tensor in, struct tensor weight,
                           struct tensor norm, const struct llm_settings *settings) {
    if (!norm.rank) {
        op_linear(x, tokens, in, weight, (struct epilogue){.residual = tokens});
        return;
    }
    struct tensor out = context_tensor(x, DTYPE_F32, 2, tokens.dim);
    op_linear(x, out, in, weight, (struct epilogue){0});
    op_rms_norm(x, tokens, out, norm, settings->norm_eps,
                (struct modulation){.zero_centered = settings->zero_centered, .base = tokens});
}

/* Adds the attention output to tokens [T, HIDDEN]: the rows from the first key to the end of the prompt.
 * n: the same rows, normed. */
static void llm_attend(struct context *x, const struct llm_layer_weights *w, const struct visit_scope *scope,
                       struct tensor tokens, struct tensor n) {
    const struct llm_settings *settings = scope->settings;
    const struct llm_state *state = scope->lane->state;
    int32_t T = tokens.dim[0], keys = llm_key_rows(scope->lane).n_keys, head = 2 * state->rope.dim[1];
    float scalar = settings->query_scalar > 0 ? (float)settings->query_scalar : (float)head;
    struct tensor q = context_operand(x, 2, (int32_t[]){T, w->q.dim[0]});
    struct tensor k = context_operand(x, 2, (int32_t[]){keys, w->k.dim[0]});
    struct tensor v = context_operand(x, 2, (int32_t[]){keys, w->v.dim[0]});
    struct tensor n_keys = tensor_slice(n, 0, keys), q_keys = tensor_slice(q, 0, keys);
    struct attention_options options = {.queries = w->q.dim[0] / head,
                                        .keys = w->k.dim[0] / head,
                                        .scale = 1 / sqrtf(scalar),
                                        .causal = true};
    llm_project_heads(x, q, n, (struct projection){w->q, w->q_bias, w->q_norm}, scope);
    llm_project_heads(x, k, n_keys, (struct projection){w->k, w->k_bias, w->k_norm}, scope);
    op_linear(x, v, n_keys, w->v, (struct epilogue){.bias = w->v_bias});
    op_attention(x, q_keys, q_keys, k, v, options);
    options.causal = false; /* padding after the keys reads all keys */
    struct tensor q_padding = tensor_slice(q, keys, T - keys);
    if (T > keys) op_attention(x, q_padding, q_padding, k, v, options);
    llm_add_output(x, tokens, q, w->out, w->attention_norm, settings);
}

/* Adds deepstack feature number `layer` of each image to the image's rows of all tokens [T, HIDDEN]. A lane
 * with fewer features is unchanged. */
static void llm_add_deepstack(struct context *x, const struct lane *lane, struct tensor all, int layer) {
    int32_t hidden = all.dim[1];
    for (int i = 0; i < LANE_REFERENCES_MAX && lane->vision_spans[i].height; i++) {
        const struct vision_span *image = &lane->vision_spans[i];
        if (layer + 1 >= image->rows.dim[1] / hidden) return;
        struct tensor tokens = tensor_slice(all, image->first, image->rows.dim[0]);
        op_add(x, tokens, tokens, tensor_slice_columns(image->rows, (layer + 1) * hidden, hidden));
    }
}

void llm_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct llm_layer_weights *w = weights;
    const struct llm_settings *settings = scope->settings;
    struct tensor all = llm_tokens(scope->lane);
    struct modulation modulation = {.zero_centered = settings->zero_centered};
    struct epilogue none = {0};
    struct key_rows rows = llm_key_rows(scope->lane);
    int32_t T = all.dim[0] - rows.n_copied;
    struct tensor tokens = tensor_slice(all, rows.n_copied, T);
    struct tensor n = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm1, settings->norm_eps, modulation);
    uint64_t mark = x->scratch->used;
    llm_attend(x, w, scope, tensor_slice(tokens, rows.n_keyless, T - rows.n_keyless),
               tensor_slice(n, rows.n_keyless, T - rows.n_keyless));
    x->scratch->used = mark;
    op_rms_norm(x, n, tokens, w->norm2, settings->norm_eps, modulation);
    struct tensor gated = context_operand(x, 2, (int32_t[]){T, w->gate.dim[0]});
    uint64_t after_gated = x->scratch->used;
    struct tensor gate = context_unrounded(x, gated);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){T, w->up.dim[0]});
    op_linear(x, gate, n, w->gate, none);
    op_linear(x, up, n, w->up, none);
    op_glu(x, gated, gate, up, settings->gated_by_gelu ? ACTIVATION_GELU_TANH : ACTIVATION_SILU);
    if (w->ff_norm.rank) x->scratch->used = after_gated;
    llm_add_output(x, tokens, gated, w->down, w->ff_norm, settings);
    if (rows.n_copied) op_broadcast_row(x, tensor_slice(all, 0, rows.n_copied), tensor_slice(tokens, 0, 1));
    hidden_states_write(x, &settings->output, scope->lane,
                        ((const struct llm_state *)scope->lane->state)->tokens, scope->number);
    /* transformers records a layer's hidden state before it adds the layer's deepstack feature. After the
     * last layer that runs, the feature has no reader. */
    if (scope->number + 1 < hidden_states_used_layers(&settings->output.states, settings->output.n_layers))
        llm_add_deepstack(x, scope->lane, all, scope->number);
}

static void llm_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct llm_settings *settings = scope->settings;
    const struct llm_state *state = scope->lane->state;
    hidden_states_norm(x, &settings->output, scope->lane, state->tokens, (struct affine){.weight = w->norm},
                       settings->norm_eps);
}

BLOCK(llm_kind_embedding, "embedding", "embed_tokens", llm_embedding_table, embedding_weights,
      llm_forward_embedding, .embedding_table = true);
BLOCK(llm_kind_norm, "norm", "norm", llm_norm_table, norm_weights, llm_forward_norm, .never_quantised = true);

int llm_list_blocks(const struct component *c, const struct block_kind *layer, struct block_ref *refs) {
    int n = 0, layers = c->dims[LLM_LAYERS], used = hidden_states_used_layers(&c->reads.hidden, layers);
    refs[n++] = (struct block_ref){.kind = &llm_kind_embedding};
    for (int i = 0; i < layers; i++)
        refs[n++] = (struct block_ref){.kind = layer, .number = i, .unused = i >= used};
    refs[n++] = (struct block_ref){.kind = &llm_kind_norm,
                                   .unused = !hidden_states_use_norm(&c->reads.hidden, layers)};
    return n;
}

bool llm_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail) {
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

bool llm_has_output_norms(const struct tensor_index *index) {
    return llm_has_tensors(index, "pre_feedforward_layernorm.weight", "post_ffw_norm.weight");
}

bool llm_is_qwen3vl(const struct tensor_index *index) {
    const char *prefix = index_prefix(index), *metadata = index->config ? index->config : "";
    return strstr(prefix, "language_model.") || strstr(prefix, "qwen3vl") || strstr(metadata, "\"qwen3vl") ||
           strstr(metadata, "\"qwen3_vl") ||
           index_find(index, "visual.deepstack_merger_list.0.norm.weight") ||
           index_find(index, "model.visual.deepstack_merger_list.0.norm.weight");
}

enum status llm_check_dims(struct component *c, const struct config *config, struct error *e) {
    (void)config;
    const int32_t *d = c->dims;
    int32_t head = d[LLM_HEAD];
    if (head > 0 && d[LLM_Q] % head == 0 && d[LLM_KV] % head == 0 && d[LLM_Q] % d[LLM_KV] == 0 &&
        head % 2 == 0 && head <= 512 && d[LLM_LAYERS] >= hidden_states_min_layers(&c->reads.hidden) &&
        d[LLM_LAYERS] <= FAMILY_BLOCKS_MAX - 1)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent text encoder sizes" WHERE "%s" FOUND
                     "queries %d, keys %d, head %d, layers %d" EXPECTED
                     "queries a multiple of keys, keys a multiple of an even head size, at least %d layers",
                     c->index.sources[0].path, d[LLM_Q], d[LLM_KV], head, d[LLM_LAYERS],
                     hidden_states_min_layers(&c->reads.hidden));
}

enum { HEAD_PUBLISHED = 128 };

int llm_head_size(const struct component *c) {
    int heads = ((const struct llm_settings *)c->settings)->heads, q = c->dims[LLM_Q];
    return !heads ? HEAD_PUBLISHED : q % heads ? 0 : q / heads;
}

void llm_default_mrope(struct component *c, int spatial_16ths) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    int pairs = c->dims[LLM_HEAD] / 2, spatial = pairs < 4 ? 1 : pairs * spatial_16ths / 16;
    s->mrope_section[0] = pairs - 2 * spatial;
    s->mrope_section[1] = s->mrope_section[2] = spatial;
}

enum status llm_check_mrope(const struct component *c, struct error *e) {
    const int *n = ((const struct llm_settings *)c->settings)->mrope_section;
    int pairs = c->dims[LLM_HEAD] / 2;
    if (n[0] > 0 && n[1] > 0 && n[2] > 0 && n[0] + n[1] + n[2] == pairs) return OK;
    return error_set(e, META,
                     "'mrope_section' does not match the head size" WHERE "%s" FOUND "%d, %d, %d" EXPECTED
                     "three positive numbers with a sum of %d",
                     c->index.sources[0].path, n[0], n[1], n[2], pairs);
}

void llm_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[LLM_Q] = d[LLM_HEADS] * d[LLM_HEAD];
    d[LLM_KV] = d[LLM_KEY_HEADS] * d[LLM_HEAD];
}

void llm_derive(struct component *c) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    int32_t *d = c->dims;
    d[LLM_HEADS] = d[LLM_Q] / d[LLM_HEAD];
    d[LLM_KEY_HEADS] = d[LLM_KV] / d[LLM_HEAD];
    s->output = (struct encoder_output){
        .states = c->reads.hidden, .n_layers = d[LLM_LAYERS], .zero_centered = s->zero_centered};
    c->text_columns = hidden_states_count(&c->reads.hidden, d[LLM_LAYERS]) * d[LLM_HIDDEN];
}

void llm_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                 struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct llm_state *state = lanes[i].state;
        int32_t tokens[] = {lanes[i].text.dim[0], c->dims[LLM_HIDDEN]};
        if (hidden_states_need_rows(&c->reads.hidden, &lanes[i]))
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        state->rope = arena_tensor(arena, DTYPE_F32, 3,
                                   (int32_t[]){lanes[i].text.dim[0], c->dims[LLM_HEAD] / 2, 2}, ok);
        if (((const struct llm_settings *)c->settings)->local_rope_theta > 0)
            state->local_rope = arena_tensor(arena, DTYPE_F32, 3, state->rope.dim, ok);
    }
}

const char *const llm_ignorable[] = {"lm_head.", "output.weight", NULL};
const struct state_tensor llm_state_tensors[LLM_STATE_TENSORS] = {
    STATE_TENSOR(llm_state, rope), STATE_TENSOR(llm_state, local_rope), STATE_TENSOR(llm_state, tokens)};
