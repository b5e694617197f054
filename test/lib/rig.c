#include "test/lib/rig.h"

#include "engine/base/random.h"
#include "test/lib/device.h"
#include "test/lib/fixtures.h"
#include "test/lib/golden.h"

const struct fixture *rig_fixture;

bool rig_open_session(struct rig *rig, struct sluice_session_options options) {
    struct sluice_error e;
    options.struct_size = sizeof options;
    if (!options.device) options.device = test_device();
    sluice_session_close(rig->session);
    rig->session = NULL;
    return check(!sluice_session_open(rig->model, &options, &rig->session, &e), "session: %s", e.what);
}

bool rig_open_with(struct rig *rig, struct sluice_model_options from, struct sluice_session_options options,
                   uint64_t seed) {
    struct error e = {0};
    from.struct_size = sizeof from;
    *rig = (struct rig){0};
    fault_sys_init(&rig->fault_sys, seed);
    model_open(&rig->fault_sys.sys, &from, &rig->model, &e);
    return check(e.code == OK, "%s: %s (%s)", from.model, e.what, e.where) && rig_open_session(rig, options);
}

bool rig_open(struct rig *rig, const char *folder, int threads, uint64_t seed) {
    struct model_paths paths = {.model = folder};
    char networks[SLUICE_CONTROLS_MAX][GOLDEN_PATH], redux[GOLDEN_PATH];
    for (int i = 0; rig_fixture && i < SLUICE_CONTROLS_MAX && rig_fixture->control_nets[i]; i++) {
        snprintf(networks[i], sizeof networks[i], "test/golden/%s/%s", rig_fixture->name,
                 rig_fixture->control_nets[i]);
        paths.control_net[i] = networks[i];
    }
    if (rig_fixture && rig_fixture->redux) {
        snprintf(redux, sizeof redux, "test/golden/%s/%s", rig_fixture->name, rig_fixture->redux);
        paths.redux = redux;
    }
    if (!rig_open_with(rig, *model_options(&paths), (struct sluice_session_options){.threads = threads},
                       seed))
        return false;
    /* Opening the tokenizer of a tiny model may take more memory than the run, on processors for which oneDNN
     * needs little. The least budget would then hold all weights, and nothing would stream. */
    rig->model->open_bytes = 0;
    return true;
}

json_t *rig_own(struct rig *rig, json_t *json) {
    if (!rig->owned) rig->owned = json_array();
    if (json) json_array_append_new(rig->owned, json);
    return json;
}

void check_memory_released(struct rig *rig, bool keep, const char *what) {
    for (int i = LINE_STORE; i < N_MEMORY_LINES; i++)
        check((keep && i == LINE_STORE) || rig->fault_sys.sys.use.live_bytes[i] == 0,
              "%s: memory line %d: %lld bytes not freed", what, i,
              (long long)rig->fault_sys.sys.use.live_bytes[i]);
}

void rig_close(struct rig *rig) {
    sluice_session_close(rig->session);
    sluice_model_close(rig->model);
    json_decref(rig->owned);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(rig->fault_sys.sys.use.live_bytes[i] == 0, "memory line %d leaks %lld bytes", i,
              (long long)rig->fault_sys.sys.use.live_bytes[i]);
    rig->session = NULL;
    rig->model = NULL;
    rig->owned = NULL;
}

static int read_hashes(json_t *list, char (*to)[HEX]) {
    int n = (int)json_array_size(list);
    for (int i = 0; i < n && i < IMAGES; i++)
        snprintf(to[i], HEX, "%s", json_string_value(json_array_get(list, (size_t)i)));
    return n;
}

/* Checks that no stage or step took less time than the plan's lower bound. */
static void check_floors(json_t *list) {
    size_t i;
    json_t *work;
    json_array_foreach(list, i, work) {
        double floor = json_number_value(json_object_get(work, "floor_seconds"));
        double seconds = json_number_value(json_object_get(work, "seconds"));
        check(floor <= seconds, "took %g s, less than the floor of %g s", seconds, floor);
    }
}

json_t *rig_report(struct rig *rig) {
    char *text = NULL;
    sluice_report(rig->session, &text, NULL);
    json_t *report = text ? rig_own(rig, json_loads(text, 0, NULL)) : NULL;
    sluice_free(text);
    return report;
}

json_int_t rig_stages_sum(struct rig *rig, const char *key) {
    json_t *report = rig_report(rig), *stage;
    json_int_t sum = 0;
    size_t i;
    json_array_foreach(json_object_get(report, "stages"), i, stage) sum +=
        json_integer_value(json_object_get(stage, key));
    return sum;
}

struct result run_or_decode(struct rig *rig, const struct sluice_request *request, const char *latent) {
    struct result r = {0};
    r.code = latent ? sluice_decode(rig->session, request, latent, &r.error)
                    : sluice_run(rig->session, request, &r.error);
    json_t *report = rig_report(rig);
    r.n_latents = read_hashes(json_object_get(report, "latent_sha256"), r.latent);
    r.n_images = read_hashes(json_object_get(report, "image_sha256"), r.image);
    r.plan = json_object_get(report, "plan");
    check_floors(json_object_get(report, "stages"));
    check_floors(json_object_get(report, "steps"));
    return r;
}

struct result run(struct rig *rig, const struct sluice_request *request) {
    return run_or_decode(rig, request, NULL);
}

struct result run_ok(struct rig *rig, const struct sluice_request *request, const char *what) {
    struct result r = run(rig, request);
    check(!r.code, "%s: %s %s (%s) found %s", what, sluice_code_name(r.code), r.error.what, r.error.where,
          r.error.found);
    return r;
}

struct result run_equal(struct rig *rig, const struct sluice_request *request, const struct result *want,
                        const char *what) {
    struct result r = run(rig, request);
    same(want, &r, what);
    return r;
}

struct result run_refused(struct rig *rig, const struct sluice_request *request, const char *code,
                          int exit_code, const char *words) {
    struct result r = run(rig, request);
    char line[1024];
    sluice_error_line(&r.error, line, sizeof line);
    check(r.code && !strcmp(sluice_code_name(r.code), code) && r.error.exit_code == exit_code &&
              strstr(line, words),
          "not refused as '%s': %s %s", words, sluice_code_name(r.code), line);
    return r;
}

bool same_from(const struct result *want, int first, const struct result *got, const char *what) {
    if (!check(got->code == SLUICE_OK, "%s: %s %s (%s) found %s", what, sluice_code_name(got->code),
               got->error.what, got->error.where, got->error.found))
        return false;
    bool same = got->n_latents + got->n_images > 0;
    for (int i = 0; i < got->n_latents; i++) same = same && !strcmp(want->latent[first + i], got->latent[i]);
    for (int i = 0; i < got->n_images; i++) same = same && !strcmp(want->image[first + i], got->image[i]);
    return check(same, "%s: hashes differ", what);
}

bool same(const struct result *want, const struct result *got, const char *what) {
    return same_from(want, 0, got, what) &&
           check(want->n_latents == got->n_latents && want->n_images == got->n_images,
                 "%s: %d latents, %d pictures", what, got->n_latents, got->n_images);
}

bool sample_latent(const struct sluice_model_options *from, struct sluice_request request, char latent[HEX],
                   const char *what) {
    struct rig rig = {0};
    struct sluice_error e;
    struct sluice_session_options to = {.struct_size = sizeof to, .device = "cpu", .threads = 1};
    request.no_decode = true;
    int code = sluice_model_open(from, &rig.model, &e);
    if (!code) code = sluice_session_open(rig.model, &to, &rig.session, &e);
    struct result r = {.code = code};
    if (!code) r = run(&rig, &request);
    check(!r.code, "%s: %s (%s) %s", what, code ? e.what : r.error.what, code ? e.where : r.error.where,
          code ? e.found : r.error.found);
    for (int i = 0; i < SLOTS_MAX && rig.model; i++)
        check(!rig.model->component[i].n_unknown, "%s: %d unknown tensors in slot %d", what,
              rig.model->component[i].n_unknown, i);
    memcpy(latent, r.latent[0], HEX);
    sluice_session_close(rig.session);
    sluice_model_close(rig.model);
    json_decref(rig.owned);
    return !r.code;
}

uint8_t *noise_pixels(int number) {
    static uint8_t noise[10][192 << 10];
    static bool filled;
    uint64_t random = 7;
    for (size_t i = 0; i < sizeof noise && !filled; i++)
        noise[i / sizeof *noise][i % sizeof *noise] = (uint8_t)(random_next(&random) >> 56);
    filled = true;
    return noise[number];
}

struct sluice_picture noise_picture(int number, int width, int height) {
    return (struct sluice_picture){.struct_size = sizeof(struct sluice_picture),
                                   .width = width,
                                   .height = height,
                                   .rgb = noise_pixels(number),
                                   .name = "fox.png"};
}

struct sluice_request request_fox(int width, int height, int steps, int batch, double cfg_scale) {
    return (struct sluice_request){.struct_size = sizeof(struct sluice_request),
                                   .prompt = "a red fox in the snow",
                                   .negative_prompt = "blurry, low contrast",
                                   .width = width,
                                   .height = height,
                                   .steps = steps,
                                   .batch = batch,
                                   .cfg_scale = cfg_scale,
                                   .seed = 42,
                                   .max_ram_bytes = plenty};
}
