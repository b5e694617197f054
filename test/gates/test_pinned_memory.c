/* Plans with a limit on pinned host memory: the unpinned part of a host pool is copied through staging.
 * test_cuda_store.c and test_cuda_gate.c check the copies. The environment variable SEED changes all random
 * cases. */
#include "engine/run/plan.h"
#include "test/lib/assert_ok.h"
#include "test/lib/random_needs.h"
#include "test/lib/seeded.h"

#include <string.h>

enum { NEEDS = 24, LIMITS = 6 };

static struct run_need need;
static struct plan plan;
/* Makes a random need in which every block may stay in host memory, and host copies may be the bottleneck. */
static void make_need(void) {
    random_need(&need, true, 1 + (int)below(2), 8);
    need.interstage_bytes = PLAN_PAGE * below(100);
    need.rates.host_copy = from_to(0.1e9, 2e9);
    for (int s = 0; s < need.n_stages; s++) {
        struct stage_need *n = &need.stage[s];
        n->evaluations += 1;
        for (int i = 0; i < n->n_blocks; i++) {
            n->block_bytes[i] += 256 * 400;
            n->block_repeats[i] = n->block_keepable[i] = true;
        }
    }
}

/* One of two blocks in host memory is not pinned: each step copies it to staging, in parallel with transfers
 * over the bus. */
TEST(unpinned_pool_costs_host_copies) {
    static const uint64_t mb = 1000000;
    const double piece = PLAN_STAGED_PIECE / 1e9;
    static const struct {
        double host_copy, seconds; /* seconds: predicted time without the last staged piece of bytes */
    } cases[] = {{10e9, 2.6}, {0.25e9, 3.2}, {0, 2.6}};
    add_blocks(one_stage(&need, 4, 1e8), 2, (double)(100 * mb), 0);
    need.separate = true;
    need.rates.h2d = 1e9;
    memset(&plan, 0, sizeof plan);
    plan.stage[0].ring_bytes = plan.stage[0].staging_bytes = plan.stage[0].pool_bytes = 200 * mb;
    plan.stage[0].pinned_bytes = 199 * mb;
    for (int i = 0; i < 2; i++) plan_set_pooled(&plan.stage[0], i, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        need.rates.host_copy = cases[i].host_copy;
        assert_float_equal(timing_predict(&need, &plan, 0).seconds, cases[i].seconds + piece, 1e-6);
    }
}

/* Returns the largest number of bytes that the plan pins at once, staging buffers included. Adds the number
 * of stages with a partly pinned pool to n_limited. */
static uint64_t check_pinned(int *n_limited) {
    uint64_t staging = 0, kept = 0, most = 0;
    struct error e = {0};
    for (int s = 0; s < need.n_stages; s++) {
        const struct plan_stage *p = &plan.stage[s];
        assert_true(p->pinned_bytes <= p->pool_bytes);
        *n_limited += p->pinned_bytes < p->pool_bytes;
        if (p->staging_bytes > staging) staging = p->staging_bytes;
        if (p->staging_bytes + p->pinned_bytes > most) most = p->staging_bytes + p->pinned_bytes;
        kept += p->pinned_bytes;
    }
    staging += need.interstage_bytes;
    most += need.interstage_bytes;
    assert_int_equal(plan_check(&need, &plan, &e), OK);
    return plan.keep ? staging + kept : most;
}

/* Lowering the limit on pinned memory never makes a plan faster, as long as the staging buffers keep their
 * size.
 */
TEST(lower_pin_limit_is_never_faster) {
    int limited = 0, slower = 0;
    for (int i = 0; i < NEEDS; i++) {
        seeded_state = seed_base + (uint64_t)i;
        make_need();
        uint64_t all = 0, largest = 0;
        for (int s = 0; s < need.n_stages; s++) {
            all += stage_bytes(&need.stage[s]);
            for (int b = 0; b < need.stage[s].n_blocks; b++)
                if (need.stage[s].block_bytes[b] > largest) largest = need.stage[s].block_bytes[b];
        }
        plan_solve(&need, 0, 0, &plan);
        uint64_t vram = plan.vram_least_bytes, ram = plan.ram_least_bytes + 2 * all;
        plan_solve(&need, ram, vram, &plan);
        double last = plan.seconds, first = last;
        for (int k = LIMITS; k >= 0; k--) {
            uint64_t limit = need.interstage_bytes + plan_pages(largest) + 2 * all * (uint64_t)k / LIMITS;
            plan_limit_pins(&need, limit);
            plan_solve(&need, ram, vram, &plan);
            assert_true(check_pinned(&limited) <= need.pin_limit_bytes);
            assert_true(plan.seconds >= last * (1 - 1e-6));
            last = plan.seconds;
        }
        slower += last > first * 1.001;
        /* the pin limit is below the size of the staging buffers, so these buffers shrink or stay unpinned */
        plan_limit_pins(&need, need.interstage_bytes + below(largest));
        plan_solve(&need, ram, vram, &plan);
        check_pinned(&limited);
    }
    assert_true(limited >= NEEDS && slower > 0);
}

/* Full-frame buffers in host memory must be pinned, so a low pin limit keeps them in VRAM. */
TEST(pin_limit_moves_full_frames_to_vram) {
    struct error e = {0};
    make_need();
    struct stage_need *n = &need.stage[need.n_stages - 1];
    need.interstage_bytes = 0;
    n->picture_bytes = 100 << 20;
    plan_limit_pins(&need, 200 << 20);
    assert_int_equal(n->pictures_place, PICTURES_ANYWHERE);
    plan_limit_pins(&need, 101 << 20); /* the pin limit is too low for full-frame buffers and staging */
    assert_int_equal(n->pictures_place, PICTURES_ON_DEVICE);
    n->pictures_place = PICTURES_ON_HOST; /* as if the request asked for full-frame buffers in host memory */
    plan_limit_pins(&need, 99 << 20);
    plan_solve(&need, (uint64_t)1 << 40, (uint64_t)1 << 40, &plan);
    assert_int_equal(plan_check(&need, &plan, &e), BUDGET);
    assert_non_null(strstr(e.what, "pinned"));
}

int main(void) {
    return run_seeded_tests();
}
