#include "test/lib/residency.h"

int thorough_or(int thoroughly, int n) {
    return thorough() ? thoroughly : n;
}

static json_int_t largest(json_t *plan, const char *key) {
    json_int_t most = 0;
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++)
        if (number(stage, key) > most) most = number(stage, key);
    return most;
}

/* Checks the peak of each memory line since fault_sys_restart against the plan. */
static void check_lines(struct rig *rig, json_t *plan, const char *what) {
    const int64_t *peak = rig->fault_sys.sys.use.peak_bytes;
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
    check(ram(plan, "peak") <= ram(plan, "budget"), "%s: the plan's peak exceeds its budget", what);
}

/* Checks that only the begin and end of a stage allocate memory. Ring memory is discarded at every streamed
 * visit. An allocation in the middle of a stage would split the group of discards that the test counts for
 * the stage. */
static void check_quiet(struct rig *rig, json_t *plan, const char *what) {
    long stages = 0, n = 0;
    json_t *stage;
    for (; (stage = stage_at(plan, (size_t)n)); n++)
        stages += number(stage, "streamed_bytes_per_evaluation") > 0;
    check(atomic_load(&rig->fault_sys.n_groups) <= n,
          "%s: allocations between visits split the releases into %ld groups", what,
          atomic_load(&rig->fault_sys.n_groups));
    check(!stages || atomic_load(&rig->fault_sys.n_discards) >= stages,
          "%s: no block passed through the ring", what);
}

struct result run_same(struct rig *rig, const struct sluice_request *request, const struct result *want,
                       const char *what) {
    fault_sys_restart(&rig->fault_sys);
    struct result r = run(rig, request);
    same(want, &r, what);
    if (r.code == SLUICE_OK) {
        check_lines(rig, r.plan, what);
        check_quiet(rig, r.plan, what);
    }
    return r;
}

static void note_plan(struct tally *t, json_t *plan) {
    char *text = t->residents[t->n];
    size_t at = 0;
    json_t *stage, *block;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++)
        for (size_t k = 0; (block = block_at(stage, k)) && at < sizeof t->residents[0] - 1; k++)
            text[at++] = json_is_true(json_object_get(block, "resident")) ? '1' : '0';
    bool known = false;
    for (int b = 0; b < t->n; b++) known = known || !strcmp(text, t->residents[b]);
    t->different += !known;
    t->n++;
    for (t->n_stages = 0; (stage = stage_at(plan, (size_t)t->n_stages)); t->n_stages++) {
        snprintf(t->stage[t->n_stages], sizeof *t->stage, "%s", word(stage, "name"));
        t->streams[t->n_stages] += number(stage, "streamed_bytes_per_evaluation") > 0;
    }
}

int tally_of(const struct tally *t, const char *stage) {
    for (int i = 0; i < t->n_stages; i++)
        if (!strcmp(t->stage[i], stage)) return t->streams[i];
    return 0;
}

struct tally budgets(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                     const char *name) {
    static struct tally t;
    json_int_t least, all;
    t = (struct tally){0};
    bounds(rig, request, &least, &all);
    for (int i = 0; i < n; i++) {
        double part = (double)i / (n - 1);
        request.max_ram_bytes = least + (int64_t)((double)(all - least) * part * part);
        const char *what = format_text("%s%s budget %lld", name, request.no_decode ? " no_decode" : "",
                                       (long long)request.max_ram_bytes);
        struct result r = run_same(rig, &request, want, what);
        if (r.plan) note_plan(&t, r.plan);
    }
    return t;
}

void direct_reads(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name) {
    json_int_t least, all;
    for (int i = 0; i < n; i++) {
        request.direct_io = i % 2 ? "off" : "on";
        bounds(rig, request, &least, &all);
        request.max_ram_bytes = least + (all - least) * i / (n - 1);
        const char *what = format_text("%s --direct-io %s %d", name, request.direct_io, i);
        struct result r = run_same(rig, &request, want, what);
        check((number(r.plan, "bounce_bytes") > 0) == !(i % 2), "%s: direct_io was not applied", what);
    }
}

/* Bytes of the blocks that a stage streams: of the largest block, and of all. */
struct flow {
    json_int_t largest, whole;
};

static struct flow edit_residents(json_t *stage, int percent, atomic_ullong *random) {
    struct flow flow = {0};
    json_t *block;
    for (size_t i = 0; (block = block_at(stage, i)); i++) {
        bool resident = (int)(random_next_atomic(random) % 100) < percent;
        json_int_t bytes = resident ? 0 : number(block, "bytes");
        json_object_set_new(block, "resident", json_boolean(resident));
        if (bytes > flow.largest) flow.largest = bytes;
        flow.whole += bytes;
    }
    return (struct flow){(json_int_t)plan_pages((uint64_t)flow.largest),
                         (json_int_t)plan_pages((uint64_t)flow.whole)};
}

static json_int_t ring_of(struct flow flow, int edit, atomic_ullong *random) {
    if (edit % 3 == 0) return flow.largest;
    if (edit % 3 == 1) return flow.whole;
    uint64_t more = random_next_atomic(random) % (uint64_t)(flow.whole - flow.largest + 1);
    return flow.largest + (json_int_t)plan_pages(more);
}

/* Random state, and properties of a request that limit the random edits of its plan. tiles: the plan may
 * choose VAE tiling, because the small full-frame buffer is smaller than the large one. */
struct edits {
    atomic_ullong random;
    bool tiles;
};

static struct edits edits_of(struct rig *rig, struct sluice_request request, uint64_t seed) {
    json_t *plan = query(rig, &request, NULL);
    json_object_set_new(stage_of(plan, "decode"), "vae_tiling", json_string("on"));
    char *answer = NULL;
    struct sluice_error e;
    bool fits;
    request.plan = plan_text(rig, plan);
    struct edits edits = {seed,
                          sluice_plan_query(rig->session, &request, NULL, &answer, &fits, &e) == SLUICE_OK};
    sluice_free(answer);
    return edits;
}

static void edit_stage(json_t *stage, int edit, struct edits *edits, int64_t ring_less) {
    atomic_ullong *random = &edits->random;
    static const int percents[] = {0, 100, 50, 20, 80};
    json_int_t ring = ring_of(edit_residents(stage, percents[edit % 5], random), edit, random);
    if (ring_less && ring >= ring_less) ring -= ring_less;
    json_object_set_new(stage, "ring_bytes", json_integer(ring));
    json_object_set_new(stage, "depth", json_integer(edit / 3 % 3));
    json_object_set_new(stage, "no_wrap", json_integer((json_int_t)(random_next_atomic(random) % 2)));
    json_object_set_new(stage, "waits", json_integer((json_int_t)(random_next_atomic(random) % 2)));
    if (json_object_get(stage, "vae_tiling") && edits->tiles)
        json_object_set_new(stage, "vae_tiling", json_string(random_next_atomic(random) % 2 ? "on" : "off"));
    if (json_object_get(stage, "prefix"))
        json_object_set_new(stage, "prefix", json_string(edit % 2 ? "kept" : "recomputed"));
}

static void edit_plan(json_t *plan, int edit, struct edits *edits, int64_t ring_less) {
    static const int bounces[] = {
        0, 32 * PLAN_PAGE, PLAN_BOUNCE / 4,
        PLAN_BOUNCE}; /* bounce buffers of one page are tested in test_direct_io.c */
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++) edit_stage(stage, edit, edits, ring_less);
    json_object_set_new(plan, "bounce_bytes", json_integer(bounces[(edit + edit / 5) % 4]));
    json_object_set_new(plan, "keep", json_boolean(edit / 2 % 2));
}

/* Counts the denoiser stages that streamed, by each value of an edited plan setting. A test checks that every
 * setting was really used. */
struct variety {
    int depth[3], no_wrap[2], waits[2], direct[2], tiled[2], kept[2];
};

static void note_variety(struct variety *v, json_t *plan) {
    json_t *stage = stage_of(plan, "denoise");
    v->tiled[!strcmp(word(stage_of(plan, "decode"), "vae_tiling"), "on")]++;
    if (json_object_get(stage, "prefix")) v->kept[!strcmp(word(stage, "prefix"), "kept")]++;
    if (!streamed(plan, "denoise")) return;
    v->depth[number(stage, "depth")]++;
    v->no_wrap[number(stage, "no_wrap")]++;
    v->waits[number(stage, "waits")]++;
    v->direct[number(plan, "bounce_bytes") > 0]++;
}

static void check_variety(const struct variety *v, bool tiles, const char *name) {
    check(v->depth[0] && v->depth[1] && v->depth[2], "%s: depth any %d, 1 %d, 2 %d", name, v->depth[0],
          v->depth[1], v->depth[2]);
    check(v->no_wrap[0] && v->no_wrap[1], "%s: ring wraps in %d runs, does not in %d", name, v->no_wrap[0],
          v->no_wrap[1]);
    check(v->waits[0] && v->waits[1], "%s: waits off in %d runs, on in %d", name, v->waits[0], v->waits[1]);
    check(v->tiled[0] && (v->tiled[1] || !tiles), "%s: tiling off in %d runs, on in %d", name, v->tiled[0],
          v->tiled[1]);
    check(!v->kept[0] == !v->kept[1], "%s: prefix recomputed in %d runs, kept in %d", name, v->kept[0],
          v->kept[1]);
    if (!tiles) printf("%s: images too small for tiling\n", name);
    check(v->direct[0] && v->direct[1], "%s: cached reads in %d runs, direct in %d", name, v->direct[0],
          v->direct[1]);
}

void edited_plan(struct rig *rig, struct sluice_request request, const struct result *want,
                 const char *what) {
    struct edits edits = edits_of(rig, request, 78);
    json_t *plan = query(rig, &request, NULL);
    edit_plan(plan, 0, &edits, 0);
    request.plan = plan_text(rig, plan);
    struct result r = run_same(rig, &request, want, what);
    if (r.plan) check(streamed(r.plan, "denoise") > 0, "%s: the denoiser should stream", what);
}

static void check_streams(json_t *plan, const char *what) {
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++)
        check(!block_at(stage, 0) || number(stage, "streamed_bytes_per_evaluation"), "%s: %s should stream",
              what, word(stage, "name"));
}

void edited_plans(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name) {
    struct edits edits = edits_of(rig, request, 77);
    struct variety variety = {0};
    json_t *plan = query(rig, &request, NULL);
    request.max_ram_bytes = 0; /* the request sets no budget, because the edited plan contains one */
    for (int i = 0; i < n; i++) {
        const char *what = format_text("%s edited plan %d", name, i);
        edit_plan(plan, i, &edits, 0);
        request.plan = plan_text(rig, plan);
        struct result r = run_same(rig, &request, want, what);
        if (r.plan) note_variety(&variety, r.plan);
        if (r.plan && i % 5 == 0) check_streams(r.plan, what);
    }
    if (n >= EDITS_ALL) check_variety(&variety, edits.tiles, name);
    edit_plan(plan, 0, &edits, PLAN_PAGE);
    request.plan = plan_text(rig, plan);
    fault_sys_restart(&rig->fault_sys);
    run_refused(rig, &request, "BUDGET", 4, "");
    check(!atomic_load(&rig->fault_sys.count[CALL_MAP]),
          "%s: a ring one page too small is refused after mapping", name);
}

void batch_against_seeds(struct rig *rig, struct sluice_request request, json_int_t least, const char *name) {
    uint64_t seed = request.seed;
    request.batch = 3;
    struct result all = run(rig, &request);
    check(all.code == SLUICE_OK && all.n_images == 3, "%s: batch of 3: %s", name, all.error.what);
    check(strcmp(all.latent[0], all.latent[1]) && strcmp(all.image[1], all.image[2]),
          "%s: different seeds give the same image", name);
    for (int k = 0; k < 3; k++) {
        struct sluice_request one = request;
        one.batch = 1;
        one.seed = seed + (uint64_t)k;
        if (k == 1)
            one.max_ram_bytes = least; /* the least budget of a batch of 2 is enough for a batch of 1 */
        const char *what = format_text("%s image %d of 3, cfg %g", name, k, one.cfg_scale);
        struct result r = run(rig, &one);
        same_from(&all, k, &r, what);
    }
}

struct result run_fresh(const char *folder, int threads, struct sluice_request request) {
    struct rig rig;
    struct result r = {0};
    if (rig_open(&rig, folder, threads, 5)) r = run(&rig, &request);
    check(r.code == SLUICE_OK, "%s: %s (%s)", folder, r.error.what, r.error.found);
    rig_close(&rig);
    r.plan = NULL;
    return r;
}
