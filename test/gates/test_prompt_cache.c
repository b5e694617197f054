/* Conditionings that a session keeps: the second picture of a prompt begins without its encoder, which is
 * then neither planned for nor read; the bits are those of a session that keeps nothing; whatever changes
 * what an encoder makes is another conditioning; and the memory that is kept never passes what was asked for.
 *
 * One pipeline of each way that texts go: one encoder; two that meet in one text and a pooled row, with
 * weights of words; three, some of which read two prompts. */
#include "test/lib/rig.h"

#include <dirent.h>
#include <sys/stat.h>

enum { FILES_MAX = 64 };

static const char other[] = "two otters on a raft, by night";

/* ---- what is read of text encoders ---- */

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
    check(l->n > 0, "there are no files to watch");
}

/* ---- sessions ---- */

static bool open_keeping(struct rig *rig, const char *folder, uint64_t bytes) {
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

/* The bits of a session of its own that keeps nothing. */
static struct result plainly(const char *folder, const struct sluice_request *request) {
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

/* A run of that request has so many stages of texts, reads encoders only where it has some, and draws the
 * bits that were drawn plainly. */
static void expect(struct rig *rig, const char *folder, struct sluice_request request, int texts,
                   const char *what) {
    struct result want = plainly(folder, &request);
    json_t *plan = query(rig, &request, NULL);
    atomic_store(&ledger.bytes, 0);
    struct result got = run(rig, &request);
    same(&want, &got, what);
    check(n_texts(got.plan) == texts, "%s, %s: %d stages of texts, not %d", folder, what, n_texts(got.plan),
          texts);
    check((atomic_load(&ledger.bytes) > 0) == (texts > 0), "%s, %s: %lld bytes of encoders were read", folder,
          what, atomic_load(&ledger.bytes));
    check(!strcmp(json_string_value(json_object_get(plan, "hash")),
                  json_string_value(json_object_get(got.plan, "hash"))),
          "%s, %s: another plan than was told", folder, what);
    check(rig->session->prompt_cache.bytes <= rig->session->prompt_cache.limit_bytes,
          "%s, %s: more is kept than was asked for", folder, what);
    json_decref(plan);
    result_free(&want);
    result_free(&got);
}

/* ---- what is kept, and what is another conditioning ---- */

static void pipeline(const char *folder, int encoders) {
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_keeping(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, encoders, "the first picture");
    expect(&rig, folder, r, 0, "the second");
    r.seed++;
    r.width = 48;
    expect(&rig, folder, r, 0, "another seed and size");
    r.prompt = other;
    expect(&rig, folder, r, encoders, "another prompt");
    r.negative_prompt = "a red fox in the (snow:1.3)";
    expect(&rig, folder, r, 0, "the first prompt, which is not wanted now");
    r.cfg_scale = 1;
    expect(&rig, folder, r, 0, "no guidance");
    r.type = "q8_0";
    expect(&rig, folder, r, encoders, "another type");
    r.type = NULL;
    expect(&rig, folder, r, 0, "the first type again");
    r.type = "f8_e4m3";
    expect(&rig, folder, r, encoders, "a type with scales");
    r.type = NULL;
    expect(&rig, folder, r, 0, "the first type once more");
    r.type = "f8_e4m3";
    expect(&rig, folder, r, 0, "scales of what is not read");
    rig_close(&rig);
}

/* Where all weights stay, a denoiser that another stage is in front of stays too. */
static void residents(const char *folder) {
    struct rig rig;
    struct sluice_request r = request_of(other);
    if (!open_keeping(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, 1, "all weights are read");
    for (int i = 0; i < 4; i++) {
        bool kept = i != 1;
        r.prompt = kept ? other : "a boat";
        atomic_store(&denoisers.bytes, 0);
        struct result got = run(&rig, &r);
        check(n_texts(got.plan) == !kept, "%s, run %d: %d stages of texts", folder, i, n_texts(got.plan));
        check(!atomic_load(&denoisers.bytes), "%s, run %d: %lld bytes of the denoiser were read again",
              folder, i, atomic_load(&denoisers.bytes));
        result_free(&got);
    }
    rig_close(&rig);
}

/* Marks that weigh nothing are other ids than none, and leaving out a layer is another encoder. */
static void other_words(void) {
    const char *folder = "test/golden/sdxl/model";
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_keeping(&rig, folder, 64 << 20)) return;
    expect(&rig, folder, r, 2, "weighed");
    r.prompt = "a red fox in the (snow:1.4)";
    expect(&rig, folder, r, 2, "weighed otherwise");
    r.prompt = "a red fox in the snow";
    expect(&rig, folder, r, 2, "not weighed");
    r.clip_skip = 1;
    expect(&rig, folder, r, 2, "clip_skip");
    rig_close(&rig);
}

/* ---- files ---- */

static char kept_in[128];

static bool open_with_files(struct rig *rig, const char *folder, const char *files) {
    struct sluice_session_options options = {.threads = 2, .prompt_cache = files};
    if (!open_keeping(rig, folder, 0)) return false;
    sluice_session_close(rig->session);
    return rig_open_session(rig, &options);
}

/* In a session of its own. */
static void expect_with_files(const char *folder, struct sluice_request request, int texts,
                              const char *what) {
    struct rig rig;
    if (!open_with_files(&rig, folder, kept_in)) return;
    expect(&rig, folder, request, texts, what);
    rig_close(&rig);
}

/* The only file there is; "": there are several, or none. */
static const char *only_file(void) {
    static char path[512];
    int n = 0;
    DIR *dir = opendir(kept_in);
    path[0] = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && !n++) snprintf(path, sizeof path, "%s/%s", kept_in, entry->d_name);
    if (dir) closedir(dir);
    check(n == 1, "%d files in %s", n, kept_in);
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
    check(f && fwrite(bytes, 1, n, f) == n, "%s cannot be written", path);
    if (f) fclose(f);
}

/* Whatever is wrong with a file, it is none, and is written again as it was. */
static void damaged(void) {
    enum { PLACES = 12 };
    static unsigned char sound[FILE_BYTES], other_one[FILE_BYTES];
    const char *folder = "test/golden/zimage_a/model";
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    snprintf(kept_in, sizeof kept_in, "%s/damaged", temporary);
    mkdir(kept_in, 0777);
    expect_with_files(folder, r, 1, "before it is damaged");
    const char *path = only_file();
    size_t n = read_whole(path, sound);
    for (int i = 0; i < PLACES && n; i++) {
        size_t place = (n - 1) * (size_t)i / (PLACES - 1);
        memcpy(other_one, sound, n);
        other_one[place] ^= 0x10;
        write_whole(path, other_one, n);
        expect_with_files(folder, r, 1, "a bit is another");
        check(read_whole(path, other_one) == n && !memcmp(sound, other_one, n), "bit at %zu: not replaced",
              place);
    }
    write_whole(path, sound, n - 4);
    expect_with_files(folder, r, 1, "cut off");
    write_whole(path, sound, 0);
    expect_with_files(folder, r, 1, "empty");
    expect_with_files(folder, r, 0, "sound again");
    /* The file of a prompt of the same tokens in another order, under the name of this one. */
    remove(path);
    r.prompt = "two otters by a raft, on night";
    expect_with_files(folder, r, 1, "another prompt");
    char other_path[512];
    snprintf(other_path, sizeof other_path, "%s", path);
    rename(only_file(), other_path);
    r.prompt = other;
    expect_with_files(folder, r, 1, "another prompt's file");
}

static void files(const char *folder, int encoders) {
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    snprintf(kept_in, sizeof kept_in, "%s/files%d", temporary, encoders);
    mkdir(kept_in, 0777);
    expect_with_files(folder, r, encoders, "the first session");
    expect_with_files(folder, r, 0, "the second session");
    r.prompt = other;
    expect_with_files(folder, r, encoders, "another prompt");
    r.negative_prompt = "a red fox in the (snow:1.3)";
    expect_with_files(folder, r, 0, "the other way round");
}

/* An encoder whose bytes were changed where they lie, and whose file was dated back. */
static void dated_back(void) {
    char folder[160], command[640];
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    snprintf(folder, sizeof folder, "%s", copy_model_folder("test/golden/zimage_a/model", "dated"));
    snprintf(kept_in, sizeof kept_in, "%s/dated_back", temporary);
    mkdir(kept_in, 0777);
    expect_with_files(folder, r, 1, "before it is changed");
    snprintf(
        command, sizeof command,
        "cd '%s/text_encoder' && cp -p model.safetensors was && "
        "printf '\\100' | dd of=model.safetensors bs=1 seek=\"$(($(stat -c %%s was) - 2))\" conv=notrunc "
        "2>/dev/null && touch -r was model.safetensors && rm was",
        folder);
    check(system(command) == 0, "%s", command);
    expect_with_files(folder, r, 1, "after it is changed");
    expect_with_files(folder, r, 0, "as it is now");
}

static int n_warned;

static void count_warnings(void *user, int level, const char *line) {
    (void)user;
    n_warned += level == SLUICE_WARNING && strstr(line, "cannot save a prompt's embeddings") != NULL;
}

/* What cannot be written is no reason not to draw. */
static void nowhere(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    struct sluice_session_options options = {
        .threads = 2, .prompt_cache = "/nowhere/to/be/found", .on_log = count_warnings};
    if (!open_keeping(&rig, folder, 0)) return;
    sluice_session_close(rig.session);
    if (!rig_open_session(&rig, &options)) return;
    expect(&rig, folder, request_of(other), 1, "no folder");
    check(n_warned > 0, "nobody was told");
    rig_close(&rig);
}

/* ---- how much ---- */

static uint64_t bytes_of_one(const char *folder) {
    struct rig rig;
    uint64_t bytes = 0;
    struct sluice_request r = request_of(other);
    r.cfg_scale = 1;
    if (!open_keeping(&rig, folder, 64 << 20)) return 0;
    struct result got = run(&rig, &r);
    bytes = rig.session->prompt_cache.bytes;
    check(bytes > 0, "%s: nothing is kept", folder);
    result_free(&got);
    rig_close(&rig);
    return bytes;
}

/* Room for two: the one that was used longest ago goes. */
static void room(void) {
    const char *folder = "test/golden/zimage_a/model";
    const char *prompts[] = {"a red fox by a lake, at noon", "a red hat by a lake, at noon",
                             "a red cat by a lake, at noon"};
    struct rig rig;
    struct sluice_request r = request_of(prompts[0]);
    r.cfg_scale = 1;
    uint64_t most = bytes_of_one(folder) * 5 / 2;
    if (!open_keeping(&rig, folder, most)) return;
    expect(&rig, folder, r, 1, "the first of three");
    r.prompt = prompts[1];
    expect(&rig, folder, r, 1, "the second of three");
    r.prompt = prompts[0];
    expect(&rig, folder, r, 0, "the first again");
    r.prompt = prompts[2];
    expect(&rig, folder, r, 1, "the third");
    r.prompt = prompts[0];
    expect(&rig, folder, r, 0, "what was used last but one stays");
    r.prompt = prompts[1];
    expect(&rig, folder, r, 1, "what was used longest ago went");
    rig_close(&rig);
    if (!open_keeping(&rig, folder, 100)) return;
    expect(&rig, folder, r, 1, "no room for one");
    expect(&rig, folder, r, 1, "no room for one, again");
    check(!rig.session->prompt_cache.bytes, "something is kept without room");
    rig_close(&rig);
}

/* What is kept is planned: the least budget with it does, and one byte less is refused. */
static void planned(void) {
    const char *folder = "test/golden/zimage_a/model";
    struct rig rig;
    json_int_t least = 0, all, before;
    struct sluice_request r = request_of(other);
    if (!open_keeping(&rig, folder, 64 << 20)) return;
    bounds(&rig, r, &before, &all);
    for (int i = 0; i < 2; i++) {
        bounds(&rig, r, &least, &all);
        r.max_ram_bytes = least;
        expect(&rig, folder, r, !i, "the least");
        r.max_ram_bytes = plenty;
    }
    check(least <= before, "less is read, and more is needed: %lld after %lld", (long long)least,
          (long long)before);
    r.max_ram_bytes = least - 1;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_BUDGET, "a byte below the least: %s", sluice_code_name(got.code));
    result_free(&got);
    rig_close(&rig);
}

/* A plan that was made before does for a prompt that is kept by now, but not the other way round. */
static void planned_before(const char *folder, int encoders) {
    struct rig rig;
    struct sluice_request r = request_of("a red fox in the (snow:1.3)");
    if (!open_keeping(&rig, folder, 64 << 20)) return;
    json_t *plan = query(&rig, &r, NULL);
    char *before = json_dumps(plan, 0);
    check(n_texts(plan) == encoders, "%s: %d stages of texts", folder, n_texts(plan));
    json_decref(plan);
    expect(&rig, folder, r, encoders, "the first picture");
    struct result want = run(&rig, &r);
    plan = query(&rig, &r, NULL);
    char *after = json_dumps(plan, 0);
    json_decref(plan);
    r.plan = before;
    struct result got = run(&rig, &r);
    same(&want, &got, "a plan of before");
    check(!n_texts(got.plan), "%s: %d stages of texts", folder, n_texts(got.plan));
    result_free(&got);
    r.plan = after;
    r.prompt = other;
    got = run(&rig, &r);
    check(got.code == SLUICE_BUDGET, "a plan without an encoder: %s", sluice_code_name(got.code));
    result_free(&got);
    result_free(&want);
    free(before);
    free(after);
    rig_close(&rig);
}

/* Of other prompts too, byte for byte. */
static void counted(void) {
    enum { VALUES = 1 << 20 };
    const uint8_t key[PROMPT_CACHE_KEY_BYTES] = "of another prompt";
    struct rig rig;
    json_int_t before, after, all;
    struct sluice_request r = request_of(other);
    if (!open_keeping(&rig, "test/golden/zimage_a/model", 64 << 20)) return;
    bounds(&rig, r, &before, &all);
    float *values = prompt_cache_insert(&rig.session->prompt_cache, key, VALUES);
    check(values != NULL, "nothing is kept");
    bounds(&rig, r, &after, &all);
    check(after - before == (json_int_t)sizeof(float) * VALUES ||
              after - before == (json_int_t)sizeof(float) * VALUES + (1 << 16),
          "the plan grew by %lld bytes", (long long)(after - before));
    rig_close(&rig);
}

int main(void) {
    temporary_make();
    pipeline("test/golden/zimage_a/model", 1);
    pipeline("test/golden/sdxl/model", 2);
    pipeline("test/golden/sd3_medium/model", 3);
    other_words();
    residents("test/golden/zimage_a/model");
    files("test/golden/zimage_a/model", 1);
    files("test/golden/sd3_medium/model", 3);
    damaged();
    dated_back();
    nowhere();
    room();
    planned();
    planned_before("test/golden/zimage_a/model", 1);
    planned_before("test/golden/sd3_medium/model", 3);
    counted();
    return finish();
}
