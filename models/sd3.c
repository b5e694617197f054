/* Stable Diffusion 3 and 3.5 transformer, MMDiT (diffusers: SD3Transformer2DModel). Token order: text, image.
 *
 * Text and image have separate weights with joint attention (mmdit.h). Dual attention layers of 3.5 medium
 * add self-attention of the image (attn2). Positions are a learned table instead of rope; only the rows
 * around its centre are read. The conditioning is one row: timestep and pooled prompt. Linear layers turn
 * this row into each block's shifts, scales and gates (AdaLN). These layers are a third of all weights and
 * separate blocks here, because they depend on timestep and prompt alone and can be hoisted. In the last
 * block the text gives keys and values only (context_pre_only). Source: diffusers 0.42,
 * models/transformers/transformer_sd3.py; checkpoint names of the authors: loaders/single_file_utils.py,
 * convert_sd3_transformer_checkpoint_to_diffusers. */
#include "models/sd3_sizes.h"
#include "models/mmdit.h"

/* Numbers of modulation parts, DIM values each: 6 per stream; 9 with attn2; 2 for the last block's text. */
enum { SIX_PARTS = 6, NINE_PARTS = 9, TWO_PARTS = 2 };

struct sd3_state {
    struct tensor tokens;    /* hidden states of all tokens: [text + image rows, DIM] */
    struct tensor positions; /* learned position embeddings: [image rows, DIM], shared by all lanes */
    /* Embedded prompt, shared by the lanes of a prompt: [text rows, DIM]. */
    struct tensor text;
    /* Conditioning, computed from timestep and prompt: one row per evaluation if hoisted, else one row. */
    struct tensor condition; /* [rows, DIM] */
    /* Modulation of all blocks, [parts, rows * DIM]: for each block the image's parts, then the text's. A
     * block's slice is read as [rows, parts * DIM]. */
    struct tensor modulation;
    struct tensor final_modulation; /* scale and shift of the final layer: [rows, TWO_DIM] */
};

struct sd3_pos_embed_weights {
    struct tensor rows; /* position embeddings of the image's tokens: [image rows, DIM] */
};

struct sd3_layer_weights {
    struct mmdit_stream_weights image, text;
};

struct sd3_modulation_weights {
    struct linear_weights image, text;
};

#define LINEAR(structure, field, name, checkpoint, rows, columns)                                            \
    BLOCK_WEIGHT_NAMED(structure, field.weight, 1, name ".weight", checkpoint ".weight", 2, rows, columns),  \
        BLOCK_WEIGHT_NAMED(structure, field.bias, 1, name ".bias", checkpoint ".bias", 1, rows)

static const struct weight_spec sd3_position_table[] = {{
    .offset = offsetof(struct sd3_pos_embed_weights, rows),
    .names = {"pos_embed.pos_embed"},
    .checkpoint_name = "pos_embed",
    .rank = 2,
    .one_first = true,
    .dim = {POSITIONS, DIM},
    .init_scale = 1,
}};

static const struct weight_spec sd3_embedder_table[] = {
    BLOCK_WEIGHT_NAMED(linear_block_weights, linear.weight, 1, "pos_embed.proj.weight",
                       "x_embedder.proj.weight", 4, DIM, IN, SIDE, SIDE),
    BLOCK_WEIGHT_NAMED(linear_block_weights, linear.bias, 1, "pos_embed.proj.bias", "x_embedder.proj.bias", 1,
                       DIM),
};

static const struct weight_spec sd3_context_table[] = {
    LINEAR(linear_block_weights, linear, "context_embedder", "context_embedder", DIM, TEXT)};

#define EMBEDDER(field, name, checkpoint, columns)                                                           \
    LINEAR(mmdit_time_text_embed_weights, field##_in, "time_text_embed." name "_embedder.linear_1",          \
           checkpoint "_embedder.mlp.0", DIM, columns),                                                      \
        LINEAR(mmdit_time_text_embed_weights, field##_out, "time_text_embed." name "_embedder.linear_2",     \
               checkpoint "_embedder.mlp.2", DIM, DIM)
static const struct weight_spec sd3_conditioning_table[] = {EMBEDDER(time, "timestep", "t", FREQUENCIES),
                                                            EMBEDDER(pooled, "text", "y", POOLED)};

/* q, k or v, which the authors' checkpoint fuses. Argument `when` of this and the following macros: index of
 * a dim that is 0 in blocks without the weight; 0: every block has the weight. */
#define QKV_THIRD(when_, field_, name_, fused_, part_, rank_)                                                \
    {                                                                                                        \
        .offset = offsetof(struct sd3_layer_weights, field_), .names = {DIFFUSERS_BLOCK name_},              \
        .fused = {.name = CHECKPOINT_BLOCK fused_,                                                           \
                  .n_parts = 3,                                                                              \
                  .rows = {DIM, DIM, DIM},                                                                   \
                  .n_taken = 1,                                                                              \
                  .taken = {part_}},                                                                         \
        .rank = rank_, .dim = {DIM, DIM}, .init_scale = 1, .if_dim = when_                                   \
    }
#define QKV_LINEAR(when, field, name, fused, part)                                                           \
    QKV_THIRD(when, field.weight, name ".weight", fused ".weight", part, 2),                                 \
        QKV_THIRD(when, field.bias, name ".bias", fused ".bias", part, 1)
#define WEIGHT_IF(when, structure, field, init_scale, name, checkpoint, ...)                                 \
    BLOCK_WEIGHT_IF(when, structure, field, init_scale, DIFFUSERS_BLOCK name, CHECKPOINT_BLOCK checkpoint,   \
                    __VA_ARGS__)
#define LINEAR_IF(when, structure, field, name, checkpoint, rows, columns)                                   \
    WEIGHT_IF(when, structure, field.weight, 1, name ".weight", checkpoint ".weight", 2, rows, columns),     \
        WEIGHT_IF(when, structure, field.bias, 1, name ".bias", checkpoint ".bias", 1, rows)
#define LAYER_LINEAR_IF(when, field, name, checkpoint, rows, columns)                                        \
    LINEAR_IF(when, sd3_layer_weights, field, name, checkpoint, rows, columns)
#define NORM(when, field, name, checkpoint)                                                                  \
    WEIGHT_IF(when, sd3_layer_weights, field, 0, name ".weight", checkpoint ".weight", 1, HEAD)

/* Weights of a joint block, in the order of use. */
static const struct weight_spec sd3_layer_table[] = {
    QKV_LINEAR(0, image.attention.q, "attn.to_q", "x_block.attn.qkv", 0),
    NORM(NORMED, image.attention.q_norm, "attn.norm_q", "x_block.attn.ln_q"),
    QKV_LINEAR(0, image.attention.k, "attn.to_k", "x_block.attn.qkv", 1),
    NORM(NORMED, image.attention.k_norm, "attn.norm_k", "x_block.attn.ln_k"),
    QKV_LINEAR(0, image.attention.v, "attn.to_v", "x_block.attn.qkv", 2),
    QKV_LINEAR(TEXT_UPDATED, text.attention.q, "attn.add_q_proj", "context_block.attn.qkv", 0),
    NORM(TEXT_UPDATED_NORMED, text.attention.q_norm, "attn.norm_added_q", "context_block.attn.ln_q"),
    QKV_LINEAR(0, text.attention.k, "attn.add_k_proj", "context_block.attn.qkv", 1),
    NORM(NORMED, text.attention.k_norm, "attn.norm_added_k", "context_block.attn.ln_k"),
    QKV_LINEAR(0, text.attention.v, "attn.add_v_proj", "context_block.attn.qkv", 2),
    LAYER_LINEAR_IF(0, image.attention.out, "attn.to_out.0", "x_block.attn.proj", DIM, DIM),
    LAYER_LINEAR_IF(TEXT_UPDATED, text.attention.out, "attn.to_add_out", "context_block.attn.proj", DIM, DIM),
    QKV_LINEAR(DUAL, image.attention2.q, "attn2.to_q", "x_block.attn2.qkv", 0),
    NORM(DUAL_NORMED, image.attention2.q_norm, "attn2.norm_q", "x_block.attn2.ln_q"),
    QKV_LINEAR(DUAL, image.attention2.k, "attn2.to_k", "x_block.attn2.qkv", 1),
    NORM(DUAL_NORMED, image.attention2.k_norm, "attn2.norm_k", "x_block.attn2.ln_k"),
    QKV_LINEAR(DUAL, image.attention2.v, "attn2.to_v", "x_block.attn2.qkv", 2),
    LAYER_LINEAR_IF(DUAL, image.attention2.out, "attn2.to_out.0", "x_block.attn2.proj", DIM, DIM),
    LAYER_LINEAR_IF(0, image.up, "ff.net.0.proj", "x_block.mlp.fc1", FEED_FORWARD, DIM),
    LAYER_LINEAR_IF(0, image.down, "ff.net.2", "x_block.mlp.fc2", DIM, FEED_FORWARD),
    LAYER_LINEAR_IF(TEXT_UPDATED, text.up, "ff_context.net.0.proj", "context_block.mlp.fc1", FEED_FORWARD,
                    DIM),
    LAYER_LINEAR_IF(TEXT_UPDATED, text.down, "ff_context.net.2", "context_block.mlp.fc2", DIM, FEED_FORWARD),
};
/* Text queries of the last block: present in files, unused (context_pre_only). */
static const struct weight_spec sd3_unused_table[] = {
    QKV_LINEAR(0, text.attention.q, "attn.add_q_proj", "context_block.attn.qkv", 0),
    NORM(NORMED, text.attention.q_norm, "attn.norm_added_q", "context_block.attn.ln_q"),
};

/* AdaLN of the last block's text: shift, scale. diffusers' files store scale, then shift. */
#define LAST_TEXT_SHIFT_SCALE(field_, tail, rank_)                                                           \
    {                                                                                                        \
        .offset = offsetof(struct sd3_modulation_weights, text.field_),                                      \
        .names = {CHECKPOINT_BLOCK "context_block.adaLN_modulation.1." tail},                                \
        .fused = {.name = DIFFUSERS_BLOCK "norm1_context.linear." tail,                                      \
                  .n_parts = 2,                                                                              \
                  .rows = {DIM, DIM},                                                                        \
                  .n_taken = 2,                                                                              \
                  .taken = {1, 0},                                                                           \
                  .all = TWO_DIM},                                                                           \
        .rank = rank_, .dim = {TWO_DIM, DIM}, .init_scale = 1, .if_dim = CONTEXT_PRE_ONLY                    \
    }
static const struct weight_spec sd3_modulation_table[] = {
    LINEAR_IF(0, sd3_modulation_weights, image, "norm1.linear", "x_block.adaLN_modulation.1", IMAGE_PARTS_DIM,
              DIM),
    LINEAR_IF(TEXT_UPDATED, sd3_modulation_weights, text, "norm1_context.linear",
              "context_block.adaLN_modulation.1", SIX_DIM, DIM),
    LAST_TEXT_SHIFT_SCALE(weight, "weight", 2),
    LAST_TEXT_SHIFT_SCALE(bias, "bias", 1),
};

/* The final AdaLN layer. diffusers stores scale, then shift; the authors' checkpoint shift, then scale. */
#define FINAL_SCALE_SHIFT(field_, tail, rank_)                                                               \
    {                                                                                                        \
        .offset = offsetof(struct linear_block_weights, linear.field_), .names = {"norm_out.linear." tail},  \
        .fused = {.name = "final_layer.adaLN_modulation.1." tail,                                            \
                  .n_parts = 2,                                                                              \
                  .rows = {DIM, DIM},                                                                        \
                  .n_taken = 2,                                                                              \
                  .taken = {1, 0}},                                                                          \
        .rank = rank_, .dim = {TWO_DIM, DIM}, .init_scale = 1                                                \
    }
static const struct weight_spec sd3_final_modulation_table[] = {FINAL_SCALE_SHIFT(weight, "weight", 2),
                                                                FINAL_SCALE_SHIFT(bias, "bias", 1)};

static const struct weight_spec sd3_final_table[] = {
    LINEAR(linear_block_weights, linear, "proj_out", "final_layer.linear", PATCH, DIM)};

static bool sd3_is_dual(const struct sd3_settings *s, int number) {
    for (int i = 0; i < s->n_dual_layers; i++)
        if ((int)s->dual_layer[i] == number) return true;
    return false;
}

static bool sd3_is_last(const struct sd3_settings *s, int number) {
    return number + 1 == s->layers;
}

static int sd3_image_parts(const struct sd3_settings *s, int number) {
    return sd3_is_dual(s, number) ? NINE_PARTS : SIX_PARTS;
}

static int sd3_text_parts(const struct sd3_settings *s, int number) {
    return sd3_is_last(s, number) ? TWO_PARTS : SIX_PARTS;
}

/* Number of modulation parts of all blocks before block `number`, which may be the number of blocks. */
static int sd3_parts_before(const struct sd3_settings *s, int number) {
    int parts = 0;
    for (int i = 0; i < number; i++) parts += sd3_image_parts(s, i) + sd3_text_parts(s, i);
    return parts;
}

/* Slice of the modulation: parts [first, first + parts), rows of this visit; as [rows, parts * DIM]. */
static struct tensor sd3_parts(const struct visit_scope *scope, int first, int parts) {
    const struct sd3_state *state = scope->lane->state;
    int32_t rows = state->condition.dim[0], dim = state->condition.dim[1];
    struct tensor of_block = tensor_slice(state->modulation, first, parts);
    return scope_rows(tensor_reshape(of_block, 2, (int32_t[]){rows, parts * dim}), scope);
}

static struct tensor sd3_image_modulation(const struct visit_scope *scope) {
    const struct sd3_settings *s = scope->settings;
    return sd3_parts(scope, sd3_parts_before(s, scope->number), sd3_image_parts(s, scope->number));
}

static struct tensor sd3_text_modulation(const struct visit_scope *scope) {
    const struct sd3_settings *s = scope->settings;
    int first = sd3_parts_before(s, scope->number) + sd3_image_parts(s, scope->number);
    return sd3_parts(scope, first, sd3_text_parts(s, scope->number));
}

static void sd3_forward_context(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_linear(x, state->text, scope->lane->text, &w->linear);
}

/* Timesteps are 0 to 1000 already, so the scale before the sinusoids is 1. */
static void sd3_forward_conditioning(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct sd3_state *state = scope->lane->state;
    mmdit_time_text_embed(x, scope_rows(state->condition, scope), weights, scope, 1);
}

static void sd3_forward_modulation(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sd3_modulation_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    struct tensor condition = scope_rows(state->condition, scope);
    mmdit_modulation(x, sd3_image_modulation(scope), condition, &w->image);
    mmdit_modulation(x, sd3_text_modulation(scope), condition, &w->text);
}

static void sd3_forward_final_modulation(struct context *x, const void *weights,
                                         const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->final_modulation, scope), scope_rows(state->condition, scope),
                     &w->linear);
}

static void sd3_forward_position(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sd3_pos_embed_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    op_copy(x, state->positions, w->rows);
}

static void sd3_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor rows = mmdit_image_rows(state->tokens, lane);
    int32_t in = MMDIT_PATCH * MMDIT_PATCH * lane->latent.dim[0];
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], in});
    mmdit_patchify(x, patches, lane);
    op_linear(x, rows, patches, tensor_reshape(w->linear.weight, 2, (int32_t[]){rows.dim[1], in}),
              (struct epilogue){.bias = w->linear.bias, .residual = state->positions});
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

static void sd3_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sd3_layer_weights *w = weights;
    const struct sd3_settings *settings = scope->settings;
    const struct sd3_state *state = scope->lane->state;
    int32_t text = scope->lane->text.dim[0], image = state->tokens.dim[0] - text;
    struct mmdit_stream of_image = {
        .w = &w->image,
        .first = text,
        .rows = image,
        .n_updated = image,
        .range = {{image, sd3_image_modulation(scope)}},
    };
    struct mmdit_stream of_text = {
        .w = &w->text,
        .rows = text,
        .n_updated = sd3_is_last(settings, scope->number) ? 0 : text,
        .range = {{text, sd3_text_modulation(scope)}},
    };
    mmdit_joint_block(x, &of_image, &of_text, state->tokens, (struct mmdit_heads){.size = settings->head});
}

/* The model predicts noise - data, the velocity of flow matching. */
static void sd3_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_proj_out(x, &w->linear, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   PATCH_CHANNELS_LAST);
}

static const struct block_kind sd3_kind_position =
    BLOCK_KIND("position", "pos_embed", sd3_position_table, sd3_pos_embed_weights, sd3_forward_position,
               .embedding_table = true, .update_rate = UPDATE_PER_PROMPT);
static const struct block_kind sd3_kind_context =
    BLOCK_KIND("context", "context_embedder", sd3_context_table, linear_block_weights, sd3_forward_context,
               .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
static const struct block_kind sd3_kind_conditioning = BLOCK_KIND(
    "conditioning", "time_text_embed", sd3_conditioning_table, mmdit_time_text_embed_weights,
    sd3_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
static const struct block_kind sd3_kind_embedder =
    BLOCK_KIND("embedder", "pos_embed.proj", sd3_embedder_table, linear_block_weights, sd3_forward_embedder,
               .never_quantised = true);

static const struct block_kind sd3_kind_modulation =
    BLOCK_KIND("modulation", DIFFUSERS_BLOCK "modulation", sd3_modulation_table, sd3_modulation_weights,
               sd3_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
static const struct block_kind sd3_kind_layer =
    BLOCK_KIND("layer", "transformer_blocks.%d", sd3_layer_table, sd3_layer_weights, sd3_forward_layer,
               .skippable = true);
static const struct block_kind sd3_kind_unused =
    BLOCK_KIND("rest", DIFFUSERS_BLOCK "rest", sd3_unused_table, sd3_layer_weights, sd3_forward_layer);
static const struct block_kind sd3_kind_final_modulation = BLOCK_KIND(
    "final_modulation", "norm_out", sd3_final_modulation_table, linear_block_weights,
    sd3_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
static const struct block_kind sd3_kind_final = BLOCK_KIND(
    "final", "proj_out", sd3_final_table, linear_block_weights, sd3_forward_final, .never_quantised = true);

/* Lists each modulation before the block that reads it: visits follow this order if nothing is hoisted. */
static int sd3_blocks(const struct component *c, struct block_ref *refs) {
    const struct sd3_settings *s = (const struct sd3_settings *)c->settings;
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &sd3_kind_position};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_context};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_embedder};
    for (int i = 0; i < s->layers; i++) {
        refs[n++] = (struct block_ref){.kind = &sd3_kind_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &sd3_kind_layer, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &sd3_kind_unused, .number = s->layers - 1, .unused = true};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_final};
    return n;
}

/* Sets the dims that determine which weights a block and the block's modulation have. */
static void sd3_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const struct sd3_settings *s = (const struct sd3_settings *)c->settings;
    dims[CONTEXT_PRE_ONLY] = sd3_is_last(s, ref->number);
    dims[TEXT_UPDATED] = !dims[CONTEXT_PRE_ONLY];
    dims[DUAL] = sd3_is_dual(s, ref->number);
    dims[TEXT_UPDATED_NORMED] = dims[TEXT_UPDATED] && dims[NORMED];
    dims[DUAL_NORMED] = dims[DUAL] && dims[NORMED];
    dims[IMAGE_PARTS_DIM] = sd3_image_parts(s, ref->number) * dims[DIM];
}

/* Selects a centred rectangle of the position table; an odd margin is larger below and right. */
static int sd3_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
    int32_t side = ((const struct sd3_settings *)c->settings)->table_side, n = 0;
    int32_t h = lane->latent.dim[2] / MMDIT_PATCH, w = lane->latent.dim[3] / MMDIT_PATCH;
    int32_t first = (side - h) / 2 * side + (side - w) / 2;
    (void)i_table;
    for (int32_t y = 0; y < h && rows; y++)
        for (int32_t x = 0; x < w; x++) rows[n++] = first + y * side + x;
    return h * w;
}

static enum status sd3_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                   struct error *e) {
    int32_t side = ((const struct sd3_settings *)c->settings)->table_side;
    int32_t h = lanes[0].latent.dim[2] / MMDIT_PATCH, w = lanes[0].latent.dim[3] / MMDIT_PATCH;
    (void)n_lanes; /* all lanes have the same image size */
    if (h <= side && w <= side) return OK;
    return error_set(e, USAGE,
                     "the image is larger than the transformer's position table" WHERE "%s" FOUND
                     "%d x %d tokens of 16x16 pixels" EXPECTED
                     "at most %d tokens on each side: reduce the width or height",
                     c->index.sources[0].path, w, h, side);
}

static void sd3_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena,
                               bool *ok) {
    struct sd3_state *s = lane->state;
    const struct sd3_settings *settings = (const struct sd3_settings *)c->settings;
    int32_t rows = lane->hoisted ? lane->hoisted : 1, text = lane->text.dim[0], dim = c->dims[DIM];
    int32_t parts = sd3_parts_before(settings, settings->layers);
    s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, dim}, ok);
    s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, dim}, ok);
    s->modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){parts, rows * dim}, ok);
    s->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[TWO_DIM]}, ok);
}

static void sd3_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                        struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct sd3_state *s = lanes[i].state;
        int32_t image = mmdit_token_count(lanes[i].latent), dim = c->dims[DIM];
        int first = lane_first_of_prompt(lanes, i);
        if (i)
            *s = *(const struct sd3_state *)lanes[first == i ? 0 : first].state;
        else
            s->positions = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){image, dim}, ok);
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lanes[i].text.dim[0] + image, dim}, ok);
        if (first == i) sd3_declare_prompt(c, &lanes[i], arena, ok);
    }
}

/* Also matches ControlNets and IP-Adapters, which sd3_refuse rejects by name. */
static bool sd3_probe(const struct tensor_index *index) {
    return index_find(index, "joint_blocks.0.context_block.attn.qkv.weight") ||
           (index_find(index, "transformer_blocks.0.norm1_context.linear.weight") &&
            index_find(index, "pos_embed.proj.weight")) ||
           index_find(index, "pos_embed_input.proj.weight");
}

static const char *const sd3_ignorable[] = {NULL};
static const char *const sd3_architectures[] = {"sd3", NULL};
static const struct state_tensor sd3_state_tensors[] = {
    STATE_TENSOR(sd3_state, tokens), STATE_TENSOR(sd3_state, positions), STATE_TENSOR(sd3_state, text),
    STATE_TENSOR(sd3_state, condition), STATE_TENSOR(sd3_state, modulation)};

const struct family family_sd3 = {
    .name = "sd3",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .architectures = sd3_architectures,
    .config_key = "_class_name",
    .config_value = "SD3Transformer2DModel",
    .probe = sd3_probe,
    .refuse = sd3_refuse,
    .dimensions = sd3_dimensions,
    .n_dimensions = COUNT_OF(sd3_dimensions),
    .settings = sd3_settings_rows,
    .n_settings = COUNT_OF(sd3_settings_rows),
    .lists = sd3_lists,
    .n_lists = COUNT_OF(sd3_lists),
    .configure = sd3_configure,
    .derive_dims = sd3_derive_dims,
    .derive = sd3_derive,
    .config_rest = "\"patch_size\": 2",
    .blocks = sd3_blocks,
    .block_dims = sd3_block_dims,
    .ignorable = sd3_ignorable,
    .lane_state_bytes = sizeof(struct sd3_state),
    .state = sd3_state_tensors,
    .n_state = COUNT_OF(sd3_state_tensors),
    .declare = sd3_declare,
    .rows = sd3_rows,
    .check_lanes = sd3_check_lanes,
};
