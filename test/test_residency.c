/* The residency gate: what a plan chooses, delays, batch and the session's past change no bit of latent or
 * picture, and no memory line exceeds its plan. See test/harness.h for the world it runs in.
 *
 * Where each choice is varied and compared with a run that nothing constrains:
 *
 *     which blocks are resident         budgets (the solver's sets), edited_plans (random ones)
 *     ring, from the least to the whole edited_plans
 *     depth, no_wrap, waits             edited_plans
 *     direct reads, size of the bounce  direct_reads, edited_plans, requests, test_direct.c
 *     what of the decoder is kept       edited_plans, test_decode.c; in larger pictures test_rings_vae.c
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
#include "test/harness.h"

enum { BUDGETS = 10, EDITS = 16, STAGES = 3 };

static const char *const stage_names[STAGES] = {"text", "denoise", "decode"};
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

/* ---- planned = used ---- */

static json_int_t largest(json_t *plan, const char *key) {
    json_int_t most = 0;
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (number(stage, key) > most) most = number(stage, key);
    }
    return most;
}

/* Since watch_restart. */
static void check_lines(struct rig *rig, json_t *plan, const char *what) {
    const int64_t *peak = rig->watch.sys.use.peak_bytes;
    const json_int_t planned[N_MEMORY_LINES] = {
        [LINE_HOST] = number(plan, "host_bytes"),
        [LINE_STORE] = planned_store(plan),
        [LINE_STATE] = number(plan, "cross_bytes") + largest(plan, "state_bytes"),
        [LINE_ACTIVATION] = largest(plan, "activation_bytes"),
        [LINE_WORKSPACE] = largest(plan, "workspace_bytes"),
    };
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(peak[i] <= planned[i], "%s: line %d used %lld, planned %lld", what, i, (long long)peak[i],
              (long long)planned[i]);
    check(ram(plan, "peak") <= ram(plan, "budget"), "%s: the plan is above its budget", what);
}

/* Allowed between first and last visit: what begins and ends a stage. Ring slots are released at every
 * streamed visit, so allocations inside a stage would split its run of releases. */
static void check_quiet(struct rig *rig, json_t *plan, const char *what) {
    long stages = 0;
    for (int i = 0; i < STAGES; i++) stages += streamed(plan, stage_names[i]) > 0;
    check(atomic_load(&rig->watch.n_groups) <= (long)json_array_size(json_object_get(plan, "stages")),
          "%s: allocates between visits: %ld groups", what, atomic_load(&rig->watch.n_groups));
    check(!stages || atomic_load(&rig->watch.n_discards) >= stages, "%s: nothing passed the ring", what);
}

/* One run that must give the same bits within its plan. */
static struct result run_same(struct rig *rig, const struct sluice_request *request,
                              const struct result *want, const char *what) {
    watch_restart(&rig->watch);
    struct result r = run(rig, request);
    same(want, &r, what);
    if (r.code == SLUICE_OK) {
        check_lines(rig, r.plan, what);
        check_quiet(rig, r.plan, what);
    }
    return r;
}

/* ---- budgets ---- */

struct tally {
    int streams[STAGES];
    char residents[BUDGETS][2048];
    int n, different;
};

static void note_plan(struct tally *t, json_t *plan) {
    char *text = t->residents[t->n];
    size_t at = 0, i, k;
    json_t *stage, *block;
    json_array_foreach(json_object_get(plan, "stages"), i, stage)
        json_array_foreach(json_object_get(stage, "blocks"), k, block) if (at < sizeof t->residents[0] - 1)
            text[at++] = json_is_true(json_object_get(block, "resident")) ? '1' : '0';
    bool seen = false;
    for (int b = 0; b < t->n; b++) seen = seen || !strcmp(text, t->residents[b]);
    t->different += !seen;
    t->n++;
    for (int s = 0; s < STAGES; s++) t->streams[s] += streamed(plan, stage_names[s]) > 0;
}

/* From the least to all resident; denser at the least, where one block more makes a difference. */
static void budgets(struct rig *rig, struct sluice_request request, const struct result *want, bool wide,
                    const char *name) {
    static struct tally t;
    json_int_t least, all;
    t = (struct tally){0};
    bounds(rig, request, &least, &all);
    for (int i = 0; i < BUDGETS; i++) {
        char what[128];
        double part = (double)i / (BUDGETS - 1);
        request.max_ram_bytes = least + (int64_t)((double)(all - least) * part * part);
        snprintf(what, sizeof what, "%s%s budget %lld", name, request.no_decode ? " no_decode" : "",
                 (long long)request.max_ram_bytes);
        struct result r = run_same(rig, &request, want, what);
        if (r.plan) note_plan(&t, r.plan);
        result_free(&r);
    }
    printf("%-10s%-10s %d budgets %lld..%lld, %d resident sets, streams text %d denoise %d decode %d\n", name,
           request.no_decode ? "no_decode" : "", t.n, (long long)least, (long long)all, t.different,
           t.streams[0], t.streams[1], t.streams[2]);
    if (!wide) return;
    check(t.different >= 6, "%s: only %d resident sets", name, t.different);
    check(t.streams[0] >= 6 && t.streams[1] >= 6, "%s: text streams at %d budgets, denoise at %d", name,
          t.streams[0], t.streams[1]);
    if (!request.no_decode) check(t.streams[2] >= 2, "%s: decode streams at %d budgets", name, t.streams[2]);
}

/* ---- direct reads ---- */

/* On and off in turn, from the least to all resident. */
static void direct_reads(struct rig *rig, struct sluice_request request, const struct result *want,
                         const char *name) {
    enum { RUNS = 5 };
    json_int_t least, all;
    for (int i = 0; i < RUNS; i++) {
        char what[64];
        request.direct_io = i % 2 ? "off" : "on";
        bounds(rig, request, &least, &all);
        request.max_ram_bytes = least + (all - least) * i / (RUNS - 1);
        snprintf(what, sizeof what, "%s --direct-io %s %d", name, request.direct_io, i);
        struct result r = run_same(rig, &request, want, what);
        check((number(r.plan, "bounce_bytes") > 0) == !(i % 2), "%s: not what was asked for", what);
        result_free(&r);
    }
}

/* ---- edited plans ---- */

static json_int_t pages(json_int_t bytes) {
    return (bytes + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
}

/* What streams of a stage: the largest block, and all of them. */
struct flow {
    json_int_t largest, whole;
};

/* Every block resident with chance percent. */
static struct flow edit_residents(json_t *stage, int percent, atomic_ullong *random) {
    struct flow flow = {0};
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(stage, "blocks"), i, block) {
        bool resident = (int)(draw(random) % 100) < percent;
        json_int_t bytes = resident ? 0 : number(block, "bytes");
        json_object_set_new(block, "resident", json_boolean(resident));
        if (bytes > flow.largest) flow.largest = bytes;
        flow.whole += bytes;
    }
    return (struct flow){pages(flow.largest), pages(flow.whole)};
}

static json_int_t ring_of(struct flow flow, int edit, atomic_ullong *random) {
    if (edit % 3 == 0) return flow.largest;
    if (edit % 3 == 1) return flow.whole;
    return flow.largest + pages((json_int_t)(draw(random) % (uint64_t)(flow.whole - flow.largest + 1)));
}

static void edit_stage(json_t *stage, int edit, atomic_ullong *random, int64_t ring_less) {
    static const int percents[] = {0, 100, 50, 20, 80};
    json_int_t ring = ring_of(edit_residents(stage, percents[edit % 5], random), edit, random);
    if (ring_less && ring >= ring_less) ring -= ring_less;
    json_object_set_new(stage, "ring_bytes", json_integer(ring));
    json_object_set_new(stage, "depth", json_integer((json_int_t)(draw(random) % 3)));
    json_object_set_new(stage, "no_wrap", json_integer((json_int_t)(draw(random) % 2)));
    json_object_set_new(stage, "waits", json_integer((json_int_t)(draw(random) % 2)));
    if (json_object_get(stage, "vae_tiling"))
        json_object_set_new(stage, "vae_tiling", json_string(draw(random) % 2 ? "on" : "off"));
}

static void edit_plan(json_t *plan, int edit, atomic_ullong *random, int64_t ring_less) {
    static const int bounces[] = {0, 32 * PLAN_PAGE, PLAN_BOUNCE / 4,
                                  PLAN_BOUNCE}; /* one page: test_direct.c */
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) edit_stage(stage, edit, random, ring_less);
    json_object_set_new(plan, "bounce_bytes", json_integer(bounces[draw(random) % 4]));
    json_object_set_new(plan, "keep", json_boolean(edit / 2 % 2)); /* after each of both comes each of both */
}

/* How often the denoiser streamed under each value, so that no choice is varied in name only. */
struct variety {
    int depth[3], no_wrap[2], waits[2], direct[2], tiled[2];
};

static void note_variety(struct variety *v, json_t *plan) {
    const json_t *stage = stage_of(plan, "denoise");
    v->tiled[!strcmp(json_string_value(json_object_get(stage_of(plan, "decode"), "vae_tiling")), "on")]++;
    if (!number(stage_of(plan, "denoise"), "streamed_bytes_per_evaluation")) return;
    v->depth[json_integer_value(json_object_get(stage, "depth"))]++;
    v->no_wrap[json_integer_value(json_object_get(stage, "no_wrap"))]++;
    v->waits[json_integer_value(json_object_get(stage, "waits"))]++;
    v->direct[number(plan, "bounce_bytes") > 0]++;
}

static void check_variety(const struct variety *v, const char *name) {
    check(v->depth[0] && v->depth[1] && v->depth[2], "%s: depth any %d, 1 %d, 2 %d", name, v->depth[0],
          v->depth[1], v->depth[2]);
    check(v->no_wrap[0] && v->no_wrap[1], "%s: wraps %d, not %d", name, v->no_wrap[0], v->no_wrap[1]);
    check(v->waits[0] && v->waits[1], "%s: does not wait %d, waits %d", name, v->waits[0], v->waits[1]);
    check(v->tiled[0] && v->tiled[1], "%s: pictures kept %d, not %d", name, v->tiled[0], v->tiled[1]);
    check(v->direct[0] && v->direct[1], "%s: cached %d, direct %d", name, v->direct[0], v->direct[1]);
}

/* Everything streams through the least ring. */
static void edited_plan(struct rig *rig, struct sluice_request request, const struct result *want,
                        const char *what) {
    atomic_ullong random = 78;
    json_t *plan = query(rig, &request, NULL);
    edit_plan(plan, 0, &random, 0);
    char *text = json_dumps(plan, 0);
    request.plan = text;
    struct result r = run_same(rig, &request, want, what);
    if (r.plan) check(streamed(r.plan, "denoise") > 0, "%s: the denoiser should stream", what);
    result_free(&r);
    free(text);
    json_decref(plan);
}

static void edited_plans(struct rig *rig, struct sluice_request request, const struct result *want,
                         const char *name) {
    atomic_ullong random = 77;
    struct variety variety = {0};
    json_t *plan = query(rig, &request, NULL);
    request.max_ram_bytes = 0; /* the plan brings its own */
    for (int i = 0; i < EDITS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s edited plan %d", name, i);
        edit_plan(plan, i, &random, 0);
        char *text = json_dumps(plan, 0);
        request.plan = text;
        struct result r = run_same(rig, &request, want, what);
        if (r.plan) note_variety(&variety, r.plan);
        if (r.plan && i % 5 == 0)
            check(streamed(r.plan, "text") > 0 && streamed(r.plan, "denoise") > 0 &&
                      streamed(r.plan, "decode") > 0,
                  "%s: everything should stream", what);
        result_free(&r);
        free(text);
    }
    check_variety(&variety, name);
    edit_plan(plan, 0, &random, PLAN_PAGE);
    char *text = json_dumps(plan, 0);
    request.plan = text;
    watch_restart(&rig->watch);
    struct result r = run(rig, &request);
    check(r.code == SLUICE_BUDGET && !atomic_load(&rig->watch.count[CALL_MAP]), "%s: a ring too small: %s",
          name, sluice_code_name(r.code));
    result_free(&r);
    free(text);
    json_decref(plan);
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

/* ---- batch and the session's past ---- */

static void batch_against_seeds(struct rig *rig, double cfg_scale, const char *precision, json_int_t least,
                                const char *name) {
    struct sluice_request three = request_snow(42, 3);
    three.cfg_scale = cfg_scale;
    three.precision = precision;
    struct result all = run(rig, &three);
    check(all.code == SLUICE_OK && all.n_images == 3, "%s: batch of 3: %s", name, all.error.what);
    check(strcmp(all.latent[0], all.latent[1]) && strcmp(all.image[1], all.image[2]),
          "%s: seeds do not differ", name);
    for (int k = 0; k < 3; k++) {
        char what[64];
        struct sluice_request one = request_snow(42 + (uint64_t)k, 1);
        one.cfg_scale = cfg_scale;
        one.precision = precision;
        if (k == 1) one.max_ram_bytes = least; /* a batch of 1 needs no more than one of 2 */
        snprintf(what, sizeof what, "%s image %d of 3, cfg %g", name, k, cfg_scale);
        struct result r = run(rig, &one);
        same_from(&all, k, &r, what);
        result_free(&r);
    }
    result_free(&all);
}

/* What a fresh model and session give. */
static struct result fresh(const char *folder, int threads, struct sluice_request request) {
    struct rig rig;
    struct result r = {0};
    if (rig_open(&rig, folder, threads, 5)) r = run(&rig, &request);
    check(r.code == SLUICE_OK, "%s: %s (%s)", folder, r.error.what, r.error.found);
    rig_close(&rig);
    return r;
}

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

static void gate(const char *folder, const char *name, int threads, bool wide) {
    struct rig rig;
    struct sluice_request request = request_snow(42, 2);
    json_int_t least, all;
    if (!rig_open(&rig, folder, threads, (uint64_t)threads)) return;
    struct result want = fresh(folder, threads, request);
    bounds(&rig, request, &least, &all);
    rig.watch.delays = rig.watch.short_reads = true;
    budgets(&rig, request, &want, wide, name);
    if (threads == 1) { /* without the decoder the least is lower and more of the rest streams */
        struct result latents = want;
        latents.n_images = 0;
        request.no_decode = true;
        budgets(&rig, request, &latents, wide, name);
        request.no_decode = false;
    }
    direct_reads(&rig, request, &want, name);
    edited_plans(&rig, request, &want, name);
    least_budget(&rig, request, name);
    if (wide) requests(&rig, name);
    batch_against_seeds(&rig, 3.5, "f32", least, name);
    batch_against_seeds(&rig, 1, "f32", least, name);
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
        if (streams) budgets(&rig, request, &want, false, name);
        edited_plans(&rig, request, &want, name);
        least_budget(&rig, request, name);
        if (!streams) batch_against_seeds(&rig, 3.5, "bf16", least, name);
        precisions_differ(&rig, request, &want);
        result_free(&want);
    }
    rig_close(&rig);
}

static void once_more_with_avx2(const char *self) {
    char command[512], line[512];
    int passed = 0, failed = 1;
    fflush(stdout);
    snprintf(command, sizeof command, "DNNL_MAX_CPU_ISA=AVX2 '%s' avx2 2>&1", self);
    FILE *child = popen(command, "r");
    while (child && fgets(line, sizeof line, child))
        if (sscanf(line, "%d passed, %d failed", &passed, &failed) != 2) printf("avx2: %s", line);
    int status = child ? pclose(child) : -1;
    n_passed += passed;
    n_failed += failed;
    check(status == 0, "the run with AVX2 ended with %d", status);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *wide = wide_checkpoint();
    gate(wide, "wide -t 1", 1, true);
    gate(wide, "wide -t 2", 2, true);
    gate("test/golden/zimage_a/model", "zimage_a", 1, false);
    gate("test/golden/zimage_b/model", "zimage_b", 2, false);
    gate_bf16("test/golden/zimage_b/model", "b in bf16", 2, false);
    gate_bf16(wide, "wide in bf16", 1, true);
    bool once_more = argc < 2;
#ifdef __SANITIZE_ADDRESS__
    once_more = false; /* our code is the same there, and time is dear */
#endif
    if (once_more) once_more_with_avx2(argv[0]);
    return finish();
}
