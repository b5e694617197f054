/* VAE decoding: tiling saves memory and keeps bits, a decode that exceeds the budget is rejected before
 * weights are read, a failed decode keeps the saved latent, a VAE without other components decodes latents.
 */
#include "test/lib/random_models.h"
#include "test/lib/model_paths.h"
#include "test/lib/rig.h"

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
    return word(stage_of(plan, "decode"), "vae_tiling");
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
            struct result r = run_equal(rig, &request, &want, settings[i]);
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
        }
    }
    check(state[1] * 10 < state[0] * 9 && least[1] < least[0], "tiling saves no memory");
    /* a run with `auto` keeps the buffer layouts for `on` and `off`, which take at most 256 KiB more than
     * `on` alone */
    check(least[2] - least[1] < 1 << 18, "auto needs more memory than on");
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
    const char *plan = plan_text(rig, query(rig, &request, NULL));
    for (int i = 0; i < 3; i++) {
        request = request_decode(settings[i]);
        request.plan = plan;
        struct result r =
            i ? run_ok(rig, &request, "plan with tiling") : run_refused(rig, &request, "BUDGET", 4, "");
        check(!i || !strcmp(tiling_of(r.plan), "on"), "plan with tiling, --vae-tiling %s", settings[i]);
    }
    request = request_decode("maybe");
    run_refused(rig, &request, "USAGE", 2, "--vae-tiling");
}

static void refused(struct rig *rig, struct sluice_request request, const char *what, const char *advice,
                    const char *no_advice) {
    fault_sys_restart(&rig->fault_sys);
    struct result r = run_refused(rig, &request, "BUDGET", 4, what);
    check(!atomic_load(&rig->fault_sys.count[CALL_READ]), "weights are read before the request is rejected");
    check(strstr(r.error.expected, advice) && !(no_advice && strstr(r.error.expected, no_advice)),
          "wrong advice: %s", r.error.expected);
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
    run_ok(rig, &request, "--vae-tiling on");
    request.max_ram_bytes = tiled - 1;
    refused(rig, request, "only the decode is too large", "--no-decode --save-latent", "--vae-tiling");
    request.vae_tiling = "auto";
    refused(rig, request, "only the decode is too large", "--no-decode --save-latent", "--vae-tiling");
    request.no_decode = true;
    check(run_ok(rig, &request, "--no-decode").n_latents == 1, "--no-decode gives no latent");
    request = request_decode(NULL);
    request.max_ram_bytes = without / 2;
    refused(rig, request, "the run does not fit", "at least", "--no-decode");
}

/* All memory allocations fail from the start of the decode stage on. */
static void test_failed_decode_leaves_latent(struct rig *rig) {
    const char *path = temporary_path("latent.safetensors");
    struct sluice_request request = request_decode(NULL);
    struct result want = run(rig, &request);
    request.save_latent = path;
    request.no_decode = true;
    fault_sys_restart(&rig->fault_sys);
    run_ok(rig, &request, "run without decoding");
    long maps = atomic_load(&rig->fault_sys.count[CALL_MAP]);
    check(remove(path) == 0, "the latent was not saved");
    request.no_decode = false;
    fault_sys_fail(&rig->fault_sys, CALL_MAP, maps + 1, LONG_MAX);
    struct result r = run_refused(rig, &request, "MEMORY", 5, "");
    check(!r.n_images && r.n_latents == 1, "decode without memory: %d images", r.n_images);
    fault_sys_restart(&rig->fault_sys);
    request = request_decode("on");
    struct result decoded = run_or_decode(rig, &request, path);
    check(decoded.code == SLUICE_OK && !strcmp(decoded.image[0], want.image[0]),
          "the latent decodes to another image: %s", decoded.error.what);
}

typedef struct model_paths options;

static bool open_alone(struct rig *rig, options from) {
    from.decodes_only = true;
    return rig_open_with(rig, *model_options(&from), (struct sluice_session_options){.threads = 2}, 3);
}

static json_int_t decode_least(struct rig *rig, const char *latent) {
    struct sluice_error e;
    struct sluice_request request = request_decode(NULL);
    bool fits = false;
    char *text = NULL;
    int code = sluice_plan_query(rig->session, &request, latent, &text, &fits, &e);
    check(code == SLUICE_OK && fits, "plan: %s", e.what);
    json_int_t least = ram(rig_own(rig, json_loads(text ? text : "", 0, NULL)), "least");
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
    if (!open_alone(&rig, from)) return;
    request.max_ram_bytes = decode_least(&rig, latent);
    check(request.max_ram_bytes <= most, "%s: minimum budget %lld exceeds %lld", what,
          (long long)request.max_ram_bytes, (long long)most);
    struct result r = run_or_decode(&rig, &request, latent);
    check(r.code == SLUICE_OK && r.n_images == 1 && !strcmp(r.image[0], want->image[0]), "%s: %s", what,
          r.code ? r.error.what : r.image[0]);
    request.max_ram_bytes--;
    r = run_or_decode(&rig, &request, latent);
    check(r.code == SLUICE_BUDGET, "%s, one byte below the minimum: %s", what, sluice_code_name(r.code));
    run_refused(&rig, &request, "USAGE", 2, "only the VAE");
    check(sluice_plan_query(rig.session, &request, NULL, &text, &fits, &e) == SLUICE_USAGE && !text,
          "%s plans a generation", what);
    rig_close(&rig);
}

/* Makes two model folders: `only` has just vae/; `spoilt` has vae/ and damaged configuration files. */
static void make_partial_folders(const char *folder) {
    shell("cd '%s' && mkdir only spoilt && cp -r '%s/vae' only && cp -r '%s/vae' spoilt && "
          "mkdir spoilt/transformer spoilt/scheduler && echo '[' >spoilt/model_index.json && "
          "echo '[' >spoilt/scheduler/scheduler_config.json && echo '[' >spoilt/sluice.json",
          temporary, folder, folder);
}

static void test_vae_alone_decodes(struct rig *rig, const char *folder) {
    static const char weights[] = "only/vae/diffusion_pytorch_model.safetensors";
    const char *latent = temporary_path("alone.safetensors");
    struct sluice_request request = request_decode(NULL);
    struct error e = {0};
    sluice_model *model = NULL;
    request.save_latent = latent;
    struct result want = run(rig, &request);
    json_int_t most = decode_least(rig, latent);
    make_partial_folders(folder);
    const struct {
        options from;
        const char *what;
    } rows[] = {{{.model = folder}, "VAE of a whole model"},
                {{.vae = temporary_path("only/vae")}, "--vae with a folder"},
                {{.vae = temporary_path(weights)}, "--vae with a file"},
                {{.model = temporary_path("only")}, "-m with vae/"},
                {{.model = temporary_path("only/vae")}, "-m with vae/ itself"},
                {{.model = temporary_path(weights)}, "-m with a file"},
                {{.model = temporary_path("spoilt")}, "damaged files of other parts"},
                {{.vae = temporary_path("only/vae"), .llm = "/nowhere", .tokenizer = "/nowhere"},
                 "missing files of other parts"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        decodes(rows[i].from, latent, &want, most, rows[i].what);
    const char *text_encoder = format_text("%s/text_encoder", folder);
    options from = {.model = text_encoder, .decodes_only = true};
    check(model_open(NULL, model_options(&from), &model, &e) == MISSING && e.exit == 3 &&
              strstr(e.what, "no 'vae'") && strstr(e.expected, "--vae"),
          "folder without a VAE: %s, %s", e.what, e.expected);
}

/* Returns the hash of the image decoded with this shift_factor in vae/config.json (NULL: no key). */
static void decode_shifted(const char *shift, char hash[HEX]) {
    struct rig rig;
    struct sluice_request request = request_decode(NULL);
    char line[64] = "";
    if (shift) snprintf(line, sizeof line, ", \"shift_factor\": %s", shift);
    shell("cd '%s' && sed 's/, \"shift_factor\": [0-9.]*/%s/' only/vae/config.json >spoilt/vae/config.json",
          temporary, line);
    if (!open_alone(&rig, (options){.vae = temporary_path("spoilt/vae")})) return;
    struct result r = run_or_decode(&rig, &request, temporary_path("alone.safetensors"));
    check(r.code == SLUICE_OK, "shift_factor %s: %s", shift ? shift : "missing", r.error.what);
    memcpy(hash, r.image[0], HEX);
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
