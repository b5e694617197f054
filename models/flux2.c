/* Flux.2 transformer (diffusers: Flux2Transformer2DModel). Token order: text, the generated image, reference
 * images.
 *
 * As in Flux.1, double blocks have separate weights for text and image tokens, and single blocks treat all
 * tokens alike (mmdit.h). Linear layers have no biases; feed-forwards are gated. Latents are packed, so a
 * token is one latent pixel.
 *
 * All blocks of a kind share one modulation (shift, scale, gate). It depends on the timestep and, in dev, on
 * the guidance scale, which is equal for all lanes. So one row per timestep serves all lanes and blocks.
 *
 * Rope positions have four axes (image, row, column, text token): (0, 0, 0, i) for text token i, (0, y, x, 0)
 * for the image, (10 + 10 k, y, x, 0) for reference k from 0.
 *
 * Source: diffusers 0.42, models/transformers/transformer_flux2.py; checkpoint names of the authors:
 * loaders/single_file_utils.py, convert_flux2_transformer_checkpoint_to_diffusers. */
#include "models/mmdit.h"
#include "models/slots.h"

#include <string.h>

enum {
    DIM,
    TWO_DIM,
    THREE_DIM,
    SIX_DIM,
    FEED_FORWARD,
    FUSED_IN, /* input width of the last layer of a single block: DIM + FEED_FORWARD */
    HEAD,
    HEADS,
    AXES, /* sizes of the four rope axes */
    N_AXES = 4,
    IN = AXES + N_AXES,
    OUT, /* out_channels in config.json; 0: null, as in the published configurations */
    LATENT,
    CAPTION,
    FREQUENCIES,
    DOUBLE_LAYERS,
    SINGLE_LAYERS,
    GUIDED,
};

enum { FLUX2_PATCH = 1, REFERENCE_STEP = 10 };

/* Variants of the Flux.2 transformer; Klein of 4 B and 9 B parameters differ in width. */
enum { FLUX2_DEV, FLUX2_KLEIN_4B, FLUX2_KLEIN_9B };

static const float flux2_time_scale = 1000;

struct flux2_settings {
    int axis_dim[N_AXES];
    double rope_theta, mlp_ratio;
};

struct flux2_state {
    struct tensor tokens; /* hidden states of all tokens: [text + image + reference rows, DIM] */
    /* The rope table and the embedded prompt are shared by the lanes of a prompt. */
    struct tensor rope; /* rope's cosine and sine: [text + image + reference rows, HEAD/2, 2] */
    struct tensor text; /* embedded prompt: [text rows, DIM] */
    /* Conditioning and modulations by timestep, shared by all lanes and blocks: one row per evaluation if
     * hoisted, else one row. */
    struct tensor condition;                         /* [rows, DIM] */
    struct tensor image_modulation, text_modulation; /* [rows, SIX_DIM] */
    struct tensor single_modulation;                 /* [rows, THREE_DIM] */
    struct tensor final_modulation;                  /* scale and shift of the final layer: [rows, TWO_DIM] */
};

/* clang-format off */
/* Naming macro of rows with one to three names: in diffusers' files, in the authors' checkpoints, and a
 * variant of the authors' name. */
#define FLUX2_NAMED(P, C, end, ...)                                                                          \
    NAMED_PICK(__VA_ARGS__, FLUX2_NAMED_THREE, NAMED_TWO, NAMED_ONE, )(P, C, end, __VA_ARGS__)
#define FLUX2_NAMED_THREE(P, C, end, name, checkpoint, other)                                                \
    .names = {P name end, C other end}, .checkpoint_name = C checkpoint end
#define FLUX2_TABLE(table, LIST, structure, P, C)                                                            \
    WEIGHT_TABLE_NAMED(table, LIST, structure, FLUX2_NAMED, P, C)

#define CONTEXT(X, S) X##MATRIX(S, weight, DIM, CAPTION, "context_embedder", "txt_in")
FLUX2_TABLE(flux2_context_table, CONTEXT, linear_weights, "", "");
#define EMBEDDER(X, S) X##MATRIX(S, weight, DIM, IN, "x_embedder", "img_in")
FLUX2_TABLE(flux2_embedder_table, EMBEDDER, linear_weights, "", "");
#define FINAL(X, S) X##MATRIX(S, weight, IN, DIM, "proj_out", "final_layer.linear")
FLUX2_TABLE(flux2_final_table, FINAL, linear_weights, "", "");
/* AdaLN of the final layer. diffusers' files store scale before shift; the authors' checkpoint stores shift
 * before scale. */
#define FINAL_MODULATION(X, S)                                                                               \
    X##MATRIX(S, weight, TWO_DIM, DIM, "norm_out.linear", "final_layer.adaLN_modulation.1[1,0/2]")
FLUX2_TABLE(flux2_final_modulation_table, FINAL_MODULATION, linear_weights, "", "");

#define CONDITIONING(X, S)                                                                                   \
    X##MATRIX(S, time_in.weight, DIM, FREQUENCIES, "timestep_embedder.linear_1", "time_in.in_layer")         \
    X##MATRIX(S, time_out.weight, DIM, DIM, "timestep_embedder.linear_2", "time_in.out_layer")               \
    X##MATRIX(IF_DIM(S, GUIDED), guidance_in.weight, DIM, FREQUENCIES,                                       \
              "guidance_embedder.linear_1", "guidance_in.in_layer")                                          \
    X##MATRIX(IF_DIM(S, GUIDED), guidance_out.weight, DIM, DIM,                                              \
              "guidance_embedder.linear_2", "guidance_in.out_layer")
FLUX2_TABLE(flux2_conditioning_table, CONDITIONING, mmdit_time_text_embed_weights,
            "time_guidance_embed.", "");

/* Modulations: of the image and of the text in all double blocks, and of all single blocks. */
#define IMAGE_MODULATION(X, S)                                                                               \
    X##MATRIX(S, weight, SIX_DIM, DIM, "double_stream_modulation_img.linear", "double_stream_modulation_img.lin")
FLUX2_TABLE(flux2_image_modulation_table, IMAGE_MODULATION, linear_weights, "", "");
#define TEXT_MODULATION(X, S)                                                                                \
    X##MATRIX(S, weight, SIX_DIM, DIM, "double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin")
FLUX2_TABLE(flux2_text_modulation_table, TEXT_MODULATION, linear_weights, "", "");
#define SINGLE_MODULATION(X, S)                                                                              \
    X##MATRIX(S, weight, THREE_DIM, DIM, "single_stream_modulation.linear", "single_stream_modulation.lin")
FLUX2_TABLE(flux2_single_modulation_table, SINGLE_MODULATION, linear_weights, "", "");

/* Norm weights of queries and keys. The endings of their names differ, so the rows have complete names. */
#define HEAD_NORM (.rank = 1, .dim = {HEAD})
#define NORM(X, S, member, name, checkpoint)                                                                 \
    X##WEIGHT(S, member, HEAD_NORM, name ".weight", checkpoint ".scale", checkpoint ".weight")

#define DOUBLE_BLOCK(X, S)                                                                                   \
    X##MATRIX(S, image.attention.q.weight, DIM, DIM, "attn.to_q", "img_attn.qkv[0/3]")                       \
    X##MATRIX(S, image.attention.k.weight, DIM, DIM, "attn.to_k", "img_attn.qkv[1/3]")                       \
    X##MATRIX(S, image.attention.v.weight, DIM, DIM, "attn.to_v", "img_attn.qkv[2/3]")                       \
    NORM(X, S, image.attention.q_norm, "attn.norm_q", "img_attn.norm.query_norm")                            \
    NORM(X, S, image.attention.k_norm, "attn.norm_k", "img_attn.norm.key_norm")                              \
    X##MATRIX(S, text.attention.q.weight, DIM, DIM, "attn.add_q_proj", "txt_attn.qkv[0/3]")                  \
    X##MATRIX(S, text.attention.k.weight, DIM, DIM, "attn.add_k_proj", "txt_attn.qkv[1/3]")                  \
    X##MATRIX(S, text.attention.v.weight, DIM, DIM, "attn.add_v_proj", "txt_attn.qkv[2/3]")                  \
    NORM(X, S, text.attention.q_norm, "attn.norm_added_q", "txt_attn.norm.query_norm")                       \
    NORM(X, S, text.attention.k_norm, "attn.norm_added_k", "txt_attn.norm.key_norm")                         \
    X##MATRIX(S, image.attention.out.weight, DIM, DIM, "attn.to_out.0", "img_attn.proj")                     \
    X##MATRIX(S, text.attention.out.weight, DIM, DIM, "attn.to_add_out", "txt_attn.proj")                    \
    X##MATRIX(S, image.gate.weight, FEED_FORWARD, DIM, "ff.linear_in[0/2]", "img_mlp.0[0/2]")                \
    X##MATRIX(S, image.up.weight, FEED_FORWARD, DIM, "ff.linear_in[1/2]", "img_mlp.0[1/2]")                  \
    X##MATRIX(S, image.down.weight, DIM, FEED_FORWARD, "ff.linear_out", "img_mlp.2")                         \
    X##MATRIX(S, text.gate.weight, FEED_FORWARD, DIM, "ff_context.linear_in[0/2]", "txt_mlp.0[0/2]")         \
    X##MATRIX(S, text.up.weight, FEED_FORWARD, DIM, "ff_context.linear_in[1/2]", "txt_mlp.0[1/2]")           \
    X##MATRIX(S, text.down.weight, DIM, FEED_FORWARD, "ff_context.linear_out", "txt_mlp.2")
FLUX2_TABLE(flux2_double_table, DOUBLE_BLOCK, mmdit_block_weights,
            "transformer_blocks.%d.", "double_blocks.%d.");

/* Row counts of the parts of a single block's first layer. */
static const int flux2_linear1_rows[] = {DIM, DIM, DIM, FEED_FORWARD, FEED_FORWARD};
#define LINEAR1(X, S, member, rows, part)                                                                    \
    X##MATRIX(WITH(S, .part_rows = flux2_linear1_rows), member.weight, rows, DIM,                            \
              "attn.to_qkv_mlp_proj[" part "/5]", "linear1[" part "/5]")
#define SINGLE_BLOCK(X, S)                                                                                   \
    LINEAR1(X, S, q, DIM, "0")                                                                               \
    LINEAR1(X, S, k, DIM, "1")                                                                               \
    LINEAR1(X, S, v, DIM, "2")                                                                               \
    NORM(X, S, q_norm, "attn.norm_q", "norm.query_norm")                                                     \
    NORM(X, S, k_norm, "attn.norm_k", "norm.key_norm")                                                       \
    LINEAR1(X, S, gate, FEED_FORWARD, "3")                                                                   \
    LINEAR1(X, S, up, FEED_FORWARD, "4")                                                                     \
    X##MATRIX(S, out.weight, DIM, FUSED_IN, "attn.to_out", "linear2")
FLUX2_TABLE(flux2_single_table, SINGLE_BLOCK, mmdit_single_weights,
            "single_transformer_blocks.%d.", "single_blocks.%d.");
/* clang-format on */

static void flux2_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct flux2_settings *settings = scope->settings;
    const struct flux2_state *state = scope->lane->state;
    struct rope_options rope = {
        .theta = settings->rope_theta,
        .n_axes = N_AXES,
        .n_grids = 2 + mmdit_n_references(scope->lane),
        .grid = {{.extent = {1, 1, 1, scope->lane->text.dim[0]}}},
    };
    for (int a = 0; a < N_AXES; a++) rope.axis_dim[a] = settings->axis_dim[a];
    for (int i = 0; i + 1 < rope.n_grids; i++) {
        struct tensor latent = mmdit_latent(scope->lane, i);
        rope.grid[1 + i] =
            (struct rope_grid){.start = {REFERENCE_STEP * i}, .extent = {1, latent.dim[2], latent.dim[3], 1}};
    }
    op_rope_table(x, state->rope, &rope);
}

static void flux2_forward_context(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    flux2_fill_rope(x, scope);
    mmdit_linear(x, state->text, scope->lane->text, weights);
}

static void flux2_forward_conditioning(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    mmdit_time_text_embed(x, scope_rows(state->condition, scope), weights, scope, flux2_time_scale);
}

/* Computes shift, scale and gate into the visit's rows of `rows`, a modulation in the lane's state. */
static void flux2_modulate(struct context *x, const void *weights, const struct visit_scope *scope,
                           struct tensor rows) {
    const struct flux2_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(rows, scope), scope_rows(state->condition, scope), weights);
}

static void flux2_forward_image_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    flux2_modulate(x, weights, scope, state->image_modulation);
}

static void flux2_forward_text_modulation(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    flux2_modulate(x, weights, scope, state->text_modulation);
}

static void flux2_forward_single_modulation(struct context *x, const void *weights,
                                            const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    flux2_modulate(x, weights, scope, state->single_modulation);
}

static void flux2_forward_final_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    flux2_modulate(x, weights, scope, state->final_modulation);
}

static void flux2_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux2_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    int32_t rows = mmdit_image_token_count(lane, FLUX2_PATCH);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, w->weight.dim[1]});
    mmdit_patchify(x, patches, lane, FLUX2_PATCH);
    mmdit_linear(x, mmdit_image_rows(state->tokens, lane), patches, w);
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

static void flux2_forward_double(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    struct mmdit_double block = {
        .w = weights,
        .text_rows = scope->lane->text.dim[0],
        .image_modulation = scope_rows(state->image_modulation, scope),
        .text_modulation = scope_rows(state->text_modulation, scope),
        .rope = state->rope,
    };
    mmdit_double_block(x, &block, state->tokens);
}

static void flux2_forward_single(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    mmdit_single_block(x, weights, state->tokens, scope_rows(state->single_modulation, scope), state->rope);
}

/* Flux.2 predicts noise - data, the velocity of flow matching. */
static void flux2_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux2_state *state = scope->lane->state;
    mmdit_proj_out(x, weights, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   (struct patches){.side = FLUX2_PATCH, .order = PATCH_CHANNELS_FIRST});
}

BLOCK(flux2_kind_context, "context", "context_embedder", flux2_context_table, linear_weights,
      flux2_forward_context, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(flux2_kind_conditioning, "conditioning", "conditioning", flux2_conditioning_table,
      mmdit_time_text_embed_weights, flux2_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(flux2_kind_image_modulation, "image_modulation", "double_stream_modulation_img",
      flux2_image_modulation_table, linear_weights, flux2_forward_image_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(flux2_kind_text_modulation, "text_modulation", "double_stream_modulation_txt",
      flux2_text_modulation_table, linear_weights, flux2_forward_text_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(flux2_kind_single_modulation, "single_modulation", "single_stream_modulation",
      flux2_single_modulation_table, linear_weights, flux2_forward_single_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(flux2_kind_embedder, "embedder", "x_embedder", flux2_embedder_table, linear_weights,
      flux2_forward_embedder, .never_quantised = true);
BLOCK(flux2_kind_double, "double", "transformer_blocks.%d", flux2_double_table, mmdit_block_weights,
      flux2_forward_double);
BLOCK(flux2_kind_single, "single", "single_transformer_blocks.%d", flux2_single_table, mmdit_single_weights,
      flux2_forward_single);
BLOCK(flux2_kind_final_modulation, "final_modulation", "norm_out", flux2_final_modulation_table,
      linear_weights, flux2_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(flux2_kind_final, "final", "proj_out", flux2_final_table, linear_weights, flux2_forward_final,
      .never_quantised = true);

/* The probe also accepts Flux.3, so that flux2_refuse can report it by name. */
#define FLUX3_TENSOR "early_stream_modulations."
static bool flux2_probe(const struct tensor_index *index) {
    return index_find(index, "double_stream_modulation_img.linear.weight") ||
           index_find(index, "double_stream_modulation_img.lin.weight") ||
           index_find(index, FLUX3_TENSOR "image.lin.weight");
}

/* Refuses Flux.3 and Klein KV. Klein KV has the tensors of Klein 9B; only its file or folder name differs. */
static enum status flux2_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {{FLUX3_TENSOR, "Flux.3"}, {0}};
    const char *path = c->index.sources[0].path;
    if (strstr(path, "klein-9b-kv"))
        return error_set(
            e, UNSUPPORTED,
            "unsupported transformer: Flux.2 Klein KV, which caches keys and values of references" WHERE
            "%s" EXPECTED "flux-2-klein-9b.safetensors",
            path);
    return component_refuse_similar(c, relatives, "Flux.2 (dev, Klein)", e);
}

static enum status flux2_configure(struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    int patch = FLUX2_PATCH, layers = d[DOUBLE_LAYERS] + d[SINGLE_LAYERS];
    double eps = (double)mmdit_norm_eps;
    bool guided = d[GUIDED];
    config_int(config, "patch_size", FLUX2_PATCH, FLUX2_PATCH, &patch, e);
    config_float(config, "eps", 0.99 * eps, 1.01 * eps, &eps, e);
    config_bool(config, "guidance_embeds", &guided, e);
    config_check_list(config, "axes_dims_rope", N_AXES, e);
    c->dims[GUIDED] = guided;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[IN],
                                .axis = ((const struct flux2_settings *)c->settings)->axis_dim,
                                .n_axes = N_AXES,
                                .layers = d[DOUBLE_LAYERS] && d[SINGLE_LAYERS] ? layers : 0,
                                .n_blocks = layers + 8};
    return e->code == OK ? mmdit_check_sizes(c, &sizes, e) : e->code;
}

static int flux2_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &flux2_kind_context};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_image_modulation};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_text_modulation};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_single_modulation};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_embedder};
    for (int i = 0; i < c->dims[DOUBLE_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &flux2_kind_double, .number = i};
    for (int i = 0; i < c->dims[SINGLE_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &flux2_kind_single, .number = i};
    refs[n++] = (struct block_ref){.kind = &flux2_kind_final};
    return n;
}

static void flux2_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    struct flux2_state *shared = lanes[0].state;
    const int32_t *d = c->dims;
    int32_t n_hoisted = lanes[0].hoisted ? lanes[0].hoisted : 1;
    (void)pictures;
    shared->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[DIM]}, ok);
    shared->image_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[SIX_DIM]}, ok);
    shared->text_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[SIX_DIM]}, ok);
    shared->single_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[THREE_DIM]}, ok);
    shared->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n_hoisted, d[TWO_DIM]}, ok);
    for (int i = 0; i < n_lanes; i++) {
        struct flux2_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t text = lanes[i].text.dim[0];
        int32_t rows = text + mmdit_image_token_count(&lanes[i], FLUX2_PATCH);
        if (i) *s = *(const struct flux2_state *)lanes[first == i ? 0 : first].state;
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
        if (first != i) continue;
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){rows, d[HEAD] / 2, 2}, ok);
        s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[DIM]}, ok);
    }
}

static const char *const flux2_architectures[] = {"flux", NULL};
/* Sizes of the published Flux.2 dev, 32.2 B parameters. */
static const struct dimension flux2_dimensions[] = {
    {"heads", 48, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"axis0", 32, 2, 256, .place = AXES},
    {"axis1", 32, 2, 256, .place = AXES + 1},
    {"axis2", 32, 2, 256, .place = AXES + 2},
    {"axis3", 32, 2, 256, .place = AXES + 3},
    {"double_layers", 8, 1, 250, .place = DOUBLE_LAYERS, OF_BLOCKS("transformer_blocks.", "double_blocks."),
     .key = "num_layers"},
    {"single_layers", 48, 1, 250, .place = SINGLE_LAYERS,
     OF_BLOCKS("single_transformer_blocks.", "single_blocks."), .key = "num_single_layers"},
    {"text_columns", 15360, 8, 65536, .place = CAPTION,
     OF_TENSOR(2, 1, "context_embedder.weight", "txt_in.weight"), .key = "joint_attention_dim"},
    {"packed_channels", 128, 4, 1024, .place = LATENT},
    {"guidance", 1, 0, 1, .place = GUIDED,
     OF_TENSOR(0, 0, "time_guidance_embed.guidance_embedder.linear_1.weight", "guidance_in.in_layer.weight"),
     .key = "guidance_embeds", .form = FORM_BOOL},
    {.place = DIM, OF_TENSOR(2, 0, "x_embedder.weight", "img_in.weight")},
    {.place = IN, OF_TENSOR(2, 1, "x_embedder.weight", "img_in.weight"), .key = "in_channels"},
    {.place = OUT, .key = "out_channels", .form = FORM_NULL_IF_0},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_guidance_embed.timestep_embedder.linear_1.weight", "time_in.in_layer.weight"),
     .key = "timestep_guidance_channels"},
    {.place = HEAD,
     OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight",
               "double_blocks.0.img_attn.norm.query_norm.scale",
               "double_blocks.0.img_attn.norm.query_norm.weight"),
     .key = "attention_head_dim"},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 1, "transformer_blocks.0.ff.linear_out.weight", "double_blocks.0.img_mlp.2.weight")},
};

#define AXIS(i)                                                                                              \
    { {"axes_dims_rope." #i}, offsetof(struct flux2_settings, axis_dim[i]), SETTING_INT, 32, 2, 512 }
static const struct setting flux2_settings[] = {
    AXIS(0),
    AXIS(1),
    AXIS(2),
    AXIS(3),
    {{"rope_theta"}, offsetof(struct flux2_settings, rope_theta), SETTING_DOUBLE, 2000, 1, 1e9},
    /* For config.json only: the feed-forward's width is that of the tensors. */
    {{"mlp_ratio"}, offsetof(struct flux2_settings, mlp_ratio), SETTING_DOUBLE, 3, 0.1, 64},
};

static void flux2_derive_dims(struct component *c) {
    struct flux2_settings *s = (struct flux2_settings *)c->settings;
    int32_t *d = c->dims;
    d[HEAD] = 0;
    for (int i = 0; i < N_AXES; i++) {
        s->axis_dim[i] = d[AXES + i];
        d[HEAD] += d[AXES + i];
    }
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 3 * d[DIM];
    d[FREQUENCIES] = 256;
    d[IN] = d[LATENT];
}

static void flux2_derive(struct component *c) {
    enum { KLEIN_4B_COLUMNS = 7680 };
    int32_t *d = c->dims;
    d[TWO_DIM] = 2 * d[DIM];
    d[THREE_DIM] = 3 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[FUSED_IN] = d[DIM] + d[FEED_FORWARD];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[IN];
    c->text_columns = d[CAPTION];
    c->latent_channels = d[LATENT];
    c->variant = d[GUIDED] ? FLUX2_DEV : d[CAPTION] > KLEIN_4B_COLUMNS ? FLUX2_KLEIN_9B : FLUX2_KLEIN_4B;
}

static const struct state_tensor flux2_state_tensors[] = {
    STATE_TENSOR(flux2_state, tokens),          STATE_TENSOR(flux2_state, rope),
    STATE_TENSOR(flux2_state, condition),       STATE_TENSOR(flux2_state, image_modulation),
    STATE_TENSOR(flux2_state, text_modulation), STATE_TENSOR(flux2_state, single_modulation),
    STATE_TENSOR(flux2_state, final_modulation)};

#define PREDICTED                                                                                            \
    .alone = true, .tokens = 4608, .text_rows = 512, .text_columns = 15360, .latent_channels = 128,          \
    .latent_side = 64, .picture_side = 1024

const struct family family_flux2 = {
    .name = "flux2",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = flux2_architectures,
              .config_key = "_class_name",
              .config_value = "Flux2Transformer2DModel",
              .probe = flux2_probe,
              .refuse = flux2_refuse},
    .config = {.dimensions = flux2_dimensions,
               .n_dimensions = COUNT_OF(flux2_dimensions),
               .settings = flux2_settings,
               .n_settings = COUNT_OF(flux2_settings),
               .configure = flux2_configure,
               .derive_dims = flux2_derive_dims,
               .derive = flux2_derive,
               .rest = "\"patch_size\": 1, \"eps\": 1e-06"},
    .blocks = {.list = flux2_blocks},
    .state = {.bytes = sizeof(struct flux2_state),
              .tensors = flux2_state_tensors,
              .n_tensors = COUNT_OF(flux2_state_tensors),
              .declare = flux2_declare},
    .predicted = {{.kind = "single", PREDICTED}, {.kind = "double", PREDICTED}},
};

/* clang-format off */
/* Preview colours of Flux.2's VAE. Fitted by stable-diffusion.cpp (src/runtime/latent-preview.h at 2e0f042)
 * for the 32 channels before packing. A packed latent holds 2x2 pixels of each channel, whose mean is shown. */
#define FOUR(r, g, b) {r / 4, g / 4, b / 4}, {r / 4, g / 4, b / 4}, {r / 4, g / 4, b / 4}, {r / 4, g / 4, b / 4}
static const float colours_flux2[][3] = {
    FOUR(0.000368F, -0.0041925F, -0.009855F), FOUR(-0.000676F, -0.008196F, 0.0103465F),
    FOUR(-0.003188F, 0.001214F, 0.018368F), FOUR(0.019692F, 0.0370835F, 0.0598945F),
    FOUR(0.003732F, -0.0028525F, -0.002367F), FOUR(-0.002043F, 0.0026435F, -0.0002045F),
    FOUR(-0.0164175F, 0.025401F, -0.01406F), FOUR(-0.001579F, -0.0004175F, 0.000203F),
    FOUR(-0.05642F, -0.0421685F, -0.0115415F), FOUR(0.000731F, -0.003328F, 0.0002745F),
    FOUR(-0.00499F, -0.00374F, 0.004851F), FOUR(0.01627F, 0.000107F, -0.030694F),
    FOUR(0.0055115F, 0.000347F, 0.0035715F), FOUR(-0.000734F, -0.0033615F, -0.000839F),
    FOUR(-0.0029605F, -0.00516F, -0.0019535F), FOUR(-0.014217F, 0.013792F, 0.0092285F),
    FOUR(0.0071745F, 0.0057615F, 0.0002205F), FOUR(0.004937F, 0.0015405F, 0.0007535F),
    FOUR(0.001109F, 0.002856F, 0.0007815F), FOUR(0.026505F, -0.009922F, 0.0043415F),
    FOUR(-0.0012535F, 0.002692F, 0.000469F), FOUR(-0.0010885F, -0.005683F, 0.0017795F),
    FOUR(-0.0001305F, 0.0075605F, -0.00162F), FOUR(-0.001972F, -0.0010415F, 0.0025215F),
    FOUR(-0.004569F, 0.005668F, 0.0018905F), FOUR(0.0057145F, 0.0019925F, -0.0019275F),
    FOUR(0.005259F, -0.002793F, 0.0050655F), FOUR(0.0039415F, 0.001456F, -0.0007365F),
    FOUR(-0.001659F, -0.00158F, 0.001842F), FOUR(-0.01728F, -0.00437F, 0.006498F),
    FOUR(0.000083F, 0.0005395F, -0.0060765F), FOUR(0.008886F, 0.0004685F, -0.0059765F)};
static const struct latent_colours latent_colours_flux2 = {
    128, colours_flux2, {0.485631F, 0.4507685F, 0.4461905F}, 0};

static const struct hf_source flux2_dev_files[] = {
    {"black-forest-labs/FLUX.2-dev", NULL, NULL, 0},
    {"black-forest-labs/FLUX.2-dev", "--diffusion-model", "flux2-dev.safetensors", 64400},
    {"Comfy-Org/flux2-dev", "--diffusion-model", "flux2_dev_fp8mixed.safetensors", 0},
    {"city96/FLUX.2-dev-gguf", "--diffusion-model", "flux2-dev-*.gguf", 0},
    {"Comfy-Org/flux2-dev", "--llm", "mistral_3_small_flux2_bf16.safetensors", 0},
    {"unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF", "--llm", "Mistral-Small-3.2-24B-Instruct-2506-*.gguf", 0},
    {"Comfy-Org/flux2-dev", "--vae", "flux2-vae.safetensors", 0},
    {"madebyollin/taef2", "--taesd", "taef2.safetensors", 0},
    {0},
};
#define KLEIN_SOURCES(size, file)                                                                            \
    {"Comfy-Org/flux2-klein-" size, "--llm", file, 0}, {"Comfy-Org/flux2-dev", "--vae", "flux2-vae.safetensors", 0}, \
    {"madebyollin/taef2", "--taesd", "taef2.safetensors", 0},                                                \
    {0}
static const struct hf_source flux2_klein_4b_sources[] = {KLEIN_SOURCES("4B", "qwen_3_4b.safetensors")};
static const struct hf_source flux2_klein_9b_sources[] = {KLEIN_SOURCES("9B", "qwen_3_8b*.safetensors")};
static const struct hf_source flux2_klein_files[] = {
    {"black-forest-labs/FLUX.2-klein-4B", NULL, NULL, 0},
    {"black-forest-labs/FLUX.2-klein-4B", "--diffusion-model", "flux-2-klein-4b.safetensors", 7750},
    {"leejet/FLUX.2-klein-4B-GGUF", "--diffusion-model", "flux-2-klein-4b-*.gguf", 0},
    {0},
};
static const struct hf_source flux2_klein_base_files[] = {
    {"black-forest-labs/FLUX.2-klein-base-4B", NULL, NULL, 0},
    {"black-forest-labs/FLUX.2-klein-base-4B", "--diffusion-model", "flux-2-klein-base-4b.safetensors", 7750},
    {0},
};
static const struct hf_source flux2_klein_9b_files[] = {
    {"black-forest-labs/FLUX.2-klein-9B", NULL, NULL, 0},
    {"black-forest-labs/FLUX.2-klein-9B", "--diffusion-model", "flux-2-klein-9b.safetensors", 18200},
    {"leejet/FLUX.2-klein-9B-GGUF", "--diffusion-model", "flux-2-klein-9b-*.gguf", 0},
    {0},
};
static const struct hf_source flux2_klein_base_9b_files[] = {
    {"black-forest-labs/FLUX.2-klein-base-9B", NULL, NULL, 0},
    {"black-forest-labs/FLUX.2-klein-base-9B", "--diffusion-model", "flux-2-klein-base-9b.safetensors", 18200},
    {0},
};

/* Text encoder of Klein: diffusers 0.42, pipelines/flux2. Prompts are padded to 512 tokens. The encoder's
 * attention masks the padding; the denoiser reads its rows too. Further arguments: initialisers of the slot. */
#define TEXT_KLEIN(...)                                                                                      \
    {.family = &family_qwen3, .flag = "--llm", .folder = "text_encoder",                                     \
     .prefixes = NAMES({"", "text_encoders.qwen3_4b.transformer.", "text_encoders.qwen3_8b.transformer.",    \
                        "text_encoders.llm.", NULL}),                                                        \
     .text = {.template_before = "<|im_start|>user\n",                                                       \
              .template_after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",                \
              .pad = "<|endoftext|>", .masks_padding = true, .tokens_max = 512,                              \
              .special_tokens = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},                       \
              .tokenizer = "BPE", .tokenizer_folder = "tokenizer",                                           \
              .tokenizer_from = "--tokenizer PATH: tokenizer/tokenizer.json of the model's Hugging Face "    \
                                "folder, or tokenizer.json of Qwen/Qwen3-4B",                                \
              .classes = {"Qwen3ForCausalLM", "Qwen2TokenizerFast"}},                                        \
     __VA_ARGS__}

/* Mistral Small 3, the text encoder of Flux.2 dev. Prefixes: published folders (transformers 4), transformers
 * 5, ComfyUI's checkpoints. Source of template and padding: diffusers 0.42, pipelines/flux2/pipeline_flux2.py,
 * which deletes [IMG] from prompts because it stands for an image. */
#define TEXT_MISTRAL                                                                                         \
    {.family = &family_mistral, .flag = "--llm", .folder = "text_encoder",                                   \
     .prefixes = NAMES({"", "language_model.", "model.language_model.",                                      \
                        "text_encoders.mistral3_24b.transformer.", "text_encoders.llm.", NULL}),             \
     .text = {.template_before =                                                                             \
                  "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give "         \
                  "structured responses focusing on object relationships, object\nattribution and actions "  \
                  "without speculation.[/SYSTEM_PROMPT][INST]",                                              \
              .template_after = "[/INST]", .deleted = "[IMG]",                                               \
              .pad = "<pad>", .pads_left = true, .masks_padding = true, .tokens_max = 512,                   \
              .special_tokens = {"<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},         \
              .tokenizer = "BPE", .tokenizer_folder = "tokenizer",                                           \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or tekken.json of "      \
                                "mistralai/Mistral-Small-3.2-24B-Instruct-2506",                             \
              .classes = {"Mistral3ForConditionalGeneration", "PixtralProcessor"}}}

#define VAE_FLUX2                                                                                            \
    {.family = &family_vae_flux2, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES)},        \
    {.family = &family_vae_flux2_encoder, .folder = "vae"},                                                  \
    TINY_DECODER(family_taesd, .weights_name = "taef2",                                                      \
                 .dimension = {{"latent_channels", 32}, {"taesd_pooled", 1}})

enum { FLUX2_AREA = 1024 * 1024 };
/* Flux.2: diffusers 0.42, pipelines/flux2. text_slot: the text encoder. first, second, third: layers of the
 * text encoder whose outputs, without the final norm, are concatenated. Further arguments: initialisers of the
 * denoiser's slot. */
#define FLUX2(text_slot, first, second, third, ...)                                                          \
    .slot = {text_slot, DENOISER(family_flux2, __VA_ARGS__), VAE_FLUX2},                                     \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS,                                             \
                            .hidden = {.layers = {first, second, third}, .final_norm = FINAL_NORM_OF_NONE}}}, \
             .n_conditions = 1},                                                                             \
    .images = {.references_max = LANE_REFERENCES_MAX, .init_is_reference = true, .mask_bilinear = true,      \
               .areas = {.vae_max = FLUX2_AREA, .output_of_first = true}},                                   \
    .denoising = {.span = {{1, INFINITY}}, .guide = guidance_cfg,                                            \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_rule = FLOW_SHIFT_FLUX2},                                                           \
    .patch = FLUX2_PATCH, .colours = &latent_colours_flux2

/* Klein. heads_, doubles, singles, columns: sizes of the published transformer. Further arguments:
 * initialisers of the text encoder's slot. */
#define KLEIN(heads_, doubles, singles, columns, ...)                                                        \
    FLUX2(TEXT_KLEIN(__VA_ARGS__), 9, 18, 27,                                                                \
          .dimension = {{"heads", heads_}, {"double_layers", doubles}, {"single_layers", singles},           \
                        {"text_columns", columns}, {"guidance", 0}})
#define KLEIN_4B KLEIN(24, 5, 20, 7680, )
#define KLEIN_9B KLEIN(32, 8, 24, 12288, .dimension = {{"hidden", 4096}, {"text_ff", 12288}})
#define KLEIN_PIPELINES {"Flux2KleinPipeline", "Flux2KleinInpaintPipeline"}
/* diffusers ignores guidance_scale for distilled models; here it is only off by default. diffusers' strength of
 * 0.8 would start all four steps from pure noise. */
#define DISTILLED {.width = 1024, .height = 1024, .steps = 4, .cfg_scale = 1, .strength = 0.6}
#define BASE {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 4, .strength = 0.8}
/* clang-format on */

/* dev is guidance-distilled. Guidance and steps are the defaults of Flux2Pipeline.__call__. */
const struct recipe recipe_flux2_dev = {
    FLUX2(TEXT_MISTRAL, 10, 20, 30),
    .name = "flux2_dev",
    .selection = {.variant = FLUX2_DEV, .pipelines = {"Flux2Pipeline"}},
    .denoising.takes_guidance = true,
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 1, .guidance = 4, .strength = 0.8},
    .published = {.title = "Flux.2 dev", .reference = DIFFUSERS, .sources = {flux2_dev_files}},
};

const struct recipe recipe_flux2_klein = {
    KLEIN_4B,
    .name = "flux2_klein",
    .selection = {.variant = FLUX2_KLEIN_4B,
                  .pipelines = KLEIN_PIPELINES,
                  .index_key = "is_distilled",
                  .index_value = true},
    .defaults = DISTILLED,
    .published = {.title = "Flux.2 Klein 4B",
                  .reference = DIFFUSERS,
                  .sources = {flux2_klein_files, flux2_klein_4b_sources}},
};

const struct recipe recipe_flux2_klein_base = {
    KLEIN_4B,
    .name = "flux2_klein_base",
    .selection = {.variant = FLUX2_KLEIN_4B,
                  .name_word = "base",
                  .pipelines = KLEIN_PIPELINES,
                  .index_key = "is_distilled"},
    .defaults = BASE,
    .published = {.title = "Flux.2 Klein 4B Base",
                  .reference = DIFFUSERS,
                  .sources = {flux2_klein_base_files, flux2_klein_4b_sources}},
};

const struct recipe recipe_flux2_klein_9b = {
    KLEIN_9B,
    .name = "flux2_klein_9b",
    .selection = {.variant = FLUX2_KLEIN_9B,
                  .pipelines = KLEIN_PIPELINES,
                  .index_key = "is_distilled",
                  .index_value = true},
    .defaults = DISTILLED,
    .published = {.title = "Flux.2 Klein 9B",
                  .parts_compared_in = &recipe_flux2_klein,
                  .sources = {flux2_klein_9b_files, flux2_klein_9b_sources}},
};

const struct recipe recipe_flux2_klein_base_9b = {
    KLEIN_9B,
    .name = "flux2_klein_base_9b",
    .selection = {.variant = FLUX2_KLEIN_9B,
                  .name_word = "base",
                  .pipelines = KLEIN_PIPELINES,
                  .index_key = "is_distilled"},
    .defaults = BASE,
    .published = {.title = "Flux.2 Klein 9B Base",
                  .parts_compared_in = &recipe_flux2_klein_base,
                  .sources = {flux2_klein_base_9b_files, flux2_klein_9b_sources}},
};
