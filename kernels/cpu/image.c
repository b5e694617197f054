/* Conversions between latents, tokens and images: patchify, unpatchify, latent_to_image, image_to_rgb. */
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
        for (int32_t i = 0; i < op->out.dim[1]; i++) token[i] = *cpu_patch_value(&p, corner, i);
    }
}

static enum status cpu_patchify_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, op->out.dim[0], patchify_tokens, op);
    return OK;
}

const struct cpu_operator cpu_patchify = {NULL, NULL, cpu_patchify_run};

static void unpatchify_tokens(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    struct patched p = patched_of(&op->out, &op->patches);
    for (int64_t t = first; t < end; t++) {
        struct token_coords corner = patch_corner(&p, t);
        const float *token = tensor_row(&op->in[0], t);
        for (int32_t i = 0; i < op->in[0].dim[1]; i++) *cpu_patch_value(&p, corner, i) = token[i] * op->scale;
    }
}

static enum status cpu_unpatchify_run(struct cpu *cpu, const struct op *op, char *workspace,
                                      struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, op->in[0].dim[0], unpatchify_tokens, op);
    return OK;
}

const struct cpu_operator cpu_unpatchify = {NULL, NULL, cpu_unpatchify_run};

static void latent_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct tensor *latent = &op->in[0];
    const struct latent_format *f = &op->format;
    int each = f->n > 1;
    int32_t rows = op->out.dim[0], columns = op->out.dim[1], channels = op->out.dim[2];
    for (int64_t y = first; y < end; y++)
        for (int32_t x = 0; x < columns; x++) {
            float *pixel = tensor_row(&op->out, (int64_t)y * columns + x);
            for (int32_t c = 0; c < channels; c++) {
                pixel[c] =
                    tensor_row(latent, (int64_t)c * rows + y)[x] / f->scale[c * each] + f->shift[c * each];
                if (f->limit > 0) pixel[c] = f->limit * tanhf(pixel[c] / f->limit);
            }
        }
}

static enum status cpu_latent_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, op->out.dim[0], latent_rows, op);
    return OK;
}

const struct cpu_operator cpu_latent_to_image = {NULL, NULL, cpu_latent_run};

/* Converts a value in -1..1 to 0..255; NaN becomes 0. rintf rounds halves to even, because the engine does
 * not change the rounding mode. */
static uint8_t cpu_rgb_value(float value) {
    float v = value / 2 + 0.5f;
    v = v > 0 ? v : 0;
    v = v < 1 ? v : 1;
    return (uint8_t)rintf(255 * v);
}

static void rgb_pixels(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t i = first; i < end; i++) {
        uint8_t *pixel = (uint8_t *)op->out.data + i * op->out.row_bytes;
        for (int32_t c = 0; c < op->out.dim[2]; c++) pixel[c] = cpu_rgb_value(tensor_row(&op->in[0], i)[c]);
    }
}

static enum status cpu_rgb_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->out), rgb_pixels, op);
    return OK;
}

const struct cpu_operator cpu_image_to_rgb = {NULL, NULL, cpu_rgb_run};
