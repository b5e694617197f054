/* User errors through the library: each gives one error with what, where, found and expected and its
 * documented exit class, leaks nothing and leaves no file; after a refused request the session's next image
 * is right.
 *
 * Here: missing file, truncated shard, wrong shape, escaping index, element type, empty file, total_size.
 * Sizes, 0 steps, absurd numbers: here and in test/program/command_line.sh. NaN and Inf: test_faults.c. Files
 * that shrink or change during a run: test_disk.c. Unknown flags, full disks, missing folders, pipes:
 * test/program/command_line.sh. Prompts: test_tokenizer.c, test/program/command_line.sh. */
#include "test/lib/rig.h"

#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>
#include <math.h>

static const char model[] = "test/golden/zimage_a/model";

/* Checks that the one-line error contains `word`, the exit class is right and every required field is set. */
static void check_error(const struct sluice_error *e, int code, int exit_code, const char *word,
                        const char *what) {
    char line[1200];
    sluice_error_line(e, line, sizeof line);
    check(e->code == code && e->exit_code == exit_code, "%s: %s, exit %d: %s", what,
          sluice_code_name(e->code), e->exit_code, line);
    check(strstr(line, word) != NULL, "%s: '%s' is missing in: %s", what, word, line);
    check(!strchr(line, '\n') && e->what[0] && (e->found[0] || e->expected[0] || e->where[0]),
          "%s: the error lacks a field: %s", what, line);
}

#define SHARD "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
#define INDEX "transformer/diffusion_pytorch_model.safetensors.index.json"
#define OTHER "diffusion_pytorch_model-00002-of-00002.safetensors"

struct model_defect {
    const char *name, *file;
    const char *from, *to; /* from, to: replaced text, replacement of equal length; NULL: remove file */
    int cut;               /* number of bytes removed at the file's end */
    int code;
    const char *word;
};

static const struct model_defect defects[] = {
    {"missing shard", "transformer/" OTHER, NULL, NULL, 0, SLUICE_MISSING, OTHER},
    {"missing component", "vae", NULL, NULL, 0, SLUICE_MISSING, "'vae'"},
    {"missing weights", "text_encoder/model.safetensors", NULL, NULL, 0, SLUICE_MISSING, "text_encoder"},
    {"missing tokenizer", "tokenizer", NULL, NULL, 0, SLUICE_MISSING, "no tokenizer for"},
    {"missing tokenizer file", "tokenizer/tokenizer.json", NULL, NULL, 0, SLUICE_MISSING, "tokenizer.json"},
    {"truncated shard", SHARD, "", "", 1, SLUICE_TRUNC, SHARD},
    {"half a shard", SHARD, "", "", 600000, SLUICE_TRUNC, SHARD},
    {"wrong shape", SHARD, "\"shape\":[64,36]", "\"shape\":[36,64]", 0, SLUICE_SHAPE, "expected [64, 36]"},
    {"element type", SHARD, "linear.bias\":{\"dtype\":\"F32", "linear.bias\":{\"dtype\":\"I32", 0,
     SLUICE_UNSUPPORTED, "found I32, expected F32, F16, BF16 or a quantised type"},
    {"unknown type", SHARD, "linear.bias\":{\"dtype\":\"F32", "linear.bias\":{\"dtype\":\"Q32", 0,
     SLUICE_TYPE, "\"Q32\""},
    {"missing tensor", SHARD, "2-1.linear.bias", "2-1.linear.bios", 0, SLUICE_MISSING,
     "2-1.linear.bias' is not in the shard that the index names"},
    {"escaping index", INDEX, ": \"diffusion_pytorch_model-00001", ": \"../fusion_pytorch_model-00001", 0,
     SLUICE_BOUNDS, "leaves the model folder"},
    {"index without weight_map", INDEX, "\"weight_map\"", "\"weight_mop\"", 0, SLUICE_META, "weight_map"},
    {"tensor in another shard", INDEX, "00001-of-00002.safetensors\"", "00002-of-00002.safetensors\"", 0,
     SLUICE_MISSING, "is not in the shard that the index names"},
    {"invalid JSON", "transformer/config.json", "{", "[", 0, SLUICE_JSON, "transformer/config.json"},
};

/* Replaces the first occurrence of `from` in a file, then removes `cut` bytes at its end. */
static void edit(const char *path, const char *from, const char *to, int cut) {
    size_t n;
    char *text = read_file(path, &n), *at = text ? memmem(text, n, from, strlen(from)) : NULL;
    if (check(at != NULL, "%s: cannot make the defect", path)) {
        memcpy(at, to, strlen(to));
        write_file(path, text, n - (size_t)cut);
    }
    free(text);
}

static void expect_open_error(const char *folder, int code, const char *word, const char *what) {
    struct fault_sys w;
    struct error e = {0};
    struct sluice_error public = {0};
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_model *m = NULL;
    int n = count_open_files();
    fault_sys_init(&w, 1);
    int status = (int)model_open(&w.sys, &from, &m, &e);
    publish_error(&e, &public);
    check(status == code && !m, "%s: %s", what, sluice_code_name(status));
    check_error(&public, code, 3, word, what);
    model_close(m);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(!w.sys.use.live_bytes[i], "%s: memory line %d still holds %lld bytes", what, i,
              (long long)w.sys.use.live_bytes[i]);
    check(count_open_files() == n, "%s: files stay open", what);
}

static void test_defective_model(const struct model_defect *m) {
    const char *folder = copy_model_folder(model, "wrong");
    const char *path = format_text("%s/%s", folder, m->file);
    m->from ? edit(path, m->from, m->to, m->cut) : shell("rm -r '%s'", path);
    expect_open_error(folder, m->code, m->word, m->name);
}

/* A file without tensors gives an error that names missing tensors. A folder without a model gives an error
 * that the model is missing. */
static void test_empty_file_and_folder(void) {
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    const char *folder = copy_model_folder(model, "wrong"), *none = temporary_path("none");
    const char *path = format_text("%s/vae/diffusion_pytorch_model.safetensors", folder);
    write_file(path, empty, sizeof empty - 1);
    expect_open_error(folder, SLUICE_MISSING, "no tensors", "S28 a file of no tensors");
    expect_open_error(none, SLUICE_MISSING, "none", "no folder");
    shell("mkdir '%s'", none);
    expect_open_error(none, SLUICE_MISSING, none, "an empty folder");
}

static char warnings[2048];

static void on_log(void *user, int level, const char *line) {
    if (level == SLUICE_WARNING) strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

/* A wrong total_size in the shard index and a prompt above the token limit give warnings only. */
static void test_warnings(void) {
    static char words[60000];
    const char *folder = copy_model_folder(model, "warned");
    struct sluice_session_options options = {.threads = 1, .on_log = on_log};
    struct rig rig;
    const char *path = format_text("%s/%s", folder, INDEX);
    edit(path, "1253216", "1253217", 0);
    if (!rig_open(&rig, folder, 1, 3)) return;
    if (!rig_open_session(&rig, options)) return;
    struct sluice_request request = request_fox(16, 16, 1, 1, 1);
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_OK && strstr(warnings, "total_size 1253217") && strstr(warnings, "1253216 bytes"),
          "X05 wrong total_size: %s: %s", r.error.what, warnings);
    check(!strstr(warnings, "it is cut off there"), "a short prompt is reported as truncated");
    for (size_t i = 0; i + 4 < sizeof words; i += 4) memcpy(words + i, "fox ", 4);
    request.prompt = words;
    r = run(&rig, &request);
    check(r.code == SLUICE_OK && strstr(warnings, "it is cut off there"),
          "T14: no warning for a prompt over the limit: %s", warnings);
    rig_close(&rig);
}

struct bad_request {
    const char *name;
    struct sluice_request request; /* fields of value 0 have their default */
    int code;
    const char *word;
};

static const struct bad_request bad_requests[] = {
    {"width 17", {.width = 17}, SLUICE_USAGE, "found 17, expected a multiple of 16"},
    {"width 8", {.width = 8}, SLUICE_USAGE, "found 8, expected a multiple of 16"},
    {"height -16", {.height = -16}, SLUICE_USAGE, "found -16"},
    {"width 16400", {.width = 16400}, SLUICE_USAGE, "to 16384"},
    {"height 2^31-16", {.height = 2147483632}, SLUICE_USAGE, "to 16384"},
    {"steps -1", {.steps = -1}, SLUICE_USAGE, "the number of steps"},
    {"steps 10001", {.steps = 10001}, SLUICE_USAGE, "1 to 10000"},
    {"steps 2^31-1", {.steps = 2147483647}, SLUICE_USAGE, "1 to 10000"},
    {"batch -1", {.batch = -1}, SLUICE_USAGE, "the batch"},
    {"batch 65", {.batch = 65}, SLUICE_USAGE, "1 to 64"},
    {"guidance NaN", {.cfg_scale = NAN}, SLUICE_USAGE, "--cfg-scale"},
    {"guidance Inf", {.cfg_scale = INFINITY}, SLUICE_USAGE, "--cfg-scale"},
    {"second guidance NaN", {.cfg_scale_low = NAN}, SLUICE_USAGE, "--cfg-scale"},
    {"second guidance, one transformer", {.cfg_scale_low = 3}, SLUICE_USAGE, "no second transformer"},
    {"shift NaN", {.flow_shift = NAN}, SLUICE_USAGE, "--flow-shift"},
    {"shift -1", {.flow_shift = -1}, SLUICE_USAGE, "--flow-shift"},
    {"distilled guidance NaN", {.guidance = NAN}, SLUICE_USAGE, "--guidance"},
    {"negative budget", {.max_ram_bytes = -1}, SLUICE_USAGE, "budget"},
    {"budget of a byte", {.max_ram_bytes = 1}, SLUICE_BUDGET, "least"},
    {"16384 squared in 64 MiB",
     {.width = 16384, .height = 16384, .max_ram_bytes = 64 << 20},
     SLUICE_BUDGET,
     "least"},
    {"precision f64", {.precision = "f64"}, SLUICE_USAGE, "f64"},
    {"direct I/O maybe", {.direct_io = "maybe"}, SLUICE_USAGE, "maybe"},
    {"prompt not UTF-8", {.prompt = "fox \xff"}, SLUICE_UTF8, "not UTF-8"},
    {"missing latent", {.init_latent = "/nowhere/latent"}, SLUICE_MISSING, "/nowhere/latent"},
    {"model file for a latent",
     {.init_latent = "test/golden/zimage_a/model/text_encoder/model.safetensors"},
     SLUICE_MISSING,
     "'latent'"},
    {"no folder to save to", {.save_latent = "/nowhere/latent"}, SLUICE_OUTPUT, "(/nowhere/latent)"},
    {"no folder to dump to", {.dump = "/nowhere"}, SLUICE_OUTPUT, "/nowhere"},
    {"plan not JSON", {.plan = "plan"}, SLUICE_JSON, "plan"},
    {"plan without stages", {.plan = "{}", .plan_name = "p.json"}, SLUICE_META, "p.json"},
    {"rates not an object", {.rates = "[]", .rates_name = "r.json"}, SLUICE_META, "r.json"},
};

/* clang-format off */
#define EACH_FIELD(F)                                                                                        \
    F(width) F(height) F(steps) F(batch) F(cfg_scale) F(cfg_scale_low) F(guidance) F(flow_shift)             \
    F(max_ram_bytes) F(precision) F(direct_io) F(prompt) F(init_latent) F(save_latent) F(dump)               \
    F(plan) F(plan_name) F(rates) F(rates_name)
/* clang-format on */
#define SET_IF_NONZERO(field)                                                                                \
    if (bad->request.field) request.field = bad->request.field;

static struct sluice_request request_of(const struct bad_request *bad) {
    struct sluice_request request = request_fox(32, 16, 1, 1, 1);
    EACH_FIELD(SET_IF_NONZERO)
    return request;
}

static int exit_of(int code) {
    if (code == SLUICE_UTF8) return 2; /* the prompt comes from the command line, not from a file */
    return code == SLUICE_BUDGET ? 4 : code == SLUICE_OUTPUT ? 6 : code < SLUICE_INTERNAL ? 3 : 2;
}

static void test_bad_request(struct rig *rig, const struct bad_request *bad, const struct result *want,
                             int64_t host) {
    struct sluice_request request = request_of(bad), good = request_fox(32, 16, 1, 1, 1);
    int n = count_open_files();
    if (!rig_open_session(rig, (struct sluice_session_options){.threads = 1})) return;
    struct result r = run(rig, &request);
    check_error(&r.error, bad->code, exit_of(bad->code), bad->word, bad->name);
    check_memory_released(rig, bad->request.save_latent,
                          bad->name); /* residents of an earlier run may remain */
    check(rig->fault_sys.sys.use.live_bytes[LINE_HOST] <= host, "%s: %lld bytes in use instead of %lld",
          bad->name, (long long)rig->fault_sys.sys.use.live_bytes[LINE_HOST], (long long)host);
    check(count_open_files() == n, "%s: files stay open", bad->name);
    run_equal(rig, &good, want, bad->name);
}

static void test_bad_requests_refused(void) {
    struct rig rig;
    struct sluice_request request = request_fox(32, 16, 1, 1, 1);
    if (!rig_open(&rig, model, 1, 3)) return;
    struct result want = run(&rig, &request);
    int64_t host = rig.fault_sys.sys.use.live_bytes[LINE_HOST];
    for (size_t i = 0; i < sizeof bad_requests / sizeof *bad_requests; i++)
        test_bad_request(&rig, &bad_requests[i], &want, host);
    request.steps = 0;
    struct result r = run(&rig, &request);
    check_error(&r.error, SLUICE_USAGE, 2, "1 to 10000", "0 steps");
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(600);
    temporary_make();
    for (size_t i = 0; i < sizeof defects / sizeof *defects; i++) test_defective_model(&defects[i]);
    test_empty_file_and_folder();
    test_warnings();
    test_bad_requests_refused();
    return finish();
}
