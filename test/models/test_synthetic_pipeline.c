/* A synthetic family and recipe that only the tests have: opened by folders, flags and prefixes, planned,
 * hoisted, under memory pressure, reported and inspected; results against plain loops
 * (test/lib/synthetic_reference.c). gates/test_residency.c checks that no plan and no batch changes the bits.
 */
#include "engine/run/component.h"
#include "kernels/ops.h"
#include "loaders/loaders.h"
#include "test/lib/gates.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"
#include "test/lib/failing_operators.h"
#include "test/lib/rig.h"
#include "test/lib/synthetic_pipeline.h"
#include "test/lib/synthetic_reference.h"

#include <math.h>
#include <sys/stat.h>

/* Reads a tensor that a run dumped to a file. The caller frees the values. */
static void *read_dumped(const char *folder, const char *name, int *n) {
    char path[192];
    struct sys sys;
    struct error e = {0};
    struct tensor_index index;
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    void *values = NULL;
    if (!check(safetensors_open(&sys, path, &index, &e) == OK, "%s: %s", path, e.what)) exit(finish());
    const struct index_entry *entry = index_find(&index, name);
    if (!check(entry, "%s: no tensor", path) || !(values = malloc(entry->bytes))) exit(finish());
    check(source_read(&index.sources[0], values, entry->bytes, entry->offset, &e) == OK, "%s", e.what);
    *n = (int)(entry->bytes / 4);
    index_destroy(&index);
    return values;
}

/* most: largest relative error, about three times the error measured with AVX-512 and AVX2. */
static void compare(const char *folder, const char *name, const double *truth, int n, double most) {
    int found;
    double difference = 0, size = 0;
    float *values = read_dumped(folder, name, &found);
    check(found == n, "%s: %d values instead of %d", name, found, n);
    for (int i = 0; i < n && found == n; i++) {
        difference += ((double)values[i] - truth[i]) * ((double)values[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    double error = sqrt(difference / size);
    check(error <= most, "%s: error %.2e, at most %.0e", name, error, most);
    printf("%-24s error %.2e, at most %.0e\n", name, error, most);
    free(values);
}

static void test_results_equal_plain_loops(struct rig *rig, struct sluice_request request) {
    static int n_runs;
    static const char *const tokens[3][2] = {
        {"tokens", "tokens_uncond"}, {"tokens_2", "tokens_2_uncond"}, {"tokens_3", "tokens_3_uncond"}};
    char folder[128], name[48];
    struct synthetic_input input = {.model = rig->model, .request = &request};
    struct synthetic_reference truth;
    snprintf(folder, sizeof folder, "%s/dump_%d", temporary, n_runs++);
    snprintf(name, sizeof name, "latent_%03d", request.steps);
    request.batch = 1;
    request.dump = folder;
    check(!mkdir(folder, 0700), "cannot create %s", folder);
    struct result r = run(rig, &request);
    if (!check(r.code == SLUICE_OK, "truth: %s (%s) %s", r.error.what, r.error.where, r.error.found)) return;
    int n_prompts = request.cfg_scale_low == 1 && request.cfg_scale == 1 ? 1 : 2;
    for (int i = 0; i < 6; i++)
        if (i % 2 < n_prompts)
            input.tokens[i / 2][i % 2].ids =
                read_dumped(folder, tokens[i / 2][i % 2], &input.tokens[i / 2][i % 2].n);
    synthetic_reference_open(&truth, &input);
    compare(folder, "cond", truth.text, truth.rows * truth.columns, 8e-7);
    compare(folder, "pooled", truth.pooled, truth.pooled_columns, 8e-7);
    int pixels = request.width * request.height;
    compare(folder, name, truth.latent, SYNTHETIC_CHANNELS * ((request.frames - 1) / 2 + 1) * pixels / 4,
            6e-6);
    for (int i = 0; i < request.frames; i++) {
        snprintf(name, sizeof name, "decoded_frame_%04d", i);
        compare(folder, name, truth.frames + i * 3 * pixels, 3 * pixels, 1.2e-5);
    }
    synthetic_reference_close(&truth);
    for (int i = 0; i < 6; i++) free((void *)(uintptr_t)input.tokens[i / 2][i % 2].ids);
}

/* Each denoiser has its own guidance scale; at scale 1 it has neither a negative nor a skip-layer lane. */
static void test_guidance_of_each_denoiser(struct rig *rig, struct sluice_request request,
                                           const struct result *want) {
    static const struct {
        double high, low;
        int lanes, lanes_low;
    } scales[] = {{2.5, 0, 3, 3}, {2.5, 2.5, 3, 3}, {2.5, 4, 3, 3},
                  {2.5, 1, 3, 1}, {1, 4, 1, 3},     {1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        request.cfg_scale = scales[i].high;
        request.cfg_scale_low = scales[i].low;
        if (i >= 2) test_results_equal_plain_loops(rig, request);
        struct result r = run(rig, &request);
        const char *latent = r.n_latents ? r.latent[0] : "";
        check(!strcmp(latent, want->latent[0]) == (i < 2), "guidance scales %g and %g: wrong latent: %s",
              scales[i].high, scales[i].low, r.error.what);
        check(number(stage_of(r.plan, "denoise"), "lanes") == scales[i].lanes * request.batch &&
                  number(stage_of(r.plan, "denoise_2"), "lanes") == scales[i].lanes_low * request.batch,
              "guidance scales %g and %g: wrong number of lanes", scales[i].high, scales[i].low);
    }
}

/* --cfg-until and --cfg-norm with two denoisers, two evaluations per step, and skip-layer guidance in steps 1
 * and 2. Steps begin at (1000 - timestep) / 1000 = 0, .225, .45 and .675. The first denoiser runs steps 0
 * and 1. */
static void test_guidance_limits(struct rig *rig, struct sluice_request request) {
    static const struct {
        double norm, until;
        int lanes, lanes_low;
    } rows[] = {{0.9, 0, 3, 3}, {0, 0.5, 3, 3}, {0.7, 0.3, 3, 1}, {1.05, 0.1, 2, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        request.cfg_norm = rows[i].norm;
        request.cfg_until = rows[i].until;
        test_results_equal_plain_loops(rig, request);
        struct result r = run(rig, &request);
        check(number(stage_of(r.plan, "denoise"), "lanes") == rows[i].lanes * request.batch &&
                  number(stage_of(r.plan, "denoise_2"), "lanes") == rows[i].lanes_low * request.batch,
              "--cfg-norm %g --cfg-until %g: wrong number of lanes", rows[i].norm, rows[i].until);
    }
}

static struct result run_parts(const struct sluice_model_options *from, struct sluice_request request,
                               const char *what) {
    struct rig rig = {0};
    struct error e = {0};
    struct result r = {0};
    struct sluice_session_options options = {.threads = 1};
    fault_sys_init(&rig.fault_sys, 5);
    if (check(model_open(&rig.fault_sys.sys, from, &rig.model, &e) == OK, "%s: %s (%s) %s", what, e.what,
              e.where, e.found) &&
        rig_open_session(&rig, options))
        r = run(&rig, &request);
    rig_close(&rig);
    return r;
}

/* Passes each component by its flag; exchanged denoisers must give another latent. */
static void test_components_by_flag(const char *folder, struct sluice_request request,
                                    const struct result *want) {
    static char paths[SYNTHETIC_VIDEO_VAE + 1][160];
    struct sluice_part parts[SYNTHETIC_VIDEO_VAE + 1];
    struct sluice_model_options from = {
        .struct_size = sizeof from, .parts = parts, .n_parts = SYNTHETIC_VIDEO_VAE + 1, .tokenizer = folder};
    for (int i = 0; i <= SYNTHETIC_VIDEO_VAE; i++) {
        const struct slot *slot = &recipe_synthetic.slot[i];
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, slot->folder);
        parts[i] = (struct sluice_part){slot->flag, paths[i]};
    }
    struct result r = run_parts(&from, request, "by flags");
    same(want, &r, "by flags");
    parts[SYNTHETIC_DENOISER].path = paths[SYNTHETIC_DENOISER_2];
    parts[SYNTHETIC_DENOISER_2].path = paths[SYNTHETIC_DENOISER];
    r = run_parts(&from, request, "denoisers exchanged");
    check(r.n_latents && strcmp(want->latent[0], r.latent[0]), "denoisers exchanged: the same latent");
    parts[SYNTHETIC_TEXT].path = paths[SYNTHETIC_TEXT_2];
    struct sluice_model *model = NULL;
    struct sluice_error e;
    check(sluice_model_open(&from, &model, &e) && e.exit_code == 3, "the wrong encoder of two: %s", e.what);
    sluice_model_close(model);
}

static void test_components_by_prefix(struct rig *rig, const char *folder, struct sluice_request request,
                                      const struct result *want) {
    enum { TENSORS_MOST = 512 };
    static struct named_tensor tensors[TENSORS_MOST];
    static char path[160];
    struct error e = {0};
    int n = 0;
    for (int slot = 0; slot <= SYNTHETIC_VIDEO_VAE; slot++) {
        const struct tensor_index *index = &rig->model->component[slot].index;
        const char *prefix = recipe_synthetic.slot[slot].prefixes[1];
        for (int i = 0; i < index->n_entries && n < TENSORS_MOST; i++, n++) {
            const struct index_entry *entry = &index->entries[i];
            size_t bytes = strlen(prefix) + strlen(entry->name) + 1;
            char *name = malloc(bytes), *data = malloc(entry->bytes);
            if (!name || !data) abort();
            snprintf(name, bytes, "%s%s", prefix, entry->name);
            source_read(&index->sources[entry->source], data, entry->bytes, entry->offset, &e);
            tensors[n] =
                (struct named_tensor){name, tensor_make(data, entry->dtype, entry->rank, entry->dim)};
        }
    }
    snprintf(path, sizeof path, "%s/all.safetensors", folder); /* a file beside the tokenizers */
    check(n < TENSORS_MOST && safetensors_write(rig->model->sys, path, tensors, n, &e) == OK, "%s: %s", path,
          e.what);
    while (n--) {
        free((char *)(uintptr_t)tensors[n].name);
        free(tensors[n].tensor.data);
    }
    struct sluice_model_options from = {.struct_size = sizeof from, .model = path};
    struct result r = run_parts(&from, request, "by prefixes");
    same(want, &r, "by prefixes");
}

static void test_hoisting_does_not_change_bits(struct rig *rig, struct sluice_request request,
                                               const struct result *want) {
    json_int_t least, all;
    rig->model->no_hoist = true;
    bounds(rig, request, &least, &all);
    request.max_ram_bytes = least;
    struct result r = run(rig, &request);
    same(want, &r, "plain");
    check(!strstr(json_string_value(json_object_get(
                      json_array_get(json_object_get(stage_of(r.plan, "hoist"), "blocks"), 0), "name")),
                  "modulation"),
          "without hoisting: modulations are hoisted");
    size_t plain = json_array_size(json_object_get(stage_of(r.plan, "hoist"), "blocks"));
    size_t hoisted = json_array_size(json_object_get(stage_of(want->plan, "hoist"), "blocks"));
    check(plain == 1 && hoisted == 6, "%zu blocks in the hoist stage without hoisting, %zu with", plain,
          hoisted);
    rig->model->no_hoist = false;
}

/* Exchanges width and height, which gives an equal number of different positions. Cached state of the first
 * request must not be reused. */
static void test_cached_positions_not_reused(struct rig *rig, const char *folder,
                                             struct sluice_request request) {
    int width = request.width;
    struct result before = run(rig, &request);
    check(json_is_true(json_object_get(before.plan, "keep")), "the plan keeps no weights between runs");
    request.width = request.height;
    request.height = width;
    struct result want = run_fresh(folder, 1, request), r = run(rig, &request);
    same(&want, &r, "turned");
}

static void test_decode_saved_latent(struct rig *rig, struct sluice_request request,
                                     const struct result *want) {
    char path[128];
    snprintf(path, sizeof path, "%s/latent.safetensors", temporary);
    request.save_latent = path;
    request.no_decode = true;
    struct result r = run(rig, &request);
    check(r.code == SLUICE_OK && !r.n_images, "saved: %s", r.error.what);
    struct sluice_request plain = {.struct_size = sizeof plain, .max_ram_bytes = plenty};
    r = run_or_decode(rig, &plain, path);
    same_from(want, 0, &r, "decoded");
    check(r.n_images == request.batch, "decoded: %d videos", r.n_images);
}

static void test_invalid_sizes_refused(struct rig *rig, struct sluice_request request) {
    struct sluice_request odd = request, large = request;
    odd.frames = 8;
    large.width = 2 * SYNTHETIC_SIDE + 2;
    struct result r = run(rig, &odd);
    check(r.code == SLUICE_USAGE && strstr(r.error.what, "frames"), "8 frames: %s", r.error.what);
    r = run(rig, &large);
    check(r.code == SLUICE_SHAPE, "more positions than the model has: %s", r.error.what);
}

static int evicted(struct rig *rig) {
    json_t *report = rig_report(rig);
    int n = (int)json_array_size(json_object_get(report, "replanned"));
    return n;
}

/* Free memory shrinks between evaluations, as if another program took memory. */
static void test_memory_pressure_does_not_change_bits(struct rig *rig, struct sluice_request request,
                                                      const struct result *want) {
    int n = 0;
    for (int i = 0; i < 4; i++) {
        rig->fault_sys.free_percent = i % 2 ? 30 : 100;
        rig->fault_sys.free_bytes = i < 2 ? 1 : 200 << 20;
        fault_sys_restart(&rig->fault_sys);
        struct result r = run(rig, &request);
        same(want, &r, "under pressure");
        check(rig->fault_sys.sys.use.peak_bytes[LINE_STORE] <= planned_store(r.plan),
              "under pressure: more memory than planned");
        n += evicted(rig);
    }
    rig->fault_sys.free_percent = 0;
    check(n >= 4, "residents were evicted only %d times", n);
}

/* If an operator runs out of memory, its evaluation is computed again (in the decoder from the previous
 * chunk's cache). A chunk's last operators convert frames to bytes after the visits; if one of these
 * operators fails, the run fails. */
static void test_operator_without_memory_recomputed(struct rig *rig, struct sluice_request request,
                                                    const struct result *want) {
    enum { TRIES = 24 };
    int again = 0;
    operators_begin(rig->session->device);
    run(rig, &request);
    long n = operators_counted();
    for (int i = 0; i < TRIES; i++) {
        /* half of the failing calls are among the last tenth of all calls, which decode frames */
        operators_fail_at(i % 2 ? 1 + n * i / TRIES : n - 2 - n / 10 * i / TRIES);
        struct result r = run(rig, &request);
        if (r.code == SLUICE_OK) same(want, &r, "an operator runs out of memory");
        check(r.code == SLUICE_OK || r.code == SLUICE_MEMORY, "an operator runs out of memory: %s",
              r.error.what);
        again += r.code == SLUICE_OK;
    }
    check(again >= TRIES / 2, "only %d of %d runs recovered", again, TRIES);
    printf("operators out of memory: %d of %d runs recovered\n", again, TRIES);
    operators_end(rig->session->device);
}

static void test_plan_and_report_stages(struct rig *rig, const struct sluice_request *request,
                                        const struct result *r) {
    static const char *const stages[] = {"text",    "text_2",  "text_3",    "vision", "hoist",
                                         "denoise", "hoist_2", "denoise_2", "decode"};
    size_t n = sizeof stages / sizeof *stages;
    json_t *planned = json_object_get(r->plan, "stages");
    check(json_array_size(planned) == n, "%zu stages", json_array_size(planned));
    for (size_t i = 0; i < n; i++)
        check(!strcmp(json_string_value(json_object_get(json_array_get(planned, i), "name")), stages[i]),
              "stage %zu is not %s", i, stages[i]);
    /* In two steps each, the first denoiser has 2 + 2 evaluations, the second has 2 + 1: the last step has
     * one evaluation. */
    check(number(stage_of(r->plan, "denoise"), "evaluations") == 4 &&
              number(stage_of(r->plan, "denoise_2"), "evaluations") == 3 &&
              number(stage_of(r->plan, "decode"), "evaluations") == 3 * request->batch &&
              number(stage_of(r->plan, "vision"), "evaluations") == request->n_references,
          "wrong number of evaluations");
    json_t *report = rig_report(rig);
    check(json_array_size(json_object_get(report, "steps")) == (size_t)request->steps &&
              json_array_size(json_object_get(report, "stages")) == n,
          "the report's steps or stages differ from the plan");
}

static void test_inspect_lists_components(const char *folder) {
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_error e;
    char *text = NULL;
    check(!sluice_inspect(&from, false, &text, &e), "inspect: %s", e.what);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    json_t *components = json_object_get(json, "components");
    const char *recipe = json_string_value(json_object_get(json, "recipe"));
    check(recipe && !strcmp(recipe, "synthetic"), "inspect: %s", recipe);
    check(json_array_size(components) == SYNTHETIC_VIDEO_VAE + 1, "inspect: %zu components",
          json_array_size(components));
    for (int i = 0; i <= SYNTHETIC_VIDEO_VAE; i++) {
        const json_t *c = json_array_get(components, (size_t)i);
        check(
            !strcmp(json_string_value(json_object_get(c, "family")), recipe_synthetic.slot[i].family->name) &&
                !strcmp(json_string_value(json_object_get(c, "name")), recipe_synthetic.slot[i].folder),
            "inspect: part %d", i);
    }
    check(!json_array_size(json_object_get(json, "missing")) &&
              !json_array_size(json_object_get(json, "unknown")),
          "inspect: %s", text);
    json_decref(json);
    sluice_free(text);
}

/* The VAE normalises latents by two tensors, mean and variance, and batch_norm_eps. Configures the VAE from a
 * changed tensor index. */
static void test_latent_norm_of_tensors(const struct rig *rig) {
    static const struct {
        const char *config, *renamed; /* renamed: tensor that becomes missing; "": none */
        int32_t channels;             /* number of values of the mean */
        enum dtype dtype;             /* type of the mean */
        bool swapped;                 /* the variance is read from the mean, which has negative values */
        enum status code;
    } cases[] = {
        {"{}", "", SYNTHETIC_CHANNELS, DTYPE_F32, false, OK},
        {"{\"batch_norm_eps\": 0.5}", "", SYNTHETIC_CHANNELS, DTYPE_F32, false, OK},
        {"{\"batch_norm_eps\": -1}", "", SYNTHETIC_CHANNELS, DTYPE_F32, false, META},
        {"{}", "video_vae.bn.running_mean", SYNTHETIC_CHANNELS, DTYPE_F32, false, MISSING},
        {"{}", "video_vae.bn.running_var", SYNTHETIC_CHANNELS, DTYPE_F32, false, MISSING},
        {"{}", "", SYNTHETIC_CHANNELS - 1, DTYPE_F32, false, SHAPE},
        {"{}", "", SYNTHETIC_CHANNELS, DTYPE_Q8_0, false, UNSUPPORTED},
        {"{}", "", SYNTHETIC_CHANNELS, DTYPE_F32, true, NONFINITE},
    };
    const struct component *vae = &rig->model->component[SYNTHETIC_VIDEO_VAE];
    struct index_entry entries[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct component c = *vae;
        struct config config = {0};
        struct error e = {0};
        c.index.entries = memcpy(entries, vae->index.entries, (size_t)vae->index.n_entries * sizeof *entries);
        struct index_entry *mean = index_find(&c.index, "video_vae.bn.running_mean");
        struct index_entry *variance = index_find(&c.index, "video_vae.bn.running_var");
        mean->dim[0] = cases[i].channels;
        mean->dtype = cases[i].dtype;
        if (cases[i].swapped) variance->offset = mean->offset;
        for (int k = 0; k < c.index.n_entries; k++)
            if (!strcmp(entries[k].name, cases[i].renamed)) entries[k].name = "zzz";
        config_parse(c.sys, "config.json", cases[i].config, NULL, &config, &e);
        component_configure(&c, &config, &e);
        config_destroy(&config);
        check(e.code == cases[i].code, "latent norm, case %zu: %s", i, e.what);
        double eps = i ? 0.5 : SYNTHETIC_BATCH_NORM_EPS;
        for (int k = 0; k < SYNTHETIC_CHANNELS && e.code == OK; k++) {
            double before = 1 / (double)vae->latent_format.scale[k],
                   now = 1 / (double)c.latent_format.scale[k];
            double more = now * now - before * before - (eps - SYNTHETIC_BATCH_NORM_EPS);
            check(fabs(more) < 1e-6, "latent norm, case %zu: scale %g", i, (double)c.latent_format.scale[k]);
        }
    }
}

/* Returns the height of the vision encoder's input image; on failure 0 and the error. */
static int vision_side_read(const char *folder, const char *file, const char *text, struct error *e) {
    char path[192];
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_model *model = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    if (!check(f && fputs(text, f) >= 0 && !fclose(f), "cannot write %s", path)) return 0;
    *e = (struct error){0};
    int side = 0;
    if (model_open(NULL, &from, &model, e) == OK)
        side = family_synthetic_vision.lanes.vision_grid(&model->component[SYNTHETIC_VISION], 9, 7).height;
    model_close(model);
    remove(path);
    return side;
}

static void test_preprocessor_config(const char *folder) {
    static const char nested[] = "{\"image_processor\": {\"size\": {\"shortest_edge\": 6}, \"resample\": 3}}";
    static const char *const invalid[] = {"{\"do_resize\": false}", "{\"resample\": 1}", "{\"side\": 1}", "{",
                                          "{\"rescale_factor\": 1}"};
    static const enum status codes[] = {UNSUPPORTED, META, META, JSON, META};
    struct error e;
    char path[192];
    snprintf(path, sizeof path, "%s/processor", folder);
    check(!mkdir(path, 0700), "cannot create %s", path);
    check(vision_side_read(folder, "vae/preprocessor_config.json", "{\"side\": 8}", &e) == 4,
          "a configuration in the VAE's folder is used");
    check(vision_side_read(folder, "image_encoder/preprocessor_config.json", "{\"side\": 8}", &e) == 8,
          "beside");
    check(vision_side_read(folder, "processor/preprocessor_config.json",
                           "{\"side\": 8, \"size\": {\"shortest_edge\": 6}}", &e) == 8,
          "with both keys, side must win");
    check(vision_side_read(folder, "processor/processor_config.json", nested, &e) == 6, "nested: %s", e.what);
    check(vision_side_read(folder, "processor/processor_config.json", "{\"side\": 8}", &e) == 4,
          "a processor_config.json without image_processor is used");
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        check(!vision_side_read(folder, "processor/preprocessor_config.json", invalid[i], &e) &&
                  e.code == codes[i] && strstr(e.where, "processor_config.json"),
              "%s: %s (%s)", invalid[i], e.what, e.where);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    gates_begin();
    struct rig rig;
    const char *folder = synthetic_checkpoint();
    const struct sluice_request *request = &gate_synthetic.request;
    if (!rig_open(&rig, folder, 1, 3)) return finish();
    test_results_equal_plain_loops(&rig, *request);
    struct result want = run(&rig, request);
    check(want.n_images == request->batch, "%s %s", want.error.what, want.error.found);
    test_plan_and_report_stages(&rig, request, &want);
    test_inspect_lists_components(folder);
    test_guidance_of_each_denoiser(&rig, *request, &want);
    test_guidance_limits(&rig, *request);
    test_hoisting_does_not_change_bits(&rig, *request, &want);
    test_cached_positions_not_reused(&rig, folder, *request);
    test_decode_saved_latent(&rig, *request, &want);
    test_invalid_sizes_refused(&rig, *request);
    test_memory_pressure_does_not_change_bits(&rig, *request, &want);
    test_operator_without_memory_recomputed(&rig, *request, &want);
    test_components_by_flag(folder, *request, &want);
    test_components_by_prefix(&rig, folder, *request, &want);
    test_preprocessor_config(folder);
    test_latent_norm_of_tensors(&rig);
    rig_close(&rig);
    return finish();
}
