/* Memory pressure during a run: another program takes memory, an operator fails with MEMORY, or a stage
 * cannot start. The run evicts residents and continues bit-identical within its plan; the session's next run
 * is right too. test/lib/rig.h describes the test rig. */
#include "engine/generate/running.h"
#include "test/lib/failing_operators.h"
#include "test/lib/rig.h"
#include "test/lib/random_models.h"

#include "kernels/ops.h"

enum { ROUNDS = 3 };

static void test_reserve_follows_free_memory(void) {
    const uint64_t mib = 1 << 20, most = PRESSURE_RESERVE_MOST, least = PRESSURE_RESERVE_LEAST;
    check(pressure_reserve(0, 0, 0) == 0 && pressure_bytes(0, 1) == 0,
          "reserve without a known amount of memory");
    check(pressure_reserve(8192 * mib, 0, 1024 * mib) == most, "reserve of a machine with much free memory");
    check(pressure_reserve(1400 * mib, 100 * mib, 1000 * mib) == 250 * mib,
          "reserve is half of the remaining memory");
    check(pressure_reserve(100 * mib, 0, 1000 * mib) == least, "reserve with a plan above free memory");
    check(pressure_bytes(300, 100) == 200 && !pressure_bytes(300, 300) && !pressure_bytes(300, 0),
          "bytes to evict");
    struct sys sys;
    sys_init_machine(&sys);
    uint64_t now = sys.free_bytes(&sys);
    check(now > 0 && now < (uint64_t)1 << 50, "implausible free memory: %llu bytes", (unsigned long long)now);
}

struct replanned {
    int n;
    json_int_t bytes;
    bool named;
};

static struct replanned replanned(struct rig *rig) {
    struct replanned r = {.named = true};
    json_t *entry, *report = rig_report(rig), *entries = json_object_get(report, "replanned");
    for (size_t i = 0; (entry = json_array_get(entries, i)); i++) {
        json_t *stage = stage_of(json_object_get(report, "plan"), word(entry, "stage"));
        r.n++;
        r.bytes += number(entry, "given_up_bytes");
        r.named = r.named && stage && number(entry, "step") < number(stage, "evaluations") &&
                  number(entry, "given_up_bytes") > 0;
    }
    return r;
}

static struct result run_with_limit(struct rig *rig, const struct sluice_request *request,
                                    const struct result *want, const char *what) {
    fault_sys_restart(&rig->fault_sys);
    struct result r = run_equal(rig, request, want, what);
    check(rig->fault_sys.sys.use.peak_bytes[LINE_STORE] <= planned_store(r.plan),
          "%s: more memory used than planned", what);
    check(replanned(rig).named, "%s: an eviction in the report has no stage, step or bytes", what);
    return r;
}

static int n_evicted;

/* Runs one request under one memory budget: with pressure at every step or at some steps, for little or all
 * memory, then without pressure. */
static void one_budget(struct rig *rig, const struct sluice_request *request, const struct result *want,
                       const char *name) {
    for (int round = 0; round < ROUNDS; round++) {
        const char *what = format_text("%s, pressure %d", name, round);
        rig->fault_sys.free_percent = round ? 50 : 100;
        rig->fault_sys.free_bytes = round == 2 ? 1 : PRESSURE_RESERVE_MOST - (300 << 10);
        struct result r = run_with_limit(rig, request, want, what);
        int64_t live = rig->fault_sys.sys.use.live_bytes[LINE_STORE];
        bool keep = json_is_true(json_object_get(r.plan, "keep"));
        struct replanned evicted = replanned(rig);
        n_evicted += evicted.n;
        rig->fault_sys.free_percent = 0;
        struct result next = run_with_limit(rig, request, want, what);
        check(!replanned(rig).n, "%s: eviction without pressure", what);
        check(!strcmp(word(r.plan, "hash"), word(next.plan, "hash")), "%s: the plan hash changed", what);
        if (keep && evicted.n)
            check(live + evicted.bytes <= rig->fault_sys.sys.use.live_bytes[LINE_STORE],
                  "%s: evicted %lld bytes, %lld remain; %lld without pressure", what,
                  (long long)evicted.bytes, (long long)live,
                  (long long)rig->fault_sys.sys.use.live_bytes[LINE_STORE]);
        if (keep && round == 0)
            check(evicted.n > 0, "%s: everything is resident, but nothing was evicted", what);
    }
}

static void one_request(struct rig *rig, struct sluice_request request, const char *name) {
    json_int_t least, all;
    bounds(rig, request, &least, &all);
    struct result want = run_ok(rig, &request, name);
    const int budgets = thorough() ? 4 : 2;
    for (int i = 0; i < budgets; i++) {
        request.max_ram_bytes = least + (all - least) * i / (budgets - 1);
        const char *what =
            format_text("%s, batch %d, cfg %g, budget %d", name, request.batch, request.cfg_scale, i);
        one_budget(rig, &request, &want, what);
    }
}

static void test_pressure_keeps_bits(const char *folder, const char *name, int threads, bool all) {
    struct rig rig;
    if (!rig_open(&rig, folder, threads, 21)) return;
    rig.fault_sys.delay_us = 300;
    rig.fault_sys.short_reads = true;
    one_request(&rig, request_fox(48, 32, 4, 1, 3.5), name);
    if (all) one_request(&rig, request_fox(48, 32, 4, 1, 1), name);
    if (all) one_request(&rig, request_fox(48, 32, 3, 2, 3.5), name);
    rig_close(&rig);
}

/* Fails some operators of a run, but not the last one, which converts the image to bytes. */
static void test_failed_operator_evicts(const char *folder, bool keep) {
    const int tries = thorough() ? 12 : 5;
    struct rig rig;
    json_int_t least, all;
    int rescued = 0;
    if (!rig_open(&rig, folder, 1, 4)) return;
    struct sluice_request request = request_fox(48, 32, 3, 2, 3.5);
    bounds(&rig, request, &least, &all);
    if (!keep) request.max_ram_bytes = least + (all - least) * 3 / 4;
    operators_begin(rig.session->device);
    struct result want = run(&rig, &request);
    long n = operators_counted();
    for (int i = 0; i < tries; i++) {
        const char *what = format_text("operator failure %d%s", i, keep ? ", residents kept" : "");
        operators_fail_at(1 + (n - 2) * i / (tries - 1));
        fault_sys_restart(&rig.fault_sys);
        struct result r = run(&rig, &request);
        if (r.code == SLUICE_OK) {
            rescued++;
            same(&want, &r, what);
            check(replanned(&rig).n == 1, "%s: %d evictions", what, replanned(&rig).n);
        } else {
            check(!keep && r.code == SLUICE_MEMORY && r.error.exit_code == 5, "%s: %s", what, r.error.what);
        }
        operators_fail_at(0);
        run_with_limit(&rig, &request, &want, what);
    }
    check(rescued >= (keep ? tries : tries / 3), "only %d of %d runs continued", rescued, tries);
    operators_end(rig.session->device);
    rig_close(&rig);
}

/* If free memory is too small for oneDNN before an operator runs, the operator fails and the run evicts. If
 * free memory is too small before a oneDNN primitive is built, the run ends. */
static void test_library_memory_failure_evicts(const char *folder) {
    enum { TRIES = 6 };
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 6)) return;
    struct sluice_request request = request_fox(48, 32, 2, 1, 1);
    fault_sys_fail(&rig.fault_sys, CALL_FREE_BYTES, 3, 0);
    run_refused(&rig, &request, "MEMORY", 5, "primitive");
    fault_sys_restart(&rig.fault_sys);
    struct result prepared = run(&rig, &request);
    fault_sys_restart(&rig.fault_sys);
    struct result want = run_equal(&rig, &request, &prepared, "after a failed primitive");
    long n = atomic_load(&rig.fault_sys.count[CALL_FREE_BYTES]);
    check(n > 100, "free memory was queried only %ld times", n);
    for (int i = 0; i < TRIES; i++) {
        const char *what = format_text("library memory failure %d", i);
        fault_sys_fail(&rig.fault_sys, CALL_FREE_BYTES, 1 + (n - 2) * i / (TRIES - 1), 0);
        run_equal(&rig, &request, &want, what);
        check(replanned(&rig).n == 1, "%s: %d evictions", what, replanned(&rig).n);
    }
    rig_close(&rig);
}

/* Returns whether the report's first eviction was for the given stage. */
static bool evicted_for(struct rig *rig, const char *stage) {
    json_t *first = json_array_get(json_object_get(rig_report(rig), "replanned"), 0);
    return !strcmp(word(first, "stage"), stage);
}

/* Makes each call of one kind fail once, in a run of its own. The second attempt to start the stage gets
 * memory. */
static void calls_fail(struct rig *rig, struct sluice_request *request, const struct result *want,
                       enum call call, const char *name) {
    int n_denoise = 0, n_decode = 0;
    for (long at = 1;; at += call == CALL_MAP && !thorough() ? 3 : 1) {
        const char *what = format_text("failing %s %ld", name, at);
        residents_destroy(&rig->session->residents);
        fault_sys_fail(&rig->fault_sys, call, at, 0);
        struct result r = run(rig, request);
        bool reached = atomic_load(&rig->fault_sys.count[call]) >= at;
        /* a call that fails before the reader threads start ends the run without eviction */
        bool opened = atomic_load(&rig->fault_sys.count[CALL_THREAD]) > 0;
        int evicted = replanned(rig).n;
        if (reached && r.code == SLUICE_OK) {
            same(want, &r, what);
            check(evicted == 1, "%s: %d evictions", what, evicted);
            check(rig->fault_sys.sys.use.peak_bytes[LINE_STORE] <= planned_store(r.plan),
                  "%s: more memory used than planned", what);
            n_denoise += evicted_for(rig, "denoise");
            n_decode += evicted_for(rig, "decode");
        } else if (reached) {
            check(!opened && r.code == SLUICE_MEMORY, "%s: %s", what, r.error.what);
        }
        check_memory_released(rig, json_is_true(json_object_get(r.plan, "keep")), what);
        run_with_limit(rig, request, want, what);
        if (!reached) break;
    }
    check(n_denoise > 0 && n_decode > 0, "%s: %d evictions in denoise, %d in decode", name, n_denoise,
          n_decode);
}

static void test_failed_stage_start_evicts(const char *folder, double cfg_scale) {
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 5)) return;
    struct sluice_request request = request_fox(48, 32, 2, 1, cfg_scale);
    struct result want = run_ok(&rig, &request, folder);
    calls_fail(&rig, &request, &want, CALL_MAP, "map");
    calls_fail(&rig, &request, &want, CALL_COMMIT, "commit");
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *wide = wide_checkpoint();
    test_reserve_follows_free_memory();
    test_pressure_keeps_bits(wide, "wide", 2, true);
    test_pressure_keeps_bits("test/golden/zimage_b/model", "zimage_b", 1, false);
    check(n_evicted >= (thorough() ? 20 : 10), "only %d evictions", n_evicted);
    test_failed_operator_evicts(wide, false);
    test_failed_operator_evicts(wide, true);
    test_library_memory_failure_evicts(wide);
    test_failed_stage_start_evicts(wide, 3.5);
    return finish();
}
