/* Damaged files: every truncation of small valid files, and bytes flipped, removed, doubled and inserted at
 * random, in every file and text that the library reads: safetensors, GGUF, shard index, tokenizers,
 * configurations, defaults, latents, plans, rates. Each damaged file gives a result or an error of exit class
 * 2, 3, 4 or 7, leaks no memory or file descriptor, takes at most HANG_SECONDS and at most 64 MiB of memory
 * beyond the file.
 *
 * Files with one known defect: malformed_safetensors.h, malformed_gguf.h, test_loaders.c, test_tokenizer.c,
 * test_user_errors.c (whole models). DAMAGE=N: N random damages per file; SEED varies the damages. */
#include "test/lib/device.h"
#include "test/lib/rig.h"

#include "loaders/tokenizer/tokenizer.h"

#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
enum { HANG_SECONDS = 20 };
#else
enum { HANG_SECONDS = 2 };
#endif
enum { RANDOM = 45, OURS_MAX = 64 << 20, LONGEST_SECONDS = 3600 };

static const char model_a[] = "test/golden/zimage_a/model", model_b[] = "test/golden/zimage_b/model",
                  flux_a[] = "test/golden/flux_a/model", flux_b[] = "test/golden/flux_b/model",
                  sdxl[] = "test/golden/sdxl/model";
static char folder[160]; /* folder of a copy of the model, in which files are damaged */
static struct rig rig;   /* session with the undamaged model, which reads damaged plans, rates and latents */
static uint64_t seed = 1;
static atomic_ullong state;

static uint64_t below(uint64_t n) {
    return n ? random_next_atomic(&state) % n : 0;
}

struct text {
    char *at;
    size_t bytes;
};

static struct text text_of(const char *path) {
    struct text t;
    t.at = read_file(path, &t.bytes);
    if (!t.at) abort();
    return t;
}

static void replace(struct text *t, size_t from, size_t n, const char *by, size_t by_bytes) {
    char *text = malloc(t->bytes - n + by_bytes + 1);
    memcpy(text, t->at, from);
    memcpy(text + from, by, by_bytes);
    memcpy(text + from + by_bytes, t->at + from + n, t->bytes - from - n);
    free(t->at);
    t->bytes += by_bytes - n;
    t->at = text;
    t->at[t->bytes] = 0;
}

/* Replaces a number in the first `most` bytes of a text by an extreme number. */
static void change_number(struct text *t, size_t most) {
    static const char *const numbers[] = {
        "0",           "-1",    "1",   "2147483647",          "4294967296",
        "-2147483648", "1e308", "1.5", "9223372036854775807", "18446744073709551616",
        "16777216",    "1e-308"};
    size_t at = below(most), n = 0;
    while (at < most && (t->at[at] < '0' || t->at[at] > '9')) at++;
    while (at + n < most && t->at[at + n] >= '0' && t->at[at + n] <= '9') n++;
    const char *by = numbers[below(sizeof numbers / sizeof *numbers)];
    if (n) replace(t, at, n, by, strlen(by));
}

/* Makes one to four random changes in the first `most` bytes of a file, where headers are. */
static void damage(struct text *t, size_t most) {
    static const char odd[] = "\"\\{}[],:\0\xff\xc3\x80 0-e.nu/";
    for (uint64_t n = 1 + below(4); n; n--) {
        if (most > t->bytes) most = t->bytes;
        size_t at = below(most), some = 1 + below(most - at < 40 ? most - at : 40);
        if (!most) return;
        char c = odd[below(sizeof odd - 1)];
        switch (below(7)) {
        case 0:
            t->at[at] = (char)(t->at[at] ^ 1 << below(8));
            break;
        case 1:
            t->at[at] = c;
            break;
        case 2:
            replace(t, at, some, "", 0);
            break;
        case 3: {
            char copy[40];
            memcpy(copy, t->at + at, some);
            replace(t, below(most), 0, copy, some);
            break;
        }
        case 4:
            replace(t, at, 0, &c, 1);
            break;
        case 5:
            t->at[at] = (char)below(256);
            break;
        default:
            change_number(t, most);
        }
    }
}

/* Returns a copy with random damage number i in the first `most` bytes (0: all); `how` receives its name. */
static struct text damaged(const struct text *whole, int i, size_t most, char how[32]) {
    struct text t = {malloc(whole->bytes + 1), whole->bytes};
    memcpy(t.at, whole->at, whole->bytes + 1);
    snprintf(how, 32, "random %d", i);
    atomic_store(&state, seed * 1000003 + (uint64_t)i);
    damage(&t, most ? most : t.bytes);
    return t;
}

/* Functions that read a damaged file. Each function returns its error as a public error and releases all
 * memory. */
static int open_model(struct fault_sys *w, const char *from, struct sluice_error *public) {
    struct error e = {0};
    struct sluice_model_options options = {.struct_size = sizeof options, .model = from};
    struct sluice_session_options with = {.struct_size = sizeof with, .device = test_device(), .threads = 1};
    struct sluice_model *model = NULL;
    sluice_session *session = NULL;
    char *json = NULL;
    bool fits;
    model_open(&w->sys, &options, &model, &e);
    int code = publish_error(&e, public);
    if (!code) code = sluice_session_open(model, &with, &session, public);
    struct sluice_request request = {.struct_size = sizeof request};
    if (!code) sluice_request_defaults(model, &request);
    request.max_ram_bytes = plenty;
    if (!code) code = sluice_plan_query(session, &request, NULL, &json, &fits, public);
    sluice_free(json);
    sluice_session_close(session);
    model_close(model);
    return code;
}

static int open_safetensors(struct fault_sys *w, const char *path, struct sluice_error *public) {
    struct error e = {0};
    struct tensor_index index;
    if (safetensors_open(&w->sys, path, &index, &e) == OK) index_destroy(&index);
    return publish_error(&e, public);
}

static int open_gguf(struct fault_sys *w, const char *path, struct sluice_error *public) {
    struct error e = {0};
    struct tensor_index index;
    if (component_open(&w->sys, path, &index, &e) == OK) index_destroy(&index);
    return publish_error(&e, public);
}

static int open_tokenizer(struct fault_sys *w, const char *path, struct sluice_error *public) {
    struct error e = {0};
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int n;
    if (tokenizer_open(&w->sys, path, &t, &e) == OK)
        tokenizer_encode(t, "a red fox, caf\xc3\xa9 12", 18, &ids, &n, &e);
    w->sys.release(&w->sys, ids);
    tokenizer_close(t);
    return publish_error(&e, public);
}

static int open_config(struct fault_sys *w, const char *path, struct sluice_error *public) {
    struct error e = {0};
    struct config config = {0};
    if (config_read(&w->sys, path, &config, &e) == OK) config_destroy(&config);
    return publish_error(&e, public);
}

struct damaged_file {
    const char *name;
    const char *model, *file; /* model: the model's folder; file: name of the damaged file in this folder */
    int (*read)(struct fault_sys *w, const char *path, struct sluice_error *public);
    bool whole_model; /* the tested function opens the model's folder instead of the damaged file */
    size_t most;      /* damage only this number of first bytes; 0: the whole file */
    bool cuts;        /* every truncation of this file must be refused */
};

static const struct damaged_file damaged_files[] = {
    {"safetensors", model_b, "text_encoder/model-00002-of-00002.safetensors", open_safetensors, false, 2000,
     false},
    {"safetensors, model", model_a, "vae/diffusion_pytorch_model.safetensors", open_model, true, 9000, false},
    {"GGUF", "test/golden/gguf", "types.gguf", open_gguf, false, 4500, false},
    {"GGUF, model", "test/golden/stored/zimage_gguf/model", "diffusion_models/zimage.gguf", open_model, true,
     6000, false},
    {"GGUF, tokenizer", "test/golden/stored/zimage_gguf/model", "text_encoders/qwen3.gguf", open_tokenizer,
     false, 20000, false},
    {"GGUF, aligned", "test/golden/gguf", "aligned.gguf", open_gguf, false, 300, false},
    {"shard index", model_b, "text_encoder/model.safetensors.index.json", open_model, true, 0, false},
    {"tokenizer.json", model_a, "tokenizer/tokenizer.json", open_tokenizer, false, 0, false},
    {"vocab.json", model_b, "tokenizer/vocab.json", open_model, true, 0, false},
    {"merges.txt", model_b, "tokenizer/merges.txt", open_model, true, 0, false},
    {"tokenizer_config.json", model_b, "tokenizer/tokenizer_config.json", open_model, true, 0, false},
    {"config.json", model_a, "transformer/config.json", open_config, false, 0, true},
    {"transformer", model_a, "transformer/config.json", open_model, true, 0, true},
    {"text encoder", model_a, "text_encoder/config.json", open_model, true, 0, true},
    {"autoencoder", model_a, "vae/config.json", open_model, true, 0, true},
    {"scheduler", model_a, "scheduler/scheduler_config.json", open_model, true, 0, true},
    {"model_index.json", model_a, "model_index.json", open_model, true, 0, true},
    {"sluice.json", model_a, "sluice.json", open_model, true, 0, true},
    {"Flux, shard", flux_a, "transformer/diffusion_pytorch_model-00001-of-00002.safetensors", open_model,
     true, 9000, false},
    {"T5, safetensors", flux_a, "text_encoder_2/model.safetensors", open_model, true, 3000, false},
    {"Flux", flux_a, "transformer/config.json", open_model, true, 0, true},
    {"CLIP", flux_a, "text_encoder/config.json", open_model, true, 0, true},
    {"T5", flux_a, "text_encoder_2/config.json", open_model, true, 0, true},
    {"Flux, scheduler", flux_a, "scheduler/scheduler_config.json", open_model, true, 0, true},
    {"CLIP, vocab.json", flux_a, "tokenizer/vocab.json", open_model, true, 0, false},
    {"CLIP, merges.txt", flux_a, "tokenizer/merges.txt", open_model, true, 0, false},
    {"T5, spiece.model", flux_b, "tokenizer_2/spiece.model", open_model, true, 0, false},
    {"T5, tokenizer.json", flux_a, "tokenizer_2/tokenizer.json", open_model, true, 0, false},
    {"UNet, safetensors", sdxl, "unet/diffusion_pytorch_model.safetensors", open_model, true, 3000, false},
    {"UNet", sdxl, "unet/config.json", open_model, true, 0, true},
    {"OpenCLIP", sdxl, "text_encoder_2/config.json", open_model, true, 0, true},
    {"UNet, scheduler", sdxl, "scheduler/scheduler_config.json", open_model, true, 0, true},
    {"UNet, model_index.json", sdxl, "model_index.json", open_model, true, 0, true},
};

static bool documented(int code, const struct sluice_error *e) {
    if (!code) return true;
    char line[1200];
    sluice_error_line(e, line, sizeof line);
    bool class = e->exit_code == 2 || e->exit_code == 3 || e->exit_code == 4 || e->exit_code == 7;
    return class && e->what[0] && !strchr(line, '\n');
}

/* Checks the result; keeps a failing file in build/, because random damage cannot be repeated otherwise. */
static void check_documented(int code, const struct sluice_error *e, double seconds, const char *name,
                             const char *how, const char *path) {
    bool good = documented(code, e) && seconds < HANG_SECONDS;
    if (check(good, "%s, %s: %s, exit %d, %.1f s: %s", name, how, sluice_code_name(code), e->exit_code,
              seconds, e->what))
        return;
    if (path) shell("cp '%s' build/damaged_%d", path, n_failed);
}

static void read_once(const struct damaged_file *v, const char *path, const char *how, bool must_fail) {
    struct fault_sys w;
    struct sluice_error e = {0};
    struct stat s;
    fault_sys_init(&w, 1);
    int n = count_open_files();
    double began = (double)clock() / CLOCKS_PER_SEC;
    int code = v->read(&w, v->whole_model ? folder : path, &e);
    check_documented(code, &e, (double)clock() / CLOCKS_PER_SEC - began, v->name, how, path);
    check(!must_fail || code, "%s, %s: no error", v->name, how);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(!w.sys.use.live_bytes[i], "%s, %s: memory line %d still holds %lld bytes", v->name, how, i,
              (long long)w.sys.use.live_bytes[i]);
    check(!stat(path, &s) && w.sys.use.peak_bytes[LINE_HOST] <= s.st_size + OURS_MAX,
          "%s, %s: peak of %lld bytes", v->name, how, (long long)w.sys.use.peak_bytes[LINE_HOST]);
    check(count_open_files() == n, "%s, %s: files stay open", v->name, how);
}

/* Truncates the file at every byte or at random ones; final newlines are not cut off, because JSON does not
 * need them. */
static void cut_everywhere(const struct damaged_file *v, const char *path, const struct text *whole_model,
                           bool every) {
    size_t end = whole_model->bytes;
    while (end && whole_model->at[end - 1] == '\n') end--;
    for (size_t n = 0; n < end; n += every ? 1 : 1 + below(end / 40)) {
        const char *how = format_text("cut at %zu", n);
        write_file(path, whole_model->at, n);
        read_once(v, path, how, v->cuts);
    }
}

static void test_damaged_file(const struct damaged_file *v, int n_random, bool every) {
    char path[300];
    snprintf(folder, sizeof folder, "%s", copy_model_folder(v->model, "damaged"));
    snprintf(path, sizeof path, "%s/%s", folder, v->file);
    if (!strcmp(v->file, "sluice.json")) {
        static const char defaults[] = "{\"width\": 48, \"height\": 32, \"steps\": 3, \"cfg_scale\": 1.5, "
                                       "\"flow_shift\": 3, \"cfg_norm\": 1, "
                                       "\"cfg_until\": 0.5}";
        write_file(path, defaults, sizeof defaults - 1);
    }
    struct text whole_model = text_of(path);
    read_once(v, path, "whole", false);
    cut_everywhere(v, path, &whole_model, every && v->cuts);
    for (int i = 0; i < n_random; i++) {
        char how[32];
        struct text t = damaged(&whole_model, i, v->most, how);
        write_file(path, t.at, t.bytes);
        read_once(v, path, how, false);
        free(t.at);
    }
    free(whole_model.at);
}

enum request_text { PLAN, RATES };

static struct text request_text(enum request_text which) {
    static const char rates[] = "{\"version\":1,\"threads\":1,\"disk\":1e9,\"host_copy\":5e9,\"ops\":{"
                                "\"linear\":1e9,\"attention\":1e9,"
                                "\"conv\":1e9,\"bytes\":1e9}}";
    struct sluice_request request = request_fox(32, 16, 1, 1, 1);
    char *json = which == RATES ? strdup(rates) : json_dumps(query(&rig, &request, NULL), JSON_COMPACT);
    return (struct text){json, strlen(json)};
}

static void test_damaged_request_text(enum request_text which, int n_random) {
    static const char *const names[] = {"plan", "rates"};
    struct text whole_model = request_text(which);
    for (int i = 0; i < n_random; i++) {
        char how[32];
        struct text t = damaged(&whole_model, i, 0, how);
        struct sluice_request request = request_fox(32, 16, 1, 1, 1);
        if (i < 40) t.at[below(t.bytes)] = 0;
        if (which == PLAN) request.plan = t.at;
        if (which == RATES) request.rates = t.at;
        double began = (double)clock() / CLOCKS_PER_SEC;
        struct result r = run(&rig, &request);
        check_documented(r.code, &r.error, (double)clock() / CLOCKS_PER_SEC - began, names[which], how, NULL);
        check_memory_released(&rig, true, names[which]);
        free(t.at);
    }
    free(whole_model.at);
}

static void read_latent(const char *path, const char *how, bool must_fail) {
    for (int decodes = 0; decodes < 2; decodes++) {
        struct sluice_request request = request_fox(32, 16, 1, 1, 1);
        request.init_latent = decodes ? NULL : path;
        int n = count_open_files();
        struct result r = run_or_decode(&rig, &request, decodes ? path : NULL);
        check_documented(r.code, &r.error, 0, decodes ? "latent to decode" : "latent to begin from", how,
                         path);
        check(!must_fail || r.code, "%s: no error", how);
        check_memory_released(&rig, true, how);
        check(count_open_files() == n, "%s: files stay open", how);
    }
}

static void test_damaged_latent(int n_random, bool every) {
    const char *path = temporary_path("latent.safetensors");
    struct sluice_request request = request_fox(32, 16, 1, 1, 1);
    request.save_latent = path;
    run_ok(&rig, &request, "making a latent");
    struct text whole_model = text_of(path);
    for (size_t n = 0; n < whole_model.bytes; n += every ? 1 : 1 + below(60)) {
        const char *how = format_text("cut at %zu", n);
        write_file(path, whole_model.at, n);
        read_latent(path, how, true);
    }
    for (int i = 0; i < n_random; i++) {
        char how[32];
        struct text t = damaged(&whole_model, i, i % 2 ? 100 : 0, how);
        write_file(path, t.at, t.bytes);
        read_latent(path, how, false);
        free(t.at);
    }
    free(whole_model.at);
}

int main(void) {
    const char *damage_n = getenv("DAMAGE"), *seed_text = getenv("SEED");
    int n = damage_n ? atoi(damage_n) : RANDOM;
    bool every = damage_n != NULL;
    if (seed_text) seed = strtoull(seed_text, NULL, 10);
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(LONGEST_SECONDS);
    temporary_make();
    if (!rig_open(&rig, model_a, 1, 3)) return finish();
    for (size_t i = 0; i < sizeof damaged_files / sizeof *damaged_files; i++)
        test_damaged_file(&damaged_files[i], n, every);
    test_damaged_request_text(PLAN, n);
    test_damaged_request_text(RATES, n);
    test_damaged_latent(n, every);
    rig_close(&rig);
    return finish();
}
