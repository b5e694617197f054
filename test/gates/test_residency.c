/* The residency gate of every fixture: plans, delays, batch size and earlier runs of the session change no
 * bit of latent or image, and no memory line exceeds its plan. test/lib/rig.h describes the test rig,
 * test/lib/gates.c the variations of each fixture; `make check-all` runs all of them.
 *
 * Choices, and the functions or files that vary each choice and compare with an unconstrained run:
 *
 *     which blocks are resident         budgets (chosen by the solver), edited_plans (random)
 *     ring, minimum to whole stage      edited_plans
 *     plan's depth, no_wrap, waits      edited_plans
 *     direct reads, bounce buffer       direct_reads, edited_plans, shapes, test_direct_io.c
 *     VAE tiling                        edited_plans, test_decode.c; larger images test/lib/block_checks.c
 *     residents kept between runs       edited_plans (every pair), sessions_past
 *     batch, with and without guidance  shapes, batch_against_seeds
 *     prompt length, image size         shapes, sessions_past
 *     groups of lanes in a batch        test_batch_lanes.c
 *     hoisting                          test_hoist.c
 *     order in which pieces arrive      test_partial_blocks.c, test_weight_waits.c
 *     eviction during a run             test_memory_pressure.c, test_evict.c
 *     precision                         in_bf16: budgets, edited_plans, batch_against_seeds again
 *     weight types                      test_residency_types.c, test_requantise.c
 *
 * Hashes are compared within one process only. A second run limits oneDNN to AVX2, which most users have.
 * With AVX2 the result of a row may depend on the rows computed together with it. */
#include "test/lib/fixtures.h"
#include "test/lib/gates.h"
#include "test/lib/residency.h"

/* Runs requests with other batch sizes, guidance, shapes and prompt lengths. Runs each request at its minimum
 * budget, with direct reads, and with a plan that streams all blocks. */
static void shapes(struct rig *rig, const struct gate *gate, const char *name) {
    int n = thorough() ? gate->n_shapes : (gate->n_shapes + 2) / 3;
    for (int i = 0; i < n; i++) {
        json_int_t least, all;
        struct sluice_request request = gate->shapes[i];
        const char *what = format_text("%s, %dx%d, batch %d, cfg %g", name, request.width, request.height,
                                       request.batch, request.cfg_scale);
        struct result want = run(rig, &request);
        check(want.n_images == request.batch, "%s: %s", what, want.error.what);
        edited_plan(rig, request, &want, what);
        request.direct_io = "on";
        bounds(rig, request, &least, &all);
        request.max_ram_bytes = least;
        run_same(rig, &request, &want, what);
    }
}

static void cancel_at(void *user, long n) {
    if (n == 40) sluice_cancel(user);
}

static void run_cancelled(struct rig *rig, struct sluice_request request, int64_t budget, const char *what) {
    rig->fault_sys.on_read = cancel_at;
    rig->fault_sys.on_read_user = rig->session;
    fault_sys_restart(&rig->fault_sys);
    request.seed = 1;
    request.max_ram_bytes = budget;
    struct result r = run(rig, &request);
    check(r.code == SLUICE_CANCELLED || r.code == SLUICE_OK, "%s: cancel: %s", what,
          sluice_code_name(r.code));
    rig->fault_sys.on_read = NULL;
}

/* Earlier runs of other requests, and cancelled runs, must not change the next run's bits. */
static void sessions_past(struct rig *rig, const char *folder, const struct gate *gate,
                          const struct result *want, json_int_t least, const char *name) {
    struct sluice_request first = gate->request, other = gate->other;
    struct result elsewhere = run_fresh(folder, gate->threads, other);
    for (int i = thorough() ? 0 : 3; i < 4; i++) {
        const char *what = format_text("%s after other runs of the session %d", name, i);
        other.max_ram_bytes = i & 1 ? least * 2 : plenty;
        first.max_ram_bytes = i & 2 ? least : plenty;
        run_same(rig, &other, &elsewhere, what);
        if (i == 3) { /* a run without decoding has other stage indices than the run that left the session's
                         residents */
            other.no_decode = true;
            struct result r = run(rig, &other);
            same_from(&elsewhere, 0, &r, "no_decode in between");
            other.no_decode = false;
        }
        run_cancelled(rig, first, i & 2 ? plenty : least, what);
        run_same(rig, &first, want, what);
    }
}

static void minimum_budget(struct rig *rig, struct sluice_request request, const char *name) {
    json_int_t least, all;
    bool fits = true;
    bounds(rig, request, &least, &all);
    request.max_ram_bytes = least - 1;
    json_t *plan = query(rig, &request, &fits);
    check(!fits && ram(plan, "least") == least, "%s: one byte below the minimum budget fits", name);
    fault_sys_restart(&rig->fault_sys);
    const char *bytes = format_text("%lld", (long long)least);
    run_refused(rig, &request, "BUDGET", 4, bytes);
    check(!atomic_load(&rig->fault_sys.count[CALL_READ]),
          "%s: weights are read before the request is rejected", name);
    request.max_ram_bytes = least;
    json_t *a = query(rig, &request, NULL), *b = query(rig, &request, NULL);
    check(!strcmp(word(a, "hash"), word(b, "hash")), "%s: one request has two plan hashes", name);
    for (int i = 0; i < 2; i++) {
        struct sluice_request other = request;
        /* skip: no budget lies above the minimum, because opening the tokenizers needs more memory than any
         * stage */
        if (!i && least == all) continue;
        i ? (other.batch += 1) : (other.max_ram_bytes = (least + all) / 2);
        b = query(rig, &other, &fits);
        check(strcmp(word(a, "hash"), word(b, "hash")), "%s: two requests have one plan hash", name);
        check(i || (fits && ram(b, "peak") <= other.max_ram_bytes), "%s: the plan exceeds its budget", name);
    }
}

/* Models with wide blocks must stream at some budgets in all stages except hoist. */
static void some_budgets(struct rig *rig, struct sluice_request request, const struct result *want, bool wide,
                         const char *name) {
    struct tally t = budgets(rig, request, want, thorough_or(BUDGETS_MOST, 3), name);
    if (!wide || !thorough()) return;
    check(t.different >= 6, "%s: only %d different resident sets", name, t.different);
    for (int i = 0; i < t.n_stages; i++)
        check(!strcmp(t.stage[i], "hoist") || t.streams[i] >= 2, "%s: stage %s streams at only %d budgets",
              name, t.stage[i], t.streams[i]);
    check(tally_of(&t, "text") >= 2 && tally_of(&t, "denoise") >= 2,
          "%s: no stage text or denoise that streams", name);
}

static void test_plan_never_changes_bits(const char *folder, const char *name, const struct gate *gate) {
    struct rig rig;
    struct sluice_request request = gate->request;
    json_int_t least, all;
    if (!rig_open(&rig, folder, gate->threads, (uint64_t)gate->threads)) return;
    struct result want = run_fresh(folder, gate->threads, request);
    bounds(&rig, request, &least, &all);
    rig.fault_sys.delay_us = 300;
    rig.fault_sys.short_reads = true;
    some_budgets(&rig, request, &want, gate->wide, name);
    if (gate->no_decode && thorough()) {
        struct result latents = want;
        latents.n_images = 0;
        request.no_decode = true;
        some_budgets(&rig, request, &latents, gate->wide, name);
        request.no_decode = false;
    }
    if (thorough()) direct_reads(&rig, request, &want, 5, name);
    edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, 6), name);
    minimum_budget(&rig, request, name);
    shapes(&rig, gate, name);
    batch_against_seeds(&rig, request, least, name);
    if (request.cfg_scale != 1 && thorough()) {
        request.cfg_scale = 1;
        batch_against_seeds(&rig, request, least, name);
    }
    sessions_past(&rig, folder, gate, &want, least, name);
    rig_close(&rig);
}

/* Another precision gives other pixels, another plan hash and another predicted time. */
static void precisions_differ(struct rig *rig, struct sluice_request request, const struct result *bf16) {
    json_t *narrow = query(rig, &request, NULL);
    check(!strcmp(word(narrow, "precision"), "bf16"), "the plan has precision f32");
    request.precision = "f32";
    json_t *wide = query(rig, &request, NULL);
    struct result r = run(rig, &request);
    check(r.n_latents == bf16->n_latents && strcmp(r.latent[0], bf16->latent[0]),
          "bf16 and f32 give equal latents");
    check(strcmp(word(narrow, "hash"), word(wide, "hash")), "plans for bf16 and f32 have one hash");
    check(real(stage_of(narrow, "denoise"), "seconds") > real(stage_of(wide, "denoise"), "seconds"),
          "bf16 is not predicted slower than f32");
    request.plan = plan_text(rig, narrow);
    run_refused(rig, &request, "BUDGET", 4, "");
}

static void test_plan_never_changes_bits_in_bf16(const char *folder, const char *name,
                                                 const struct gate *gate) {
    struct rig rig;
    json_int_t least, all;
    struct sluice_request request = gate->request;
    request.precision = "bf16";
    if (!rig_open(&rig, folder, gate->threads, (uint64_t)gate->threads)) return;
    const char *reason = rig.session->device->unsupported[PRECISION_BF16];
    if (reason) {
        printf("SKIP %s in bf16: %s\n", name, reason);
    } else {
        struct result want = run_fresh(folder, gate->threads, request);
        bounds(&rig, request, &least, &all);
        rig.fault_sys.delay_us = 300;
        rig.fault_sys.short_reads = true;
        some_budgets(&rig, request, &want, gate->wide, name);
        edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, 3), name);
        minimum_budget(&rig, request, name);
        batch_against_seeds(&rig, request, least, name);
        precisions_differ(&rig, request, &want);
    }
    rig_close(&rig);
}

/* Returns whether a fixture runs: it is named on the command line, or belongs to the default set. */
static bool is_tried(const struct fixture *f, char **names) {
    return f->gate && (f->gate->always || thorough() || *names) && fixture_is_selected(f, names);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    gates_begin();
    for (int i = 0; i < n_fixtures; i++) {
        const struct fixture *f = &fixtures[i];
        if (!is_tried(f, argv + (argc > 0))) continue;
        const char *folder = fixture_model(f);
        rig_fixture = f;
        test_plan_never_changes_bits(folder, f->name, f->gate);
        if (f->gate->in_bf16) test_plan_never_changes_bits_in_bf16(folder, f->name, f->gate);
    }
    check(n_passed > 0, "no fixture with a gate has these names");
    return finish();
}
