/* Between latents, tokens and pictures: patchify, unpatchify, latent_to_image, image_to_rgb. */
#include "kernels/cpu/operators.h"

#include <math.h>

/* A patch of the latent and its token. */
struct patch {
    int32_t y, x, side, channels;
};

static struct patch patch_of(const struct tensor *latent, int side, int64_t token) {
    int64_t across = latent->dim[2] / side;
    return (struct patch){(int32_t)(token / across) * side, (int32_t)(token % across) * side, side,
                          latent->dim[0]};
}

/* Place i of a token is (py, px, c) or (c, py, px), the last fastest. */
static float *cpu_patch_value(const struct tensor *latent, const struct patch *p, enum patch_order order,
                              int32_t i) {
    bool channels_last = order == PATCH_CHANNELS_LAST;
    int32_t area = p->side * p->side, c = channels_last ? i % p->channels : i / area;
    int32_t place = channels_last ? i / p->channels : i % area, px = place % p->side, py = place / p->side;
    return tensor_row(latent, (int64_t)c * latent->dim[1] + p->y + py) + p->x + px;
}

static void patchify_tokens(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t t = first; t < end; t++) {
        struct patch p = patch_of(&op->in[0], op->n, t);
        float *token = tensor_row(&op->out, t);
        for (int32_t i = 0; i < op->out.dim[1]; i++)
            token[i] = *cpu_patch_value(&op->in[0], &p, op->order, i);
    }
}

static enum status cpu_patchify_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    team_run(cpu->team, op->out.dim[0], patchify_tokens, op);
    return OK;
}

const struct cpu_operator cpu_patchify = {NULL, NULL, cpu_patchify_run};

static void unpatchify_tokens(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t t = first; t < end; t++) {
        struct patch p = patch_of(&op->out, op->n, t);
        const float *token = tensor_row(&op->in[0], t);
        for (int32_t i = 0; i < op->in[0].dim[1]; i++)
            *cpu_patch_value(&op->out, &p, op->order, i) = token[i] * op->scale;
    }
}

static enum status cpu_unpatchify_run(struct cpu *cpu, const struct op *op, char *workspace,
                                      struct error *e) {
    (void)workspace;
    (void)e;
    team_run(cpu->team, op->in[0].dim[0], unpatchify_tokens, op);
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
            for (int32_t c = 0; c < channels; c++)
                pixel[c] =
                    tensor_row(latent, (int64_t)c * rows + y)[x] / f->scale[c * each] + f->shift[c * each];
        }
}

static enum status cpu_latent_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    team_run(cpu->team, op->out.dim[0], latent_rows, op);
    return OK;
}

const struct cpu_operator cpu_latent_to_image = {NULL, NULL, cpu_latent_run};

/* NaN becomes 0. rintf rounds halves to even: the engine leaves the rounding mode alone. */
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
    team_run(cpu->team, tensor_rows(&op->out), rgb_pixels, op);
    return OK;
}

const struct cpu_operator cpu_image_to_rgb = {NULL, NULL, cpu_rgb_run};
