#include "models/vae_bands.h"

#include <assert.h>

int vae_bands_first(const struct component *c) {
    int first = c->dims[LEVELS] - VAE_BANDS_LEVELS;
    return first > 1 ? first : 1;
}

static struct linear_weights vae_bands_conv(struct arena *arena, int32_t out, int32_t in, int32_t side,
                                            bool *ok) {
    struct linear_weights w;
    w.weight = arena_tensor(arena, DTYPE_F32, 4, (int32_t[]){out, in, side, side}, ok);
    w.bias = arena_tensor(arena, DTYPE_F32, 1, &out, ok);
    return w;
}

static struct resnet_weights vae_bands_resnet(struct arena *arena, int32_t in, int32_t out, bool *ok) {
    struct resnet_weights w = {0};
    w.norm1.weight = arena_tensor(arena, DTYPE_F32, 1, &in, ok);
    w.conv1 = vae_bands_conv(arena, out, in, 3, ok);
    w.norm2.weight = arena_tensor(arena, DTYPE_F32, 1, &out, ok);
    w.conv2 = vae_bands_conv(arena, out, out, 3, ok);
    if (in != out) w.shortcut = vae_bands_conv(arena, out, in, 1, ok);
    return w;
}

/* One level: upsampling from the level before, then resnets. */
struct vae_bands_level {
    struct linear_weights up;
    struct resnet_weights resnet[VAE_BANDS_RESNETS];
};

/* Makes the tensors of all levels in the arena, always in the same order. */
static void vae_bands_weights(const struct vae_bands *bands, struct arena *arena,
                              struct vae_bands_level *levels, bool *ok) {
    for (int i = 0; i < bands->n; i++) {
        int32_t in = bands->in_channels[i], out = bands->channels[i];
        levels[i].up = vae_bands_conv(arena, in, i ? bands->channels[i - 1] : bands->before, 3, ok);
        for (int k = 0; k < bands->n_resnets; k++)
            levels[i].resnet[k] = vae_bands_resnet(arena, k ? out : in, out, ok);
    }
}

/* Makes the tensors of all levels in the kept memory. */
static void vae_bands_tensors(const struct vae_bands *bands, struct vae_bands_level *levels) {
    struct arena arena = {.base = bands->memory.data, .bytes = (uint64_t)tensor_bytes(&bands->memory)};
    bool ok = true;
    vae_bands_weights(bands, &arena, levels, &ok);
}

struct vae_bands vae_bands_declare(const struct component *c, struct arena *arena, bool *ok) {
    struct vae_bands bands = {.first = vae_bands_first(c), .n_resnets = c->dims[RESNETS]};
    struct vae_bands_level levels[VAE_BANDS_LEVELS];
    struct arena counting = arena_counting();
    bands.before = c->dims[CHANNELS + bands.first - 1];
    for (int level = bands.first; level < c->dims[LEVELS]; level++, bands.n++) {
        bands.in_channels[bands.n] = c->dims[IN_CHANNELS + level];
        bands.channels[bands.n] = c->dims[CHANNELS + level];
    }
    vae_bands_weights(&bands, &counting, levels, ok);
    int32_t dim[2] = {(int32_t)(counting.peak / sizeof(float) / FULL_FRAME_ROW), FULL_FRAME_ROW};
    bands.memory = arena_tensor(arena, DTYPE_F32, 2, dim, ok);
    return bands;
}

/* Copies a weight and converts it to f32, as a matrix of one row per output. */
static void vae_bands_keep(struct context *x, struct tensor to, struct tensor weight) {
    int32_t n = weight.dim[0], dim[2] = {n, (int32_t)(tensor_elements(&weight) / n)};
    op_copy(x, tensor_reshape(to, 2, dim), tensor_reshape(weight, 2, dim));
}

static void vae_bands_keep_conv(struct context *x, const struct linear_weights *to,
                                const struct linear_weights *w) {
    vae_bands_keep(x, to->weight, w->weight);
    vae_bands_keep(x, to->bias, w->bias);
}

void vae_bands_keep_resnet(struct context *x, const struct vae_bands *bands, int level, int i,
                           const struct resnet_weights *w) {
    struct vae_bands_level levels[VAE_BANDS_LEVELS];
    vae_bands_tensors(bands, levels);
    const struct resnet_weights *to = &levels[level - bands->first].resnet[i];
    vae_bands_keep(x, to->norm1.weight, w->norm1.weight);
    vae_bands_keep(x, to->norm2.weight, w->norm2.weight);
    vae_bands_keep_conv(x, &to->conv1, &w->conv1);
    vae_bands_keep_conv(x, &to->conv2, &w->conv2);
    if (to->shortcut.weight.rank) vae_bands_keep_conv(x, &to->shortcut, &w->shortcut);
}

void vae_bands_keep_up(struct context *x, const struct vae_bands *bands, int level,
                       const struct linear_weights *w) {
    struct vae_bands_level levels[VAE_BANDS_LEVELS];
    vae_bands_tensors(bands, levels);
    vae_bands_keep_conv(x, &levels[level - bands->first].up, w);
}

/* A strip with its schedule. At time t, in rows of its level, the strip ends at row t - lag. */
struct vae_strip {
    struct strip s;
    int32_t lag, Y;
};

/* Strips of one level: its input, and of each resnet the feature map between its convolutions and its output.
 */
struct vae_level_strips {
    struct vae_strip in, h[VAE_BANDS_RESNETS], out[VAE_BANDS_RESNETS];
};

struct vae_bands_run {
    struct context *x;
    const struct vae_bands *bands;
    struct vae_bands_level weights[VAE_BANDS_LEVELS];
    struct strip from, level_input; /* output and input of the level before the bands; whole feature maps */
    struct vae_level_strips strips[VAE_BANDS_LEVELS];
    int32_t end; /* next row of the image */
};

/* Rows of the image per step: four bands of op_conv2d, so that copies and conversions of weights take little
 * of the time. A multiple of 8, because the first of three levels advances by a whole pair of rows. */
static int32_t vae_bands_step(int32_t columns) {
    return 4 * conv_band_rows(columns) / 8 * 8;
}

/* Returns an empty strip in scratch memory. overlap: most rows above a band that are read again. */
static struct vae_strip vae_strip_begin(struct context *x, int32_t Y, int32_t X, int32_t C, int32_t band,
                                        int32_t overlap, int32_t lag) {
    int32_t capacity = band + 2 * overlap;
    int32_t dim[3] = {capacity < Y ? capacity : Y, X, C};
    return (struct vae_strip){{context_tensor(x, DTYPE_F32, 3, dim), 0, 0}, lag, Y};
}

static int32_t vae_strip_end(const struct vae_strip *s, int32_t t) {
    int32_t end = t - s->lag;
    return end < 0 ? 0 : end < s->Y ? end : s->Y;
}

/* Moves a strip's end to row `end` and returns the tensor for the new rows. If they do not fit, rows from
 * keep_from on move to the front; the capacity then ensures that source and target do not overlap. */
static struct tensor vae_strip_advance(struct context *x, struct strip *s, int32_t keep_from, int32_t end) {
    if (end - s->first > s->rows.dim[0]) {
        int32_t kept = s->end - keep_from;
        assert(s->first + kept <= keep_from && kept + end - s->end <= s->rows.dim[0]);
        op_copy(x, tensor_slice(s->rows, 0, kept), tensor_slice(s->rows, keep_from - s->first, kept));
        s->first = keep_from;
    }
    struct tensor rows = tensor_slice(s->rows, s->end - s->first, end - s->end);
    s->end = end;
    return rows;
}

static int32_t vae_bands_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Computes the new rows of a level's input: upsampling of the level before, and its input as the shortcut. A
 * strip's end is even here, so the shortcut reads whole rows. */
static void vae_bands_up(struct vae_bands_run *run, int i, int32_t t) {
    const struct vae_bands_level *w = &run->weights[i];
    struct vae_level_strips *l = &run->strips[i], *before = i ? l - 1 : NULL;
    const struct strip *from = before ? &before->out[run->bands->n_resnets - 1].s : &run->from;
    const struct strip *input = before ? &before->in.s : &run->level_input;
    struct strip *s = &l->in.s;
    int32_t first = s->end, end = vae_strip_end(&l->in, t);
    if (end == first) return;
    int32_t keep_from = vae_bands_min(strip_row_above(l->h[0].s.end), l->out[0].s.end);
    if (i + 1 < run->bands->n) keep_from = vae_bands_min(keep_from, l[1].in.s.end / 2);
    struct tensor rows = vae_strip_advance(run->x, s, keep_from, end);
    strip_convolve(run->x, rows, first, from, w->up.weight, (struct epilogue){.bias = w->up.bias},
                   (struct conv_options){.upsample = 2});
    op_repeat_up(run->x, rows, tensor_slice(input->rows, first / 2 - input->first, (end - first) / 2), rows,
                 run->bands->shortcut[i]);
}

static struct conv_options vae_bands_silu(struct tensor norm) {
    return (struct conv_options){
        .activation = ACTIVATION_SILU, .upsample = 1, .pixel_norm = {norm, vae_pixel_eps(norm)}};
}

/* Computes the new rows of resnet k: of the feature map between its convolutions, and of its output. */
static void vae_bands_run_resnet(struct vae_bands_run *run, int i, int k, int32_t t) {
    const struct resnet_weights *w = &run->weights[i].resnet[k];
    struct vae_level_strips *l = &run->strips[i];
    const struct strip *in = k ? &l->out[k - 1].s : &l->in.s;
    struct strip *h = &l->h[k].s, *out = &l->out[k].s;
    int32_t first = h->end, end = vae_strip_end(&l->h[k], t);
    if (end > first) {
        struct tensor rows = vae_strip_advance(run->x, h, strip_row_above(out->end), end);
        strip_convolve(run->x, rows, first, in, w->conv1.weight, (struct epilogue){.bias = w->conv1.bias},
                       vae_bands_silu(w->norm1.weight));
    }
    first = out->end, end = vae_strip_end(&l->out[k], t);
    if (end == first) return;
    int32_t keep_from = strip_row_above(run->end);
    if (k + 1 < run->bands->n_resnets)
        keep_from = vae_bands_min(strip_row_above(l->h[k + 1].s.end), l->out[k + 1].s.end);
    else if (i + 1 < run->bands->n)
        keep_from = strip_row_above(l[1].in.s.end / 2);
    struct tensor rows = vae_strip_advance(run->x, out, keep_from, end);
    struct epilogue epilogue = {.bias = w->conv2.bias,
                                .residual = tensor_slice(in->rows, first - in->first, end - first)};
    if (w->shortcut.weight.rank) {
        strip_convolve(run->x, rows, first, in, w->shortcut.weight,
                       (struct epilogue){.bias = w->shortcut.bias}, (struct conv_options){.upsample = 1});
        epilogue.residual = rows;
    }
    strip_convolve(run->x, rows, first, h, w->conv2.weight, epilogue, vae_bands_silu(w->norm2.weight));
}

/* Begins the strips of level i at its size [Y, X]. band: rows by which the level's time advances. lag: rows
 * by which the level's input ends before its time. Returns the lag of the last resnet's output. */
static int32_t vae_bands_begin(struct vae_bands_run *run, int i, int32_t Y, int32_t X, int32_t band,
                               int32_t lag) {
    enum { HALO = 2 };
    const struct vae_bands *bands = run->bands;
    struct vae_level_strips *l = &run->strips[i];
    int32_t in = bands->in_channels[i], out = bands->channels[i];
    /* The next level's shortcut reads the input when the resnets are through with its row. */
    int32_t overlap = i + 1 < bands->n ? 2 * bands->n_resnets + 1 : HALO;
    l->in = vae_strip_begin(run->x, Y, X, in, band, overlap, lag);
    for (int k = 0; k < bands->n_resnets; k++) {
        l->h[k] = vae_strip_begin(run->x, Y, X, out, band, HALO, ++lag);
        l->out[k] = vae_strip_begin(run->x, Y, X, out, band, HALO, ++lag);
    }
    return lag;
}

static struct strip vae_whole_strip(struct tensor picture) {
    return (struct strip){picture, 0, picture.dim[0]};
}

void vae_bands_forward(struct context *x, const struct vae_bands *bands, const struct out_weights *w,
                       struct tensor image, struct tensor from, struct tensor level_input) {
    struct vae_bands_run run = {
        .x = x, .bands = bands, .from = vae_whole_strip(from), .level_input = vae_whole_strip(level_input)};
    int32_t Y = image.dim[0], X = image.dim[1], step = vae_bands_step(X), lag = -1;
    vae_bands_tensors(bands, run.weights);
    for (int i = 0; i < bands->n; i++) {
        int finer = bands->n - 1 - i;
        lag = vae_bands_begin(&run, i, Y >> finer, X >> finer, step >> finer, 2 * lag + 2);
    }
    const struct strip *last = &run.strips[bands->n - 1].out[bands->n_resnets - 1].s;
    for (int32_t t = step; run.end < Y; t += step) {
        for (int i = 0; i < bands->n; i++) {
            int32_t level_time = t >> (bands->n - 1 - i);
            vae_bands_up(&run, i, level_time);
            for (int k = 0; k < bands->n_resnets; k++) vae_bands_run_resnet(&run, i, k, level_time);
        }
        int32_t end = strip_reach(last->end, 1, Y);
        if (end <= run.end) continue;
        strip_convolve(x, tensor_slice(image, run.end, end - run.end), run.end, last, w->conv.weight,
                       (struct epilogue){.bias = w->conv.bias}, vae_bands_silu(w->norm.weight));
        run.end = end;
    }
}
