/* Image embedder of Flux.1 Redux (diffusers: ReduxImageEncoder): turns the rows of a SigLIP vision encoder
 * (lane.source) into rows of prompt_embeds (lane.text) by two linear layers with SiLU between. The host adds
 * the rows to the prompt's: engine/generate/prompt_embeds.c. Source: diffusers 0.42,
 * pipelines/flux/modeling_flux.py. */
#include "models/models.h"

enum { SOURCE, HIDDEN, OUT };

/* clang-format off */
#define EMBEDDER(X, S)                                                                                       \
    X##LINEAR(S, up, HIDDEN, SOURCE, "redux_up")                                                             \
    X##LINEAR(S, down, OUT, HIDDEN, "redux_down")
struct redux_weights { EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(redux_table, EMBEDDER, redux_weights, "", "");
/* clang-format on */

static void redux_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct redux_weights *w = weights;
    struct tensor source = scope->lane->source;
    struct tensor wide = context_operand(x, 2, (int32_t[]){source.dim[0], w->up.weight.dim[0]});
    op_linear(x, wide, source, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_SILU});
    op_linear(x, scope->lane->text, wide, w->down.weight, (struct epilogue){.bias = w->down.bias});
}

BLOCK(redux_kind, "embedder", "embedder", redux_table, redux_weights, redux_forward);

static bool redux_probe(const struct tensor_index *index) {
    return index_find(index, "redux_up.weight") && index_find(index, "redux_down.weight");
}

static int redux_blocks(const struct component *c, struct block_ref *refs) {
    (void)c;
    refs[0] = (struct block_ref){.kind = &redux_kind};
    return 1;
}

/* The embedder has no state: its hidden rows are scratch. */
static void redux_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    (void)c, (void)lanes, (void)n_lanes, (void)arena, (void)pictures, (void)ok;
}

/* Sizes of FLUX.1-Redux-dev, 64.5 M parameters. The hidden width is three times the output's. */
static const struct dimension redux_dimensions[] = {
    {"siglip_width", 1152, 8, 65536, .place = SOURCE, OF_TENSOR(2, 1, "redux_up.weight"), .key = "redux_dim"},
    {"hidden", 4096, 8, 65536, .place = OUT, OF_TENSOR(2, 0, "redux_down.weight"), .key = "txt_in_features"},
    {.place = HIDDEN, OF_TENSOR(2, 0, "redux_up.weight")},
};

static void redux_derive_dims(struct component *c) {
    c->dims[HIDDEN] = 3 * c->dims[OUT];
}

static void redux_derive(struct component *c) {
    c->source_columns = c->dims[SOURCE];
    c->text_columns = c->dims[OUT];
}

const struct family family_redux = {
    .name = "redux",
    .kind = FAMILY_VISION,
    .display_name = "Flux Redux image embedder",
    .files = {.config_key = "_class_name", .config_value = "ReduxImageEncoder", .probe = redux_probe},
    .config = {.dimensions = redux_dimensions,
               .n_dimensions = COUNT_OF(redux_dimensions),
               .derive_dims = redux_derive_dims,
               .derive = redux_derive},
    .blocks = {.list = redux_blocks},
    .state = {.bytes = 1, .declare = redux_declare},
    .predicted = {{.kind = "embedder", .alone = true, .tokens = 729, .text_rows = 729, .text_columns = 4096}},
};
