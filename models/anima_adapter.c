/* Text adapter of Anima as a text encoder (diffusers: AnimaTextConditioner; the authors' `llm_adapter`). Its
 * tokens are embeddings of the prompt's T5 token ids. They cross-attend to Qwen3's hidden states of the same
 * prompt (lane.source).
 *
 * A layer: x += out(attention(n)); x += out(attention(n, source)); x += mlp2(gelu(mlp0(n))), with an RMS norm
 * before each part, norms of the heads of q and k, and rope on halves of a head. Positions count from 0 in
 * both token sequences; attention is not causal. A linear layer and an RMS norm follow the layers. Without
 * source rows (an empty prompt) the cross-attention adds 0, as with diffusers' fully masked row. Source:
 * diffusers 0.42, models/condition_embedders/condition_embedder_anima.py. */
#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/models.h"

#include <math.h>

/* Indices into component.dims. */
enum { VOCABULARY, WIDTH, SOURCE, HEAD, FEED_FORWARD, LAYERS, HEADS };

static const float adapter_eps = 1e-6F;
static const double adapter_rope_theta = 10000;

struct adapter_state {
    struct tensor rope; /* for the longer of both token sequences: [rows, HEAD/2, 2] */
};

struct attention_weights {
    struct tensor norm, q, k, v, q_norm, k_norm, out; /* norm: of the tokens */
};

struct adapter_layer_weights {
    struct attention_weights self, cross;
    struct tensor norm;
    struct linear_weights up, down;
};

/* clang-format off */
#define EMBEDDING(X, S) X##TABLE(S, rows, VOCABULARY, WIDTH, "embed")
struct embedding_weights { EMBEDDING(FIELD_, ) };
WEIGHT_TABLE(adapter_embedding_table, EMBEDDING, embedding_weights, "", "");

/* part: member of adapter_layer_weights; keys: columns of the input of keys and values. */
#define ATTENTION(X, S, part, keys, norm_name, name)                                                         \
    X##VECTOR(S, part.norm, WIDTH, norm_name)                                                                \
    X##MATRIX(S, part.q, WIDTH, WIDTH, name ".q_proj")                                                       \
    X##MATRIX(S, part.k, WIDTH, keys, name ".k_proj")                                                        \
    X##MATRIX(S, part.v, WIDTH, keys, name ".v_proj")                                                        \
    X##VECTOR(S, part.q_norm, HEAD, name ".q_norm")                                                          \
    X##VECTOR(S, part.k_norm, HEAD, name ".k_norm")                                                          \
    X##MATRIX(S, part.out, WIDTH, WIDTH, name ".o_proj")
#define LAYER(X, S)                                                                                          \
    ATTENTION(X, S, self, WIDTH, "norm_self_attn", "self_attn")                                              \
    ATTENTION(X, S, cross, SOURCE, "norm_cross_attn", "cross_attn")                                          \
    X##VECTOR(S, norm, WIDTH, "norm_mlp")                                                                    \
    X##LINEAR(S, up, FEED_FORWARD, WIDTH, "mlp.0")                                                           \
    X##LINEAR(S, down, WIDTH, FEED_FORWARD, "mlp.2")
WEIGHT_TABLE(adapter_layer_table, LAYER, adapter_layer_weights, "blocks.%d.", "blocks.%d.");

#define OUTPUT(X, S)                                                                                         \
    X##LINEAR(S, linear, WIDTH, WIDTH, "out_proj")                                                           \
    X##VECTOR(S, norm, WIDTH, "norm")
struct output_weights { OUTPUT(FIELD_, ) };
WEIGHT_TABLE(adapter_output_table, OUTPUT, output_weights, "", "");
/* clang-format on */

static void adapter_forward_embedding(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct embedding_weights *w = weights;
    const struct adapter_state *state = scope->lane->state;
    struct rope_options rope = {.theta = adapter_rope_theta,
                                .n_axes = 1,
                                .axis_dim = {2 * state->rope.dim[1]},
                                .f32_frequencies = true,
                                .n_grids = 1,
                                .grid = {{.extent = {state->rope.dim[0]}}}};
    op_copy(x, scope->lane->text, w->rows);
    op_rope_table(x, state->rope, &rope);
}

/* Computes queries or keys: linear layer, then norm and rope of each head. */
static void adapter_project_heads(struct context *x, struct tensor out, struct tensor in,
                                  struct tensor weight, struct tensor norm, struct tensor rope) {
    uint64_t mark = x->scratch->used;
    struct rotation rotation = {
        .heads = out.dim[1] / norm.dim[0], .pairs = ROPE_HALVES, .norm = norm, .eps = adapter_eps};
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, in, weight, (struct epilogue){0});
    op_rope(x, out, heads, tensor_slice(rope, 0, out.dim[0]), rotation);
    x->scratch->used = mark;
}

/* tokens += out(attention(n, source)). source of rank 0: self-attention, with the normed tokens n. */
static void adapter_attend(struct context *x, const struct attention_weights *w, struct tensor tokens,
                           struct tensor source, struct tensor rope) {
    int32_t head = w->q_norm.dim[0], heads = tokens.dim[1] / head;
    uint64_t mark = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm, adapter_eps, (struct modulation){0});
    struct tensor from = source.rank ? source : n;
    int32_t keys[] = {from.dim[0], tokens.dim[1]};
    struct tensor k = context_operand(x, 2, keys), v = context_operand(x, 2, keys);
    adapter_project_heads(x, q, n, w->q, w->q_norm, rope);
    adapter_project_heads(x, k, from, w->k, w->k_norm, rope);
    op_linear(x, v, from, w->v, (struct epilogue){0});
    op_attention(
        x, q, q, k, v,
        (struct attention_options){.queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head)});
    op_linear(x, tokens, q, w->out, (struct epilogue){.residual = tokens});
    x->scratch->used = mark;
}

static void adapter_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct adapter_layer_weights *w = weights;
    const struct adapter_state *state = scope->lane->state;
    struct tensor tokens = scope->lane->text;
    adapter_attend(x, &w->self, tokens, (struct tensor){0}, state->rope);
    if (scope->lane->source.rank) adapter_attend(x, &w->cross, tokens, scope->lane->source, state->rope);
    struct tensor n = context_operand(x, 2, tokens.dim);
    struct tensor wide = context_operand(x, 2, (int32_t[]){tokens.dim[0], w->up.weight.dim[0]});
    op_rms_norm(x, n, tokens, w->norm, adapter_eps, (struct modulation){0});
    op_linear(x, wide, n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_ERF});
    op_linear(x, tokens, wide, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = tokens});
}

static void adapter_forward_output(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct output_weights *w = weights;
    struct tensor tokens = scope->lane->text, h = context_tensor(x, DTYPE_F32, 2, tokens.dim);
    op_linear(x, h, tokens, w->linear.weight, (struct epilogue){.bias = w->linear.bias});
    op_rms_norm(x, tokens, h, w->norm, adapter_eps, (struct modulation){0});
}

BLOCK(adapter_kind_embedding, "embedding", "embed", adapter_embedding_table, embedding_weights,
      adapter_forward_embedding, .embedding_table = true);
BLOCK(adapter_kind_layer, "layer", "blocks.%d", adapter_layer_table, adapter_layer_weights,
      adapter_forward_layer);
BLOCK(adapter_kind_output, "output", "out_proj", adapter_output_table, output_weights, adapter_forward_output,
      .never_quantised = true);

static bool adapter_probe(const struct tensor_index *index) {
    return index_find(index, "blocks.0.norm_self_attn.weight") && index_find(index, "out_proj.weight");
}

static enum status adapter_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"in_proj.", "an adapter whose layers are wider than its output"}, {0}};
    return component_refuse_similar(c, relatives, "the text adapter of Anima", e);
}

static enum status adapter_configure(struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    (void)config;
    if (d[WIDTH] % d[HEAD] == 0 && d[HEAD] % 2 == 0 && d[HEAD] <= 512 && d[LAYERS] <= FAMILY_BLOCKS_MAX - 2)
        return OK;
    return error_set(
        e, SHAPE,
        "inconsistent text adapter sizes" WHERE "%s" FOUND "width %d, head %d, layers %d" EXPECTED
        "a width that is a multiple of an even head size, heads of at most 512, at most %d layers",
        c->index.sources[0].path, d[WIDTH], d[HEAD], d[LAYERS], FAMILY_BLOCKS_MAX - 2);
}

static int adapter_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &adapter_kind_embedding};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &adapter_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &adapter_kind_output};
    return n;
}

static void adapter_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct adapter_state *state = lanes[i].state;
        int32_t rows = lanes[i].text.dim[0], source = lanes[i].source.rank ? lanes[i].source.dim[0] : 0;
        state->rope = arena_tensor(arena, DTYPE_F32, 3,
                                   (int32_t[]){rows > source ? rows : source, c->dims[HEAD] / 2, 2}, ok);
    }
}

/* Published sizes: Anima 1.0. */
static const struct dimension adapter_dimensions[] = {
    {"adapter_vocabulary", 32128, 300, 1048576, .place = VOCABULARY, OF_TENSOR(2, 0, "embed.weight"),
     .key = "target_vocab_size"},
    {"adapter_heads", 16, 1, 1024, .place = HEADS, .key = "num_attention_heads"},
    {"hidden", 1024, 8, 65536, .place = SOURCE, OF_TENSOR(2, 1, "blocks.0.cross_attn.k_proj.weight"),
     .key = "source_dim"},
    {"adapter_layers", 6, 1, 400, .place = LAYERS, OF_BLOCKS("blocks."), .key = "num_layers"},
    {"adapter_dim", 1024, 8, 65536, .place = WIDTH, OF_TENSOR(2, 1, "embed.weight"), .key = "target_dim"},
    {.place = WIDTH, .key = "model_dim"},
    {.place = HEAD, OF_TENSOR(1, 0, "blocks.0.self_attn.q_norm.weight")},
    {.place = FEED_FORWARD, OF_TENSOR(2, 0, "blocks.0.mlp.0.weight")},
};

static const struct expectation adapter_expects[] = {{"use_layer_norm", NULL}, {0}};

static void adapter_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[HEAD] = d[WIDTH] / d[HEADS];
    d[FEED_FORWARD] = 4 * d[WIDTH];
}

static void adapter_derive(struct component *c) {
    int32_t *d = c->dims;
    d[HEADS] = d[WIDTH] / d[HEAD];
    c->text_columns = d[WIDTH];
    c->source_columns = d[SOURCE];
}

static const struct state_tensor adapter_state_tensors[] = {STATE_TENSOR(adapter_state, rope)};

const struct family family_anima_adapter = {
    .name = "anima_adapter",
    .kind = FAMILY_TEXT,
    .display_name = "text adapter of Anima",
    .files = {.config_key = "_class_name",
              .config_value = "AnimaTextConditioner",
              .probe = adapter_probe,
              .refuse = adapter_refuse},
    .config = {.dimensions = adapter_dimensions,
               .n_dimensions = COUNT_OF(adapter_dimensions),
               .expects = adapter_expects,
               .configure = adapter_configure,
               .derive_dims = adapter_derive_dims,
               .derive = adapter_derive,
               .rest = "\"mlp_ratio\": 4.0, \"use_self_attention\": true, \"use_layer_norm\": false, "
                       "\"min_sequence_length\": 512"},
    .reads = {.tokens = true},
    .blocks = {.list = adapter_blocks},
    .state = {.bytes = sizeof(struct adapter_state),
              .tensors = adapter_state_tensors,
              .n_tensors = COUNT_OF(adapter_state_tensors),
              .declare = adapter_declare},
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 1024}},
};
