/* Qwen-Image-2.1 transformer (diffusers: QwenImage21Transformer2DModel). One stream of tokens: the text, in
 * which each reference image replaces its vision tokens, then the generated image. A token is one latent
 * pixel. No biases.
 *
 * The prefix (text and references) is modulated as at timestep 0, and no prefix token attends to the
 * generated image. The prefix's keys and values therefore depend on prompt and references alone. The first
 * lane of a prompt computes them for all lanes of the prompt. With lane.keeps_prefix the state keeps them for
 * all blocks and evaluations; otherwise it holds one block's, and every evaluation computes them again. Both
 * ways run the same operators on the same shapes.
 *
 * Attention: a text token attends to itself and all earlier tokens; an image token attends to all tokens up
 * to the last one of its image.
 *
 * One modulation serves all blocks: scale and gate of attention, scale and gate of the feed-forward; the
 * gates pass through tanh. Rope positions (frame, row, column): each text token is one
 * further on all three axes. An image has one frame position, and rows and columns centred on 0; the frame
 * then advances by the image's longer side.
 *
 * Source: diffusers 0.42.1, models/transformers/transformer_qwenimage21.py. ComfyUI's files and GGUF files
 * have the same names, but fuse gate_layer and proj into gate_up. */
#include "models/mmdit.h"
#include "models/row_chunk.h"
#include "models/slots.h"

#include <math.h>

enum {
    DIM,
    FOUR_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    AXES, /* sizes of the three rope axes */
    N_AXES = 3,
    IN = AXES + N_AXES,
    TEXT,
    FREQUENCIES,
    LAYERS,
};

enum { QWEN21_PATCH = 1, QWEN21_MERGE = 2 }; /* side of a token; side of a vision token, in latent pixels */

static const struct patches qwen21_patches = {.side = QWEN21_PATCH, .order = PATCH_CHANNELS_FIRST};
static const float qwen21_time_scale = 1000;

struct qwen21_settings {
    int axis_dim[N_AXES];
    int mlp_ratio, causal_condition; /* keys of config.json; see qwen21_settings */
};

struct qwen21_state {
    struct tensor tokens; /* hidden states: [prefix + image rows, DIM] in the first lane of a prompt; image
                             rows in the others */
    struct tensor image;  /* hidden states of the generated image: the last rows of tokens */
    /* Shared by the lanes of a prompt. */
    struct tensor rope;         /* rope's cosine and sine: [prefix + image rows, HEAD/2, 2] */
    struct tensor text;         /* embedded prompt: [text rows, DIM] */
    struct tensor prefix;       /* hidden states of the prefix: the first rows of the first lane's tokens */
    struct tensor keys, values; /* of the prefix, after norm and rope: [blocks * prefix rows, DIM], in the
                                   operands' type. blocks: LAYERS with lane.keeps_prefix, else 1 */
    /* Conditioning by timestep, shared by all lanes: one row per evaluation if hoisted, else one row. */
    struct tensor condition;   /* [rows, DIM] */
    struct tensor modulation;  /* scale, tanh(gate), scale, tanh(gate): [rows, FOUR_DIM] */
    struct tensor final_scale; /* [rows, DIM] */
    /* Conditioning and modulation at timestep 0, of the prefix. */
    struct tensor prefix_condition, prefix_modulation; /* [1, DIM], [1, FOUR_DIM] */
};

/* clang-format off */
#define TEXT_EMBEDDER(X, S)                                                                                  \
    X##VECTOR(S, norm, TEXT, "txt_in.text_norm")                                                             \
    X##MATRIX(S, in, DIM, TEXT, "txt_in.in_layer")                                                           \
    X##MATRIX(S, out, DIM, DIM, "txt_in.out_layer")
struct text_weights { TEXT_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(qwen21_text_table, TEXT_EMBEDDER, text_weights, "", "");

#define TIME_EMBEDDER(X, S)                                                                                  \
    X##MATRIX(S, in.weight, DIM, FREQUENCIES, "time_text_embed.timestep_embedder.linear_1")                  \
    X##MATRIX(S, out.weight, DIM, DIM, "time_text_embed.timestep_embedder.linear_2")
struct time_weights { struct linear_weights in, out; };
WEIGHT_TABLE(qwen21_time_table, TIME_EMBEDDER, time_weights, "", "");

#define EMBEDDER(X, S) X##MATRIX(S, weight, DIM, IN, "img_in")
WEIGHT_TABLE(qwen21_embedder_table, EMBEDDER, linear_weights, "", "");
#define MODULATION(X, S) X##MATRIX(S, weight, FOUR_DIM, DIM, "modulation.1")
WEIGHT_TABLE(qwen21_modulation_table, MODULATION, linear_weights, "", "");
#define FINAL_MODULATION(X, S) X##MATRIX(S, weight, DIM, DIM, "norm_out.linear")
WEIGHT_TABLE(qwen21_final_modulation_table, FINAL_MODULATION, linear_weights, "", "");
#define FINAL(X, S) X##MATRIX(S, weight, IN, DIM, "proj_out")
WEIGHT_TABLE(qwen21_final_table, FINAL, linear_weights, "", "");

#define LAYER(X, S)                                                                                          \
    X##MATRIX(S, attention.k.weight, DIM, DIM, "attn.to_k")                                                  \
    X##VECTOR(S, attention.k_norm, HEAD, "attn.norm_k")                                                      \
    X##MATRIX(S, attention.v.weight, DIM, DIM, "attn.to_v")                                                  \
    X##MATRIX(S, attention.q.weight, DIM, DIM, "attn.to_q")                                                  \
    X##VECTOR(S, attention.q_norm, HEAD, "attn.norm_q")                                                      \
    X##MATRIX(S, attention.out.weight, DIM, DIM, "attn.to_out.0")                                            \
    X##MATRIX(S, gate.weight, FEED_FORWARD, DIM, "img_mlp.gate_layer", "img_mlp.gate_up[0/2]")               \
    X##MATRIX(S, up.weight, FEED_FORWARD, DIM, "img_mlp.proj", "img_mlp.gate_up[1/2]")                       \
    X##MATRIX(S, down.weight, DIM, FEED_FORWARD, "img_mlp.out")
WEIGHT_TABLE(qwen21_layer_table, LAYER, mmdit_stream_weights, "transformer_blocks.%d.",
             "transformer_blocks.%d.");
/* clang-format on */

/* A run of prefix tokens: text, or a reference image in place of its vision tokens. */
struct qwen21_run {
    int32_t first, rows; /* first row in the prefix; number of rows */
    int32_t text;        /* text: first row of lane.text */
    int reference;       /* index of the reference image; -1: text */
};
enum { QWEN21_RUNS_MAX = 2 * LANE_REFERENCES_MAX + 1 };

/* Returns the number of reference images in the lane's prompt. */
static int qwen21_n_pictures(const struct lane *lane) {
    int n = 0;
    while (n < LANE_REFERENCES_MAX && lane->vision_spans[n].height) n++;
    return n;
}

/* Lists the runs of the prefix in order. Returns their number. */
static int qwen21_list_runs(const struct lane *lane, struct qwen21_run runs[QWEN21_RUNS_MAX]) {
    int n = 0, n_pictures = qwen21_n_pictures(lane);
    int32_t row = 0, text = 0;
    for (int i = 0; i <= n_pictures; i++) {
        const struct vision_span *span = &lane->vision_spans[i];
        int32_t rows = (i < n_pictures ? span->first : lane->text.dim[0]) - text;
        if (rows > 0)
            runs[n++] = (struct qwen21_run){.first = row, .rows = rows, .text = text, .reference = -1};
        row += rows;
        if (i == n_pictures) break;
        text = span->first + span->height * span->width;
        rows = mmdit_token_count(lane->reference[i], QWEN21_PATCH);
        runs[n++] = (struct qwen21_run){.first = row, .rows = rows, .reference = i};
        row += rows;
    }
    return n;
}

static int32_t qwen21_prefix_rows(const struct lane *lane) {
    struct qwen21_run runs[QWEN21_RUNS_MAX];
    int n = qwen21_list_runs(lane, runs);
    return n ? runs[n - 1].first + runs[n - 1].rows : 0;
}

/* True if the visit computes the prefix for all lanes of its prompt. */
static bool qwen21_computes_prefix(const struct visit_scope *scope) {
    return scope->first_of_prompt && (scope->first || !scope->lane->keeps_prefix);
}

/* Returns the rope positions of an image, and advances *frame by its longer side. */
static struct rope_grid qwen21_image_grid(struct tensor latent, int32_t *frame) {
    int32_t h = latent.dim[2], w = latent.dim[3];
    struct rope_grid grid = {.start = {*frame, h / 2 - h, w / 2 - w}, .extent = {1, h, w}};
    *frame += h > w ? h : w;
    return grid;
}

static void qwen21_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct qwen21_settings *settings = scope->settings;
    const struct qwen21_state *state = scope->lane->state;
    struct qwen21_run runs[QWEN21_RUNS_MAX];
    int n = qwen21_list_runs(scope->lane, runs);
    int32_t frame = 0;
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = N_AXES,
        .axis_dim = {settings->axis_dim[0], settings->axis_dim[1], settings->axis_dim[2]},
        .f32_frequencies = true,
    };
    for (int i = 0; i < n; i++) {
        if (runs[i].reference >= 0) {
            rope.grid[rope.n_grids++] = qwen21_image_grid(scope->lane->reference[runs[i].reference], &frame);
            continue;
        }
        rope.grid[rope.n_grids++] = (struct rope_grid){
            .start = {frame, frame, frame}, .extent = {runs[i].rows, 1, 1}, .diagonal = true};
        frame += runs[i].rows;
    }
    rope.grid[rope.n_grids++] = qwen21_image_grid(scope->lane->latent, &frame);
    op_rope_table(x, state->rope, &rope);
}

/* A row of n ones [n]: the cosines of timestep 0. */
static struct tensor qwen21_ones(struct context *x, int32_t n) {
    int32_t both[] = {1, 2 * n};
    struct tensor values = context_tensor(x, DTYPE_F32, 2, both);
    op_timestep(x, values, 0, TIMESTEP_USUAL);
    return tensor_slice(tensor_reshape(values, 1, both + 1), 0, n);
}

static void qwen21_forward_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct text_weights *w = weights;
    const struct qwen21_state *state = scope->lane->state;
    struct tensor text = scope->lane->text, n = context_operand(x, 2, text.dim);
    struct tensor h = context_operand(x, 2, state->text.dim);
    qwen21_fill_rope(x, scope);
    op_rms_norm(x, n, text, w->norm, mmdit_norm_eps, (struct modulation){.zero_centered = true});
    op_linear(x, h, n, w->in, (struct epilogue){.activation = ACTIVATION_GELU_TANH});
    op_linear(x, state->text, h, w->out, (struct epilogue){0});
}

static void qwen21_embed_times(struct context *x, struct tensor out, const float *times,
                               const struct time_weights *w) {
    int32_t n = out.dim[0];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), times[i] * qwen21_time_scale, TIMESTEP_USUAL);
    mmdit_embed(x, out, f, &w->in, &w->out);
}

static void qwen21_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    static const float zero = 0;
    qwen21_embed_times(x, scope_rows(state->condition, scope), scope->timesteps, weights);
    if (scope->first) qwen21_embed_times(x, state->prefix_condition, &zero, weights);
}

/* Computes rows of the modulation. Gates become tanh(gate) by op_rms_norm: the norm of ones is 1, and the
 * operator multiplies it by tanh(gate). */
static void qwen21_modulate(struct context *x, struct tensor out, struct tensor condition,
                            const struct linear_weights *w) {
    enum { PARTS = 4 };
    int32_t dim = out.dim[1] / PARTS, row[] = {1, dim};
    struct tensor all = context_tensor(x, DTYPE_F32, 2, out.dim), ones = qwen21_ones(x, dim);
    mmdit_modulation(x, all, condition, w);
    for (int part = 0; part < PARTS; part += 2)
        op_copy(x, tensor_slice_columns(out, part * dim, dim), tensor_slice_columns(all, part * dim, dim));
    for (int32_t i = 0; i < out.dim[0]; i++)
        for (int part = 1; part < PARTS; part += 2)
            op_rms_norm(x, tensor_slice_columns(tensor_slice(out, i, 1), part * dim, dim),
                        tensor_reshape(ones, 2, row), ones, 0,
                        (struct modulation){.gate = mmdit_chunk(tensor_slice(all, i, 1), part, dim)});
}

static void qwen21_forward_modulation(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    qwen21_modulate(x, scope_rows(state->modulation, scope), scope_rows(state->condition, scope), weights);
    if (scope->first) qwen21_modulate(x, state->prefix_modulation, state->prefix_condition, weights);
}

static void qwen21_forward_final_modulation(struct context *x, const void *weights,
                                            const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->final_scale, scope), scope_rows(state->condition, scope), weights);
}

static void qwen21_embed_image(struct context *x, struct tensor out, struct tensor latent,
                               const struct linear_weights *w) {
    uint64_t mark = x->scratch->used;
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){out.dim[0], w->weight.dim[1]});
    op_patchify(x, patches, latent_planes(latent), qwen21_patches);
    mmdit_linear(x, out, patches, w);
    x->scratch->used = mark;
}

static void qwen21_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    struct qwen21_run runs[QWEN21_RUNS_MAX];
    int n = qwen21_computes_prefix(scope) ? qwen21_list_runs(scope->lane, runs) : 0;
    qwen21_embed_image(x, state->image, scope->lane->latent, weights);
    for (int i = 0; i < n; i++) {
        struct tensor rows = tensor_slice(state->prefix, runs[i].first, runs[i].rows);
        if (runs[i].reference >= 0)
            qwen21_embed_image(x, rows, scope->lane->reference[runs[i].reference], weights);
        else
            op_copy(x, rows, tensor_slice(state->text, runs[i].text, runs[i].rows));
    }
}

/* A layer norm without weights, times 1 + scale. part: index of the scale in the modulation row. */
static void qwen21_norm(struct context *x, struct tensor out, struct tensor tokens, struct tensor modulation,
                        int part) {
    op_layer_norm(x, out, tokens, (struct affine){.scale = mmdit_chunk(modulation, part, tokens.dim[1])},
                  mmdit_norm_eps);
}

/* The second half of a block: tokens += gate * out(attended), then tokens += gate * feed_forward(tokens). */
static void qwen21_update(struct context *x, const struct mmdit_stream_weights *w, struct tensor tokens,
                          struct tensor attended, struct tensor modulation) {
    enum { ATTENTION_GATE = 1, NORM, GATE };
    int32_t T = tokens.dim[0], dim = tokens.dim[1], chunk = row_chunk(x, T);
    op_linear(x, tokens, attended, w->attention.out.weight,
              (struct epilogue){.gate = mmdit_chunk(modulation, ATTENTION_GATE, dim), .residual = tokens});
    struct tensor gate = mmdit_chunk(modulation, GATE, dim);
    struct tensor n = context_operand(x, 2, (int32_t[]){chunk, dim});
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, w->up.weight.dim[0]});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), up = tensor_slice(wide, 0, rows);
        struct tensor h = tensor_slice(n, 0, rows);
        qwen21_norm(x, h, t, modulation, NORM);
        mmdit_activations(x, up, h, &w->gate, &w->up);
        op_linear(x, t, up, w->down.weight, (struct epilogue){.gate = gate, .residual = t});
    }
}

/* Returns attention options for tokens [T, DIM]; rope [T, HEAD/2, 2] gives the head size. */
static struct attention_options qwen21_heads(struct tensor tokens, struct tensor rope, bool causal) {
    int32_t head = 2 * rope.dim[1];
    int heads = tokens.dim[1] / head;
    return (struct attention_options){
        .queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head), .causal = causal};
}

/* Returns this block's rows of the prefix's keys or values. */
static struct tensor qwen21_kept_rows(struct tensor all, const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    int32_t rows = state->prefix.dim[0];
    return tensor_slice(all, all.dim[0] > rows ? scope->number * rows : 0, rows);
}

/* Computes the block for the prefix. last: computes only keys and values, because no later block reads the
 * prefix's hidden states. */
static void qwen21_prefix(struct context *x, const struct mmdit_stream_weights *w,
                          const struct visit_scope *scope, bool last) {
    const struct qwen21_state *state = scope->lane->state;
    struct tensor keys = qwen21_kept_rows(state->keys, scope),
                  values = qwen21_kept_rows(state->values, scope);
    struct tensor tokens = state->prefix, rope = tensor_slice(state->rope, 0, tokens.dim[0]);
    struct tensor modulation = state->prefix_modulation, n = context_operand(x, 2, tokens.dim);
    qwen21_norm(x, n, tokens, modulation, 0);
    mmdit_project_heads(x, keys, n, &w->attention.k, w->attention.k_norm, rope);
    mmdit_linear(x, values, n, &w->attention.v);
    if (last) return;
    struct qwen21_run runs[QWEN21_RUNS_MAX];
    int n_runs = qwen21_list_runs(scope->lane, runs);
    struct tensor q = context_operand(x, 2, tokens.dim);
    mmdit_project_heads(x, q, n, &w->attention.q, w->attention.q_norm, rope);
    for (int i = 0; i < n_runs; i++) {
        struct tensor rows = tensor_slice(q, runs[i].first, runs[i].rows);
        int32_t end = runs[i].first + runs[i].rows;
        op_attention(x, rows, rows, tensor_slice(keys, 0, end), tensor_slice(values, 0, end),
                     qwen21_heads(tokens, rope, runs[i].reference < 0));
    }
    qwen21_update(x, w, tokens, q, modulation);
}

/* Computes the block for the generated image, which attends to the prefix and itself. */
static void qwen21_image(struct context *x, const struct mmdit_stream_weights *w,
                         const struct visit_scope *scope) {
    const struct qwen21_state *state = scope->lane->state;
    struct tensor tokens = state->image, modulation = scope_rows(state->modulation, scope);
    int32_t prefix = state->prefix.dim[0], T = tokens.dim[0], all[] = {prefix + T, tokens.dim[1]};
    struct tensor rope = tensor_slice(state->rope, prefix, T);
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    uint64_t mark = x->scratch->used;
    struct tensor keys = context_operand(x, 2, all), values = context_operand(x, 2, all);
    qwen21_norm(x, n, tokens, modulation, 0);
    op_copy(x, tensor_slice(keys, 0, prefix), qwen21_kept_rows(state->keys, scope));
    op_copy(x, tensor_slice(values, 0, prefix), qwen21_kept_rows(state->values, scope));
    mmdit_project_heads(x, tensor_slice(keys, prefix, T), n, &w->attention.k, w->attention.k_norm, rope);
    mmdit_linear(x, tensor_slice(values, prefix, T), n, &w->attention.v);
    mmdit_project_heads(x, q, n, &w->attention.q, w->attention.q_norm, rope);
    op_attention(x, q, q, keys, values, qwen21_heads(tokens, rope, false));
    x->scratch->used = mark; /* frees keys and values */
    qwen21_update(x, w, tokens, q, modulation);
}

static void qwen21_layer(struct context *x, const void *weights, const struct visit_scope *scope, bool last) {
    uint64_t mark = x->scratch->used;
    if (qwen21_computes_prefix(scope)) qwen21_prefix(x, weights, scope, last);
    x->scratch->used = mark;
    qwen21_image(x, weights, scope);
}

static void qwen21_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    qwen21_layer(x, weights, scope, false);
}

static void qwen21_forward_last(struct context *x, const void *weights, const struct visit_scope *scope) {
    qwen21_layer(x, weights, scope, true);
}

/* Qwen-Image-2.1 predicts noise - data, the velocity of flow matching. */
static void qwen21_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct qwen21_state *state = scope->lane->state;
    struct tensor tokens = state->image, n = context_operand(x, 2, tokens.dim);
    struct tensor values = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], w->weight.dim[0]});
    qwen21_norm(x, n, tokens, scope_rows(state->final_scale, scope), 0);
    mmdit_linear(x, values, n, w);
    op_unpatchify(x, latent_planes(scope->lane->prediction), values, qwen21_patches, 1);
}

BLOCK(qwen21_kind_text, "text", "txt_in", qwen21_text_table, text_weights, qwen21_forward_text,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(qwen21_kind_time, "time", "time_text_embed", qwen21_time_table, time_weights, qwen21_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(qwen21_kind_modulation, "modulation", "modulation", qwen21_modulation_table, linear_weights,
      qwen21_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(qwen21_kind_final_modulation, "final_modulation", "norm_out", qwen21_final_modulation_table,
      linear_weights, qwen21_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(qwen21_kind_embedder, "embedder", "img_in", qwen21_embedder_table, linear_weights,
      qwen21_forward_embedder, .never_quantised = true);
BLOCK(qwen21_kind_layer, "layer", "transformer_blocks.%d", qwen21_layer_table, mmdit_stream_weights,
      qwen21_forward_layer);
BLOCK(qwen21_kind_last, "last_layer", "transformer_blocks.%d", qwen21_layer_table, mmdit_stream_weights,
      qwen21_forward_last);
BLOCK(qwen21_kind_final, "final", "proj_out", qwen21_final_table, linear_weights, qwen21_forward_final,
      .never_quantised = true);

static bool qwen21_probe(const struct tensor_index *index) {
    return index_find(index, "txt_in.text_norm.weight");
}

static enum status qwen21_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"control_img_in", "Qwen-Image-2.1 with control blocks"},
        {"control_blocks.", "Qwen-Image-2.1 with control blocks"},
        {0},
    };
    return component_refuse_similar(c, relatives, "Qwen-Image-2.1", e);
}

static enum status qwen21_configure(struct component *c, const struct config *config, struct error *e) {
    const struct qwen21_settings *s = (const struct qwen21_settings *)c->settings;
    const int32_t *d = c->dims;
    int patch = QWEN21_PATCH;
    double eps = (double)mmdit_norm_eps;
    config_int(config, "patch_size", QWEN21_PATCH, QWEN21_PATCH, &patch, e);
    config_float(config, "eps", 0.99 * eps, 1.01 * eps, &eps, e);
    config_check_list(config, "axes_dims_rope", N_AXES, e);
    if (e->code == OK && !s->causal_condition)
        return error_set(e, UNSUPPORTED,
                         "unsupported Qwen-Image-2.1: text and references depend on the timestep" WHERE
                         "%s" FOUND "causal_condition false" EXPECTED "causal_condition true",
                         c->index.sources[0].path);
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .axis = s->axis_dim,
                                .n_axes = N_AXES,
                                .layers = d[LAYERS],
                                .n_blocks = d[LAYERS] + 6};
    return e->code == OK ? mmdit_check_sizes(c, &sizes, e) : e->code;
}

static int qwen21_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, last = c->dims[LAYERS] - 1;
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_text};
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_time};
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_modulation};
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_embedder};
    for (int i = 0; i <= last; i++)
        refs[n++] =
            (struct block_ref){.kind = i < last ? &qwen21_kind_layer : &qwen21_kind_last, .number = i};
    refs[n++] = (struct block_ref){.kind = &qwen21_kind_final};
    return n;
}

/* Refuses a reference image unless each of its vision tokens corresponds to 2x2 latent pixels. */
static enum status qwen21_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                      struct error *e) {
    (void)c;
    for (int i = 0; i < n_lanes; i++)
        for (int k = 0; k < qwen21_n_pictures(&lanes[i]); k++) {
            const struct vision_span *span = &lanes[i].vision_spans[k];
            struct tensor latent = lanes[i].reference[k];
            if (latent.rank && latent.dim[2] == QWEN21_MERGE * span->height &&
                latent.dim[3] == QWEN21_MERGE * span->width)
                continue;
            return error_set(e, UNSUPPORTED,
                             "reference image %d has different sizes for the vision encoder and the VAE" FOUND
                             "%d x %d vision tokens, %d x %d latent pixels" EXPECTED
                             "%d x %d latent pixels for each vision token",
                             k + 1, span->width, span->height, latent.rank ? latent.dim[3] : 0,
                             latent.rank ? latent.dim[2] : 0, QWEN21_MERGE, QWEN21_MERGE);
        }
    return OK;
}

/* Allocates keys or values of the prefix: [rows, dim] in the operands' type, each row padded to 16
 * bytes. */
static struct tensor qwen21_declare_prefix_rows(struct arena *arena, enum dtype dtype, int32_t rows,
                                                int32_t dim, bool *ok) {
    int32_t step = dtype == DTYPE_F32 ? 1 : 8;
    struct tensor t = arena_tensor(arena, dtype, 2, (int32_t[]){rows, (dim + step - 1) / step * step}, ok);
    t.dim[1] = dim;
    return t;
}

static void qwen21_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                           struct arena *pictures, bool *ok) {
    struct qwen21_state *shared = lanes[0].state;
    const int32_t *d = c->dims;
    int32_t n_hoisted = lanes[0].hoisted ? lanes[0].hoisted : 1;
    (void)pictures;
    shared->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[DIM]}, ok);
    shared->modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[FOUR_DIM]}, ok);
    shared->final_scale = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[DIM]}, ok);
    shared->prefix_condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, d[DIM]}, ok);
    shared->prefix_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, d[FOUR_DIM]}, ok);
    for (int i = 0; i < n_lanes; i++) {
        struct qwen21_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t prefix = qwen21_prefix_rows(&lanes[i]);
        int32_t rows = mmdit_token_count(lanes[i].latent, QWEN21_PATCH);
        int32_t kept = prefix * (lanes[i].keeps_prefix ? d[LAYERS] : 1);
        if (i) *s = *(const struct qwen21_state *)lanes[first == i ? 0 : first].state;
        int32_t before = first == i ? prefix : 0;
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){before + rows, d[DIM]}, ok);
        s->image = tensor_slice(s->tokens, before, rows);
        if (first != i) continue;
        s->prefix = tensor_slice(s->tokens, 0, prefix);
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){prefix + rows, d[HEAD] / 2, 2}, ok);
        s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lanes[i].text.dim[0], d[DIM]}, ok);
        s->keys = qwen21_declare_prefix_rows(arena, lanes[i].operand, kept, d[DIM], ok);
        s->values = qwen21_declare_prefix_rows(arena, lanes[i].operand, kept, d[DIM], ok);
    }
}

/* GGUF files have the architecture name of Qwen-Image. */
static const char *const qwen21_architectures[] = {"qwen_image", NULL};
/* Sizes of the published model, 7.1 B parameters. */
static const struct dimension qwen21_dimensions[] = {
    {"heads", 32, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"axis0", 16, 2, 256, .place = AXES},
    {"axis1", 56, 2, 256, .place = AXES + 1},
    {"axis2", 56, 2, 256, .place = AXES + 2},
    {"layers", 32, 1, 500, .place = LAYERS, OF_BLOCKS("transformer_blocks."), .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT, OF_TENSOR(1, 0, "txt_in.text_norm.weight"),
     .key = "context_in_dim"},
    {"latent_channels", 64, 1, 1024, .place = IN, OF_TENSOR(2, 1, "img_in.weight"), .key = "in_channels"},
    {.place = DIM, OF_TENSOR(2, 0, "img_in.weight")},
    {.place = FREQUENCIES, OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight")},
    {.place = HEAD, OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight"), .key = "attention_head_dim"},
    {.place = FEED_FORWARD, OF_TENSOR(2, 1, "transformer_blocks.0.img_mlp.out.weight")},
};

#define AXIS(i, published)                                                                                   \
    { {"axes_dims_rope." #i}, offsetof(struct qwen21_settings, axis_dim[i]), SETTING_INT, published, 2, 512 }
static const struct setting qwen21_settings[] = {
    AXIS(0, 16),
    AXIS(1, 56),
    AXIS(2, 56),
    /* Written to config.json; the engine takes the feed-forward's width from the tensors. */
    {{"mlp_ratio"}, offsetof(struct qwen21_settings, mlp_ratio), SETTING_INT, 3, 1, 64},
    /* must be true; false modulates the prefix by the sampled timestep, and no published model has it */
    {{"causal_condition"}, offsetof(struct qwen21_settings, causal_condition), SETTING_BOOL, 1, 0, 1},
};

static void qwen21_derive_dims(struct component *c) {
    struct qwen21_settings *s = (struct qwen21_settings *)c->settings;
    int32_t *d = c->dims;
    d[HEAD] = 0;
    for (int i = 0; i < N_AXES; i++) {
        s->axis_dim[i] = d[AXES + i];
        d[HEAD] += d[AXES + i];
    }
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 3 * d[DIM];
    d[FREQUENCIES] = 256;
}

static void qwen21_derive(struct component *c) {
    int32_t *d = c->dims;
    d[FOUR_DIM] = 4 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    c->text_columns = d[TEXT];
    c->latent_channels = d[IN];
}

static const struct state_tensor qwen21_state_tensors[] = {STATE_TENSOR(qwen21_state, tokens),
                                                           STATE_TENSOR(qwen21_state, rope),
                                                           STATE_TENSOR(qwen21_state, text),
                                                           STATE_TENSOR(qwen21_state, prefix),
                                                           STATE_TENSOR(qwen21_state, condition),
                                                           STATE_TENSOR(qwen21_state, modulation),
                                                           STATE_TENSOR(qwen21_state, final_scale),
                                                           STATE_TENSOR(qwen21_state, prefix_condition),
                                                           STATE_TENSOR(qwen21_state, prefix_modulation),
                                                           STATE_TENSOR(qwen21_state, keys),
                                                           STATE_TENSOR(qwen21_state, values)};

const struct family family_qwen_image_21 = {
    .name = "qwen_image_21",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = qwen21_architectures,
              .config_key = "_class_name",
              .config_value = "QwenImage21Transformer2DModel",
              .probe = qwen21_probe,
              .refuse = qwen21_refuse},
    .config = {.dimensions = qwen21_dimensions,
               .n_dimensions = COUNT_OF(qwen21_dimensions),
               .settings = qwen21_settings,
               .n_settings = COUNT_OF(qwen21_settings),
               .configure = qwen21_configure,
               .derive_dims = qwen21_derive_dims,
               .derive = qwen21_derive,
               .rest = "\"patch_size\": 1, \"eps\": 1e-06"},
    .blocks = {.list = qwen21_blocks},
    .state = {.bytes = sizeof(struct qwen21_state),
              .tensors = qwen21_state_tensors,
              .n_tensors = COUNT_OF(qwen21_state_tensors),
              .declare = qwen21_declare},
    .lanes = {.check = qwen21_check_lanes, .prefix = true},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4160,
                   .text_rows = 64,
                   .text_columns = 4096,
                   .latent_channels = 64,
                   .latent_side = 64,
                   .picture_side = 1024}},
};

/* clang-format off */
static const struct hf_source qwen21_files[] = {
    {"Qwen/Qwen-Image-2.1", NULL, NULL, 0},
    {"Comfy-Org/Qwen-Image-2.1", "--diffusion-model", "qwen_image_2.1_bf16.safetensors", 14200},
    {"Comfy-Org/Qwen-Image-2.1", "--diffusion-model", "qwen_image_2.1_int8_convrot.safetensors", 7300},
    {0},
};
static const struct hf_source qwen21_sources[] = {
    {"Comfy-Org/Qwen-Image-2.1", "--llm", "qwen3vl_8b_bf16.safetensors", 17500},
    {"Comfy-Org/Qwen-Image-2.1", "--llm", "qwen3vl_8b_int8_convrot.safetensors", 9400},
    {"Comfy-Org/Qwen-Image-2.1", "--vae", "qwen_image_2.1_vae_bf16.safetensors", 680},
    {0},
};

/* Prompts: diffusers 0.42.1, pipelines/qwenimage21. The system message's tokens are dropped. The maximum of
 * 8192 tokens is the length of diffusers' rope table. */
#define QWEN21_SYSTEM                                                                                        \
    "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n<|im_start|>user\n"
enum { QWEN21_DROP = 14, QWEN21_PLANNED = 256, QWEN21_AREA = 1024 * 1024 };
/* clang-format on */

/* Defaults are those of QwenImage21Pipeline.__call__; the schedule is that of the published
 * scheduler_config.json. Vision encoder and VAE read the same resized reference images. */
const struct recipe recipe_qwen_image_21 = {
    .name = "qwen_image_21",
    .slot = {VISION_QWEN3VL,
             TEXT_QWEN3VL(.template_before = QWEN21_SYSTEM,
                          .template_after = "<|im_end|>\n<|im_start|>assistant\n", .empty = " ",
                          .tokens_max = 8192, .tokens_planned = QWEN21_PLANNED, .drop_idx = QWEN21_DROP,
                          .image_prompt = {.template_before = QWEN21_SYSTEM,
                                           .drop_idx = QWEN21_DROP,
                                           .before = "<image%d><|vision_start|>",
                                           .after = "<|vision_end|>",
                                           .between = " ",
                                           .pad = "<|image_pad|>"}),
             DENOISER(family_qwen_image_21), VAE_QWEN21},
    .selection.pipelines = {"QwenImage21Pipeline"},
    .text = {.condition = {{.slot = 1,
                            .what = CONDITION_TOKENS,
                            .hidden = {.layers = {-1}, .final_norm = FINAL_NORM_OF_NONE}}},
             .n_conditions = 1,
             .processor = {"Qwen3VLProcessor", "processor", true}},
    .images = {.references_max = LANE_REFERENCES_MAX,
               .areas = {.vision = QWEN21_AREA, .vae = QWEN21_AREA, .output = QWEN21_AREA, .multiple = 32}},
    .denoising = {.span = {{2, INFINITY}},
                  .sampling = {.prediction = &prediction_flow,
                               .schedule = &schedule_flow,
                               .sampler = &sampler_euler,
                               .grid = {.grid_f64 = true}},
                  .shift_rule = FLOW_SHIFT_BY_TOKENS,
                  .shift_line = {.base_shift = 0.5, .max_shift = 0.9, .base_tokens = 256, .max_tokens = 8192},
                  .shift_terminal = 0.02,
                  .guide = guidance_cfg,
                  .cfg_needs_negative = true},
    .defaults = {.width = 1024, .height = 1024, .steps = 40, .cfg_scale = 1, .strength = 0.6},
    .patch = QWEN21_PATCH,
    .colours = &latent_colours_qwen21,
    .size_tokens = QWEN21_MERGE,
    .published = {.title = "Qwen-Image-2.1",
                  .reference = DIFFUSERS,
                  .sources = {qwen21_files, qwen21_sources}},
};
