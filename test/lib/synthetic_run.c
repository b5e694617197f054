#include "test/lib/synthetic_run.h"

#include "bench/dev/paced.h"

const int32_t synthetic_dims[SYNTHETIC_STAGES][4] = {{SYNTHETIC_COLUMNS, 40, SYNTHETIC_ROWS, 5},
                                                     {SYNTHETIC_COLUMNS, 100, SYNTHETIC_ROWS, 8}};
const int synthetic_lanes[SYNTHETIC_STAGES] = {1, SYNTHETIC_LANES},
          synthetic_evaluations[SYNTHETIC_STAGES] = {1, 3};

struct synthetic synthetic;

enum status synthetic_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    for (int i = 0; i < synthetic.stages[visit->stage].n_lanes; i++)
        for (int k = 0; k < SYNTHETIC_ROWS * SYNTHETIC_COLUMNS; k++)
            synthetic.latent[visit->stage][i][k] += 0.1f * synthetic.prediction[visit->stage][i][k];
    synthetic.events[synthetic.n_events++] = (int)(visit - synthetic.visits.visits);
    return e->code;
}

enum status synthetic_stage_ended(void *user, int stage, struct error *e) {
    if (stage == 0)
        for (int i = 0; i < SYNTHETIC_LANES; i++)
            for (int k = 0; k < SYNTHETIC_ROWS * SYNTHETIC_COLUMNS; k++)
                synthetic.latent[1][i][k] += synthetic.latent[0][0][k];
    synthetic.events[synthetic.n_events++] = -1 - stage;
    return e->code;
}

static bool synthetic_tick(void *user, const struct visit *visit, double done, struct error *e) {
    assert_true(visit >= synthetic.visits.visits &&
                visit < synthetic.visits.visits + synthetic.visits.n_visits);
    assert_true(done >= synthetic.done);
    synthetic.done = done;
    if (++synthetic.ticks != synthetic.cancel_at) return true;
    error_set(e, CANCELLED, "cancelled");
    return false;
}

static const struct run_hooks synthetic_hooks = {.evaluation_ended = synthetic_evaluation_ended,
                                                 .stage_ended = synthetic_stage_ended,
                                                 .tick = synthetic_tick};

void synthetic_reset(bool nan) {
    uint64_t random = 77;
    for (int s = 0; s < SYNTHETIC_STAGES; s++)
        for (int i = 0; i < SYNTHETIC_LANES; i++)
            for (int k = 0; k < SYNTHETIC_ROWS * SYNTHETIC_COLUMNS; k++)
                synthetic.latent[s][i][k] = (float)(int64_t)random_next(&random) * 0x1p-63f;
    memset(synthetic.prediction, 0, sizeof synthetic.prediction);
    if (nan) synthetic.latent[1][1][SYNTHETIC_COLUMNS + 3] = NAN, synthetic.latent[1][2][0] = -INFINITY;
    synthetic.n_events = 0;
    synthetic.ticks = 0;
    synthetic.done = 0;
}

static void synthetic_make_stage(int s, struct error *e) {
    const int32_t shape[] = {SYNTHETIC_ROWS, SYNTHETIC_COLUMNS};
    static const float timesteps[] = {0.25f, 1, 3};
    struct component *c = &synthetic.components[s];
    synthetic_open(&fault_sys.sys, synthetic_dims[s], seed_base + (uint64_t)s, &synthetic.files[s], c, e);
    assert_ok(e);
    for (int b = 0; b < c->n_blocks; b++) synthetic.list[s][b] = &c->blocks[b];
    for (int i = 0; i < SYNTHETIC_LANES; i++) {
        synthetic.lanes[s][i].latent = tensor_make(synthetic.latent[s][i], DTYPE_F32, 2, shape);
        synthetic.lanes[s][i].prediction = tensor_make(synthetic.prediction[s][i], DTYPE_F32, 2, shape);
    }
    synthetic.stages[s] = (struct stage){.component = c,
                                         .blocks = synthetic.list[s],
                                         .n_blocks = c->n_blocks,
                                         .n_model_blocks = c->n_blocks,
                                         .lanes = synthetic.lanes[s],
                                         .n_lanes = synthetic_lanes[s],
                                         .n_groups = 1,
                                         .evaluations = synthetic_evaluations[s],
                                         .timesteps = timesteps};
    snprintf(synthetic.stages[s].name, sizeof synthetic.stages[s].name, "stage %c", (char)('a' + s));
    synthetic_family.lanes.visits(c, s, synthetic.lanes[s], synthetic_lanes[s], synthetic_evaluations[s],
                                  &synthetic.visits, e);
}

void synthetic_measure(void) {
    struct error e = {0};
    executor_measure(&synthetic.run, true, &synthetic.need, &e);
    assert_ok(&e);
}

void synthetic_make(void) {
    struct error e = {0};
    memory_checker_init(seed_base);
    memset(&synthetic, 0, sizeof synthetic);
    synthetic.visits.sys = synthetic.residents.sys = &fault_sys.sys;
    synthetic.device = arithmetic_make();
    for (int s = 0; s < SYNTHETIC_STAGES; s++) synthetic_make_stage(s, &e);
    synthetic.run = (struct run){&fault_sys.sys,
                                 &synthetic.device.device,
                                 synthetic.stages,
                                 SYNTHETIC_STAGES,
                                 &synthetic.visits,
                                 &synthetic_hooks,
                                 2,
                                 NULL,
                                 false};
    synthetic_measure();
}

void synthetic_use_bus(double bytes_per_second) {
    struct error e = {0};
    synthetic.need.separate = true;
    synthetic.run.device = synthetic.residents.device =
        paced_open(&fault_sys.sys, &synthetic.device.device, bytes_per_second, &e);
    assert_ok(&e);
}

void synthetic_remove(void) {
    residents_destroy(&synthetic.residents);
    assert_int_equal(sys_memory_use(&fault_sys.sys).live_bytes[LINE_DEVICE], 0);
    if (synthetic.residents.device) synthetic.residents.device->destroy(synthetic.residents.device);
    visit_list_destroy(&synthetic.visits);
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        component_destroy(&synthetic.components[s]);
        synthetic_files_remove(&synthetic.files[s]);
    }
    assert_no_memory_violation();
    assert_int_equal(fault_sys_live_bytes(&fault_sys), 0);
    assert_int_equal(memory_checker.reserved, 0);
}

void synthetic_execute(struct error *e) {
    memory_checker_restart();
    executor_run(&synthetic.run, &synthetic.need, &synthetic.plan, &synthetic.residents, &synthetic.counters,
                 e);
}

int64_t planned_pages(void) {
    uint64_t most = 0, kept = 0;
    for (int s = 0; s < SYNTHETIC_STAGES; s++) kept += synthetic.plan.stage[s].resident_bytes;
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        const struct plan_stage *p = &synthetic.plan.stage[s];
        uint64_t takes = p->ring_bytes + (synthetic.plan.keep ? kept : p->resident_bytes) + p->state_bytes +
                         p->activation_bytes + p->workspace_bytes;
        if (takes > most) most = takes;
    }
    return (int64_t)most;
}

/* Runs one visit without the executor: reads the block's weights into memory of their own, then runs all
 * lanes. */
static void plain_visit(const struct visit *v, struct context *x) {
    const struct stage *stage = &synthetic.stages[v->stage];
    const struct block *block = stage->blocks[v->block];
    char *packed = aligned_alloc(ARENA_ALIGN, block->bytes + ARENA_ALIGN);
    void *weights = calloc(1, block_weights_bytes(block));
    for (int i = 0; i < block->n_segments; i++)
        source_read(block->segments[i].source, packed + block->segments[i].packed_offset,
                    block->segments[i].bytes, block->segments[i].file_offset, x->error);
    block_point(block, packed_contiguous(block, packed), weights);
    if (synthetic.change_weights) synthetic.change_weights(v, weights);
    for (int i = 0; i < stage->n_lanes; i++) {
        struct visit_scope scope = {.lane = &stage->lanes[i], .number = block->number};
        if (v->evaluation >= 0) scope.timesteps = stage->timesteps + v->evaluation;
        x->scratch->used = 0;
        block->kind->forward(x, weights, &scope);
    }
    free(weights);
    free(packed);
}

static void run_plain_loop(void) {
    enum { ROOM = 1 << 18 };
    struct error e = {0};
    struct synthetic_state states[SYNTHETIC_LANES];
    bool ok = true;
    char *memory = aligned_alloc(ARENA_ALIGN, 3 * ROOM);
    for (int i = 0; i < synthetic.visits.n_visits; i++) {
        const struct visit *v = &synthetic.visits.visits[i];
        struct stage *stage = &synthetic.stages[v->stage];
        struct arena state = {.base = memory, .bytes = ROOM},
                     scratch = {.base = memory + ROOM, .bytes = ROOM};
        struct context x = {.device = &synthetic.device.device,
                            .scratch = &scratch,
                            .workspace = memory + 2 * ROOM,
                            .workspace_bytes = ROOM,
                            .error = &e};
        for (int k = 0; k < stage->n_lanes; k++) stage->lanes[k].state = &states[k];
        synthetic_family.state.declare(stage->component, stage->lanes, stage->n_lanes, &state, &state, &ok);
        plain_visit(v, &x);
        if (v->ends_evaluation) synthetic_evaluation_ended(NULL, v, &e);
        if (i + 1 == synthetic.visits.n_visits || synthetic.visits.visits[i + 1].stage != v->stage)
            synthetic_stage_ended(NULL, v->stage, &e);
    }
    free(memory);
    assert_true(ok);
    assert_ok(&e);
}

float synthetic_want[SYNTHETIC_STAGES][SYNTHETIC_LANES][SYNTHETIC_ROWS * SYNTHETIC_COLUMNS];

void synthetic_expect(bool nan) {
    synthetic_reset(nan);
    run_plain_loop();
    memcpy(synthetic_want, synthetic.latent, sizeof synthetic_want);
}

void synthetic_run_same(bool nan) {
    struct error e = {0};
    synthetic_reset(nan);
    synthetic_execute(&e);
    assert_ok(&e);
    assert_memory_equal(synthetic_want, synthetic.latent, sizeof synthetic_want);
    assert_no_memory_violation();
}

uint64_t synthetic_least_budget(void) {
    static struct plan plan;
    plan_solve(&synthetic.need, UINT64_MAX, 0, &plan);
    return plan.ram_least_bytes;
}

void synthetic_random_plan(uint64_t percent, uint64_t pages) {
    plan_begin(&synthetic.need, &synthetic.plan);
    synthetic.plan.keep = (int32_t)below(2);
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        struct plan_stage *p = &synthetic.plan.stage[s];
        for (int b = 0; b < synthetic.need.stage[s].n_blocks; b++)
            plan_set_resident(p, b, below(100) < percent);
        p->ring_bytes = plan_least_ring(&synthetic.need.stage[s], p) + PLAN_PAGE * below(2) * below(pages);
        p->staging_bytes = plan_least_staging(&synthetic.need, p, s);
    }
    plan_evaluate(&synthetic.need, &synthetic.plan);
}
