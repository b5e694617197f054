/* The prompt cache: a hit skips the text encoder, gives bit-identical results, depends on every input of the
 * encoder, and stays within its memory limit.
 *
 * Pipelines: Z-Image (one text encoder), SDXL (two encoders, pooled embedding, prompt weights), SD3 (three
 * encoders). */
#include "test/lib/rig.h"

#include <dirent.h>
#include <sys/stat.h>

enum { FILES_MAX = 64 };

static const char other[] = "two otters on a raft, by night";

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

static bool open_with_cache(struct rig *rig, const char *folder, uint64_t bytes) {
    struct sluice_session_options options = {.threads = 2, .prompt_cache_bytes = bytes};
    if (!rig_open(rig, folder, 2, 3)) return false;
    sluice_session_close(rig->session);
    rig->fault_sys.sys.read_at = read_and_count;
    ledger_open(&ledger, rig->model, FAMILY_TEXT);
    ledger_open(&denoisers, rig->model, FAMILY_DENOISER);
    return rig_open_session(rig, &options);
}

static struct sluice_request request_of(const char *prompt) {
    struct sluice_request r = request_fox(32, 32, 2, 1, 3);
    r.prompt = prompt;
    r.no_decode = true;
    return r;
}

static struct result run_without_cache(const char *folder, const struct sluice_request *request) {
    struct rig rig;
    struct result r = {.code = -1};
    struct sluice_request any = *request;
    any.max_ram_bytes = plenty;
    if (!rig_open(&rig, folder, 2, 3)) return r;
    r = run(&rig, &any);
    rig_close(&rig);
    return r;
}

static int n_texts(json_t *plan) {
    int n = 0;
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) n +=
        !strncmp(json_string_value(json_object_get(stage, "name")), "text", 4);
    return n;
}

/* Runs the request and checks the number of text stages (`texts`; 0 for a cache hit), that encoder bytes are
 * read only in text stages, the queried plan, the cache's memory limit, and the bits of a run without a
 * cache. */
static void expect(struct rig *rig, const char *folder, struct sluice_request request, int texts,
                   const char *what) {
    struct result want = run_without_cache(folder, &request);
    json_t *plan = query(rig, &request, NULL);
    atomic_store(&ledger.bytes, 0);
    struct result got = run(rig, &request);
    same(&want, &got, what);
    check(n_texts(got.plan) == texts, "%s, %s: %d text stages, expected %d", folder, what, n_texts(got.plan),
          texts);
    check((atomic_load(&ledger.bytes) > 0) == (texts > 0), "%s, %s: read %lld bytes of text encoders", folder,
          what, atomic_load(&ledger.bytes));
    check(!strcmp(json_string_value(json_object_get(plan, "hash")),
                  json_string_value(json_object_get(got.plan, "hash"))),
          "%s, %s: the run's plan differs from the queried plan", folder, what);
    check(rig->session->prompt_cache.bytes <= rig->session->prompt_cache.limit_bytes,
          "%s, %s: the prompt cache exceeds its limit", folder, what);
    json_decref(plan);
    result_free(&want);
    result_free(&got);
}

static void test_repeated_prompt_skips_encoder(const char *folder, int encoders) {
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, encoders, "first run");
    expect(&rig, folder, r, 0, "second run");
    r.seed++;
    r.width = 48;
    expect(&rig, folder, r, 0, "another seed and size");
    r.prompt = other;
    expect(&rig, folder, r, encoders, "another prompt");
    r.negative_prompt = "a red fox in the (snow:1.3)";
    expect(&rig, folder, r, 0, "the first prompt as negative prompt");
    r.cfg_scale = 1;
    expect(&rig, folder, r, 0, "without guidance");
    r.type = "q8_0";
    expect(&rig, folder, r, encoders, "another type");
    r.type = NULL;
    expect(&rig, folder, r, 0, "the first type again");
    r.type = "f8_e4m3";
    expect(&rig, folder, r, encoders, "another type, with scales");
    r.type = NULL;
    expect(&rig, folder, r, 0, "the first type a third time");
    r.type = "f8_e4m3";
    expect(&rig, folder, r, 0, "a hit needs no scales");
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
        result_free(&got);
    }
    rig_close(&rig);
}

static void test_prompt_weights_change_key(void) {
    const char *folder = "test/golden/sdxl/model";
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, 2, "weighed");
    r.prompt = "a red fox in the (snow:1.4)";
    expect(&rig, folder, r, 2, "another prompt weight");
    r.prompt = "a red fox in the snow";
    expect(&rig, folder, r, 2, "no prompt weight");
    r.clip_skip = 1;
    expect(&rig, folder, r, 2, "clip_skip");
    rig_close(&rig);
}

static char cache_folder[128];

static bool open_with_files(struct rig *rig, const char *folder, const char *files) {
    struct sluice_session_options options = {.threads = 2, .prompt_cache = files};
    if (!open_with_cache(rig, folder, 0)) return false;
    sluice_session_close(rig->session);
    return rig_open_session(rig, &options);
}

/* Runs the request in a new session that uses the cache folder, and checks its number of text stages. */
static void expect_with_files(const char *folder, struct sluice_request request, int texts,
                              const char *what) {
    struct rig rig;
    if (!open_with_files(&rig, folder, cache_folder)) return;
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

enum { FILE_BYTES = 1 << 20 };

static size_t read_whole(const char *path, unsigned char bytes[FILE_BYTES]) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, FILE_BYTES, f) : 0;
    if (f) fclose(f);
    return n;
}

static void write_whole(const char *path, const unsigned char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    check(f && fwrite(bytes, 1, n, f) == n, "cannot write %s", path);
    if (f) fclose(f);
}

static void test_damaged_file_is_replaced(void) {
    enum { PLACES = 12 };
    static unsigned char sound[FILE_BYTES], other_one[FILE_BYTES];
    const char *folder = "test/golden/zimage_a/model";
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    snprintf(cache_folder, sizeof cache_folder, "%s/damaged", temporary);
    mkdir(cache_folder, 0777);
    expect_with_files(folder, r, 1, "before the damage");
    const char *path = only_file();
    size_t n = read_whole(path, sound);
    for (int i = 0; i < PLACES && n; i++) {
        size_t place = (n - 1) * (size_t)i / (PLACES - 1);
        memcpy(other_one, sound, n);
        other_one[place] ^= 0x10;
        write_whole(path, other_one, n);
        expect_with_files(folder, r, 1, "one flipped bit");
        check(read_whole(path, other_one) == n && !memcmp(sound, other_one, n),
              "flipped bit at %zu: the file was not replaced", place);
    }
    write_whole(path, sound, n - 4);
    expect_with_files(folder, r, 1, "truncated file");
    write_whole(path, sound, 0);
    expect_with_files(folder, r, 1, "empty");
    expect_with_files(folder, r, 0, "replaced file");
    /* A cache file renamed for another prompt (with the same tokens in another order) must not be used. */
    remove(path);
    r.prompt = "two otters by a raft, on night";
    expect_with_files(folder, r, 1, "another prompt");
    char other_path[512];
    snprintf(other_path, sizeof other_path, "%s", path);
    rename(only_file(), other_path);
    r.prompt = other;
    expect_with_files(folder, r, 1, "file of another prompt");
}

static void test_files_serve_new_sessions(const char *folder, int encoders) {
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    snprintf(cache_folder, sizeof cache_folder, "%s/files%d", temporary, encoders);
    mkdir(cache_folder, 0777);
    expect_with_files(folder, r, encoders, "first session");
    expect_with_files(folder, r, 0, "second session");
    r.prompt = other;
    expect_with_files(folder, r, encoders, "another prompt");
    r.negative_prompt = "a red fox in the (snow:1.3)";
    expect_with_files(folder, r, 0, "prompt and negative prompt exchanged");
}

/* A text encoder file is edited in place and keeps its modification time: the cache must miss. */
static void test_edited_encoder_misses(void) {
    char folder[160], command[640];
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    snprintf(folder, sizeof folder, "%s", copy_model_folder("test/golden/zimage_a/model", "dated"));
    snprintf(cache_folder, sizeof cache_folder, "%s/dated_back", temporary);
    mkdir(cache_folder, 0777);
    expect_with_files(folder, r, 1, "before the edit");
    snprintf(
        command, sizeof command,
        "cd '%s/text_encoder' && cp -p model.safetensors was && "
        "printf '\\100' | dd of=model.safetensors bs=1 seek=\"$(($(stat -c %%s was) - 2))\" conv=notrunc "
        "2>/dev/null && touch -r was model.safetensors && rm was",
        folder);
    check(system(command) == 0, "%s", command);
    expect_with_files(folder, r, 1, "after the edit");
    expect_with_files(folder, r, 0, "a second time after the edit");
}

static int n_warned;

static void count_warnings(void *user, int level, const char *line) {
    (void)user;
    n_warned += level == SLUICE_WARNING && strstr(line, "cannot save a prompt's embeddings") != NULL;
}

static void test_unwritable_folder_only_warns(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    struct sluice_session_options options = {
        .threads = 2, .prompt_cache = "/nowhere/to/be/found", .on_log = count_warnings};
    if (!open_with_cache(&rig, folder, 0)) return;
    sluice_session_close(rig.session);
    if (!rig_open_session(&rig, &options)) return;
    expect(&rig, folder, request_of(other), 1, "unwritable cache folder");
    check(n_warned > 0, "no warning about the unwritable cache folder");
    rig_close(&rig);
}

static uint64_t bytes_of_one(const char *folder) {
    struct rig rig;
    uint64_t bytes = 0;
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    if (!open_with_cache(&rig, folder, 64 << 20)) return 0;
    struct result got = run(&rig, &r);
    bytes = rig.session->prompt_cache.bytes;
    check(bytes > 0, "%s: nothing was cached", folder);
    result_free(&got);
    rig_close(&rig);
    return bytes;
}

/* With a limit of two entries, a third entry drops the least recently used one. */
static void test_least_recently_used_is_dropped(void) {
    const char *folder = "test/golden/zimage_a/model";
    const char *prompts[] = {"a red fox by a lake, at noon", "a red hat by a lake, at noon",
                             "a red cat by a lake, at noon"};
    struct rig rig;
    struct sluice_request r = request_of(prompts[0]);
    r.cfg_scale = 1;
    uint64_t most = bytes_of_one(folder) * 5 / 2;
    if (!open_with_cache(&rig, folder, most)) return;
    expect(&rig, folder, r, 1, "the first of three");
    r.prompt = prompts[1];
    expect(&rig, folder, r, 1, "the second of three");
    r.prompt = prompts[0];
    expect(&rig, folder, r, 0, "the first again");
    r.prompt = prompts[2];
    expect(&rig, folder, r, 1, "the third");
    r.prompt = prompts[0];
    expect(&rig, folder, r, 0, "the second most recently used prompt");
    r.prompt = prompts[1];
    expect(&rig, folder, r, 1, "the least recently used prompt");
    rig_close(&rig);
    if (!open_with_cache(&rig, folder, 100)) return;
    expect(&rig, folder, r, 1, "limit below one entry");
    expect(&rig, folder, r, 1, "limit below one entry, second run");
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
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_BUDGET, "one byte below the minimum budget: %s", sluice_code_name(got.code));
    result_free(&got);
    rig_close(&rig);
}

/* A plan made for a prompt cache miss works for a hit; a plan for a hit does not work for a miss. */
static void test_older_plan_works_for_hits(const char *folder, int encoders) {
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_with_cache(&rig, folder, 64 << 20)) return;
    json_t *plan = query(&rig, &r, NULL);
    char *before = json_dumps(plan, 0);
    check(n_texts(plan) == encoders, "%s: %d text stages", folder, n_texts(plan));
    json_decref(plan);
    expect(&rig, folder, r, encoders, "first run with the plan");
    struct result want = run(&rig, &r);
    plan = query(&rig, &r, NULL);
    char *after = json_dumps(plan, 0);
    json_decref(plan);
    r.plan = before;
    struct result got = run(&rig, &r);
    same(&want, &got, "plan made before the prompt was cached");
    check(!n_texts(got.plan), "%s: %d text stages", folder, n_texts(got.plan));
    result_free(&got);
    r.plan = after;
    r.prompt = other;
    got = run(&rig, &r);
    check(got.code == SLUICE_BUDGET, "plan of a hit for a miss: %s", sluice_code_name(got.code));
    result_free(&got);
    result_free(&want);
    free(before);
    free(after);
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
    test_prompt_weights_change_key();
    test_hits_keep_denoiser_resident("test/golden/zimage_a/model");
    test_files_serve_new_sessions("test/golden/zimage_a/model", 1);
    test_files_serve_new_sessions("test/golden/sd3_medium/model", 3);
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
