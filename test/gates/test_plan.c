/* The plan solver and its time prediction: agreement with an independent simulator, plans that fit, monotonic
 * time, distance to brute force, speed. Pure functions: no files, no threads. The environment variable SEED
 * changes all random cases. */
#include "engine/run/advice.h"
#include "engine/run/plan.h"

#include "test/lib/check.h"
#include "test/lib/random_needs.h"
#include "test/lib/seeded.h"

#include <string.h>
#include <time.h>

enum { NEEDS_MOST = 80 };
static int needs, brute; /* number of random cases; number of cases of each brute-force comparison */

static struct run_need need;
static struct plan plan, other;

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* FLUX: Flux.1's 19 double and 38 single blocks; QWEN: Qwen-Image's 60 equal blocks; ODD: 24 blocks of
 * different sizes and times. */
enum shape { FLUX, QWEN, ODD };

static void make_shape(enum shape shape, int evaluations) {
    struct stage_need *n = one_stage(&need, evaluations, shape == ODD ? 12e9 : 24e9);
    if (shape == QWEN) add_blocks(n, 60, 680e6, 1.15 / 60);
    if (shape == FLUX) add_blocks(n, 19, 680e6, 0.65 / 57), add_blocks(n, 38, 283e6, 0.65 / 57);
    for (int i = 0; shape == ODD && i < 24; i++)
        add_blocks(n, 1, 100e6 + i * 37 % 11 * 61e6, 0.004 + i * 29 % 7 * 0.003);
}

/* test/golden/stream/layouts.csv has step times of an independent simulator of the ring (not part of this
 * repository) for the shapes of make_shape. Residents (a bit each) are no blocks or a fraction of them: the
 * first ones (0.2), the last ones (0.3), evenly spaced ones (0.3, 0.6), or chosen by time (0.1, 0.3). Rings
 * hold 1 to 4 of the largest block, plus one byte. */
TEST(prediction_matches_simulator) {
    char head[64], name[8];
    unsigned long long resident;
    double rings, seconds;
    int depth, no_wrap, n = 0;
    FILE *file = fopen("test/golden/stream/layouts.csv", "r");
    assert_non_null(file);
    assert_non_null(fgets(head, sizeof head, file));
    assert_string_equal(head, "shape,resident,rings,depth,no_wrap,seconds\n");
    for (; fscanf(file, "%7[^,],%llx,%lf,%d,%d,%lf\n", name, &resident, &rings, &depth, &no_wrap, &seconds) ==
           6;
         n++) {
        make_shape(!strcmp(name, "flux") ? FLUX : !strcmp(name, "qwen") ? QWEN : ODD, 6);
        uint64_t largest = 0;
        for (int k = 0; k < need.stage[0].n_blocks; k++)
            if (need.stage[0].block_bytes[k] > largest) largest = need.stage[0].block_bytes[k];
        memset(&plan, 0, sizeof plan);
        plan.stage[0] = (struct plan_stage){.resident = {resident},
                                            .ring_bytes = (uint64_t)(rings * (double)largest) + 1,
                                            .depth = depth,
                                            .no_wrap = no_wrap};
        double predicted = timing_predict(&need, &plan, 0).evaluation_seconds;
        if (!(predicted >= 0.99 * seconds && predicted <= 1.01 * seconds))
            fail_msg("row %d: predicted %f s, simulated %f s", n, predicted, seconds);
    }
    fclose(file);
    assert_int_equal(n, 150);
}

/* Extrapolating the time of many evaluations equals simulating each evaluation. */
TEST(extrapolation_matches_simulation) {
    for (int i = 0; i < needs / 4; i++) {
        seeded_state = seed_base + 100 + (uint64_t)i;
        random_need(&need, i % 2, 1, 30);
        struct stage_need *n = &need.stage[0];
        n->evaluations = 2 + (int)below(4);
        plan_solve(&need, 1 << 22 | below(1 << 26), 1 << 22 | below(1 << 26), &plan);
        double six, thousand;
        n->evaluations = 6;
        struct timing timing = timing_predict(&need, &plan, 0);
        six = timing.seconds;
        n->evaluations = 1000;
        thousand = timing_predict(&need, &plan, 0).seconds;
        assert_true(thousand >= six);
        assert_float_equal(thousand, six + 994 * timing.evaluation_seconds, 1e-9 * (float)thousand + 1e-12);
    }
}

/* The predicted time is monotone: restricting copies never makes it shorter; a larger ring, more residents or
 * a larger pool never make it longer. */
TEST(prediction_is_monotone) {
    for (int i = 0; i < needs; i++) {
        seeded_state = seed_base + 300 + (uint64_t)i;
        random_need(&need, i % 2, 1, 20);
        struct stage_need *n = &need.stage[0];
        /* few evaluations only: the time of many is extrapolated from a mean and need not be monotone */
        if (n->evaluations > 6) n->evaluations = 6;
        memset(&plan, 0, sizeof plan);
        struct plan_stage *p = &plan.stage[0];
        for (int b = 0; b < n->n_blocks; b++) {
            plan_set_resident(p, b, !below(3));
            plan_set_pooled(p, b, below(2));
        }
        p->ring_bytes = plan_least_ring(n, p) + below(1 << 20);
        p->staging_bytes = plan_least_staging(&need, p, 0);
        double before = timing_predict(&need, &plan, 0).seconds;
        other = plan;
        other.stage[0].ring_bytes += below(1 << 22);
        assert_true(timing_predict(&need, &other, 0).seconds <= before * (1 + 1e-9));
        plan_set_pooled(&other.stage[0], (int)below((uint64_t)n->n_blocks), true);
        assert_true(timing_predict(&need, &other, 0).seconds <= before * (1 + 1e-9));
        other = plan;
        if (below(2)) other.stage[0].depth = 1 + (int)below(4);
        if (below(2)) other.stage[0].no_wrap = 1;
        if (below(2)) other.stage[0].waits = 1;
        assert_true(timing_predict(&need, &other, 0).seconds >= before * (1 - 1e-9));
    }
}

/* The lower bound that the solver uses to skip plans never exceeds the plan's predicted time. */
TEST(bound_never_exceeds_prediction) {
    static struct block_stream block_stream;
    int stopped = 0;
    for (int i = 0; i < 20 * needs; i++) {
        seeded_state = seed_base + 400 + (uint64_t)i;
        random_need(&need, i % 2, 1, 20);
        const struct stage_need *n = &need.stage[0];
        struct plan_stage p = {.resident = {below(1 << 20) & below(1 << 20)}, .pooled = {below(1 << 20)}};
        p.ring_bytes = plan_least_ring(n, &p) + below(2) * below(1 << 22);
        p.staging_bytes = plan_least_staging(&need, &p, 0) + below(2) * below(1 << 22);
        block_stream_make(n, &need.rates, need.separate, false, &block_stream);
        double seconds = block_stream_timing(&block_stream, &p).seconds, enough = seconds * from_to(0.5, 1.5);
        assert_true(block_stream_bound(&block_stream, &p) <= seconds * (1 + 1e-12));
        double found = block_stream_seconds(&block_stream, &p, enough);
        if (seconds <= enough)
            assert_true(found == seconds);
        else
            assert_true(found > enough && found <= seconds * (1 + 1e-12));
        stopped += found != seconds;
    }
    assert_true(stopped > 0);
}

/* Two blocks, each with one second of copying and one second of compute. */
TEST(two_blocks_by_hand) {
    static const struct {
        int ring, depth, no_wrap, waits;
        double seconds;
    } cases[] = {
        {1, 0, 0, 0, 12}, /* ring of one block: 12 s, because copy and compute alternate */
        {2, 0, 0, 0, 7},  /* ring of two blocks: 7 s, because compute waits only for the first copy */
        {2, 0, 1, 0, 9},  /* 9 s: compute waits for the first copy of each evaluation */
        {2, 0, 0, 1, 12}, {2, 1, 0, 0, 7}, {8, 0, 0, 0, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_blocks(one_stage(&need, 3, 1e6), 2, 1e6, 1);
        memset(&plan, 0, sizeof plan);
        plan.stage[0].ring_bytes = (uint64_t)cases[i].ring * 1000000;
        plan.stage[0].depth = cases[i].depth;
        plan.stage[0].no_wrap = cases[i].no_wrap;
        plan.stage[0].waits = cases[i].waits;
        assert_float_equal(timing_predict(&need, &plan, 0).seconds, cases[i].seconds, 1e-9);
    }
}

/* Blocks in the host pool are read from disk once, other streamed blocks in each evaluation. Disk and bus
 * work in parallel. */
TEST(pool_and_disk_by_hand) {
    static const uint64_t mb = 1000000;
    add_blocks(one_stage(&need, 4, 1e8), 2, 1e8, 0);
    need.separate = true;
    need.rates.h2d = 1e9;
    memset(&plan, 0, sizeof plan);
    plan.stage[0].ring_bytes = plan.stage[0].staging_bytes = 200 * mb;
    double piece = PLAN_STAGED_PIECE / 1e9;
    assert_float_equal(timing_predict(&need, &plan, 0).seconds, 8 + piece, 1e-6);
    assert_int_equal(timing_predict(&need, &plan, 0).bound, BOUND_DISK);
    plan_set_pooled(&plan.stage[0], 0, true);
    plan_set_pooled(&plan.stage[0], 1, true);
    assert_float_equal(timing_predict(&need, &plan, 0).seconds, 2 + piece + 0.6, 1e-6);
    plan_set_resident(&plan.stage[0], 0, true);
    plan_set_resident(&plan.stage[0], 1, true);
    assert_float_equal(timing_predict(&need, &plan, 0).seconds, 2 + piece, 1e-6);
}

static void check_sums(uint64_t ram, uint64_t vram) {
    uint64_t residents = 0, pools = 0, ram_peak = need.base_bytes + need.host_bytes + need.open_bytes,
             vram_peak = 0;
    for (int s = 0; s < need.n_stages; s++) {
        residents += plan.stage[s].resident_bytes;
        pools += plan.stage[s].pool_bytes;
    }
    for (int s = 0; s < need.n_stages; s++) {
        const struct stage_need *n = &need.stage[s];
        const struct plan_stage *p = &plan.stage[s];
        uint64_t resident = 0, pool = 0, resident_sides = 0, pool_sides = 0, streamed = 0, largest = 0;
        for (int i = 0; i < n->n_blocks; i++) {
            bool stays = plan_is_resident(p, i) || plan_is_pooled(p, i);
            uint64_t side = n->block_adapter_bytes[i], own = n->block_bytes[i] - side;
            if (plan_is_resident(p, i)) resident += own, resident_sides += side;
            if (!plan_is_resident(p, i) && n->block_repeats[i]) streamed += own + side;
            if (!plan_is_resident(p, i) && own + side > largest) largest = own + side;
            if (plan_is_pooled(p, i) && !plan_is_resident(p, i)) pool += own, pool_sides += side;
            if (stays && n->block_bytes[i])
                assert_true(n->block_keepable[i] &&
                            (plan.keep || (n->block_repeats[i] && n->evaluations > 1)));
        }
        assert_int_equal(p->resident_bytes, plan_pages(resident) + plan_pages(resident_sides));
        assert_int_equal(p->pool_bytes, plan_pages(pool) + plan_pages(pool_sides));
        assert_int_equal(p->streamed_bytes_per_evaluation, streamed);
        assert_true(p->ring_bytes % PLAN_PAGE == 0 && p->ring_bytes >= plan_pages(largest));
        uint64_t room = n->library_bytes + plan_pages(n->state_bytes) + plan_pages(n->activation_bytes) +
                        plan_pages(n->workspace_bytes);
        uint64_t weights = p->ring_bytes + (plan.keep ? residents : p->resident_bytes);
        uint64_t host =
            need.base_bytes + need.host_bytes + need.interstage_bytes + n->image_bytes + need.bounce_bytes;
        host += need.separate ? p->staging_bytes + (plan.keep ? pools : p->pool_bytes) : room + weights;
        assert_int_equal(p->peak_ram_bytes, host);
        assert_int_equal(p->peak_vram_bytes, need.separate ? need.device_bytes + room + weights : 0);
        if (p->peak_ram_bytes > ram_peak) ram_peak = p->peak_ram_bytes;
        if (p->peak_vram_bytes > vram_peak) vram_peak = p->peak_vram_bytes;
        assert_true(p->seconds >= 0 && p->bound >= 0 && p->bound < N_BOUNDS);
    }
    assert_int_equal(plan.ram_peak_bytes, ram_peak);
    assert_int_equal(plan.vram_peak_bytes, vram_peak);
    assert_true(ram_peak <= ram && (!need.separate || vram_peak <= vram));
    assert_int_equal(plan_check(&need, &plan, &(struct error){0}), OK);
}

static void solve_twice(uint64_t ram, uint64_t vram) {
    char hash[17], again[17];
    memset(&plan, 0xAA, sizeof plan);
    memset(&other, 0x55, sizeof other);
    plan_solve(&need, ram, vram, &plan);
    plan_solve(&need, ram, vram, &other);
    assert_string_equal(plan_hash(&plan, hash), plan_hash(&other, again));
    assert_memory_equal(&plan, &other, sizeof plan);
    plan_evaluate(&need, &other);
    assert_memory_equal(&plan, &other, sizeof plan);
}

/* From the minimum budget to all blocks resident, plans fit and more memory is never slower. */
TEST(more_memory_is_never_slower) {
    for (int i = 0; i < needs / 4; i++) {
        seeded_state = seed_base + 10000 + (uint64_t)i;
        random_need(&need, i % 3 == 2, 1 + (int)below(5), below(4) ? 10 : 60);
        uint64_t all = 0;
        for (int s = 0; s < need.n_stages; s++) all += stage_bytes(&need.stage[s]) + 8 * PLAN_PAGE;
        plan_solve(&need, 0, 0, &plan);
        uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
        check_refused(&need, ram - 1, vram);
        if (need.separate) check_refused(&need, ram, vram - 1);
        double before = 1e300;
        for (int k = 0; k < 10; k++) {
            if (k % 5)
                plan_solve(&need, ram, vram, &plan);
            else
                solve_twice(ram, vram);
            check_sums(ram, vram);
            if (plan.seconds > before * (need.separate ? 1.001 : 1 + 1e-12))
                fail_msg("need %d: %.9g s with %llu and %llu bytes, %.9g s with less", i, plan.seconds,
                         (unsigned long long)ram, (unsigned long long)vram, before);
            if (plan.seconds < before) before = plan.seconds;
            uint64_t step = below(all / 4 + 1);
            if (!need.separate || below(2)) ram += step;
            if (need.separate && below(2)) vram += step;
        }
        plan_solve(&need, ram + 4 * all, vram + 4 * all, &plan);
        assert_true(plan.keep);
    }
}

/* Budgets grow in small steps, so that several plans with different residents, rings and pools are equally
 * fast. More memory must still never be slower. */
TEST(ties_are_never_slower) {
    for (int i = 0; i < needs / 5; i++) {
        seeded_state = seed_base + 15000 + (uint64_t)i;
        random_need(&need, i % 2, 1, i % 4 < 2 ? 8 : 40);
        uint64_t step = stage_bytes(&need.stage[0]) / 50 + 1;
        plan_solve(&need, 0, 0, &plan);
        uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
        double before = 1e300;
        for (int k = 0; k < 50; k++, ram += step, vram += step) {
            plan_solve(&need, ram, vram, &plan);
            assert_int_equal(plan_check(&need, &plan, &(struct error){0}), OK);
            /* 1e-8: twice TIE, the solver's tolerance between equally fast plans */
            assert_true(!k || plan.seconds <= before * (1 + 1e-8));
            if (plan.seconds < before) before = plan.seconds;
        }
    }
}

/* Returns the cost that the solver minimises if rates are unknown: a byte from disk counts as 8 bytes over
 * the bus. */
static double bytes_to_move(void) {
    double bytes = 0;
    for (int s = 0; s < need.n_stages; s++)
        for (int i = 0; i < need.stage[s].n_blocks; i++) {
            const struct stage_need *n = &need.stage[s];
            if (n->evaluations < 2 || !n->block_repeats[i] || plan_is_resident(&plan.stage[s], i)) continue;
            int from_disk = need.separate && !plan_is_pooled(&plan.stage[s], i);
            bytes += (double)n->block_bytes[i] * (1 + 8 * from_disk);
        }
    return bytes;
}

/* With any combination of unknown rates there is a plan, and more memory streams at most an eighth more
 * bytes. */
TEST(unknown_rates_give_plans) {
    for (int i = 0; i < needs / 2; i++) {
        seeded_state = seed_base + 20000 + (uint64_t)i;
        random_need(&need, i % 2, 2, 40);
        need.rates = (struct rates){.disk = 1e9 * (double)(i % 3 == 1), .h2d = 1e9 * (double)(i % 3 == 2)};
        plan_solve(&need, 0, 0, &plan);
        uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
        double before = 1e300;
        for (int k = 0; k < 6; k++) {
            solve_twice(ram, vram);
            check_sums(ram, vram);
            double moved = bytes_to_move();
            assert_true(moved <= 1.127 * before);
            if (moved < before) before = moved;
            vram += below(1 << 23);
            ram += below(1 << 23);
        }
    }
}

/* Returns the minimum budget of a device that shares the host's memory: in each stage no residents, and a
 * ring of the largest block. */
static uint64_t minimum_budget(void) {
    uint64_t least = need.base_bytes + need.host_bytes + need.open_bytes;
    for (int s = 0; s < need.n_stages; s++) {
        const struct stage_need *n = &need.stage[s];
        uint64_t largest = 0;
        for (int b = 0; b < n->n_blocks; b++)
            if (n->block_bytes[b] > largest) largest = n->block_bytes[b];
        uint64_t takes = need.base_bytes + need.host_bytes + need.interstage_bytes + need.bounce_bytes +
                         n->library_bytes + n->image_bytes + plan_pages(n->state_bytes) +
                         plan_pages(n->activation_bytes) + plan_pages(n->workspace_bytes) +
                         plan_pages(largest);
        if (takes > least) least = takes;
    }
    return least;
}

/* Without rates: plans for budgets from the minimum to more than all bytes. Other budgets give other plans;
 * a larger budget streams at most an eighth more bytes, with a ring of two blocks (plan_search.c). */
TEST(every_budget_has_plan) {
    for (int i = 0; i < needs; i++) {
        seeded_state = seed_base + 25000 + (uint64_t)i;
        random_need(&need, false, 1 + (int)below(4), 80);
        need.rates = (struct rates){0};
        need.bounce_bytes = below(3) ? 0 : PLAN_PAGE * below(64);
        if (!below(6)) need.open_bytes = below(1 << 26);
        uint64_t least = minimum_budget(), all = least;
        char hash[17], last[17] = "";
        for (int s = 0; s < need.n_stages; s++) all += stage_bytes(&need.stage[s]) + 2 * PLAN_PAGE;
        check_refused(&need, least - 1, 0);
        uint64_t before[PLAN_STAGES_MAX];
        memset(before, 0xFF, sizeof before);
        for (uint64_t k = 0; k <= 40; k++) {
            solve_twice(least + ((all - least) / 40 + 1) * k, 0);
            check_sums(plan.ram_budget_bytes, 0);
            assert_int_equal(plan.ram_least_bytes, least);
            if (!k) assert_int_equal(plan.ram_peak_bytes, least);
            assert_string_not_equal(plan_hash(&plan, hash), last);
            memcpy(last, hash, sizeof last);
            for (int s = 0; s < need.n_stages; s++) {
                uint64_t now = plan.stage[s].streamed_bytes_per_evaluation;
                if (need.stage[s].evaluations < 2) continue;
                assert_true((double)now <= 1.127 * (double)before[s]);
                if (now < before[s]) before[s] = now;
            }
        }
    }
}

/* A ring that is one page smaller than a streamed block is refused. */
TEST(small_ring_is_refused) {
    for (int i = 0; i < needs; i++) {
        seeded_state = seed_base + 26000 + (uint64_t)i;
        random_need(&need, i % 2, 1 + (int)below(4), 20);
        plan_solve(&need, 0, 0, &plan);
        plan_solve(&need, plan.ram_least_bytes, plan.vram_least_bytes, &plan);
        for (int s = 0; s < need.n_stages; s++) {
            uint64_t least = plan_pages(plan_least_ring(&need.stage[s], &plan.stage[s]));
            if (!least) continue;
            plan.stage[s].ring_bytes = least - PLAN_PAGE;
            plan_evaluate(&need, &plan);
            assert_int_equal(plan_check(&need, &plan, &(struct error){0}), BUDGET);
        }
    }
}

/* Returns the length of the longest run of consecutive streamed blocks in `visits` visits of n blocks in
 * turn. */
static int longest_gap(const struct plan_stage *p, int n, int visits) {
    int longest = 0, gap = 0;
    for (int b = 0; b < visits; b++) {
        gap = plan_is_resident(p, b % n) ? 0 : gap + 1;
        if (gap > longest) longest = gap;
    }
    return longest;
}

/* Residents among blocks of one size are spread evenly, within a step and across the end of a step. There the
 * longest gap may have one more block, because the remaining memory holds only part of a block. */
TEST(residents_are_spread) {
    for (int i = 0; i < 4 * needs; i++) {
        seeded_state = seed_base + 27000 + (uint64_t)i;
        struct stage_need *stage = one_stage(&need, 2 + (int)below(4), 0);
        add_blocks(stage, 1 + (int)below(80), 256 * (1 + (double)below(4000)), 0);
        int n = stage->n_blocks, residents = 0;
        plan_solve(&need, minimum_budget() + below(stage_bytes(stage)), 0, &plan);
        for (int b = 0; b < n; b++) residents += plan_is_resident(&plan.stage[0], b);
        if (!residents) continue;
        int ideal = (n - residents + residents - 1) / residents;
        assert_in_range(longest_gap(&plan.stage[0], n, n), 0, (unsigned)(2 * ideal));
        assert_in_range(longest_gap(&plan.stage[0], n, 2 * n), 0, (unsigned)(2 * ideal + 1));
    }
}

/* Plans fit at the minimum budgets, one byte less is rejected and the error names the memory, and huge
 * budgets do not crash. */
static void check_extremes(const char *what) {
    struct error e = {0};
    plan_solve(&need, 0, 0, &plan);
    uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
    print_message("%s%s: minimum budgets %llu and %llu bytes\n", what, need.separate ? ", separate" : "",
                  (unsigned long long)ram, (unsigned long long)vram);
    check_refused(&need, 0, 0);
    check_refused(&need, 1, 1);
    check_refused(&need, ram - 1, UINT64_MAX);
    if (need.separate) check_refused(&need, UINT64_MAX, vram - 1);
    solve_twice(ram, vram);
    check_sums(ram, vram);
    assert_int_equal(plan_check(&need, &plan, &e), OK);
    double slowest = plan.seconds;
    solve_twice(UINT64_MAX, UINT64_MAX);
    check_sums(UINT64_MAX, UINT64_MAX);
    assert_true(plan.seconds <= slowest * (1 + 1e-9));
}

static void set_blocks(bool repeats, bool lasts, bool empty) {
    struct stage_need *n = &need.stage[0];
    for (int i = 0; i < n->n_blocks; i++) {
        n->block_repeats[i] = repeats;
        n->block_keepable[i] = lasts;
        if (empty) n->block_bytes[i] = n->block_adapter_bytes[i] = 0;
    }
}

TEST(extreme_needs_do_not_crash) {
    static const char *const names[] = {"a block",      "nothing repeats", "nothing keepable",
                                        "empty blocks", "no blocks",       "no compute time",
                                        "a huge block", "no evaluations",  "1088 blocks",
                                        "no disk rate", "no bus rate",     "no rates"};
    enum {
        ONE,
        ONCE,
        PASSING,
        EMPTY,
        NONE,
        IDLE,
        GIANT,
        NEVER_RUN,
        MANY,
        NO_DISK,
        NO_BUS,
        NO_RATES,
        N_CASES
    };
    for (int i = 0; i < 2 * N_CASES; i++) {
        int kind = i / 2;
        seeded_state = seed_base + 60000 + (uint64_t)i;
        random_need(&need, i % 2, 1, 1);
        struct stage_need *n = &need.stage[0];
        random_stage(n, kind == ONE ? 1 : kind == NONE ? 0 : kind == MANY ? PLAN_BLOCKS_MAX : 10);
        set_blocks(kind != ONCE, kind != PASSING, kind == EMPTY);
        n->evaluations = kind == NEVER_RUN ? 0 : 5;
        if (kind == NO_DISK || kind == NO_RATES) need.rates.disk = 0;
        if (kind == NO_BUS || kind == NO_RATES) need.rates.h2d = 0;
        if (kind == GIANT) n->block_bytes[3] = 1000 * stage_bytes(n) + 1;
        for (int b = 0; kind == IDLE && b < n->n_blocks; b++) n->block_seconds[b] = 0;
        check_extremes(names[kind]);
    }
}

static double solve_seconds(uint64_t ram, uint64_t vram) {
    double began = processor_seconds();
    plan_solve(&need, ram, vram, &plan);
    return processor_seconds() - began;
}

/* Returns the smaller of `best` and the shortest time with the plan's residents and ring. Tries all sets of
 * blocks in the host pool, with staging in the remaining RAM. */
static double best_pool(const struct block_stream *block_stream, struct plan_stage *p, uint64_t host,
                        double best) {
    const struct stage_need *n = &need.stage[0];
    uint64_t streamed = ~p->resident[0] & (((uint64_t)1 << n->n_blocks) - 1);
    for (uint64_t pool = streamed;; pool = (pool - 1) & streamed) {
        struct plan_stage q = {.resident = {pool}};
        uint64_t taken = plan_blocks_bytes(n, q.resident);
        p->pooled[0] = pool;
        if (taken + plan_least_staging(&need, p, 0) <= host && block_stream_bound(block_stream, p) < best) {
            p->staging_bytes = (host - taken) / PLAN_PAGE * PLAN_PAGE;
            double seconds = block_stream_timing(block_stream, p).seconds;
            if (seconds < best) best = seconds;
        }
        if (!pool) return best;
    }
}

/* Returns the smaller of `best` and the shortest time over all sets of residents, with the ring in the
 * remaining VRAM. */
static double brute_force(uint64_t device, uint64_t host, double best) {
    static struct block_stream block_stream;
    const struct stage_need *n = &need.stage[0];
    block_stream_make(n, &need.rates, need.separate, false, &block_stream);
    for (uint64_t bits = 0; bits < (uint64_t)1 << n->n_blocks; bits++) {
        struct plan_stage p = {.resident = {bits}, .pooled = {~bits}, .staging_bytes = host};
        uint64_t bytes = plan_blocks_bytes(n, p.resident);
        if (bytes + plan_least_ring(n, &p) > device) continue;
        p.ring_bytes = (device - bytes) / PLAN_PAGE * PLAN_PAGE;
        if (block_stream_bound(&block_stream, &p) >= best) continue;
        /* on a device with its own memory, the time computed here is a lower bound: it has no disk reads */
        double seconds = block_stream_timing(&block_stream, &p).seconds;
        if (seconds < best) best = need.separate ? best_pool(&block_stream, &p, host, best) : seconds;
    }
    return best;
}

static void make_brute_need(bool separate, int n_blocks, int i) {
    seeded_state = seed_base + 30000 + (uint64_t)i;
    random_need(&need, separate, 1, n_blocks);
    struct stage_need *n = &need.stage[0];
    random_stage(n, n_blocks);
    for (int b = 0; b < n_blocks; b++) n->block_keepable[b] = n->block_repeats[b] = true;
    if (n->evaluations == 1) n->evaluations = 4;
}

static void compare_with_brute_force(bool separate, int least_blocks, int most_blocks, int cases) {
    for (int i = 0; i < cases; i++) {
        make_brute_need(separate, least_blocks + i % (most_blocks - least_blocks + 1), i);
        plan_solve(&need, 0, 0, &plan);
        uint64_t all = stage_bytes(&need.stage[0]) + PLAN_PAGE, ram = plan.ram_least_bytes + below(all),
                 vram = plan.vram_least_bytes + below(all);
        uint64_t host = ram - plan_fixed_ram(&need, 0, false), device = host;
        if (separate) device = vram - plan_fixed_vram(&need, 0, false);
        plan_solve(&need, ram, vram, &plan);
        double best = brute_force(device, host, plan.seconds);
        if (plan.seconds > 1.03 * best)
            fail_msg("need %d: %d blocks, %.9g s, brute force %.9g s", i, need.stage[0].n_blocks,
                     plan.seconds, best);
    }
}

TEST(solver_is_near_brute_force) {
    compare_with_brute_force(false, 1, 12, brute);
    compare_with_brute_force(true, 1, 8, 2 * brute);
    compare_with_brute_force(true, 9, 12, 4 * brute);
    compare_with_brute_force(false, 13, 16, brute);
}

static void solve_shape(enum shape shape, double resident, double rings, bool separate) {
    make_shape(shape, 28);
    need.separate = separate;
    if (separate) need.rates = (struct rates){.disk = 3e9, .h2d = need.rates.disk};
    uint64_t weights = (uint64_t)(resident * (double)stage_bytes(&need.stage[0]) +
                                  rings * (double)need.stage[0].block_bytes[0]);
    plan_solve(&need, separate ? (uint64_t)1 << 40 : weights + PLAN_PAGE, weights + PLAN_PAGE, &plan);
    assert_int_equal(plan_check(&need, &plan, &(struct error){0}), OK);
}

static void check_shape(enum shape shape, double resident, double rings, bool separate) {
    solve_shape(shape, resident, rings, separate);
    const struct plan_stage *p = &plan.stage[0];
    const struct timing timing = timing_predict(&need, &plan, 0);
    struct block_stream block_stream;
    block_stream_make(&need.stage[0], &need.rates, separate, false, &block_stream);
    struct stage_load load = block_stream_later_load(&block_stream, p);
    double floor = load.busy[BOUND_COMPUTE],
           bus = (1 - resident) * (double)stage_bytes(&need.stage[0]) / 24e9;
    if (bus > floor) floor = bus;
    print_message(
        "%s %s %2.0f %% + %.0f: %.3f s, lower bound at that residency %.3f; ring %.1f, residents %.0f %%\n",
        shape == FLUX ? "flux" : "qwen", separate ? "separate" : "unified", 100 * resident, rings,
        timing.evaluation_seconds, floor, (double)p->ring_bytes / (double)need.stage[0].block_bytes[0],
        100 * (double)p->resident_bytes / (double)stage_bytes(&need.stage[0]));
    assert_true(timing.evaluation_seconds <= 1.05 * floor);
}

TEST(model_shapes_reach_lower_bound) {
    for (int separate = 0; separate < 2; separate++) {
        check_shape(FLUX, 0.3, 2, separate);
        check_shape(FLUX, 0.3, 4, separate);
        for (int percent = 0; percent <= 60; percent += 20) {
            check_shape(QWEN, percent / 100.0, 2, separate);
            check_shape(QWEN, percent / 100.0, 3, separate);
        }
    }
}

/* Where compute is the bottleneck, the plan still uses the whole budget, because the rates may be wrong. */
TEST(budget_is_used) {
    solve_shape(QWEN, 0.9, 3, false);
    double useful = 1 - 1.15 * 24e9 / (60 * 680e6);
    assert_true(useful < 0.5);
    assert_true(timing_predict(&need, &plan, 0).evaluation_seconds < 1.1501);
    assert_true((double)plan.stage[0].resident_bytes > 0.85 * (double)stage_bytes(&need.stage[0]));
}

/* Memory too small for one more resident enlarges the ring, even where compute is the bottleneck. */
TEST(remaining_memory_widens_ring) {
    struct stage_need *n = one_stage(&need, 5, 1e9);
    need.separate = true;
    need.rates.h2d = 0.5e9;
    add_blocks(n, 6, 6.8e6, 8.3e-3);
    add_blocks(n, 12, 2.832e6, 8.3e-3);
    plan_solve(&need, (uint64_t)1 << 40, 43520000, &plan);
    const struct plan_stage *p = &plan.stage[0];
    uint64_t least = plan_least_ring(n, p), rest = 43520000 - plan.vram_peak_bytes;
    assert_int_equal(p->bound, BOUND_COMPUTE);
    assert_true(rest < (uint64_t)2832000);
    assert_true(p->ring_bytes > least);
}

static const char *const kinds[] = {"uniform", "two kinds", "uneven"};

static void make_kind(int kind, bool separate) {
    struct stage_need *n = one_stage(&need, below(2) ? 28 : 8, separate ? from_to(0.1e9, 1e9) : 1e9);
    need.separate = separate;
    need.rates.h2d = 1e9;
    double share = from_to(0.1, 2);
    for (int i = 0; i < 120; i++) {
        double bytes = kind == 1 && i < 40 ? 6.8e6 : 2.832e6, seconds = share * 4e-3;
        if (kind == 2) bytes = from_to(0.2e6, 4e6), seconds = share * from_to(0.3e-3, 4e-3);
        add_blocks(n, 1, bytes, seconds);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* RAM and VRAM budgets grow from the minimum to nearly all bytes. Cases with many equally fast plans are
 * the slowest to solve. */
static void time_kind(int kind, bool separate) {
    double times[NEEDS_MOST / 20 * 49];
    int n = 0;
    for (int i = 0; i < needs / 20; i++) {
        seeded_state = seed_base + 50000 + (uint64_t)i;
        make_kind(kind, separate);
        uint64_t part = stage_bytes(&need.stage[0]) / 25 * 4;
        plan_solve(&need, 0, 0, &plan);
        uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
        for (uint64_t r = 0; r < 7; r++)
            for (uint64_t v = 0; v < (separate ? 7 : 1); v++)
                times[n++] = solve_seconds(ram + r * part, vram + v * part);
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    print_message("120 blocks, %s, %-10s %6.2f ms, at most %6.2f of %d plans\n",
                  separate ? "separate" : "unified ", kinds[kind], 1e3 * times[n / 2], 1e3 * times[n - 1], n);
    /* 50 ms: the specified limit with a margin of about ten for slow builds */
    assert_true(times[n / 2] < 0.05);
}

TEST(solver_is_fast) {
    for (int i = 0; i < 6; i++) time_kind(i % 3, i >= 3);
}

TEST(advice_is_faster) {
    struct plan_advice advice;
    int n_memory = 0;
    /* The cases are random: the test continues until at least one run waits for memory. */
    for (int i = 0; i < needs / 20 + 2 || (!n_memory && i < 100); i++) {
        seeded_state = seed_base + 40000 + (uint64_t)i;
        random_need(&need, i % 2, 1 + (int)below(3), 16);
        plan_solve(&need, 0, 0, &plan);
        uint64_t more = below(1 << 24);
        plan_solve(&need, plan.ram_least_bytes + more, plan.vram_least_bytes + more, &plan);
        plan_advise((struct run_need *const[]){&need}, 1, 0, &plan, &advice);
        assert_in_range(advice.n, 1, ADVICE_MAX);
        for (int k = 0; k < advice.n; k++) {
            const struct advice *a = &advice.advice[k];
            bool memory = a->kind == ADVICE_RAM || a->kind == ADVICE_VRAM;
            assert_true(memory ? a->extra_bytes > 0 : a->factor > 1);
            assert_true(a->seconds <= plan.seconds * 1.001);
            n_memory += memory;
            if (!memory) continue;
            plan_solve(&need, plan.ram_budget_bytes + (a->kind == ADVICE_RAM ? a->extra_bytes : 0),
                       plan.vram_budget_bytes + (a->kind == ADVICE_VRAM ? a->extra_bytes : 0), &other);
            assert_true(other.seconds == a->seconds);
        }
    }
    assert_true(n_memory > 0);
}

int main(void) {
    needs = thorough() ? NEEDS_MOST : 20;
    brute = thorough() ? 120 : 10;
    return run_seeded_tests();
}
