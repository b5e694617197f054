/* The residency gate of every fixture: what a plan chooses, delays, batch and the session's past change no
 * bit of latent or picture, and no memory line exceeds its plan. See test/lib/rig.h for the world it runs in,
 * test/lib/gates.c for what is varied of each fixture; `make check-all` runs all of it.
 *
 * Where each choice is varied and compared with a run that nothing constrains:
 *
 *     which blocks are resident         budgets (the solver's sets), edited_plans (random ones)
 *     ring, from the least to the whole edited_plans
 *     depth, no_wrap, waits             edited_plans
 *     direct reads, size of the bounce  direct_reads, edited_plans, shapes, test_direct_io.c
 *     what of the decoder is kept       edited_plans, test_decode.c; in larger pictures test/lib/blocks_vae.c
 *     keep, from one run to the next    edited_plans (every pair), sessions_past
 *     batch, with and without guidance  shapes, batch_against_seeds
 *     length of prompts, shape          shapes, sessions_past
 *     images that compute together      test_batch_lanes.c
 *     hoisted or plain                  test_hoist.c
 *     pieces, and when they are there   test_partial_blocks.c, test_weight_waits.c
 *     another plan in mid-run           test_memory_pressure.c, test_evict.c
 *     precision                         in_bf16: budgets, edited_plans, batch_against_seeds again
 *     types that weights are stored in  test_residency_types.c, test_requantise.c
 *
 * Hashes are compared within one process only. It is run once more with oneDNN limited to AVX2: most users
 * have that, and it is the path whose rows are not independent of their neighbours. */
#include "test/lib/fixtures.h"
#include "test/lib/gates.h"
#include "test/lib/residency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

/* Batches, guidance, shapes, prompts of other lengths: each at its least and past the page cache, and with a
 * plan under which everything streams. */
static void shapes(struct rig *rig, const struct gate *gate, const char *name) {
    int n = thorough() ? gate->n_shapes : (gate->n_shapes + 2) / 3;
    for (int i = 0; i < n; i++) {
        char what[128];
        json_int_t least, all;
        struct sluice_request request = gate->shapes[i];
        snprintf(what, sizeof what, "%s, %dx%d, batch %d, cfg %g", name, request.width, request.height,
                 request.batch, request.cfg_scale);
        struct result want = run(rig, &request);
        check(want.n_images == request.batch, "%s: %s", what, want.error.what);
        edited_plan(rig, request, &want, what);
        request.direct_io = "on";
        bounds(rig, request, &least, &all);
        request.max_ram_bytes = least;
        struct result r = run_same(rig, &request, &want, what);
        result_free(&r);
        result_free(&want);
    }
}

/* ---- the session's past ---- */

static void cancel_at(void *user, long n) {
    if (n == 40) sluice_cancel(user);
}

/* A run that another thread's call ends somewhere. */
static void cancelled(struct rig *rig, struct sluice_request request, int64_t budget, const char *what) {
    rig->fault_sys.on_read = cancel_at;
    rig->fault_sys.on_read_user = rig->session;
    fault_sys_restart(&rig->fault_sys);
    request.seed = 1;
    request.max_ram_bytes = budget;
    struct result r = run(rig, &request);
    check(r.code == SLUICE_CANCELLED || r.code == SLUICE_OK, "%s: cancel: %s", what,
          sluice_code_name(r.code));
    result_free(&r);
    rig->fault_sys.on_read = NULL;
}

/* Runs in between, of other size, prompt and lanes, cancelled, refused: the next is the same. */
static void sessions_past(struct rig *rig, const char *folder, const struct gate *gate,
                          const struct result *want, json_int_t least, const char *name) {
    struct sluice_request first = gate->request, other = gate->other;
    struct result r, elsewhere = run_fresh(folder, gate->threads, other);
    for (int i = thorough() ? 0 : 3; i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s session's past %d", name, i);
        other.max_ram_bytes = i & 1 ? least * 2 : plenty;
        first.max_ram_bytes = i & 2 ? least : plenty;
        r = run_same(rig, &other, &elsewhere, what);
        result_free(&r);
        if (i == 3) { /* its stages have other numbers than those that the session keeps */
            other.no_decode = true;
            r = run(rig, &other);
            same_from(&elsewhere, 0, &r, "no_decode in between");
            result_free(&r);
            other.no_decode = false;
        }
        cancelled(rig, first, i & 2 ? plenty : least, what);
        r = run_same(rig, &first, want, what);
        result_free(&r);
    }
    result_free(&elsewhere);
}

/* ---- least ---- */

static void least_budget(struct rig *rig, struct sluice_request request, const char *name) {
    json_int_t least, all;
    char bytes[32];
    bool fits = true;
    bounds(rig, request, &least, &all);
    request.max_ram_bytes = least - 1;
    json_t *plan = query(rig, &request, &fits);
    check(!fits && ram(plan, "least") == least, "%s: one byte under the least fits", name);
    json_decref(plan);
    fault_sys_restart(&rig->fault_sys);
    struct result r = run(rig, &request);
    snprintf(bytes, sizeof bytes, "%lld", (long long)least);
    check(!atomic_load(&rig->fault_sys.count[CALL_READ]), "%s: weights are read before the refusal", name);
    check(r.code == SLUICE_BUDGET && r.error.exit_code == 4 && strstr(r.error.what, bytes),
          "%s: under the least: %s, %s", name, sluice_code_name(r.code), r.error.what);
    printf("%-10s under the least: %s; reads %ld\n", name, r.error.what,
           atomic_load(&rig->fault_sys.count[CALL_READ]));
    result_free(&r);
    request.max_ram_bytes = least;
    json_t *a = query(rig, &request, NULL), *b = query(rig, &request, NULL);
    const char *hash = json_string_value(json_object_get(a, "hash"));
    check(!strcmp(hash, json_string_value(json_object_get(b, "hash"))), "%s: same request, other plan", name);
    json_decref(b);
    for (int i = 0; i < 2; i++) {
        struct sluice_request other = request;
        if (!i && least == all) continue; /* opening the tokenizers takes more than any stage */
        i ? (other.batch += 1) : (other.max_ram_bytes = (least + all) / 2);
        b = query(rig, &other, &fits);
        check(strcmp(hash, json_string_value(json_object_get(b, "hash"))), "%s: other request, same plan",
              name);
        check(i || (fits && ram(b, "peak") <= other.max_ram_bytes), "%s: a plan above its budget", name);
        json_decref(b);
    }
    json_decref(a);
}

/* ---- the gate ---- */

/* What is wide streams in all stages but that of what is hoisted. */
static void some_budgets(struct rig *rig, struct sluice_request request, const struct result *want, bool wide,
                         const char *name) {
    struct tally t = budgets(rig, request, want, thorough_or(BUDGETS_MOST, 3), name);
    if (!wide || !thorough()) return;
    check(t.different >= 6, "%s: only %d resident sets", name, t.different);
    for (int i = 0; i < t.n_stages; i++)
        check(!strcmp(t.stage[i], "hoist") || t.streams[i] >= 2, "%s: %s streams at %d budgets", name,
              t.stage[i], t.streams[i]);
    check(tally_of(&t, "text") >= 2 && tally_of(&t, "denoise") >= 2, "%s: no such stages", name);
}

static void gate_of(const char *folder, const char *name, const struct gate *gate) {
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
    least_budget(&rig, request, name);
    shapes(&rig, gate, name);
    batch_against_seeds(&rig, request, least, name);
    if (request.cfg_scale != 1 && thorough()) {
        request.cfg_scale = 1;
        batch_against_seeds(&rig, request, least, name);
    }
    sessions_past(&rig, folder, gate, &want, least, name);
    result_free(&want);
    rig_close(&rig);
}

/* A setting that changes pixels, and so the plan's hash; not a bit more than that. */
static void precisions_differ(struct rig *rig, struct sluice_request request, const struct result *bf16) {
    json_t *narrow = query(rig, &request, NULL);
    check(!strcmp(json_string_value(json_object_get(narrow, "precision")), "bf16"), "the plan is for f32");
    request.precision = "f32";
    json_t *wide = query(rig, &request, NULL);
    struct result r = run(rig, &request);
    check(r.n_latents == bf16->n_latents && strcmp(r.latent[0], bf16->latent[0]), "bf16 has the bits of f32");
    check(strcmp(json_string_value(json_object_get(narrow, "hash")),
                 json_string_value(json_object_get(wide, "hash"))),
          "plans for bf16 and f32 have one hash");
    double narrow_seconds = json_number_value(json_object_get(stage_of(narrow, "denoise"), "seconds"));
    double wide_seconds = json_number_value(json_object_get(stage_of(wide, "denoise"), "seconds"));
    check(narrow_seconds > wide_seconds, "bf16 is predicted by the rate of f32");
    char *text = json_dumps(narrow, 0);
    request.plan = text;
    struct result refused = run(rig, &request);
    check(refused.code == SLUICE_BUDGET, "a plan for bf16 runs in f32");
    result_free(&refused);
    result_free(&r);
    free(text);
    json_decref(narrow);
    json_decref(wide);
}

static void gate_in_bf16(const char *folder, const char *name, const struct gate *gate) {
    struct rig rig;
    json_int_t least, all;
    struct sluice_request request = gate->request;
    request.precision = "bf16";
    if (!rig_open(&rig, folder, gate->threads, (uint64_t)gate->threads)) return;
    const char *lacks = rig.session->device->unsupported[PRECISION_BF16];
    if (lacks) {
        printf("SKIP %s in bf16: %s\n", name, lacks);
    } else {
        struct result want = run_fresh(folder, gate->threads, request);
        bounds(&rig, request, &least, &all);
        rig.fault_sys.delay_us = 300;
        rig.fault_sys.short_reads = true;
        some_budgets(&rig, request, &want, gate->wide, name);
        edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, 3), name);
        least_budget(&rig, request, name);
        batch_against_seeds(&rig, request, least, name);
        precisions_differ(&rig, request, &want);
        result_free(&want);
    }
    rig_close(&rig);
}

/* Of all fixtures some are only tried where they are named. */
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
        gate_of(folder, f->name, f->gate);
        if (f->gate->in_bf16) gate_in_bf16(folder, f->name, f->gate);
    }
    return finish();
}
