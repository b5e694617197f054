#include "test/lib/vae_run.h"

static bool vae_run_goes_on(void *user, const struct visit *visit, double done, struct error *e) {
    (void)user, (void)visit, (void)done;
    return e->code == OK;
}

static enum status vae_run_evaluated(void *user, const struct visit *visit, struct error *e) {
    (void)user, (void)visit;
    return e->code;
}

static enum status vae_run_staged(void *user, int stage, struct error *e) {
    (void)user, (void)stage;
    return e->code;
}

void vae_run_measure(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                     struct device *device, int n_chunks) {
    static const struct run_hooks hooks = {
        .evaluation_ended = vae_run_evaluated, .stage_ended = vae_run_staged, .tick = vae_run_goes_on};
    struct sys *sys = &golden_state.sys;
    *r = (struct vae_run){.visits.sys = sys, .residents.sys = sys, .residents.device = device};
    for (int i = 0; i < c->n_blocks; i++) r->blocks[i] = &c->blocks[i];
    r->stage = (struct stage){.name = "half",
                              .component = c,
                              .blocks = r->blocks,
                              .n_blocks = c->n_blocks,
                              .n_model_blocks = c->n_blocks,
                              .lanes = lanes,
                              .n_lanes = n_lanes,
                              .n_groups = 1,
                              .n_chunks = n_chunks,
                              .evaluations = n_lanes * (n_chunks ? n_chunks : 1)};
    stage_visits(&r->stage, 0, &r->visits, &r->error);
    r->run = (struct run){sys, device, &r->stage, 1, &r->visits, &hooks, 1, NULL, false};
    r->need.separate = device->memory;
    executor_measure(&r->run, true, &r->need, &r->error);
    assert_ok(&r->error);
}

void vae_run_execute(struct vae_run *r) {
    struct memory_use *use = &golden_state.sys.use;
    uint64_t planned = r->plan.vram_peak_bytes, library = r->need.stage[0].library_bytes;
    use->peak_bytes[LINE_DEVICE] = 0;
    assert_int_equal(plan_check(&r->need, &r->plan, &r->error), OK);
    executor_run(&r->run, &r->need, &r->plan, &r->residents, NULL, &r->error);
    assert_ok(&r->error);
    if (r->need.separate && !on_gpu()) assert_int_equal(use->peak_bytes[LINE_DEVICE], planned - library);
    residents_destroy(&r->residents);
}
