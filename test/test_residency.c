/* The residency gate: budget, residents, ring, delays, batch and the session's past change no bit of latent
 * or picture, and no memory line exceeds its plan. See test/harness.h for the world it runs in.
 *
 * Hashes are compared within one process only. The program runs itself once more with oneDNN limited to AVX2:
 * most users have that, and it is the path whose rows are not independent of their neighbours. */
#include "test/harness.h"

enum { BUDGETS = 12, EDITS = 10, STAGES = 3 };

static const char *const stage_names[STAGES] = {"text", "denoise", "decode"};
static const char fox[] = "a red fox in the snow";
static const char harbour[] = "an old harbour at dawn, fishing boats, gulls over the mole, mist on the "
                              "water, oil on canvas, 1890, \xe2\x98\x83";

static struct sluice_request request_fox(uint64_t seed, int batch) {
    return (struct sluice_request){.struct_size = sizeof(struct sluice_request),
                                   .prompt = fox,
                                   .negative_prompt = "blurry, low contrast",
                                   .width = 48,
                                   .height = 32,
                                   .steps = 2,
                                   .batch = batch,
                                   .cfg_scale = 3.5,
                                   .seed = seed,
                                   .max_ram_bytes = plenty};
}

static struct sluice_request request_harbour(void) {
    return (struct sluice_request){.struct_size = sizeof(struct sluice_request),
                                   .prompt = harbour,
                                   .width = 32,
                                   .height = 80,
                                   .steps = 2,
                                   .batch = 1,
                                   .cfg_scale = 1,
                                   .seed = 7,
                                   .max_ram_bytes = plenty};
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

static json_int_t planned_store(json_t *plan) {
    json_int_t most = 0, kept = 0;
    size_t i;
    json_t *stage;
    bool keep = json_is_true(json_object_get(plan, "keep"));
    json_array_foreach(json_object_get(plan, "stages"), i, stage) kept += number(stage, "resident_bytes");
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        json_int_t here = number(stage, "ring_bytes") + (keep ? kept : number(stage, "resident_bytes"));
        if (here > most) most = here;
    }
    return most + number(plan, "bounce_bytes");
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

/* Every block resident with chance percent; returns the largest that streams. */
static json_int_t edit_stage(json_t *stage, int percent, atomic_ullong *random) {
    json_int_t most = 0;
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(stage, "blocks"), i, block) {
        bool resident = (int)(draw(random) % 100) < percent;
        json_object_set_new(block, "resident", json_boolean(resident));
        if (!resident && number(block, "bytes") > most) most = number(block, "bytes");
    }
    return pages(most);
}

static void edit_plan(json_t *plan, int edit, atomic_ullong *random, int64_t ring_less) {
    static const int percents[] = {0, 100, 50, 20, 80};
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        json_int_t ring = edit_stage(stage, percents[edit % 5], random);
        if (edit % 3 == 1) ring += pages((json_int_t)(draw(random) % (uint64_t)(ring + 1)));
        if (edit % 3 == 2) ring *= 5;
        if (ring_less && ring >= ring_less) ring -= ring_less;
        json_object_set_new(stage, "ring_bytes", json_integer(ring));
    }
    json_object_set_new(plan, "keep", json_boolean(draw(random) % 2));
}

static void edited_plans(struct rig *rig, struct sluice_request request, const struct result *want,
                         const char *name) {
    atomic_ullong random = 77;
    json_t *plan = query(rig, &request, NULL);
    request.max_ram_bytes = 0; /* the plan brings its own */
    for (int i = 0; i < EDITS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s edited plan %d", name, i);
        edit_plan(plan, i, &random, 0);
        char *text = json_dumps(plan, 0);
        request.plan = text;
        struct result r = run_same(rig, &request, want, what);
        if (r.plan && i % 5 == 0)
            check(streamed(r.plan, "text") > 0 && streamed(r.plan, "denoise") > 0 &&
                      streamed(r.plan, "decode") > 0,
                  "%s: everything should stream", what);
        result_free(&r);
        free(text);
    }
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

/* ---- batch and the session's past ---- */

static void batch_against_seeds(struct rig *rig, json_int_t least, const char *name) {
    struct sluice_request three = request_fox(42, 3);
    struct result all = run(rig, &three);
    check(all.code == SLUICE_OK && all.n_images == 3, "%s: batch of 3: %s", name, all.error.what);
    check(strcmp(all.latent[0], all.latent[1]) && strcmp(all.image[1], all.image[2]),
          "%s: seeds do not differ", name);
    for (int k = 0; k < 3; k++) {
        char what[64];
        struct sluice_request one = request_fox(42 + (uint64_t)k, 1);
        if (k == 1) one.max_ram_bytes = least; /* a batch of 1 needs no more than one of 2 */
        snprintf(what, sizeof what, "%s image %d of 3", name, k);
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
    struct sluice_request first = request_fox(42, 2), other = request_harbour();
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
    struct sluice_request request = request_fox(42, 2);
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
    batch_against_seeds(&rig, least, name);
    sessions_past(&rig, folder, threads, &want, least, name);
    result_free(&want);
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
    if (argc < 2) once_more_with_avx2(argv[0]);
    return finish();
}
