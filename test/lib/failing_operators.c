#include "test/lib/failing_operators.h"

#include "kernels/ops.h"

static struct {
    enum status (*run)(struct device *device, const struct op *op, void *workspace, struct error *e);
    long n, fail_at;
} operators;

static enum status run_or_fail(struct device *device, const struct op *op, void *workspace, struct error *e) {
    if (++operators.n == operators.fail_at)
        return error_set(e, MEMORY, "no memory for %s", op_name(op->kind));
    return operators.run(device, op, workspace, e);
}

void operators_begin(struct device *device) {
    operators.run = device->run;
    device->run = run_or_fail;
    operators_fail_at(0);
}

long operators_counted(void) {
    return operators.n;
}

void operators_fail_at(long at) {
    operators.n = 0;
    operators.fail_at = at;
}

void operators_end(struct device *device) {
    device->run = operators.run;
}

void operators_fail_in_turn(struct rig *rig, const struct sluice_request *request) {
    enum { TRIES = 20 };
    int again = 0;
    operators_begin(rig->session->device);
    struct result want = run(rig, request);
    long n = operators_counted();
    for (int i = 0; i < TRIES; i++) {
        operators_fail_at(1 + n * i / TRIES);
        struct result got = run(rig, request);
        if (got.code == SLUICE_OK) same(&want, &got, "with a failing operator");
        again += got.code == SLUICE_OK;
    }
    operators_end(rig->session->device);
    check(again >= TRIES / 2, "only %d of %d runs with a failing operator succeeded", again, TRIES);
}
