/* The CUDA device without a GPU: see cuda.h. It is what `plan --device cuda` is measured with on any machine.
 */
#include "kernels/cuda/costs.h"
#include "kernels/cuda/cuda.h"

static enum status planned_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status planned_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    (void)device, (void)op, (void)workspace;
    return error_set(e, INTERNAL, "a device that is only planned for cannot compute");
}

static void planned_destroy(struct device *device) {
    struct planned {
        struct device device;
        struct sys *sys;
    } *p = (struct planned *)device;
    p->sys->release(p->sys, p);
}

struct device *cuda_planned(struct sys *sys, struct error *e) {
    (void)sys, (void)planned_prepare, (void)planned_run, (void)planned_destroy;
    error_set(e, INTERNAL, "not yet");
    return NULL;
}
