/* Eviction of residents during a run: the choice of blocks (a pure function), and runs that continue
 * bit-identical with less memory after a request of the pressure callback, a failed operator or a failed
 * stage start. Builds without oneDNN, so that ThreadSanitizer can check it. The environment variable SEED
 * changes all random cases. */
#include "test/lib/check.h"
#include "test/lib/random_needs.h"
#include "test/lib/synthetic_run.h"

/* plans: number of random plans; stride: every stride-th operator is made to fail, in a run of its own */
static int plans, stride;

static struct run_need need;
static struct plan plan, reduced;

static void make_plan(void) {
    plan_begin(&need, &plan);
    plan.keep = (int32_t)below(2);
    for (int s = 0; s < need.n_stages; s++) {
        uint64_t percent = below(3) * 50;
        for (int b = 0; b < need.stage[s].n_blocks; b++)
            plan_set_resident(&plan.stage[s], b, below(100) < percent);
        plan.stage[s].ring_bytes = plan_least_ring(&need.stage[s], &plan.stage[s]) + PLAN_PAGE * below(100);
        plan.stage[s].staging_bytes = plan_least_staging(&need, &plan.stage[s], s);
    }
    plan_evaluate(&need, &plan);
    /* the budget equals the plan's peak: one byte more memory exceeds it */
    plan.ram_budget_bytes = plan.ram_peak_bytes;
    plan.vram_budget_bytes = plan.vram_peak_bytes;
}

static uint64_t part_bytes(const struct stage_need *n, int block, bool side) {
    return side ? n->block_adapter_bytes[block] : n->block_bytes[block] - n->block_adapter_bytes[block];
}

/* Returns the bytes of pages that only this block occupies in the plan: evicting the block frees these pages.
 */
static uint64_t own_pages(int s, int block) {
    const struct stage_need *n = &need.stage[s];
    uint64_t pages = 0;
    for (int part = 0; part < 2; part++) {
        uint64_t from = 0;
        for (int b = 0; b < block; b++)
            if (plan_is_resident(&plan.stage[s], b)) from += part_bytes(n, b, part);
        uint64_t to = (from + part_bytes(n, block, part)) / PLAN_PAGE * PLAN_PAGE;
        if (to > plan_pages(from)) pages += to - plan_pages(from);
    }
    return pages;
}

/* Checks one stage of the plan after eviction; returns the bytes that eviction frees in this stage. */
static uint64_t check_stage(int s, bool held) {
    const struct plan_stage *was = &plan.stage[s], *is = &reduced.stage[s];
    uint64_t freed = 0;
    for (int b = 0; b < need.stage[s].n_blocks; b++) {
        if (plan_is_resident(is, b)) assert_true(plan_is_resident(was, b));
        if (plan_is_resident(was, b) && !plan_is_resident(is, b)) freed += own_pages(s, b);
    }
    uint64_t least = plan_least_ring(&need.stage[s], is);
    assert_true(is->ring_bytes >= least && is->ring_bytes >= was->ring_bytes);
    assert_true(is->ring_bytes == was->ring_bytes || is->ring_bytes <= 2 * least);
    assert_true(is->ring_bytes - was->ring_bytes <= freed);
    assert_true(is->peak_ram_bytes <= was->peak_ram_bytes && is->peak_vram_bytes <= was->peak_vram_bytes);
    if (!held) assert_memory_equal(is->resident, was->resident, sizeof is->resident);
    return freed;
}

TEST(evicted_plan_fits_and_frees_enough) {
    int enough = 0, nothing = 0, others_first = 0;
    for (uint64_t i = 0; i < (uint64_t)plans; i++) {
        struct error e = {0};
        seeded_state = seed_base + i;
        random_need(&need, !below(4), 1 + (int)below(4), 40);
        make_plan();
        int stage = (int)below((uint64_t)need.n_stages);
        uint32_t held = (uint32_t)below(1 << need.n_stages) | (uint32_t)1 << stage;
        uint64_t freed = 0, requested = below(2) ? below(plan.stage[stage].resident_bytes + 1) + 1
                                                 : (uint64_t)1 << below(27);
        uint64_t evicted_bytes = plan_evict(&need, &plan, stage, held, requested, &reduced);
        assert_int_equal(plan_check(&need, &reduced, &e), OK);
        for (int s = 0; s < need.n_stages; s++) freed += check_stage(s, held >> s & 1);
        uint64_t growth = reduced.stage[stage].ring_bytes - plan.stage[stage].ring_bytes;
        assert_true(evicted_bytes + growth <= freed);
        if (!evicted_bytes) assert_memory_equal(&reduced, &plan, sizeof plan);
        if (evicted_bytes && reduced.stage[stage].resident_bytes == plan.stage[stage].resident_bytes)
            others_first++;
        enough += evicted_bytes >= requested;
        nothing += !evicted_bytes;
    }
    assert_true(enough > plans / 4 && nothing > plans / 100 && others_first > plans / 100);
}

/* Of 60 equal residents, evicted blocks are spread evenly: at most 60 / evicted + 1 remaining residents are
 * adjacent. */
TEST(eviction_spreads_streamed_blocks) {
    for (int k = 1; k < 30; k++) {
        add_blocks(one_stage(&need, 4, 0), 60, 1 << 20, 0);
        plan_begin(&need, &plan);
        for (int b = 0; b < 60; b++) plan_set_resident(&plan.stage[0], b, true);
        plan_evaluate(&need, &plan);
        uint64_t a_block = (1 << 20) - PLAN_PAGE;
        uint64_t evicted_bytes = plan_evict(&need, &plan, 0, 1, (uint64_t)k * a_block, &reduced);
        assert_true(evicted_bytes >= (uint64_t)k * a_block);
        int gone = 0, stays = 0, longest = 0;
        for (int b = 0; b < 60; b++) {
            bool resident = plan_is_resident(&reduced.stage[0], b);
            gone += !resident;
            stays = resident ? stays + 1 : 0;
            if (stays > longest) longest = stays;
        }
        /* The evicted blocks free k blocks, plus two for a ring of two blocks and at most one for a page that
         * neighbours share. */
        assert_in_range(gone, k + 2, k + 3);
        assert_int_equal(reduced.stage[0].ring_bytes, 2 << 20);
        assert_true(longest <= 60 / gone + 1);
    }
}

static struct {
    uint64_t bytes; /* result of a random third of the calls of bytes_needed; other calls return 0 */
    int asked, evicted, again, begun_again;
    int64_t live; /* bytes of live pages at the last call of bytes_needed */
    /* fail_at: number of the first failing operator, from 1 (0: none fails); fail_more: number of further
     * operators that fail */
    int fail_at, fail_more;
} pressure;

static uint64_t bytes_needed(void *user) {
    pressure.asked++;
    pressure.live = memory_checker.pages_live;
    return below(3) ? 0 : pressure.bytes;
}

static void evicted(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason) {
    assert_true(first == synthetic.visits.visits || first[-1].stage != first->stage ||
                first[-1].evaluation != first->evaluation);
    assert_true(bytes > 0);
    if (reason == EVICT_ASKED) assert_true(memory_checker.pages_live <= pressure.live - (int64_t)bytes);
    pressure.evicted++;
    pressure.again += reason == EVICT_OPERATOR;
    pressure.begun_again += reason == EVICT_STAGE;
    if (reason == EVICT_STAGE)
        assert_true(first == synthetic.visits.visits || first[-1].stage != first->stage);
}

static bool no_tick(void *user, const struct visit *visit, double done, struct error *e) {
    return true;
}

static const struct run_hooks hooks = {.evaluation_ended = synthetic_evaluation_ended,
                                       .stage_ended = synthetic_stage_ended,
                                       .bytes_needed = bytes_needed,
                                       .evicted = evicted,
                                       .tick = no_tick};

static enum status failing_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    int n = ((struct arithmetic *)device)->runs + 1, at = pressure.fail_at;
    if (at && n >= at && n <= at + pressure.fail_more) {
        ((struct arithmetic *)device)->runs++;
        return error_set(e, MEMORY, "no memory for this operator");
    }
    return arithmetic_run(device, op, workspace, e);
}

static void make(void) {
    synthetic_make();
    synthetic.run.hooks = &hooks;
    synthetic.device.device.run = arithmetic_run;
    synthetic_expect(false);
    synthetic.device.device.run = failing_run;
    memset(&pressure, 0, sizeof pressure);
}

static void run_same(void) {
    synthetic.device.runs = 0;
    fault_sys.delay_us = below(2) ? 0 : 300;
    synthetic_run_same(false);
    assert_true(memory_checker.pages_peak <= planned_pages());
}

/* Another program takes memory now and then. The session's next run loads the evicted blocks again. */
TEST(eviction_on_request_keeps_bits) {
    make();
    for (uint64_t i = 0; i < (uint64_t)plans / 10; i++) {
        seeded_state = seed_base + 50000 + i;
        synthetic_random_plan(75, 60);
        for (int run = 0; run < 3; run++) {
            if (!synthetic.plan.keep) residents_destroy(&synthetic.residents);
            pressure.bytes = run == 2 ? 0 : below(4) ? 1 + below(300 << 10) : UINT64_MAX;
            run_same();
        }
        residents_destroy(&synthetic.residents);
    }
    assert_true(pressure.evicted > plans / 20 && pressure.again == 0);
    synthetic_remove();
}

/* One operator fails with MEMORY: the run evicts a resident and continues, or returns the error. */
TEST(failed_operator_evicts_and_retries) {
    make();
    int rescued = 0, failed = 0;
    for (int at = 1;; at += stride) {
        struct error e = {0};
        seeded_state = seed_base + 60000 + (uint64_t)at;
        synthetic_random_plan(75, 60);
        residents_destroy(&synthetic.residents);
        if (at % 9 == 0) plan_solve(&synthetic.need, 0, 0, &synthetic.plan);
        synthetic.device.runs = pressure.evicted = pressure.again = 0;
        pressure.fail_at = at;
        synthetic_reset(false);
        synthetic_execute(&e);
        int runs = synthetic.device.runs;
        pressure.fail_at = 0;
        if (e.code == OK && runs < at) break;
        if (e.code == OK)
            assert_true(pressure.again == 1 &&
                        !memcmp(synthetic_want, synthetic.latent, sizeof synthetic_want));
        if (e.code != OK) assert_true(e.code == MEMORY && pressure.again == 0);
        assert_true(memory_checker.pages_peak <= planned_pages());
        rescued += e.code == OK;
        failed += e.code != OK;
        run_same();
    }
    assert_true(rescued > 3 * failed && failed > 0);
    synthetic_remove();
}

/* An operator always fails with MEMORY: the run returns the error after at most two evictions. */
TEST(failing_operator_ends_run) {
    make();
    seeded_state = seed_base;
    synthetic_random_plan(75, 60);
    for (int at = 1; at < 40; at += 3) {
        struct error e = {0};
        memset(&pressure, 0, sizeof pressure);
        pressure.fail_at = at;
        pressure.fail_more = 1 << 20;
        synthetic.device.runs = 0;
        synthetic_reset(false);
        synthetic_execute(&e);
        assert_int_equal(e.code, MEMORY);
        assert_in_range(pressure.again, 0, 2);
        pressure.fail_at = 0;
        run_same();
    }
    synthetic_remove();
}

static struct {
    /* continued: number of runs that completed although a stage start failed. failed: number of runs that
     * failed although at most two calls failed. */
    int continued, failed;
} stage_starts;

/* Returns whether residents existed that could be evicted for the stage that failed to start. */
static bool could_evict(void) {
    int stage = 0;
    for (int i = 0; i < synthetic.n_events; i++) stage += synthetic.events[i] < 0;
    uint32_t held = (uint32_t)1 << stage;
    for (int s = 0; s < SYNTHETIC_STAGES; s++)
        if (resident_memory_held(&synthetic.residents.memory[s])) held |= (uint32_t)1 << s;
    return plan_evict(&synthetic.need, &synthetic.plan, stage, held, UINT64_MAX, &reduced) > 0;
}

/* Makes one call of a kind, number `at`, and the `more` following calls fail in a run. Returns false if the
 * run makes fewer calls. Failures before the reader threads start end the run without a retry. */
static bool start_fails(enum call call, long at, long more) {
    struct error e = {0};
    pressure.begun_again = 0;
    synthetic.device.runs = 0;
    synthetic_reset(false);
    memory_checker_restart();
    fault_sys_fail(&fault_sys, call, at, more);
    executor_run(&synthetic.run, &synthetic.need, &synthetic.plan, &synthetic.residents, &synthetic.counters,
                 &e);
    bool there = atomic_load(&fault_sys.count[call]) >= at;
    struct memory_use use = sys_memory_use(&fault_sys.sys);
    for (int line = synthetic.plan.keep ? LINE_STATE : LINE_STORE; line < N_MEMORY_LINES; line++)
        assert_int_equal(use.live_bytes[line], 0);
    assert_true(memory_checker.pages_peak <= planned_pages());
    if (!there) assert_ok(&e);
    if (e.code == OK) assert_memory_equal(synthetic_want, synthetic.latent, sizeof synthetic_want);
    if (e.code == OK) assert_true(there == (pressure.begun_again > 0));
    if (e.code != OK) assert_int_equal(e.code, MEMORY);
    if (e.code != OK && !more && atomic_load(&fault_sys.count[CALL_THREAD])) assert_false(could_evict());
    assert_in_range(pressure.begun_again, 0, more <= 1 ? more + 1 : 2 * SYNTHETIC_STAGES);
    if (there && e.code == OK) stage_starts.continued++;
    if (there && e.code != OK && more <= 1) stage_starts.failed++;
    return there;
}

/* Makes memory calls of a run fail once (half of the residents are evicted), twice (all residents are
 * evicted), or always. */
static void one_plan(void) {
    static const long more[] = {0, 1, 1 << 20};
    static const enum call calls[] = {CALL_MAP, CALL_COMMIT};
    for (int k = 0; k < 6; k++)
        for (long at = 1;; at++) {
            if (below(2)) residents_destroy(&synthetic.residents);
            if (!start_fails(calls[k % 2], at, more[k / 2])) break;
            run_same();
        }
    residents_destroy(&synthetic.residents);
}

TEST(failed_stage_start_evicts_and_retries) {
    make();
    memset(&stage_starts, 0, sizeof stage_starts);
    for (uint64_t i = 0; i < (uint64_t)plans / 100; i++) {
        seeded_state = seed_base + 70000 + i;
        synthetic_random_plan(75, 60);
        one_plan();
    }
    assert_true(stage_starts.continued > stage_starts.failed && stage_starts.failed > 0);
    synthetic_remove();
}

int main(void) {
    plans = thorough() ? 2000 : 100;
    stride = thorough() ? 1 : 13;
    return run_seeded_tests();
}
