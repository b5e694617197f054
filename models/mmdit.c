#include "models/mmdit.h"

#include "models/row_chunk.h"

#include <math.h>
#include <stdio.h>

enum { MMDIT_DIM_MAX = 1 << 16, MMDIT_HEAD_MAX = 512 };

enum status mmdit_check_sizes(const struct component *c, const struct mmdit_sizes *s, struct error *e) {
    int sum = 0; /* of the sizes of the rope axes */
    bool odd = s->frequencies % 2 || s->patch % (MMDIT_PATCH * MMDIT_PATCH);
    for (int i = 0; i < s->n_axes; i++) {
        odd |= s->axis[i] % 2;
        sum += s->axis[i];
    }
    if (s->dim <= MMDIT_DIM_MAX && s->feed_forward <= 8 * MMDIT_DIM_MAX && !(s->dim % s->head) && !odd &&
        (!s->n_axes || sum == s->head) && s->head <= MMDIT_HEAD_MAX && s->layers >= 1 &&
        s->n_blocks <= FAMILY_BLOCKS_MAX)
        return OK;
    error_set(e, SHAPE, "inconsistent transformer sizes" WHERE "%s", c->index.sources[0].path);
    if (!s->n_axes) {
        error_found(e, "width %d, head %d, %d blocks", s->dim, s->head, s->layers);
        return error_expected(e, "a width that is a multiple of attention_head_dim (config.json)");
    }
    char axes[64];
    size_t n = 0;
    for (int i = 0; i < s->n_axes && n < sizeof axes; i++)
        n += (size_t)snprintf(axes + n, sizeof axes - n, "%s%d", i ? "+" : "", s->axis[i]);
    error_found(e, "width %d, head %d, rope axes %s, %d blocks", s->dim, s->head, axes, s->layers);
    return error_expected(e, "a width that is a multiple of the head size, and even rope axes "
                             "(axes_dims_rope in config.json) that sum "
                             "to the head size");
}

int32_t mmdit_token_count(struct tensor latent, int patch) {
    return latent.dim[1] * (latent.dim[2] / patch) * (latent.dim[3] / patch);
}

int mmdit_n_references(const struct lane *lane) {
    int n = 0;
    while (n < LANE_REFERENCES_MAX && lane->reference[n].rank) n++;
    return n;
}

struct tensor mmdit_latent(const struct lane *lane, int i) {
    return i ? lane->reference[i - 1] : lane->latent;
}

int32_t mmdit_image_token_count(const struct lane *lane, int patch) {
    int32_t rows = 0;
    for (int i = 0; i <= mmdit_n_references(lane); i++)
        rows += mmdit_token_count(mmdit_latent(lane, i), patch);
    return rows;
}

struct tensor mmdit_text_rows(struct tensor all, const struct lane *lane) {
    return tensor_slice(all, 0, lane->text.dim[0]);
}

struct tensor mmdit_image_rows(struct tensor all, const struct lane *lane) {
    return tensor_slice(all, lane->text.dim[0], all.dim[0] - lane->text.dim[0]);
}

struct tensor mmdit_chunk(struct tensor row, int i, int32_t length) {
    return tensor_slice(tensor_reshape(row, 1, row.dim + 1), i * length, length);
}

void mmdit_linear(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w) {
    op_linear(x, out, in, w->weight, (struct epilogue){.bias = w->bias});
}

void mmdit_modulation(struct context *x, struct tensor out, struct tensor condition,
                      const struct linear_weights *w) {
    op_linear_few(x, out, condition, w->weight, w->bias, ACTIVATION_SILU);
}

void mmdit_embed(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                 const struct linear_weights *w2) {
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], w1->weight.dim[0]});
    op_linear_few(x, h, in, w1->weight, w1->bias, ACTIVATION_NONE);
    op_linear_few(x, out, h, w2->weight, w2->bias, ACTIVATION_SILU);
}

void mmdit_time_text_embed(struct context *x, struct tensor rows,
                           const struct mmdit_time_text_embed_weights *w, const struct visit_scope *scope,
                           float scale) {
    int32_t n = scope->n_timesteps, frequencies = w->time_in.weight.dim[1];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, frequencies});
    struct tensor one = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i] * scale, TIMESTEP_USUAL);
    mmdit_embed(x, rows, f, &w->time_in, &w->time_out);
    if (w->guidance_in.weight.rank) {
        struct tensor g = tensor_slice(f, 0, 1);
        op_timestep(x, g, scope->lane->guidance * scale, TIMESTEP_USUAL);
        mmdit_embed(x, one, g, &w->guidance_in, &w->guidance_out);
        op_add(x, rows, rows, one);
    }
    if (!w->pooled_in.weight.rank) return;
    mmdit_embed(x, one, scope->lane->pooled, &w->pooled_in, &w->pooled_out);
    op_add(x, rows, rows, one);
}

void mmdit_patchify(struct context *x, struct tensor patches, const struct lane *lane, int patch) {
    int32_t first = 0, columns = patch * patch * lane->latent.dim[0];
    for (int i = 0; i <= mmdit_n_references(lane); i++) {
        struct tensor latent = mmdit_latent(lane, i);
        int32_t rows = mmdit_token_count(latent, patch);
        op_patchify(x, tensor_slice_columns(tensor_slice(patches, first, rows), 0, columns),
                    latent_planes(latent), (struct patches){.side = patch, .order = PATCH_CHANNELS_FIRST});
        first += rows;
    }
}

void mmdit_proj_out(struct context *x, const struct linear_weights *w, const struct lane *lane,
                    struct tensor tokens, struct tensor modulation, struct patches patches) {
    int32_t rows = mmdit_token_count(lane->prediction, patches.side), dim = tokens.dim[1];
    struct affine affine = {.scale = mmdit_chunk(modulation, 0, dim),
                            .shift = mmdit_chunk(modulation, 1, dim)};
    struct tensor n = context_operand(x, 2, (int32_t[]){rows, dim});
    struct tensor values = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, w->weight.dim[0]});
    op_layer_norm(x, n, tensor_slice(mmdit_image_rows(tokens, lane), 0, rows), affine, mmdit_norm_eps);
    mmdit_linear(x, values, n, w);
    op_unpatchify(x, latent_planes(lane->prediction), values, patches, 1);
}

struct mmdit_qkv mmdit_qkv_alloc(struct context *x, const struct tensor *tokens) {
    struct mmdit_qkv a;
    a.n = context_operand(x, 2, tokens->dim);
    a.q = context_operand(x, 2, tokens->dim);
    a.mark = x->scratch->used;
    a.k = context_operand(x, 2, tokens->dim);
    a.v = context_operand(x, 2, tokens->dim);
    return a;
}

void mmdit_project_heads(struct context *x, struct tensor out, struct tensor n,
                         const struct linear_weights *w, struct tensor norm, struct tensor rope) {
    uint64_t mark = x->scratch->used;
    struct tensor heads = norm.rank || rope.rank ? context_unrounded(x, out) : out;
    mmdit_linear(x, heads, n, w);
    if (rope.rank)
        op_rope(
            x, out, heads, rope,
            (struct rotation){.heads = out.dim[1] / (2 * rope.dim[1]), .norm = norm, .eps = mmdit_norm_eps});
    else if (norm.rank)
        op_rms_norm(x, out, heads, norm, mmdit_norm_eps, (struct modulation){0});
    x->scratch->used = mark;
}

void mmdit_attention(struct context *x, const struct mmdit_qkv *a, int32_t first, int32_t rows,
                     int32_t head) {
    int heads = a->q.dim[1] / head;
    struct tensor q = tensor_slice(a->q, first, rows);
    op_attention(
        x, q, q, a->k, a->v,
        (struct attention_options){.queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head)});
    x->scratch->used = a->mark;
}

/* Scale and shift of a norm, from two adjacent parts of a modulation row. part: index of the shift; the scale
 * follows. */
static struct affine mmdit_shift_scale(struct tensor modulation, int part, int32_t dim) {
    return (struct affine){.shift = mmdit_chunk(modulation, part, dim),
                           .scale = mmdit_chunk(modulation, part + 1, dim)};
}

/* Layer-norms and modulates the token rows of one stream (text or image) into tensor n. */
static void mmdit_norm(struct context *x, const struct mmdit_stream *s, struct tensor n, struct tensor tokens,
                       int part) {
    int32_t first = s->first, dim = tokens.dim[1];
    for (int i = 0; i < MMDIT_RANGES && s->range[i].rows; first += s->range[i++].rows)
        op_layer_norm(x, tensor_slice(n, first, s->range[i].rows),
                      tensor_slice(tokens, first, s->range[i].rows),
                      mmdit_shift_scale(s->range[i].modulation, part, dim), mmdit_norm_eps);
}

/* Computes one stream's attention inputs: queries of the rows that the block updates, keys and values of all
 * rows. */
static void mmdit_project_qkv(struct context *x, const struct mmdit_stream *s,
                              const struct mmdit_attention_weights *w, struct tensor rope,
                              const struct mmdit_qkv *a) {
    struct tensor n = tensor_slice(a->n, s->first, s->rows), rope_rows = {0}, query_rope = {0};
    if (rope.rank) rope_rows = tensor_slice(rope, s->first, s->rows);
    if (rope.rank && s->n_updated) query_rope = tensor_slice(rope_rows, 0, s->n_updated);
    if (s->n_updated)
        mmdit_project_heads(x, tensor_slice(a->q, s->first, s->n_updated), tensor_slice(n, 0, s->n_updated),
                            &w->q, w->q_norm, query_rope);
    mmdit_project_heads(x, tensor_slice(a->k, s->first, s->rows), n, &w->k, w->k_norm, rope_rows);
    mmdit_linear(x, tensor_slice(a->v, s->first, s->rows), n, &w->v);
}

/* Number of rows that a block updates in row range `range`. done: updated rows in earlier ranges. */
static int32_t mmdit_updated_rows(const struct mmdit_stream *s, int range, int32_t done) {
    int32_t left = s->n_updated - done;
    return left < s->range[range].rows ? left : s->range[range].rows;
}

/* Adds attention output to the updated token rows: tokens += gate * linear(attended). gate: index of the gate
 * in the modulation row. */
static void mmdit_attention_out(struct context *x, const struct mmdit_stream *s,
                                const struct linear_weights *w, struct tensor tokens, struct tensor attended,
                                int gate) {
    for (int32_t i = 0, done = 0, rows; done < s->n_updated; i++, done += rows) {
        rows = mmdit_updated_rows(s, i, done);
        struct tensor t = tensor_slice(tokens, s->first + done, rows);
        op_linear(x, t, tensor_slice(attended, s->first + done, rows), w->weight,
                  (struct epilogue){.bias = w->bias,
                                    .gate = mmdit_chunk(s->range[i].modulation, gate, tokens.dim[1]),
                                    .residual = t});
    }
}

/* Self-attention of one stream (diffusers: attn2). a->n: the stream's normed tokens. */
static void mmdit_attention2(struct context *x, const struct mmdit_stream *s, struct tensor tokens,
                             int32_t head, struct mmdit_qkv *a) {
    enum { GATE = 8 };
    int32_t row[] = {s->rows, tokens.dim[1]};
    struct mmdit_stream alone = {.w = s->w, .rows = s->rows, .n_updated = s->n_updated};
    struct mmdit_qkv qkv = {.n = tensor_slice(a->n, s->first, s->rows),
                            .q = tensor_slice(a->q, s->first, s->rows),
                            .mark = x->scratch->used};
    qkv.k = context_operand(x, 2, row);
    qkv.v = context_operand(x, 2, row);
    mmdit_project_qkv(x, &alone, &s->w->attention2, (struct tensor){0}, &qkv);
    mmdit_attention(x, &qkv, 0, s->n_updated, head);
    mmdit_attention_out(x, s, &s->w->attention2.out, tokens, a->q, GATE);
}

void mmdit_activations(struct context *x, struct tensor out, struct tensor n,
                       const struct linear_weights *gate, const struct linear_weights *up) {
    if (!gate->weight.rank) {
        op_linear(x, out, n, up->weight,
                  (struct epilogue){.bias = up->bias, .activation = ACTIVATION_GELU_TANH});
        return;
    }
    uint64_t before = x->scratch->used;
    struct tensor gates = context_unrounded(x, out);
    struct tensor ups = context_tensor(x, DTYPE_F32, 2, out.dim);
    mmdit_linear(x, gates, n, gate);
    mmdit_linear(x, ups, n, up);
    op_glu(x, out, gates, ups, ACTIVATION_SILU);
    x->scratch->used = before;
}

static void mmdit_feed_forward_range(struct context *x, const struct mmdit_stream_weights *w,
                                     struct tensor tokens, struct tensor modulation) {
    int32_t dim = tokens.dim[1], chunk = row_chunk(x, tokens.dim[0]);
    uint64_t before = x->scratch->used;
    struct tensor n = context_operand(x, 2, (int32_t[]){chunk, dim});
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, w->up.weight.dim[0]});
    for (int32_t first = 0; first < tokens.dim[0]; first += chunk) {
        int32_t rows = tokens.dim[0] - first < chunk ? tokens.dim[0] - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows);
        struct tensor h = tensor_slice(n, 0, rows), up = tensor_slice(wide, 0, rows);
        op_layer_norm(x, h, t, mmdit_shift_scale(modulation, 3, dim), mmdit_norm_eps);
        mmdit_activations(x, up, h, &w->gate, &w->up);
        op_linear(
            x, t, up, w->down.weight,
            (struct epilogue){.bias = w->down.bias, .gate = mmdit_chunk(modulation, 5, dim), .residual = t});
    }
    x->scratch->used = before;
}

static void mmdit_feed_forward(struct context *x, const struct mmdit_stream *s, struct tensor tokens) {
    for (int32_t i = 0, done = 0, rows; done < s->n_updated; i++, done += rows) {
        rows = mmdit_updated_rows(s, i, done);
        mmdit_feed_forward_range(x, s->w, tensor_slice(tokens, s->first + done, rows),
                                 s->range[i].modulation);
    }
}

void mmdit_joint_block(struct context *x, const struct mmdit_stream *image, const struct mmdit_stream *text,
                       struct tensor tokens, struct mmdit_heads heads) {
    enum { NORM, GATE = 2, SECOND_NORM = 6 };
    int32_t first = text->n_updated ? text->first : image->first;
    bool attention2 = image->w->attention2.q.weight.rank;
    uint64_t before = x->scratch->used;
    struct mmdit_qkv a = mmdit_qkv_alloc(x, &tokens);
    mmdit_norm(x, image, a.n, tokens, NORM);
    mmdit_project_qkv(x, image, &image->w->attention, heads.rope, &a);
    mmdit_norm(x, text, a.n, tokens, NORM);
    mmdit_project_qkv(x, text, &text->w->attention, heads.rope, &a);
    mmdit_attention(x, &a, first, image->first + image->n_updated - first, heads.size);
    if (attention2)
        mmdit_norm(x, image, a.n, tokens, SECOND_NORM); /* attn2's input is normed from the tokens before the
                                                           joint attention changes them */
    mmdit_attention_out(x, image, &image->w->attention.out, tokens, a.q, GATE);
    mmdit_attention_out(x, text, &text->w->attention.out, tokens, a.q, GATE);
    if (attention2) mmdit_attention2(x, image, tokens, heads.size, &a);
    x->scratch->used = before;
    mmdit_feed_forward(x, image, tokens);
    mmdit_feed_forward(x, text, tokens);
}

void mmdit_stream_block(struct context *x, const struct mmdit_stream *s, struct tensor tokens,
                        struct mmdit_heads heads) {
    enum { NORM, GATE = 2 };
    uint64_t before = x->scratch->used;
    struct mmdit_qkv a = mmdit_qkv_alloc(x, &tokens);
    mmdit_norm(x, s, a.n, tokens, NORM);
    mmdit_project_qkv(x, s, &s->w->attention, heads.rope, &a);
    mmdit_attention(x, &a, s->first, s->n_updated, heads.size);
    mmdit_attention_out(x, s, &s->w->attention.out, tokens, a.q, GATE);
    x->scratch->used = before;
    mmdit_feed_forward(x, s, tokens);
}

void mmdit_double_block(struct context *x, const struct mmdit_double *block, struct tensor tokens) {
    int32_t text = block->text_rows, images = tokens.dim[0] - text;
    struct mmdit_stream of_image = {.w = &block->w->image,
                                    .first = text,
                                    .rows = images,
                                    .n_updated = images,
                                    .range = {{images, block->image_modulation}}};
    struct mmdit_stream of_text = {
        .w = &block->w->text, .rows = text, .n_updated = text, .range = {{text, block->text_modulation}}};
    mmdit_joint_block(x, &of_image, &of_text, tokens,
                      (struct mmdit_heads){.size = 2 * block->rope.dim[1], .rope = block->rope});
}

void mmdit_single_block(struct context *x, const struct mmdit_single_weights *w, struct tensor tokens,
                        struct tensor modulation, struct tensor rope) {
    int32_t T = tokens.dim[0], dim = tokens.dim[1], chunk = row_chunk(x, T), in = w->out.weight.dim[1];
    struct mmdit_qkv a = mmdit_qkv_alloc(x, &tokens);
    op_layer_norm(x, a.n, tokens, mmdit_shift_scale(modulation, 0, dim), mmdit_norm_eps);
    mmdit_project_heads(x, a.q, a.n, &w->q, w->q_norm, rope);
    mmdit_project_heads(x, a.k, a.n, &w->k, w->k_norm, rope);
    mmdit_linear(x, a.v, a.n, &w->v);
    mmdit_attention(x, &a, 0, T, 2 * rope.dim[1]);
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, in});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), both = tensor_slice(wide, 0, rows);
        op_copy(x, tensor_slice_columns(both, 0, dim), tensor_slice(a.q, first, rows));
        mmdit_activations(x, tensor_slice_columns(both, dim, in - dim), tensor_slice(a.n, first, rows),
                          &w->gate, &w->up);
        op_linear(
            x, t, both, w->out.weight,
            (struct epilogue){.bias = w->out.bias, .gate = mmdit_chunk(modulation, 2, dim), .residual = t});
    }
}
