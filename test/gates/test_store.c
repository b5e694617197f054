/* Store, executor and visits: bytes arrive in the right place and in time, memory stays within the
 * plan, every failure ends cleanly. Builds without oneDNN, so that ThreadSanitizer can check it. The
 * environment variable SEED changes all random cases. A wait of more than HANG_SECONDS fails the test. */
#include "test/lib/check.h"
#include "test/lib/store_adapters.h"
#include "test/lib/synthetic_run.h"

/* layouts: number of random file layouts; stride: every stride-th call that can fail is made to fail;
 * budget_step: bytes between two budgets */
static int layouts, stride, budget_step;

static void every_layout(uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        store_fixture_make(seed_base + i);
        run_whole(false);
        int64_t kept = 0;
        for (int s = 0; s < store_fixture.plan.n_stages && store_fixture.plan.keep; s++)
            kept += keepable_bytes(s);
        assert_int_equal(memory_checker.pages_live, kept);
        memory_checker_restart();
        run_whole(store_fixture.plan.keep);
        store_fixture_remove();
    }
}

TEST(every_layout_delivers_right_bytes) {
    every_layout((uint64_t)layouts);
}

TEST(every_sliced_layout_delivers_right_bytes) {
    store_fixture_sliced = true;
    every_layout((uint64_t)layouts / 2);
    store_fixture_sliced = false;
}

static int n_large;

static void count_large(struct sys *sys, void *memory, size_t bytes) {
    (void)sys, (void)memory, (void)bytes;
    n_large++;
}

/* Host memory for weights has large pages, except on virtual machines whose host takes free pages back. */
TEST(large_pages_where_host_keeps_pages) {
    enum { BYTES = 4 << 20 };
    struct sys sys;
    sys_init_machine(&sys);
    sys.use_large_pages = count_large;
    for (int taken = 0; taken < 2; taken++) {
        sys.host_takes_free_pages = taken;
        n_large = 0;
        weights_unreserve(&sys, NULL, weights_reserve(&sys, NULL, BYTES), BYTES);
        assert_int_equal(n_large, !taken);
    }
}

static void run_again(void) {
    struct error e = {0};
    struct store *store = store_fixture_open(&e);
    drive(store, -1, &e);
    assert_ok(&e);
    store_close(store);
    assert_no_memory_violation();
}

/* A session adds, changes and removes adapters. Of blocks that stay resident, only adapter bytes are read. */
TEST(changed_adapters_read_only_their_bytes) {
    for (uint64_t i = 0; i < (uint64_t)layouts / 2; i++) {
        static const uint64_t percents[] = {30, 100, 0, 0, 30};
        store_fixture_make(seed_base + 9000 + i);
        make_plan(true);
        memory_checker_restart();
        run_whole(false);
        for (int k = 0; k < 5; k++) {
            store_fixture_change_adapters(percents[k]);
            memory_checker_restart();
            run_whole(true);
        }
        store_fixture_remove();
    }
}

/* Blocks that stay resident under a changed plan are moved, not read again, if memory permits. */
TEST(changed_plan_moves_residents) {
    int moved = 0;
    for (uint64_t i = 0; i < (uint64_t)layouts / 2; i++) {
        store_fixture_make(seed_base + 12000 + i);
        make_plan(true);
        memory_checker_restart();
        run_whole(false);
        for (int k = 0; k < 3; k++) {
            if (k < 2)
                make_plan(true);
            else
                store_fixture_keep_fewer();
            for (int b = 0; b < store_fixture.stages[0].n_blocks; b++)
                moved += store_fixture_kept(0, b, k == 2, PACKED_BASE);
            memory_checker_restart();
            run_whole(true);
        }
        store_fixture_remove();
    }
    assert_true(moved > layouts);
}

TEST(changed_layout_frees_residents) {
    for (uint64_t i = 0; i < (uint64_t)layouts / 4; i++) {
        store_fixture_make(seed_base + 1000 + i);
        make_plan(true);
        memory_checker_restart();
        run_whole(false);
        make_plan(below(2));
        run_again();
        store_fixture_remove();
    }
}

TEST(fewer_stages_free_residents) {
    struct error e = {0};
    uint64_t seed = seed_base;
    for (store_fixture_make(seed); !store_fixture.blocks[1][0].bytes; store_fixture_make(++seed))
        store_fixture_remove();
    make_plan(true);
    for (int s = 0; s < store_fixture.need.n_stages; s++)
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++)
            plan_set_resident(&store_fixture.plan.stage[s], b, true);
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    memory_checker_restart();
    run_whole(false);
    int n_stages = store_fixture.need.n_stages;
    store_fixture.need.n_stages = store_fixture.plan.n_stages = 1;
    while (store_fixture.visits.visits[store_fixture.visits.n_visits - 1].stage)
        store_fixture.visits.n_visits--;
    store_close(store_fixture_open(&e));
    assert_ok(&e);
    assert_int_equal(memory_checker.pages_live, store_fixture.plan.stage[0].resident_bytes);
    store_fixture.need.n_stages = n_stages;
    store_fixture_remove();
}

/* One read fails: acquiring the block returns the error, bytes read before are right, and nothing hangs. */
TEST(failed_read_reaches_acquire) {
    for (uint64_t i = 0; i < (uint64_t)layouts; i++) {
        store_fixture_make(seed_base + 2000 + i);
        run_whole(false);
        residents_destroy(&store_fixture.residents);
        long reads = atomic_load(&fault_sys.count[CALL_READ]);
        memory_checker_restart();
        /* the failing read is in the first half, because short reads change the total number of reads */
        if (reads) fault_sys_fail(&fault_sys, CALL_READ, 1 + (long)below((uint64_t)reads) / 2, 0);
        struct error e = {0};
        struct store *store = store_fixture_open(&e);
        drive(store, -1, &e);
        assert_int_equal(e.code, reads ? IO : OK);
        if (reads) assert_string_equal(e.found, strerror(EIO));
        if (below(2) && store_fixture.stage >= 0) store_end_stage(store, store_fixture.stage);
        store_close(store);
        memory_checker_restart();
        run_again(); /* after the failed run, only complete blocks may be resident */
        store_fixture_remove();
    }
}

/* Closes the store at any visit with reads in flight, with or without a release and stage end. */
TEST(close_during_reads) {
    for (uint64_t i = 0; i < (uint64_t)layouts; i++) {
        store_fixture_make(seed_base + 3000 + i);
        fault_sys.delay_us = 2000;
        struct error e = {0};
        struct store *store = store_fixture_open(&e);
        int stop = (int)below((uint64_t)store_fixture.visits.n_visits);
        if (i % 8) {
            drive(store, stop, &e);
            assert_ok(&e);
            struct packed_place place;
            if (stop && store_fixture.visits.visits[stop].stage == store_fixture.stage && below(2))
                store_acquire(store, stop, &place, &e);
            if (store_fixture.stage >= 0 && below(2)) store_end_stage(store, store_fixture.stage);
        }
        store_close(store);
        fault_sys.delay_us = 0;
        run_again();
        store_fixture_remove();
    }
}

TEST(tick_ends_a_wait) {
    int ended = 0;
    for (uint64_t i = 0; i < (uint64_t)layouts / 4; i++) {
        store_fixture_make(seed_base + 4000 + i);
        fault_sys.delay_us = 30000;
        store_fixture.ticks_left = 1 + (int)below(3);
        struct error e = {0};
        struct store *store = store_fixture_open(&e);
        int reached = drive(store, -1, &e);
        if (store_fixture.stage >= 0 && below(2)) store_end_stage(store, store_fixture.stage);
        store_close(store);
        assert_true(e.code == OK || e.code == CANCELLED);
        assert_true(e.code == CANCELLED || reached == store_fixture.visits.n_visits);
        ended += e.code == CANCELLED;
        store_fixture_remove();
    }
    assert_true(ended > 5);
}

static void read_directly(void) {
    store_fixture_open_direct(UINT64_MAX);
    store_fixture.plan.bounce_bytes = PLAN_PAGE * 15;
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    memory_checker_restart();
}

/* A tick callback that ends a wait without setting an error must not count as success. */
TEST(await_yields_only_ready) {
    one_block(1000, 0);
    fault_sys.delay_us = 400000;
    store_fixture.readers = 1;
    store_fixture.silent_tick = true;
    struct error e = {0};
    struct store *store = store_fixture_open(&e);
    store_begin_stage(store, 0, &e);
    struct packed_place place;
    enum status status = store_acquire(store, 0, &place, &e);
    if (status == OK) status = store_await(store, 0, store_fixture.blocks[0][0].bytes, &e);
    if (status == OK)
        check_packed_bytes(&store_fixture.blocks[0][0], &place, 0, store_fixture.blocks[0][0].bytes);
    store_close(store);
    store_fixture_remove();
}

/* Three threads read a block of several pieces; invariant I1: each byte is read by exactly one thread. */
TEST(each_byte_is_read_once) {
    for (int direct = 0; direct < 2; direct++) {
        one_block(5 << 20, 0);
        if (direct) read_directly();
        fault_sys.short_reads = true;
        fault_sys.delay_us = 20000;
        run_whole(false);
        assert_true(memory_checker.n_reads >= 3);
        store_fixture_remove();
    }
}

/* The residents of one block must not be reused for a different block. */
TEST(other_block_is_not_reused) {
    one_block(1000, 0);
    store_fixture.stages[0].n_model_blocks = 1;
    store_fixture.plan.keep = true;
    plan_set_resident(&store_fixture.plan.stage[0], 0, true);
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    for (int i = 0; i < 3; i++) {
        memory_checker_restart();
        struct block other = store_fixture.base[0][0];
        if (i == 2) store_fixture.list[0][0] = &other;
        run_again();
        assert_int_equal(memory_checker.n_reads, i != 1);
    }
    store_fixture_remove();
}

TEST(stall_is_counted) {
    one_block(1000, 0);
    atomic_store(&fault_sys.random, 1); /* fault_sys delays the read by nearly half a second */
    fault_sys.delay_us = 500000;
    struct error e = {0};
    struct store *store = store_fixture_open(&e);
    double before = fault_sys.sys.clock(&fault_sys.sys);
    drive(store, -1, &e);
    double waited = fault_sys.sys.clock(&fault_sys.sys) - before, counted = store_count(store).stall_seconds;
    assert_true(counted > 0 && counted <= waited && counted > 0.5 * waited);
    store_close(store);
    store_fixture_remove();
}

/* Truncates a file after it was opened: reading it returns CHANGED, never a signal or wrong bytes. */
static void truncate_file(bool direct) {
    one_block(100000, 0);
    if (direct) read_directly();
    int file = store_fixture.files.index.entries[0].source;
    assert_int_equal(truncate(store_fixture.files.path[file], 1000), 0);
    struct error e = {0};
    struct store *store = store_fixture_open(&e);
    assert_int_equal(drive(store, -1, &e), 0);
    assert_int_equal(e.code, CHANGED);
    store_close(store);
    store_fixture_remove();
}

TEST(truncated_file_is_detected) {
    truncate_file(false);
    truncate_file(true);
}

static enum status expected_of(enum call call) {
    return call == CALL_READ ? IO : call == CALL_THREAD ? DEVICE : MEMORY;
}

TEST(failed_call_leaks_nothing) {
    store_fixture_make(seed_base + 5);
    static const enum call calls[] = {CALL_ALLOC, CALL_MAP, CALL_COMMIT, CALL_THREAD};
    for (int i = 0; i < 4; i++)
        for (long n = 1; n < 100; n++) {
            const enum call call = calls[i];
            struct error e = {0};
            memory_checker_restart();
            fault_sys_fail(&fault_sys, call, n, 0);
            struct store *store = store_fixture_open(&e);
            if (store) drive(store, -1, &e);
            store_close(store);
            residents_destroy(&store_fixture.residents);
            assert_int_equal(memory_checker.pages_live, 0);
            if (atomic_load(&fault_sys.count[call]) < n) break;
            /* a thread that cannot start for lack of memory returns DEVICE */
            if (call == CALL_ALLOC && e.code == DEVICE) continue;
            assert_int_equal(e.code, expected_of(call));
        }
    store_fixture_remove();
}

TEST(eviction_frees_pages) {
    int replanned = 0, smaller = 0;
    for (uint64_t i = 0; i < (uint64_t)layouts; i++) {
        store_fixture_make(seed_base + 6000 + i);
        struct error e = {0};
        struct store *store = store_fixture_open(&e);
        replanned += drive_replanned(store, &smaller, &e);
        if (below(2)) store_end_stage(store, store_fixture.stage);
        store_close(store);
        memory_checker_restart();
        store_fixture.evicted = false;
        run_again();
        store_fixture_remove();
    }
    assert_true(replanned > layouts / 3 && smaller > layouts / 13);
}

TEST(visit_list_grows) {
    memory_checker_init(0);
    struct visit_list list = {.sys = &fault_sys.sys};
    struct error e = {0};
    for (int i = 0; i < 10000; i++) assert_int_equal(visit_add(&list, (struct visit){.block = i}, &e), OK);
    assert_int_equal(list.n_visits, 10000);
    for (int i = 0; i < list.n_visits; i++) assert_int_equal(list.visits[i].block, i);
    fault_sys_fail(&fault_sys, CALL_ALLOC, 1, 0);
    int n = list.n_visits;
    while (visit_add(&list, (struct visit){.block = n}, &e) == OK) n++;
    assert_int_equal(e.code, MEMORY);
    assert_int_equal(list.n_visits, n);
    for (int i = 0; i < n; i++) assert_int_equal(list.visits[i].block, i);
    visit_list_destroy(&list);
    visit_list_destroy(&list);
    assert_int_equal(fault_sys_live_bytes(&fault_sys), 0);
}

/* The expected needs (struct run_need) are computed by hand from the forward functions in synthetic_family.c.
 * Every third layer (number % 3 == 1) has the width 2 F, the others F. */
TEST(measured_need_matches_forwards) {
    synthetic_make();
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        const struct stage_need *n = &synthetic.need.stage[s];
        uint64_t d = SYNTHETIC_COLUMNS, t = SYNTHETIC_ROWS, f = (uint64_t)synthetic_dims[s][SYNTHETIC_F],
                 lanes = (uint64_t)synthetic_lanes[s];
        uint64_t layers = (uint64_t)synthetic_dims[s][SYNTHETIC_LAYERS], mixes = 0, scales = 0;
        double mix = 0, each = (double)(t * d);
        for (uint64_t i = 0; i < layers; i++) {
            mixes += i % 3 != 2, scales += i % 3 == 2;
            if (i % 3 != 2) mix += 2.0 * 2.0 * (double)(t * d * f * (1 + i % 3)) + 4 * each;
        }
        /* Elementwise FLOPs: start block 2 per column (timestep) and 4 per value (swiglu); scale block 4 per
         * value; end block 4 per value (swiglu); once per run 4 per value */
        double evaluation = mix + 2 * (double)d + 4 * each + 4 * each * (double)scales + 4 * each;
        assert_int_equal(n->n_blocks, layers + 3);
        assert_int_equal(n->state_bytes, lanes * 2 * align_up(t * d * 4, 256));
        assert_int_equal(n->activation_bytes, align_up(t * d * 4, 256) + align_up(t * 2 * f * 4, 256));
        assert_int_equal(n->workspace_bytes, 4 * (2 * f > d ? 2 * f : d));
        /* four matrix shapes: each stage multiplies at two widths, up and down */
        assert_int_equal(n->library_bytes,
                         ARITHMETIC_HIDDEN + (2 * f > d ? 2 * f : d) + 8 * ARITHMETIC_PRIMITIVE);
        assert_true(n->flops == (double)lanes * (evaluation * synthetic_evaluations[s] + 4 * each));
        assert_int_equal(mixes + scales, layers);
        for (int b = 0; b < n->n_blocks; b++) {
            assert_int_equal(n->block_repeats[b], b > 0);
            assert_true(n->block_keepable[b] && n->block_bytes[b] == synthetic.list[s][b]->bytes);
        }
    }
    assert_int_equal(synthetic.device.runs, 0);
    assert_true(synthetic.device.prepared > 0);
    synthetic_remove();
}

static void check_events(void) {
    int n = 0;
    for (int i = 0; i < synthetic.visits.n_visits; i++) {
        const struct visit *v = &synthetic.visits.visits[i];
        if (v->ends_evaluation) assert_int_equal(synthetic.events[n++], i);
        if (i + 1 == synthetic.visits.n_visits || v[1].stage != v->stage)
            assert_int_equal(synthetic.events[n++], -1 - v->stage);
    }
    assert_int_equal(synthetic.n_events, n);
}

/* Every budget gives the bits of a plain loop, NaN included, and uses at most the planned pages. */
TEST(every_budget_keeps_bits) {
    synthetic_make();
    uint64_t least = synthetic_least_budget();
    for (int nan = 0; nan < 2; nan++) {
        synthetic_expect(nan);
        assert_int_equal(nan, isnan(synthetic_want[1][1][SYNTHETIC_COLUMNS + 3]) != 0);
        for (uint64_t budget = least; budget < least + (700 << 10); budget += (uint64_t)budget_step) {
            plan_solve(&synthetic.need, budget, 0, &synthetic.plan);
            fault_sys.delay_us = budget % 5 ? 0 : 300;
            synthetic_run_same(nan);
            check_events();
            assert_true(memory_checker.pages_peak <= planned_pages());
            assert_true(synthetic.counters.bytes_moved >= 0 &&
                        synthetic.done <= synthetic.need.stage[0].flops + synthetic.need.stage[1].flops);
        }
        assert_true(synthetic.plan.keep);
        assert_int_equal(synthetic.counters.bytes_moved, 0);
        residents_destroy(&synthetic.residents);
    }
    synthetic_remove();
}

/* Runs plans in which ring, residents and activations grow or shrink from stage to stage. */
TEST(uneven_stages_keep_memory) {
    synthetic_make();
    synthetic_expect(false);
    seeded_state = seed_base + 9000;
    for (int i = 0; i < layouts / 4; i++) {
        synthetic_random_plan(50, 60);
        /* a large ring in one stage, which must be freed before the next stage */
        if (i < SYNTHETIC_STAGES) {
            plan_solve(&synthetic.need, synthetic_least_budget(), 0, &synthetic.plan);
            synthetic.plan.stage[i].ring_bytes = 64 * synthetic.plan.stage[i].ring_bytes;
            plan_evaluate(&synthetic.need, &synthetic.plan);
        }
        residents_destroy(&synthetic.residents);
        synthetic_run_same(false);
        assert_in_range(memory_checker.pages_peak, 1, (uint64_t)planned_pages());
    }
    synthetic_remove();
}

TEST(cancel_at_any_tick) {
    synthetic_make();
    struct error ok = {0};
    plan_solve(&synthetic.need, synthetic_least_budget() + (64 << 10), 0, &synthetic.plan);
    synthetic_reset(false);
    synthetic_execute(&ok);
    assert_ok(&ok);
    residents_destroy(&synthetic.residents);
    int64_t before = fault_sys_live_bytes(&fault_sys);
    /* lower bound of the number of tick calls: waits call more often */
    long ticks = synthetic.device.runs + synthetic.visits.n_visits;
    for (long k = 1; k <= ticks; k += stride) {
        struct error e = {0};
        synthetic_reset(false);
        fault_sys.delay_us = k % 2 ? 0 : 500;
        synthetic.cancel_at = k;
        synthetic_execute(&e);
        assert_int_equal(e.code, CANCELLED);
        residents_destroy(&synthetic.residents);
        assert_int_equal(fault_sys_live_bytes(&fault_sys), before);
        assert_no_memory_violation();
    }
    synthetic_remove();
}

static bool has_residents(const struct plan *plan) {
    uint64_t bytes = 0;
    for (int s = 0; s < plan->n_stages; s++) bytes += plan->stage[s].resident_bytes;
    return bytes > 0;
}

/* Every call that can fail is made to fail, each in a run of its own: the error is clean and nothing leaks,
 * or the run continues with fewer residents (test_evict.c checks the bits). */
TEST(failed_call_ends_run_cleanly) {
    synthetic_make();
    plan_solve(&synthetic.need, synthetic_least_budget() + (64 << 10), 0, &synthetic.plan);
    int64_t before = fault_sys_live_bytes(&fault_sys);
    static const enum call calls[] = {CALL_ALLOC, CALL_MAP, CALL_COMMIT, CALL_THREAD, CALL_READ};
    for (int i = 0; i < 5; i++)
        for (long n = 1; n < 500; n += calls[i] == CALL_READ ? stride : 1) {
            const enum call call = calls[i];
            struct error e = {0};
            synthetic_reset(false);
            memory_checker_restart();
            fault_sys_fail(&fault_sys, call, n, 0);
            executor_measure(&synthetic.run, false, &synthetic.need, &e);
            if (e.code == OK)
                executor_run(&synthetic.run, &synthetic.need, &synthetic.plan, &synthetic.residents, NULL,
                             &e);
            residents_destroy(&synthetic.residents);
            assert_int_equal(fault_sys_live_bytes(&fault_sys), before);
            if (atomic_load(&fault_sys.count[call]) < n) {
                assert_ok(&e);
                break;
            }
            if (e.code == OK && expected_of(call) == MEMORY && has_residents(&synthetic.plan)) continue;
            if (call != CALL_ALLOC || e.code != DEVICE) assert_int_equal(e.code, expected_of(call));
        }
    synthetic_remove();
}

int main(void) {
    layouts = thorough() ? 180 : 60;
    stride = thorough() ? 1 : 5;
    budget_step = thorough() ? 8192 : 3 * 8192;
    return run_seeded_tests();
}
