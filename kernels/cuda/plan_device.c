/* Plan-only CUDA device, for `plan --device cuda` on machines without a GPU. */
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device_defaults.h"

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

/* Empty function table: marks the device as having its own memory. Plans allocate nothing. */
static const struct device_memory planned_memory;

struct device *cuda_plan_device(struct sys *sys, const struct cuda_card *card, struct error *e) {
    struct planned *p = sys->alloc(sys, LINE_HOST, sizeof *p);
    if (!p) {
        error_set(e, MEMORY, "no memory for the plan-only CUDA device");
        return NULL;
    }
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
