/* The plan solver without rates: every sum of a plan against sums over the run's needs, for budgets from the
 * minimum to more than all bytes; residents are spread evenly. Pure functions: no files, no threads. The
 * environment variable SEED changes all random cases. */
#include "engine/run/plan.h"

#include "test/lib/check.h"
#include "test/lib/seeded.h"

#include <string.h>

static int needs; /* number of random cases */
static uint64_t random_state;

static uint64_t below(uint64_t n) {
    return random_below(&random_state, n);
}

static uint64_t page_align(uint64_t bytes) {
    return (bytes + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
}

/* Makes random needs of a run (struct run_need); equal: all blocks have one size, repeat and can stay
 * resident, for statistics of the gaps between residents. */
static void make_need(struct run_need *need, bool equal) {
    memset(need, 0, sizeof *need);
    need->n_stages = 1 + (int)below(4);
    need->base_bytes = below(1 << 20);
    need->host_bytes = below(1 << 18);
    need->interstage_bytes = below(1 << 18);
    need->bounce_bytes = below(3) ? 0 : PLAN_PAGE * below(64);
    need->open_bytes = below(6) ? below(1 << 18) : below(1 << 26);
    for (int s = 0; s < need->n_stages; s++) {
        struct stage_need *n = &need->stage[s];
        n->n_blocks = 1 + (int)below(80);
        n->evaluations = 1 + (int)below(5);
        n->state_bytes = below(1 << 16);
        n->activation_bytes = below(1 << 18);
        n->workspace_bytes = below(2) * below(1 << 16);
        n->library_bytes = below(1 << 16);
        uint64_t one = 256 * (1 + below(4000));
        bool repeats = below(2);
        for (int b = 0; b < n->n_blocks; b++) {
            n->block_bytes[b] = equal ? one : below(7) ? 256 * below(8000) : 0;
            n->block_repeats[b] = equal || repeats || below(2);
            n->block_keepable[b] = equal || b < n->n_blocks * 7 / 8;
        }
        if (equal && n->evaluations == 1) n->evaluations = 2;
    }
}

static uint64_t block_sum(const struct stage_need *n, const struct plan_stage *p, bool resident,
                          bool repeating) {
    uint64_t sum = 0;
    for (int b = 0; b < n->n_blocks; b++)
        if (plan_is_resident(p, b) == resident && (!repeating || n->block_repeats[b]))
            sum += n->block_bytes[b];
    return sum;
}

static uint64_t largest_block(const struct stage_need *n, const struct plan_stage *p) {
    uint64_t most = 0;
    for (int b = 0; b < n->n_blocks; b++)
        if (!plan_is_resident(p, b) && n->block_bytes[b] > most) most = n->block_bytes[b];
    return most;
}

/* Checks every sum of the plan against sums over the run's needs (struct run_need). */
static void check_plan(const struct run_need *need, const struct plan *plan) {
    uint64_t common = need->base_bytes + need->host_bytes, peak = common + need->open_bytes, kept = 0;
    for (int s = 0; s < need->n_stages; s++)
        kept += page_align(block_sum(&need->stage[s], &plan->stage[s], true, false));
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        const struct plan_stage *p = &plan->stage[s];
        assert_int_equal(p->resident_bytes, page_align(block_sum(n, p, true, false)));
        assert_int_equal(p->streamed_bytes_per_evaluation, block_sum(n, p, false, true));
        assert_int_equal(p->state_bytes, page_align(n->state_bytes));
        assert_int_equal(p->activation_bytes, page_align(n->activation_bytes));
        assert_int_equal(p->workspace_bytes, page_align(n->workspace_bytes));
        assert_int_equal(p->library_bytes, n->library_bytes);
        assert_int_equal(p->ring_bytes % PLAN_PAGE, 0);
        assert_true(p->ring_bytes >= largest_block(n, p));
        uint64_t takes = common + need->interstage_bytes + need->bounce_bytes + n->library_bytes +
                         p->state_bytes + p->activation_bytes + p->workspace_bytes + p->ring_bytes +
                         (plan->keep ? kept : p->resident_bytes);
        assert_int_equal(p->peak_ram_bytes, takes);
        if (takes > peak) peak = takes;
    }
    assert_int_equal(plan->ram_peak_bytes, peak);
}

/* Returns the minimum budget: no residents, and a ring of the largest block of each stage. */
static uint64_t minimum_of(const struct run_need *need) {
    const struct plan_stage nothing = {0};
    uint64_t least = need->base_bytes + need->host_bytes + need->open_bytes;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        uint64_t takes = need->base_bytes + need->host_bytes + need->interstage_bytes + need->bounce_bytes +
                         n->library_bytes + page_align(n->state_bytes) + page_align(n->activation_bytes) +
                         page_align(n->workspace_bytes) + page_align(largest_block(n, &nothing));
        if (takes > least) least = takes;
    }
    return least;
}

static void check_refused(const struct run_need *need, uint64_t least) {
    static struct plan plan;
    struct error e = {0};
    char line[1200], number[32];
    plan_solve(need, least - 1, 0, &plan);
    assert_int_equal(plan_check(need, &plan, &e), BUDGET);
    snprintf(number, sizeof number, "%lluB", (unsigned long long)least);
    assert_non_null(strstr(error_line(&e, line, sizeof line), number));
    e = (struct error){0};
    plan_solve(need, least, 0, &plan);
    assert_int_equal(plan_check(need, &plan, &e), OK);
    for (int s = 0; s < need->n_stages; s++) {
        uint64_t most = largest_block(&need->stage[s], &plan.stage[s]);
        if (!most) continue;
        plan.stage[s].ring_bytes = page_align(most) - PLAN_PAGE;
        plan_evaluate(need, &plan);
        assert_int_equal(plan_check(need, &plan, &(struct error){0}), BUDGET);
    }
}

/* Plans for budgets from the minimum to more than all bytes. Each plan must fit. Returns how often a larger
 * budget streams more bytes; *worst is the largest ratio of these bytes. */
static int sweep_budgets(const struct run_need *need, uint64_t least, double *worst) {
    static struct plan plan, again;
    uint64_t all = least, before[PLAN_STAGES_MAX];
    char hash[17], other[17], last[17] = "";
    int worse = 0;
    for (int s = 0; s < need->n_stages; s++)
        for (int b = 0; b < need->stage[s].n_blocks; b++) all += need->stage[s].block_bytes[b];
    for (int i = 0; i < PLAN_STAGES_MAX; i++) before[i] = UINT64_MAX;
    for (uint64_t i = 0; i <= 40; i++) {
        uint64_t budget = least + ((all - least) / 40 + 1) * i + (i == 40 ? 8 * PLAN_PAGE : 0);
        memset(&plan, 0xAA, sizeof plan);
        plan_solve(need, budget, 0, &plan);
        plan_solve(need, budget, 0, &again);
        check_plan(need, &plan);
        assert_int_equal(plan.ram_least_bytes, least);
        assert_true(plan.ram_peak_bytes <= budget);
        assert_int_equal(plan_check(need, &plan, &(struct error){0}), OK);
        assert_string_equal(plan_hash(&plan, hash), plan_hash(&again, other));
        assert_string_not_equal(hash, last);
        memcpy(last, hash, sizeof last);
        for (int s = 0; s < need->n_stages; s++) {
            uint64_t now = plan.stage[s].streamed_bytes_per_evaluation;
            if (need->stage[s].evaluations < 2) continue;
            double ratio = before[s] && before[s] != UINT64_MAX ? (double)now / (double)before[s] : 0;
            worse += now > before[s];
            if (now > before[s] && ratio > *worst) *worst = ratio;
            if (now < before[s]) before[s] = now;
        }
    }
    return worse;
}

static void test_plan_fits_every_budget(void **state) {
    (void)state;
    static struct run_need need;
    static struct plan plan;
    random_state = seed_base + 7000;
    double worst = 1;
    int worse = 0;
    for (int i = 0; i < needs; i++) {
        make_need(&need, false);
        uint64_t least = minimum_of(&need);
        plan_solve(&need, least, 0, &plan);
        assert_int_equal(plan.ram_peak_bytes, least);
        check_refused(&need, least);
        worse += sweep_budgets(&need, least, &worst);
    }
    print_message("more memory, but more bytes streamed: %d times, by at most %.1f %%\n", worse,
                  100 * (worst - 1));
    /* tolerance: without rates, a ring of two blocks may stream an eighth more bytes (plan_search.c) */
    assert_true(worst <= 1.127);
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

static void test_residents_are_spread(void **state) {
    (void)state;
    static struct run_need need;
    static struct plan plan;
    random_state = seed_base + 8000;
    for (int i = 0; i < needs; i++) {
        make_need(&need, true);
        uint64_t all = 0;
        for (int s = 0; s < need.n_stages; s++)
            all += block_sum(&need.stage[s], &(struct plan_stage){0}, false, false);
        plan_solve(&need, minimum_of(&need) + below(all), 0, &plan);
        for (int s = 0; s < need.n_stages; s++) {
            int n = need.stage[s].n_blocks, residents = 0;
            for (int b = 0; b < n; b++) residents += plan_is_resident(&plan.stage[s], b);
            int ideal = residents ? (n - residents + residents - 1) / residents : n;
            if (!residents) continue;
            assert_in_range(longest_gap(&plan.stage[s], n, n), 0, (unsigned)(2 * ideal));
            /* Across the end of an evaluation the longest gap may have one more block, because the remaining
             * memory holds only part of a block. */
            assert_in_range(longest_gap(&plan.stage[s], n, 2 * n), 0, (unsigned)(2 * ideal + 1));
        }
    }
}

int main(void) {
    needs = thorough() ? 200 : 25;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_fits_every_budget),
        cmocka_unit_test(test_residents_are_spread),
    };
    return seeded_run(tests, sizeof tests / sizeof *tests);
}
