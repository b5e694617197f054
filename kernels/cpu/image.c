/* Operators that rearrange images: conversions between latents, tokens and images (patchify, unpatchify,
 * latent_to_image, image_to_rgb), and the residual shortcuts of the Wan 2.2 VAE (mean_down, repeat_up). */
#include "kernels/cpu/operators.h"

#include <math.h>

/* A latent [C,Y,X] or image [Y,X,C] and the sizes of its patches. */
struct patched {
    const struct tensor *latent;
    struct patches patches;
    int32_t channels, rows, columns; /* size of the latent or image */
};

static struct patched patched_of(const struct tensor *latent, const struct patches *p) {
    const int32_t *dim = latent->dim;
    return p->pixels ? (struct patched){latent, *p, dim[2], dim[0], dim[1]}
                     : (struct patched){latent, *p, dim[0], dim[1], dim[2]};
}

/* Returns row and column of the first pixel of a token's patch. */
static struct token_coords patch_corner(const struct patched *p, int64_t token) {
    int32_t side = p->patches.side;
    struct token_coords place =
        token_coords_at(p->patches.token_order, p->rows / side, p->columns / side, token);
    return (struct token_coords){place.row * side, place.column * side};
}

/* Returns the number of values of one frame in a token. */
static int32_t patch_values(const struct patched *p) {
    return p->channels * p->patches.side * p->patches.side;
}

/* Returns the token's column of value i of frame patches.frame; tokens are ordered (c, frame, y, x). */
static int64_t patch_column(const struct patched *p, int32_t i) {
    if (p->patches.frames < 2) return i;
    int32_t area = p->patches.side * p->patches.side;
    return ((int64_t)(i / area) * p->patches.frames + p->patches.frame) * area + i % area;
}

/* Returns the address, in the latent or image, of value i of a token. Values are ordered (py, px, c), (c, py,
 * px) or (c, px, py), the last fastest. */
static float *cpu_patch_value(const struct patched *p, struct token_coords corner, int32_t i) {
    bool channels_last = p->patches.order == PATCH_CHANNELS_LAST;
    int32_t side = p->patches.side, area = side * side, c = channels_last ? i % p->channels : i / area;
    int32_t place = channels_last ? i / p->channels : i % area;
    bool columns_first = p->patches.order == PATCH_COLUMNS_FIRST;
    int64_t y = corner.row + (columns_first ? place % side : place / side);
    int64_t x = corner.column + (columns_first ? place / side : place % side);
    if (p->patches.pixels) return tensor_row(p->latent, y * p->columns + x) + c;
    return tensor_row(p->latent, (int64_t)c * p->rows + y) + x;
}

static void patchify_tokens(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    struct patched p = patched_of(&op->in[0], &op->patches);
    for (int64_t t = first; t < end; t++) {
        struct token_coords corner = patch_corner(&p, t);
        float *token = tensor_row(&op->out, t);
        for (int32_t i = 0; i < patch_values(&p); i++)
            token[patch_column(&p, i)] = *cpu_patch_value(&p, corner, i);
    }
}

const struct cpu_operator cpu_patchify = {.rows = patchify_tokens};

static void unpatchify_tokens(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    struct patched p = patched_of(&op->out, &op->patches);
    for (int64_t t = first; t < end; t++) {
        struct token_coords corner = patch_corner(&p, t);
        const float *token = tensor_row(&op->in[0], t);
        for (int32_t i = 0; i < patch_values(&p); i++)
            *cpu_patch_value(&p, corner, i) = token[patch_column(&p, i)] * op->scale;
    }
}

static enum status cpu_unpatchify_run(struct cpu *cpu, const struct op *op, char *workspace,
                                      struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, op->in[0].dim[0], unpatchify_tokens, op);
    return OK;
}

const struct cpu_operator cpu_unpatchify = {.run = cpu_unpatchify_run};

static void latent_pixels(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct latent_format *f = &op->format;
    int each = f->n > 1;
    int32_t rows = op->out.dim[0], columns = op->out.dim[1], channels = op->out.dim[2];
    for (int64_t i = first; i < end; i++) {
        float *pixel = tensor_row(&op->out, i);
        for (int32_t c = 0; c < channels; c++) {
            const float *line = tensor_row(&op->in[0], (int64_t)c * rows + i / columns);
            pixel[c] = line[i % columns] / f->scale[c * each] + f->shift[c * each];
            if (f->limit > 0) pixel[c] = f->limit * tanhf(pixel[c] / f->limit);
        }
    }
}

const struct cpu_operator cpu_latent_to_image = {.rows = latent_pixels};

/* Converts values in -1..1 to 0..255; NaN becomes 0. rintf rounds halves to even, because the engine does not
 * change the rounding mode. */
static void rgb_pixels(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t i = first; i < end; i++) {
        uint8_t *pixel = (uint8_t *)op->out.data + i * op->out.row_bytes;
        for (int32_t c = 0; c < op->out.dim[2]; c++) {
            float v = tensor_row(&op->in[0], i)[c] / 2 + 0.5f;
            v = v > 0 ? v : 0;
            v = v < 1 ? v : 1;
            pixel[c] = (uint8_t)rintf(255 * v);
        }
    }
}

const struct cpu_operator cpu_image_to_rgb = {.rows = rgb_pixels};

/* AvgDown3D: each channel of an output pixel is the mean of `run` consecutive values, summed in order. */
static void mean_pixels(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct tensor *frames[2] = {&op->in[1], &op->in[0]}; /* frames in order of time */
    const struct tensor *base = &op->in[2];
    int32_t side = op->shortcut.side, f = op->shortcut.frames, channels = op->in[0].dim[2];
    int32_t each = f * side * side, run = channels * each / op->out.dim[2];
    int64_t columns = op->in[0].dim[1];
    for (int64_t pixel = first; pixel < end; pixel++) {
        int64_t y = pixel / op->out.dim[1] * side, x = pixel % op->out.dim[1] * side;
        float sum = 0, *to = tensor_row(&op->out, pixel);
        for (int32_t c = 0, i = 0; c < channels; c++)
            for (int32_t j = 0; j < each; j++) {
                const struct tensor *frame = frames[f == 1 ? 1 : j / (side * side)];
                int64_t row = y + j / side % side, column = x + j % side;
                sum += frame->rank ? tensor_row(frame, row * columns + column)[c] : 0;
                if (++i % run) continue;
                int32_t n = i / run - 1;
                to[n] = (base->rank ? tensor_row(base, pixel)[n] : 0) + sum / (float)run;
                sum = 0;
            }
    }
}

const struct cpu_operator cpu_mean_down = {.rows = mean_pixels};

/* DupUp3D: each value of out copies a channel of the coarse pixel that covers it. */
static void repeat_pixels(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct tensor *in = &op->in[0], *base = &op->in[1];
    int32_t side = op->shortcut.side, each = op->shortcut.frames * side * side;
    int32_t outputs = op->out.dim[2], repeats = outputs * each / in->dim[2];
    for (int64_t pixel = first; pixel < end; pixel++) {
        int32_t y = (int32_t)(pixel / op->out.dim[1]), x = (int32_t)(pixel % op->out.dim[1]);
        int32_t place = (op->shortcut.frame * side + y % side) * side + x % side;
        const float *from = tensor_row(in, (int64_t)(y / side) * in->dim[1] + x / side);
        float *to = tensor_row(&op->out, pixel);
        for (int32_t n = 0; n < outputs; n++)
            to[n] = (base->rank ? tensor_row(base, pixel)[n] : 0) + from[(n * each + place) / repeats];
    }
}

const struct cpu_operator cpu_repeat_up = {.rows = repeat_pixels};
