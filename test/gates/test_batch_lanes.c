/* Batches processed in groups of lanes that share streamed weights. Each image is bit-identical to a single
 * run of its seed, memory stays within the plan, and more memory is never slower. */
#include "test/lib/rig.h"
#include "test/lib/random_models.h"

enum { BUDGETS = 9, ALONE = 5 };

static struct sluice_request request_of(int batch, double cfg_scale) {
    struct sluice_request request = request_fox(96, 64, 3, batch, cfg_scale);
    request.prompt = "an old harbour at dawn, fishing boats, gulls over the mole";
    return request;
}

/* Makes the memory and time needs of a batch (struct run_need): state bytes grow with the group size
 * `together`, compute time with `images`. */
static void make_need(struct run_need *need, atomic_ullong *random, int images, int together, bool separate) {
    int groups = (images + together - 1) / together;
    memset(need, 0, sizeof *need);
    need->separate = separate;
    need->rates.disk = 1e6 + (double)(random_next_atomic(random) % 50000000);
    need->rates.h2d = 3e6 + (double)(random_next_atomic(random) % 50000000);
    need->base_bytes = need->open_bytes = 1 << 16;
    need->interstage_bytes = (uint64_t)(images + together) << 14;
    need->n_stages = 1;
    struct stage_need *s = &need->stage[0];
    s->evaluations = 4 * groups;
    s->lanes = together;
    s->groups = groups;
    s->n_blocks = 3 + (int)(random_next_atomic(random) % (separate ? 3 : 6));
    s->state_bytes = (uint64_t)together << (14 + random_next_atomic(random) % 4);
    s->activation_bytes = 1 << 15;
    for (int i = 0; i < s->n_blocks; i++) {
        s->block_bytes[i] = 256 * (1 + random_next_atomic(random) % 200);
        s->block_repeats[i] = s->block_keepable[i] = true;
        s->block_seconds[i] = (double)images / groups * 1e-3 * (double)(1 + random_next_atomic(random) % 5);
    }
}

static bool is_feasible(const struct run_need *need, const struct plan *plan) {
    struct error e = {0};
    return plan_check(need, plan, &e) == OK;
}

/* Tries budgets below, at and above the minimum: plan_choose returns the fastest plan that fits. */
static void check_choices(const struct run_need *const *needs, int n, int *chosen_of) {
    struct plan plan, one;
    double before = 1e300;
    plan_choose(needs, n, 0, 0, &plan);
    uint64_t ram = plan.ram_least_bytes, vram = plan.vram_least_bytes;
    /* With plenty of VRAM, plan.ram_least_bytes is the lowest minimum RAM budget among all group sizes. */
    plan_choose(needs, n, ram, (uint64_t)1 << 40, &plan);
    ram = plan.ram_least_bytes;
    check(!is_feasible(needs[plan_choose(needs, n, ram - 1, (uint64_t)1 << 40, &plan)], &plan),
          "plan_choose found a plan below the minimum budget");
    for (int i = 0; i < BUDGETS; i++) {
        bool any = false;
        uint64_t more = i ? (uint64_t)1 << (11 + i) : 0;
        uint64_t device = needs[0]->separate ? vram * 2 + more : 0;
        int chosen = plan_choose(needs, n, ram + more, device, &plan);
        for (int k = 0; k < n; k++) {
            plan_solve(needs[k], ram + more, device, &one);
            any = any || is_feasible(needs[k], &one);
            check(!is_feasible(needs[k], &one) || plan.seconds <= one.seconds * (1 + 1e-8),
                  "need %d is faster than the chosen need %d: %g s and %g s", k, chosen, one.seconds,
                  plan.seconds);
        }
        if (!check(any == is_feasible(needs[chosen], &plan), "an infeasible plan was chosen")) return;
        if (!any) continue;
        check(plan.seconds <= before * (1 + 1e-8), "more memory is slower: %g s after %g s", plan.seconds,
              before);
        check(plan.stage[0].groups == needs[chosen]->stage[0].groups, "the plan belongs to another need");
        before = plan.seconds;
        chosen_of[chosen]++;
    }
}

static void test_fastest_grouping_is_chosen(void) {
    enum { NEEDS = 3, WORLDS = 24 };
    static struct run_need needs[NEEDS];
    static const int together[NEEDS] = {6, 3, 1};
    int chosen[NEEDS] = {0};
    for (int i = 0; i < WORLDS; i++) {
        for (int k = 0; k < NEEDS; k++) { /* all group sizes get the same random blocks and rates */
            atomic_ullong random = 900 + (unsigned long long)i;
            make_need(&needs[k], &random, 6, together[k], i % 3 == 2);
        }
        const struct run_need *all[NEEDS];
        for (int k = 0; k < NEEDS; k++) all[k] = &needs[k];
        check_choices(all, NEEDS, chosen);
    }
    check(chosen[0] && chosen[1] && chosen[2], "a group size was never chosen");
}

struct single_runs {
    struct result image[ALONE];
};

static void run_alone(struct rig *rig, struct sluice_request request, struct single_runs *single_runs) {
    request.batch = 1;
    for (int i = 0; i < ALONE; i++, request.seed++) single_runs->image[i] = run(rig, &request);
    check(strcmp(single_runs->image[0].latent[0], single_runs->image[1].latent[0]),
          "two seeds give the same latent");
}

static void check_used(struct rig *rig, json_t *plan, const char *what) {
    const int64_t *peak = rig->fault_sys.sys.use.peak_bytes;
    json_int_t most = number(stage_of(plan, "denoise"), "state_bytes");
    json_int_t decode = number(stage_of(plan, "decode"), "state_bytes");
    json_int_t state = number(plan, "cross_bytes") + (decode > most ? decode : most);
    check(peak[LINE_STATE] <= state, "%s: %lld state bytes used, %lld planned", what,
          (long long)peak[LINE_STATE], (long long)state);
    check(peak[LINE_HOST] <= number(plan, "host_bytes"), "%s: %lld host bytes used, %lld planned", what,
          (long long)peak[LINE_HOST], (long long)number(plan, "host_bytes"));
}

/* Compares a batch's images with single runs. Returns the number of groups, or 0 on failure. */
static int run_group(struct rig *rig, const struct sluice_request *request,
                     const struct single_runs *single_runs, const char *what) {
    fault_sys_restart(&rig->fault_sys);
    struct result r = run(rig, request);
    int groups = 0;
    if (check(r.code == SLUICE_OK && r.n_latents == request->batch, "%s: %s found %s", what, r.error.what,
              r.error.found)) {
        for (int i = 0; i < r.n_latents; i++)
            check(!strcmp(single_runs->image[i].latent[0], r.latent[i]) &&
                      (request->no_decode || !strcmp(single_runs->image[i].image[0], r.image[i])),
                  "%s: image %d differs from the run of its seed alone", what, i);
        json_t *stage = stage_of(r.plan, "denoise");
        groups = (int)number(stage, "groups");
        check(number(stage, "evaluations") == request->steps * groups &&
                  number(stage, "lanes") * groups >= request->batch,
              "%s: evaluations or lanes do not match %d groups", what, groups);
        check_used(rig, r.plan, what);
    }
    return groups;
}

/* Runs a batch with edited plan files, one for each number of batch groups. A plan file with more groups than
 * necessary is rejected. */
static void edited_groups(struct rig *rig, struct sluice_request request,
                          const struct single_runs *single_runs, int *n_runs) {
    for (int groups = 1; groups <= request.batch + 1; groups++) {
        json_t *plan = query(rig, &request, NULL);
        json_object_set_new(stage_of(plan, "denoise"), "groups", json_integer(groups));
        struct sluice_request r = request;
        r.plan = plan_text(rig, plan);
        const char *what = format_text("batch %d in %d groups", r.batch, groups);
        int together = (r.batch + groups - 1) / groups;
        if (groups <= r.batch && (r.batch + together - 1) / together == groups) {
            check(run_group(rig, &r, single_runs, what) == groups, "%s: the run has another number of groups",
                  what);
            n_runs[groups]++;
        } else {
            run_refused(rig, &r, "BUDGET", 4, "");
        }
    }
}

static void one_batch(struct rig *rig, struct sluice_request request, const struct single_runs *single_runs,
                      const char *name, int *n_runs) {
    json_int_t least, all;
    int fewest = request.batch;
    bounds(rig, request, &least, &all);
    for (int i = 0; i < BUDGETS; i++) {
        struct sluice_request r = request;
        r.max_ram_bytes = least + (all - least) * i / (BUDGETS - 1);
        rig->fault_sys.free_percent = i % 3 == 1 ? 30 : 0;
        const char *what = format_text("%s, batch %d, cfg %g, budget %d", name, r.batch, r.cfg_scale, i);
        int groups = run_group(rig, &r, single_runs, what);
        if (groups && groups < fewest) fewest = groups;
        n_runs[groups]++;
    }
    rig->fault_sys.free_percent = 0;
    check(fewest == 1, "%s: several groups although all lanes fit at once", name);
    edited_groups(rig, request, single_runs, n_runs);
    request.max_ram_bytes = least - 1;
    run_refused(rig, &request, "BUDGET", 4, "");
}

/* With the environment variable THOROUGH, tests with and without guidance and three batch sizes; else only
 * the given guidance and batch size. */
static void test_batch_equals_single_seeds(const char *folder, const char *name, int batch, bool is_guided) {
    static const int batches[] = {2, 3, 5};
    int n_runs[ALONE + 2] = {0};
    struct rig rig;
    if (!rig_open(&rig, folder, 2, 3)) return;
    rig.fault_sys.poison = rig.fault_sys.short_reads = true;
    for (int guided = 0; guided < 2; guided++) {
        if (!thorough() && guided != is_guided) continue;
        struct single_runs single_runs;
        run_alone(&rig, request_of(1, guided ? 3.5 : 1), &single_runs);
        for (int i = 0; i < 3; i++) {
            if (!thorough() && batches[i] != batch) continue;
            struct sluice_request request = request_of(batches[i], guided ? 3.5 : 1);
            request.no_decode = i == 1;
            one_batch(&rig, request, &single_runs, name, n_runs);
        }
    }
    for (int groups = 1; groups <= (thorough() ? ALONE : batch); groups++)
        check(n_runs[groups] || groups == 4, "%s: no run had %d groups", name, groups);
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    test_fastest_grouping_is_chosen();
    test_batch_equals_single_seeds(wide_checkpoint(), "wide", 5, true);
    test_batch_equals_single_seeds("test/golden/zimage_b/model", "zimage_b", 3, false);
    return finish();
}
