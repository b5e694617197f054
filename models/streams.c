/* Two streams of tokens: see streams.h. */
#include "models/streams.h"

#include "models/row_chunk.h"

#include <math.h>

static const struct patches stream_patches = {.side = STREAM_PATCH, .order = PATCH_CHANNELS_FIRST};

/* ---- sizes ---- */

enum { STREAM_DIM_MAX = 1 << 16, STREAM_HEAD_MAX = 512 };

/* Is a head made of these axes, which are even? */
static bool stream_axes_fit(const int *axis, int32_t head) {
    return !axis || (axis[0] + axis[1] + axis[2] == head && !(axis[0] % 2 || axis[1] % 2 || axis[2] % 2));
}

enum status stream_check_sizes(const struct component *c, const struct stream_sizes *s, struct error *e) {
    bool odd = s->frequencies % 2 || s->patch % (STREAM_PATCH * STREAM_PATCH);
    if (s->dim <= STREAM_DIM_MAX && s->feed_forward <= 8 * STREAM_DIM_MAX && !(s->dim % s->head) &&
        stream_axes_fit(s->axis, s->head) && !odd && s->head <= STREAM_HEAD_MAX && s->layers >= 1 &&
        s->n_blocks <= FAMILY_BLOCKS_MAX)
        return OK;
    error_set(e, SHAPE, "the transformer's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    if (!s->axis) {
        error_found(e, "width %d, head %d, %d blocks", s->dim, s->head, s->layers);
        return error_expected(e, "a width of whole heads (attention_head_dim in config.json)");
    }
    error_found(e, "width %d, head %d, rope axes %d+%d+%d, %d blocks", s->dim, s->head, s->axis[0],
                s->axis[1], s->axis[2], s->layers);
    return error_expected(
        e, "a width of whole heads, even rope axes that sum to a head (axes_dims_rope in config.json)");
}

/* ---- rows ---- */

int32_t stream_tokens_of(struct tensor latent) {
    return latent.dim[1] * (latent.dim[2] / STREAM_PATCH) * (latent.dim[3] / STREAM_PATCH);
}

int stream_n_references(const struct lane *lane) {
    int n = 0;
    while (n < LANE_REFERENCES_MAX && lane->reference[n].rank) n++;
    return n;
}

struct tensor stream_picture(const struct lane *lane, int i) {
    return i ? lane->reference[i - 1] : lane->latent;
}

int32_t stream_picture_tokens(const struct lane *lane) {
    int32_t rows = 0;
    for (int i = 0; i <= stream_n_references(lane); i++) rows += stream_tokens_of(stream_picture(lane, i));
    return rows;
}

struct tensor stream_text_rows(struct tensor all, const struct lane *lane) {
    return tensor_slice(all, 0, lane->text.dim[0]);
}

struct tensor stream_picture_rows(struct tensor all, const struct lane *lane) {
    return tensor_slice(all, lane->text.dim[0], all.dim[0] - lane->text.dim[0]);
}

struct tensor stream_part(struct tensor row, int i, int32_t length) {
    return tensor_slice(tensor_reshape(row, 1, row.dim + 1), i * length, length);
}

/* ---- products ---- */

void stream_product(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w) {
    op_linear(x, out, in, w->weight, (struct epilogue){.bias = w->bias});
}

void stream_modulate(struct context *x, struct tensor out, struct tensor condition,
                     const struct linear_weights *w) {
    op_linear_few(x, out, condition, w->weight, w->bias, ACTIVATION_SILU);
}

void stream_condition(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                      const struct linear_weights *w2) {
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], w1->weight.dim[0]});
    op_linear_few(x, h, in, w1->weight, w1->bias, ACTIVATION_NONE);
    op_linear_few(x, out, h, w2->weight, w2->bias, ACTIVATION_SILU);
}

void stream_condition_rows(struct context *x, struct tensor rows, const struct stream_conditioning_weights *w,
                           const struct visit_scope *scope, float scale) {
    int32_t n = scope->n_timesteps, frequencies = w->time_in.weight.dim[1];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, frequencies});
    struct tensor one = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i] * scale, TIMESTEP_USUAL);
    stream_condition(x, rows, f, &w->time_in, &w->time_out);
    if (w->guidance_in.weight.rank) {
        struct tensor g = tensor_slice(f, 0, 1);
        op_timestep(x, g, scope->lane->guidance * scale, TIMESTEP_USUAL);
        stream_condition(x, one, g, &w->guidance_in, &w->guidance_out);
        op_add(x, rows, rows, one);
    }
    stream_condition(x, one, scope->lane->pooled, &w->pooled_in, &w->pooled_out);
    op_add(x, rows, rows, one);
}

void stream_patchify(struct context *x, struct tensor patches, const struct lane *lane) {
    int32_t first = 0, columns = STREAM_PATCH * STREAM_PATCH * lane->latent.dim[0];
    for (int i = 0; i <= stream_n_references(lane); i++) {
        struct tensor latent = stream_picture(lane, i);
        int32_t rows = stream_tokens_of(latent);
        op_patchify(x, tensor_slice_columns(tensor_slice(patches, first, rows), 0, columns),
                    latent_planes(latent), stream_patches);
        first += rows;
    }
}

void stream_predict(struct context *x, const struct linear_weights *w, const struct lane *lane,
                    struct tensor tokens, struct tensor modulation, enum patch_order order) {
    int32_t rows = stream_tokens_of(lane->prediction), dim = tokens.dim[1];
    struct patches how = {.side = STREAM_PATCH, .order = order};
    struct affine affine = {.scale = stream_part(modulation, 0, dim),
                            .shift = stream_part(modulation, 1, dim)};
    struct tensor n = context_operand(x, 2, (int32_t[]){rows, dim});
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, w->weight.dim[0]});
    op_layer_norm(x, n, tensor_slice(stream_picture_rows(tokens, lane), 0, rows), affine, stream_norm_eps);
    stream_product(x, patches, n, w);
    op_unpatchify(x, latent_planes(lane->prediction), patches, how, 1);
}

/* ---- attention ---- */

struct attended stream_attended_tensors(struct context *x, const struct tensor *tokens) {
    struct attended a;
    a.n = context_operand(x, 2, tokens->dim);
    a.q = context_operand(x, 2, tokens->dim);
    a.mark = x->scratch->used;
    a.k = context_operand(x, 2, tokens->dim);
    a.v = context_operand(x, 2, tokens->dim);
    return a;
}

void stream_project_heads(struct context *x, struct tensor out, struct tensor n,
                          const struct linear_weights *w, struct tensor norm, struct tensor rope) {
    uint64_t mark = x->scratch->used;
    struct tensor heads = norm.rank || rope.rank ? context_unrounded(x, out) : out;
    stream_product(x, heads, n, w);
    if (rope.rank)
        op_rope(
            x, out, heads, rope,
            (struct rotation){.heads = out.dim[1] / (2 * rope.dim[1]), .norm = norm, .eps = stream_norm_eps});
    else if (norm.rank)
        op_rms_norm(x, out, heads, norm, stream_norm_eps, (struct modulation){0});
    x->scratch->used = mark;
}

void stream_attend(struct context *x, const struct attended *a, int32_t first, int32_t rows, int32_t head) {
    int heads = a->q.dim[1] / head;
    struct tensor q = tensor_slice(a->q, first, rows);
    op_attention(x, q, q, a->k, a->v,
                 (struct heads){.queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head)});
    x->scratch->used = a->mark;
}

/* ---- a block of two streams ---- */

/* part: of a modulation, the norm's shift; its scale is the next. */
static struct affine stream_affine(struct tensor modulation, int part, int32_t dim) {
    return (struct affine){.shift = stream_part(modulation, part, dim),
                           .scale = stream_part(modulation, part + 1, dim)};
}

/* The stream's rows into those of n, normed and modulated. */
static void stream_norm(struct context *x, const struct stream *s, struct tensor n, struct tensor tokens,
                        int part) {
    int32_t first = s->first, dim = tokens.dim[1];
    for (int i = 0; i < STREAM_RANGES && s->range[i].rows; first += s->range[i++].rows)
        op_layer_norm(x, tensor_slice(n, first, s->range[i].rows),
                      tensor_slice(tokens, first, s->range[i].rows),
                      stream_affine(s->range[i].modulation, part, dim), stream_norm_eps);
}

/* Queries, keys and values of the stream's normed rows. */
static void stream_project(struct context *x, const struct stream *s,
                           const struct stream_attention_weights *w, struct tensor rope,
                           const struct attended *a) {
    struct tensor n = tensor_slice(a->n, s->first, s->rows), turns = {0}, kept = {0};
    if (rope.rank) turns = tensor_slice(rope, s->first, s->rows);
    if (rope.rank && s->kept) kept = tensor_slice(turns, 0, s->kept);
    if (s->kept)
        stream_project_heads(x, tensor_slice(a->q, s->first, s->kept), tensor_slice(n, 0, s->kept), &w->q,
                             w->q_norm, kept);
    stream_project_heads(x, tensor_slice(a->k, s->first, s->rows), n, &w->k, w->k_norm, turns);
    stream_product(x, tensor_slice(a->v, s->first, s->rows), n, &w->v);
}

/* Rows of a range that are kept; the ranges before it have done so many. */
static int32_t stream_kept_of(const struct stream *s, int range, int32_t done) {
    int32_t left = s->kept - done;
    return left < s->range[range].rows ? left : s->range[range].rows;
}

/* gate: its place in a modulation. */
static void stream_out(struct context *x, const struct stream *s, const struct linear_weights *w,
                       struct tensor tokens, struct tensor attended, int gate) {
    for (int32_t i = 0, done = 0, rows; done < s->kept; i++, done += rows) {
        rows = stream_kept_of(s, i, done);
        struct tensor t = tensor_slice(tokens, s->first + done, rows);
        op_linear(x, t, tensor_slice(attended, s->first + done, rows), w->weight,
                  (struct epilogue){.bias = w->bias,
                                    .gate = stream_part(s->range[i].modulation, gate, tokens.dim[1]),
                                    .residual = t});
    }
}

/* The second attention, whose norm of the rows is in a->n already. */
static void stream_see_itself(struct context *x, const struct stream *s, struct tensor tokens, int32_t head,
                              struct attended *a) {
    enum { GATE = 8 };
    int32_t row[] = {s->rows, tokens.dim[1]};
    struct stream alone = {.w = s->w, .rows = s->rows, .kept = s->kept};
    struct attended own = {.n = tensor_slice(a->n, s->first, s->rows),
                           .q = tensor_slice(a->q, s->first, s->rows),
                           .mark = x->scratch->used};
    own.k = context_operand(x, 2, row);
    own.v = context_operand(x, 2, row);
    stream_project(x, &alone, &s->w->second, (struct tensor){0}, &own);
    stream_attend(x, &own, 0, s->kept, head);
    stream_out(x, s, &s->w->second.out, tokens, a->q, GATE);
}

static void stream_feed_forward_range(struct context *x, const struct stream_weights *w, struct tensor tokens,
                                      struct tensor modulation) {
    int32_t dim = tokens.dim[1], chunk = row_chunk(x, tokens.dim[0]);
    uint64_t before = x->scratch->used;
    struct tensor n = context_operand(x, 2, (int32_t[]){chunk, dim});
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, w->up.weight.dim[0]});
    for (int32_t first = 0; first < tokens.dim[0]; first += chunk) {
        int32_t rows = tokens.dim[0] - first < chunk ? tokens.dim[0] - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows);
        struct tensor h = tensor_slice(n, 0, rows), up = tensor_slice(wide, 0, rows);
        op_layer_norm(x, h, t, stream_affine(modulation, 3, dim), stream_norm_eps);
        op_linear(x, up, h, w->up.weight,
                  (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
        op_linear(
            x, t, up, w->down.weight,
            (struct epilogue){.bias = w->down.bias, .gate = stream_part(modulation, 5, dim), .residual = t});
    }
    x->scratch->used = before;
}

static void stream_feed_forward(struct context *x, const struct stream *s, struct tensor tokens) {
    for (int32_t i = 0, done = 0, rows; done < s->kept; i++, done += rows) {
        rows = stream_kept_of(s, i, done);
        stream_feed_forward_range(x, s->w, tensor_slice(tokens, s->first + done, rows),
                                  s->range[i].modulation);
    }
}

void streams_forward(struct context *x, const struct stream *picture, const struct stream *text,
                     struct tensor tokens, struct stream_heads heads) {
    enum { NORM, GATE = 2, SECOND_NORM = 6 };
    int32_t first = text->kept ? text->first : picture->first;
    bool second = picture->w->second.q.weight.rank;
    uint64_t before = x->scratch->used;
    struct attended a = stream_attended_tensors(x, &tokens);
    stream_norm(x, picture, a.n, tokens, NORM);
    stream_project(x, picture, &picture->w->attention, heads.rope, &a);
    stream_norm(x, text, a.n, tokens, NORM);
    stream_project(x, text, &text->w->attention, heads.rope, &a);
    stream_attend(x, &a, first, picture->first + picture->kept - first, heads.size);
    if (second) stream_norm(x, picture, a.n, tokens, SECOND_NORM); /* of rows from before the first one */
    stream_out(x, picture, &picture->w->attention.out, tokens, a.q, GATE);
    stream_out(x, text, &text->w->attention.out, tokens, a.q, GATE);
    if (second) stream_see_itself(x, picture, tokens, heads.size, &a);
    x->scratch->used = before;
    stream_feed_forward(x, picture, tokens);
    stream_feed_forward(x, text, tokens);
}
