/* Names of operators and precisions, and the cost of one operator call from its shapes and types: operands,
 * bytes, FLOPs, estimated seconds. Declared in ops.h and device.h. */
#include "kernels/ops.h"

#include <string.h>

const char *op_name(enum op_kind kind) {
    static const char *const names[N_OP_KINDS] = {
        [OP_LINEAR] = "linear",
        [OP_LINEAR_FEW] = "linear_few",
        [OP_ATTENTION] = "attention",
        [OP_RELATIVE_BIAS] = "relative_bias",
        [OP_RMS_NORM] = "rms_norm",
        [OP_LAYER_NORM] = "layer_norm",
        [OP_GROUP_STATISTICS] = "group_statistics",
        [OP_GROUP_NORM] = "group_norm",
        [OP_GROUP_RANGE] = "group_range",
        [OP_ROPE_TABLE] = "rope_table",
        [OP_ROPE_AXIS] = "rope_axis",
        [OP_ROPE] = "rope",
        [OP_GLU] = "glu",
        [OP_ADD] = "add",
        [OP_COPY] = "copy",
        [OP_ADD_POSITIONS] = "add_positions",
        [OP_BROADCAST_ROW] = "broadcast_row",
        [OP_PATCHIFY] = "patchify",
        [OP_UNPATCHIFY] = "unpatchify",
        [OP_TIMESTEP] = "timestep",
        [OP_CONV2D] = "conv2d",
        [OP_MEAN_DOWN] = "mean_down",
        [OP_REPEAT_UP] = "repeat_up",
        [OP_LATENT_TO_IMAGE] = "latent_to_image",
        [OP_IMAGE_TO_RGB] = "image_to_rgb",
        [OP_MAP] = "map",
        [OP_SNAKE] = "snake",
        [OP_SINC_UP] = "sinc_up",
    };
    return names[kind];
}

const char *precision_name(enum precision precision) {
    static const char *const precision_names[N_PRECISIONS] = {"f32", "bf16", "f16", "int8"};
    return precision_names[precision];
}

enum precision precision_named(const char *name) {
    int p = 0;
    while (p < N_PRECISIONS && strcmp(name, precision_name((enum precision)p))) p++;
    return (enum precision)p;
}

int op_operands(const struct op *op, const struct tensor *list[OP_OPERANDS_MAX]) {
    int n = 0;
    for (int i = 0; i < OP_INPUTS; i++) list[n++] = &op->in[i];
    const struct group_norm *norm = op->kind == OP_CONV2D ? &op->conv.norm : &op->group_norm;
    switch (op->kind) {
    case OP_LINEAR:
        list[n++] = &op->epilogue.bias;
        list[n++] = &op->epilogue.gate;
        list[n++] = &op->epilogue.residual;
        list[n++] = &op->down_product;
        break;
    case OP_RMS_NORM:
        list[n++] = &op->modulation.scale;
        list[n++] = &op->modulation.shift;
        list[n++] = &op->modulation.gate;
        list[n++] = &op->modulation.base;
        break;
    case OP_GROUP_NORM:
    case OP_CONV2D:
        list[n++] = &norm->statistics;
        list[n++] = &norm->weight;
        list[n++] = &norm->bias;
        if (op->kind != OP_CONV2D) break;
        list[n++] = &op->conv.pixel_norm.weight;
        list[n++] = &op->conv.slopes;
        break;
    default:
        break;
    }
    return n;
}

uint64_t op_bytes_in(const struct op *op, const struct arena *arena) {
    const struct tensor *list[OP_OPERANDS_MAX + 1];
    int n = op_operands(op, list);
    uint64_t bytes = 0;
    list[n++] = &op->out;
    for (int i = 0; i < n; i++)
        if (list[i]->rank && arena_holds(arena, list[i]->data)) bytes += (uint64_t)tensor_bytes(list[i]);
    return bytes;
}

/* FLOPs per output element of simple operators; 0: the operator only moves data. */
static const unsigned char flops_per_output[N_OP_KINDS] = {
    [OP_RMS_NORM] = 4,      [OP_LAYER_NORM] = 6,
    [OP_GROUP_NORM] = 3,    [OP_ROPE_TABLE] = 2,
    [OP_ROPE_AXIS] = 2,     [OP_GLU] = 4,
    [OP_ADD] = 1,           [OP_UNPATCHIFY] = 1,
    [OP_TIMESTEP] = 2,      [OP_LATENT_TO_IMAGE] = 2,
    [OP_IMAGE_TO_RGB] = 3,  [OP_REPEAT_UP] = 1,
    [OP_ADD_POSITIONS] = 8, [OP_MAP] = 2,
};

double op_flops(const struct op *op) {
    const struct tensor *in = op->in;
    double outputs = (double)tensor_elements(&op->out);
    switch (op->kind) {
    case OP_LINEAR:
        return 2 * outputs * (in[0].dim[1] + (op->down_product.rank ? op->down_product.dim[1] : 0));
    case OP_LINEAR_FEW:
        return 2 * outputs * in[0].dim[1];
    case OP_ATTENTION:
        return 4 * outputs * in[1].dim[0];
    case OP_CONV2D:
        return 2 * outputs * in[1].dim[1] * in[1].dim[2] * in[1].dim[3];
    case OP_GROUP_STATISTICS:
    case OP_GROUP_RANGE:
        return 3 * (double)tensor_elements(&in[0]);
    case OP_MEAN_DOWN:
        return outputs + op->shortcut.frames * (double)tensor_elements(&in[0]);
    case OP_SNAKE: /* per output: 2 upsampled samples, each with a filter and 13 steps of the sine; a filter
                    */
        return (2 * (SNAKE_TAPS + 13) + 2 * SNAKE_TAPS) * outputs;
    case OP_SINC_UP:
        return 4 * SINC_WIDTH * outputs;
    case OP_ROPE:
        return (in[2].rank ? 7 : 3) * outputs;
    default:
        return flops_per_output[op->kind] * outputs;
    }
}

int32_t int8_group(const struct tensor *weight) {
    static const int32_t groups[] = {256, 64, 16};
    int32_t k = weight->dim[1];
    if (k > INT8_INPUTS_MAX) return 0;
    if (dtype_is_rotated(weight->dtype)) return dtype_block_values(weight->dtype);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (k % groups[i] == 0) return groups[i];
    return 0;
}

enum op_class op_class_of(const struct op *op) {
    switch (op->kind) {
    case OP_LINEAR:
        return op->precision == PRECISION_INT8  ? CLASS_LINEAR_INT8
               : op->precision == PRECISION_F32 ? CLASS_LINEAR
                                                : CLASS_LINEAR_BF16; /* f16 has the rate of bf16 */
    case OP_ATTENTION:
        return op->precision == PRECISION_INT8 ? CLASS_ATTENTION_INT8 : CLASS_ATTENTION;
    case OP_CONV2D:
        return CLASS_CONV;
    default:
        return CLASS_BYTES;
    }
}

const char *op_class_name(enum op_class of) {
    static const char *const class_names[N_OP_CLASSES] = {
        "linear", "linear_bf16", "linear_int8", "attention", "attention_int8", "conv", "bytes"};
    return class_names[of];
}

double op_seconds(const struct op *op, const struct op_rates *rates) {
    enum op_class class = op_class_of(op);
    double rate = rates->per_second[class], amount = op_flops(op);
    if (rate <= 0) return 0;
    if (class == CLASS_BYTES) {
        amount = (double)tensor_bytes(&op->out);
        for (int i = 0; i < OP_INPUTS; i++)
            if (op->in[i].rank)
                amount += (double)(tensor_bytes(&op->in[i]) + tensor_scales_bytes(&op->in[i]));
    }
    return amount / rate;
}
