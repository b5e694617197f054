/* Control networks of Z-Image (VideoX-Fun: ZImageControlTransformer2DModel; diffusers:
 * ZImageControlNetModel).
 *
 * A network has an embedder for the control latent, a noise refiner and control layers. Everything else is
 * the transformer's: timestep embedding, refined captions, rope, padding token. The network computes a second
 * stream of tokens c, image then caption, beside the transformer's stream x. Each control layer belongs
 * to one of the transformer's layers and runs after it:
 *
 *     c = layer(c);  x += strength (after_proj(c))        in all rows, the caption's too
 *
 * Before its first layer: c = before_proj([c, refined captions]) + x. The noise refiner has three forms:
 *
 * - Union 1.0: plain layers on c, without residuals.
 * - Union 2.1, Tile, lite: control layers on the image rows; before the first one c = before_proj(c) + x.
 * Their residuals go to x after each layer of the transformer's noise refiner.
 * - Union 2.0: as 2.1, but all control layers run in place of the refiner's layers, and again in the main
 * stage. In the refiner only the first control layers, as many as the transformer's refiner has, add
 * residuals.
 *
 * Control latent: 16 channels (1.0), or 33: latent, mask, latent of the image to inpaint.
 *
 * The network's visits follow the transformer's blocks (control_visits) and add residuals at once, so no
 * residual is stored. Source: aigc-apps/VideoX-Fun, videox_fun/models/z_image_transformer2d_control.py;
 * ComfyUI, comfy/ldm/lumina/controlnet.py. diffusers 0.42 adds the refiner's residuals to a copy of x that
 * only the network reads; Sluice follows the authors. */
#include "kernels/ops.h"
#include "models/zimage.h"

#include <stdio.h>

enum { CONTROL_LAYERS_MAX = 200 };

/* Form of the noise refiner: plain layers, control layers, or none (the control layers run in its place). */
enum zimage_refiner { REFINER_PLAIN, REFINER_CONTROL, REFINER_LAYERS };

/* Passes of control layers (visit_scope.pass). */
enum { PASS_REFINER, PASS_MAIN };

struct control_settings {
    float norm_eps;
    /* Index of the transformer's layer after which each control layer runs (control_layers_places in
     * config.json). All 0: equal distances. */
    unsigned short place[CONTROL_LAYERS_MAX];
};

struct control_state {
    struct tensor tokens; /* control stream: [image + caption rows, DIM] */
    /* [blocks, rows, FOUR_DIM], shared by all lanes: one row per evaluation if hoisted, else one row */
    struct tensor refiner_modulation, layer_modulation;
};

/* clang-format off */
#define CONTROL_LAYER(X, S)                                                                                  \
    ZIMAGE_LAYER(X, S, layer.)                                                                               \
    X##LINEAR(S, after, DIM, DIM, "after_proj")
#define REFINER_LAYER(X, S)                                                                                  \
    ZIMAGE_LAYER(X, S, layer.)                                                                               \
    X##LINEAR(IF_DIM(S, REFINER_HINTS), after, DIM, DIM, "after_proj")
/* clang-format on */
struct control_layer_weights {
    struct zimage_layer_weights layer;
    struct linear_weights after; /* absent in a plain refiner */
};
WEIGHT_TABLE(control_layer_table, CONTROL_LAYER, control_layer_weights, "control_layers.%d.",
             "control_layers.%d.");
WEIGHT_TABLE(control_refiner_table, REFINER_LAYER, control_layer_weights, "control_noise_refiner.%d.",
             "control_noise_refiner.%d.");

LINEAR_TABLE(control_embedder_table, DIM, PATCH, "control_all_x_embedder.2-1");
LINEAR_TABLE(control_refiner_before_table, DIM, DIM, "control_noise_refiner.%d.before_proj");
LINEAR_TABLE(control_layer_before_table, DIM, DIM, "control_layers.%d.before_proj");
LINEAR_TABLE(control_refiner_modulation_table, FOUR_DIM, ADALN_DIM,
             "control_noise_refiner.%d.adaLN_modulation.0");
LINEAR_TABLE(control_layer_modulation_table, FOUR_DIM, ADALN_DIM, "control_layers.%d.adaLN_modulation.0");

/* The tokens that a pass computes: rows of the control stream, of the transformer's stream and of its rope.
 */
struct control_rows {
    struct tensor c, x, rope;
};

static struct control_rows control_rows_of(const struct visit_scope *scope, bool image_only) {
    const struct control_state *state = scope->lane->state;
    const struct zimage_state *of = scope->lane->denoiser->state;
    if (!image_only) return (struct control_rows){state->tokens, of->tokens, of->rope};
    return (struct control_rows){zimage_image_rows(state->tokens, of), zimage_image_rows(of->tokens, of),
                                 zimage_image_rows(of->rope, of)};
}

static void control_forward_embedder(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    struct control_rows rows = control_rows_of(scope, true);
    int32_t n = zimage_embed(x, rows.c, scope->lane->control->input, weights);
    /* The rows of padding are the transformer's padding token, which the transformer's embedder has written.
     */
    if (n < rows.c.dim[0])
        op_copy(x, tensor_slice(rows.c, n, rows.c.dim[0] - n), tensor_slice(rows.x, n, rows.x.dim[0] - n));
}

/* c = before_proj(c) + x. In the main stage the caption rows of c are the refined captions. */
static void control_forward_before(struct context *x, const void *weights, const struct visit_scope *scope,
                                   bool image_only) {
    const struct linear_weights *w = weights;
    const struct zimage_state *of = scope->lane->denoiser->state;
    struct control_rows rows = control_rows_of(scope, image_only);
    struct tensor in = context_operand(x, 2, rows.c.dim);
    op_copy(x, zimage_image_rows(in, of), zimage_image_rows(rows.c, of));
    if (!image_only) op_copy(x, zimage_caption_rows(in, of), of->caption);
    op_linear(x, rows.c, in, w->weight, (struct epilogue){.bias = w->bias, .residual = rows.x});
}

static void control_forward_refiner_before(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    control_forward_before(x, weights, scope, true);
}

static void control_forward_layer_before(struct context *x, const void *weights,
                                         const struct visit_scope *scope) {
    control_forward_before(x, weights, scope, scope->pass == PASS_REFINER);
}

/* c = layer(c); if hint: x += strength after_proj(c). */
static void control_run_layer(struct context *x, const struct control_layer_weights *w,
                              const struct visit_scope *scope, struct control_rows rows,
                              struct tensor modulation, bool hint) {
    const struct control_settings *settings = scope->settings;
    uint64_t mark = x->scratch->used;
    zimage_layer(x, &w->layer, settings->norm_eps, rows.c, rows.rope, modulation);
    x->scratch->used = mark;
    if (!hint) return;
    struct tensor c = context_operand(x, 2, rows.c.dim), residual = context_tensor(x, DTYPE_F32, 2, c.dim);
    op_copy(x, c, rows.c);
    op_linear(x, residual, c, w->after.weight, (struct epilogue){.bias = w->after.bias});
    op_add_scaled(x, rows.x, rows.x, residual, scope->lane->control->strength);
}

static void control_forward_refiner(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_layer_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    control_run_layer(x, w, scope, control_rows_of(scope, true),
                      scope_rows_of_block(state->refiner_modulation, scope), w->after.weight.rank);
}

static void control_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct zimage_state *of = scope->lane->denoiser->state;
    bool refines = scope->pass == PASS_REFINER;
    control_run_layer(x, weights, scope, control_rows_of(scope, refines),
                      scope_rows_of_block(state->layer_modulation, scope),
                      !refines || scope->number < of->noise_modulation.dim[0]);
}

static void control_forward_refiner_modulation(struct context *x, const void *weights,
                                               const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    zimage_modulate(x, weights, scope_rows_of_block(state->refiner_modulation, scope),
                    scope->lane->denoiser->state, scope, ACTIVATION_NONE);
}

static void control_forward_layer_modulation(struct context *x, const void *weights,
                                             const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    zimage_modulate(x, weights, scope_rows_of_block(state->layer_modulation, scope),
                    scope->lane->denoiser->state, scope, ACTIVATION_NONE);
}

BLOCK(control_kind_embedder, "embedder", "embedder", control_embedder_table, linear_weights,
      control_forward_embedder, .never_quantised = true);
BLOCK(control_kind_refiner_before, "refiner_before", "control_noise_refiner.%d.before",
      control_refiner_before_table, linear_weights, control_forward_refiner_before);
BLOCK(control_kind_refiner_modulation, "refiner_modulation", "control_noise_refiner.%d.modulation",
      control_refiner_modulation_table, linear_weights, control_forward_refiner_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(control_kind_refiner, "noise_refiner", "control_noise_refiner.%d", control_refiner_table,
      control_layer_weights, control_forward_refiner);
BLOCK(control_kind_layer_before, "before", "control_layers.%d.before", control_layer_before_table,
      linear_weights, control_forward_layer_before);
BLOCK(control_kind_layer_modulation, "layer_modulation", "control_layers.%d.modulation",
      control_layer_modulation_table, linear_weights, control_forward_layer_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(control_kind_layer, "layer", "control_layers.%d", control_layer_table, control_layer_weights,
      control_forward_layer);

static bool control_probe(const struct tensor_index *index) {
    return index_find(index, "control_all_x_embedder.2-1.weight");
}

/* Reads control_layers_places. control_refiner_layers_places must be 0, 1, ...; files of the authors have no
 * config.json. */
static enum status control_read_places(struct component *c, const struct config *config, struct error *e) {
    struct control_settings *s = (struct control_settings *)c->settings;
    char key[48];
    int n = config_list_length(config, "control_layers_places");
    if (!n) return OK;
    if (config_check_list(config, "control_layers_places", c->dims[LAYERS], e) != OK) return e->code;
    for (int i = 0; i < n; i++) {
        int place = 0;
        snprintf(key, sizeof key, "control_layers_places.%d", i);
        if (config_int(config, key, i ? s->place[i - 1] + 1 : 0, i ? 1000 : 0, &place, e) != OK)
            return e->code;
        s->place[i] = (unsigned short)place;
    }
    for (int i = 0; i < config_list_length(config, "control_refiner_layers_places"); i++) {
        int place = i;
        snprintf(key, sizeof key, "control_refiner_layers_places.%d", i);
        if (config_int(config, key, i, i, &place, e) != OK) return e->code;
    }
    return OK;
}

/* Union 2.0's files have refiner layers with residuals that were never trained: their projections are all 0.
 * Reads the biases. */
static enum status control_detect_untrained(const struct component *c, bool *untrained, struct error *e) {
    static const char *const names[] = {"control_noise_refiner.0.after_proj.bias",
                                        "control_noise_refiner.0.before_proj.bias"};
    *untrained = index_find(&c->index, names[0]);
    for (int k = 0; k < COUNT_OF(names) && *untrained; k++) {
        const struct index_entry *entry = index_find(&c->index, names[k]);
        if (!entry || entry->rank != 1) continue;
        const struct byte_source *source = &c->index.sources[entry->source];
        *untrained = source->file >= 0 || source->memory; /* else a model planned without files */
        for (int32_t first = 0; first < entry->dim[0] && *untrained; first += 256) {
            float values[256] = {0};
            int32_t n = entry->dim[0] - first < 256 ? entry->dim[0] - first : 256;
            if (source_read_values(source, entry->offset, entry->dtype, first, n, values, e) != OK)
                return e->code;
            for (int i = 0; i < 256; i++) *untrained = *untrained && values[i] == 0;
        }
    }
    return OK;
}

static enum status control_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    bool untrained;
    if (control_detect_untrained(c, &untrained, e) != OK) return e->code;
    if (untrained) d[REFINER_HINTS] = 0;
    d[REFINER] = !d[REFINERS] || untrained ? REFINER_LAYERS
                 : d[REFINER_HINTS]        ? REFINER_CONTROL
                                           : REFINER_PLAIN;
    if (d[LAYERS] < 1 || d[LAYERS] > CONTROL_LAYERS_MAX || d[REFINERS] > CONTROL_LAYERS_MAX || d[HEAD] < 2 ||
        d[HEAD] > 512 || d[DIM] % d[HEAD] || d[PATCH] % (ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE))
        return error_set(e, SHAPE,
                         "inconsistent sizes of a control network" WHERE "%s" FOUND
                         "width %d, head %d, %d values per patch, %d layers, %d refiner layers" EXPECTED
                         "a width that is a multiple of the head size, and 1 to %d layers",
                         c->index.sources[0].path, d[DIM], d[HEAD], d[PATCH], d[LAYERS], d[REFINERS],
                         CONTROL_LAYERS_MAX);
    return control_read_places(c, config, e);
}

static int control_blocks(const struct component *c, struct block_ref *refs) {
    const int32_t *d = c->dims;
    bool unused = d[REFINER] == REFINER_LAYERS;
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &control_kind_embedder};
    if (d[REFINER] == REFINER_CONTROL || (unused && d[REFINERS]))
        refs[n++] = (struct block_ref){.kind = &control_kind_refiner_before, .unused = unused};
    for (int i = 0; i < d[REFINERS]; i++) {
        refs[n++] =
            (struct block_ref){.kind = &control_kind_refiner_modulation, .number = i, .unused = unused};
        refs[n++] = (struct block_ref){.kind = &control_kind_refiner, .number = i, .unused = unused};
    }
    refs[n++] = (struct block_ref){.kind = &control_kind_layer_before};
    for (int i = 0; i < d[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &control_kind_layer_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &control_kind_layer, .number = i};
    }
    return n;
}

static void control_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    const int32_t *d = c->dims;
    int32_t n = lanes[0].hoisted ? lanes[0].hoisted : 1;
    int32_t refiners = d[REFINER] == REFINER_LAYERS ? 0 : d[REFINERS];
    struct control_state one = {0}; /* modulation, shared by all lanes */
    (void)pictures;
    if (refiners)
        one.refiner_modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){refiners, n, d[FOUR_DIM]}, ok);
    one.layer_modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], n, d[FOUR_DIM]}, ok);
    for (int i = 0; i < n_lanes; i++) {
        if (!lane_computes(&lanes[i])) continue;
        struct control_state *s = lanes[i].state;
        int32_t rows = zimage_image_row_count(&lanes[i]) + zimage_caption_row_count(&lanes[i]);
        *s = one;
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    }
}

/* Index of the transformer's layer after which control layer i runs. */
static int control_place(const struct component *c, const struct component *denoiser, int i) {
    const struct control_settings *s = (const struct control_settings *)c->settings;
    int layers = c->dims[LAYERS], of = denoiser->dims[LAYERS];
    return s->place[layers - 1] ? s->place[i] : i * ((of + layers / 2) / layers);
}

static enum status control_check(const struct component *c, const struct component *denoiser,
                                 struct error *e) {
    const int32_t *d = c->dims, *of = denoiser->dims;
    int last = control_place(c, denoiser, d[LAYERS] - 1), channels = denoiser->latent_channels;
    bool refines = d[REFINER] == REFINER_LAYERS || d[REFINERS] == of[REFINERS];
    bool fits = d[DIM] == of[DIM] && d[HEAD] == of[HEAD] && d[ADALN_DIM] == of[ADALN_DIM] && refines &&
                d[LAYERS] <= of[LAYERS] && last < of[LAYERS] &&
                (d[LATENT] == channels || d[LATENT] == 2 * channels + 1);
    if (fits) return OK;
    error_set(e, SHAPE, "the control network does not fit the transformer" WHERE "%s",
              c->index.sources[0].path);
    error_found(e, "width %d, head %d, %d refiner layers, %d layers at 0 to %d, %d control channels", d[DIM],
                d[HEAD], d[REFINERS], d[LAYERS], last, d[LATENT]);
    return error_expected(
        e, "width %d, head %d, %d refiner layers, layers at 0 to %d, %d or %d control channels", of[DIM],
        of[HEAD], of[REFINERS], of[LAYERS] - 1, channels, 2 * channels + 1);
}

static int control_visits(const struct component *c, const struct component *denoiser,
                          struct control_visit *visits) {
    const int32_t *d = c->dims;
    bool by_layers = d[REFINER] == REFINER_LAYERS; /* the control layers run in the refiner's place */
    const struct block_kind *before = by_layers ? &control_kind_layer_before : &control_kind_refiner_before,
                            *layer = by_layers ? &control_kind_layer : &control_kind_refiner;
    int n = 0, n_layers = by_layers ? d[LAYERS] : d[REFINERS], refiners = denoiser->dims[REFINERS];
    int after = component_find_block(denoiser, &zimage_kind_embedder, 0);
    visits[n++] =
        (struct control_visit){.block = component_find_block(c, &control_kind_embedder, 0), .after = after};
    if (d[REFINER] != REFINER_PLAIN)
        visits[n++] = (struct control_visit){.block = component_find_block(c, before, 0), .after = after};
    for (int i = 0; i < n_layers; i++) {
        if (i < refiners) after = component_find_block(denoiser, &zimage_kind_noise, i);
        visits[n++] = (struct control_visit){.block = component_find_block(c, layer, i), .after = after};
    }
    /* x includes the refiner's residuals of all networks: the visit follows theirs. */
    visits[n++] = (struct control_visit){.block = component_find_block(c, &control_kind_layer_before, 0),
                                         .after = component_find_block(denoiser, &zimage_kind_layer, 0) - 1,
                                         .pass = PASS_MAIN};
    for (int i = 0; i < d[LAYERS]; i++) {
        int place = control_place(c, denoiser, i);
        visits[n++] =
            (struct control_visit){.block = component_find_block(c, &control_kind_layer, i),
                                   .after = component_find_block(denoiser, &zimage_kind_layer, place),
                                   .pass = PASS_MAIN};
    }
    return n;
}

static const char *const control_architectures[] = {"zimage_control", NULL};
static const char *const control_refiner_words[] = {NULL, "control_noise_refiner", "control_layers"};
/* Sizes of Union 2.1. */
static const struct dimension control_dimensions[] = {
    {"heads", 30, 1, 1024, .place = HEADS, .key = "n_heads"},
    {"head", 128, 2, 512, .place = HEAD,
     OF_TENSOR(1, 0, "control_layers.0.attention.norm_q.weight", "control_layers.0.attention.q_norm.weight")},
    {"layers", 15, 1, CONTROL_LAYERS_MAX, .place = LAYERS, OF_BLOCKS("control_layers.")},
    {"refiners", 2, 0, 40, .place = REFINERS, OF_BLOCKS("control_noise_refiner.")},
    {"refiner_hints", 1, 0, 1, .place = REFINER_HINTS,
     OF_TENSOR(0, 0, "control_noise_refiner.0.after_proj.weight")},
    {"control_channels", 33, 1, 1024, .place = LATENT, .key = "control_in_dim"},
    {.place = REFINER, .key = "add_control_noise_refiner", .words = control_refiner_words, .checked = true},
    {.place = HEADS, .key = "n_kv_heads"},
    {.place = DIM, OF_TENSOR(2, 0, "control_all_x_embedder.2-1.weight"), .key = "dim"},
    {.place = PATCH, OF_TENSOR(2, 1, "control_all_x_embedder.2-1.weight")},
    {.place = ADALN_DIM, OF_TENSOR(2, 1, "control_layers.0.adaLN_modulation.0.weight")},
    {.place = FEED_FORWARD, OF_TENSOR(2, 0, "control_layers.0.feed_forward.w1.weight")},
};

static const struct setting control_settings_rows[] = {
    {{"norm_eps"}, offsetof(struct control_settings, norm_eps), SETTING_FLOAT, 1e-5, 0, 1}};

static void control_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = (int32_t)((double)d[DIM] / 3 * 8);
    d[ADALN_DIM] = d[DIM] < 256 ? d[DIM] : 256;
    d[PATCH] = ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE * d[LATENT];
    d[REFINER_HINTS] = d[REFINER_HINTS] && d[REFINERS];
    d[REFINER] = !d[REFINERS] ? REFINER_LAYERS : d[REFINER_HINTS] ? REFINER_CONTROL : REFINER_PLAIN;
}

static void control_derive(struct component *c) {
    int32_t *d = c->dims;
    d[ONE] = 1;
    d[FOUR_DIM] = d[DIM] <= INT32_MAX / 4 ? 4 * d[DIM] : 0;
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE);
    c->concat_channels = d[LATENT];
}

static const struct state_tensor control_state_tensors[] = {STATE_TENSOR(control_state, tokens)};

const struct family family_zimage_control = {
    .name = "zimage_control",
    .kind = FAMILY_CONTROL,
    .display_name = "Z-Image control network",
    .files = {.architectures = control_architectures,
              .config_key = "_class_name",
              .config_value = "ZImageControlNetModel",
              .probe = control_probe},
    .config = {.dimensions = control_dimensions,
               .n_dimensions = COUNT_OF(control_dimensions),
               .settings = control_settings_rows,
               .n_settings = COUNT_OF(control_settings_rows),
               .configure = control_configure,
               .derive_dims = control_derive_dims,
               .derive = control_derive,
               .rest = "\"all_patch_size\": [2], \"all_f_patch_size\": [1], \"qk_norm\": true"},
    .blocks = {.list = control_blocks},
    .state = {.bytes = sizeof(struct control_state),
              .tensors = control_state_tensors,
              .n_tensors = COUNT_OF(control_state_tensors),
              .declare = control_declare},
    .control = {.denoiser = &family_zimage,
                .input = CONTROL_LATENT,
                .check = control_check,
                .visits = control_visits},
};
