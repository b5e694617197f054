#include "test/lib/arithmetic_device.h"

#include <math.h>
#include <string.h>

static float *float_row(const struct tensor *t, int64_t row) {
    return (float *)((char *)t->data + row * t->row_bytes);
}

/* Returns one f32 or bf16 weight value as f32, exactly; f16 is not supported, because no test needs it. */
static float weight_at(const struct tensor *t, int64_t row, int64_t column) {
    const char *from = (const char *)t->data + row * t->row_bytes;
    float value;
    if (t->dtype == DTYPE_F32) {
        memcpy(&value, from + 4 * column, 4);
    } else {
        uint16_t half;
        memcpy(&half, from + 2 * column, 2);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
    }
    return value;
}

static void arithmetic_linear(const struct op *op, float *weight_row) {
    const struct tensor *in = &op->in[0], *weight = &op->in[1];
    for (int32_t n = 0; n < weight->dim[0]; n++) {
        for (int32_t k = 0; k < weight->dim[1]; k++) weight_row[k] = weight_at(weight, n, k);
        for (int32_t t = 0; t < in->dim[0]; t++) {
            float sum = op->epilogue.bias.rank ? weight_at(&op->epilogue.bias, 0, n) : 0;
            if (op->epilogue.residual.rank) sum += float_row(&op->epilogue.residual, t)[n];
            for (int32_t k = 0; k < weight->dim[1]; k++) sum += float_row(in, t)[k] * weight_row[k];
            float_row(&op->out, t)[n] = sum;
        }
    }
}

/* Adds each adapter's low-rank product. The low-rank input holds the columns of all adapters side by side. */
static void arithmetic_add_side(const struct op *op) {
    int32_t column = 0, row;
    struct tensor up;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next) {
        if (!tensor_adapted_by(&op->in[1], a, &up, &row)) continue;
        for (int32_t t = 0; t < op->out.dim[0]; t++)
            for (int32_t n = 0; n < up.dim[0]; n++)
                for (int32_t r = 0; r < up.dim[1]; r++)
                    float_row(&op->out, t)[row + n] +=
                        float_row(&op->down_product, t)[column + r] * weight_at(&up, n, r) * up.scale;
        column += up.dim[1];
    }
}

static void arithmetic_rms_norm(const struct op *op) {
    int32_t columns = tensor_columns(&op->out);
    for (int64_t t = 0; t < tensor_rows(&op->out); t++) {
        const float *in = float_row(&op->in[0], t);
        double sum = 0;
        for (int32_t c = 0; c < columns; c++) sum += (double)in[c] * in[c];
        float factor = (float)(1 / sqrt(sum / columns + (double)op->eps));
        for (int32_t c = 0; c < columns; c++)
            float_row(&op->out, t)[c] = in[c] * factor * weight_at(&op->in[1], 0, c);
    }
}

static float arithmetic_element(const struct op *op, int64_t t, int32_t c) {
    float a;
    switch (op->kind) {
    case OP_GLU:
        a = float_row(&op->in[0], t)[c];
        return a / (1 + expf(-a)) * float_row(&op->in[1], t)[c];
    case OP_BROADCAST_ROW:
        return weight_at(&op->in[0], 0, c);
    case OP_TIMESTEP:
        return cosf(op->scale + (float)c);
    default:
        return weight_at(&op->in[0], t, c); /* the copy operator */
    }
}

enum status arithmetic_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct arithmetic *a = (struct arithmetic *)device;
    a->runs++;
    switch (op->kind) {
    case OP_LINEAR:
        arithmetic_linear(op, workspace);
        arithmetic_add_side(op);
        return OK;
    case OP_RMS_NORM:
        arithmetic_rms_norm(op);
        return OK;
    case OP_GLU:
    case OP_BROADCAST_ROW:
    case OP_TIMESTEP:
    case OP_COPY:
        for (int64_t t = 0; t < tensor_rows(&op->out); t++)
            for (int32_t c = 0; c < tensor_columns(&op->out); c++)
                float_row(&op->out, t)[c] = arithmetic_element(op, t, c);
        return OK;
    default:
        return error_set(e, INTERNAL, "arithmetic device: operator %s is not implemented", op_name(op->kind));
    }
}

static void arithmetic_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device;
    *cost = (struct op_cost){0};
    if (op->kind != OP_LINEAR) return;
    uint64_t n = (uint64_t)op->in[1].dim[0], k = (uint64_t)op->in[1].dim[1], t = (uint64_t)op->in[0].dim[0];
    *cost = (struct op_cost){.workspace_bytes = 4 * k,
                             .internal_bytes = ARITHMETIC_HIDDEN + n,
                             .n_primitives = 1,
                             .primitive = {{n << 40 | k << 20 | t, ARITHMETIC_PRIMITIVE}}};
}

static enum status arithmetic_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)op, (void)e;
    ((struct arithmetic *)device)->prepared++;
    return OK;
}

struct arithmetic arithmetic_make(void) {
    return (struct arithmetic){.device = {.name = "arithmetic",
                                          .cost = arithmetic_cost,
                                          .prepare = arithmetic_prepare,
                                          .run = arithmetic_run}};
}
