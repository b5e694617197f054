/* Placement of full-frame activation buffers in VRAM or host memory, on a device with its own memory: the
 * plan solver's choice against both fixed placements, minimum budgets against independent arithmetic, memory
 * use and bits of runs. The environment variable SEED changes all random cases. */
#include "engine/job/open.h"
#include "engine/job/planner.h"
#include "engine/api/plan_json.h"
#include "engine/run/plan.h"
#include "bench/dev/paced.h"

#include "test/lib/random_needs.h"
#include "test/lib/synthetic_run.h"

enum { NEEDS = 60, PLANS = 40, PLENTY = 1 << 30 };

static struct run_need need;
static struct plan plan, other;
/* Adds full-frame buffers to a stage's needs. Their bus traffic costs from almost 0 to several times the
 * compute time. */
static void make_full_frames(struct stage_need *n) {
    uint64_t traffic = 1 + below(4);
    n->picture_bytes = 256 * (1 + below(6000));
    for (int i = 0; i < n->n_blocks; i++)
        n->block_picture_bytes[i] = below(5) ? below(n->picture_bytes) * traffic / 8 : 0;
}

/* Makes a random need with full-frame buffers in the last stage and in some other stages. */
static void make_need(bool separate, int n_stages) {
    random_need(&need, separate, n_stages, 7);
    need.host_bytes = 0;
    for (int s = 0; s < n_stages; s++) {
        need.stage[s].image_bytes = 0;
        if (s == n_stages - 1 || below(2)) make_full_frames(&need.stage[s]);
    }
}

static uint64_t all_bytes(void) {
    uint64_t bytes = 0;
    for (int s = 0; s < need.n_stages; s++) {
        bytes += plan_pages(need.stage[s].picture_bytes) + PLAN_PAGE + stage_bytes(&need.stage[s]);
    }
    return bytes;
}

/* Computes a stage's RAM and VRAM bytes without weights; host: the full-frame buffers lie in host memory. */
static void fixed_bytes(int s, bool host, uint64_t *ram, uint64_t *vram) {
    const struct stage_need *n = &need.stage[s];
    *ram =
        need.base_bytes + need.host_bytes + need.interstage_bytes + (host ? plan_pages(n->picture_bytes) : 0);
    *vram = need.device_bytes + n->library_bytes +
            plan_pages(n->state_bytes + (host ? 0 : n->picture_bytes)) + plan_pages(n->activation_bytes) +
            plan_pages(n->workspace_bytes);
}

/* Returns the minimum VRAM or RAM budget with a budget of `other_bytes` for the other memory; 0 if no plan
 * fits. */
static uint64_t minimum_bytes(bool of_device, uint64_t other_bytes) {
    uint64_t most = of_device ? 0 : need.base_bytes + need.host_bytes + need.open_bytes;
    if (of_device && other_bytes < need.base_bytes + need.host_bytes + need.open_bytes) return 0;
    for (int s = 0; s < need.n_stages; s++) {
        uint64_t best = 0;
        for (int host = 0; host <= (need.stage[s].picture_bytes > 0); host++) {
            enum pictures_place place = need.stage[s].picture_bytes ? need.stage[s].pictures_place : 0;
            if (place && (place == PICTURES_ON_HOST) != host) continue;
            const struct plan_stage nothing = {0};
            uint64_t ram, vram;
            fixed_bytes(s, host, &ram, &vram);
            ram += plan_least_staging(&need, &nothing, s);
            vram += plan_least_ring(&need.stage[s], &nothing);
            uint64_t mine = of_device ? vram : ram, available = of_device ? ram : vram;
            if (available <= other_bytes && (!best || mine < best)) best = mine;
        }
        if (!best) return 0;
        if (best > most) most = best;
    }
    return most;
}

/* Checks the plan's RAM and VRAM peaks against sums over the run's needs (struct run_need). */
static void check_peaks(void) {
    for (int s = 0; s < need.n_stages; s++) {
        const struct plan_stage *p = &plan.stage[s];
        uint64_t ram, vram, residents = p->resident_bytes, pools = p->pool_bytes;
        for (int k = 0; k < need.n_stages && plan.keep; k++)
            if (k != s) residents += plan.stage[k].resident_bytes, pools += plan.stage[k].pool_bytes;
        fixed_bytes(s, p->pictures_on_host, &ram, &vram);
        assert_int_equal(p->peak_ram_bytes, ram + p->staging_bytes + pools);
        assert_int_equal(p->peak_vram_bytes, vram + p->ring_bytes + residents);
        assert_true(!p->pictures_on_host || need.stage[s].picture_bytes);
    }
    assert_int_equal(plan_check(&need, &plan, &(struct error){0}), OK);
}

/* With full-frame buffers in host memory, each operator waits while its part of the buffers crosses the bus.
 */
TEST(host_buffers_cost_bus_time) {
    memset(&need, 0, sizeof need);
    memset(&plan, 0, sizeof plan);
    need.separate = true;
    need.n_stages = 1;
    need.rates.h2d = 1e9;
    struct stage_need *n = &need.stage[0];
    n->evaluations = n->n_blocks = 2;
    n->picture_bytes = 1000000000;
    for (int i = 0; i < 2; i++) n->block_seconds[i] = 1, n->block_repeats[i] = true;
    n->block_picture_bytes[1] = 3000000000;
    assert_float_equal(timing_predict(&need, &plan, 0).seconds, 4, 1e-9);
    plan.stage[0].pictures_on_host = 1;
    assert_float_equal(timing_predict(&need, &plan, 0).seconds, 10, 1e-9);
}

/* A plan that may place the buffers is as fast as the faster of two fixed placements: buffers counted as VRAM
 * state, or as host memory and bus time. */
TEST(faster_placement_is_chosen) {
    static struct run_need device, host;
    int chosen[2] = {0};
    for (int i = 0; i < NEEDS; i++) {
        seeded_state = seed_base + 1000 + (uint64_t)i;
        make_need(true, 1);
        device = host = need;
        device.stage[0].state_bytes += need.stage[0].picture_bytes;
        uint64_t pictures = plan_pages(need.stage[0].picture_bytes);
        host.base_bytes += pictures;
        /* opening files needs temporary memory, which is freed before the full-frame buffers are allocated */
        host.open_bytes = need.open_bytes > pictures ? need.open_bytes - pictures : 0;
        device.stage[0].picture_bytes = host.stage[0].picture_bytes = 0;
        for (int b = 0; b < need.stage[0].n_blocks; b++)
            host.stage[0].block_seconds[b] += (double)need.stage[0].block_picture_bytes[b] / need.rates.h2d;
        uint64_t ram = minimum_bytes(false, UINT64_MAX), vram = minimum_bytes(true, UINT64_MAX),
                 more = all_bytes() / 2;
        for (int k = 0; k < 12; k++) {
            double best = 1e300;
            uint64_t r = ram + below(more), v = vram + below(more);
            for (int place = 0; place < 2; place++) {
                const struct run_need *half = place ? &host : &device;
                plan_solve(half, r, v, &other);
                if (plan_check(half, &other, &(struct error){0}) == OK && other.seconds < best)
                    best = other.seconds;
            }
            plan_solve(&need, r, v, &plan);
            assert_int_equal(plan_check(&need, &plan, &(struct error){0}) == OK, best < 1e300);
            if (best == 1e300) continue;
            check_peaks();
            assert_true(plan.seconds <= best * (1 + 3e-9) && plan.seconds >= best * (1 - 1e-9));
            chosen[plan.stage[0].pictures_on_host]++;
        }
    }
    assert_true(chosen[0] > NEEDS && chosen[1] > NEEDS);
}

TEST(plenty_places_buffers_in_vram) {
    for (int i = 0; i < NEEDS; i++) {
        seeded_state = seed_base + 2000 + (uint64_t)i;
        make_need(true, 1 + (int)below(3));
        if (i % 2) need.rates = (struct rates){0};
        plan_solve(&need, PLENTY, PLENTY, &plan);
        check_peaks();
        for (int s = 0; s < need.n_stages; s++) assert_int_equal(plan.stage[s].pictures_on_host, 0);
    }
}

/* Without rates the solver compares the bytes that cross the bus: two more streamed blocks of 1 MiB against
 * full-frame buffers in host memory. */
TEST(unknown_rates_compare_bytes) {
    for (int dear = 0; dear < 2; dear++) {
        memset(&need, 0, sizeof need);
        need.separate = true;
        need.n_stages = 1;
        struct stage_need *n = &need.stage[0];
        n->evaluations = n->n_blocks = 4;
        for (int i = 0; i < 4; i++) {
            n->block_bytes[i] = 1 << 20;
            n->block_repeats[i] = n->block_keepable[i] = true;
            n->block_picture_bytes[i] = dear ? 1 << 24 : 1 << 16;
        }
        n->picture_bytes = 2 << 20;
        plan_solve(&need, PLENTY, 3 << 20, &plan);
        check_peaks();
        assert_int_equal(plan.stage[0].pictures_on_host, !dear);
    }
}

TEST(more_memory_is_never_slower) {
    enum { STEPS = 7 };
    int moved = 0;
    for (int i = 0; i < NEEDS / 3; i++) {
        double seconds[STEPS][STEPS];
        int on_host[STEPS][STEPS];
        seeded_state = seed_base + 3000 + (uint64_t)i;
        make_need(true, 1 + (int)below(3));
        uint64_t ram = minimum_bytes(false, UINT64_MAX), vram = minimum_bytes(true, UINT64_MAX),
                 step = all_bytes() / (STEPS - 2);
        for (uint64_t r = 0; r < STEPS; r++)
            for (uint64_t v = 0; v < STEPS; v++) {
                plan_solve(&need, ram + r * step, vram + v * step, &plan);
                bool works = plan_check(&need, &plan, &(struct error){0}) == OK;
                seconds[r][v] = works ? plan.seconds : 1e300;
                on_host[r][v] = works ? plan.stage[need.n_stages - 1].pictures_on_host : -1;
                if (works) check_peaks();
                if (r) assert_true(seconds[r][v] <= seconds[r - 1][v] * (1 + 1e-8));
                if (v) assert_true(seconds[r][v] <= seconds[r][v - 1] * (1 + 1e-8));
                moved += v && on_host[r][v] == 0 && on_host[r][v - 1] == 1;
            }
        assert_true(seconds[STEPS - 1][STEPS - 1] < 1e300);
    }
    assert_true(moved > 0);
}

/* Plans fit at the minimum RAM and VRAM budgets; a budget that is one byte smaller is rejected. */
TEST(minimum_budgets_are_exact) {
    int evicted[2] = {0}, found = 0;
    for (int i = 0; i < 4 * NEEDS; i++) {
        seeded_state = seed_base + 4000 + (uint64_t)i;
        make_need(true, 1 + (int)below(3));
        uint64_t ram = minimum_bytes(false, UINT64_MAX), vram = minimum_bytes(true, UINT64_MAX),
                 more = all_bytes() / 2;
        uint64_t r = ram - below(2) + below(more) * below(2), v = vram - below(2) + below(more) * below(2);
        uint64_t ram_of_v = minimum_bytes(false, v), vram_of_r = minimum_bytes(true, r);
        plan_solve(&need, r, v, &plan);
        if (ram_of_v) assert_int_equal(plan.ram_least_bytes, ram_of_v);
        if (vram_of_r) assert_int_equal(plan.vram_least_bytes, vram_of_r);
        assert_int_equal(plan_exists(&need, r, v), ram_of_v && r >= ram_of_v);
        evicted[0] += !ram_of_v, evicted[1] += !vram_of_r;
        if (!ram_of_v || !vram_of_r) continue;
        check_refused(&need, ram_of_v - 1, v);
        check_refused(&need, r, vram_of_r - 1);
        plan_solve(&need, ram_of_v, v, &plan);
        check_peaks();
        plan_solve(&need, r, vram_of_r, &plan);
        check_peaks();
        found++;
    }
    assert_true(found > NEEDS && evicted[0] > 0 && evicted[1] > 0);
}

/* A buffer placement set by the request is used, and the minimum budgets are computed for this placement. */
TEST(requested_placement_is_used) {
    for (int i = 0; i < 2 * NEEDS; i++) {
        bool host = i % 2;
        seeded_state = seed_base + 9000 + (uint64_t)i;
        make_need(true, 1 + (int)below(3));
        for (int s = 0; s < need.n_stages; s++)
            need.stage[s].pictures_place = host ? PICTURES_ON_HOST : PICTURES_ON_DEVICE;
        uint64_t ram = minimum_bytes(false, UINT64_MAX), vram = minimum_bytes(true, UINT64_MAX),
                 more = all_bytes() / 2;
        for (int k = 0; k < 6; k++) {
            plan_solve(&need, ram + below(2) * below(more), vram + below(2) * below(more), &plan);
            assert_int_equal(plan.ram_least_bytes, ram);
            assert_int_equal(plan.vram_least_bytes, vram);
            check_peaks();
            for (int s = 0; s < need.n_stages; s++)
                assert_int_equal(plan.stage[s].pictures_on_host, host && need.stage[s].picture_bytes);
        }
        check_refused(&need, ram - 1, vram);
        check_refused(&need, ram, vram - 1);
        /* the plan file has another buffer placement than the request; plan_evaluate restores the requested
         * placement */
        plan.stage[need.n_stages - 1].pictures_on_host = !host;
        plan_evaluate(&need, &plan);
        assert_int_equal(plan.stage[need.n_stages - 1].pictures_on_host, host);
    }
}

/* The minimum budgets that plan_solve reports are feasible. Of several alternative needs, the smallest
 * minimum is reported. */
TEST(minimum_over_needs) {
    static struct run_need needs[2];
    for (int i = 0; i < 2 * NEEDS; i++) {
        seeded_state = seed_base + 5000 + (uint64_t)i;
        make_need(true, 2);
        plan_solve(&need, 0, 0, &plan);
        plan_solve(&need, plan.ram_least_bytes, plan.vram_least_bytes, &plan);
        check_peaks();
        needs[0] = need;
        need.interstage_bytes += below(1 << 18);
        need.stage[1].picture_bytes = 1 + below(need.stage[1].picture_bytes);
        uint64_t ram = minimum_bytes(false, UINT64_MAX) + below(1 << 20),
                 vram = minimum_bytes(true, UINT64_MAX) + below(1 << 20);
        uint64_t ram_of_v = minimum_bytes(false, vram), vram_of_r = minimum_bytes(true, ram);
        needs[1] = need;
        need = needs[0];
        uint64_t one = minimum_bytes(false, vram);
        if (one && (!ram_of_v || one < ram_of_v)) ram_of_v = one;
        one = minimum_bytes(true, ram);
        if (one && (!vram_of_r || one < vram_of_r)) vram_of_r = one;
        plan_choose((const struct run_need *const[]){&needs[0], &needs[1]}, 2, ram, vram, &plan);
        if (ram_of_v) assert_int_equal(plan.ram_least_bytes, ram_of_v);
        if (vram_of_r) assert_int_equal(plan.vram_least_bytes, vram_of_r);
    }
}

/* On devices that share memory with the host, full-frame buffers count as state bytes. */
TEST(unified_memory_counts_buffers_as_state) {
    for (int i = 0; i < NEEDS; i++) {
        seeded_state = seed_base + 6000 + (uint64_t)i;
        make_need(false, 1 + (int)below(3));
        uint64_t budget = PLENTY >> below(14);
        plan_solve(&need, budget, below(2) * PLENTY, &plan);
        for (int s = 0; s < need.n_stages; s++) {
            need.stage[s].state_bytes += need.stage[s].picture_bytes;
            need.stage[s].picture_bytes = 0;
        }
        plan_solve(&need, budget, 0, &other);
        assert_memory_equal(&plan, &other, sizeof plan);
        plan.stage[need.n_stages - 1].pictures_on_host =
            1; /* plan_evaluate must ignore a host placement here: device and host share one memory */
        plan_evaluate(&need, &plan);
        assert_memory_equal(&plan, &other, sizeof plan);
    }
}

/* Allocates the synthetic family's hidden states in the arena of full-frame activation buffers. */
static void declare_full_frames(const struct component *c, struct lane *lanes, int n_lanes,
                                struct arena *arena, struct arena *pictures, bool *ok) {
    for (int i = 0; i < n_lanes; i++) {
        struct synthetic_state *s = lanes[i].state;
        s->x = arena_tensor(pictures, DTYPE_F32, 2,
                            (const int32_t[]){c->dims[SYNTHETIC_T], c->dims[SYNTHETIC_D]}, ok);
        s->base = arena_tensor(arena, DTYPE_F32, 2,
                               (const int32_t[]){c->dims[SYNTHETIC_T], c->dims[SYNTHETIC_D]}, ok);
    }
}

static struct family family_full_frames;

/* Builds the synthetic pipeline for a device with its own memory. */
static void synthetic_make_full_frames(void) {
    synthetic_make();
    synthetic_expect(false);
    family_full_frames = synthetic_family;
    family_full_frames.state.declare = declare_full_frames;
    for (int s = 0; s < SYNTHETIC_STAGES; s++) synthetic.components[s].family = &family_full_frames;
    synthetic_use_bus(0);
    synthetic_measure();
}

/* Returns a block's full-frame bytes read and written per lane, derived by hand from its forward. */
static uint64_t traffic(const struct block *block) {
    uint64_t picture = 4 * SYNTHETIC_ROWS * SYNTHETIC_COLUMNS;
    if (block->kind == &synthetic_kind_once) return 0;
    if (block->kind == &synthetic_kind_end) return picture;
    return block->kind == &synthetic_kind_scale ? 2 * picture : 3 * picture;
}

TEST(measured_traffic_matches_forwards) {
    synthetic_make_full_frames();
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        const struct stage_need *n = &synthetic.need.stage[s];
        uint64_t lanes = (uint64_t)synthetic_lanes[s],
                 each = align_up(4 * SYNTHETIC_ROWS * SYNTHETIC_COLUMNS, ARENA_ALIGN);
        assert_int_equal(n->picture_bytes, lanes * each);
        assert_int_equal(n->state_bytes, lanes * each);
        for (int b = 0; b < n->n_blocks; b++)
            assert_int_equal(n->block_picture_bytes[b], lanes * traffic(synthetic.list[s][b]));
    }
    synthetic_remove();
}

/* Checks that device memory equals the plan without library bytes, and that host memory stays within the
 * plan. */
static void check_used(void) {
    struct memory_use use = sys_memory_use(&fault_sys.sys);
    uint64_t library = 0, store = 0, pictures = 0;
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        const struct plan_stage *p = &synthetic.plan.stage[s];
        uint64_t on_host = p->pictures_on_host ? plan_pages(synthetic.need.stage[s].picture_bytes) : 0;
        if (p->library_bytes > library) library = p->library_bytes;
        if (on_host > pictures) pictures = on_host;
        if (p->peak_ram_bytes - on_host > store) store = p->peak_ram_bytes - on_host;
    }
    assert_in_range(use.peak_bytes[LINE_DEVICE], synthetic.plan.vram_peak_bytes - library,
                    synthetic.plan.vram_peak_bytes);
    assert_in_range(use.peak_bytes[LINE_STORE], 0, store);
    assert_int_equal(use.peak_bytes[LINE_STATE], pictures);
    assert_int_equal(use.peak_bytes[LINE_ACTIVATION] + use.peak_bytes[LINE_WORKSPACE], 0);
}

static void run_plan(void) {
    residents_destroy(&synthetic.residents);
    synthetic_run_same(false);
    check_used();
}

static void make_plan(void) {
    synthetic_random_plan(50, 20);
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        struct plan_stage *p = &synthetic.plan.stage[s];
        for (int b = 0; b < synthetic.need.stage[s].n_blocks; b++)
            plan_set_pooled(p, b, !plan_is_resident(p, b) && below(2));
        p->staging_bytes = plan_least_staging(&synthetic.need, p, s) + PLAN_PAGE * below(20);
        p->pictures_on_host = (int16_t)below(2);
    }
    synthetic.plan.keep = false;
    plan_evaluate(&synthetic.need, &synthetic.plan);
}

TEST(random_plans_keep_bits_and_memory) {
    seeded_state = seed_base + 7000;
    synthetic_make_full_frames();
    for (int i = 0; i < PLANS; i++) {
        make_plan();
        synthetic.run.readers = (int)below(4);
        run_plan();
    }
    synthetic_remove();
}

/* Runs at the minimum RAM budget with plenty of VRAM, and at the minimum VRAM budget with plenty of RAM: the
 * scarce memory decides where the full-frame buffers are placed. */
TEST(runs_at_minimum_budgets) {
    synthetic_make_full_frames();
    for (int host = 0; host < 2; host++) {
        plan_solve(&synthetic.need, host ? PLENTY : 0, host ? 0 : PLENTY, &synthetic.plan);
        uint64_t ram = host ? PLENTY : synthetic.plan.ram_least_bytes,
                 vram = host ? synthetic.plan.vram_least_bytes : PLENTY;
        plan_solve(&synthetic.need, ram, vram, &synthetic.plan);
        assert_int_equal(plan_check(&synthetic.need, &synthetic.plan, &(struct error){0}), OK);
        assert_int_equal(synthetic.plan.stage[1].pictures_on_host, host);
        run_plan();
    }
    synthetic_remove();
}

/* Every memory map and commit call is made to fail, each in a run of its own: the run returns MEMORY and
 * leaks nothing. */
TEST(failed_allocation_leaks_nothing) {
    static const enum call calls[] = {CALL_MAP, CALL_COMMIT};
    seeded_state = seed_base + 8000;
    synthetic_make_full_frames();
    make_plan();
    for (int s = 0; s < SYNTHETIC_STAGES; s++) synthetic.plan.stage[s].pictures_on_host = 1;
    plan_evaluate(&synthetic.need, &synthetic.plan);
    for (int i = 0; i < 2; i++) {
        bool done = false;
        for (long n = 1; n < 100 && !done; n++) {
            struct error e = {0};
            synthetic_reset(false);
            memory_checker_restart();
            fault_sys_fail(&fault_sys, calls[i], n, 0);
            executor_run(&synthetic.run, &synthetic.need, &synthetic.plan, &synthetic.residents,
                         &synthetic.counters, &e);
            done = e.code == OK;
            if (!done) assert_int_equal(e.code, MEMORY);
            residents_destroy(&synthetic.residents);
            assert_int_equal(sys_memory_use(&fault_sys.sys).live_bytes[LINE_DEVICE], 0);
            assert_int_equal(sys_memory_use(&fault_sys.sys).live_bytes[LINE_STATE], 0);
        }
        assert_true(done);
    }
    synthetic_remove();
}

static const char *const model_path = "test/golden/zimage_a/model";

/* Returns the plan's JSON with the last stage's full-frame buffers in host memory; the caller frees it.
 * `override` replaces the value of "pictures_on_host" unless NULL. */
static char *plan_text(struct job *job, json_t *override) {
    struct plan_stage *decode = &job->plan.stage[job->layout.n_stages - 1];
    decode->pictures_on_host = 1;
    plan_evaluate(job->need, &job->plan);
    json_t *json = plan_json(job);
    json_t *stage = json_array_get(json_object_get(json, "stages"), (size_t)job->layout.n_stages - 1);
    assert_true(json_is_true(json_object_get(stage, "pictures_on_host")));
    if (override) json_object_set_new(stage, "pictures_on_host", override);
    char *text = json_dumps(json, 0);
    json_decref(json);
    return text;
}

/* On a device with its own memory, a plan that was printed as JSON and read back has the same hash. */
TEST(plan_json_roundtrip) {
    static struct job job;
    static struct sys sys;
    struct error e = {0};
    struct sluice_model *model = NULL;
    struct arithmetic device = arithmetic_make();
    struct sluice_model_options options = {.struct_size = sizeof options, .model = model_path};
    struct sluice_request request = {.struct_size = sizeof request,
                                     .prompt = "fox",
                                     .width = 64,
                                     .height = 64,
                                     .steps = 2,
                                     .cfg_scale = 1,
                                     .flow_shift = 1,
                                     .max_ram_bytes = PLENTY,
                                     .max_vram_bytes = PLENTY};
    char hash[17], again[17];
    sys_init_machine(&sys);
    model_open(&sys, &options, &model, &e);
    assert_ok(&e);
    job_open(&job, &(struct job_context){.model = model, .device = &device.device}, &request, NULL, &e);
    assert_ok(&e);
    for (int i = 0; i < job.candidates.n; i++) job.candidates.needs[i]->separate = true;
    planner_choose(&job, &e);
    assert_ok(&e);
    assert_int_equal(job.plan.stage[job.layout.n_stages - 1].pictures_on_host, 0);
    char *text = plan_text(&job, NULL), *bad = plan_text(&job, json_integer(1));
    plan_hash(&job.plan, hash);
    job.request.plan = text;
    planner_decide(&job, &e);
    assert_ok(&e);
    assert_string_equal(plan_hash(&job.plan, again), hash);
    job.request.plan = bad;
    assert_int_equal(planner_decide(&job, &e), META);
    free(text);
    free(bad);
    job_close(&job);
    model_close(model);
}

int main(void) {
    return run_seeded_tests();
}
