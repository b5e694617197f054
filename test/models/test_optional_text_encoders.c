/* Stable Diffusion 3 without some of its text encoders: zero embeddings replace those of an absent encoder,
 * embeddings of the other encoders do not change, and log and plan name the absent encoder. Also: --clip_l
 * none and the like, and which scaling factor a lone autoencoder decodes with. Which encoders, tokenizers and
 * projections are found: layouts/sd3.txt. Images without an encoder against diffusers: test_golden.c. */
#include "engine/open/component_files.h"
#include "loaders/loaders.h"
#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"

#include <math.h>

#define MODEL "test/golden/sd3_medium/model"

enum { CLIP_ROWS = 77, T5_ROWS = 256, ENCODERS = 3 };

static const char *const folders[ENCODERS] = {"text_encoder", "text_encoder_2", "text_encoder_3"};
static const char *const words[ENCODERS] = {"no CLIP-L text encoder (--clip_l)", "no OpenCLIP-G text encoder",
                                            "no T5 text encoder (--t5xxl): 256 zero embeddings"};

struct prompt_inputs {
    float *text, *pooled;
    int rows, columns, pooled_columns;
    char latent[HEX];
};

static float *read_dump(const char *folder, const char *name, int *rows, int *columns) {
    char path[TENSOR_SET_PATH];
    struct sys sys;
    struct error e = {0};
    struct tensor_index index;
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    if (!check(safetensors_open(&sys, path, &index, &e) == OK, "%s: %s", path, e.what)) exit(1);
    const struct index_entry *entry = index_find(&index, name);
    float *values = malloc(entry->bytes);
    *rows = entry->dim[0];
    *columns = entry->dim[1];
    check(values && source_read(&index.sources[0], values, entry->bytes, entry->offset, &e) == OK, "%s",
          path);
    index_destroy(&index);
    return values;
}

static struct sluice_request small_request(void) {
    return request_fox(64, 48, 2, 1, 2);
}

static struct prompt_inputs compute_prompt_inputs(options from, const char *what) {
    static int n;
    struct prompt_inputs g = {0};
    struct rig rig;
    char folder[TENSOR_SET_PATH];
    int one;
    if (!rig_open_paths(&rig, from, what)) exit(finish());
    snprintf(folder, sizeof folder, "%s/dump%d", temporary, n++);
    check(!mkdir(folder, 0700), "%s", folder);
    struct sluice_request request = small_request();
    request.dump = folder;
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_OK, "%s: %s (%s)", what, r.error.what, r.error.where);
    memcpy(g.latent, r.latent[0], HEX);
    g.text = read_dump(folder, "cond", &g.rows, &g.columns);
    g.pooled = read_dump(folder, "pooled", &one, &g.pooled_columns);
    rig_close(&rig);
    return g;
}

static void prompt_inputs_free(struct prompt_inputs *g) {
    free(g->text);
    free(g->pooled);
}

/* Counts the values in a rectangle of a matrix that differ from the matrix `as`, or from 0 if `as` is NULL.
 */
static int count_differences(const float *values, const float *as, int columns, int first_row, int rows,
                             int first_column, int n_columns) {
    int n = 0;
    for (int i = first_row; i < first_row + rows; i++)
        for (int k = first_column; k < first_column + n_columns; k++)
            n += values[i * columns + k] != (as ? as[i * columns + k] : 0);
    return n;
}

/* In the embeddings, the columns of CLIP-L and of OpenCLIP-G and the rows of T5 are zero if the encoder is
 * absent, and unchanged if it is present. */
static void test_absent_encoder_gives_zero_embeddings(void) {
    const struct prompt_inputs all = compute_prompt_inputs((options){.model = MODEL}, "all");
    struct tensor_set *part[2] = {tensor_set_from_component(MODEL, folders[0]),
                                  tensor_set_from_component(MODEL, folders[1])};
    int width[ENCODERS] = {tensor_set_find(part[0], "text_model.final_layer_norm.bias")->dim[0],
                           tensor_set_find(part[1], "text_model.final_layer_norm.bias")->dim[0], all.columns};
    int pooled[2] = {tensor_set_find(part[0], "text_projection.weight")->dim[0],
                     tensor_set_find(part[1], "text_projection.weight")->dim[0]};
    check(all.rows == CLIP_ROWS + T5_ROWS && all.pooled_columns == pooled[0] + pooled[1] &&
              width[0] + width[1] < all.columns && width[0] != width[1],
          "all encoders: %d x %d text embeddings, %d pooled", all.rows, all.columns, all.pooled_columns);
    for (int absent = 0; absent < 1 << ENCODERS; absent++) {
        const char *none[ENCODERS];
        char what[32];
        for (int i = 0; i < ENCODERS; i++) none[i] = absent >> i & 1 ? "none" : NULL;
        if (absent == (1 << ENCODERS) - 1) break;
        snprintf(what, sizeof what, "absent encoders, bits %d", absent);
        options from = {.model = MODEL, .clip_l = none[0], .clip_g = none[1], .t5xxl = none[2]};
        struct prompt_inputs g = compute_prompt_inputs(from, what);
        for (int i = 0; i < ENCODERS; i++)
            check(!strstr(captured_log, words[i]) == !none[i], "%s: %s", what, captured_log);
        check(g.rows == all.rows && g.columns == all.columns && g.pooled_columns == all.pooled_columns, "%s",
              what);
        for (int i = 0, column = 0, at = 0; i < ENCODERS; column += width[i], at += pooled[i % 2], i++) {
            bool clip = i < 2;
            int row = clip ? 0 : CLIP_ROWS, rows = clip ? CLIP_ROWS : T5_ROWS;
            int n = count_differences(g.text, none[i] ? NULL : all.text, g.columns, row, rows,
                                      clip ? column : 0, width[i]);
            check(!n, "%s: %d values of %s", what, n, folders[i]);
            if (clip)
                check(!count_differences(g.pooled, none[i] ? NULL : all.pooled, 0, 0, 1, at, pooled[i]),
                      "%s: pooled embedding of %s", what, folders[i]);
        }
        check(!count_differences(g.text, NULL, g.columns, 0, CLIP_ROWS, width[0] + width[1],
                                 g.columns - width[0] - width[1]),
              "%s: columns after CLIP's are not zero", what);
        check(!absent == !strcmp(g.latent, all.latent),
              "%s: the latent must differ only if an encoder is absent", what);
        prompt_inputs_free(&g);
    }
    prompt_inputs_free((struct prompt_inputs *)&all);
    for (int i = 0; i < 2; i++) tensor_set_free(part[i]);
}

/* Every component flag set to "none": accepted where the component is optional, else refused before files are
 * opened. */
static void test_none_refused_for_required_components(void) {
    static const char *const models[] = {MODEL, "test/golden/flux_a/model", "test/golden/zimage_a/model"};
    const char *flag;
    for (int i = 0; (flag = sluice_part_flag(i, NULL, 0)); i++)
        for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
            const struct sluice_part none = {flag, "none"};
            struct sluice_model_options o = {
                .struct_size = sizeof o, .model = models[k], .parts = &none, .n_parts = 1};
            sluice_model *model = NULL;
            struct sluice_error e = {0};
            char *json = NULL;
            bool may = !strcmp(flag, "--taesd") ||
                       (!k && (!strcmp(flag, "--clip_l") || !strcmp(flag, "--clip_g") ||
                               !strcmp(flag, "--t5xxl"))) ||
                       (k == 1 && (!strcmp(flag, "--clip_vision") || !strcmp(flag, "--redux")));
            int code = may ? SLUICE_OK : SLUICE_USAGE;
            check(sluice_model_open(&o, &model, &e) == code &&
                      (may || strstr(e.where, flag) || strstr(e.found, flag) || strstr(e.what, flag)),
                  "%s of %s: %s", flag, models[k], e.what);
            sluice_model_close(model);
            check(sluice_tokenize(&o, "fox", 3, &json, &e) == code, "tokenize, %s of %s: %s", flag, models[k],
                  e.what);
            sluice_free(json);
            check(sluice_inspect(&o, false, &json, &e) == code, "inspect, %s of %s: %s", flag, models[k],
                  e.what);
            sluice_free(json);
            o.decodes_only = true;
            code = part_flag_optional(flag) ? SLUICE_OK : SLUICE_USAGE;
            check(sluice_model_open(&o, &model, &e) == code, "decode, %s of %s: %s", flag, models[k], e.what);
            sluice_model_close(model);
        }
}

static void test_plan_lists_absent_encoders(void) {
    struct rig rig;
    struct sluice_request request = small_request();
    options from = {.model = MODEL, .clip_g = "none", .t5xxl = "none"};
    if (!rig_open_paths(&rig, from, "plan")) return;
    struct result r = run(&rig, &request);
    json_t *absent = json_object_get(json_object_get(r.plan, "request"), "absent");
    check(json_array_size(absent) == 2 &&
              !strcmp(json_string_value(json_array_get(absent, 0)), "text_encoder_2"),
          "the plan must list the absent encoders");
    rig_close(&rig);
}

/* VAE configuration that gives only the number of norm groups, no scaling factor. */
#define GROUPS "{\"_class_name\": \"AutoencoderKL\", \"norm_num_groups\": 2}"

/* Flux's and Stable Diffusion 3's autoencoders have the same shapes. The denoiser in the same file, the
 * folder's pipeline or the latent identifies which scaling factor applies. */
static void test_lone_vae_scaling_factor(void) {
    struct rig rig;
    struct sluice_request request = small_request();
    char latent[TENSOR_SET_PATH];
    snprintf(latent, sizeof latent, "%s", temporary_path("latent.safetensors"));
    request.save_latent = latent;
    if (!rig_open_paths(&rig, (options){.model = MODEL}, "save")) return;
    struct result had = run(&rig, &request);
    rig_close(&rig);
    struct tensor_set *transformer = tensor_set_from_component(MODEL, "transformer"),
                      *vae = tensor_set_from_component(MODEL, "vae"),
                      *unnamed = tensor_set_copy(transformer, "model.diffusion_model.");
    tensor_set_append(unnamed, vae, "first_stage_model.");
    write_tensor_set(unnamed, temporary_path("unnamed.safetensors"), "{\"vae\": " GROUPS "}");
    write_tensor_set(vae, temporary_path("lone.safetensors"), GROUPS);
    tensor_set_free(unnamed);
    tensor_set_free(transformer);
    tensor_set_free(vae);
    shell("sed -i '/scaling_factor/d;/shift_factor/d' %s/vae/config.json",
          copy_model_folder(MODEL, "folder"));
    static const struct {
        const char *model, *vae;
        bool named;   /* the model is opened for this latent's file */
        bool assumed; /* nothing identifies the scaling factor: Flux's applies, and the latent is refused */
    } rows[] = {{MODEL, NULL, false, false},
                {"unnamed.safetensors", NULL, false, false},
                {NULL, "unnamed.safetensors", false, false},
                {NULL, "lone.safetensors", true, false},
                {NULL, "lone.safetensors", false, true},
                {"folder", NULL, false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        options from = {.decodes_only = true, .vae = rows[i].vae ? temporary_path(rows[i].vae) : NULL};
        from.model = rows[i].model && *rows[i].model != 't' ? temporary_path(rows[i].model) : rows[i].model;
        from.latent = rows[i].named ? latent : NULL;
        struct sluice_request plain = small_request();
        if (!rig_open_paths(&rig, from, "decode")) continue;
        struct result got = run_or_decode(&rig, &plain, latent);
        check(rows[i].assumed
                  ? got.code == SLUICE_META && strstr(got.error.what, "scales latents differently")
                  : got.code == SLUICE_OK && !strcmp(got.image[0], had.image[0]),
              "row %zu: %s", i, got.error.what);
        check(!strstr(captured_log, "do not identify the autoencoder") == !rows[i].assumed, "row %zu: %s", i,
              captured_log);
        rig_close(&rig);
    }
}

int main(void) {
    temporary_make();
    test_absent_encoder_gives_zero_embeddings();
    test_none_refused_for_required_components();
    test_plan_lists_absent_encoders();
    test_lone_vae_scaling_factor();
    return finish();
}
