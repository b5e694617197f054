/* Blocks of autoencoders of videos: see vae_film.h. */
#include "models/vae_film.h"

static const struct conv_options film_plain = {.upsample = 1};

/* ---- frames ---- */

static struct tensor film_frame(struct tensor frames, int32_t i) {
    return tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
}

static struct tensor film_pixels(struct tensor frame) {
    return tensor_reshape(frame, 2, (int32_t[]){frame.dim[0] * frame.dim[1], frame.dim[2]});
}

/* The number in the video, at this resolution, of the first of a chunk's n frames: the first chunk has one,
 * later ones as many each. */
static int32_t film_first_frame(const struct visit_scope *scope, int32_t n) {
    return scope->chunk ? 1 + (scope->chunk - 1) * n : 0;
}

/* Frames at the other end than those before; they become the film's. */
static struct tensor film_put(struct film *film, int32_t n, int32_t Y, int32_t X, int32_t C) {
    struct tensor frames = tensor_make(film->memory.data, DTYPE_F32, 4, (int32_t[]){n, Y, X, C});
    int64_t rows = film_rows(tensor_elements(&frames));
    film->at_back = !film->at_back;
    if (frames.data && film->at_back)
        frames.data = (char *)frames.data + (film->memory.dim[0] - rows) * film->memory.row_bytes;
    return film->frames = frames;
}

static struct tensor film_scratch(struct context *x, int32_t Y, int32_t X, int32_t C) {
    return context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
}

/* ---- convolutions over time ---- */

/* What a convolution over time reads of a frame, and where that is kept for the two after it. */
struct film_operand {
    struct tensor frame;
    struct tensor norm; /* weight of the norm before it, behind which it is activated; rank 0: none */
    struct tensor kept; /* rank 0: nowhere */
    int32_t t;          /* the frame's number, from where the convolution begins */
};

/* Adds a frame's part; the first has the bias. */
static void film_add(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                     struct epilogue *sum) {
    op_conv2d(x, out, in, weight, *sum, film_plain);
    *sum = (struct epilogue){.residual = out};
}

/* The operand, in the place of the one of two frames before. */
static struct tensor film_keep(struct context *x, const struct film_operand *o) {
    struct tensor to = o->kept, in = o->frame;
    if (to.rank)
        to = film_frame(to, o->t % 2);
    else if (o->norm.rank)
        to = film_scratch(x, in.dim[0], in.dim[1], in.dim[2]);
    else
        return in;
    if (o->norm.rank)
        op_rms_norm(x, film_pixels(to), film_pixels(in), o->norm, vae_pixel_eps(o->norm),
                    (struct modulation){.activation = ACTIVATION_SILU});
    else
        op_copy(x, film_pixels(to), film_pixels(in));
    return to;
}

/* sum: as out, where parts are added up; may be out. residual: rank 0, or as out; may be out or sum. */
static void film_convolve(struct context *x, struct tensor out, struct tensor sum, struct tensor residual,
                          const struct film_operand *o, const struct film_conv *w) {
    struct epilogue parts = {.bias = w->bias, .residual = residual};
    if (o->t >= 2) film_add(x, sum, film_frame(o->kept, o->t % 2), w->weight[0], &parts);
    struct tensor in = film_keep(x, o);
    if (o->t >= 1) film_add(x, sum, film_frame(o->kept, (o->t - 1) % 2), w->weight[1], &parts);
    op_conv2d(x, out, in, w->weight[2], parts, film_plain);
}

/* ---- what is kept, while a visit computes ---- */

/* Frames [first, end) of it, those that there are. */
static void film_copy_kept(struct context *x, struct tensor to, struct tensor from, int32_t first,
                           int32_t end) {
    for (int32_t t = first < 0 ? 0 : first; t < end; t++)
        op_copy(x, film_pixels(film_frame(to, t % 2)), film_pixels(film_frame(from, t % 2)));
}

/* Where convolution number i of a visit, whose first frame is `first`, computes with what is kept. */
static struct tensor film_take(struct context *x, const struct film_state *state, int i, struct tensor kept,
                               int32_t first) {
    struct tensor near = state->near[i];
    if (!kept.rank || !near.rank) return kept;
    near = tensor_make(near.data, DTYPE_F32, 4, kept.dim);
    film_copy_kept(x, near, kept, first - 2, first);
    return near;
}

/* Back behind n frames. */
static void film_give_back(struct context *x, const struct film_state *state, int i, struct tensor kept,
                           struct tensor near, int32_t first, int32_t n) {
    int32_t end = first + n;
    if (kept.rank && state->near[i].rank) film_copy_kept(x, kept, near, n < 2 ? first : end - 2, end);
}

/* ---- what a level began with ---- */

/* Before its first resnet. The middle of an encoder begins with what its last level adds up to. */
static void film_begin_level(struct context *x, const struct film_state *state, int level) {
    struct tensor frames = state->film.frames, kept = state->level[level];
    if (!kept.rank) return;
    for (int32_t k = 0; k < frames.dim[0]; k++) {
        struct tensor frame = film_frame(frames, k), of_level = film_frame(kept, k);
        if (level == FILM_MIDDLE)
            op_mean_down(x, frame, of_level, (struct tensor){0}, frame, (struct shortcut){1, 1, 0});
        else
            op_copy(x, film_pixels(of_level), film_pixels(frame));
    }
}

/* ---- on frames of one size ---- */

/* One frame; kept: of both convolutions. */
static void film_add_resnet(struct context *x, const struct film_resnet_weights *w, struct tensor out,
                            struct tensor in, struct tensor h, struct tensor sum, const struct tensor kept[2],
                            int32_t t) {
    struct tensor residual = in;
    uint64_t used = x->scratch->used;
    film_convolve(x, h, h, (struct tensor){0}, &(struct film_operand){in, w->norm1, kept[0], t}, &w->conv1);
    x->scratch->used = used;
    if (w->shortcut.rank) {
        residual = sum;
        op_conv2d(x, sum, in, w->shortcut, (struct epilogue){.bias = w->shortcut_bias}, film_plain);
    }
    film_convolve(x, out, sum, residual, &(struct film_operand){h, w->norm2, kept[1], t}, &w->conv2);
    x->scratch->used = used;
}

void film_forward_resnet(struct context *x, const struct film_resnet_weights *w,
                         const struct visit_scope *scope, int level, int i) {
    struct film_state *state = scope->lane->state;
    const struct tensor *kept = state->resnet[level][i];
    struct tensor in = state->film.frames, out = in, near[2];
    int32_t n = in.dim[0], Y = in.dim[1], X = in.dim[2], C = w->conv1.bias.dim[0];
    int32_t first = film_first_frame(scope, n);
    struct tensor h = film_scratch(x, Y, X, C), sum = film_scratch(x, Y, X, C);
    if (!i) film_begin_level(x, state, level);
    if (w->shortcut.rank) out = film_put(&state->film, n, Y, X, C);
    for (int k = 0; k < 2; k++) near[k] = film_take(x, state, k, kept[k], first);
    for (int32_t k = 0; k < n; k++)
        film_add_resnet(x, w, film_frame(out, k), film_frame(in, k), h, sum, near, first + k);
    for (int k = 0; k < 2; k++) film_give_back(x, state, k, kept[k], near[k], first, n);
}

void film_forward_attention(struct context *x, const struct attention_weights *w,
                            const struct visit_scope *scope) {
    const struct film_state *state = scope->lane->state;
    struct tensor frames = state->film.frames;
    const int32_t *dim = frames.dim;
    struct tensor normed = film_scratch(x, dim[1], dim[2], dim[3]),
                  q = film_scratch(x, dim[1], dim[2], dim[3]);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < dim[0]; k++, x->scratch->used = used)
        vae_attend(x, w, scope->settings, film_frame(frames, k), normed, q);
}

/* ---- at a decoder's ends ---- */

/* Frame f of the latent, [Y, X, C], of the autoencoder's scale. */
static struct tensor film_latent(struct context *x, struct tensor latent, int32_t f,
                                 const struct latent_format *format) {
    int32_t C = latent.dim[0], Y = latent.dim[2], X = latent.dim[3], n = Y * X;
    struct tensor planes = tensor_reshape(latent, 2, (int32_t[]){C, latent.dim[1] * n});
    struct tensor frame = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X});
    struct tensor image = film_scratch(x, Y, X, C);
    op_copy(x, tensor_reshape(frame, 2, (int32_t[]){C, n}), tensor_slice_columns(planes, f * n, n));
    op_latent_to_image(x, image, frame, *format);
    return image;
}

/* The latent is small, and all of it is there: nothing is kept of it. */
void film_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope,
                            const struct latent_format *format) {
    const struct film_latent_in_weights *w = weights;
    struct film_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int32_t last = scope->chunk, first = last < 2 ? 0 : last - 2;
    state->film.at_back = !state->first_at_back;
    struct tensor out =
        film_frame(film_put(&state->film, 1, latent.dim[2], latent.dim[3], w->conv.bias.dim[0]), 0);
    struct tensor mixed = film_scratch(x, latent.dim[2], latent.dim[3], latent.dim[0]);
    struct epilogue parts = {.bias = w->conv.bias};
    uint64_t used = x->scratch->used;
    for (int32_t f = first; f <= last; f++, x->scratch->used = used) {
        op_conv2d(x, mixed, film_latent(x, latent, f, format), w->post,
                  (struct epilogue){.bias = w->post_bias}, film_plain);
        film_add(x, out, mixed, w->conv.weight[f + FILM_SLICES - 1 - last], &parts);
    }
}

/* A pixel may have been made of several, whose colours are channels side by side. */
static const struct patches film_patches = {.side = FILM_PATCH, .order = PATCH_COLUMNS_FIRST, .pixels = true};

void film_forward_colours(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct film_out_weights *w = weights;
    const struct film_state *state = scope->lane->state;
    struct tensor in = state->film.frames, pictures = scope->lane->picture;
    int32_t n = in.dim[0], C = w->conv.bias.dim[0];
    struct tensor sum = film_scratch(x, in.dim[1], in.dim[2], C);
    int32_t first = film_first_frame(scope, n);
    struct tensor near = film_take(x, state, 0, state->out, first);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < n; k++, x->scratch->used = used) {
        struct film_operand o = {film_frame(in, k), w->norm, near, first + k};
        struct tensor picture = film_frame(pictures, k);
        bool patched = C != picture.dim[2];
        film_convolve(x, patched ? sum : picture, sum, (struct tensor){0}, &o, &w->conv);
        if (patched) op_unpatchify(x, picture, film_pixels(sum), film_patches, 1);
    }
    film_give_back(x, state, 0, state->out, near, first, n);
}

/* ---- at an encoder's ends ---- */

void film_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct film_conv *w = &((const struct film_out_weights *)weights)->conv;
    struct film_state *state = scope->lane->state;
    struct tensor pictures = scope->lane->picture;
    int32_t n = scope->chunk ? pictures.dim[0] : 1, C = w->weight[0].dim[1];
    int32_t side = C == pictures.dim[3] ? 1 : film_patches.side, Y = pictures.dim[1] / side,
            X = pictures.dim[2] / side;
    state->film.at_back = !state->first_at_back;
    struct tensor out = film_put(&state->film, n, Y, X, w->bias.dim[0]);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < n; k++, x->scratch->used = used) {
        struct tensor in = film_frame(pictures, k), to = film_frame(out, k);
        if (side > 1) {
            struct tensor patched = film_scratch(x, Y, X, C);
            op_patchify(x, film_pixels(patched), in, film_patches);
            in = patched;
        }
        struct film_operand o = {.frame = in, .kept = state->in, .t = film_first_frame(scope, n) + k};
        film_convolve(x, to, to, (struct tensor){0}, &o, w);
    }
}

/* A chunk's last level has one frame. */
void film_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct film_out_weights *w = weights;
    const struct film_state *state = scope->lane->state;
    struct tensor moments = scope->lane->moments;
    struct tensor out = film_scratch(x, moments.dim[0], moments.dim[1], moments.dim[2]);
    struct film_operand o = {film_frame(state->film.frames, 0), w->norm, state->out, scope->chunk};
    film_convolve(x, out, out, (struct tensor){0}, &o, &w->conv);
    op_conv2d(x, moments, out, w->post, (struct epilogue){.bias = w->post_bias}, film_plain);
}

/* ---- from level to level ---- */

/* One of the two frames that a frame becomes: the first half of the rows makes the earlier. The first frame
 * of all, which stays one, is not seen. */
static void film_double(struct context *x, struct tensor out, const struct film_operand *o,
                        const struct film_conv *w, int32_t half) {
    int32_t C = out.dim[2];
    struct epilogue parts = {.bias = tensor_slice(w->bias, half * C, C)};
    for (int32_t slice = 0; slice < FILM_SLICES; slice++) {
        int32_t before = FILM_SLICES - 1 - slice;
        struct tensor in = o->frame;
        if (o->t < before) continue;
        if (before) in = film_frame(o->kept, (o->t - before) % 2);
        film_add(x, out, in, tensor_slice(w->weight[slice], half * C, C), &parts);
    }
}

void film_forward_up(struct context *x, const struct film_step_weights *w, const struct visit_scope *scope,
                     int level) {
    static const struct conv_options twice = {.upsample = 2};
    struct film_state *state = scope->lane->state;
    struct tensor in = state->film.frames;
    int32_t n = in.dim[0], Y = in.dim[1], X = in.dim[2], C = in.dim[3];
    int32_t times = w->time.bias.rank ? 2 : 1, doubles = scope->chunk ? times : 1;
    struct tensor out = film_put(&state->film, n * doubles, 2 * Y, 2 * X, w->weight.dim[0]);
    struct tensor between = doubles > 1 ? film_scratch(x, Y, X, C) : (struct tensor){0};
    for (int32_t k = 0; k < n * doubles; k++) {
        struct film_operand o = {.frame = film_frame(in, k / doubles), .kept = state->time[level]};
        struct tensor from = o.frame;
        o.t = film_first_frame(scope, n) + k / doubles - 1;
        if (doubles > 1) {
            from = between;
            film_double(x, between, &o, &w->time, k % doubles);
            if (k % doubles) film_keep(x, &o);
        }
        struct tensor to = film_frame(out, k);
        op_conv2d(x, to, from, w->weight, (struct epilogue){.bias = w->bias}, twice);
        if (state->level[level].rank)
            op_repeat_up(x, to, film_frame(state->level[level], k / doubles), to,
                         (struct shortcut){times, 2, doubles > 1 ? k % doubles : times - 1});
    }
}

/* Of frames t - 2, t - 1 and t, where t is even. */
static void film_halve(struct context *x, struct tensor out, struct tensor kept, const struct tensor *two,
                       const struct film_conv *w) {
    struct epilogue parts = {.bias = w->bias};
    film_add(x, out, film_frame(kept, 0), w->weight[0], &parts);
    film_add(x, out, two[0], w->weight[1], &parts);
    film_add(x, out, two[1], w->weight[2], &parts);
}

/* Of what the level began with, in pairs; what has none before it has zeros. */
static void film_add_means(struct context *x, struct tensor out, struct tensor level, int32_t times,
                           bool halves) {
    for (int32_t k = 0; k < out.dim[0]; k++) {
        struct tensor to = film_frame(out, k), before = {0};
        if (halves) before = film_frame(level, 2 * k);
        op_mean_down(x, to, film_frame(level, halves ? 2 * k + 1 : k), before, to,
                     (struct shortcut){times, 2, 0});
    }
}

void film_forward_down(struct context *x, const struct film_step_weights *w, const struct visit_scope *scope,
                       int level) {
    static const struct conv_options strided = {.upsample = 1, .stride = 2};
    struct film_state *state = scope->lane->state;
    struct tensor in = state->film.frames, kept = state->time[level], two[2];
    bool halves = w->time.bias.rank && scope->chunk;
    int32_t n = in.dim[0], Y = in.dim[1] / 2, X = in.dim[2] / 2, C = w->weight.dim[0];
    struct tensor out = film_put(&state->film, halves ? n / 2 : n, Y, X, C);
    for (int32_t k = 0; k < 2 && halves; k++) two[k] = film_scratch(x, Y, X, C);
    for (int32_t k = 0; k < n; k++) {
        struct tensor to = halves ? two[k % 2] : film_frame(out, k);
        op_conv2d(x, to, film_frame(in, k), w->weight, (struct epilogue){.bias = w->bias}, strided);
        if (halves && k % 2) film_halve(x, film_frame(out, k / 2), kept, two, &w->time);
        if (kept.rank && (!halves || k % 2)) op_copy(x, film_pixels(film_frame(kept, 0)), film_pixels(to));
    }
    if (state->level[level].rank)
        film_add_means(x, out, state->level[level], w->time.bias.rank ? 2 : 1, halves);
}
