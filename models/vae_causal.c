#include "models/vae_causal.h"

static const struct conv_options causal_plain = {.upsample = 1};

static struct tensor causal_frame(struct tensor frames, int32_t i) {
    return tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
}

static struct tensor causal_pixels(struct tensor frame) {
    return tensor_reshape(frame, 2, (int32_t[]){frame.dim[0] * frame.dim[1], frame.dim[2]});
}

/* Index of a chunk's first frame, at a level with n frames per chunk. The first chunk has one frame. */
static int32_t causal_first_frame(const struct visit_scope *scope, int32_t n) {
    return scope->chunk ? 1 + (scope->chunk - 1) * n : 0;
}

/* Makes n frames current, at the end of the chunk buffer's memory opposite to the previous frames. */
static struct tensor causal_put(struct chunk_buffer *buffer, int32_t n, int32_t Y, int32_t X, int32_t C) {
    struct tensor frames = tensor_make(buffer->memory.data, DTYPE_F32, 4, (int32_t[]){n, Y, X, C});
    int64_t rows = causal_rows(tensor_elements(&frames));
    buffer->at_end = !buffer->at_end;
    if (frames.data && buffer->at_end)
        frames.data = (char *)frames.data + (buffer->memory.dim[0] - rows) * buffer->memory.row_bytes;
    return buffer->frames = frames;
}

static struct tensor causal_scratch(struct context *x, int32_t Y, int32_t X, int32_t C) {
    return context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
}

/* One input frame of a causal convolution, and its feature cache. */
struct causal_operand {
    struct tensor frame;
    struct tensor norm;  /* weight of an RMS norm, applied with SiLU before the convolution; rank 0: none */
    struct tensor cache; /* feature cache of the convolution's input; rank 0: the input is not cached */
    int32_t t;           /* frame number, counted from the convolution's first frame of the video */
};

/* Adds one input frame's term to a causal convolution's sum; the first term includes the bias. */
static void causal_add_slice(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                             struct epilogue *sum, struct conv_options options) {
    op_conv2d(x, out, in, weight, *sum, options);
    *sum = (struct epilogue){.residual = out};
}

/* Writes normed input frame t to the feature cache, over frame t - 2, and returns the written entry. */
static struct tensor causal_cache_input(struct context *x, const struct causal_operand *o) {
    struct tensor to = o->cache, in = o->frame;
    if (to.rank)
        to = causal_frame(to, o->t % 2);
    else if (o->norm.rank)
        to = causal_scratch(x, in.dim[0], in.dim[1], in.dim[2]);
    else
        return in;
    if (o->norm.rank)
        op_rms_norm(x, causal_pixels(to), causal_pixels(in), o->norm, vae_pixel_eps(o->norm),
                    (struct modulation){.activation = ACTIVATION_SILU});
    else
        op_copy(x, causal_pixels(to), causal_pixels(in));
    return to;
}

/* Causal convolution of one frame. sum: partial sums in the shape of `out`, may be `out`. residual: tensor to
 * add, in the shape of `out`, may be `out` or `sum`; rank 0: none. */
static void causal_convolve(struct context *x, struct tensor out, struct tensor sum, struct tensor residual,
                            const struct causal_operand *o, const struct sliced_conv_weights *w) {
    struct epilogue parts = {.bias = w->bias, .residual = residual};
    struct conv_options options = {.upsample = 1, .bounded = o->norm.rank > 0};
    if (o->t >= 2) causal_add_slice(x, sum, causal_frame(o->cache, o->t % 2), w->weight[0], &parts, options);
    struct tensor in = causal_cache_input(x, o);
    if (o->t >= 1)
        causal_add_slice(x, sum, causal_frame(o->cache, (o->t - 1) % 2), w->weight[1], &parts, options);
    op_conv2d(x, out, in, w->weight[2], parts, options);
}

/* Copies entries of a feature cache: those of frames [first, end), without negative frame numbers. */
static void causal_cache_copy(struct context *x, struct tensor to, struct tensor from, int32_t first,
                              int32_t end) {
    for (int32_t t = first < 0 ? 0 : first; t < end; t++)
        op_copy(x, causal_pixels(causal_frame(to, t % 2)), causal_pixels(causal_frame(from, t % 2)));
}

/* Feature cache for convolution i of a resnet during a visit: a device copy with the cached entries, or
 * `cache` itself if there is no copy. first: the visit's first frame. */
static struct tensor causal_cache_load(struct context *x, const struct causal_state *state, int i,
                                       struct tensor cache, int32_t first) {
    struct tensor cache_copy = state->cache_copy[i];
    if (!cache.rank || !cache_copy.rank) return cache;
    cache_copy = tensor_make(cache_copy.data, DTYPE_F32, 4, cache.dim);
    causal_cache_copy(x, cache_copy, cache, first - 2, first);
    return cache_copy;
}

/* Copies a device copy's entries of the last two of a visit's n frames back to the feature cache. */
static void causal_cache_store(struct context *x, const struct causal_state *state, int i,
                               struct tensor cache, struct tensor cache_copy, int32_t first, int32_t n) {
    int32_t end = first + n;
    if (cache.rank && state->cache_copy[i].rank)
        causal_cache_copy(x, cache, cache_copy, n < 2 ? first : end - 2, end);
}

/* Stores a level's input for the level shortcut, before the level's first resnet. In an encoder's mid block,
 * adds the last level's shortcut to the frames instead. */
static void causal_save_level_input(struct context *x, const struct causal_state *state, int level) {
    struct tensor frames = state->buffer.frames, saved = state->level_input[level];
    if (!saved.rank) return;
    for (int32_t k = 0; k < frames.dim[0]; k++) {
        struct tensor frame = causal_frame(frames, k), of_level = causal_frame(saved, k);
        if (level == CAUSAL_MIDDLE)
            op_mean_down(x, frame, of_level, (struct tensor){0}, frame, (struct shortcut){1, 1, 0});
        else
            op_copy(x, causal_pixels(of_level), causal_pixels(frame));
    }
}

/* Runs a causal VAE resnet on one frame. cache: feature caches of the resnet's two convolutions. */
static void causal_resnet_frame(struct context *x, const struct causal_resnet_weights *w, struct tensor out,
                                struct tensor in, struct tensor h, struct tensor sum,
                                const struct tensor cache[2], int32_t t) {
    struct tensor residual = in;
    uint64_t used = x->scratch->used;
    causal_convolve(x, h, h, (struct tensor){0}, &(struct causal_operand){in, w->norm1.weight, cache[0], t},
                    &w->conv1);
    x->scratch->used = used;
    if (w->shortcut.weight.rank) {
        residual = sum;
        op_conv2d(x, sum, in, w->shortcut.weight, (struct epilogue){.bias = w->shortcut.bias}, causal_plain);
    }
    causal_convolve(x, out, sum, residual, &(struct causal_operand){h, w->norm2.weight, cache[1], t},
                    &w->conv2);
    x->scratch->used = used;
}

void causal_forward_resnet(struct context *x, const struct causal_resnet_weights *w,
                           const struct visit_scope *scope, int level, int i) {
    struct causal_state *state = scope->lane->state;
    const struct tensor *cache = state->resnet[level][i];
    struct tensor in = state->buffer.frames, out = in, cache_copy[2];
    int32_t n = in.dim[0], Y = in.dim[1], X = in.dim[2], C = w->conv1.bias.dim[0];
    int32_t first = causal_first_frame(scope, n);
    struct tensor h = causal_scratch(x, Y, X, C), sum = causal_scratch(x, Y, X, C);
    if (!i) causal_save_level_input(x, state, level);
    if (w->shortcut.weight.rank) out = causal_put(&state->buffer, n, Y, X, C);
    for (int k = 0; k < 2; k++) cache_copy[k] = causal_cache_load(x, state, k, cache[k], first);
    for (int32_t k = 0; k < n; k++)
        causal_resnet_frame(x, w, causal_frame(out, k), causal_frame(in, k), h, sum, cache_copy, first + k);
    for (int k = 0; k < 2; k++) causal_cache_store(x, state, k, cache[k], cache_copy[k], first, n);
}

void causal_forward_attention(struct context *x, const struct attention_weights *w,
                              const struct visit_scope *scope) {
    const struct causal_state *state = scope->lane->state;
    struct tensor frames = state->buffer.frames;
    const int32_t *dim = frames.dim;
    struct tensor normed = causal_scratch(x, dim[1], dim[2], dim[3]),
                  q = causal_scratch(x, dim[1], dim[2], dim[3]);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < dim[0]; k++, x->scratch->used = used)
        vae_attend(x, w, scope->settings, causal_frame(frames, k), normed, q);
}

/* Returns frame f of a latent as [Y, X, C], scaled to the VAE's values. */
static struct tensor causal_latent_frame(struct context *x, struct tensor latent, int32_t f,
                                         const struct latent_format *format) {
    int32_t C = latent.dim[0], Y = latent.dim[2], X = latent.dim[3], n = Y * X;
    struct tensor planes = tensor_reshape(latent, 2, (int32_t[]){C, latent.dim[1] * n});
    struct tensor frame = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X});
    struct tensor image = causal_scratch(x, Y, X, C);
    op_copy(x, tensor_reshape(frame, 2, (int32_t[]){C, n}), tensor_slice_columns(planes, f * n, n));
    op_latent_to_image(x, image, frame, *format);
    return image;
}

/* Causal conv_in reads up to two earlier frames from the whole latent, so conv_in needs no feature cache. */
void causal_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_in_weights *w = weights;
    struct causal_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int32_t last = scope->chunk, first = last < 2 ? 0 : last - 2;
    state->buffer.at_end = !state->starts_at_end;
    struct tensor out =
        causal_frame(causal_put(&state->buffer, 1, latent.dim[2], latent.dim[3], w->conv.bias.dim[0]), 0);
    struct tensor mixed = causal_scratch(x, latent.dim[2], latent.dim[3], latent.dim[0]);
    struct epilogue parts = {.bias = w->conv.bias};
    uint64_t used = x->scratch->used;
    for (int32_t f = first; f <= last; f++, x->scratch->used = used) {
        op_conv2d(x, mixed, causal_latent_frame(x, latent, f, scope->latent_format), w->post.weight,
                  (struct epilogue){.bias = w->post.bias}, causal_plain);
        causal_add_slice(x, out, mixed, w->conv.weight[f + CONV_SLICES - 1 - last], &parts, causal_plain);
    }
}

/* Wan 2.2: the channels of an output pixel hold a 2x2 patch of the video frame */
static const struct patches causal_patches = {
    .side = CAUSAL_PATCH, .order = PATCH_COLUMNS_FIRST, .pixels = true};

void causal_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_out_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    struct tensor in = state->buffer.frames, pictures = scope->lane->picture;
    int32_t n = in.dim[0], C = w->conv.bias.dim[0];
    struct tensor sum = causal_scratch(x, in.dim[1], in.dim[2], C);
    int32_t first = causal_first_frame(scope, n);
    struct tensor cache_copy = causal_cache_load(x, state, 0, state->out, first);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < n; k++, x->scratch->used = used) {
        struct causal_operand o = {causal_frame(in, k), w->norm.weight, cache_copy, first + k};
        struct tensor picture = causal_frame(pictures, k);
        bool patched = C != picture.dim[2];
        causal_convolve(x, patched ? sum : picture, sum, (struct tensor){0}, &o, &w->conv);
        if (patched) op_unpatchify(x, picture, causal_pixels(sum), causal_patches, 1);
    }
    causal_cache_store(x, state, 0, state->out, cache_copy, first, n);
}

void causal_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct sliced_conv_weights *w = &((const struct causal_in_weights *)weights)->conv;
    struct causal_state *state = scope->lane->state;
    struct tensor pictures = scope->lane->picture;
    int32_t n = scope->chunk ? pictures.dim[0] : 1, C = w->weight[0].dim[1];
    int32_t side = C == pictures.dim[3] ? 1 : causal_patches.side, Y = pictures.dim[1] / side,
            X = pictures.dim[2] / side;
    state->buffer.at_end = !state->starts_at_end;
    struct tensor out = causal_put(&state->buffer, n, Y, X, w->bias.dim[0]);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < n; k++, x->scratch->used = used) {
        struct tensor in = causal_frame(pictures, k), to = causal_frame(out, k);
        if (side > 1) {
            struct tensor patched = causal_scratch(x, Y, X, C);
            op_patchify(x, causal_pixels(patched), in, causal_patches);
            in = patched;
        }
        struct causal_operand o = {.frame = in, .cache = state->in, .t = causal_first_frame(scope, n) + k};
        causal_convolve(x, to, to, (struct tensor){0}, &o, w);
    }
}

/* Writes the moments (mean, log variance) of a chunk, which has one frame at the encoder's last level. */
void causal_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_out_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    struct tensor moments = scope->lane->moments;
    struct tensor out = causal_scratch(x, moments.dim[0], moments.dim[1], moments.dim[2]);
    struct causal_operand o = {causal_frame(state->buffer.frames, 0), w->norm.weight, state->out,
                               scope->chunk};
    causal_convolve(x, out, out, (struct tensor){0}, &o, &w->conv);
    op_conv2d(x, moments, out, w->post.weight, (struct epilogue){.bias = w->post.bias}, causal_plain);
}

/* Temporal upsampling turns each frame, except the video's first, into two. Computes the earlier (half 0) or
 * the later (half 1) of the two frames, by one half of the rows of each time weight. */
static void causal_upsample_time(struct context *x, struct tensor out, const struct causal_operand *o,
                                 const struct sliced_conv_weights *w, int32_t half) {
    int32_t C = out.dim[2];
    struct epilogue parts = {.bias = tensor_slice(w->bias, half * C, C)};
    for (int32_t slice = 0; slice < CONV_SLICES; slice++) {
        int32_t before = CONV_SLICES - 1 - slice;
        struct tensor in = o->frame;
        if (o->t < before) continue;
        if (before) in = causal_frame(o->cache, (o->t - before) % 2);
        causal_add_slice(x, out, in, tensor_slice(w->weight[slice], half * C, C), &parts, causal_plain);
    }
}

void causal_forward_upsample(struct context *x, const struct causal_resample_weights *w,
                             const struct visit_scope *scope, int level) {
    static const struct conv_options twice = {.upsample = 2};
    struct causal_state *state = scope->lane->state;
    struct tensor in = state->buffer.frames;
    int32_t n = in.dim[0], Y = in.dim[1], X = in.dim[2], C = in.dim[3];
    int32_t times = w->time.bias.rank ? 2 : 1, time_scale = scope->chunk ? times : 1;
    struct tensor out = causal_put(&state->buffer, n * time_scale, 2 * Y, 2 * X, w->weight.dim[0]);
    struct tensor between = time_scale > 1 ? causal_scratch(x, Y, X, C) : (struct tensor){0};
    for (int32_t k = 0; k < n * time_scale; k++) {
        struct causal_operand o = {.frame = causal_frame(in, k / time_scale), .cache = state->time[level]};
        struct tensor from = o.frame;
        o.t = causal_first_frame(scope, n) + k / time_scale - 1;
        if (time_scale > 1) {
            from = between;
            causal_upsample_time(x, between, &o, &w->time, k % time_scale);
            if (k % time_scale) causal_cache_input(x, &o);
        }
        struct tensor to = causal_frame(out, k);
        op_conv2d(x, to, from, w->weight, (struct epilogue){.bias = w->bias}, twice);
        if (state->level_input[level].rank)
            op_repeat_up(x, to, causal_frame(state->level_input[level], k / time_scale), to,
                         (struct shortcut){times, 2, time_scale > 1 ? k % time_scale : times - 1});
    }
}

/* Temporal downsampling: merges frames t - 2, t - 1 and t (t even) into one. */
static void causal_downsample_time(struct context *x, struct tensor out, struct tensor cache,
                                   const struct tensor *two, const struct sliced_conv_weights *w) {
    struct epilogue parts = {.bias = w->bias};
    causal_add_slice(x, out, causal_frame(cache, 0), w->weight[0], &parts, causal_plain);
    causal_add_slice(x, out, two[0], w->weight[1], &parts, causal_plain);
    causal_add_slice(x, out, two[1], w->weight[2], &parts, causal_plain);
}

/* Adds the level shortcut: means over two input frames of the level or, without halve_time, over one frame.
 */
static void causal_add_mean_shortcut(struct context *x, struct tensor out, struct tensor level, int32_t times,
                                     bool halve_time) {
    for (int32_t k = 0; k < out.dim[0]; k++) {
        struct tensor to = causal_frame(out, k), before = {0};
        if (halve_time) before = causal_frame(level, 2 * k);
        op_mean_down(x, to, causal_frame(level, halve_time ? 2 * k + 1 : k), before, to,
                     (struct shortcut){times, 2, 0});
    }
}

void causal_forward_downsample(struct context *x, const struct causal_resample_weights *w,
                               const struct visit_scope *scope, int level) {
    static const struct conv_options strided = {.upsample = 1, .stride = 2};
    struct causal_state *state = scope->lane->state;
    struct tensor in = state->buffer.frames, cache = state->time[level], two[2];
    bool halve_time = w->time.bias.rank && scope->chunk;
    int32_t n = in.dim[0], Y = in.dim[1] / 2, X = in.dim[2] / 2, C = w->weight.dim[0];
    struct tensor out = causal_put(&state->buffer, halve_time ? n / 2 : n, Y, X, C);
    for (int32_t k = 0; k < 2 && halve_time; k++) two[k] = causal_scratch(x, Y, X, C);
    for (int32_t k = 0; k < n; k++) {
        struct tensor to = halve_time ? two[k % 2] : causal_frame(out, k);
        op_conv2d(x, to, causal_frame(in, k), w->weight, (struct epilogue){.bias = w->bias}, strided);
        if (halve_time && k % 2) causal_downsample_time(x, causal_frame(out, k / 2), cache, two, &w->time);
        if (cache.rank && (!halve_time || k % 2))
            op_copy(x, causal_pixels(causal_frame(cache, 0)), causal_pixels(to));
    }
    if (state->level_input[level].rank)
        causal_add_mean_shortcut(x, out, state->level_input[level], w->time.bias.rank ? 2 : 1, halve_time);
}
