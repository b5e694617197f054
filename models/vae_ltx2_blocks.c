#include "models/vae_ltx2_blocks.h"

#include <limits.h>

static const struct conv_options ltx_plain = {.upsample = 1}, ltx_normed = {.pixel_norm.eps = 1e-8f,
                                                                            .activation = ACTIVATION_SILU,
                                                                            .upsample = 1};

static int32_t ltx_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t ltx_max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* ---- frames in time ---- */

static int32_t ltx_level_frames(const struct ltx_vae_level *level, int32_t latent_frames) {
    return level->rate * (latent_frames - 1) + 1;
}

/* Returns the number of frames that a layer with this lag has received before this evaluation, as if the
 * video had begun earlier and never ended: may be negative, or larger than the video. */
static int32_t ltx_arrivals(const struct ltx_vae_level *level, int32_t chunk, int32_t lag, int evaluation) {
    return level->rate * (chunk * evaluation - 1) + 1 - lag;
}

/* Frames of one layer's input or output in an evaluation, in a ring. */
struct ltx_frames {
    struct tensor ring;
    int32_t n;          /* frames of the video at this level */
    int32_t first, end; /* frames of this evaluation */
    int32_t place;      /* place of frame `first` in the ring */
};

/* Returns the frames of a layer in the current evaluation. blocks: number of the level's resnets that ran
 * before; each moved the frames by CONV_SLICES places in the ring. */
static struct ltx_frames ltx_frames_of(const struct visit_scope *scope, int level, int32_t lag, int blocks) {
    const struct ltx_vae_state *state = scope->lane->state;
    const struct ltx_vae_level *l = &((const struct ltx_vae_settings *)scope->settings)->level[level];
    struct ltx_frames f = {.ring = state->level[level].ring, .n = ltx_level_frames(l, state->frames)};
    int32_t size = f.ring.dim[0], moved = CONV_SLICES * blocks % size;
    f.first = ltx_max(0, ltx_min(f.n, ltx_arrivals(l, state->chunk, lag, scope->chunk)));
    f.end = ltx_max(0, ltx_min(f.n, ltx_arrivals(l, state->chunk, lag, scope->chunk + 1)));
    f.place = (size - moved) % size;
    return f;
}

static struct tensor ltx_frame(struct tensor frames, int32_t i) {
    return tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
}

/* Returns frame t of the ring; beyond the video's ends its first or last frame. */
static struct tensor ltx_ring_frame(const struct ltx_frames *f, int32_t t) {
    int32_t size = f->ring.dim[0];
    t = ltx_max(0, ltx_min(t, f->n - 1));
    return ltx_frame(f->ring, (f->place + t - f->first + size) % size);
}

/* Feature cache of convolution i of a level; rank 0: none. */
static struct tensor ltx_cache(const struct visit_scope *scope, int level, int i) {
    struct tensor caches = ((const struct ltx_vae_state *)scope->lane->state)->level[level].caches;
    return caches.rank ? tensor_slice(caches, LTX_VAE_BEFORE * i, LTX_VAE_BEFORE) : caches;
}

/* Copies the cached frames, which precede the evaluation's first frame, into the ring. */
static void ltx_load(struct context *x, const struct ltx_frames *f, struct tensor cache) {
    for (int32_t t = ltx_max(0, f->first - LTX_VAE_BEFORE); t < f->first && cache.rank; t++)
        op_copy(x, ltx_ring_frame(f, t), ltx_frame(cache, t % LTX_VAE_BEFORE));
}

/* Copies the evaluation's last frames into the feature cache. */
static void ltx_store(struct context *x, const struct ltx_frames *f, struct tensor cache) {
    for (int32_t t = ltx_max(f->first, f->end - LTX_VAE_BEFORE); t < f->end && cache.rank; t++)
        op_copy(x, ltx_frame(cache, t % LTX_VAE_BEFORE), ltx_ring_frame(f, t));
}

/* ---- feature maps ---- */

static struct tensor ltx_map(struct context *x, int32_t Y, int32_t X, int32_t C) {
    return context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
}

static struct tensor ltx_pixels(struct tensor map) {
    return tensor_reshape(map, 2, (int32_t[]){map.dim[0] * map.dim[1], map.dim[2]});
}

/* Returns the part of a map that begins at row y and column x, as a matrix [rows, columns * C]. */
static struct tensor ltx_part(struct tensor map, int32_t y, int32_t x, int32_t rows, int32_t columns) {
    int64_t pixel = map.row_bytes, row = pixel * map.dim[1];
    char *at = map.data ? (char *)map.data + y * row + x * pixel : NULL;
    struct tensor part = tensor_make(at, DTYPE_F32, 2, (int32_t[]){rows, columns * map.dim[2]});
    part.row_bytes = row;
    return part;
}

/* Fills the border of a map by reflection: columns, then whole rows. */
static void ltx_reflect(struct context *x, const struct ltx_vae_settings *settings, struct tensor map) {
    int32_t Y = map.dim[0], X = map.dim[1];
    if (!settings->border) return;
    op_copy(x, ltx_part(map, 1, 0, Y - 2, 1), ltx_part(map, 1, 2, Y - 2, 1));
    op_copy(x, ltx_part(map, 1, X - 1, Y - 2, 1), ltx_part(map, 1, X - 3, Y - 2, 1));
    op_copy(x, tensor_slice(map, 0, 1), tensor_slice(map, 2, 1));
    op_copy(x, tensor_slice(map, Y - 1, 1), tensor_slice(map, Y - 3, 1));
}

/* Adds the terms of slices [from, end) of a convolution to `sum`. Slice 0 overwrites `sum`, and adds bias and
 * residual. */
static void ltx_add_slices(struct context *x, struct tensor sum, const struct tensor in[CONV_SLICES],
                           struct tensor residual, const struct sliced_conv_weights *w, int from, int end,
                           struct conv_options options) {
    struct epilogue parts = {.bias = w->bias, .residual = residual};
    for (int i = from; i < end; i++) {
        if (i) parts = (struct epilogue){.residual = sum};
        op_conv2d(x, sum, in[i], w->weight[i], parts, options);
    }
}

/* Computes one output frame of a convolution, of the input frames up to number `latest`. */
static void ltx_convolve(struct context *x, struct tensor out, const struct ltx_frames *f, int32_t latest,
                         const struct sliced_conv_weights *w, struct conv_options options) {
    struct tensor in[CONV_SLICES];
    for (int i = 0; i < CONV_SLICES; i++) in[i] = ltx_ring_frame(f, latest - LTX_VAE_BEFORE + i);
    ltx_add_slices(x, out, in, (struct tensor){0}, w, 0, CONV_SLICES, options);
}

/* ---- resnets ---- */

/* A resnet's run over the frames of an evaluation. */
struct ltx_resnet {
    const struct ltx_vae_resnet_weights *w;
    const struct ltx_vae_settings *settings;
    struct ltx_frames in, out;
    struct tensor h; /* [2, Y, X, C]: last two frames between the convolutions, frame t in entry t % 2 */
};

/* Computes one frame after the first convolution and one output frame, if their inputs up to frame `arrived`
 * exist; frames after the video's end are copies of its last frame. The output's first term is computed
 * before its input in r->h is overwritten. */
static void ltx_resnet_step(struct context *x, const struct ltx_resnet *r, int32_t arrived) {
    int32_t n = r->in.n, middle = arrived - r->settings->lookahead, o = middle - r->settings->lookahead;
    struct tensor h[CONV_SLICES], out = {0}, residual = {0};
    bool overwrites = middle >= LTX_VAE_BEFORE && middle < n;
    for (int i = 0; i < CONV_SLICES; i++)
        h[i] = ltx_frame(r->h, ltx_max(0, ltx_min(middle - LTX_VAE_BEFORE + i, n - 1)) % LTX_VAE_BEFORE);
    if (o >= 0) {
        out = ltx_ring_frame(&r->out, o);
        residual = ltx_ring_frame(&r->in, o);
    }
    if (o >= 0 && overwrites) ltx_add_slices(x, out, h, residual, &r->w->conv2, 0, 1, ltx_normed);
    if (middle >= 0 && middle < n) {
        struct tensor to = ltx_frame(r->h, middle % LTX_VAE_BEFORE);
        ltx_convolve(x, to, &r->in, arrived, &r->w->conv1, ltx_normed);
        ltx_reflect(x, r->settings, to);
    }
    if (o < 0) return;
    ltx_add_slices(x, out, h, residual, &r->w->conv2, overwrites, CONV_SLICES, ltx_normed);
    ltx_reflect(x, r->settings, out);
}

/* Copies the feature cache entries of frames [first, end); skips negative frame numbers. */
static void ltx_copy_cache(struct context *x, struct tensor to, struct tensor from, int32_t first,
                           int32_t end) {
    for (int32_t t = ltx_max(0, first); t < end; t++)
        op_copy(x, ltx_frame(to, t % LTX_VAE_BEFORE), ltx_frame(from, t % LTX_VAE_BEFORE));
}

void ltx_vae_forward_resnet(struct context *x, const struct ltx_vae_resnet_weights *w,
                            const struct visit_scope *scope, int level, int i) {
    const struct ltx_vae_settings *settings = scope->settings;
    const struct ltx_vae_level *l = &settings->level[level];
    int32_t chunk = ((const struct ltx_vae_state *)scope->lane->state)->chunk;
    int32_t lag = l->lag + 2 * settings->lookahead * i, lag_out = lag + 2 * settings->lookahead;
    struct tensor cache_in = ltx_cache(scope, level, 2 * i), cache_h = ltx_cache(scope, level, 2 * i + 1);
    struct ltx_resnet r = {.w = w,
                           .settings = settings,
                           .in = ltx_frames_of(scope, level, lag, i),
                           .out = ltx_frames_of(scope, level, lag_out, i + 1),
                           .h = cache_h};
    struct ltx_frames h = ltx_frames_of(scope, level, lag + settings->lookahead, i);
    int32_t from = ltx_max(0, ltx_arrivals(l, chunk, lag, scope->chunk)),
            end = ltx_min(r.in.n + 2 * settings->lookahead, ltx_arrivals(l, chunk, lag, scope->chunk + 1));
    bool copies = cache_h.rank && !scope->lane->tiled;
    const int32_t *dim = r.in.ring.dim;
    if (from >= end) return;
    if (copies || !cache_h.rank)
        r.h = context_tensor(x, DTYPE_F32, 4, (int32_t[]){LTX_VAE_BEFORE, dim[1], dim[2], dim[3]});
    if (copies) ltx_copy_cache(x, r.h, cache_h, h.first - LTX_VAE_BEFORE, h.first);
    ltx_load(x, &r.in, cache_in);
    for (int32_t t = from; t < end; t++) ltx_resnet_step(x, &r, t);
    ltx_store(x, &r.in, cache_in);
    if (copies) ltx_copy_cache(x, cache_h, r.h, ltx_max(h.first, h.end - LTX_VAE_BEFORE), h.end);
}

/* ---- decoder ---- */

/* Returns frame t of the latent as a map, scaled to the VAE's values. */
static struct tensor ltx_latent_map(struct context *x, const struct visit_scope *scope, int32_t t) {
    const struct ltx_vae_settings *settings = scope->settings;
    struct tensor latent = scope->lane->latent;
    int32_t C = latent.dim[0], F = latent.dim[1], Y = latent.dim[2], X = latent.dim[3], b = settings->border;
    struct tensor planes = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X}), map = ltx_map(x, Y, X, C);
    op_copy(x, tensor_reshape(planes, 2, (int32_t[]){C, Y * X}),
            latent_frame(latent, ltx_max(0, ltx_min(t, F - 1))));
    op_latent_to_image(x, map, planes, *scope->latent_format);
    if (!b) return map;
    struct tensor wider = ltx_map(x, Y + 2 * b, X + 2 * b, C);
    op_copy(x, ltx_part(wider, b, b, Y, X), ltx_part(map, 0, 0, Y, X));
    ltx_reflect(x, settings, wider);
    return wider;
}

/* The whole latent is in memory, so the first convolution needs no feature cache and does not lag. */
void ltx_vae_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx_vae_settings *settings = scope->settings;
    struct ltx_frames out = ltx_frames_of(scope, 0, 0, 0);
    uint64_t used = x->scratch->used;
    for (int32_t t = out.first; t < out.end; t++, x->scratch->used = used) {
        struct tensor in[CONV_SLICES], to = ltx_ring_frame(&out, t);
        for (int i = 0; i < CONV_SLICES; i++)
            in[i] = ltx_latent_map(x, scope, t + settings->lookahead - LTX_VAE_BEFORE + i);
        ltx_add_slices(x, to, in, (struct tensor){0}, weights, 0, CONV_SLICES, ltx_plain);
        ltx_reflect(x, settings, to);
    }
}

/* Depth to space: writes to `out` the frame patches->frame of the frames that `map` holds. in: input of the
 * upsampling, which the shortcut shuffles likewise, repeats along the channels and adds; rank 0: no shortcut.
 * Doubled rows and columns have a border of two pixels, of which the outer ones are cut. */
static void ltx_shuffle(struct context *x, const struct ltx_vae_settings *settings, struct tensor out,
                        struct tensor map, struct tensor in, const struct patches *patches) {
    int32_t Y = map.dim[0] * patches->side, X = map.dim[1] * patches->side, C = out.dim[2];
    bool cuts = Y != out.dim[0];
    struct tensor to = cuts ? ltx_map(x, Y, X, C) : out;
    op_unpatchify(x, to, ltx_pixels(map), *patches, 1);
    if (in.rank) {
        int32_t narrow =
            in.dim[2] / (patches->side * patches->side * (patches->frames ? patches->frames : 1));
        struct tensor shuffled = ltx_map(x, Y, X, narrow), all = ltx_pixels(to);
        op_unpatchify(x, shuffled, ltx_pixels(in), *patches, 1);
        for (int32_t c = 0; c < C; c += narrow) {
            struct tensor columns = tensor_slice_columns(all, c, narrow);
            op_add(x, columns, columns, ltx_pixels(shuffled));
        }
    }
    if (cuts) op_copy(x, ltx_part(out, 0, 0, Y - 2, X - 2), ltx_part(to, 1, 1, Y - 2, X - 2));
    ltx_reflect(x, settings, out);
}

static struct patches ltx_step_patches(const struct ltx_vae_level *l, int32_t frame) {
    return (struct patches){.side = l->side,
                            .order = PATCH_CHANNELS_FIRST,
                            .pixels = true,
                            .frames = l->time > 1 ? l->time : 0,
                            .frame = frame};
}

void ltx_vae_forward_upsample(struct context *x, const struct sliced_conv_weights *w,
                              const struct visit_scope *scope, int level) {
    const struct ltx_vae_settings *settings = scope->settings;
    const struct ltx_vae_level *l = &settings->level[level];
    int32_t lag = l->lag + 2 * settings->lookahead * l->resnets;
    int32_t chunk = ((const struct ltx_vae_state *)scope->lane->state)->chunk;
    struct ltx_frames in = ltx_frames_of(scope, level, lag, l->resnets),
                      out = ltx_frames_of(scope, level + 1, l[1].lag, 0);
    struct tensor cache = ltx_cache(scope, level, 2 * l->resnets);
    int32_t end = ltx_min(in.n + settings->lookahead, ltx_arrivals(l, chunk, lag, scope->chunk + 1));
    uint64_t used = x->scratch->used;
    ltx_load(x, &in, cache);
    for (int32_t t = ltx_max(settings->lookahead, ltx_arrivals(l, chunk, lag, scope->chunk)); t < end; t++) {
        int32_t o = t - settings->lookahead;
        struct tensor map = ltx_map(x, in.ring.dim[1], in.ring.dim[2], w->bias.dim[0]), added = {0};
        if (l->residual) added = ltx_ring_frame(&in, o);
        ltx_convolve(x, map, &in, t, w, ltx_plain);
        uint64_t kept = x->scratch->used;
        for (int32_t k = 0; k < l->time; k++, x->scratch->used = kept) {
            int32_t fine = l->time * o - (l->time - 1) + k; /* the video's first frame is not doubled */
            struct patches patches = ltx_step_patches(l, k);
            if (fine >= 0) ltx_shuffle(x, settings, ltx_ring_frame(&out, fine), map, added, &patches);
        }
        x->scratch->used = used;
    }
    ltx_store(x, &in, cache);
}

/* Returns the patches between pixels and channels; values in order (c, x, y), as in the reference. */
static struct patches ltx_pixel_patches(const struct ltx_vae_settings *settings) {
    return (struct patches){.side = settings->patch, .order = PATCH_COLUMNS_FIRST, .pixels = true};
}

void ltx_vae_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sliced_conv_weights *w = weights;
    const struct ltx_vae_settings *settings = scope->settings;
    int level = settings->n_levels - 1;
    const struct ltx_vae_level *l = &settings->level[level];
    int32_t lag = l->lag + 2 * settings->lookahead * l->resnets, b = settings->border;
    struct ltx_frames in = ltx_frames_of(scope, level, lag, l->resnets),
                      out = ltx_frames_of(scope, level, lag + settings->lookahead, l->resnets);
    struct tensor cache = ltx_cache(scope, level, 2 * l->resnets);
    int32_t Y = in.ring.dim[1], X = in.ring.dim[2], C = w->bias.dim[0];
    uint64_t used = x->scratch->used;
    if (in.first < in.end || out.first < out.end) ltx_load(x, &in, cache);
    for (int32_t o = out.first; o < out.end; o++, x->scratch->used = used) {
        struct tensor map = ltx_map(x, Y, X, C), inner = map;
        ltx_convolve(x, map, &in, o + settings->lookahead, w, ltx_normed);
        if (b) {
            inner = ltx_map(x, Y - 2 * b, X - 2 * b, C);
            op_copy(x, ltx_part(inner, 0, 0, Y - 2 * b, X - 2 * b),
                    ltx_part(map, b, b, Y - 2 * b, X - 2 * b));
        }
        op_unpatchify(x, ltx_frame(scope->lane->picture, o - out.first), ltx_pixels(inner),
                      ltx_pixel_patches(settings), 1);
    }
    ltx_store(x, &in, cache);
}

/* ---- encoder ---- */

void ltx_vae_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sliced_conv_weights *w = weights;
    const struct ltx_vae_settings *settings = scope->settings;
    struct ltx_frames out = ltx_frames_of(scope, 0, 0, 0), in = out;
    struct tensor pictures = scope->lane->picture;
    struct tensor cache = ((const struct ltx_vae_state *)scope->lane->state)->in;
    int32_t n = out.end - out.first,
            dim[4] = {n + LTX_VAE_BEFORE, out.ring.dim[1], out.ring.dim[2], w->weight[0].dim[1]};
    in.ring = context_tensor(x, DTYPE_F32, 4, dim);
    in.place = 0;
    for (int32_t i = 0; i < n; i++)
        op_patchify(x, ltx_pixels(ltx_ring_frame(&in, in.first + i)), ltx_frame(pictures, i),
                    ltx_pixel_patches(settings));
    ltx_load(x, &in, cache);
    for (int32_t t = in.first; t < in.end; t++)
        ltx_convolve(x, ltx_ring_frame(&out, t), &in, t, w, ltx_plain);
    ltx_store(x, &in, cache);
}

/* Space to depth of a convolution's result, plus the shortcut: the input shuffled likewise, as means of
 * groups of channels. If time is halved, two frames become one; the video's first frame counts twice. */
void ltx_vae_forward_downsample(struct context *x, const struct sliced_conv_weights *w,
                                const struct visit_scope *scope, int level) {
    const struct ltx_vae_settings *settings = scope->settings;
    const struct ltx_vae_level *l = &settings->level[level];
    struct ltx_frames in = ltx_frames_of(scope, level, 0, l->resnets),
                      out = ltx_frames_of(scope, level + 1, 0, 0);
    struct tensor cache = ltx_cache(scope, level, 2 * l->resnets);
    struct tensor map = ltx_map(x, in.ring.dim[1], in.ring.dim[2], w->bias.dim[0]);
    ltx_load(x, &in, cache);
    for (int32_t t = in.first; t < in.end; t++) {
        struct tensor to = ltx_ring_frame(&out, (t + l->time - 1) / l->time), before = {0};
        int32_t last = l->time - 1, k = (t + last) % l->time;
        ltx_convolve(x, map, &in, t, w, ltx_plain);
        for (int32_t i = t ? k : 0; i <= k; i++) op_patchify(x, ltx_pixels(to), map, ltx_step_patches(l, i));
        if (k < last) continue;
        if (l->time > 1) before = ltx_ring_frame(&in, t - 1);
        op_mean_down(x, to, ltx_ring_frame(&in, t), before, to, (struct shortcut){l->time, l->side, 0});
    }
    ltx_store(x, &in, cache);
}

void ltx_vae_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sliced_conv_weights *w = weights;
    const struct ltx_vae_settings *settings = scope->settings;
    const struct ltx_vae_level *l = &settings->level[settings->n_levels - 1];
    struct ltx_frames in = ltx_frames_of(scope, settings->n_levels - 1, 0, l->resnets);
    struct tensor cache = ltx_cache(scope, settings->n_levels - 1, 2 * l->resnets);
    struct tensor moments = scope->lane->moments, all = ltx_pixels(moments), mean = moments;
    int32_t C = moments.dim[2] / 2;
    struct sliced_conv_weights means = {.bias = tensor_slice(w->bias, 0, C)};
    for (int i = 0; i < CONV_SLICES; i++) means.weight[i] = tensor_slice(w->weight[i], 0, C);
    mean.dim[2] = C;
    ltx_load(x, &in, cache);
    ltx_convolve(x, mean, &in, in.end - 1, &means, ltx_normed);
    ltx_store(x, &in, cache);
    op_add_scaled(x, tensor_slice_columns(all, C, C), tensor_slice_columns(all, 0, C),
                  tensor_slice_columns(all, 0, C), -1);
}

/* ---- levels, chunks and state ---- */

void ltx_vae_derive_levels(struct ltx_vae_settings *s, int32_t first_rate, bool encodes) {
    s->level[0].rate = first_rate;
    s->level[0].lag = 0;
    for (int i = 0; i + 1 < s->n_levels; i++) {
        struct ltx_vae_level *l = &s->level[i];
        l[1].rate = encodes ? l->rate / l->time : l->rate * l->time;
        l[1].lag = l->time * (l->lag + s->lookahead * (2 * l->resnets + 1));
    }
}

/* Returns the number of frames by which the decoder's output lags. */
static int32_t ltx_last_lag(const struct ltx_vae_settings *s) {
    const struct ltx_vae_level *last = &s->level[s->n_levels - 1];
    return last->lag + s->lookahead * (2 * last->resnets + 1);
}

/* Returns the number of latent frames of all evaluations: those of the video, and further ones that let the
 * output catch up. */
static int32_t ltx_all_latents(const struct ltx_vae_settings *s, int32_t latent_frames) {
    int32_t rate = s->level[s->n_levels - 1].rate;
    return latent_frames + (ltx_last_lag(s) + rate - 1) / rate;
}

/* Returns the latent frames per chunk. One needs the least memory; long videos need more, because a run has
 * at most FRAME_CHUNKS_MAX chunks. One or two latent frames are a single chunk, whose buffers are about as
 * large as those of one latent frame (8 video frames). */
static int32_t ltx_chunk(const struct ltx_vae_settings *s, int32_t latent_frames) {
    enum { SINGLE_CHUNK_MAX = 2 };
    int32_t all = ltx_all_latents(s, latent_frames);
    if (s->chunk) return ltx_min(s->chunk, all);
    if (latent_frames <= SINGLE_CHUNK_MAX) return all;
    return (all + FRAME_CHUNKS_MAX - 1) / FRAME_CHUNKS_MAX;
}

int ltx_vae_decoder_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks) {
    const struct ltx_vae_settings *s = (const struct ltx_vae_settings *)c->settings;
    const struct ltx_vae_level *last = &s->level[s->n_levels - 1];
    int32_t chunk = ltx_chunk(s, latent_frames), n = (ltx_all_latents(s, latent_frames) + chunk - 1) / chunk;
    int32_t frames = ltx_level_frames(last, latent_frames), latents = 0, done = 0;
    for (int32_t i = 0; i < n && n <= FRAME_CHUNKS_MAX; i++) {
        int32_t end = ltx_arrivals(last, chunk, ltx_last_lag(s), i + 1),
                latent = ltx_min(latent_frames, (i + 1) * chunk);
        end = ltx_max(0, ltx_min(frames, end));
        chunks[i] = (struct frame_chunk){latents, latent - latents, done, end - done};
        latents = latent;
        done = end;
    }
    return n;
}

struct ltx_arenas {
    struct arena *device, *pictures;
    bool *ok;
};

/* Declares rings and, if the video has several chunks, feature caches. Y, X: size of the first level without
 * border. The rings of the levels alternate between two memory blocks. */
static void ltx_declare(const struct ltx_vae_settings *s, struct ltx_vae_state *state, int32_t Y, int32_t X,
                        bool several, bool encodes, const struct ltx_arenas *to) {
    struct tensor memory[2];
    int64_t rows[2] = {0};
    int32_t dim[LTX_VAE_LEVELS_MAX][4];
    for (int i = 0; i < s->n_levels; i++) {
        const struct ltx_vae_level *l = &s->level[i];
        int32_t most = ltx_min(l->rate * state->chunk, ltx_level_frames(l, state->frames));
        int32_t border = 2 * s->border, size[4] = {most + CONV_SLICES, Y + border, X + border, l->channels};
        for (int k = 0; k < 4; k++) dim[i][k] = size[k];
        int64_t needs = ((int64_t)size[0] * size[1] * size[2] * size[3] + LTX_VAE_ROW - 1) / LTX_VAE_ROW;
        if (needs > rows[i % 2]) rows[i % 2] = needs;
        Y = encodes ? Y / l->side : Y * l->side;
        X = encodes ? X / l->side : X * l->side;
    }
    for (int i = 0; i < 2; i++) {
        if (rows[i] > INT32_MAX) *to->ok = false;
        int32_t matrix[2] = {rows[i] > INT32_MAX ? 1 : (int32_t)rows[i], LTX_VAE_ROW};
        memory[i] = arena_tensor(to->device, DTYPE_F32, 2, matrix, to->ok);
    }
    for (int i = 0; i < s->n_levels; i++) {
        state->level[i].ring = tensor_make(memory[i % 2].data, DTYPE_F32, 4, dim[i]);
        dim[i][0] = LTX_VAE_BEFORE * (2 * s->level[i].resnets + 1);
        if (several) state->level[i].caches = arena_tensor(to->pictures, DTYPE_F32, 4, dim[i], to->ok);
    }
}

void ltx_vae_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                             struct arena *pictures, bool *ok) {
    const struct ltx_vae_settings *s = (const struct ltx_vae_settings *)c->settings;
    const int32_t *latent = lanes->latent.dim;
    struct ltx_vae_state first = {.frames = latent[1], .chunk = ltx_chunk(s, latent[1])};
    const struct ltx_arenas to = {lanes->tiled ? pictures : arena, pictures, ok};
    ltx_declare(s, &first, latent[2], latent[3], first.chunk < ltx_all_latents(s, latent[1]), false, &to);
    for (int i = 0; i < n_lanes; i++) *(struct ltx_vae_state *)lanes[i].state = first;
}

/* Lanes run one after another, so their states overlap in memory. */
void ltx_vae_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                             struct arena *pictures, bool *ok) {
    enum { FRAMES_MAX = 1 << 20 };
    const struct ltx_vae_settings *s = (const struct ltx_vae_settings *)c->settings;
    uint64_t begin[2] = {arena->used, pictures->used}, end[2] = {begin[0], begin[1]};
    for (int i = 0; i < n_lanes; i++) {
        const struct ltx_arenas to = {lanes[i].tiled ? pictures : arena, pictures, ok};
        struct ltx_vae_state *state = lanes[i].state;
        const int32_t *picture = lanes[i].picture.dim;
        bool several = picture[0] > 1;
        int32_t dim[4] = {LTX_VAE_BEFORE, picture[1] / s->patch, picture[2] / s->patch,
                          picture[3] * s->patch * s->patch};
        arena->used = begin[0];
        pictures->used = begin[1];
        *state = (struct ltx_vae_state){.frames = several ? FRAMES_MAX : 1, .chunk = 1};
        ltx_declare(s, state, dim[1], dim[2], several, true, &to);
        if (several) state->in = arena_tensor(pictures, DTYPE_F32, 4, dim, ok);
        if (arena->used > end[0]) end[0] = arena->used;
        if (pictures->used > end[1]) end[1] = pictures->used;
    }
    arena->used = end[0];
    pictures->used = end[1];
}
