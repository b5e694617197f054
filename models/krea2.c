/* Krea 2 transformer (diffusers: Krea2Transformer2DModel). Token order: text, then the generated image.
 *
 * Input text: 12 hidden states (taps) of the text encoder for each token. Text fusion, once per prompt: two
 * blocks attend over the taps of each token, a linear layer sums the taps, two blocks attend over the tokens,
 * and an MLP maps the text to the transformer's width.
 *
 * Blocks have grouped queries, a sigmoid gate on the attention output and gated feed-forwards. All blocks
 * share one modulation by timestep: scale, shift, gate of attention, then of the feed-forward. Each block
 * adds its table to the modulation. Files store the weights of RMS norms minus 1. Rope positions are (0, row,
 * column) in the image and (0, 0, 0) in the text.
 *
 * Source: diffusers 0.42, models/transformers/transformer_krea2.py; checkpoint names of the authors:
 * loaders/single_file_utils.py, convert_krea2_transformer_checkpoint_to_diffusers. */
#include "models/mmdit.h"
#include "models/row_chunk.h"
#include "models/slots.h"

enum {
    DIM,
    SIX_DIM,
    SIX, /* vectors of a block's modulation table */
    TWO, /* vectors of the final layer's modulation table */
    ONE,
    FEED_FORWARD,
    HEAD,
    HEADS,
    KEY_DIM, /* width of keys and values: KEY_HEADS * HEAD */
    KEY_HEADS,
    AXES, /* sizes of the three rope axes */
    N_AXES = 3,
    PATCH = AXES + N_AXES, /* channels of a token's 2x2 latent pixels */
    LATENT,
    FREQUENCIES,
    TEXT, /* width of the text encoder */
    TAPS, /* hidden states of the text encoder */
    FUSION_HEAD,
    FUSION_HEADS,
    FUSION_KEY_DIM,
    FUSION_KEY_HEADS,
    FUSION_FEED_FORWARD,
    TAP_LAYERS, /* text fusion blocks over the taps of a token */
    REFINERS,   /* text fusion blocks over the tokens */
    LAYERS,
};

static const float krea2_time_scale = 1000;

struct krea2_settings {
    int axis_dim[N_AXES];
    double rope_theta;
    float norm_eps;
};

struct krea2_state {
    struct tensor tokens; /* hidden states of all tokens: [text + image rows, DIM] */
    /* Shared by the lanes of a prompt. */
    struct tensor rope;  /* rope's cosine and sine: [text + image rows, HEAD/2, 2] */
    struct tensor taps;  /* hidden states of the text encoder, [TAPS * text rows, TEXT]: all tokens of the
                            first tap, then of the second; in the memory of `tokens` */
    struct tensor fused; /* sum of the taps: [text rows, TEXT] */
    struct tensor text;  /* embedded prompt: [text rows, DIM] */
    /* Conditioning by timestep, shared by all lanes: one row per evaluation if hoisted, else one row. */
    struct tensor time;       /* [rows, DIM] */
    struct tensor modulation; /* [rows, SIX_DIM] */
};

/* clang-format off */
/* Weight of an RMS norm, stored minus 1. */
#define NORM(X, S, member, dim, name, checkpoint)                                                            \
    X##WEIGHT(S, member, SHAPED(1, dim), name ".weight", checkpoint ".scale")
#define GATED_BLOCK(X, S, dim, key_dim, head, feed_forward)                                                  \
    NORM(X, S, norm1, dim, "norm1", "prenorm")                                                               \
    X##MATRIX(S, q, dim, dim, "attn.to_q", "attn.wq")                                                        \
    X##MATRIX(S, k, key_dim, dim, "attn.to_k", "attn.wk")                                                    \
    X##MATRIX(S, v, key_dim, dim, "attn.to_v", "attn.wv")                                                    \
    NORM(X, S, q_norm, head, "attn.norm_q", "attn.qknorm.qnorm")                                             \
    NORM(X, S, k_norm, head, "attn.norm_k", "attn.qknorm.knorm")                                             \
    X##MATRIX(S, attention_gate, dim, dim, "attn.to_gate", "attn.gate")                                      \
    X##MATRIX(S, out, dim, dim, "attn.to_out.0", "attn.wo")                                                  \
    NORM(X, S, norm2, dim, "norm2", "postnorm")                                                              \
    X##MATRIX(S, gate, feed_forward, dim, "ff.gate", "mlp.gate")                                             \
    X##MATRIX(S, up, feed_forward, dim, "ff.up", "mlp.up")                                                   \
    X##MATRIX(S, down, dim, feed_forward, "ff.down", "mlp.down")
#define FUSION(X, S) GATED_BLOCK(X, S, TEXT, FUSION_KEY_DIM, FUSION_HEAD, FUSION_FEED_FORWARD)
/* The table is absent (rank 0) in the blocks of the text fusion. */
#define LAYER(X, S)                                                                                          \
    GATED_BLOCK(X, S, DIM, KEY_DIM, HEAD, FEED_FORWARD)                                                      \
    X##WEIGHT(WITH(S, .flat = true), table, SHAPED(2, SIX, DIM), "scale_shift_table", "mod.lin")
struct krea2_weights { LAYER(FIELD_, ) };
WEIGHT_TABLE(krea2_tap_table, FUSION, krea2_weights,
             "text_fusion.layerwise_blocks.%d.", "txtfusion.layerwise_blocks.%d.");
WEIGHT_TABLE(krea2_refiner_table, FUSION, krea2_weights,
             "text_fusion.refiner_blocks.%d.", "txtfusion.refiner_blocks.%d.");
WEIGHT_TABLE(krea2_layer_table, LAYER, krea2_weights, "transformer_blocks.%d.", "blocks.%d.");

#define PROJECTOR(X, S) X##MATRIX(S, weight, ONE, TAPS, "text_fusion.projector", "txtfusion.projector")
WEIGHT_TABLE(krea2_projector_table, PROJECTOR, linear_weights, "", "");

#define TEXT_IN(X, S)                                                                                        \
    NORM(X, S, norm, TEXT, "txt_in.norm", "txtmlp.0")                                                        \
    X##LINEAR(S, in, DIM, TEXT, "txt_in.linear_1", "txtmlp.1")                                               \
    X##LINEAR(S, out, DIM, DIM, "txt_in.linear_2", "txtmlp.3")
struct text_in_weights { TEXT_IN(FIELD_, ) };
WEIGHT_TABLE(krea2_text_in_table, TEXT_IN, text_in_weights, "", "");

#define TIME(X, S)                                                                                           \
    X##LINEAR(S, in, DIM, FREQUENCIES, "time_embed.linear_1", "tmlp.0")                                      \
    X##LINEAR(S, out, DIM, DIM, "time_embed.linear_2", "tmlp.2")
struct krea2_time_weights { TIME(FIELD_, ) };
WEIGHT_TABLE(krea2_time_table, TIME, krea2_time_weights, "", "");

#define FINAL(X, S)                                                                                          \
    X##WEIGHT(S, table, SHAPED(2, TWO, DIM), "final_layer.scale_shift_table", "last.modulation.lin")         \
    NORM(X, S, norm, DIM, "final_layer.norm", "last.norm")                                                   \
    X##LINEAR(S, linear, PATCH, DIM, "final_layer.linear", "last.linear")
struct krea2_final_weights { FINAL(FIELD_, ) };
WEIGHT_TABLE(krea2_final_table, FINAL, krea2_final_weights, "", "");
/* clang-format on */

LINEAR_TABLE(krea2_modulation_table, SIX_DIM, DIM, "time_mod_proj", "tproj.1");
LINEAR_TABLE(krea2_embedder_table, DIM, PATCH, "img_in", "first");

static const struct patches krea2_patches = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};

/* ---- gated blocks ---- */

/* Differences between the blocks of the transformer and of the text fusion. */
struct krea2_block {
    const struct krea2_weights *w;
    float eps;
    struct tensor modulation; /* [1, 6 C]: the vectors of enum krea2_part; rank 0: none */
    struct tensor rope;       /* [T, head size / 2, 2]; rank 0: none */
    int32_t sequences;        /* number of interleaved sequences: row r belongs to sequence r % sequences and
                                 attends only to rows of this sequence */
};

/* Vectors of the modulation: three of attention; the feed-forward's three follow at FEED_FORWARD_PARTS. */
enum krea2_part { SCALE, SHIFT, GATE, FEED_FORWARD_PARTS };

/* Returns a vector of the modulation; rank 0 without modulation. */
static struct tensor krea2_part(const struct krea2_block *b, int part) {
    return b->modulation.rank ? mmdit_chunk(b->modulation, part, b->modulation.dim[1] / 6)
                              : (struct tensor){0};
}

/* Norms and modulates rows: n (1 + scale) + shift. first: 0 before attention, or FEED_FORWARD_PARTS. */
static void krea2_norm(struct context *x, const struct krea2_block *b, struct tensor out, struct tensor in,
                       struct tensor weight, int first) {
    op_rms_norm(x, out, in, weight, b->eps,
                (struct modulation){.zero_centered = true,
                                    .scale = krea2_part(b, first + SCALE),
                                    .shift = krea2_part(b, first + SHIFT)});
}

/* Computes queries or keys: linear layer, then norm and rope of each head. */
static void krea2_project_heads(struct context *x, const struct krea2_block *b, struct tensor out,
                                struct tensor n, struct tensor weight, struct tensor norm) {
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, weight, (struct epilogue){0});
    if (b->rope.rank)
        op_rope(x, out, heads, b->rope,
                (struct rotation){
                    .heads = out.dim[1] / norm.dim[0], .norm = norm, .zero_centered = true, .eps = b->eps});
    else
        op_rms_norm(x, out, heads, norm, b->eps, (struct modulation){.zero_centered = true});
    x->scratch->used = mark;
}

/* Reshapes packed rows [T, C] of interleaved sequences to [T / sequences, sequences * C], so that the heads
 * of each sequence are separate columns. A single sequence is not changed and need not be packed. */
static struct tensor krea2_sequences(struct tensor rows, int32_t sequences) {
    if (sequences == 1) return rows;
    return tensor_reshape(rows, 2, (int32_t[]){rows.dim[0] / sequences, sequences * rows.dim[1]});
}

/* Attention: tokens += gate * out(sigmoid(attention_gate(n)) * attention(n)). */
static void krea2_attend(struct context *x, const struct krea2_block *b, struct tensor tokens) {
    const struct krea2_weights *w = b->w;
    int32_t T = tokens.dim[0], dim = tokens.dim[1], head = w->q_norm.dim[0], S = b->sequences;
    int32_t narrow[] = {T, w->k.dim[0]}, chunk = S == 1 ? row_chunk(x, T) : T;
    uint64_t before = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim), q, k, v;
    /* Rows of operands may be padded, but krea2_sequences needs packed rows of several sequences. */
    q = S == 1 ? context_operand(x, 2, tokens.dim) : context_tensor(x, DTYPE_F32, 2, tokens.dim);
    k = S == 1 ? context_operand(x, 2, narrow) : context_tensor(x, DTYPE_F32, 2, narrow);
    v = S == 1 ? context_operand(x, 2, narrow) : context_tensor(x, DTYPE_F32, 2, narrow);
    krea2_norm(x, b, n, tokens, w->norm1, 0);
    krea2_project_heads(x, b, q, n, w->q, w->q_norm);
    krea2_project_heads(x, b, k, n, w->k, w->k_norm);
    op_linear(x, v, n, w->v, (struct epilogue){0});
    struct attention_options heads = {
        .queries = S * (dim / head), .keys = S * (narrow[1] / head), .scale = 1 / sqrtf((float)head)};
    struct tensor attention = context_tensor(x, DTYPE_F32, 2, (int32_t[]){chunk, dim});
    struct tensor gates = context_tensor(x, DTYPE_F32, 2, attention.dim);
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor a = tensor_slice(attention, 0, rows), g = tensor_slice(gates, 0, rows);
        struct tensor t = tensor_slice(tokens, first, rows), queries = tensor_slice(q, first, rows);
        op_attention(x, krea2_sequences(a, S), krea2_sequences(queries, S), krea2_sequences(k, S),
                     krea2_sequences(v, S), heads);
        op_linear(x, g, tensor_slice(n, first, rows), w->attention_gate, (struct epilogue){0});
        op_glu(x, queries, g, a, ACTIVATION_SIGMOID); /* overwrites the queries of these rows */
        op_linear(x, t, queries, w->out, (struct epilogue){.gate = krea2_part(b, GATE), .residual = t});
    }
    x->scratch->used = before;
}

/* Feed-forward: tokens += gate * down(silu(gate(n)) * up(n)). */
static void krea2_feed_forward(struct context *x, const struct krea2_block *b, struct tensor tokens) {
    const struct krea2_weights *w = b->w;
    int32_t T = tokens.dim[0], chunk = row_chunk(x, T);
    for (int32_t first = 0; first < T; first += chunk) {
        struct tensor t = tensor_slice(tokens, first, T - first < chunk ? T - first : chunk);
        int32_t wide[] = {t.dim[0], w->up.dim[0]};
        uint64_t before = x->scratch->used;
        struct tensor n = context_operand(x, 2, t.dim), gated = context_operand(x, 2, wide);
        struct tensor gates = context_unrounded(x, gated), ups = context_tensor(x, DTYPE_F32, 2, wide);
        krea2_norm(x, b, n, t, w->norm2, FEED_FORWARD_PARTS);
        op_linear(x, gates, n, w->gate, (struct epilogue){0});
        op_linear(x, ups, n, w->up, (struct epilogue){0});
        op_glu(x, gated, gates, ups, ACTIVATION_SILU);
        op_linear(x, t, gated, w->down,
                  (struct epilogue){.gate = krea2_part(b, FEED_FORWARD_PARTS + GATE), .residual = t});
        x->scratch->used = before;
    }
}

static void krea2_run_block(struct context *x, const struct krea2_block *b, struct tensor tokens) {
    krea2_attend(x, b, tokens);
    krea2_feed_forward(x, b, tokens);
}

/* ---- text fusion ---- */

static void krea2_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    struct rope_options rope = {
        .theta = settings->rope_theta,
        .n_axes = N_AXES,
        .n_grids = 2,
        .grid = {{.extent = {scope->lane->text.dim[0]}, .diagonal = true, .fixed_axes = N_AXES},
                 {.extent = {1, latent.dim[2] / MMDIT_PATCH, latent.dim[3] / MMDIT_PATCH}}},
    };
    for (int a = 0; a < N_AXES; a++) rope.axis_dim[a] = settings->axis_dim[a];
    op_rope_table(x, state->rope, &rope);
}

/* The taps of one token lie T rows apart, so T sequences are interleaved. */
static void krea2_forward_taps(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct tensor text = scope->lane->text;
    int32_t T = text.dim[0], columns = state->taps.dim[1];
    if (!scope->number) {
        krea2_fill_rope(x, scope);
        for (int32_t tap = 0; tap * columns < text.dim[1]; tap++)
            op_copy(x, tensor_slice(state->taps, tap * T, T),
                    tensor_slice_columns(text, tap * columns, columns));
    }
    struct krea2_block block = {.w = weights, .eps = settings->norm_eps, .sequences = T};
    krea2_run_block(x, &block, state->taps);
}

/* Computes fused = sum over taps of weight[tap] * tap as a matrix product, TOKENS tokens at a time. The taps
 * are transposed first: a row of the product's input holds all taps of one value. */
static void krea2_forward_projector(struct context *x, const void *weights, const struct visit_scope *scope) {
    enum { TOKENS = 32 };
    const struct linear_weights *w = weights;
    const struct krea2_state *state = scope->lane->state;
    int32_t T = state->fused.dim[0], columns = state->fused.dim[1], taps = w->weight.dim[1];
    struct tensor all = tensor_reshape(state->taps, 2, (int32_t[]){taps, T * columns});
    for (int32_t first = 0; first < T; first += TOKENS) {
        int32_t n = (T - first < TOKENS ? T - first : TOKENS) * columns;
        uint64_t before = x->scratch->used;
        struct tensor some = tensor_slice_columns(all, first * columns, n);
        struct tensor values = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, taps});
        struct tensor out = tensor_slice(state->fused, first, n / columns);
        some.rank = 3, some.dim[1] = 1, some.dim[2] = n; /* as an image [taps, 1, n] */
        op_patchify(x, values, some, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
        op_linear(x, tensor_reshape(out, 2, (int32_t[]){n, 1}), values, w->weight, (struct epilogue){0});
        x->scratch->used = before;
    }
}

static void krea2_forward_refiner(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct krea2_block block = {.w = weights, .eps = settings->norm_eps, .sequences = 1};
    krea2_run_block(x, &block, state->fused);
}

static void krea2_forward_text_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct text_in_weights *w = weights;
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct tensor n = context_operand(x, 2, state->fused.dim), h = context_operand(x, 2, state->text.dim);
    op_rms_norm(x, n, state->fused, w->norm, settings->norm_eps, (struct modulation){.zero_centered = true});
    op_linear(x, h, n, w->in.weight,
              (struct epilogue){.bias = w->in.bias, .activation = ACTIVATION_GELU_TANH});
    mmdit_linear(x, state->text, h, &w->out);
}

/* ---- transformer ---- */

static void krea2_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct krea2_time_weights *w = weights;
    const struct krea2_state *state = scope->lane->state;
    int32_t n = scope->n_timesteps;
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[0]});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i] * krea2_time_scale, TIMESTEP_USUAL);
    op_linear_few(x, h, f, w->in.weight, w->in.bias, ACTIVATION_NONE);
    op_linear_few(x, scope_rows(state->time, scope), h, w->out.weight, w->out.bias, ACTIVATION_GELU_TANH);
}

static void krea2_forward_modulation(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct krea2_state *state = scope->lane->state;
    op_linear_few(x, scope_rows(state->modulation, scope), scope_rows(state->time, scope), w->weight, w->bias,
                  ACTIVATION_GELU_TANH);
}

static void krea2_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct krea2_state *state = scope->lane->state;
    struct tensor rows = mmdit_image_rows(state->tokens, scope->lane);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->weight.dim[1]});
    op_patchify(x, patches, latent_planes(scope->lane->latent), krea2_patches);
    mmdit_linear(x, rows, patches, w);
    op_copy(x, mmdit_text_rows(state->tokens, scope->lane), state->text);
}

static void krea2_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct krea2_weights *w = weights;
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct tensor shared = scope_rows(state->modulation, scope);
    struct tensor modulation = context_tensor(x, DTYPE_F32, 2, shared.dim);
    op_add(x, modulation, shared, tensor_reshape(w->table, 2, shared.dim));
    struct krea2_block block = {
        .w = w, .eps = settings->norm_eps, .modulation = modulation, .rope = state->rope, .sequences = 1};
    krea2_run_block(x, &block, state->tokens);
}

/* The modulation (scale, shift) is the time embedding plus a table. Krea 2 predicts noise - data, the
 * velocity of flow matching. */
static void krea2_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct krea2_final_weights *w = weights;
    const struct krea2_settings *settings = scope->settings;
    const struct krea2_state *state = scope->lane->state;
    struct tensor rows = mmdit_image_rows(state->tokens, scope->lane), time = scope_rows(state->time, scope);
    struct tensor modulation = context_tensor(x, DTYPE_F32, 2, (int32_t[]){2, time.dim[1]});
    struct tensor n = context_operand(x, 2, rows.dim);
    struct tensor patches =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->linear.weight.dim[0]});
    for (int32_t i = 0; i < 2; i++)
        op_add(x, tensor_slice(modulation, i, 1), time, tensor_slice(w->table, i, 1));
    op_rms_norm(x, n, rows, w->norm, settings->norm_eps,
                (struct modulation){.zero_centered = true,
                                    .scale = mmdit_chunk(tensor_slice(modulation, 0, 1), 0, time.dim[1]),
                                    .shift = mmdit_chunk(tensor_slice(modulation, 1, 1), 0, time.dim[1])});
    mmdit_linear(x, patches, n, &w->linear);
    op_unpatchify(x, latent_planes(scope->lane->prediction), patches, krea2_patches, 1);
}

BLOCK(krea2_kind_taps, "tap_fusion", "text_fusion.layerwise_blocks.%d", krea2_tap_table, krea2_weights,
      krea2_forward_taps, .update_rate = UPDATE_PER_PROMPT);
BLOCK(krea2_kind_projector, "projector", "text_fusion.projector", krea2_projector_table, linear_weights,
      krea2_forward_projector, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(krea2_kind_refiner, "text_refiner", "text_fusion.refiner_blocks.%d", krea2_refiner_table, krea2_weights,
      krea2_forward_refiner, .update_rate = UPDATE_PER_PROMPT);
BLOCK(krea2_kind_text_in, "text_in", "txt_in", krea2_text_in_table, text_in_weights, krea2_forward_text_in,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(krea2_kind_time, "time", "time_embed", krea2_time_table, krea2_time_weights, krea2_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(krea2_kind_modulation, "modulation", "time_mod_proj", krea2_modulation_table, linear_weights,
      krea2_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(krea2_kind_embedder, "embedder", "img_in", krea2_embedder_table, linear_weights, krea2_forward_embedder,
      .never_quantised = true);
BLOCK(krea2_kind_layer, "layer", "transformer_blocks.%d", krea2_layer_table, krea2_weights,
      krea2_forward_layer);
BLOCK(krea2_kind_final, "final", "final_layer", krea2_final_table, krea2_final_weights, krea2_forward_final,
      .never_quantised = true);

/* ---- family ---- */

static bool krea2_probe(const struct tensor_index *index) {
    return index_find(index, "text_fusion.projector.weight") ||
           index_find(index, "txtfusion.projector.weight");
}

/* Fails with SHAPE unless head sizes divide the widths, and numbers of key heads those of query heads. */
static enum status krea2_check_heads(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    if (!(d[KEY_DIM] % d[HEAD]) && !(d[TEXT] % d[FUSION_HEAD]) && !(d[FUSION_KEY_DIM] % d[FUSION_HEAD]) &&
        !(d[DIM] % d[KEY_DIM]) && !(d[TEXT] % d[FUSION_KEY_DIM]) && d[FUSION_HEAD] <= 512 &&
        d[TAP_LAYERS] >= 1)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent transformer sizes" WHERE "%s" FOUND
        "width %d, keys %d, head %d; text width %d, keys %d, head %d, %d layerwise blocks" EXPECTED
        "widths that are multiples of the head size, numbers of query heads that are multiples of "
        "the numbers of key heads, text heads of at most 512, and at least one layerwise block",
        c->index.sources[0].path, d[DIM], d[KEY_DIM], d[HEAD], d[TEXT], d[FUSION_KEY_DIM], d[FUSION_HEAD],
        d[TAP_LAYERS]);
}

/* Without a configuration, the rope axes follow from the head size (ComfyUI, comfy/model_detection.py). */
static enum status krea2_configure(struct component *c, const struct config *config, struct error *e) {
    struct krea2_settings *s = (struct krea2_settings *)c->settings;
    const int32_t *d = c->dims;
    if (config_check_list(config, "axes_dims_rope", N_AXES, e) != OK) return e->code;
    if (!config_find(config, "axes_dims_rope.0")) {
        s->axis_dim[1] = s->axis_dim[2] = 6 * (d[HEAD] / 16);
        s->axis_dim[0] = d[HEAD] - 2 * s->axis_dim[1];
    }
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[PATCH],
                                .axis = s->axis_dim,
                                .n_axes = N_AXES,
                                .layers = d[LAYERS],
                                .n_blocks = d[LAYERS] + d[TAP_LAYERS] + d[REFINERS] + 6};
    return mmdit_check_sizes(c, &sizes, e) == OK ? krea2_check_heads(c, e) : e->code;
}

static int krea2_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    for (int i = 0; i < c->dims[TAP_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &krea2_kind_taps, .number = i};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_projector};
    for (int i = 0; i < c->dims[REFINERS]; i++)
        refs[n++] = (struct block_ref){.kind = &krea2_kind_refiner, .number = i};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_text_in};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_time};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_modulation};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_embedder};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &krea2_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &krea2_kind_final};
    return n;
}

/* Declares a lane's tokens of `rows` rows. In a prompt's first lane the taps share this memory: they are
 * not needed once the tokens are computed. taps: rows of the taps; 0 in other lanes. */
static void krea2_declare_tokens(const struct component *c, struct krea2_state *s, int32_t rows, int32_t taps,
                                 struct arena *arena, bool *ok) {
    const int32_t *d = c->dims;
    int32_t token_dim[] = {rows, d[DIM]}, tap_dim[] = {taps, d[TEXT]};
    bool wide =
        (int64_t)rows * d[DIM] >= (int64_t)taps * d[TEXT]; /* a count of values may exceed INT32_MAX */
    struct tensor both = arena_tensor(arena, DTYPE_F32, 2, wide ? token_dim : tap_dim, ok);
    s->tokens = tensor_make(both.data, DTYPE_F32, 2, token_dim);
    if (taps) s->taps = tensor_make(both.data, DTYPE_F32, 2, tap_dim);
}

static void krea2_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    struct krea2_state *shared = lanes[0].state;
    const int32_t *d = c->dims;
    int32_t n_hoisted = lanes[0].hoisted ? lanes[0].hoisted : 1;
    (void)pictures;
    shared->time = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[DIM]}, ok);
    shared->modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[SIX_DIM]}, ok);
    for (int i = 0; i < n_lanes; i++) {
        struct krea2_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t text = lanes[i].text.dim[0], rows = text + mmdit_token_count(lanes[i].latent, MMDIT_PATCH);
        if (i) *s = *(const struct krea2_state *)lanes[first == i ? 0 : first].state;
        krea2_declare_tokens(c, s, rows, first == i ? d[TAPS] * text : 0, arena, ok);
        if (first != i) continue;
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){rows, d[HEAD] / 2, 2}, ok);
        s->fused = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[TEXT]}, ok);
        s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[DIM]}, ok);
    }
}

/* GGUF files of Krea 2 name one of these architectures (vantagewithai/Krea-2-Turbo-GGUF: qwen_image). */
static const char *const krea2_architectures[] = {"krea2", "qwen_image", NULL};
#define OF_LAYER(rank, axis, name, checkpoint)                                                               \
    OF_TENSOR(rank, axis, "transformer_blocks.0." name, "blocks.0." checkpoint)
#define OF_FUSION(rank, axis, name, checkpoint)                                                              \
    OF_TENSOR(rank, axis, "text_fusion.layerwise_blocks.0." name, "txtfusion.layerwise_blocks.0." checkpoint)
/* Sizes of the published Krea 2 Raw and Turbo, 12.8 B parameters. */
static const struct dimension krea2_dimensions[] = {
    {"heads", 48, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"key_heads", 12, 1, 512, .place = KEY_HEADS, .key = "num_key_value_heads"},
    {"axis0", 32, 2, 256, .place = AXES},
    {"axis1", 48, 2, 256, .place = AXES + 1},
    {"axis2", 48, 2, 256, .place = AXES + 2},
    {"feed_forward", 16384, 8, 65536, .place = FEED_FORWARD,
     OF_LAYER(2, 0, "ff.gate.weight", "mlp.gate.weight"), .key = "intermediate_size"},
    {"layers", 28, 1, 400, .place = LAYERS, OF_BLOCKS("transformer_blocks.", "blocks."), .key = "num_layers"},
    {"hidden", 2560, 8, 65536, .place = TEXT, OF_TENSOR(2, 1, "txt_in.linear_1.weight", "txtmlp.1.weight"),
     .key = "text_hidden_dim"},
    {"taps", 12, 1, HIDDEN_STATES_MAX, .place = TAPS,
     OF_TENSOR(2, 1, "text_fusion.projector.weight", "txtfusion.projector.weight"), .key = "num_text_layers"},
    {"fusion_heads", 20, 1, 512, .place = FUSION_HEADS, .key = "text_num_attention_heads"},
    {"fusion_key_heads", 20, 1, 512, .place = FUSION_KEY_HEADS, .key = "text_num_key_value_heads"},
    {"fusion_ff", 6912, 8, 65536, .place = FUSION_FEED_FORWARD,
     OF_FUSION(2, 0, "ff.gate.weight", "mlp.gate.weight"), .key = "text_intermediate_size"},
    {"tap_layers", 2, 1, 40, .place = TAP_LAYERS,
     OF_BLOCKS("text_fusion.layerwise_blocks.", "txtfusion.layerwise_blocks."),
     .key = "num_layerwise_text_blocks"},
    {"refiners", 2, 0, 40, .place = REFINERS,
     OF_BLOCKS("text_fusion.refiner_blocks.", "txtfusion.refiner_blocks."), .key = "num_refiner_text_blocks"},
    {"latent_channels", 16, 1, 1024, .place = LATENT},
    {.place = DIM, OF_TENSOR(2, 0, "img_in.weight", "first.weight")},
    {.place = PATCH, OF_TENSOR(2, 1, "img_in.weight", "first.weight"), .key = "in_channels"},
    {.place = HEAD,
     OF_LAYER(1, 0, "attn.norm_q.weight", "attn.qknorm.qnorm.scale"),
     .key = "attention_head_dim"},
    {.place = KEY_DIM, OF_LAYER(2, 0, "attn.to_k.weight", "attn.wk.weight")},
    {.place = FUSION_HEAD, OF_FUSION(1, 0, "attn.norm_q.weight", "attn.qknorm.qnorm.scale")},
    {.place = FUSION_KEY_DIM, OF_FUSION(2, 0, "attn.to_k.weight", "attn.wk.weight")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_embed.linear_1.weight", "tmlp.0.weight"),
     .key = "timestep_embed_dim"},
};

#define AXIS(i, published)                                                                                   \
    { {"axes_dims_rope." #i}, offsetof(struct krea2_settings, axis_dim[i]), SETTING_INT, published, 2, 512 }
static const struct setting krea2_settings[] = {
    AXIS(0, 32),
    AXIS(1, 48),
    AXIS(2, 48),
    {{"rope_theta"}, offsetof(struct krea2_settings, rope_theta), SETTING_DOUBLE, 1000, 1, 1e9},
    {{"norm_eps"}, offsetof(struct krea2_settings, norm_eps), SETTING_FLOAT, 1e-5, 0, 1},
};

static void krea2_derive_dims(struct component *c) {
    struct krea2_settings *s = (struct krea2_settings *)c->settings;
    int32_t *d = c->dims;
    for (int i = 0; i < N_AXES; i++) s->axis_dim[i] = d[AXES + i];
    d[HEAD] = d[AXES] + d[AXES + 1] + d[AXES + 2];
    d[DIM] = d[HEADS] * d[HEAD];
    d[KEY_DIM] = d[KEY_HEADS] * d[HEAD];
    d[FUSION_HEAD] = d[TEXT] / d[FUSION_HEADS];
    d[FUSION_KEY_DIM] = d[FUSION_KEY_HEADS] * d[FUSION_HEAD];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
}

static void krea2_derive(struct component *c) {
    int32_t *d = c->dims;
    d[ONE] = 1;
    d[TWO] = 2;
    d[SIX] = 6;
    d[SIX_DIM] = d[DIM] <= INT32_MAX / 6 ? 6 * d[DIM] : 0;
    d[HEADS] = d[DIM] / d[HEAD];
    d[KEY_HEADS] = d[KEY_DIM] / d[HEAD];
    d[FUSION_HEADS] = d[TEXT] / d[FUSION_HEAD];
    d[FUSION_KEY_HEADS] = d[FUSION_KEY_DIM] / d[FUSION_HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    c->text_columns = d[TAPS] * d[TEXT];
    c->latent_channels = d[LATENT];
}

static const struct state_tensor krea2_state_tensors[] = {
    STATE_TENSOR(krea2_state, tokens),    STATE_TENSOR(krea2_state, rope), STATE_TENSOR(krea2_state, taps),
    STATE_TENSOR(krea2_state, fused),     STATE_TENSOR(krea2_state, text), STATE_TENSOR(krea2_state, time),
    STATE_TENSOR(krea2_state, modulation)};

const struct family family_krea2 = {
    .name = "krea2",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = krea2_architectures,
              .config_key = "_class_name",
              .config_value = "Krea2Transformer2DModel",
              .probe = krea2_probe},
    .config = {.dimensions = krea2_dimensions,
               .n_dimensions = COUNT_OF(krea2_dimensions),
               .settings = krea2_settings,
               .n_settings = COUNT_OF(krea2_settings),
               .configure = krea2_configure,
               .derive_dims = krea2_derive_dims,
               .derive = krea2_derive},
    .blocks = {.list = krea2_blocks},
    .state = {.bytes = sizeof(struct krea2_state),
              .tensors = krea2_state_tensors,
              .n_tensors = COUNT_OF(krea2_state_tensors),
              .declare = krea2_declare},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4160,
                   .text_rows = 64,
                   .text_columns = 30720,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
static const struct hf_source krea2_shared_sources[] = {
    {"Comfy-Org/Krea-2", "--llm", "qwen3vl_4b_*.safetensors", 0},
    {"unsloth/Qwen3-VL-4B-Instruct-GGUF", "--llm", "Qwen3-VL-4B-Instruct-*.gguf", 0},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--vae", "qwen_image_vae.safetensors", 0},
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0},
    {0},
};
static const struct hf_source krea2_files[] = {
    {"krea/Krea-2-Raw", NULL, NULL, 0},
    {"Comfy-Org/Krea-2", "--diffusion-model", "krea2_raw_bf16.safetensors", 26300},
    {"vantagewithai/Krea-2-Raw-GGUF", "--diffusion-model", "krea2_raw-*.gguf", 0},
    {0},
};
static const struct hf_source krea2_turbo_files[] = {
    {"krea/Krea-2-Turbo", NULL, NULL, 0},
    {"Comfy-Org/Krea-2", "--diffusion-model", "krea2_turbo_bf16.safetensors", 26300},
    {"Comfy-Org/Krea-2", "--diffusion-model", "krea2_turbo_fp8_scaled.safetensors", 13100},
    {"vantagewithai/Krea-2-Turbo-GGUF", "--diffusion-model", "krea2_turbo-*.gguf", 0},
    {0},
};

/* Tokens of the template before the prompt, which are dropped; largest number of rows of prompt_embeds. */
enum { KREA2_DROPPED = 34, KREA2_ROWS = 512 };
/* Krea 2: diffusers 0.42, pipelines/krea2. The transformer reads 12 hidden states of the text encoder. diffusers
 * pads the prompt, but nothing attends to the padding, and positions do not count it. Further arguments:
 * initialisers of recipe_denoising. */
#define KREA2(...)                                                                                           \
    .slot = {TEXT_QWEN3VL_4B(                                                                                \
                 .template_before = "<|im_start|>system\nDescribe the image by detailing the color, shape, " \
                                    "size, texture, quantity, text, spatial relationships of the objects "   \
                                    "and background:<|im_end|>\n<|im_start|>user\n",                         \
                 .template_after = "<|im_end|>\n<|im_start|>assistant\n", .template_after_tokens = 5,         \
                 .tokens_max = KREA2_DROPPED + KREA2_ROWS, .drop_idx = KREA2_DROPPED),                       \
             DENOISER(family_krea2), VAE_WAN},                                                               \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS,                                             \
                            .hidden = {.layers = {2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35},              \
                                       .final_norm = FINAL_NORM_OF_NONE},                                    \
                            .layers_key = "text_encoder_select_layers"}},                                    \
             .n_conditions = 1},                                                                             \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{1, INFINITY}}, .guide = guidance_cfg,                                            \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_rule = FLOW_SHIFT_BY_TOKENS, __VA_ARGS__},                                          \
    .patch = MMDIT_PATCH, .colours = &latent_colours_wan
/* clang-format on */

/* cfg_scale is 1 + guidance_scale of diffusers, which adds guidance_scale times the difference. */
const struct recipe recipe_krea2 = {
    KREA2(.shift_line = {.base_shift = 0.5, .max_shift = 1.15, .base_tokens = 256, .max_tokens = 6400}),
    .name = "krea2",
    .selection = {.pipelines = {"Krea2Pipeline"}, .index_key = "is_distilled"},
    .defaults = {.width = 1024, .height = 1024, .steps = 28, .cfg_scale = 5.5, .strength = 0.6},
    .published = {.title = "Krea 2 Raw",
                  .reference = DIFFUSERS,
                  .sources = {krea2_files, krea2_shared_sources}},
};

const struct recipe recipe_krea2_turbo = {
    KREA2(.shift_line = {.base_shift = 1.15, .max_shift = 1.15, .base_tokens = 256, .max_tokens = 6400},
          .keeps_shift_line = true),
    .name = "krea2_turbo",
    .selection = {.name_word = "turbo",
                  .pipelines = {"Krea2Pipeline"},
                  .index_key = "is_distilled",
                  .index_value = true},
    .defaults = {.width = 1024, .height = 1024, .steps = 8, .cfg_scale = 1, .strength = 0.6},
    .published = {.title = "Krea 2 Turbo",
                  .reference = DIFFUSERS,
                  .sources = {krea2_turbo_files, krea2_shared_sources}},
};
