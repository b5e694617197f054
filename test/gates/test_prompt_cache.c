/* The prompt cache: a hit skips the text encoder, gives bit-identical results, depends on every input of the
 * encoder, and stays within its memory limit.
 *
 * Pipelines: Z-Image (one text encoder), SDXL (two encoders, pooled embedding, prompt weights), SD3 (three
 * encoders), Anima (an encoder that reads another one). */
#include "test/lib/residency.h"

#include <dirent.h>
#include <sys/stat.h>

enum { FILES_MAX = 64 };

static const char fox[] = "a red fox in the (snow:1.3)", other[] = "two otters on a raft, by night";

static struct ledger {
    uint64_t inode[FILES_MAX];
    int n;
    atomic_llong bytes;
} ledger, denoisers;

static void ledger_count(struct ledger *l, const struct file_identity *identity, int64_t n) {
    for (int i = 0; i < l->n; i++)
        if (l->inode[i] == identity->inode && n > 0) atomic_fetch_add(&l->bytes, n);
}

static int64_t read_and_count(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    int64_t n = fault_sys_read_at(sys, file, to, bytes, offset);
    struct file_identity identity;
    if (sys->identify(sys, file, &identity)) return n;
    ledger_count(&ledger, &identity, n);
    ledger_count(&denoisers, &identity, n);
    return n;
}

static void ledger_open(struct ledger *l, const struct sluice_model *model, enum family_kind kind) {
    l->n = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct component *c = &model->component[slot];
        if (!c->family || c->family->kind != kind) continue;
        for (int i = 0; i < c->index.n_sources && l->n < FILES_MAX; i++)
            l->inode[l->n++] = c->index.sources[i].identity.inode;
    }
    check(l->n > 0, "the component has no files to count");
}

static bool open_counting(struct rig *rig, const char *folder, struct sluice_session_options options) {
    options.threads = 2;
    if (!rig_open(rig, folder, 2, 3)) return false;
    rig->fault_sys.sys.read_at = read_and_count;
    ledger_open(&ledger, rig->model, FAMILY_TEXT);
    ledger_open(&denoisers, rig->model, FAMILY_DENOISER);
    return rig_open_session(rig, options);
}

static bool open_with_cache(struct rig *rig, const char *folder, uint64_t bytes) {
    return open_counting(rig, folder, (struct sluice_session_options){.prompt_cache_bytes = bytes});
}

static struct sluice_request request_of(const char *prompt) {
    struct sluice_request r = request_fox(32, 32, 2, 1, 3);
    r.prompt = prompt;
    r.no_decode = true;
    return r;
}

static int n_texts(json_t *plan) {
    int n = 0;
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++) n += !strncmp(word(stage, "name"), "text", 4);
    return n;
}

/* Runs the request and checks the number of text stages (`texts`; 0 for a cache hit), that encoder bytes are
 * read only in text stages, the queried plan, the cache's memory limit, and the bits of a run without a
 * cache. */
static void expect(struct rig *rig, const char *folder, struct sluice_request request, int texts,
                   const char *what) {
    struct sluice_request any = request;
    any.max_ram_bytes = plenty;
    struct result want = run_fresh(folder, 2, any);
    json_t *plan = query(rig, &request, NULL);
    atomic_store(&ledger.bytes, 0);
    struct result got = run_equal(rig, &request, &want, what);
    check(n_texts(got.plan) == texts, "%s, %s: %d text stages, expected %d", folder, what, n_texts(got.plan),
          texts);
    check((atomic_load(&ledger.bytes) > 0) == (texts > 0), "%s, %s: read %lld bytes of text encoders", folder,
          what, atomic_load(&ledger.bytes));
    check(!strcmp(word(plan, "hash"), word(got.plan, "hash")),
          "%s, %s: the run's plan differs from the queried plan", folder, what);
    check(rig->session->prompt_cache.bytes <= rig->session->prompt_cache.limit_bytes,
          "%s, %s: the prompt cache exceeds its limit", folder, what);
}

/* A request of a sequence. Members that are NULL or 0 stay as request_of sets them. */
struct step {
    bool hit;
    const char *prompt, *negative_prompt, *type, *what;
    double cfg_scale;
    int clip_skip, width;
};

static struct sluice_request request_of_step(const struct step *s) {
    struct sluice_request r = request_of(s->prompt);
    if (s->negative_prompt) r.negative_prompt = s->negative_prompt;
    if (s->cfg_scale) r.cfg_scale = s->cfg_scale;
    if (s->width) r.width = s->width, r.seed++;
    r.type = s->type;
    r.clip_skip = s->clip_skip;
    return r;
}

static void expect_steps(struct rig *rig, const char *folder, int encoders, const struct step *steps, int n) {
    for (int i = 0; i < n; i++)
        expect(rig, folder, request_of_step(&steps[i]), steps[i].hit ? 0 : encoders, steps[i].what);
}

static void test_repeated_prompt_skips_encoder(const char *folder, int encoders) {
    static const struct step steps[] = {
        {.prompt = fox, .what = "first run"},
        {true, .prompt = fox, .what = "second run"},
        {true, .prompt = fox, .width = 64, .what = "another seed and size"},
        {.prompt = other, .what = "another prompt"},
        {true, .prompt = other, .negative_prompt = fox, .what = "the first prompt as negative prompt"},
        {true, .prompt = other, .cfg_scale = 1, .what = "without guidance"},
        {.prompt = other, .cfg_scale = 1, .type = "q8_0", .what = "another type"},
        {true, .prompt = other, .cfg_scale = 1, .what = "the first type again"},
        {.prompt = other, .cfg_scale = 1, .type = "f8_e4m3", .what = "another type, with scales"},
        {true, .prompt = other, .cfg_scale = 1, .what = "the first type a third time"},
        {true, .prompt = other, .cfg_scale = 1, .type = "f8_e4m3", .what = "a hit needs no scales"},
    };
    struct rig rig;
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect_steps(&rig, folder, encoders, steps, COUNT_OF(steps));
    rig_close(&rig);
}

/* The key covers the tokens of the encoder that another one reads: T5's tokens of both prompts are equal,
 * Qwen's are not. */
static void test_source_tokens_change_key(void) {
    static const char folder[] = "test/golden/anima_base/model";
    static const struct step steps[] = {
        {.prompt = "a red fox", .what = "one blank"},
        {.prompt = "a red  fox", .what = "two blanks"},
        {true, .prompt = "a red fox", .what = "one blank again"},
    };
    struct rig rig;
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect_steps(&rig, folder, 2, steps, COUNT_OF(steps));
    rig_close(&rig);
}

/* With all blocks resident, the denoiser's blocks stay resident between runs, on cache hits and misses. */
static void test_hits_keep_denoiser_resident(const char *folder) {
    struct rig rig;
    struct sluice_request r = request_of(other);
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, 1, "first run reads all weights");
    for (int i = 0; i < 4; i++) {
        bool hit = i != 1;
        r.prompt = hit ? other : "a boat";
        atomic_store(&denoisers.bytes, 0);
        struct result got = run(&rig, &r);
        check(n_texts(got.plan) == !hit, "%s, run %d: %d text stages", folder, i, n_texts(got.plan));
        check(!atomic_load(&denoisers.bytes), "%s, run %d: read %lld bytes of the denoiser again", folder, i,
              atomic_load(&denoisers.bytes));
    }
    rig_close(&rig);
}

static void test_prompt_weights_change_key(void) {
    static const char folder[] = "test/golden/sdxl/model";
    static const struct step steps[] = {
        {.prompt = fox, .what = "weighed"},
        {.prompt = "a red fox in the (snow:1.4)", .what = "another prompt weight"},
        {.prompt = "a red fox in the snow", .what = "no prompt weight"},
        {.prompt = "a red fox in the snow", .clip_skip = 1, .what = "clip_skip"},
    };
    struct rig rig;
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect_steps(&rig, folder, 2, steps, COUNT_OF(steps));
    rig_close(&rig);
}

static char cache_folder[128];

static void make_cache_folder(const char *name) {
    snprintf(cache_folder, sizeof cache_folder, "%s/%s", temporary, name);
    mkdir(cache_folder, 0777);
}

/* Runs the request in a new session that uses the cache folder, and checks its number of text stages. */
static void expect_with_files(const char *folder, struct sluice_request request, int texts,
                              const char *what) {
    struct rig rig;
    if (!open_counting(&rig, folder, (struct sluice_session_options){.prompt_cache = cache_folder})) return;
    expect(&rig, folder, request, texts, what);
    rig_close(&rig);
}

/* Returns the path of the only file in the cache folder, or "" if there is none. */
static const char *only_file(void) {
    static char path[512];
    int n = 0;
    DIR *dir = opendir(cache_folder);
    path[0] = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && !n++)
            snprintf(path, sizeof path, "%s/%s", cache_folder, entry->d_name);
    if (dir) closedir(dir);
    check(n == 1, "%d files in %s, expected 1", n, cache_folder);
    return n == 1 ? path : "";
}

static void test_damaged_file_is_replaced(void) {
    enum { PLACES = 12 };
    const char *folder = "test/golden/zimage_a/model";
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    make_cache_folder("damaged");
    expect_with_files(folder, r, 1, "before the damage");
    const char *path = only_file();
    size_t n, bytes;
    char *sound = read_file(path, &n);
    for (int i = 0; i < PLACES && n; i++) {
        size_t place = (n - 1) * (size_t)i / (PLACES - 1);
        sound[place] ^= 0x10;
        write_file(path, sound, n);
        sound[place] ^= 0x10;
        expect_with_files(folder, r, 1, "one flipped bit");
        char *replaced = read_file(path, &bytes);
        check(bytes == n && !memcmp(sound, replaced, n), "flipped bit at %zu: the file was not replaced",
              place);
        free(replaced);
    }
    write_file(path, sound, n - 4);
    expect_with_files(folder, r, 1, "truncated file");
    write_file(path, sound, 0);
    free(sound);
    expect_with_files(folder, r, 1, "empty");
    expect_with_files(folder, r, 0, "replaced file");
    /* A cache file renamed for another prompt (with the same tokens in another order) must not be used. */
    remove(path);
    r.prompt = "two otters by a raft, on night";
    expect_with_files(folder, r, 1, "another prompt");
    const char *other_path = format_text("%s", path);
    rename(only_file(), other_path);
    r.prompt = other;
    expect_with_files(folder, r, 1, "file of another prompt");
}

static void test_files_serve_new_sessions(const char *folder, int encoders) {
    static const struct step steps[] = {
        {.prompt = fox, .what = "first session"},
        {true, .prompt = fox, .what = "second session"},
        {.prompt = other, .what = "another prompt"},
        {true, .prompt = other, .negative_prompt = fox, .what = "prompt and negative prompt exchanged"},
    };
    make_cache_folder(encoders == 1 ? "files" : "files_of_several");
    for (int i = 0; i < COUNT_OF(steps); i++)
        expect_with_files(folder, request_of_step(&steps[i]), steps[i].hit ? 0 : encoders, steps[i].what);
}

/* A text encoder file is edited in place and keeps its modification time: the cache must miss. */
static void test_edited_encoder_misses(void) {
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    const char *folder = format_text("%s", copy_model_folder("test/golden/zimage_a/model", "dated"));
    make_cache_folder("dated_back");
    expect_with_files(folder, r, 1, "before the edit");
    shell("cd '%s/text_encoder' && cp -p model.safetensors was && "
          "printf '\\100' | dd of=model.safetensors bs=1 seek=\"$(($(stat -c %%s was) - 2))\" conv=notrunc "
          "2>/dev/null && touch -r was model.safetensors && rm was",
          folder);
    expect_with_files(folder, r, 1, "after the edit");
    expect_with_files(folder, r, 0, "a second time after the edit");
}

static int n_warned;

static void count_warnings(void *user, int level, const char *line) {
    n_warned += level == SLUICE_WARNING && strstr(line, "cannot save a prompt's embeddings") != NULL;
}

static void test_unwritable_folder_only_warns(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    if (!open_counting(&rig, folder,
                       (struct sluice_session_options){.prompt_cache = "/nowhere/to/be/found",
                                                       .on_log = count_warnings}))
        return;
    expect(&rig, folder, request_of(other), 1, "unwritable cache folder");
    check(n_warned > 0, "no warning about the unwritable cache folder");
    rig_close(&rig);
}

/* With a limit of two entries, a third entry drops the least recently used one. */
static void test_least_recently_used_is_dropped(void) {
    static const char folder[] = "test/golden/zimage_a/model";
    static const char a[] = "a red fox by a lake, at noon", b[] = "a red hat by a lake, at noon",
                      c[] = "a red cat by a lake, at noon";
    static const struct step steps[] = {
        {.prompt = a, .cfg_scale = 1, .what = "the first of three"},
        {.prompt = b, .cfg_scale = 1, .what = "the second of three"},
        {true, .prompt = a, .cfg_scale = 1, .what = "the first again"},
        {.prompt = c, .cfg_scale = 1, .what = "the third"},
        {true, .prompt = a, .cfg_scale = 1, .what = "the second most recently used prompt"},
        {.prompt = b, .cfg_scale = 1, .what = "the least recently used prompt"},
    };
    struct rig rig;
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect_steps(&rig, folder, 1, steps, 1);
    uint64_t one = rig.session->prompt_cache.bytes;
    check(one > 0, "nothing was cached");
    rig_close(&rig);
    if (!open_with_cache(&rig, folder, one * 5 / 2)) return;
    expect_steps(&rig, folder, 1, steps, COUNT_OF(steps));
    rig_close(&rig);
    if (!open_with_cache(&rig, folder, 100)) return;
    for (int i = 0; i < 2; i++) expect_steps(&rig, folder, 1, steps, 1);
    check(!rig.session->prompt_cache.bytes, "an entry is cached beyond the limit");
    rig_close(&rig);
}

/* A run with the prompt cache fits its planned minimum budget; one byte less is rejected. */
static void test_plan_counts_cache(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    json_int_t least = 0, all, before;
    struct sluice_request r = request_of(other);
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    bounds(&rig, r, &before, &all);
    for (int i = 0; i < 2; i++) {
        bounds(&rig, r, &least, &all);
        r.max_ram_bytes = least;
        expect(&rig, folder, r, !i, "minimum budget");
        r.max_ram_bytes = plenty;
    }
    check(least <= before, "a hit raises the minimum budget: %lld after %lld", (long long)least,
          (long long)before);
    r.max_ram_bytes = least - 1;
    run_refused(&rig, &r, "BUDGET", 4, "");
    rig_close(&rig);
}

/* A plan made for a prompt cache miss works for a hit; a plan for a hit does not work for a miss. */
static void test_older_plan_works_for_hits(const char *folder, int encoders) {
    struct rig rig;
    struct sluice_request r = request_of(fox);
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    json_t *plan = query(&rig, &r, NULL);
    const char *before = plan_text(&rig, plan);
    check(n_texts(plan) == encoders, "%s: %d text stages", folder, n_texts(plan));
    expect(&rig, folder, r, encoders, "first run with the plan");
    struct result want = run(&rig, &r);
    const char *after = plan_text(&rig, query(&rig, &r, NULL));
    r.plan = before;
    struct result got = run_equal(&rig, &r, &want, "plan made before the prompt was cached");
    check(!n_texts(got.plan), "%s: %d text stages", folder, n_texts(got.plan));
    r.plan = after;
    r.prompt = other;
    run_refused(&rig, &r, "BUDGET", 4, "");
    rig_close(&rig);
}

/* The plan counts the bytes of cached entries of other prompts exactly. */
static void test_plan_counts_other_entries(void) {
    enum { VALUES = 1 << 20 };
    const uint8_t key[PROMPT_CACHE_KEY_BYTES] = "of another prompt";
    struct rig rig;
    json_int_t before, after, all;
    struct sluice_request r = request_of(other);
    if (!open_with_cache(&rig, "test/golden/zimage_a/model", 64 << 20)) return;
    bounds(&rig, r, &before, &all);
    float *values = prompt_cache_insert(&rig.session->prompt_cache, key, VALUES);
    check(values != NULL, "no memory for a cache entry");
    bounds(&rig, r, &after, &all);
    check(after - before == (json_int_t)sizeof(float) * VALUES ||
              after - before == (json_int_t)sizeof(float) * VALUES + (1 << 16),
          "the plan grew by %lld bytes, expected the entry's size", (long long)(after - before));
    rig_close(&rig);
}

int main(void) {
    temporary_make();
    test_repeated_prompt_skips_encoder("test/golden/zimage_a/model", 1);
    test_repeated_prompt_skips_encoder("test/golden/sdxl/model", 2);
    test_repeated_prompt_skips_encoder("test/golden/sd3_medium/model", 3);
    test_repeated_prompt_skips_encoder("test/golden/anima_base/model", 2);
    test_repeated_prompt_skips_encoder("test/golden/ltx2/model", 3);
    test_prompt_weights_change_key();
    test_source_tokens_change_key();
    test_hits_keep_denoiser_resident("test/golden/zimage_a/model");
    test_files_serve_new_sessions("test/golden/zimage_a/model", 1);
    test_files_serve_new_sessions("test/golden/sd3_medium/model", 3);
    test_files_serve_new_sessions("test/golden/anima_base/model", 2);
    test_files_serve_new_sessions("test/golden/ltx2/model", 3);
    test_damaged_file_is_replaced();
    test_edited_encoder_misses();
    test_unwritable_folder_only_warns();
    test_least_recently_used_is_dropped();
    test_plan_counts_cache();
    test_older_plan_works_for_hits("test/golden/zimage_a/model", 1);
    test_older_plan_works_for_hits("test/golden/sd3_medium/model", 3);
    test_plan_counts_other_entries();
    return finish();
}
