/* VAE decoding: tiling saves memory and keeps bits, a decode that exceeds the budget is rejected before
 * weights are read, a failed decode keeps the saved latent, a VAE without other components decodes latents.
 */
#include "test/lib/random_models.h"
#include "test/lib/model_paths.h"
#include "test/lib/rig.h"

#include <sys/stat.h>

enum { WIDTH = 272, HEIGHT = 208 };

static const char *const settings[] = {"off", "on", "auto"};

static struct sluice_request request_decode(const char *how) {
    struct sluice_request request = request_fox(WIDTH, HEIGHT, 1, 1, 1);
    request.vae_tiling = how;
    return request;
}

static json_int_t decode_bytes(json_t *plan) {
    return number(stage_of(plan, "decode"), "state_bytes");
}

static const char *tiling_of(json_t *plan) {
    const char *how = json_string_value(json_object_get(stage_of(plan, "decode"), "vae_tiling"));
    return how ? how : "none";
}

/* Each value of --vae-tiling (off, on, auto) gives the same pixels at its minimum budget. `auto` needs no
 * more memory than `on`, and uses the faster of `on` and `off` where both fit the budget. */
static void test_tiling_keeps_bits_and_saves_memory(struct rig *rig) {
    json_int_t least[3], all, state[2] = {0};
    struct sluice_request request = request_decode(NULL);
    struct result want = run(rig, &request);
    check(want.n_images == 1 && !strcmp(tiling_of(want.plan), "off"), "run with plenty of memory: %s",
          want.error.what);
    for (int i = 0; i < 3; i++) {
        request = request_decode(settings[i]);
        bounds(rig, request, &least[i], &all);
        for (int k = 0; k < 2; k++) {
            request.max_ram_bytes = k ? plenty : least[i];
            fault_sys_restart(&rig->fault_sys);
            struct result r = run(rig, &request);
            same(&want, &r, settings[i]);
            check(rig->fault_sys.sys.use.peak_bytes[LINE_STATE] <=
                      number(r.plan, "cross_bytes") + decode_bytes(r.plan),
                  "--vae-tiling %s: more state bytes than planned", settings[i]);
            if (i < 2) {
                state[i] = decode_bytes(r.plan);
                check(!strcmp(tiling_of(r.plan), settings[i]),
                      "--vae-tiling %s: the plan has another setting", settings[i]);
            } else {
                check(!strcmp(tiling_of(r.plan), k ? "off" : "on"), "auto chose %s", tiling_of(r.plan));
                check(decode_bytes(r.plan) == state[!k],
                      "auto plans neither the state bytes of on nor of off");
            }
            result_free(&r);
        }
    }
    printf("decode of %dx%d: state %lld untiled, %lld tiled; minimum budget %lld and %lld\n", WIDTH, HEIGHT,
           (long long)state[0], (long long)state[1], (long long)least[0], (long long)least[1]);
    check(state[1] * 10 < state[0] * 9 && least[1] < least[0], "tiling saves no memory");
    /* a run with `auto` keeps the buffer layouts for `on` and `off`, which take at most 256 KiB more than
     * `on` alone */
    check(least[2] - least[1] < 1 << 18, "auto needs more memory than on");
    result_free(&want);
}

/* Small, flat or narrow images gain nothing from VAE tiling, but tiling must not cost more memory. */
static void test_tiling_never_costs_memory(struct rig *rig) {
    static const int sizes[][2] = {{32, 16}, {144, 112}, {1040, 16}, {16, 528}, {400, 272}, {80, 640}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        json_int_t least[2], all;
        for (int is_tiled = 0; is_tiled < 2; is_tiled++) {
            struct sluice_request request = request_fox(sizes[i][0], sizes[i][1], 1, 1, 1);
            request.vae_tiling = is_tiled ? "on" : "off";
            bounds(rig, request, &least[is_tiled], &all);
        }
        check(least[1] <= least[0], "%dx%d: minimum budget %lld with tiling, %lld without", sizes[i][0],
              sizes[i][1], (long long)least[1], (long long)least[0]);
    }
}

/* The tiling setting of a plan file applies unless the request contradicts it. */
static void test_plan_sets_tiling(struct rig *rig) {
    struct sluice_request request = request_decode("on");
    json_t *plan = query(rig, &request, NULL);
    char *text = json_dumps(plan, 0);
    for (int i = 0; i < 3; i++) {
        request = request_decode(settings[i]);
        request.plan = text;
        struct result r = run(rig, &request);
        if (i)
            check(r.code == SLUICE_OK && !strcmp(tiling_of(r.plan), "on"),
                  "plan with tiling, --vae-tiling %s: %s", settings[i], r.error.what);
        else
            check(r.code == SLUICE_BUDGET, "plan with tiling, --vae-tiling off: %s",
                  sluice_code_name(r.code));
        result_free(&r);
    }
    free(text);
    json_decref(plan);
    request = request_decode("maybe");
    struct result r = run(rig, &request);
    check(r.code == SLUICE_USAGE, "--vae-tiling maybe: %s", sluice_code_name(r.code));
    result_free(&r);
}

static void refused(struct rig *rig, struct sluice_request request, const char *starts, const char *helps,
                    const char * not ) {
    fault_sys_restart(&rig->fault_sys);
    struct result r = run(rig, &request);
    check(r.code == SLUICE_BUDGET && r.error.exit_code == 4, "expected BUDGET: %s", sluice_code_name(r.code));
    check(!atomic_load(&rig->fault_sys.count[CALL_READ]), "weights are read before the request is rejected");
    check(!strncmp(r.error.what, starts, strlen(starts)), "rejected with '%s', expected '%s'", r.error.what,
          starts);
    check(strstr(r.error.expected, helps) && !(not &&strstr(r.error.expected, not )), "wrong advice: %s",
          r.error.expected);
    result_free(&r);
}

/* Each option that the rejection message recommends must make the request fit the budget. */
static void test_rejected_decode_advises_options(struct rig *rig) {
    json_int_t untiled, tiled, without, all;
    struct sluice_request request = request_decode("on");
    bounds(rig, request, &tiled, &all);
    bounds(rig, request_decode("off"), &untiled, &all);
    request.no_decode = true;
    bounds(rig, request, &without, &all);
    check(without < tiled, "the decode does not determine the minimum budget");
    request = request_decode("off");
    request.max_ram_bytes = untiled - 1;
    refused(rig, request, "only the decode is too large", "--vae-tiling on; or --no-decode", NULL);
    request.vae_tiling = "on";
    struct result r = run(rig, &request);
    check(r.code == SLUICE_OK, "--vae-tiling on helps: %s", r.error.what);
    result_free(&r);
    request.max_ram_bytes = tiled - 1;
    refused(rig, request, "only the decode is too large", "--no-decode --save-latent", "--vae-tiling");
    request.vae_tiling = "auto";
    refused(rig, request, "only the decode is too large", "--no-decode --save-latent", "--vae-tiling");
    request.no_decode = true;
    r = run(rig, &request);
    check(r.code == SLUICE_OK && r.n_latents == 1, "--no-decode helps: %s", r.error.what);
    result_free(&r);
    request = request_decode(NULL);
    request.max_ram_bytes = without / 2;
    refused(rig, request, "the run does not fit", "at least", "--no-decode");
}

/* All memory allocations fail from the start of the decode stage on. */
static void test_failed_decode_leaves_latent(struct rig *rig) {
    static char path[128];
    struct stat s;
    struct sluice_error e;
    snprintf(path, sizeof path, "%s/latent.safetensors", temporary);
    struct sluice_request request = request_decode(NULL);
    struct result want = run(rig, &request), r;
    request.save_latent = path;
    request.no_decode = true;
    fault_sys_restart(&rig->fault_sys);
    r = run(rig, &request);
    long maps = atomic_load(&rig->fault_sys.count[CALL_MAP]);
    check(r.code == SLUICE_OK && remove(path) == 0, "the latent was not saved: %s", r.error.what);
    result_free(&r);
    request.no_decode = false;
    fault_sys_fail(&rig->fault_sys, CALL_MAP, maps + 1, LONG_MAX);
    r = run(rig, &request);
    check(r.code == SLUICE_MEMORY && r.error.exit_code == 5 && !r.n_images && r.n_latents == 1,
          "decode without memory: %s, %d images", sluice_code_name(r.code), r.n_images);
    check(stat(path, &s) == 0, "the failed decode left no latent");
    result_free(&r);
    fault_sys_restart(&rig->fault_sys);
    request = request_decode("on");
    int code = sluice_decode(rig->session, &request, path, &e);
    char *text = NULL, hash[IMAGES][HEX] = {{0}};
    sluice_report(rig->session, &text, NULL);
    json_t *report = json_loads(text, 0, NULL);
    read_hashes(json_object_get(report, "image_sha256"), hash);
    check(code == SLUICE_OK && !strcmp(hash[0], want.image[0]), "the latent decodes to another image: %s",
          code ? e.what : hash[0]);
    json_decref(report);
    sluice_free(text);
    result_free(&want);
}

typedef struct model_paths options;

static const char *under(const char *name) {
    static char path[8][256];
    static int next;
    char *to = path[next++ % 8];
    snprintf(to, sizeof path[0], "%s/%s", temporary, name);
    return to;
}

static bool open_alone(struct rig *rig, options from, const char *what) {
    struct error e = {0};
    struct sluice_session_options session = {.threads = 2};
    from.decodes_only = true;
    memset(rig, 0, sizeof *rig);
    fault_sys_init(&rig->fault_sys, 3);
    model_open(&rig->fault_sys.sys, model_options(&from), &rig->model, &e);
    return check(e.code == OK, "%s: %s (%s)", what, e.what, e.where) && rig_open_session(rig, &session);
}

static json_int_t decode_least(struct rig *rig, const char *latent) {
    struct sluice_error e;
    struct sluice_request request = request_decode(NULL);
    bool fits = false;
    char *text = NULL;
    int code = sluice_plan_query(rig->session, &request, latent, &text, &fits, &e);
    check(code == SLUICE_OK && fits, "plan: %s", e.what);
    json_t *plan = text ? json_loads(text, 0, NULL) : NULL;
    json_int_t least = ram(plan, "least");
    json_decref(plan);
    sluice_free(text);
    return least;
}

/* Decodes with a model that has only a VAE, at the planned minimum budget, which is at most that of the whole
 * model. A request to generate fails. */
static void decodes(options from, const char *latent, const struct result *want, json_int_t most,
                    const char *what) {
    struct rig rig;
    struct sluice_request request = request_decode(NULL);
    struct sluice_error e;
    char *text = NULL;
    bool fits;
    if (!open_alone(&rig, from, what)) return;
    request.max_ram_bytes = decode_least(&rig, latent);
    check(request.max_ram_bytes <= most, "%s: minimum budget %lld exceeds %lld", what,
          (long long)request.max_ram_bytes, (long long)most);
    struct result r = run_or_decode(&rig, &request, latent);
    check(r.code == SLUICE_OK && r.n_images == 1 && !strcmp(r.image[0], want->image[0]), "%s: %s", what,
          r.code ? r.error.what : r.image[0]);
    result_free(&r);
    request.max_ram_bytes--;
    r = run_or_decode(&rig, &request, latent);
    check(r.code == SLUICE_BUDGET, "%s, one byte below the minimum: %s", what, sluice_code_name(r.code));
    result_free(&r);
    r = run(&rig, &request);
    check(r.code == SLUICE_USAGE && r.error.exit_code == 2 && strstr(r.error.what, "only the VAE"),
          "%s generates: %s", what, r.error.what);
    result_free(&r);
    check(sluice_plan_query(rig.session, &request, NULL, &text, &fits, &e) == SLUICE_USAGE && !text,
          "%s plans a generation", what);
    rig_close(&rig);
}

static void shell(const char *command) {
    check(system(command) == 0, "%s", command);
}

/* Makes two model folders: `only` has just vae/; `spoilt` has vae/ and damaged configuration files. */
static void make_partial_folders(const char *folder) {
    char command[1024];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir only spoilt && cp -r '%s/vae' only && cp -r '%s/vae' spoilt && "
             "mkdir spoilt/transformer spoilt/scheduler && echo '[' >spoilt/model_index.json && "
             "echo '[' >spoilt/scheduler/scheduler_config.json && echo '[' >spoilt/sluice.json",
             temporary, folder, folder);
    shell(command);
}

static void test_vae_alone_decodes(struct rig *rig, const char *folder) {
    static const char weights[] = "only/vae/diffusion_pytorch_model.safetensors";
    const char *latent = under("alone.safetensors");
    struct sluice_request request = request_decode(NULL);
    struct error e = {0};
    sluice_model *model = NULL;
    request.save_latent = latent;
    struct result want = run(rig, &request);
    json_int_t most = decode_least(rig, latent);
    make_partial_folders(folder);
    decodes((options){.model = folder}, latent, &want, most, "VAE of a whole model");
    decodes((options){.vae = under("only/vae")}, latent, &want, most, "--vae with a folder");
    decodes((options){.vae = under(weights)}, latent, &want, most, "--vae with a file");
    decodes((options){.model = under("only")}, latent, &want, most, "-m with vae/");
    decodes((options){.model = under("only/vae")}, latent, &want, most, "-m with vae/ itself");
    decodes((options){.model = under(weights)}, latent, &want, most, "-m with a file");
    decodes((options){.model = under("spoilt")}, latent, &want, most, "damaged files of other parts");
    decodes((options){.vae = under("only/vae"), .llm = "/nowhere", .tokenizer = "/nowhere"}, latent, &want,
            most, "missing files of other parts");
    char text_encoder[256];
    snprintf(text_encoder, sizeof text_encoder, "%s/text_encoder", folder);
    options from = {.model = text_encoder, .decodes_only = true};
    check(model_open(NULL, model_options(&from), &model, &e) == MISSING && e.exit == 3 &&
              strstr(e.what, "no 'vae'") && strstr(e.expected, "--vae"),
          "folder without a VAE: %s, %s", e.what, e.expected);
    result_free(&want);
}

/* Returns the hash of the image decoded with this shift_factor in vae/config.json (NULL: no key). */
static void decode_shifted(const char *shift, char hash[HEX]) {
    struct rig rig;
    struct sluice_request request = request_decode(NULL);
    char command[1024], line[64] = "";
    if (shift) snprintf(line, sizeof line, ", \"shift_factor\": %s", shift);
    snprintf(
        command, sizeof command,
        "cd '%s' && sed 's/, \"shift_factor\": [0-9.]*/%s/' only/vae/config.json >spoilt/vae/config.json",
        temporary, line);
    shell(command);
    if (!open_alone(&rig, (options){.vae = under("spoilt/vae")}, "shifted")) return;
    struct result r = run_or_decode(&rig, &request, under("alone.safetensors"));
    check(r.code == SLUICE_OK, "shift_factor %s: %s", shift ? shift : "missing", r.error.what);
    memcpy(hash, r.image[0], HEX);
    result_free(&r);
    rig_close(&rig);
}

static void test_shift_factor_defaults(void) {
    static const char *const shift_factors[] = {NULL, "0.1159", "null", "0"};
    char hash[4][HEX] = {{0}};
    for (int i = 0; i < 4; i++) decode_shifted(shift_factors[i], hash[i]);
    check(!strcmp(hash[0], hash[1]), "a missing shift_factor does not default to the published value");
    check(!strcmp(hash[2], hash[3]), "shift_factor null differs from 0");
    check(strcmp(hash[0], hash[2]), "shift_factor has no effect");
}

/* A model whose full-frame activation buffers exceed all its other memory at this size. */
static const char *checkpoint(void) {
    return random_model(
        "large_frames", "zimage",
        "heads=1,axis0=8,axis1=12,axis2=12,layers=1,refiners=1,hidden=32,text_heads=2,text_key_heads=1,"
        "text_head_dim=16,text_ff=32,text_layers=2,vocabulary=400,vae0=64,vae1=64,vae2=48,vae3=24,"
        "vae_resnets=2,vae_groups=8,latent_channels=16,dtype=f32",
        11);
}

int main(void) {
    struct rig rig;
    temporary_make();
    const char *folder = checkpoint();
    if (rig_open(&rig, folder, 2, 3)) {
        test_tiling_keeps_bits_and_saves_memory(&rig);
        test_tiling_never_costs_memory(&rig);
        test_plan_sets_tiling(&rig);
        test_rejected_decode_advises_options(&rig);
        test_failed_decode_leaves_latent(&rig);
        test_vae_alone_decodes(&rig, folder);
        test_shift_factor_defaults();
    }
    rig_close(&rig);
    return finish();
}
