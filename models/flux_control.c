/* Control networks of Flux.1 (diffusers: FluxControlNetModel): a short Flux.1 transformer with its own
 * embedders, conditioning and blocks (flux_blocks.h), whose input is the denoiser's latent plus an embedding
 * of the control image. After block j, a linear layer maps the image tokens to residual r_j, which denoiser
 * blocks add to their image tokens.
 *
 * Denoiser block b of n adds r[b / ceil(n / L)], for L residuals; double and single blocks have separate
 * residuals. Network block j runs just before the first addition of r_j, so one residual is alive.
 *
 * Variants. Union (InstantX, Shakker Labs): a token for the kind of control image precedes the text. Pro 2.0:
 * no single blocks. Networks may embed the guidance scale whether or not the denoiser does.
 * XLabs: a convolutional encoder reads the control image's pixels, denoiser block b adds r[b mod L], and all
 * residuals are alive.
 *
 * Source: diffusers 0.42, models/controlnets/controlnet_flux.py, models/transformers/transformer_flux.py and
 * pipelines/flux/pipeline_flux_controlnet.py; names of XLabs' files: ComfyUI, comfy/ldm/flux/controlnet.py.
 */
#include "models/flux_blocks.h"

/* Indices into component.dims after those of flux_blocks.h. */
enum {
    MODES = FLUX_DIMS, /* kinds of control images of a union network; 0: one kind */
    HINT,              /* XLabs: channels of the image encoder's feature maps */
    COLOURS,
    KERNEL_SIDE,
    PATCH_SIDE, /* patch_size in config.json: XLabs' networks pack the encoded image themselves */
};

enum { HINT_CONVS = 8 }; /* convolutions of XLabs' image encoder, which reads 8x8 pixels per latent pixel */

struct flux_control_state {
    struct flux_state flux; /* flux.text: the row of the mode, if there are modes, then the prompt */
    struct tensor image;    /* XLabs: patches of the encoded control image, shared by the lanes of a prompt:
                               [image rows, IN]; other networks read the control image's latent */
    /* Residuals that denoiser blocks add: [slots, image rows, DIM]. Slots: 1, or all residuals (XLabs). */
    struct tensor residual;
};

/* clang-format off */
#define CONTEXT(X, S)                                                                                        \
    X##LINEAR(S, prompt, DIM, CAPTION, "context_embedder", "txt_in")                                         \
    X##TABLE(IF_DIM(S, MODES), modes, MODES, DIM, "controlnet_mode_embedder")
struct context_weights { CONTEXT(FIELD_, ) };

#define HINT_ENCODER(X, S)                                                                                   \
    X##CONV(S, in, HINT, COLOURS, KERNEL_SIDE, "input_hint_block.conv_in", "input_hint_block.0")             \
    X##CONV(S, conv[0], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.0", "input_hint_block.2")          \
    X##CONV(S, conv[1], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.1", "input_hint_block.4")          \
    X##CONV(S, conv[2], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.2", "input_hint_block.6")          \
    X##CONV(S, conv[3], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.3", "input_hint_block.8")          \
    X##CONV(S, conv[4], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.4", "input_hint_block.10")         \
    X##CONV(S, conv[5], HINT, HINT, KERNEL_SIDE, "input_hint_block.blocks.5", "input_hint_block.12")         \
    X##CONV(S, conv[6], LATENT, HINT, KERNEL_SIDE, "input_hint_block.conv_out", "input_hint_block.14")
struct hint_weights {
    struct linear_weights in, conv[HINT_CONVS - 1];
};

#define EMBEDDERS(X, S)                                                                                      \
    X##LINEAR(S, latent, DIM, IN, "x_embedder", "img_in")                                                    \
    X##LINEAR(S, image, DIM, IN, "controlnet_x_embedder", "pos_embed_input")
struct embedder_weights { EMBEDDERS(FIELD_, ) };
/* clang-format on */
WEIGHT_TABLE(flux_control_context_table, CONTEXT, context_weights, "", "");
WEIGHT_TABLE(flux_control_hint_table, HINT_ENCODER, hint_weights, "", "");
WEIGHT_TABLE(flux_control_embedder_table, EMBEDDERS, embedder_weights, "", "");
LINEAR_TABLE(flux_control_double_table, DIM, DIM, "controlnet_blocks.%d");
LINEAR_TABLE(flux_control_single_table, DIM, DIM, "controlnet_single_blocks.%d");

/* Rows of the image tokens, which follow the text's. */
static struct tensor flux_control_image_rows(const struct flux_state *state) {
    int32_t text = state->text.dim[0];
    return tensor_slice(state->tokens, text, state->tokens.dim[0] - text);
}

/* Returns the slot of residual `number`, [image rows, DIM], a view. */
static struct tensor flux_control_slot(struct tensor residual, int number) {
    return tensor_reshape(tensor_slice(residual, number % residual.dim[0], 1), 2, residual.dim + 1);
}

static void flux_control_forward_context(struct context *x, const void *weights,
                                         const struct visit_scope *scope) {
    const struct context_weights *w = weights;
    const struct flux_control_state *state = scope->lane->state;
    int32_t modes = w->modes.rank ? 1 : 0;
    struct tensor text = state->flux.text;
    flux_fill_rope(x, scope, 1);
    mmdit_linear(x, tensor_slice(text, modes, text.dim[0] - modes), scope->lane->text, &w->prompt);
    if (modes) op_copy(x, tensor_slice(text, 0, 1), tensor_slice(w->modes, scope->lane->control[0].mode, 1));
}

/* XLabs: eight convolutions with SiLU between them, three of them with stride 2. Two feature maps of the
 * image's size are alive. */
static void flux_control_forward_hint(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct hint_weights *w = weights;
    const struct flux_control_state *state = scope->lane->state;
    struct tensor pixels = scope->lane->control[0].input;
    int32_t dim[] = {pixels.dim[0], pixels.dim[1], w->in.weight.dim[0]};
    struct tensor map[] = {context_tensor(x, DTYPE_F32, 3, dim), context_tensor(x, DTYPE_F32, 3, dim)};
    op_conv2d(x, map[0], pixels, w->in.weight, (struct epilogue){.bias = w->in.bias},
              (struct conv_options){.upsample = 1, .bounded = true});
    for (int i = 0; i < HINT_CONVS - 1; i++) {
        const struct linear_weights *conv = &w->conv[i];
        struct tensor *out = &map[(i + 1) % 2];
        struct conv_options options = {
            .activation = ACTIVATION_SILU, .upsample = 1, .stride = 1 + i % 2, .pad_before = i % 2};
        dim[0] = conv_size(dim[0], &options, false);
        dim[1] = conv_size(dim[1], &options, false);
        dim[2] = conv->weight.dim[0];
        *out = tensor_make(out->data, DTYPE_F32, 3, dim);
        op_conv2d(x, *out, map[i % 2], conv->weight, (struct epilogue){.bias = conv->bias}, options);
    }
    op_patchify(x, state->image, map[(HINT_CONVS - 1) % 2],
                (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST, .pixels = true});
}

/* Embeds the latent and the control image. Embedding the control image again in each evaluation costs little;
 * keeping the rows would take as much memory as the tokens. */
static void flux_control_forward_embedder(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct embedder_weights *w = weights;
    const struct flux_control_state *state = scope->lane->state;
    const struct patches patching = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};
    struct tensor rows = flux_control_image_rows(&state->flux);
    struct tensor patches =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->latent.weight.dim[1]});
    op_patchify(x, patches, latent_planes(scope->lane->latent), patching);
    mmdit_linear(x, rows, patches, &w->latent);
    if (!state->image.rank) op_patchify(x, patches, latent_planes(scope->lane->control[0].input), patching);
    op_linear(x, rows, state->image.rank ? state->image : patches, w->image.weight,
              (struct epilogue){.bias = w->image.bias, .residual = rows});
    op_copy(x, tensor_slice(state->flux.tokens, 0, state->flux.text.dim[0]), state->flux.text);
}

static void flux_control_forward_residual(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct flux_control_state *state = scope->lane->state;
    mmdit_linear(x, flux_control_slot(state->residual, scope->number), flux_control_image_rows(&state->flux),
                 weights);
}

/* Adds a residual to the denoiser's tokens of the generated image, which follow the text and precede
 * references. number: slot of the residual. */
static void flux_control_forward_addition(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct flux_control_state *state = scope->lane->state;
    const struct flux_state *denoiser = scope->lane->denoiser->state;
    struct tensor residual = flux_control_slot(state->residual, scope->number);
    struct tensor rows = tensor_slice(denoiser->tokens, denoiser->text.dim[0], residual.dim[0]);
    (void)weights;
    op_add_scaled(x, rows, rows, residual, scope->lane->control[0].strength);
}

BLOCK(flux_control_kind_context, "context", "context_embedder", flux_control_context_table, context_weights,
      flux_control_forward_context, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(flux_control_kind_hint, "control_image", "input_hint_block", flux_control_hint_table, hint_weights,
      flux_control_forward_hint, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(flux_control_kind_embedder, "embedder", "x_embedder", flux_control_embedder_table, embedder_weights,
      flux_control_forward_embedder, .never_quantised = true);
BLOCK(flux_control_kind_double, "double_residual", "controlnet_blocks.%d", flux_control_double_table,
      linear_weights, flux_control_forward_residual);
BLOCK(flux_control_kind_single, "single_residual", "controlnet_single_blocks.%d", flux_control_single_table,
      linear_weights, flux_control_forward_residual);
static const struct block_kind flux_control_kind_addition = {
    .name = "addition", .format = "additions.%d", .forward = flux_control_forward_addition};

static const struct flux_details flux_control_details = {.context = &flux_control_kind_context,
                                                         .conditioning = &flux_kind_conditioning,
                                                         .double_block = &flux_kind_double,
                                                         .single_block = &flux_kind_single,
                                                         .modulations = &flux_modulations_of_control};

/* True if denoiser block b adds r[b mod L], and all residuals have a slot of their own (XLabs). */
static bool flux_control_repeats(const struct component *c) {
    return c->dims[HINT];
}

static int flux_control_slots(const struct component *c) {
    return flux_control_repeats(c) ? c->dims[DOUBLE_LAYERS] : 1;
}

static int flux_control_list_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &flux_control_kind_context};
    if (c->dims[HINT]) refs[n++] = (struct block_ref){.kind = &flux_control_kind_hint};
    refs[n++] = (struct block_ref){.kind = &flux_kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &flux_control_kind_embedder};
    for (int i = 0; i < c->dims[DOUBLE_LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = flux_modulations_of_control.double_block, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_kind_double, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_control_kind_double, .number = i};
    }
    for (int i = 0; i < c->dims[SINGLE_LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = flux_modulations_of_control.single_block, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_kind_single, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_control_kind_single, .number = i};
    }
    for (int i = 0; i < flux_control_slots(c); i++)
        refs[n++] = (struct block_ref){.kind = &flux_control_kind_addition, .number = i};
    return n;
}

/* The double or the single blocks of a network and its denoiser. */
struct flux_control_blocks {
    const struct block_kind *kind, *residual; /* kind: of both; residual: of the network's residual layers */
    int n, n_main;                            /* number of blocks of the network, of the denoiser */
};

static void flux_control_visit(struct control_visit *visits, int *n, const struct component *c,
                               const struct block_kind *kind, int number, int after) {
    visits[(*n)++] = (struct control_visit){.block = component_find_block(c, kind, number),
                                            .after = after,
                                            .adds = kind == &flux_control_kind_addition};
}

/* Appends the visits of one kind of blocks. Network block j and its residual layer run after the first
 * denoiser block that adds r_j. Network blocks whose residual is never added get no visit here; double blocks
 * among them run before the single blocks, which need their tokens (flux_control_visits). computed: number of
 * network blocks with visits, updated. */
static void flux_control_visit_blocks(const struct component *c, const struct component *denoiser,
                                      const struct flux_control_blocks *blocks, struct control_visit *visits,
                                      int *n, int *computed) {
    int interval = blocks->n ? (blocks->n_main + blocks->n - 1) / blocks->n : 0;
    for (int b = 0; b < blocks->n_main && blocks->n; b++) {
        int after = component_find_block(denoiser, blocks->kind, b);
        int wanted = flux_control_repeats(c) ? b % blocks->n : b / interval;
        for (; *computed <= wanted; (*computed)++) {
            flux_control_visit(visits, n, c, blocks->kind, *computed, after);
            flux_control_visit(visits, n, c, blocks->residual, *computed, after);
        }
        flux_control_visit(visits, n, c, &flux_control_kind_addition, wanted % flux_control_slots(c), after);
    }
}

static int flux_control_visits(const struct component *c, const struct component *denoiser,
                               struct control_visit *visits) {
    struct flux_control_blocks doubles = {&flux_kind_double, &flux_control_kind_double,
                                          c->dims[DOUBLE_LAYERS], denoiser->dims[DOUBLE_LAYERS]};
    struct flux_control_blocks singles = {&flux_kind_single, &flux_control_kind_single,
                                          c->dims[SINGLE_LAYERS], denoiser->dims[SINGLE_LAYERS]};
    int n = 0, computed = 0, computed_singles = 0;
    int first = component_find_block(denoiser, &flux_kind_double, 0);
    flux_control_visit(visits, &n, c, &flux_control_kind_embedder, 0, first);
    flux_control_visit_blocks(c, denoiser, &doubles, visits, &n, &computed);
    int next = component_find_block(denoiser, &flux_kind_single, 0);
    for (; computed < doubles.n && singles.n; computed++)
        flux_control_visit(visits, &n, c, doubles.kind, computed, next);
    flux_control_visit_blocks(c, denoiser, &singles, visits, &n, &computed_singles);
    return n;
}

static void flux_control_declare(const struct component *c, struct lane *lanes, int n_lanes,
                                 struct arena *arena, struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct flux_control_state *s = lanes[i].state;
        int32_t text = lanes[i].text.dim[0] + (c->dims[MODES] ? 1 : 0);
        int32_t rows = mmdit_token_count(lanes[i].latent, MMDIT_PATCH);
        if (lanes[i].residuals_of) continue; /* uses another lane's state */
        flux_declare_lane(c, lanes, i, text, rows, arena, ok);
        int prompt = lane_first_of_prompt(lanes, i);
        if (prompt != i)
            s->image = ((const struct flux_control_state *)lanes[prompt].state)->image;
        else if (c->dims[HINT])
            s->image = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[IN]}, ok);
        s->residual =
            arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){flux_control_slots(c), rows, c->dims[DIM]}, ok);
    }
}

/* True for files of Flux.1 control networks with (hint: true) or without XLabs' image encoder. */
static bool flux_control_is(const struct tensor_index *index, bool hint) {
    bool has_hint = index_find(index, "input_hint_block.conv_in.weight") ||
                    index_find(index, "input_hint_block.0.weight");
    bool embeds =
        index_find(index, "controlnet_x_embedder.weight") || index_find(index, "pos_embed_input.weight");
    bool latent = index_find(index, "x_embedder.weight") || index_find(index, "img_in.weight");
    bool pooled = index_find(index, "time_text_embed.text_embedder.linear_1.weight") ||
                  index_find(index, "vector_in.in_layer.weight");
    return index_find(index, "controlnet_blocks.0.weight") && embeds && latent && pooled && has_hint == hint;
}

/* Accepts MistoLine's networks (TheMisto.ai) too, because flux_control_refuse names them. */
static bool flux_control_probe(const struct tensor_index *index) {
    return flux_control_is(index, false) || (index_find(index, "controlnet_blocks.0.linear.weight") &&
                                             index_find(index, "double_blocks.0.img_attn.qkv.weight"));
}

static bool flux_control_xlabs_probe(const struct tensor_index *index) {
    return flux_control_is(index, true);
}

static enum status flux_control_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"controlnet_blocks.0.linear.weight", "MistoLine, whose image encoder is another network"},
        {0},
    };
    return component_refuse_similar(c, relatives,
                                    "a Flux.1 ControlNet of InstantX, Shakker Labs, Jasper AI or XLabs", e);
}

static enum status flux_control_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    const struct flux_settings *settings = (const struct flux_settings *)c->settings;
    const char *modes = "controlnet_mode_embedder.weight";
    int layers = d[DOUBLE_LAYERS] + d[SINGLE_LAYERS], patch = 1;
    /* patch_size is 2 in XLabs' networks, which pack the encoded image themselves. */
    config_int(config, "patch_size", 1, MMDIT_PATCH, &patch, e);
    config_check_list(config, "axes_dims_rope", 3, e);
    if (index_find(&c->index, modes)) d[MODES] = component_dim(c, modes, 2, 0, e);
    if (e->code != OK) return e->code;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[IN],
                                .axis = settings->axis_dim,
                                .n_axes = 3,
                                .layers = d[DOUBLE_LAYERS] ? layers : 0,
                                .n_blocks = 4 * layers + 8};
    return mmdit_check_sizes(c, &sizes, e);
}

static void flux_control_derive_dims(struct component *c) {
    flux_derive_dims(c);
    c->dims[IN] = c->dims[PATCH];
}

static void flux_control_derive(struct component *c) {
    int32_t *d = c->dims;
    d[PATCH] = d[IN];
    flux_derive(c);
    d[COLOURS] = 3;
    d[KERNEL_SIDE] = 3;
    d[PATCH_SIDE] = MMDIT_PATCH;
    c->concat_channels = d[HINT] ? 0 : d[LATENT];
    c->control.modes = d[MODES];
}

static enum status flux_control_check(const struct component *c, const struct component *denoiser,
                                      struct error *e) {
    const int32_t *own = c->dims, *main = denoiser->dims;
    static const struct {
        int dim;
        const char *name;
    } equal[] = {{DIM, "the width"},
                 {LATENT, "latent channels"},
                 {CAPTION, "prompt columns"},
                 {POOLED, "pooled prompt columns"}};
    for (int i = 0; i < COUNT_OF(equal); i++)
        if (own[equal[i].dim] != main[equal[i].dim])
            return error_set(e, SHAPE,
                             "the control network does not fit the transformer" WHERE "%s, %s" FOUND
                             "%d" EXPECTED "%d, as in %s",
                             c->index.sources[0].path, equal[i].name, own[equal[i].dim], main[equal[i].dim],
                             denoiser->index.sources[0].path);
    return OK;
}

/* Rows of the dimension table; published: those of InstantX's union network, or of XLabs' networks. */
#define CONTROL_DIMENSIONS(doubles, singles, n_modes)                                                        \
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads"},                                     \
        {"axis0", 16, 2, 256, .place = AXES}, {"axis1", 56, 2, 256, .place = AXES + 1},                      \
        {"axis2", 56, 2, 256, .place = AXES + 2},                                                            \
        {"double_layers",                                                                                    \
         doubles,                                                                                            \
         1,                                                                                                  \
         100,                                                                                                \
         .place = DOUBLE_LAYERS,                                                                             \
         OF_BLOCKS("transformer_blocks.", "double_blocks."),                                                 \
         .key = "num_layers"},                                                                               \
        {"single_layers",                                                                                    \
         singles,                                                                                            \
         0,                                                                                                  \
         100,                                                                                                \
         .place = SINGLE_LAYERS,                                                                             \
         OF_BLOCKS("single_transformer_blocks.", "single_blocks."),                                          \
         .key = "num_single_layers"},                                                                        \
        {"hidden",                                                                                           \
         4096,                                                                                               \
         8,                                                                                                  \
         65536,                                                                                              \
         .place = CAPTION,                                                                                   \
         OF_TENSOR(2, 1, "context_embedder.weight", "txt_in.weight"),                                        \
         .key = "joint_attention_dim"},                                                                      \
        {"latent_channels", 16, 1, 1024, .place = LATENT},                                                   \
        {"pooled",                                                                                           \
         768,                                                                                                \
         8,                                                                                                  \
         65536,                                                                                              \
         .place = POOLED,                                                                                    \
         OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "vector_in.in_layer.weight"),      \
         .key = "pooled_projection_dim"},                                                                    \
        {"guidance",                                                                                         \
         1,                                                                                                  \
         0,                                                                                                  \
         1,                                                                                                  \
         .place = GUIDED,                                                                                    \
         OF_TENSOR(0, 0, "time_text_embed.guidance_embedder.linear_1.weight",                                \
                   "guidance_in.in_layer.weight"),                                                           \
         .key = "guidance_embeds",                                                                           \
         .form = FORM_BOOL},                                                                                 \
        {"modes",                                                                                            \
         n_modes,                                                                                            \
         0,                                                                                                  \
         1000,                                                                                               \
         .place = MODES,                                                                                     \
         OF_TENSOR(0, 0, "controlnet_mode_embedder.weight"),                                                 \
         .key = "num_mode",                                                                                  \
         .form = FORM_NULL_IF_0},                                                                            \
        {.place = DIM, OF_TENSOR(2, 0, "x_embedder.weight", "img_in.weight")},                               \
        {.place = IN, OF_TENSOR(2, 1, "x_embedder.weight", "img_in.weight"), .key = "in_channels"},          \
        {.place = HEAD,                                                                                      \
         .key = "attention_head_dim",                                                                        \
         OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight",                                          \
                   "double_blocks.0.img_attn.norm.query_norm.scale")},                                       \
        FLUX_FEED_FORWARD, {                                                                                 \
        .place = FREQUENCIES,                                                                                \
        OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "time_in.in_layer.weight")      \
    }

static const struct dimension flux_control_dimensions[] = {CONTROL_DIMENSIONS(5, 10, 10)};
static const struct dimension flux_control_xlabs_dimensions[] = {
    CONTROL_DIMENSIONS(2, 0, 0),
    {"hint", 16, 1, 1024, .place = HINT,
     OF_TENSOR(4, 0, "input_hint_block.conv_in.weight", "input_hint_block.0.weight")},
    {.place = LATENT, .key = "conditioning_embedding_channels"},
    {.place = PATCH_SIDE, .key = "patch_size"},
};
static const struct setting flux_control_settings[] = {FLUX_AXES};

/* Kinds of control images of InstantX's and Shakker Labs' union networks (their model cards). */
static const char *const flux_control_modes[] = {"canny", "tile", "depth", "blur",
                                                 "pose",  "gray", "lq",    NULL};

#define CONTROL_STATE_TENSOR(field)                                                                          \
    { #field, offsetof(struct flux_control_state, flux.field) }
static const struct state_tensor flux_control_state_tensors[] = {
    CONTROL_STATE_TENSOR(tokens),
    CONTROL_STATE_TENSOR(rope),
    CONTROL_STATE_TENSOR(text),
    CONTROL_STATE_TENSOR(condition),
    CONTROL_STATE_TENSOR(image_modulation),
    CONTROL_STATE_TENSOR(text_modulation),
    CONTROL_STATE_TENSOR(single_modulation),
    STATE_TENSOR(flux_control_state, image),
    STATE_TENSOR(flux_control_state, residual),
};

/* Initialisers of both families. */
#define CONTROL_FAMILY(of, input_)                                                                           \
    .kind = FAMILY_CONTROL, .details = &flux_control_details,                                                \
    .config = {.dimensions = of##_dimensions,                                                                \
               .n_dimensions = COUNT_OF(of##_dimensions),                                                    \
               .settings = flux_control_settings,                                                            \
               .n_settings = COUNT_OF(flux_control_settings),                                                \
               .configure = flux_control_configure,                                                          \
               .derive_dims = flux_control_derive_dims,                                                      \
               .derive = flux_control_derive},                                                               \
    .blocks = {.list = flux_control_list_blocks},                                                            \
    .state = {.bytes = sizeof(struct flux_control_state),                                                    \
              .tensors = flux_control_state_tensors,                                                         \
              .n_tensors = COUNT_OF(flux_control_state_tensors),                                             \
              .declare = flux_control_declare},                                                              \
    .control = {.denoiser = &family_flux,                                                                    \
                .input = input_,                                                                             \
                .conditional_only = true,                                                                    \
                .modes = flux_control_modes,                                                                 \
                .check = flux_control_check,                                                                 \
                .visits = flux_control_visits}

const struct family family_flux_control = {
    CONTROL_FAMILY(flux_control, CONTROL_LATENT),
    .name = "flux_control",
    .display_name = "Flux.1 control network",
    .files = {.config_key = "_class_name",
              .config_value = "FluxControlNetModel",
              .probe = flux_control_probe,
              .refuse = flux_control_refuse},
};

const struct family family_flux_control_xlabs = {
    CONTROL_FAMILY(flux_control_xlabs, CONTROL_SIGNED_PIXELS),
    .name = "flux_control_xlabs",
    .display_name = "XLabs' Flux.1 control network",
    .files = {.config_key = "_class_name",
              .config_value = "FluxControlNetModel",
              .probe = flux_control_xlabs_probe},
};
