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
#include "models/sd3.h"

#include "models/slots.h"

#include <math.h>

/* Variants of Stable Diffusion 3 that tensor shapes distinguish: 3.5 large has query and key norms, 3.5
 * medium also has dual attention layers. */
enum { SD3_MEDIUM, SD35_MEDIUM, SD35_LARGE };

LINEAR_TABLE(sd3_context_table, DIM, TEXT, "context_embedder");
/* AdaLN of the final layer. diffusers' files store scale before shift; the authors' checkpoint stores shift
 * before scale. */
LINEAR_TABLE(sd3_final_modulation_table, TWO_DIM, DIM, "norm_out.linear",
             "final_layer.adaLN_modulation.1[1,0/2]");
LINEAR_TABLE(sd3_final_table, PATCH, DIM, "proj_out", "final_layer.linear");
CONV_TABLE(sd3_embedder_table, DIM, IN, SIDE, "pos_embed.proj", "x_embedder.proj");

/* clang-format off */
/* rows: learned position embeddings of the image's tokens, [image rows, DIM]. */
#define POSITION(X, S)                                                                                       \
    X##WEIGHT(S, rows, (.rank = 2, .one_first = true, .dim = {POSITIONS, DIM}, .init_scale = 1),             \
              "pos_embed.pos_embed", "pos_embed")
struct sd3_pos_embed_weights { POSITION(FIELD_, ) };
WEIGHT_TABLE(sd3_position_table, POSITION, sd3_pos_embed_weights, "", "");

WEIGHT_TABLE(sd3_conditioning_table, SD3_CONDITIONING, mmdit_time_text_embed_weights, "time_text_embed.", "");

/* Weights of a joint block, in the order of use. */
#define TEXT_Q(X, S, S_NORMED)                                                                               \
    X##LINEAR(S, text.attention.q, DIM, DIM, "attn.add_q_proj", "context_block.attn.qkv[0/3]")               \
    X##VECTOR(S_NORMED, text.attention.q_norm, HEAD, "attn.norm_added_q", "context_block.attn.ln_q")
#define IMAGE_SELF_ATTENTION(X, S, S_NORMED)                                                                 \
    X##LINEAR(S, image.attention2.q, DIM, DIM, "attn2.to_q", "x_block.attn2.qkv[0/3]")                       \
    X##VECTOR(S_NORMED, image.attention2.q_norm, HEAD, "attn2.norm_q", "x_block.attn2.ln_q")                 \
    X##LINEAR(S, image.attention2.k, DIM, DIM, "attn2.to_k", "x_block.attn2.qkv[1/3]")                       \
    X##VECTOR(S_NORMED, image.attention2.k_norm, HEAD, "attn2.norm_k", "x_block.attn2.ln_k")                 \
    X##LINEAR(S, image.attention2.v, DIM, DIM, "attn2.to_v", "x_block.attn2.qkv[2/3]")                       \
    X##LINEAR(S, image.attention2.out, DIM, DIM, "attn2.to_out.0", "x_block.attn2.proj")
#define TEXT_MLP(X, S)                                                                                       \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "ff_context.net.0.proj", "context_block.mlp.fc1")               \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "ff_context.net.2", "context_block.mlp.fc2")
#define LAYER(X, S)                                                                                          \
    X##LINEAR(S, image.attention.q, DIM, DIM, "attn.to_q", "x_block.attn.qkv[0/3]")                          \
    X##VECTOR(IF_DIM(S, NORMED), image.attention.q_norm, HEAD, "attn.norm_q", "x_block.attn.ln_q")           \
    X##LINEAR(S, image.attention.k, DIM, DIM, "attn.to_k", "x_block.attn.qkv[1/3]")                          \
    X##VECTOR(IF_DIM(S, NORMED), image.attention.k_norm, HEAD, "attn.norm_k", "x_block.attn.ln_k")           \
    X##LINEAR(S, image.attention.v, DIM, DIM, "attn.to_v", "x_block.attn.qkv[2/3]")                          \
    TEXT_Q(X, IF_DIM(S, TEXT_UPDATED), IF_DIM(S, TEXT_UPDATED_NORMED))                                       \
    X##LINEAR(S, text.attention.k, DIM, DIM, "attn.add_k_proj", "context_block.attn.qkv[1/3]")               \
    X##VECTOR(IF_DIM(S, NORMED), text.attention.k_norm, HEAD,                                                \
              "attn.norm_added_k", "context_block.attn.ln_k")                                                \
    X##LINEAR(S, text.attention.v, DIM, DIM, "attn.add_v_proj", "context_block.attn.qkv[2/3]")               \
    X##LINEAR(S, image.attention.out, DIM, DIM, "attn.to_out.0", "x_block.attn.proj")                        \
    X##LINEAR(IF_DIM(S, TEXT_UPDATED), text.attention.out, DIM, DIM,                                         \
              "attn.to_add_out", "context_block.attn.proj")                                                  \
    IMAGE_SELF_ATTENTION(X, IF_DIM(S, DUAL), IF_DIM(S, DUAL_NORMED))                                         \
    X##LINEAR(S, image.up, FEED_FORWARD, DIM, "ff.net.0.proj", "x_block.mlp.fc1")                            \
    X##LINEAR(S, image.down, DIM, FEED_FORWARD, "ff.net.2", "x_block.mlp.fc2")                               \
    TEXT_MLP(X, IF_DIM(S, TEXT_UPDATED))
WEIGHT_TABLE(sd3_layer_table, LAYER, mmdit_block_weights, SD3_BLOCK, SD3_CHECKPOINT_BLOCK);
/* Text query weights of the last block: files have these weights, the model does not use them
 * (context_pre_only). */
#define UNUSED(X, S) TEXT_Q(X, S, IF_DIM(S, NORMED))
WEIGHT_TABLE(sd3_unused_table, UNUSED, mmdit_block_weights, SD3_BLOCK, SD3_CHECKPOINT_BLOCK);

/* Text modulation of the last block has two parts, shift and scale; diffusers' files store scale before
 * shift. */
#define MODULATION(X, S)                                                                                     \
    X##LINEAR(S, image, IMAGE_PARTS_DIM, DIM, "norm1.linear", "x_block.adaLN_modulation.1")                  \
    X##LINEAR(IF_DIM(S, TEXT_UPDATED), text, SIX_DIM, DIM,                                                   \
              "norm1_context.linear", "context_block.adaLN_modulation.1")                                    \
    X##LINEAR(IF_DIM(S, CONTEXT_PRE_ONLY), text, TWO_DIM, DIM,                                               \
              "norm1_context.linear[1,0/2]", "context_block.adaLN_modulation.1")
WEIGHT_TABLE(sd3_modulation_table, MODULATION, sd3_modulation_weights, SD3_BLOCK, SD3_CHECKPOINT_BLOCK);
/* clang-format on */

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

/* Slice of the modulation for this visit: parts [first, first + parts), as [rows, parts * DIM]. */
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
    const struct linear_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_linear(x, state->text, scope->lane->text, w);
}

/* Timesteps are 0 to 1000 already, so their factor before the sinusoids is 1. */
static void sd3_forward_conditioning(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct sd3_state *state = scope->lane->state;
    mmdit_time_text_embed(x, scope_rows(state->condition, scope), weights, scope, 1);
}

void sd3_forward_modulation(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sd3_modulation_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    struct tensor condition = scope_rows(state->condition, scope);
    mmdit_modulation(x, sd3_image_modulation(scope), condition, &w->image);
    mmdit_modulation(x, sd3_text_modulation(scope), condition, &w->text);
}

static void sd3_forward_final_modulation(struct context *x, const void *weights,
                                         const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->final_modulation, scope), scope_rows(state->condition, scope), w);
}

static void sd3_forward_position(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sd3_pos_embed_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    op_copy(x, state->positions, w->rows);
}

static void sd3_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor rows = mmdit_image_rows(state->tokens, lane);
    int32_t in = MMDIT_PATCH * MMDIT_PATCH * lane->latent.dim[0];
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], in});
    mmdit_patchify(x, patches, lane, MMDIT_PATCH);
    op_linear(x, rows, patches, tensor_reshape(w->weight, 2, (int32_t[]){rows.dim[1], in}),
              (struct epilogue){.bias = w->bias, .residual = state->positions});
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

static void sd3_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct mmdit_block_weights *w = weights;
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

/* Stable Diffusion 3 predicts noise - data, the velocity of flow matching. */
static void sd3_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    mmdit_proj_out(x, w, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_LAST});
}

const struct block_kind sd3_kind_position =
    BLOCK_KIND("position", "pos_embed", sd3_position_table, sd3_pos_embed_weights, sd3_forward_position,
               .embedding_table = true, .update_rate = UPDATE_PER_PROMPT);
const struct block_kind sd3_kind_context =
    BLOCK_KIND("context", "context_embedder", sd3_context_table, linear_weights, sd3_forward_context,
               .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(sd3_kind_conditioning, "conditioning", "time_text_embed", sd3_conditioning_table,
      mmdit_time_text_embed_weights, sd3_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT,
      .never_quantised = true);
const struct block_kind sd3_kind_embedder =
    BLOCK_KIND("embedder", "pos_embed.proj", sd3_embedder_table, linear_weights, sd3_forward_embedder,
               .never_quantised = true);

BLOCK(sd3_kind_modulation, "modulation", SD3_BLOCK "modulation", sd3_modulation_table, sd3_modulation_weights,
      sd3_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
const struct block_kind sd3_kind_layer =
    BLOCK_KIND("layer", "transformer_blocks.%d", sd3_layer_table, mmdit_block_weights, sd3_forward_layer,
               .skippable = true);
BLOCK(sd3_kind_unused, "rest", SD3_BLOCK "rest", sd3_unused_table, mmdit_block_weights, sd3_forward_layer);
BLOCK(sd3_kind_final_modulation, "final_modulation", "norm_out", sd3_final_modulation_table, linear_weights,
      sd3_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK(sd3_kind_final, "final", "proj_out", sd3_final_table, linear_weights, sd3_forward_final,
      .never_quantised = true);

/* Lists each modulation block before the block that uses the modulation: visits have this order if nothing is
 * hoisted. */
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
void sd3_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const struct sd3_settings *s = (const struct sd3_settings *)c->settings;
    dims[CONTEXT_PRE_ONLY] = sd3_is_last(s, ref->number);
    dims[TEXT_UPDATED] = !dims[CONTEXT_PRE_ONLY];
    dims[DUAL] = sd3_is_dual(s, ref->number);
    dims[TEXT_UPDATED_NORMED] = dims[TEXT_UPDATED] && dims[NORMED];
    dims[DUAL_NORMED] = dims[DUAL] && dims[NORMED];
    dims[IMAGE_PARTS_DIM] = sd3_image_parts(s, ref->number) * dims[DIM];
}

/* Selects a centred rectangle of the learned position table. An odd margin is larger below and right. */
int sd3_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
    int32_t side = ((const struct sd3_settings *)c->settings)->table_side, n = 0;
    int32_t h = lane->latent.dim[2] / MMDIT_PATCH, w = lane->latent.dim[3] / MMDIT_PATCH;
    int32_t first = (side - h) / 2 * side + (side - w) / 2;
    (void)i_table;
    for (int32_t y = 0; y < h && rows; y++)
        for (int32_t x = 0; x < w; x++) rows[n++] = first + y * side + x;
    return h * w;
}

enum status sd3_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                            struct error *e) {
    int32_t side = ((const struct sd3_settings *)c->settings)->table_side;
    int32_t h = lanes[0].latent.dim[2] / MMDIT_PATCH, w = lanes[0].latent.dim[3] / MMDIT_PATCH;
    (void)n_lanes; /* lane 0 suffices: all lanes have the same image size */
    if (h <= side && w <= side) return OK;
    return error_set(e, USAGE,
                     "the image is larger than the transformer's position table" WHERE "%s" FOUND
                     "%d x %d tokens of 16x16 pixels" EXPECTED
                     "at most %d tokens on each side: reduce the width or height",
                     c->index.sources[0].path, w, h, side);
}

void sd3_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena, bool *ok) {
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
        int32_t image = mmdit_token_count(lanes[i].latent, MMDIT_PATCH), dim = c->dims[DIM];
        int first = lane_first_of_prompt(lanes, i);
        if (i)
            *s = *(const struct sd3_state *)lanes[first == i ? 0 : first].state;
        else
            s->positions = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){image, dim}, ok);
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lanes[i].text.dim[0] + image, dim}, ok);
        if (first == i) sd3_declare_prompt(c, &lanes[i], arena, ok);
    }
}

int sd3_residual_of(int layer, int n, int n_residuals) {
    double interval = (double)n / n_residuals;
    return layer + 1 < n ? (int)(layer / interval) : -1;
}

/* True for Stable Diffusion 3, and for ControlNets and IP-Adapters, which sd3_refuse rejects by name. */
static bool sd3_probe(const struct tensor_index *index) {
    return index_find(index, "joint_blocks.0.context_block.attn.qkv.weight") ||
           (index_find(index, "transformer_blocks.0.norm1_context.linear.weight") &&
            index_find(index, "pos_embed.proj.weight")) ||
           index_find(index, "pos_embed_input.proj.weight");
}

static enum status sd3_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"controlnet_", "a Stable Diffusion 3 ControlNet, not a complete model"},
        {"pos_embed_input.", "a Stable Diffusion 3 ControlNet, not a complete model"},
        {"image_proj.", "a Stable Diffusion 3 IP-Adapter, not a complete model"},
        {0},
    };
    return component_refuse_similar(c, relatives, "Stable Diffusion 3, 3.5 medium or large", e);
}

static enum status sd3_mismatch(const struct component *c, const char *key, double found, int expected,
                                const struct config *config, struct error *e) {
    return error_set(e, META,
                     "'%s' contradicts the transformer's tensors" WHERE "%s" FOUND "%g" EXPECTED "%d", key,
                     config->path ? config->path : c->index.sources[0].path, found, expected);
}

/* Tensors whose presence shows query and key norms (sd3_norm_names) or attn2 (sd3_dual_names). Of one naming
 * scheme, a block has all tensors of a list or none. */
const char *const sd3_norm_names[] = {SD3_BLOCK "attn.norm_q.weight",
                                      SD3_BLOCK "attn.norm_k.weight",
                                      SD3_BLOCK "attn.norm_added_q.weight",
                                      SD3_BLOCK "attn.norm_added_k.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn.ln_q.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn.ln_k.weight",
                                      SD3_CHECKPOINT_BLOCK "context_block.attn.ln_q.weight",
                                      SD3_CHECKPOINT_BLOCK "context_block.attn.ln_k.weight",
                                      NULL};
const char *const sd3_dual_names[] = {SD3_BLOCK "attn2.to_q.weight",
                                      SD3_BLOCK "attn2.to_k.weight",
                                      SD3_BLOCK "attn2.to_v.weight",
                                      SD3_BLOCK "attn2.to_out.0.weight",
                                      SD3_BLOCK "attn2.norm_q.weight",
                                      SD3_BLOCK "attn2.norm_k.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn2.qkv.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn2.proj.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn2.ln_q.weight",
                                      SD3_CHECKPOINT_BLOCK "x_block.attn2.ln_k.weight",
                                      NULL};

/* Finds the blocks with attn2 by their tensors; META if dual_attention_layers disagrees. */
static enum status sd3_read_dual_layers(struct component *c, const struct config *config, struct error *e) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    bool value = config_list_length(config, "dual_attention_layers");
    int n = 0;
    for (int i = 0; i < c->dims[LAYERS] && n < c->dims[DUAL_LAYERS]; i++) {
        if (!component_has_block(c, sd3_dual_names, i)) continue;
        if (value && s->dual_layer[n] != (float)i)
            return sd3_mismatch(c, "dual_attention_layers", (double)s->dual_layer[n], i, config, e);
        s->dual_layer[n++] = (float)i;
    }
    if (n < c->dims[DUAL_LAYERS]) return sd3_mismatch(c, "num_layers", c->dims[LAYERS], n, config, e);
    return OK;
}

/* Reads the side of the position table, whose tensor may have a leading axis of 1. */
enum status sd3_read_positions(struct component *c, struct error *e) {
    enum { TABLE_SIDE_MAX = 1 << 12 };
    int32_t *d = c->dims;
    const char *name = component_first_existing(c, "pos_embed.pos_embed", "pos_embed");
    const struct index_entry *entry = index_find(&c->index, name);
    d[POSITIONS] = component_dim(c, name, entry && entry->rank == 3 ? 3 : 2, entry && entry->rank == 3, e);
    if (e->code != OK) return e->code;
    d[TABLE_SIDE] = (int32_t)lround(sqrt(d[POSITIONS]));
    if (d[TABLE_SIDE] <= TABLE_SIDE_MAX && d[TABLE_SIDE] * d[TABLE_SIDE] == d[POSITIONS]) return OK;
    return error_set(e, SHAPE,
                     "the position table is not square" WHERE "%s" FOUND "%d rows" EXPECTED
                     "a square number of rows, one for each token of the largest image",
                     c->index.sources[0].path, d[POSITIONS]);
}

/* Refuses inpainting models, which also read a mask and the latent of the masked image. */
static enum status sd3_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int32_t latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    if (d[IN] == latent) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported Stable Diffusion 3 variant" WHERE "%s" FOUND
                     "pos_embed.proj with %d input channels, %d output channels" EXPECTED
                     "%d input channels; inpainting models (%d) are not supported",
                     c->index.sources[0].path, d[IN], latent, latent, 2 * latent + 1);
}

static enum status sd3_check_dims(const struct component *c, int n_blocks, struct error *e) {
    const int32_t *d = c->dims;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[PATCH],
                                .layers = d[LAYERS],
                                .n_blocks = n_blocks};
    return mmdit_check_sizes(c, &sizes, e);
}

enum status sd3_read_layers(struct component *c, const struct config *config, int n_blocks, struct error *e) {
    enum { HEAD_PUBLISHED = 64 }; /* head size if neither a norm's shape nor config.json gives it */
    int32_t *d = c->dims;
    int head = HEAD_PUBLISHED, patch = MMDIT_PATCH;
    const char *norm = component_first_existing(c, "transformer_blocks.0.attn.norm_q.weight",
                                                "joint_blocks.0.x_block.attn.ln_q.weight");
    config_int(config, "attention_head_dim", 1, 512, &head, e);
    d[NORMED] = d[NORMED] > 0;
    d[HEAD] = d[NORMED] ? component_dim(c, norm, 1, 0, e) : head;
    d[SIDE] = MMDIT_PATCH;
    if (e->code != OK || sd3_check_dims(c, n_blocks, e) != OK ||
        config_int(config, "patch_size", MMDIT_PATCH, MMDIT_PATCH, &patch, e) != OK)
        return e->code;
    return sd3_read_dual_layers(c, config, e);
}

static enum status sd3_configure(struct component *c, const struct config *config, struct error *e) {
    if (sd3_check_inputs(c, e) != OK || sd3_read_positions(c, e) != OK) return e->code;
    return sd3_read_layers(c, config, 2 * c->dims[LAYERS] + 7, e);
}

void sd3_derive_dims(struct component *c) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    int32_t *d = c->dims;
    if (d[DUAL_LAYERS] > d[LAYERS]) d[DUAL_LAYERS] = d[LAYERS];
    for (int i = 0; i < d[DUAL_LAYERS]; i++) s->dual_layer[i] = (float)i;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[LATENT];
    d[POSITIONS] = d[TABLE_SIDE] * d[TABLE_SIDE];
}

void sd3_derive(struct component *c) {
    struct sd3_settings *s = (struct sd3_settings *)c->settings;
    int32_t *d = c->dims;
    d[SIDE] = MMDIT_PATCH;
    d[TWO_DIM] = 2 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    s->head = d[HEAD];
    s->layers = d[LAYERS];
    s->table_side = d[TABLE_SIDE];
    s->n_dual_layers = d[DUAL_LAYERS];
    c->text_columns = d[TEXT];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
    c->latent_side = s->latent_side;
    c->variant = d[DUAL_LAYERS] ? SD35_MEDIUM : d[NORMED] ? SD35_LARGE : SD3_MEDIUM;
}

const char *const sd3_norm_words[] = {NULL, "rms_norm"};

const struct expectation sd3_expects[] = {{"qk_norm", "rms_norm"}, {0}};

/* Sizes of the published Stable Diffusion 3 medium, 2.0 B parameters. */
static const struct dimension sd3_dimensions[] = {
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads", .checked = true},
    {"sd3_head", 64, 2, 512, .place = HEAD, .key = "attention_head_dim", .checked = true},
    {"layers", 24, 1, SD3_LAYERS_MAX, .place = LAYERS, OF_BLOCKS("transformer_blocks.", "joint_blocks."),
     .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT, OF_TENSOR(2, 1, "context_embedder.weight"),
     .key = "joint_attention_dim", .checked = true},
    {"sd3_pooled", 2048, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "y_embedder.mlp.0.weight"),
     .key = "pooled_projection_dim", .checked = true},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels", .checked = true},
    {"sd3_positions", 192, 1, 4096, .place = TABLE_SIDE, .key = "pos_embed_max_size", .checked = true},
    {"sd3_norms", 0, 0, 1, .place = NORMED, .having = sd3_norm_names, .key = "qk_norm",
     .words = sd3_norm_words, .checked = true},
    {"sd3_seconds", 0, 0, SD3_DUAL_LAYERS_MAX, .place = DUAL_LAYERS, .having = sd3_dual_names},
    {.place = DIM,
     OF_TENSOR(2, 0, "context_embedder.weight"),
     .key = "caption_projection_dim",
     .checked = true},
    {.place = IN,
     OF_TENSOR(4, 1, "pos_embed.proj.weight", "x_embedder.proj.weight"),
     .key = "in_channels",
     .checked = true},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "final_layer.linear.weight")},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "t_embedder.mlp.0.weight")},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "joint_blocks.0.x_block.mlp.fc1.weight")},
};

static const struct setting sd3_settings_rows[] = {
    {{"sample_size"}, offsetof(struct sd3_settings, latent_side), SETTING_INT, 128, 1, 4096}};
static const struct setting_list sd3_lists[] = {{.key = "dual_attention_layers",
                                                 .offset = offsetof(struct sd3_settings, dual_layer),
                                                 .capacity = SD3_DUAL_LAYERS_MAX,
                                                 .count = DUAL_LAYERS,
                                                 .least = 0,
                                                 .most = SD3_LAYERS_MAX,
                                                 .derived = true}};

static const char *const sd3_ignorable[] = {NULL};
static const char *const sd3_architectures[] = {"sd3", NULL};
static const struct state_tensor sd3_state_tensors[] = {
    STATE_TENSOR(sd3_state, tokens), STATE_TENSOR(sd3_state, positions), STATE_TENSOR(sd3_state, text),
    STATE_TENSOR(sd3_state, condition), STATE_TENSOR(sd3_state, modulation)};

const struct family family_sd3 = {
    .name = "sd3",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = sd3_architectures,
              .config_key = "_class_name",
              .config_value = "SD3Transformer2DModel",
              .probe = sd3_probe,
              .refuse = sd3_refuse,
              .ignorable = sd3_ignorable},
    .config = {.dimensions = sd3_dimensions,
               .n_dimensions = COUNT_OF(sd3_dimensions),
               .settings = sd3_settings_rows,
               .n_settings = COUNT_OF(sd3_settings_rows),
               .lists = sd3_lists,
               .n_lists = COUNT_OF(sd3_lists),
               .expects = sd3_expects,
               .configure = sd3_configure,
               .derive_dims = sd3_derive_dims,
               .derive = sd3_derive,
               .rest = "\"patch_size\": 2"},
    .blocks = {.list = sd3_blocks, .dims = sd3_block_dims, .rows = sd3_rows},
    .state = {.bytes = sizeof(struct sd3_state),
              .tensors = sd3_state_tensors,
              .n_tensors = COUNT_OF(sd3_state_tensors),
              .declare = sd3_declare},
    .lanes = {.check = sd3_check_lanes},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4429,
                   .text_rows = 77 + 256,
                   .text_columns = 4096,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
/* Preview colours, fitted by Stability AI (sd3.5, sd3_impls.py at 8565799). */
static const float colours_sd3[][3] = {
    {-0.03225F, 0.00885F, 0.0526F}, {0.0014F, 0.0156F, 0.0325F}, {0.0924F, 0.0381F, 0.018F},
    {0.0472F, 0.018F, 0.04445F}, {0.04485F, 0.0253F, -0.0182F}, {-0.001F, 0.06015F, 0.0142F},
    {0.04275F, 0.0059F, 0.01415F}, {-0.02695F, 0.0329F, 0.05235F}, {-0.00285F, 0.0058F, 0.035F},
    {-0.0206F, 0.01405F, -0.00195F}, {0.0553F, 0.05855F, 0.061F}, {-0.0124F, 0.0341F, -0.02405F},
    {0.04075F, 0.0423F, 0.06035F}, {-0.006F, -0.00275F, -0.04335F}, {-0.03745F, -0.0317F, -0.0228F},
    {-0.0709F, -0.07285F, -0.06295F}};
static const struct latent_colours latent_colours_sd3 = {16, colours_sd3, {0.5F, 0.5F, 0.5F}, 1.5305F};
/* clang-format on */

/* clang-format off */
static const struct hf_source sd3_sources[] = {
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--clip_l", "clip_l.safetensors", 246},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--clip_g", "clip_g.safetensors", 1390},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--t5xxl", "t5xxl_fp16.safetensors", 9790},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--t5xxl", "t5xxl_fp8_e4m3fn_scaled.safetensors", 5160},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060},
    {"stabilityai/stable-diffusion-3.5-large", "--vae", "vae/diffusion_pytorch_model.safetensors", 0},
    {"madebyollin/taesd3", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source sd3_files[] = {
    {"stabilityai/stable-diffusion-3-medium-diffusers", NULL, NULL, 0},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium_incl_clips_t5xxlfp8.safetensors", 10900},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium_incl_clips.safetensors", 5970},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium.safetensors", 4340},
    {0},
};
static const struct hf_source sd35_medium_files[] = {
    {"stabilityai/stable-diffusion-3.5-medium", NULL, NULL, 0},
    {"stabilityai/stable-diffusion-3.5-medium", NULL, "sd3.5_medium.safetensors", 0},
    {"city96/stable-diffusion-3.5-medium-gguf", "--diffusion-model", "sd3.5_medium-Q8_0.gguf", 0},
    {"Comfy-Org/stable-diffusion-3.5-fp8", NULL, "sd3.5_medium_incl_clips_*.safetensors", 11600},
    {0},
};
static const struct hf_source sd35_large_files[] = {
    {"stabilityai/stable-diffusion-3.5-large", NULL, NULL, 0},
    {"stabilityai/stable-diffusion-3.5-large", NULL, "sd3.5_large.safetensors", 16500},
    {"Comfy-Org/stable-diffusion-3.5-fp8", NULL, "sd3.5_large_fp8_scaled.safetensors", 14900},
    {"city96/stable-diffusion-3.5-large-gguf", "--diffusion-model", "sd3.5_large-Q8_0.gguf", 0},
    {0},
};
static const struct hf_source sd35_large_turbo_files[] = {
    {"stabilityai/stable-diffusion-3.5-large-turbo", NULL, NULL, 0},
    {"stabilityai/stable-diffusion-3.5-large-turbo", NULL, "sd3.5_large_turbo.safetensors", 16500},
    {"city96/stable-diffusion-3.5-large-turbo-gguf", "--diffusion-model", "*-Q8_0.gguf", 0},
    {0},
};
/* clang-format on */

/* Stable Diffusion 3 and 3.5: diffusers 0.42, pipelines/stable_diffusion_3. Steps and guidance of 3 medium
 * are the pipeline's; steps and guidance of 3.5 are the authors' program's (sd3.5, sd3_infer.py). All three
 * encoders read the whole prompt: CLIP-L and CLIP-G side by side (77 tokens each, concatenated by feature),
 * then T5's tokens (concatenated along the token axis). */
static const struct published_setting sd3_vae[] = {{"scaling_factor", 1.5305}, {"shift_factor", 0.0609}, {0}};
enum { SD3_T5_TOKENS = 256 };
/* clang-format off */
#define SD35_SIZES_MEDIUM                                                                                    \
    .dimension = {{"sd3_norms", 1}, {"sd3_seconds", 13}, {"sd3_positions", 384}}
#define SD35_SIZES_LARGE   .dimension = {{"heads", 38}, {"layers", 38}, {"sd3_norms", 1}}
#define SD3(...)                                                                                             \
    .slot = {{.family = &family_clip, .flag = "--clip_l", .optional = true,                                  \
              .display_name = "CLIP-L text encoder", .folder = "text_encoder", .prefixes = NAMES(CLIP_L_PREFIXES), \
              .matches = clip_is_l,                                                                          \
              TEXT_CLIP("", 0, "openai/clip-vit-large-patch14", "CLIPTextModelWithProjection",               \
                        "CLIPTokenizer"),                                                                    \
              .text.pad = "<|endoftext|>"},                                                                  \
             {TEXT_CLIP_G(0), .optional = true},                                                             \
             {.family = &family_t5, .flag = "--t5xxl", .optional = true, .folder = "text_encoder_3",         \
              .prefixes = NAMES(T5XXL_PREFIXES),                                                             \
              TEXT_T5("_3", SD3_T5_TOKENS)},                                                                 \
             DENOISER(family_sd3, __VA_ARGS__),                                                              \
             {.family = &family_vae_kl, .flag = "--vae", .folder = "vae", .prefixes = NAMES(VAE_PREFIXES),   \
              .published = sd3_vae},                                                                         \
             {.family = &family_vae_kl_encoder, .folder = "vae", .published = sd3_vae},                      \
             TINY_DECODER(family_taesd, .weights_name = "taesd3")},                                          \
    .selection.pipelines = {"StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline",                   \
                            "StableDiffusion3InpaintPipeline"},                                              \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}},                 \
                            .zero_padded = true},                                                            \
                           {.slot = 1, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}},                 \
                            .concat_columns = true, .zero_padded = true},                                    \
                           {.slot = 2, .what = CONDITION_TOKENS},                                            \
                           {.slot = 0, .what = CONDITION_POOLED, .projected = true,                          \
                            .projected_if_class = true},                                                     \
                           {.slot = 1, .what = CONDITION_POOLED, .projected = true}},                        \
             .n_conditions = 5},                                                                             \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{3, INFINITY}}, .guide = guidance_cfg,                                            \
                  .sampling = {.prediction = &prediction_flow_timestep, .schedule = &schedule_flow,          \
                               .sampler = &sampler_euler, .grid = {.shift_twice = true},                     \
                               .grid_from_class = true},                                                     \
                  .shift_rule = FLOW_SHIFT_FIXED, .flow_shift = 3},                                          \
    .defaults = {.width = 1024, .height = 1024, .strength = 0.6}, .patch = 2, .colours = &latent_colours_sd3
/* clang-format on */

const struct recipe recipe_sd3 = {
    SD3(),
    .name = "sd3",
    .selection.variant = SD3_MEDIUM,
    .defaults.steps = 28,
    .defaults.cfg_scale = 7,
    .published = {.title = "Stable Diffusion 3 medium",
                  .reference = DIFFUSERS,
                  .sources = {sd3_files, sd3_sources}},
};

const struct recipe recipe_sd35_medium = {
    SD3(SD35_SIZES_MEDIUM),
    .name = "sd35_medium",
    .selection.variant = SD35_MEDIUM,
    .defaults.steps = 50,
    .defaults.cfg_scale = 5,
    .published = {.title = "Stable Diffusion 3.5 medium",
                  .reference = DIFFUSERS,
                  .sources = {sd35_medium_files, sd3_sources}},
};

const struct recipe recipe_sd35_large = {
    SD3(SD35_SIZES_LARGE),
    .name = "sd35_large",
    .selection.variant = SD35_LARGE,
    .defaults.steps = 40,
    .defaults.cfg_scale = 4.5,
    .published = {.title = "Stable Diffusion 3.5 large",
                  .reference = DIFFUSERS,
                  .sources = {sd35_large_files, sd3_sources}},
};

const struct recipe recipe_sd35_large_turbo = {
    SD3(SD35_SIZES_LARGE),
    .name = "sd35_large_turbo",
    .selection.name_word = "turbo",
    .selection.variant = SD35_LARGE,
    .defaults.steps = 4,
    .defaults.cfg_scale = 1,
    .published = {.title = "Stable Diffusion 3.5 large turbo",
                  .parts_compared_in = &recipe_sd35_large,
                  .sources = {sd35_large_turbo_files, sd3_sources}},
};
