/* Faults: the n-th call of every kind through struct sys fails, alone or with all later calls, while a model
 * is opened, tokenizes, plans, runs (streamed, resident, with direct I/O, from a latent, in a batch with
 * guidance, with previews, with the prompt cache, with adapters) and decodes. Each run gives a documented
 * error or the right result; no memory, file descriptor or partial file remains; the session's next run is
 * right. Also weights with NaN or Inf, and cancelled runs.
 *
 * About 200 calls, chosen by a seed, are made to fail; FAULTS=all: every call. SCENE=NAME runs only the named
 * scene. test_disk.c tests disks and changing files; test_tokenizer.c and test_loaders.c test every call of
 * tokenizers and loaders. */
#include "test/lib/device.h"
#include "test/lib/rig.h"
#include "test/lib/random_models.h"

#include "engine/open/prompt.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>
#include <math.h>

enum { LONGEST_SECONDS = 900, LONGEST_SECONDS_ALL = 14400 };

static bool every; /* every call is made to fail, in a run of its own (FAULTS=all) */
static int n_faults;
static char outputs[128]; /* folder for the output files of runs */
static char latent[160];  /* a latent file saved by a run without faults */

enum outcome { SURVIVED = 1, NO_MEMORY = 2, NO_READ = 4, NO_WRITE = 8 };

struct kind {
    const char *name;
    enum call call;
    enum fault fault;
    int once, on; /* outcomes (enum outcome) allowed if one call fails, and if all later calls fail too */
};

/* Calls through struct sys and their faults. A short or interrupted read or write is retried, unless every
 * retry is interrupted. Without memory an estimate (the predicted duration) may be omitted; a failed direct
 * read falls back to the page cache; a run short of memory may evict residents. */
static const struct kind kinds[] = {
    {"alloc", CALL_ALLOC, FAULT_ERROR, SURVIVED | NO_MEMORY, SURVIVED | NO_MEMORY},
    {"map", CALL_MAP, FAULT_ERROR, SURVIVED | NO_MEMORY, SURVIVED | NO_MEMORY},
    {"commit", CALL_COMMIT, FAULT_ERROR, SURVIVED | NO_MEMORY, SURVIVED | NO_MEMORY},
    {"room", CALL_FREE_BYTES, FAULT_ERROR, SURVIVED | NO_MEMORY, SURVIVED | NO_MEMORY},
    {"read", CALL_READ, FAULT_ERROR, SURVIVED | NO_READ, SURVIVED | NO_READ},
    {"read short", CALL_READ, FAULT_SHORT, SURVIVED, SURVIVED},
    {"read interrupted", CALL_READ, FAULT_INTERRUPTED, SURVIVED, SURVIVED | NO_READ},
    {"read ends", CALL_READ, FAULT_END, SURVIVED | NO_READ, SURVIVED | NO_READ},
    {"thread_start", CALL_THREAD, FAULT_ERROR, NO_MEMORY, NO_MEMORY},
    {"open_direct", CALL_OPEN_DIRECT, FAULT_ERROR, SURVIVED, SURVIVED},
    {"open", CALL_OPEN, FAULT_ERROR, SURVIVED | NO_READ, NO_READ},
    {"identify", CALL_IDENTIFY, FAULT_ERROR, SURVIVED | NO_READ, SURVIVED | NO_READ},
    {"create", CALL_CREATE, FAULT_ERROR, NO_WRITE, NO_WRITE},
    {"write", CALL_WRITE, FAULT_ERROR, NO_WRITE, NO_WRITE},
    {"write short", CALL_WRITE, FAULT_SHORT, SURVIVED, SURVIVED},
    {"write interrupted", CALL_WRITE, FAULT_INTERRUPTED, SURVIVED, NO_WRITE},
    {"write takes nothing", CALL_WRITE, FAULT_END, NO_WRITE, NO_WRITE},
    {"flush", CALL_FLUSH, FAULT_ERROR, NO_WRITE, NO_WRITE},
    {"rename", CALL_RENAME, FAULT_ERROR, NO_WRITE, NO_WRITE},
};

static enum outcome outcome_of(int code) {
    switch (code) {
    case SLUICE_OK:
        return SURVIVED;
    case SLUICE_MEMORY:
    case SLUICE_DEVICE:
        return NO_MEMORY;
    case SLUICE_IO:
    case SLUICE_TRUNC:
    case SLUICE_CHANGED:
        return NO_READ;
    case SLUICE_OUTPUT:
        return NO_WRITE;
    default:
        return 0;
    }
}

struct scene {
    const char *name;
    struct result (*act)(struct rig *rig, const struct sluice_request *request);
    int batch;
    int stride; /* with FAULTS=all, calls 1, 1 + stride, 1 + 2 stride ... fail, each in a run of its own */
    bool keep;  /* all blocks are resident and stay in memory between runs */
    bool direct;
    bool init; /* the run starts from a latent file */
    bool previews;
    bool cache_prompts;
    int also_allowed; /* further outcomes allowed in this scene, because the failing operation is optional */
};

static char prompt_cache_folder[128];

/* Returns the number of cached prompts; removes their files if `remove` is true. */
static int cached_prompts(bool remove) {
    int n = 0;
    DIR *folder = opendir(prompt_cache_folder);
    for (struct dirent *file; folder && (file = readdir(folder));) {
        if (file->d_name[0] == '.') continue;
        if (remove) unlinkat(dirfd(folder), file->d_name, 0);
        n++;
    }
    if (folder) closedir(folder);
    return n;
}

/* Runs twice: the first run writes the files of the prompt cache, the second reads them. */
static struct result act_cached_prompt(struct rig *rig, const struct sluice_request *request) {
    cached_prompts(true);
    struct result r = run(rig, request);
    return r.code ? r : run(rig, request);
}

static void ignore_preview(void *user, const struct sluice_preview *preview) {
}

/* Opens a new session with the scene's options, without cached weights. */
static void open_session(struct rig *rig, const struct scene *scene) {
    struct sluice_session_options options = {.threads = 1};
    if (scene->previews) options.on_preview = ignore_preview;
    if (scene->cache_prompts) options.prompt_cache = prompt_cache_folder;
    rig_open_session(rig, options);
}

/* Returns a result whose hash is that of the `bytes` bytes at `out`, not of a latent. */
static struct result result_of(const struct error *e, const void *out, size_t bytes) {
    struct result r = {0};
    r.n_latents = 1;
    r.code = publish_error(e, &r.error);
    sha256_hex(out, r.code ? 0 : bytes, r.latent[0]);
    return r;
}

static struct result act_open(struct rig *rig, const struct sluice_request *request) {
    struct error e = {0};
    struct sluice_model_options from = {.struct_size = sizeof from, .model = "test/golden/zimage_a/model"};
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = test_device(), .threads = 1};
    struct sluice_model *model = NULL;
    sluice_session *session = NULL;
    struct result r = {0};
    if (model_open(&rig->fault_sys.sys, &from, &model, &e) != OK) return result_of(&e, NULL, 0);
    r.code = sluice_session_open(model, &options, &session, &r.error);
    r.n_latents = 1;
    sluice_session_close(session);
    model_close(model);
    return r;
}

static struct result act_tokenize(struct rig *rig, const struct sluice_request *request) {
    struct error e = {0};
    struct tokenizer *tokenizer = NULL;
    struct prompt_tokens tokens = {0};
    struct sys *sys = &rig->fault_sys.sys;
    if (tokenizer_open(sys, "test/golden/zimage_a/model/tokenizer", &tokenizer, &e) == OK &&
        prompt_check(&recipes[0]->slot[0].text, tokenizer, &e) == OK)
        prompt_encode(sys, &recipes[0]->slot[0].text, tokenizer, request->prompt, strlen(request->prompt),
                      true, &tokens, &e);
    struct result r = result_of(&e, tokens.ids, (size_t)tokens.n_ids * sizeof *tokens.ids);
    prompt_destroy(sys, &tokens);
    tokenizer_close(tokenizer);
    return r;
}

static struct result act_plan(struct rig *rig, const struct sluice_request *request) {
    struct result r = {.n_latents = 1};
    char *text = NULL;
    bool fits;
    r.code = sluice_plan_query(rig->session, request, NULL, &text, &fits, &r.error);
    if (text) sha256_hex(text, strlen(text), r.latent[0]);
    sluice_free(text);
    return r;
}

/* Plans and runs one request; the run reuses the job that planning left in the session. */
static struct result act_planned_run(struct rig *rig, const struct sluice_request *request) {
    struct result r = act_plan(rig, request);
    return r.code ? r : run(rig, request);
}

static struct result act_decode(struct rig *rig, const struct sluice_request *request) {
    return run_or_decode(rig, request, latent);
}

/* Runs with adapters in a new session, which has no open adapters. */
static struct result act_with_adapters(struct rig *rig, const struct sluice_request *request) {
    static const struct sluice_lora loras[] = {{"test/golden/adapters/zimage/kohya.safetensors", 0.5},
                                               {"test/golden/adapters/zimage/peft.safetensors", 1}};
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = test_device(), .threads = 1};
    sluice_session *session = rig->session;
    struct sluice_request adapted = *request;
    struct result r = {0};
    adapted.loras = loras;
    adapted.n_loras = 2;
    adapted.max_ram_bytes = plenty;
    r.code = sluice_session_open(rig->model, &options, &rig->session, &r.error);
    if (!r.code) r = run(rig, &adapted);
    sluice_session_close(rig->session);
    rig->session = session;
    return r;
}

static const struct scene scenes[] = {
    {"open", act_open, 1, .stride = 1},
    {"tokenize", act_tokenize, 1, .stride = 1},
    {"plan", act_plan, 1, .stride = 1},
    {"planned", act_planned_run, 1, .stride = 3},
    {"streamed", run, 1, .stride = 1},
    {"kept", run, 1, .stride = 1, .keep = true},
    {"direct", run, 1, .stride = 3, .direct = true},
    {"direct_kept", run, 1, .stride = 7, .keep = true, .direct = true},
    {"init_latent", run, 1, .stride = 1, .init = true},
    {"decode", act_decode, 1, .stride = 1, .keep = true},
    {"previews", run, 1, .stride = 5, .previews = true, .also_allowed = SURVIVED},
    {"again", act_cached_prompt, 1, .stride = 5, .keep = true, .cache_prompts = true,
     .also_allowed = SURVIVED},
    {"adapted", act_with_adapters, 1, .stride = 3},
    {"batch", run, 2, .stride = 11}, /* stride 11: planning a batch takes ten times as long as running it */
};

static struct sluice_request request_for(struct rig *rig, const struct scene *scene) {
    struct sluice_request request = request_fox(32, 16, 2, scene->batch, 2);
    static char saved[160];
    snprintf(saved, sizeof saved, "%s/saved.safetensors", outputs);
    request.direct_io = scene->direct ? "on" : "off";
    request.init_latent = scene->init ? latent : NULL;
    request.save_latent = saved;
    request.dump = outputs;
    if (scene->previews) request.preview = "vae";
    if (scene->keep) return request;
    json_int_t least, all;
    bounds(rig, request, &least, &all);
    request.max_ram_bytes = least + (all - least) / 4;
    return request;
}

static bool same_bytes(const char *path, const char *other) {
    size_t n, m;
    char *a = read_file(path, &n), *b = read_file(other, &m);
    bool same = a && b && n == m && !memcmp(a, b, n);
    free(a);
    free(b);
    return same;
}

/* Removes the run's output files; each file must equal the file that a run without faults writes. */
static void check_output_files(const char *what, bool baseline) {
    DIR *folder = opendir(outputs);
    for (struct dirent *file; folder && (file = readdir(folder));) {
        char path[400], whole[400];
        if (file->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", outputs, file->d_name);
        snprintf(whole, sizeof whole, "%s.whole/%s", outputs, file->d_name);
        if (baseline)
            check(rename(path, whole) == 0, "cannot keep %s: %s", path, strerror(errno));
        else
            check(same_bytes(path, whole), "%s: %s is a partial or temporary file", what, file->d_name);
        remove(path);
    }
    if (folder) closedir(folder);
}

/* Results and open resources of a run without faults. */
struct baseline {
    struct result want;
    int64_t host_bytes;
    int n_open;
    long count[N_CALLS];
};

static void check_left(struct rig *rig, const struct scene *scene, const struct baseline *baseline,
                       const char *what) {
    int64_t host = rig->fault_sys.sys.use.live_bytes[LINE_HOST];
    check_memory_released(rig, scene->keep, what);
    check(host <= baseline->host_bytes, "%s: %lld bytes in use instead of %lld", what, (long long)host,
          (long long)baseline->host_bytes);
    check(count_open_files() <= baseline->n_open, "%s: files stay open", what);
    check_output_files(what, false);
}

/* Runs the scene with one failing call; returns whether the run reached that call. */
static bool fail_one(struct rig *rig, const struct scene *scene, const struct sluice_request *request,
                     const struct baseline *baseline, const struct kind *kind, long at, bool on) {
    char what[96];
    snprintf(what, sizeof what, "%s: %s %ld%s", scene->name, kind->name, at, on ? " on" : "");
    if (scene->keep) open_session(rig, scene); /* a session with cached weights does not make these calls */
    fault_sys_fail(&rig->fault_sys, kind->call, at, on ? LONG_MAX : 0);
    rig->fault_sys.fault = kind->fault;
    struct result r = scene->act(rig, request);
    bool reached = atomic_load(&rig->fault_sys.count[kind->call]) >= at;
    fault_sys_restart(&rig->fault_sys);
    n_faults += reached;
    if (r.code == SLUICE_OK)
        same(&baseline->want, &r, what);
    else
        check(r.error.what[0] && r.error.exit_code, "%s: an error without text or exit code", what);
    int may = on ? kind->on : kind->once;
    check(outcome_of(r.code) & (reached ? may | scene->also_allowed : SURVIVED),
          "%s: %s, exit %d: %s (%s) %s", what, sluice_code_name(r.code), r.error.exit_code, r.error.what,
          r.error.where, r.error.found);
    check_left(rig, scene, baseline, what);
    r = scene->act(rig, request);
    same(&baseline->want, &r, what);
    check_left(rig, scene, baseline, what);
    check(!scene->cache_prompts || cached_prompts(false) == 2, "%s: %d cache files for two prompts", what,
          cached_prompts(false));
    json_array_clear(rig->owned);
    return reached;
}

static void fail_kind(struct rig *rig, const struct scene *scene, const struct sluice_request *request,
                      const struct baseline *baseline, const struct kind *kind) {
    static atomic_ullong random = 31;
    long n = baseline->count[kind->call];
    for (int on = 0; on < 2; on++)
        if (every)
            for (long at = 1; fail_one(rig, scene, request, baseline, kind, at, on);) at += scene->stride;
        else if (n > 0)
            fail_one(rig, scene, request, baseline, kind,
                     1 + (long)(random_next_atomic(&random) % (uint64_t)n), on);
}

static void run_scene(const char *folder, const struct scene *scene) {
    struct rig rig;
    struct baseline baseline = {0};
    int before = n_faults;
    double began;
    if (!rig_open(&rig, folder, 1, 3)) return;
    began = rig.fault_sys.machine.clock(&rig.fault_sys.machine);
    open_session(&rig, scene);
    struct sluice_request request = request_for(&rig, scene);
    fault_sys_restart(&rig.fault_sys);
    baseline.want = scene->act(&rig, &request);
    check(baseline.want.code == SLUICE_OK, "%s: %s", scene->name, baseline.want.error.what);
    baseline.host_bytes = rig.fault_sys.sys.use.live_bytes[LINE_HOST];
    baseline.n_open = count_open_files();
    for (int i = 0; i < N_CALLS; i++) baseline.count[i] = atomic_load(&rig.fault_sys.count[i]);
    check_output_files(scene->name, true);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        fail_kind(&rig, scene, &request, &baseline, &kinds[i]);
    printf("%-12s %6d faults, %.0f s\n", scene->name, n_faults - before,
           rig.fault_sys.machine.clock(&rig.fault_sys.machine) - began);
    rig_close(&rig);
}

/* Runs once and saves the latent that the scenes `decode` and `init_latent` start from. */
static void save_latent(const char *folder) {
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = request_for(&rig, &scenes[0]);
    snprintf(latent, sizeof latent, "%s/latent.safetensors", temporary);
    request.save_latent = latent;
    request.dump = NULL;
    request.no_decode = true;
    run_ok(&rig, &request, "making a latent");
    rig_close(&rig);
}

static void make_outputs(void) {
    snprintf(outputs, sizeof outputs, "%s/out", temporary);
    snprintf(prompt_cache_folder, sizeof prompt_cache_folder, "%s/prompts", temporary);
    shell("mkdir '%s' '%s.whole' '%s'", outputs, outputs, prompt_cache_folder);
}

static struct sluice_request cached_request(struct rig *rig, bool keep) {
    struct sluice_request request = request_fox(32, 48, 2, 1, 2);
    json_int_t least, all;
    bounds(rig, request, &least, &all);
    if (!keep) request.max_ram_bytes = least + (all - least) / 4;
    return request;
}

/* Overwrites the first element of a component's tensor. */
static void put_value(const char *component, const char *tensor, float value) {
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&sys);
    component_open(&sys, component, &index, &e);
    const struct index_entry *entry = e.code ? NULL : index_find(&index, tensor);
    FILE *f = entry ? fopen(index.sources[entry->source].path, "r+b") : NULL;
    check(f && !fseek(f, (long)entry->offset, SEEK_SET) && fwrite(&value, sizeof value, 1, f) == 1,
          "cannot change tensor %s of %s: %s", tensor, component, e.what);
    if (f) fclose(f);
    if (!e.code) index_destroy(&index);
}

static void nonfinite_in(const char *wide, const char *part, const char *tensor, const char *stage,
                         float value) {
    struct rig rig;
    const char *folder = copy_model_folder(wide, "nan");
    const char *path = format_text("%s/%s", folder, part);
    put_value(path, tensor, value);
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = cached_request(&rig, false);
    struct result r = run_refused(&rig, &request, "NONFINITE", 7, stage);
    check(strstr(r.error.where, stage) != NULL, "%g in %s is reported in (%s)", (double)value, tensor,
          r.error.where);
    check_memory_released(&rig, false, tensor);
    rig_close(&rig);
}

static void test_nonfinite_weights_reported(const char *wide) {
    nonfinite_in(wide, "text_encoder", "model.layers.1.mlp.down_proj.weight", "text", NAN);
    nonfinite_in(wide, "transformer", "layers.0.feed_forward.w2.weight", "denoise", NAN);
    nonfinite_in(wide, "transformer", "layers.1.attention.to_out.0.weight", "denoise", INFINITY);
    nonfinite_in(wide, "vae", "decoder.conv_in.weight", "decode", -INFINITY);
}

struct canceller {
    sluice_session *session;
    int at_progress;
    long at_read; /* number of the read during which a reader thread cancels the run */
    int seen;
};

static void cancel_in_progress(void *user, const struct sluice_progress *progress) {
    struct canceller *c = user;
    if (++c->seen == c->at_progress) sluice_cancel(c->session);
}

static void cancel_in_read(void *user, long n) {
    struct canceller *c = user;
    if (n == c->at_read) sluice_cancel(c->session);
}

/* Cancels runs while delayed reads are still in flight. */
static void test_cancelled_runs(const char *folder, bool keep) {
    static struct rig rig;
    struct canceller c = {0};
    struct sluice_session_options options = {.threads = 1, .on_progress = cancel_in_progress, .user = &c};
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = cached_request(&rig, keep);
    struct result want = run(&rig, &request);
    rig.fault_sys.delay_us = 300;
    for (int i = 0; i < 12; i++) {
        if (!rig_open_session(&rig, options)) return;
        c = (struct canceller){
            .session = rig.session, .at_progress = i < 3 ? i + 1 : 0, .at_read = i < 3 ? 0 : 1 + 9 * (i - 3)};
        rig.fault_sys.on_read = cancel_in_read;
        rig.fault_sys.on_read_user = &c;
        fault_sys_restart(&rig.fault_sys);
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_CANCELLED && r.error.exit_code == 130, "cancel %d: %s", i,
              sluice_code_name(r.code));
        check_memory_released(&rig, keep, "cancel");
        rig.fault_sys.on_read = NULL;
        c = (struct canceller){.session = rig.session};
        run_equal(&rig, &request, &want, "after a cancelled run");
    }
    rig_close(&rig);
}

static long allocations_of_run(struct rig *rig, const struct sluice_request *request,
                               const struct result *want) {
    fault_sys_restart(&rig->fault_sys);
    run_equal(rig, request, want, "a run after a plan");
    return rig->fault_sys.count[CALL_ALLOC];
}

/* A run of the request that was just planned plans nothing again, so it allocates less than a run of another
 * request; a prompt text that changes at the same address must not be taken for the planned prompt. */
static void test_planned_once(const char *folder) {
    static struct rig rig;
    static char prompt[] = "a fox in the snow";
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = cached_request(&rig, true);
    request.prompt = prompt;
    request.max_ram_bytes = 1 << 30;
    struct result want = run(&rig, &request);
    long alone = allocations_of_run(&rig, &request, &want);
    act_plan(&rig, &request);
    long planned = allocations_of_run(&rig, &request, &want);
    check(planned < alone / 2, "a run after its plan allocates %ld times, alone %ld times", planned, alone);
    prompt[0] = 'A';
    act_plan(&rig, &request);
    prompt[0] = 'a';
    long changed = allocations_of_run(&rig, &request, &want);
    check(changed == alone, "a run of a changed prompt allocates %ld times, alone %ld times", changed, alone);
    rig_close(&rig);
}

int main(void) {
    static const char small[] = "test/golden/zimage_a/model";
    const char *faults = getenv("FAULTS"), *scene = getenv("SCENE");
    every = faults && !strcmp(faults, "all");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(every ? LONGEST_SECONDS_ALL : LONGEST_SECONDS);
    temporary_make();
    make_outputs();
    save_latent(small);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (!scene || !strcmp(scene, scenes[i].name)) run_scene(small, &scenes[i]);
    printf("%d faults\n", n_faults);
    if (scene) return finish();
    test_planned_once(small);
    const char *wide = wide_checkpoint();
    test_nonfinite_weights_reported(wide);
    test_cancelled_runs(wide, false);
    test_cancelled_runs(wide, true);
    return finish();
}
