/* The CUDA device without a GPU: see cuda.h. It is what `plan --device cuda` is measured with on any machine.
 */
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/own.h"

struct planned {
    struct device device; /* first */
    struct sys *sys;
};

static enum status planned_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status planned_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    (void)device, (void)op, (void)workspace;
    return error_set(e, INTERNAL, "a device that is only planned for cannot compute");
}

static void planned_destroy(struct device *device) {
    struct planned *p = (struct planned *)device;
    p->sys->release(p->sys, p);
}

/* That there is one says to plans that the device has memory of its own; nobody takes any. */
static const struct device_memory planned_memory;

struct device *cuda_planned(struct sys *sys, const struct cuda_card *card, struct error *e) {
    struct planned *p = sys->alloc(sys, LINE_HOST, sizeof *p);
    if (!p) {
        error_set(e, MEMORY, "no memory for the CUDA device's plans");
        return NULL;
    }
    *p = (struct planned){.device = cuda_identity(), .sys = sys};
    p->device.planned = true;
    p->device.card = card;
    p->device.memory_bytes = card ? card->memory_bytes : 0;
    p->device.memory = &planned_memory;
    p->device.prepare = planned_prepare;
    p->device.run = planned_run;
    p->device.destroy = planned_destroy;
    return &p->device;
}
