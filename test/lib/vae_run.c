#include "test/lib/vae_run.h"

#include "models/vae_blocks.h"

#include <stdio.h>
#include <string.h>

struct tensor vae_channels_last(struct tensor t) {
    int32_t C = t.dim[0], Y = t.dim[1], X = t.dim[2];
    struct tensor out = test_tensor(DTYPE_F32, 3, (int32_t[]){Y, X, C});
    for (int64_t i = 0; i < (int64_t)Y * X; i++)
        for (int32_t c = 0; c < C; c++)
            ((float *)out.data)[i * C + c] = ((float *)t.data)[(int64_t)c * Y * X + i];
    return out;
}

struct tensor vae_frames_last(struct tensor t) {
    int32_t C = t.dim[1], n = t.dim[2] * t.dim[3] * t.dim[4];
    struct tensor out = test_tensor(DTYPE_F32, 4, (int32_t[]){t.dim[2], t.dim[3], t.dim[4], C});
    for (int64_t i = 0; i < n; i++)
        for (int32_t c = 0; c < C; c++)
            ((float *)out.data)[i * C + c] = ((float *)t.data)[(int64_t)c * n + i];
    return out;
}

void vae_put_picture(struct block_runner *b, struct tensor picture, int level) {
    struct vae_state *s = b->lane.state;
    assert_true(tensor_bytes(&picture) <= tensor_bytes(&s->full_frame.memory));
    struct tensor to =
        full_frame_put(&s->full_frame, s->front[level], picture.dim[0], picture.dim[1], picture.dim[2]);
    memcpy(to.data, picture.data, (size_t)tensor_bytes(&picture));
}

const struct block *vae_block_of(const struct block_runner *b, const char *module) {
    assert_true(!strncmp(module + 2, "coder.", 6)); /* decoder or encoder */
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        if (!strncmp(block->name, module + 8, strlen(block->name))) return block;
    }
    fail_msg("no block for module %s", module);
    return NULL;
}

struct tensor vae_golden_picture(const struct golden *g, const char *name, const char *side) {
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, side);
    return vae_channels_last(golden_single(g, path));
}

void vae_expect_picture(const struct golden *g, const char *name, struct tensor ours) {
    struct tensor out = vae_golden_picture(g, name, "out");
    for (int i = 0; i < 3; i++) assert_int_equal(ours.dim[i], out.dim[i]);
    expect_close(g, name, ours, out.data);
}

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

static void vae_run_measure_all(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                                int n_chunks, struct device *device) {
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
    component_visits(c, 0, lanes, n_lanes, r->stage.evaluations, &r->visits, &r->error);
    r->run = (struct run){sys, device, &r->stage, 1, &r->visits, &hooks, 1, NULL, false};
    r->need.separate = device->memory;
    executor_measure(&r->run, true, &r->need, &r->error);
    assert_ok(&r->error);
}

void vae_run_measure(struct vae_run *r, const struct component *c, struct lane *lanes, int n_lanes,
                     struct device *device) {
    vae_run_measure_all(r, c, lanes, n_lanes, 0, device);
}

void vae_run_measure_chunks(struct vae_run *r, const struct component *c, struct lane *lane, int n_chunks,
                            struct device *device) {
    vae_run_measure_all(r, c, lane, 1, n_chunks, device);
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
