/* Workspace of CUDA operators, assumed memory overheads, and the planning-only CUDA device for `plan --device
 * cuda` on machines without a GPU. */
#include "kernels/cuda/costs.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_int8.h"
#include "kernels/cuda/cards.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/rope.h"

static void cuda_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    uint64_t bytes = 0;
    (void)device;
    switch (op->kind) {
    case OP_LINEAR:
        bytes = cuda_linear_layout(op).end;
        break;
    case OP_LINEAR_FEW:
        bytes = cuda_few_layout(op).end;
        break;
    case OP_ATTENTION:
        bytes = attention_is_int8(op) ? cuda_int8_attention_layout(op).end : cuda_attention_layout(op).end;
        break;
    case OP_CONV2D:
        bytes = cuda_conv_layout(op).end;
        break;
    case OP_RMS_NORM:
        bytes = cuda_rms_layout(op).end;
        break;
    case OP_LAYER_NORM:
        bytes = cuda_layer_layout(op).end;
        break;
    case OP_ROPE:
        bytes = cuda_rope_bytes(op);
        break;
    case OP_GROUP_STATISTICS:
        bytes = cuda_statistics_layout(op).end;
        break;
    case OP_GROUP_RANGE:
        bytes = cuda_range_layout(op).end;
        break;
    case OP_GROUP_NORM:
        bytes = cuda_channel_norm_bytes(tensor_columns(&op->in[0]));
        break;
    default: /* all other operators need no workspace */
        break;
    }
    *cost = (struct op_cost){.workspace_bytes = bytes};
}

/* Assumed overheads in bytes: device memory of CUDA context, cuBLASLt and cuDNN; host memory of the driver
 * and these libraries. Generous, because not measured on a GPU. On a GPU the context is measured (nvml.h) and
 * the larger value is used. */
static const uint64_t opened_bytes = (uint64_t)448 << 20, host_bytes = (uint64_t)768 << 20;

/* Row chunks that fill a GPU: products run in tiles of 128 rows and waves of one tile per multiprocessor, and
 * each chunk reads all weights. Calculated over four cards, two models and five sizes (bench/LOG.md): 1,400
 * to 2,600 rows are within a few percent of no chunking. At 4,128 tokens of Z-Image a chunk takes 240 MB
 * (calculated), more than q, k, v and the attention result (190 MB), and less than these took in f32 (253
 * MB). */
static const struct row_chunks row_chunks = {1792, 128};

struct device cuda_device_defaults(void) {
    static const char no_f32[] = "the CUDA device has no f32 products";
    return (struct device){
        .name = "cuda",
        .chunks = row_chunks,
        .unsupported = {[PRECISION_F32] = no_f32},
        .operands
            .in = {[PRECISION_BF16] = DTYPE_BF16, [PRECISION_F16] = DTYPE_F16, [PRECISION_INT8] = DTYPE_BF16},
        .overhead_bytes = opened_bytes + CUDA_CODE_BYTES + PAGES_SPARE_BYTES,
        .host_bytes = host_bytes,
        .cost = cuda_cost};
}

struct planned {
    struct device device;
    struct sys *sys;
};

static enum status planned_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status planned_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    (void)device, (void)op, (void)workspace;
    return error_set(e, INTERNAL, "a plan-only CUDA device cannot compute");
}

static void planned_destroy(struct device *device) {
    struct planned *p = (struct planned *)device;
    p->sys->release(p->sys, p);
}

/* Table of memory functions without any function: marks the planning device as having its own memory. Plans
 * allocate no device memory. */
static const struct device_memory planned_memory;

struct device *cuda_plan_device(struct sys *sys, const struct cuda_card *card, struct error *e) {
    struct planned *p = sys_new(sys, 1, sizeof *p, "the plan-only CUDA device", e);
    if (!p) return NULL;
    *p = (struct planned){.device = cuda_device_defaults(), .sys = sys};
    p->device.plan_only = true;
    p->device.card = card;
    p->device.memory_bytes = card ? card->memory_bytes : 0;
    p->device.memory = &planned_memory;
    p->device.prepare = planned_prepare;
    p->device.run = planned_run;
    p->device.destroy = planned_destroy;
    return &p->device;
}
