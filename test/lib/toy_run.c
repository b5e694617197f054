#include "test/lib/toy_run.h"

const int32_t toy_dims[TOY_STAGES][4] = {{TOY_COLUMNS, 40, TOY_ROWS, 5}, {TOY_COLUMNS, 100, TOY_ROWS, 8}};
const int toy_lanes[TOY_STAGES] = {1, TOY_LANES}, toy_evaluations[TOY_STAGES] = {1, 3};

struct toy toy;

enum status toy_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    (void)user;
    for (int i = 0; i < toy.stages[visit->stage].n_lanes; i++)
        for (int k = 0; k < TOY_ROWS * TOY_COLUMNS; k++)
            toy.latent[visit->stage][i][k] += 0.1f * toy.prediction[visit->stage][i][k];
    toy.events[toy.n_events++] = (int)(visit - toy.visits.visits);
    return e->code;
}

enum status toy_stage_ended(void *user, int stage, struct error *e) {
    (void)user;
    if (stage == 0)
        for (int i = 0; i < TOY_LANES; i++)
            for (int k = 0; k < TOY_ROWS * TOY_COLUMNS; k++) toy.latent[1][i][k] += toy.latent[0][0][k];
    toy.events[toy.n_events++] = -1 - stage;
    return e->code;
}

static bool toy_tick(void *user, const struct visit *visit, double done, struct error *e) {
    (void)user;
    assert_true(visit >= toy.visits.visits && visit < toy.visits.visits + toy.visits.n_visits);
    assert_true(done >= toy.done);
    toy.done = done;
    if (++toy.ticks != toy.cancel_at) return true;
    error_set(e, CANCELLED, "cancelled");
    return false;
}

static const struct run_hooks toy_hooks = {
    .evaluation_ended = toy_evaluation_ended, .stage_ended = toy_stage_ended, .tick = toy_tick};

void toy_reset(bool nan) {
    uint64_t random = 77;
    for (int s = 0; s < TOY_STAGES; s++)
        for (int i = 0; i < TOY_LANES; i++)
            for (int k = 0; k < TOY_ROWS * TOY_COLUMNS; k++)
                toy.latent[s][i][k] = (float)(int64_t)random_next(&random) * 0x1p-63f;
    memset(toy.prediction, 0, sizeof toy.prediction);
    if (nan) toy.latent[1][1][TOY_COLUMNS + 3] = NAN, toy.latent[1][2][0] = -INFINITY;
    toy.n_events = 0;
    toy.ticks = 0;
    toy.done = 0;
}

static void toy_make_stage(int s, struct error *e) {
    const int32_t shape[] = {TOY_ROWS, TOY_COLUMNS};
    static const float timesteps[] = {0.25f, 1, 3};
    struct component *c = &toy.components[s];
    toy_open(&watch.sys, toy_dims[s], seed_base + (uint64_t)s, &toy.files[s], c, e);
    assert_ok(e);
    for (int b = 0; b < c->n_blocks; b++) toy.list[s][b] = &c->blocks[b];
    for (int i = 0; i < TOY_LANES; i++) {
        toy.lanes[s][i].latent = tensor_make(toy.latent[s][i], DTYPE_F32, 2, shape);
        toy.lanes[s][i].prediction = tensor_make(toy.prediction[s][i], DTYPE_F32, 2, shape);
    }
    toy.stages[s] = (struct stage){.component = c,
                                   .blocks = toy.list[s],
                                   .n_blocks = c->n_blocks,
                                   .n_model_blocks = c->n_blocks,
                                   .lanes = toy.lanes[s],
                                   .n_lanes = toy_lanes[s],
                                   .n_groups = 1,
                                   .evaluations = toy_evaluations[s],
                                   .timesteps = timesteps};
    snprintf(toy.stages[s].name, sizeof toy.stages[s].name, "stage %c", (char)('a' + s));
    toy_family.visits(c, s, toy.lanes[s], toy_lanes[s], toy_evaluations[s], &toy.visits, e);
}

void toy_measure(void) {
    struct error e = {0};
    executor_measure(&toy.run, true, &toy.need, &e);
    assert_ok(&e);
}

void toy_make(void) {
    struct error e = {0};
    watched_init(seed_base);
    memset(&toy, 0, sizeof toy);
    toy.visits.sys = toy.residents.sys = &watch.sys;
    toy.device = arithmetic_make();
    for (int s = 0; s < TOY_STAGES; s++) toy_make_stage(s, &e);
    toy.run = (struct run){
        &watch.sys, &toy.device.device, toy.stages, TOY_STAGES, &toy.visits, &toy_hooks, 2, NULL, false};
    toy_measure();
}

void toy_remove(void) {
    residents_destroy(&toy.residents);
    visit_list_destroy(&toy.visits);
    for (int s = 0; s < TOY_STAGES; s++) {
        component_destroy(&toy.components[s]);
        toy_files_remove(&toy.files[s]);
    }
    assert_no_violation();
    assert_int_equal(watch_live(&watch), 0);
    assert_int_equal(watched.reserved, 0);
}

void toy_execute(struct error *e) {
    watched_restart();
    executor_run(&toy.run, &toy.need, &toy.plan, &toy.residents, &toy.counters, e);
}

int64_t planned_pages(void) {
    uint64_t most = 0, kept = 0;
    for (int s = 0; s < TOY_STAGES; s++) kept += toy.plan.stage[s].resident_bytes;
    for (int s = 0; s < TOY_STAGES; s++) {
        const struct plan_stage *p = &toy.plan.stage[s];
        uint64_t takes = p->ring_bytes + (toy.plan.keep ? kept : p->resident_bytes) + p->state_bytes +
                         p->activation_bytes + p->workspace_bytes;
        if (takes > most) most = takes;
    }
    return (int64_t)most;
}

/* One visit by hand: weights read into memory of its own, then its lanes. */
static void plain_visit(const struct visit *v, struct context *x) {
    const struct stage *stage = &toy.stages[v->stage];
    const struct block *block = stage->blocks[v->block];
    char *packed = aligned_alloc(ARENA_ALIGN, block->bytes + ARENA_ALIGN);
    void *weights = calloc(1, block_weights_bytes(block));
    for (int i = 0; i < block->n_segments; i++)
        source_read(block->segments[i].source, packed + block->segments[i].packed_offset,
                    block->segments[i].bytes, block->segments[i].file_offset, x->error);
    block_point(block, packed_together(block, packed), weights);
    if (toy.change_weights) toy.change_weights(v, weights);
    for (int i = 0; i < stage->n_lanes; i++) {
        struct visit_scope scope = {.lane = &stage->lanes[i], .number = block->number};
        if (v->evaluation >= 0) scope.timesteps = stage->timesteps + v->evaluation;
        x->scratch->used = 0;
        block->kind->forward(x, weights, &scope);
    }
    free(weights);
    free(packed);
}

void plain_run(void) {
    enum { ROOM = 1 << 18 };
    struct error e = {0};
    struct toy_state states[TOY_LANES];
    bool ok = true;
    char *memory = aligned_alloc(ARENA_ALIGN, 3 * ROOM);
    for (int i = 0; i < toy.visits.n_visits; i++) {
        const struct visit *v = &toy.visits.visits[i];
        struct stage *stage = &toy.stages[v->stage];
        struct arena state = {.base = memory, .bytes = ROOM},
                     scratch = {.base = memory + ROOM, .bytes = ROOM};
        struct context x = {.device = &toy.device.device,
                            .scratch = &scratch,
                            .workspace = memory + 2 * ROOM,
                            .workspace_bytes = ROOM,
                            .error = &e};
        for (int k = 0; k < stage->n_lanes; k++) stage->lanes[k].state = &states[k];
        toy_family.declare(stage->component, stage->lanes, stage->n_lanes, &state, &state, &ok);
        plain_visit(v, &x);
        if (v->ends_evaluation) toy_evaluation_ended(NULL, v, &e);
        if (i + 1 == toy.visits.n_visits || toy.visits.visits[i + 1].stage != v->stage)
            toy_stage_ended(NULL, v->stage, &e);
    }
    free(memory);
    assert_true(ok);
    assert_ok(&e);
}
