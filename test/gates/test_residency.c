/* The residency gate: what a plan chooses, delays, batch and the session's past change no bit of latent or
 * picture, and no memory line exceeds its plan. See test/lib/rig.h for the world it runs in;
 * other families: test_residency_flux.c.
 *
 * Where each choice is varied and compared with a run that nothing constrains:
 *
 *     which blocks are resident         budgets (the solver's sets), edited_plans (random ones)
 *     ring, from the least to the whole edited_plans
 *     depth, no_wrap, waits             edited_plans
 *     direct reads, size of the bounce  direct_reads, edited_plans, requests, test_direct.c
 *     what of the decoder is kept       edited_plans, test_decode.c; in larger pictures blocks_vae.c
 *     keep, from one run to the next    edited_plans (every pair), sessions_past
 *     batch, with and without guidance  requests, batch_against_seeds
 *     length of prompts, shape          requests, sessions_past
 *     images that compute together      test_lanes.c
 *     hoisted or plain                  test_hoist.c
 *     pieces, and when they are there   test_pieces.c, test_early.c
 *     another plan in mid-run           test_pressure.c, test_give_up.c
 *     precision                         gate_bf16: budgets, edited_plans, batch_against_seeds again
 *
 * Hashes are compared within one process only. The program runs itself once more with oneDNN limited to AVX2:
 * most users have that, and it is the path whose rows are not independent of their neighbours. */
#include "test/lib/residency.h"
#include "test/lib/made_models.h"

static const char harbour[] = "an old harbour at dawn, fishing boats, gulls over the mole, mist on the "
                              "water, oil on canvas, 1890, \xe2\x98\x83";

static struct sluice_request request_snow(uint64_t seed, int batch) {
    struct sluice_request request = request_fox(48, 32, 2, batch, 3.5);
    request.seed = seed;
    return request;
}

static struct sluice_request request_harbour(void) {
    struct sluice_request request = request_fox(32, 80, 2, 1, 1);
    request.prompt = harbour;
    request.seed = 7;
    return request;
}

/* ---- requests ---- */

/* Batches, guidance, shapes, prompts of other lengths: each at its least and past the page cache, and with a
 * plan under which everything streams. */
static void requests(struct rig *rig, const char *name) {
    static const struct {
        int width, height, batch;
        double cfg_scale;
        const char *prompt, *negative_prompt;
    } kinds[] = {
        {16, 64, 1, 1, "fox", NULL},      {80, 16, 1, 3.5, harbour, ""}, {48, 48, 2, 1, "", NULL},
        {32, 80, 2, 3.5, "fox", harbour}, {64, 32, 3, 1, harbour, NULL}, {16, 48, 3, 3.5, "", "fox"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char what[128];
        json_int_t least, all;
        struct sluice_request request =
            request_fox(kinds[i].width, kinds[i].height, 2, kinds[i].batch, kinds[i].cfg_scale);
        request.prompt = kinds[i].prompt;
        request.negative_prompt = kinds[i].negative_prompt;
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

/* Runs in between, of other size, prompt and lanes, cancelled, refused: the next is the same. */
static void sessions_past(struct rig *rig, const char *folder, int threads, const struct result *want,
                          json_int_t least, const char *name) {
    struct sluice_request first = request_snow(42, 2), other = request_harbour();
    struct result r, elsewhere = fresh(folder, threads, other);
    for (int i = 0; i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s session's past %d", name, i);
        other.max_ram_bytes = i & 1 ? least * 2 : plenty;
        first.max_ram_bytes = i & 2 ? least : plenty;
        r = run_same(rig, &other, &elsewhere, what);
        result_free(&r);
        if (i == 2) { /* its stages have other numbers than those that the session keeps */
            other.no_decode = true;
            r = run(rig, &other);
            same_from(&elsewhere, 0, &r, "no_decode in between");
            result_free(&r);
            other.no_decode = false;
        }
        rig->watch.on_read = cancel_at;
        rig->watch.on_read_user = rig->session;
        watch_restart(&rig->watch);
        first.seed = 1;
        first.max_ram_bytes = i & 2 ? plenty : least;
        r = run(rig, &first);
        check(r.code == SLUICE_CANCELLED || r.code == SLUICE_OK, "%s: cancel: %s", what,
              sluice_code_name(r.code));
        result_free(&r);
        rig->watch.on_read = NULL;
        first.seed = 42;
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
    watch_restart(&rig->watch);
    struct result r = run(rig, &request);
    snprintf(bytes, sizeof bytes, "%lld", (long long)least);
    check(!atomic_load(&rig->watch.count[CALL_READ]), "%s: weights are read before the refusal", name);
    check(r.code == SLUICE_BUDGET && r.error.exit_code == 4 && strstr(r.error.what, bytes),
          "%s: under the least: %s, %s", name, sluice_code_name(r.code), r.error.what);
    printf("%-10s under the least: %s; reads %ld\n", name, r.error.what,
           atomic_load(&rig->watch.count[CALL_READ]));
    result_free(&r);
    request.max_ram_bytes = least;
    json_t *a = query(rig, &request, NULL), *b = query(rig, &request, NULL);
    const char *hash = json_string_value(json_object_get(a, "hash"));
    check(!strcmp(hash, json_string_value(json_object_get(b, "hash"))), "%s: same request, other plan", name);
    json_decref(b);
    for (int i = 0; i < 2; i++) {
        struct sluice_request other = request;
        i ? (other.width += 16) : (other.max_ram_bytes = (least + all) / 2);
        b = query(rig, &other, &fits);
        check(strcmp(hash, json_string_value(json_object_get(b, "hash"))), "%s: other request, same plan",
              name);
        check(i || (fits && ram(b, "peak") <= other.max_ram_bytes), "%s: a plan above its budget", name);
        json_decref(b);
    }
    json_decref(a);
}

/* wide: weights are so many that every stage streams at some of them. */
static void wide_budgets(struct rig *rig, struct sluice_request request, const struct result *want, bool wide,
                         const char *name) {
    struct tally t = budgets(rig, request, want, wide ? some(BUDGETS) : some(BUDGETS / 2), name);
    if (!wide || !thorough()) return;
    check(t.different >= 6, "%s: only %d resident sets", name, t.different);
    check(t.streams[TEXT] >= 6 && t.streams[DENOISE] >= 6, "%s: text streams at %d budgets, denoise at %d",
          name, t.streams[TEXT], t.streams[DENOISE]);
    if (!request.no_decode)
        check(t.streams[DECODE] >= 2, "%s: decode streams at %d budgets", name, t.streams[DECODE]);
}

static void gate(const char *folder, const char *name, int threads, bool wide) {
    struct rig rig;
    struct sluice_request request = request_snow(42, 2);
    json_int_t least, all;
    if (!rig_open(&rig, folder, threads, (uint64_t)threads)) return;
    struct result want = fresh(folder, threads, request);
    bounds(&rig, request, &least, &all);
    rig.watch.delays = rig.watch.short_reads = true;
    wide_budgets(&rig, request, &want, wide, name);
    if (threads == 1) { /* without the decoder the least is lower and more of the rest streams */
        struct result latents = want;
        latents.n_images = 0;
        request.no_decode = true;
        wide_budgets(&rig, request, &latents, wide, name);
        request.no_decode = false;
    }
    if (thorough()) direct_reads(&rig, request, &want, name);
    edited_plans(&rig, request, &want, wide ? some(EDITS) : some(EDITS / 2), name);
    least_budget(&rig, request, name);
    if (wide) requests(&rig, name);
    batch_against_seeds(&rig, request, least, name);
    request.cfg_scale = 1;
    batch_against_seeds(&rig, request, least, name);
    sessions_past(&rig, folder, threads, &want, least, name);
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

/* streams: the denoiser does at some budgets. */
static void gate_bf16(const char *folder, const char *name, int threads, bool streams) {
    struct rig rig;
    json_int_t least, all;
    struct sluice_request request = request_snow(42, 2);
    request.precision = "bf16";
    if (!rig_open(&rig, folder, threads, (uint64_t)threads)) return;
    const char *lacks = rig.session->device->lacks[PRECISION_BF16];
    if (lacks) {
        printf("SKIP %s: %s\n", name, lacks);
    } else {
        struct result want = fresh(folder, threads, request);
        bounds(&rig, request, &least, &all);
        rig.watch.delays = rig.watch.short_reads = true;
        if (streams) budgets(&rig, request, &want, some(BUDGETS), name);
        edited_plans(&rig, request, &want, some(EDITS), name);
        least_budget(&rig, request, name);
        if (!streams) batch_against_seeds(&rig, request, least, name);
        precisions_differ(&rig, request, &want);
        result_free(&want);
    }
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *wide = wide_checkpoint();
    if (thorough()) gate(wide, "wide -t 1", 1, true);
    gate(wide, "wide -t 2", 2, true);
    if (thorough()) gate("test/golden/zimage_a/model", "zimage_a", 1, false);
    gate("test/golden/zimage_b/model", "zimage_b", 2, false);
    gate_bf16("test/golden/zimage_b/model", "b in bf16", 2, false);
    if (thorough()) gate_bf16(wide, "wide in bf16", 1, true);
    return finish();
}
