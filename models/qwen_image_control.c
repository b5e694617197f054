/* Control networks of Qwen-Image (diffusers: QwenImageControlNetModel): InstantX' Union and Inpainting. Token
 * order: text, the generated image.
 *
 * The network has the denoiser's layers with weights of its own, and its own embedders of image, prompt and
 * timestep. The control image's latent, in patches of 2x2 pixels, is embedded and added to the image tokens.
 * The inpainting network has one more channel, 1 - mask, in the same patches. Residual j is added after each
 * of the denoiser's layers j n to j n + n - 1, n = ceil(denoiser layers / network layers). With guidance the
 * network runs for the prompt only; the negative prompt's lane adds the same residuals. Source: diffusers
 * 0.42, models/controlnets/controlnet_qwenimage.py, pipelines/qwenimage/pipeline_qwenimage_controlnet.py. */
#include "models/mmdit_control.h"
#include "models/qwen_image.h"
#include "models/slots.h"

/* Further indices into component.dims. */
enum {
    CONTROL_IN = QWEN_IMAGE_DIMS, /* values of the control image in a token */
    EXTRA,                        /* CONTROL_IN - IN: 4 with a mask (extra_condition_channels) */
    MASKED,                       /* 1: the network inpaints and reads a mask */
};

struct control_state {
    struct qwen_image_state network; /* first: the shared blocks read it as lane.state */
    struct tensor residual;          /* [image rows, DIM], one at a time */
};

/* clang-format off */
#define EMBEDDER(X, S)                                                                                       \
    X##LINEAR(S, image, DIM, IN, "img_in")                                                                   \
    X##LINEAR(S, control, DIM, CONTROL_IN, "controlnet_x_embedder")
struct embedder_weights { EMBEDDER(FIELD_, ) };
/* clang-format on */
LINEAR_TABLE(residual_table, DIM, DIM, "controlnet_blocks.%d");

static void forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedder_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    struct tensor tokens = state->network.tokens, rows = mmdit_image_rows(tokens, scope->lane);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->image.weight.dim[1]});
    mmdit_patchify(x, patches, scope->lane, MMDIT_PATCH);
    mmdit_linear(x, rows, patches, &w->image);
    mmdit_control_embed(x, rows, rows, &w->control, scope->lane);
    op_copy(x, mmdit_text_rows(tokens, scope->lane), state->network.text);
}

static void forward_residual(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    mmdit_linear(x, state->residual, mmdit_image_rows(state->network.tokens, scope->lane), weights);
}

static void forward_add(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct qwen_image_state *denoiser = scope->lane->denoiser->state;
    (void)weights;
    mmdit_control_add(x, denoiser->tokens, state->residual, scope->lane);
}

BLOCK_OF_LIST(kind_embedder, "embedder", "img_in", EMBEDDER, embedder_weights, "", "", forward_embedder,
              .never_quantised = true);
BLOCK(kind_residual, "residual", "controlnet_blocks.%d", residual_table, linear_weights, forward_residual);
static const struct block_kind kind_add = {.name = "add", .format = "add", .forward = forward_add};

static int list_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, last = c->dims[LAYERS] - 1;
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_text};
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_time};
    refs[n++] = (struct block_ref){.kind = &kind_embedder};
    for (int i = 0; i <= last; i++) {
        refs[n++] = (struct block_ref){.kind = &qwen_image_kind_layer_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = i < last ? &qwen_image_kind_layer : &qwen_image_kind_last,
                                       .number = i};
        refs[n++] = (struct block_ref){.kind = &kind_residual, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_last_unused, .number = last, .unused = true};
    refs[n++] = (struct block_ref){.kind = &kind_add};
    return n;
}

static void declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct control_state *s = lanes[i].state;
        int32_t dim = c->dims[DIM], text = lanes[i].text.dim[0];
        int32_t image = mmdit_token_count(lanes[i].latent, MMDIT_PATCH);
        int first = lane_first_of_prompt(lanes, i);
        if (!lane_computes(&lanes[i])) continue;
        if (i)
            s->network = ((const struct control_state *)lanes[first == i ? 0 : first].state)->network;
        else
            qwen_image_declare_rows(c, lanes, arena, ok);
        s->network.tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text + image, dim}, ok);
        s->residual = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){image, dim}, ok);
        if (first == i) qwen_image_declare_prompt(c, &lanes[i], arena, ok);
    }
}

static bool probe(const struct tensor_index *index) {
    return index_find(index, "controlnet_blocks.0.weight") &&
           index_find(index, "transformer_blocks.0.img_mlp.net.0.proj.weight");
}

static enum status configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    int patch = MMDIT_PATCH;
    config_int(config, "patch_size", MMDIT_PATCH, MMDIT_PATCH, &patch, e);
    config_check_list(config, "axes_dims_rope", 3, e);
    d[PATCH] = d[IN];
    d[EXTRA] = d[CONTROL_IN] - d[IN];
    d[MASKED] = d[EXTRA] == MMDIT_PATCH * MMDIT_PATCH;
    if (e->code != OK || qwen_image_check_dims(c, 3 * d[LAYERS] + 5, e) != OK) return e->code;
    if (!d[EXTRA] || d[MASKED]) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported Qwen-Image control network" WHERE "%s" FOUND
                     "controlnet_x_embedder with %d input channels" EXPECTED
                     "%d, or %d with a mask (inpainting)",
                     c->index.sources[0].path, d[CONTROL_IN], d[IN], d[IN] + MMDIT_PATCH * MMDIT_PATCH);
}

static void derive_dims(struct component *c) {
    qwen_image_derive_dims(c);
    c->dims[EXTRA] = c->dims[MASKED] ? MMDIT_PATCH * MMDIT_PATCH : 0;
    c->dims[CONTROL_IN] = c->dims[IN] + c->dims[EXTRA];
}

static void derive(struct component *c) {
    qwen_image_derive(c);
    c->concat_channels = c->dims[CONTROL_IN] / (MMDIT_PATCH * MMDIT_PATCH);
}

static enum status check(const struct component *c, const struct component *denoiser, struct error *e) {
    return mmdit_control_check(c, denoiser, DIM, LAYERS, e);
}

static int residual_of(int layer, int n, int n_residuals) {
    return layer / ((n + n_residuals - 1) / n_residuals);
}

static int list_visits(const struct component *c, const struct component *denoiser,
                       struct control_visit *visits) {
    static const struct mmdit_control_kinds kinds = {
        .denoiser_embedder = &qwen_image_kind_embedder,
        .denoiser_layer = {&qwen_image_kind_layer, &qwen_image_kind_last},
        .embedder = &kind_embedder,
        .layer = {&qwen_image_kind_layer, &qwen_image_kind_last},
        .residual = &kind_residual,
        .add = &kind_add,
        .residual_of = residual_of,
    };
    return mmdit_control_visits(c, denoiser, &kinds, c->dims[LAYERS], visits);
}

/* Sizes of the published Union network, 1.77 B parameters. */
static const struct dimension dimensions[] = {
    QWEN_IMAGE_DIMENSIONS(5),
    {"masked", 0, 0, 1, .place = MASKED},
    QWEN_IMAGE_TENSOR_DIMENSIONS,
    {.place = CONTROL_IN, OF_TENSOR(2, 1, "controlnet_x_embedder.weight")},
    {.place = EXTRA, .key = "extra_condition_channels", .checked = true},
};
static const struct setting settings[] = {QWEN_IMAGE_AXES};
static const char *const architectures[] = {"qwen_image_control", NULL};
static const struct state_tensor state_tensors[] = {STATE_TENSOR(control_state, network.tokens),
                                                    STATE_TENSOR(control_state, residual)};

const struct family family_qwen_image_control = {
    .name = "qwen_image_control",
    .kind = FAMILY_CONTROL,
    .display_name = "Qwen-Image control network",
    .files = {.architectures = architectures,
              .config_key = "_class_name",
              .config_value = "QwenImageControlNetModel",
              .probe = probe},
    .config = {.dimensions = dimensions,
               .n_dimensions = COUNT_OF(dimensions),
               .settings = settings,
               .n_settings = COUNT_OF(settings),
               .configure = configure,
               .derive_dims = derive_dims,
               .derive = derive,
               .rest = "\"patch_size\": 2"},
    .blocks = {.list = list_blocks},
    .state = {.bytes = sizeof(struct control_state),
              .tensors = state_tensors,
              .n_tensors = COUNT_OF(state_tensors),
              .declare = declare},
    .control = {.denoiser = &family_qwen_image,
                .input = CONTROL_LATENT,
                .conditional_only = true,
                .check = check,
                .visits = list_visits},
};
