/* Stable Diffusion 3 without some of its text encoders: zero embeddings replace those of an absent encoder,
 * embeddings of the other encoders do not change, and the log names the absent encoder. Also: --clip_l none
 * and the like, which tokenizers and projections are needed, and which scaling factor a lone autoencoder
 * decodes with. Images without an encoder against diffusers: test_golden.c. */
#include "engine/open/component_files.h"
#include "loaders/loaders.h"
#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"

#include <math.h>

#define MODEL "test/golden/sd3_medium/model"

enum { CLIP_ROWS = 77, T5_ROWS = 256, ENCODERS = 3 };

static const char *const folders[ENCODERS] = {"text_encoder", "text_encoder_2", "text_encoder_3"};
static const char *const files[ENCODERS] = {"clip_l.safetensors", "clip_g.safetensors", "t5xxl.safetensors"};
static const char *const words[ENCODERS] = {"no CLIP-L text encoder (--clip_l)", "no OpenCLIP-G text encoder",
                                            "no T5 text encoder (--t5xxl): 256 zero embeddings"};
static struct tensor_set *part[ENCODERS], *transformer, *vae;

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
}

/* Writes the checkpoints that several tests use: without encoders, with both CLIPs, with all three, under
 * Stability AI's prefixes. */
static void write_files(void) {
    static const char *const prefixes[ENCODERS] = {"text_encoders.clip_l.transformer.",
                                                   "text_encoders.clip_g.transformer.",
                                                   "text_encoders.t5xxl.transformer."};
    struct tensor_set *all = tensor_set_copy(transformer, "model.diffusion_model.");
    tensor_set_append(all, vae, "first_stage_model.");
    json_t *configs = json_object();
    json_object_set_new(configs, "transformer", json_loads(transformer->config, 0, NULL));
    json_object_set_new(configs, "vae", json_loads(vae->config, 0, NULL));
    for (int i = 0; i <= ENCODERS; i++) {
        char name[32];
        char *text = json_dumps(configs, 0);
        snprintf(name, sizeof name, "with%d.safetensors", i);
        write_tensor_set(all, temporary_path(name), text);
        free(text);
        if (i == ENCODERS) break;
        tensor_set_append(all, part[i], prefixes[i]);
        json_object_set_new(configs, folders[i], json_loads(part[i]->config, 0, NULL));
        write_tensor_set(part[i], temporary_path(files[i]), part[i]->config);
    }
    json_decref(configs);
    tensor_set_free(all);
}

static struct result draw_from(options from, const char *what) {
    struct rig rig;
    struct sluice_request request = small_request();
    if (!rig_open_paths(&rig, from, what)) exit(finish());
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_OK, "%s: %s", what, r.error.what);
    rig_close(&rig);
    return r;
}

static options flags(const char *model) {
    return (options){.model = model,
                     .clip_l = temporary_path(files[0]),
                     .clip_g = temporary_path(files[1]),
                     .t5xxl = temporary_path(files[2]),
                     .tokenizer = MODEL};
}

static void set_expected(options from, const char *what) {
    expected_result = draw_from(from, what);
}

static void test_encoders_in_file_or_by_flag(void) {
    const char *bare = temporary_path("with0.safetensors"), *clips = temporary_path("with2.safetensors");
    set_expected(flags(bare), "encoders by flags");
    expect_same_result((options){.model = temporary_path("with3.safetensors"), .tokenizer = MODEL},
                       "all in one file");
    check(!strstr(captured_log, "zeros"), "zero embeddings are reported: %s", captured_log);
    expect_same_result((options){.model = clips, .t5xxl = temporary_path(files[2]), .tokenizer = MODEL},
                       "--t5xxl");
    write_tensor_set(transformer, temporary_path("transformer.safetensors"), transformer->config);
    write_tensor_set(vae, temporary_path("vae.safetensors"), vae->config);
    options over = {.model = temporary_path("with3.safetensors"),
                    .diffusion_model = temporary_path("transformer.safetensors"),
                    .vae = temporary_path("vae.safetensors"),
                    .tokenizer = MODEL};
    expect_same_result(over, "encoders in the file, transformer and autoencoder by flags");
    set_expected((options){.model = clips, .tokenizer = MODEL}, "both CLIPs alone");
    check(strstr(captured_log, words[2]) && !strstr(captured_log, words[0]), "the log must name T5 only: %s",
          captured_log);
    expect_same_result(
        (options){.model = temporary_path("with3.safetensors"), .t5xxl = "none", .tokenizer = MODEL},
        "--t5xxl none");
    expect_refused((options){.model = bare, .tokenizer = MODEL}, MISSING, "no encoder",
                   WORDS("'text_encoder_2' and 'text_encoder_3'", "--clip_l, --clip_g and --t5xxl",
                         "one text encoder is enough"));
}

static const char *copy_folder(const char *edit) {
    char command[4 * TENSOR_SET_PATH];
    const char *folder = temporary_path("folder");
    snprintf(command, sizeof command, "rm -rf '%s' && cp -rL %s '%s' && cd '%s' && %s", folder, MODEL, folder,
             folder, edit);
    check(!system(command), "%s", command);
    return folder;
}

/* File names distinguish CLIP-L from OpenCLIP-G if their widths are equal, also if one of the two is disabled
 * or given by a flag. */
static void test_clip_found_by_file_name(void) {
    char command[6 * TENSOR_SET_PATH], folder[TENSOR_SET_PATH];
    snprintf(folder, sizeof folder, "%s/apart", temporary);
    snprintf(command, sizeof command,
             "cd '%s' && mkdir apart && cp %s %s %s transformer.safetensors "
             "vae.safetensors apart",
             temporary, files[0], files[1], files[2]);
    check(!system(command), "%s", command);
    for (int i = 0; i < ENCODERS; i++) {
        options one = flags(temporary_path("with0.safetensors")),
                parts = {.model = folder, .tokenizer = MODEL};
        const char **absent[] = {&one.clip_l, &one.clip_g, &one.t5xxl};
        const char **left_out[] = {&parts.clip_l, &parts.clip_g, &parts.t5xxl};
        *absent[i] = NULL;
        *left_out[i] = "none";
        set_expected(one, files[i]);
        expect_same_result(parts, "an encoder of the folder disabled");
        check(strstr(captured_log, words[i]), "%s", captured_log);
    }
    set_expected(flags(temporary_path("with0.safetensors")), "all encoders");
    for (int i = 0; i < ENCODERS; i++) {
        options parts = {.model = folder, .tokenizer = MODEL};
        const char **chosen[] = {&parts.clip_l, &parts.clip_g, &parts.t5xxl};
        *chosen[i] = temporary_path(files[i]);
        expect_same_result(parts, "an encoder of the same file name from another folder");
    }
}

/* Writes one CLIP with its class in the configuration, with or without a text projection. */
static const char *write_clip(int i, const char *class, bool projection) {
    static const char class_name[] = "CLIPTextModelWithProjection";
    const char *at = strstr(part[i]->config, class_name), *path = temporary_path("clip.safetensors");
    char config[4096];
    if (!check(at, "%s", part[i]->config)) exit(finish());
    snprintf(config, sizeof config, "%.*s%s%s", (int)(at - part[i]->config), part[i]->config, class,
             at + strlen(class_name));
    struct tensor_set *p = tensor_set_copy(part[i], "");
    if (!projection) tensor_set_drop(p, "text_projection");
    write_tensor_set(p, path, config);
    tensor_set_free(p);
    return path;
}

/* CLIP-L's projection applies in a pipeline folder and where the configuration's class has one; Flux's and
 * OpenAI's CLIP-L work without it. OpenCLIP-G always needs it. */
static void test_text_projection_used_or_missing(void) {
    set_expected((options){.model = MODEL}, "pipeline folder");
    options from = flags(temporary_path("with0.safetensors"));
    expect_same_result(from, "files with the class in their configuration");
    from.clip_l = MODEL "/text_encoder";
    expect_same_result(from, "CLIP-L's folder by flag");
    char folder[HEX];
    memcpy(folder, expected_result.latent[0], HEX);
    expect_same_result((options){.model = copy_folder("sed -i s/WithProjection// text_encoder/config.json")},
                       "class from model_index.json");
    from.clip_l = write_clip(0, "CLIPTextModel", false);
    set_expected(from, "L of Flux's");
    check(strcmp(folder, expected_result.latent[0]) != 0, "the projection changes nothing");
    from.clip_l = write_clip(0, "CLIPModel", true);
    expect_same_result(from, "L of OpenAI's");
    from.clip_l = write_clip(0, "CLIPTextModelWithProjection", false);
    expect_refused(from, MISSING, "CLIP-L lacks the projection of its class",
                   WORDS("text_projection", "clip.safetensors"));
    from = flags(temporary_path("with0.safetensors"));
    from.clip_g = write_clip(1, "CLIPTextModel", false);
    expect_refused(from, MISSING, "OpenCLIP-G without a projection",
                   WORDS("text_projection", "clip.safetensors"));
}

static void rewiden(struct tensor_set *p, int32_t width) {
    struct item *item = tensor_set_find(p, "text_model.embeddings.token_embedding.weight");
    item->bytes = item->bytes / (size_t)item->dim[1] * (size_t)width;
    item->dim[1] = width;
    free(item->data);
    item->data = calloc(1, item->bytes);
    write_tensor_set(p, temporary_path("clip.safetensors"), NULL);
    tensor_set_free(p);
}

/* An encoder of a published width belongs to that width's slot. An encoder of any other width must fit the
 * transformer. */
static void test_encoder_of_wrong_width_refused(void) {
    options from = flags(temporary_path("with0.safetensors"));
    rewiden(tensor_set_copy(part[0], ""), 1280);
    from.clip_l = temporary_path("clip.safetensors");
    expect_refused(from, UNSUPPORTED, "OpenCLIP-G for --clip_l",
                   WORDS("holds another component", "CLIP-L text encoder", "for --clip_l"));
    from = flags(temporary_path("with0.safetensors"));
    rewiden(tensor_set_copy(part[1], ""), 768);
    from.clip_g = temporary_path("clip.safetensors");
    expect_refused(from, UNSUPPORTED, "CLIP-L for --clip_g",
                   WORDS("holds another component", "OpenCLIP-G text encoder", "for --clip_g"));
    from = (options){.model = MODEL, .t5xxl = "test/golden/flux_a/model/text_encoder_2"};
    expect_refused(from, SHAPE, "another T5",
                   WORDS("text features", "28 in the T5 text encoder", "38 as in the transformer"));
    from.t5xxl = "test/golden/wan21/model/text_encoder";
    expect_refused(from, UNSUPPORTED, "umT5 for --t5xxl",
                   WORDS("umT5 text encoder (umt5)", "T5 text encoder for --t5xxl"));
    from = (options){.model = MODEL, .clip_l = "test/golden/flux_a/model/text_encoder"};
    expect_refused(from, SHAPE, "another CLIP",
                   WORDS("text features", "CLIP text encoder", "as in the transformer"));
}

#define NULLED(part)                                                                                         \
    "sed -i '/\"" part "\"/,/]/{s/\"transformers\"/null/;s/\"[A-Z].*\"/null/}' model_index.json"

/* A component named in model_index.json must exist or be disabled; [null, null] means absent, even if its
 * folder exists. */
static void test_missing_encoder_folder_refused_unless_disabled(void) {
    expect_refused((options){.model = copy_folder("rm -r text_encoder_3")}, MISSING,
                   "a missing encoder folder",
                   WORDS("'text_encoder_3'", "--t5xxl with the T5 text encoder, or \"none\" to go without"));
    set_expected((options){.model = MODEL, .t5xxl = "none"}, "--t5xxl none");
    expect_same_result((options){.model = temporary_path("folder"), .t5xxl = "none"},
                       "--t5xxl none, folder missing");
    expect_same_result((options){.model = copy_folder(NULLED("text_encoder_3"))}, "[null, null]");
    expect_same_result((options){.model = copy_folder(NULLED("text_encoder_3") " && rm -r tokenizer_3")},
                       "[null, null], and no tokenizer");
    expect_refused((options){.model = copy_folder(NULLED("text_encoder") " && " NULLED(
                                 "text_encoder_2") " && " NULLED("text_encoder_3"))},
                   MISSING, "no encoder at all", WORDS("'text_encoder'", "one text encoder is enough"));
    expect_refused_as((options){.model = MODEL, .clip_l = "none", .clip_g = "none", .t5xxl = "none"}, USAGE,
                      2, "all encoders disabled", WORDS("text encoders", "--t5xxl none"));
    expect_refused((options){.model = copy_folder("rm text_encoder_3/*.safetensors")}, MISSING,
                   "T5 without weights", WORDS("text_encoder_3"));
}

static void test_wrong_component_in_encoder_folder_refused(void) {
    static const struct {
        const char *edit, *where, *what;
    } rows[] = {
        {"rm text_encoder/model* && cp vae/*.safetensors text_encoder", "text_encoder", "--clip_l"},
        {"rm text_encoder_2/model* && cp text_encoder_3/model* text_encoder_2", "text_encoder_2", "--clip_g"},
        {"rm text_encoder_3/model* && cp text_encoder/*.safetensors text_encoder_3", "text_encoder_3",
         "--t5xxl"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_refused((options){.model = copy_folder(rows[i].edit)}, UNSUPPORTED, rows[i].edit,
                       WORDS("holds another component", rows[i].where, rows[i].what));
    expect_refused((options){.model = copy_folder("rm model_index.json && rm text_encoder_3/model* && cp "
                                                  "text_encoder/*.safetensors text_encoder_3")},
                   UNSUPPORTED, "without model_index.json", WORDS("holds another component", "--t5xxl"));
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
            bool may =
                !strcmp(flag, "--taesd") ||
                (!k && (!strcmp(flag, "--clip_l") || !strcmp(flag, "--clip_g") || !strcmp(flag, "--t5xxl")));
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

/* Two T5 files in one folder, as Stability AI ships them, are ambiguous unless T5 is disabled. */
static void test_two_t5_files_are_ambiguous(void) {
    char command[4 * TENSOR_SET_PATH];
    const char *folder = temporary_path("parts");
    snprintf(command, sizeof command, "mkdir -p '%s/text_encoders' && cp '%s' '%s'", folder,
             temporary_path("with2.safetensors"), folder);
    check(!system(command), "%s", command);
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "parts/text_encoders/t5xxl_%d.safetensors", i);
        copy_file(temporary_path(files[2]), temporary_path(command));
    }
    expect_refused((options){.model = folder, .tokenizer = MODEL}, UNSUPPORTED, "two T5",
                   WORDS("two files hold the T5 text encoder", "--t5xxl"));
    set_expected((options){.model = temporary_path("with2.safetensors"), .tokenizer = MODEL},
                 "both CLIPs alone");
    expect_same_result((options){.model = folder, .t5xxl = "none", .tokenizer = MODEL},
                       "two T5 files, --t5xxl none");
}

static void test_missing_tokenizer_refused(void) {
    options clips = {.model = temporary_path("with2.safetensors")},
            all = flags(temporary_path("with0.safetensors"));
    expect_refused(clips, MISSING, "no tokenizer", WORDS("no tokenizer for the CLIP-L", "--tokenizer"));
    set_expected((options){.model = temporary_path("with2.safetensors"), .tokenizer = MODEL},
                 "both CLIPs alone");
    clips.tokenizer = MODEL "/tokenizer";
    expect_same_result(clips, "one tokenizer for both CLIPs");
    clips.t5xxl = temporary_path(files[2]);
    expect_refused(clips, META, "T5 without a tokenizer",
                   WORDS("CLIP BPE in", "unigram", "tokenizer/ and tokenizer_3/"));
    set_expected(all, "three tokenizers");
    all.tokenizer = copy_folder("rm -r tokenizer_2");
    expect_same_result(all, "CLIP-L's tokenizer for OpenCLIP-G");
    all.tokenizer = copy_folder("rm -r tokenizer_3");
    expect_refused(all, META, "no tokenizer_3", WORDS("unigram", "tokenizer/ and tokenizer_3/"));
}

static void test_inspect_and_plan_list_absent_encoders(void) {
    json_t *root = inspect((options){.model = temporary_path("with2.safetensors"), .tokenizer = MODEL});
    const char *note = json_string_value(json_array_get(json_object_get(root, "notes"), 0));
    check(count(root, "components") == 4 && !count(root, "missing") && note && strstr(note, words[2]),
          "inspect: %s", note ? note : "nothing");
    json_decref(root);
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
    struct tensor_set *unnamed = tensor_set_copy(transformer, "model.diffusion_model.");
    tensor_set_append(unnamed, vae, "first_stage_model.");
    write_tensor_set(unnamed, temporary_path("unnamed.safetensors"), "{\"vae\": " GROUPS "}");
    write_tensor_set(vae, temporary_path("lone.safetensors"), GROUPS);
    tensor_set_free(unnamed);
    copy_folder("sed -i /scaling_factor/d\\;/shift_factor/d vae/config.json");
    static const struct {
        const char *model, *vae;
        bool named, same, assumed;
    } rows[] = {{MODEL, NULL, false, true, false},
                {"unnamed.safetensors", NULL, false, true, false},
                {NULL, "unnamed.safetensors", false, true, false},
                {NULL, "lone.safetensors", true, true, false},
                {NULL, "lone.safetensors", false, false, true},
                {"folder", NULL, false, true, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        options from = {.decodes_only = true, .vae = rows[i].vae ? temporary_path(rows[i].vae) : NULL};
        from.model = rows[i].model && *rows[i].model != 't' ? temporary_path(rows[i].model) : rows[i].model;
        from.latent = rows[i].named ? latent : NULL;
        struct sluice_request plain = small_request();
        if (!rig_open_paths(&rig, from, "decode")) continue;
        struct result got = run_or_decode(&rig, &plain, latent);
        check(got.code == SLUICE_OK && !strcmp(got.image[0], had.image[0]) == rows[i].same, "row %zu: %s", i,
              got.error.what);
        check(!strstr(captured_log, "do not identify the autoencoder") == !rows[i].assumed, "row %zu: %s", i,
              captured_log);
        rig_close(&rig);
    }
}

int main(void) {
    temporary_make();
    for (int i = 0; i < ENCODERS; i++) part[i] = tensor_set_from_component(MODEL, folders[i]);
    transformer = tensor_set_from_component(MODEL, "transformer");
    vae = tensor_set_from_component(MODEL, "vae");
    expected_request = small_request();
    test_absent_encoder_gives_zero_embeddings();
    write_files();
    test_encoders_in_file_or_by_flag();
    test_clip_found_by_file_name();
    test_text_projection_used_or_missing();
    test_encoder_of_wrong_width_refused();
    test_missing_encoder_folder_refused_unless_disabled();
    test_wrong_component_in_encoder_folder_refused();
    test_none_refused_for_required_components();
    test_two_t5_files_are_ambiguous();
    test_missing_tokenizer_refused();
    test_inspect_and_plan_list_absent_encoders();
    test_lone_vae_scaling_factor();
    for (int i = 0; i < ENCODERS; i++) tensor_set_free(part[i]);
    tensor_set_free(transformer);
    tensor_set_free(vae);
    return finish();
}
