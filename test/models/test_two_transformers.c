/* Models with two transformers, one for high noise and one for low noise (Wan 2.2): by folder, by flag and by
 * the names of split files. The same weights must give the same latent. */
#include "test/lib/layouts.h"

#define FIXTURE "test/golden/wan22"

static const struct layout_part parts[] = {
    {.component = "text_encoder", .flag = offsetof(options, t5xxl)},
    {.component = "transformer", .flag = offsetof(options, high_noise)},
    {.component = "transformer_2", .flag = offsetof(options, diffusion_model)},
    {.component = "vae", .flag = offsetof(options, vae)},
};
enum { TEXT, HIGH, LOW, VAE, N_PARTS };

static const struct layout_family family = {parts, COUNT_OF(parts), NULL, 0};

static void make_folders(const char *path) {
    char command[TENSOR_SET_PATH + 16];
    snprintf(command, sizeof command, "mkdir -p '%s'", temporary_path(path));
    check(system(command) == 0, "%s", command);
}

/* Writes a model's components to files of the given names in a new folder. A component whose name is NULL is
 * not written. */
static options write_folder(const char *folder, const char *const names[N_PARTS]) {
    char path[TENSOR_SET_PATH];
    for (int i = 0; i < N_PARTS; i++) {
        if (!names[i]) continue;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        *strrchr(path, '/') = 0;
        make_folders(path);
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        write_tensor_set(current_model.part[i], temporary_path(path), current_model.part[i]->config);
    }
    return (options){.model = temporary_path(folder), .tokenizer = current_model.tokenizer};
}

static options flags(void) {
    write_folder("flags",
                 WORDS("text.safetensors", "one.safetensors", "other.safetensors", "vae.safetensors"));
    return (options){.t5xxl = temporary_path("flags/text.safetensors"),
                     .high_noise = temporary_path("flags/one.safetensors"),
                     .diffusion_model = temporary_path("flags/other.safetensors"),
                     .vae = temporary_path("flags/vae.safetensors"),
                     .tokenizer = current_model.tokenizer};
}

/* Checks the opened model's recipe and, in order, the ends of the transformers' paths. */
static void opens_as(options from, const char *recipe, const char *const *paths, const char *what) {
    struct sluice_model *m = NULL;
    struct error e = {0};
    char line[1024];
    model_open(NULL, model_options(&from), &m, &e);
    if (!check(e.code == OK, "%s: %s", what, error_line(&e, line, sizeof line))) return;
    check(!strcmp(m->recipe->name, recipe), "%s: opened as %s", what, m->recipe->name);
    for (int i = 0; i < SLOTS_MAX; i++) {
        if (!m->component[i].family || m->component[i].family->kind != FAMILY_DENOISER) continue;
        const char *path = m->component[i].index.sources[0].path;
        size_t bytes = *paths ? strlen(*paths) : 0, length = strlen(path);
        check(bytes && length >= bytes && !strcmp(path + length - bytes, *paths),
              "%s: transformer is %s, not %s", what, path, *paths ? *paths : "there");
        if (*paths) paths++;
    }
    check(!*paths, "%s: transformer %s was not opened", what, *paths ? *paths : "");
    model_close(m);
}

static bool gives_other_latent(options from, const char *what) {
    struct rig rig;
    if (!rig_open_paths(&rig, from, what)) return false;
    struct result got = run(&rig, &expected_request);
    bool other = check(got.n_latents == 1, "%s: %s", what, got.error.what) &&
                 strcmp(got.latent[0], expected_result.latent[0]) != 0;
    rig_close(&rig);
    return other;
}

static void test_transformers_by_flag(void) {
    options from = flags(), changed = from, alone = from;
    expect_same_result(from, "each component by its flag");
    changed.high_noise = from.diffusion_model;
    changed.diffusion_model = from.high_noise;
    check(gives_other_latent(changed, "transformers exchanged"),
          "exchanged transformers give the same latent");
    alone.diffusion_model = NULL;
    expect_refused(alone, MISSING, "the high-noise transformer alone",
                   WORDS("no 'transformer_2'", "--diffusion-model", "low-noise transformer"));
    alone = from;
    alone.high_noise = NULL;
    opens_as(alone, "wan", WORDS("other.safetensors"), "the low-noise transformer alone");
    alone = (options){.model = "test/golden/wan21/model", .high_noise = from.high_noise};
    opens_as(alone, "wan22",
             WORDS("one.safetensors", "wan21/model/transformer/diffusion_pytorch_model.safetensors"),
             "--high-noise-diffusion-model with a folder of one transformer");
}

static void test_transformers_by_file_name(void) {
    static const char *const names[][2] = {
        {"split_files/diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
         "split_files/diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"},
        {"HighNoise/Wan2.2-T2V-A14B-HighNoise-Q8_0.safetensors",
         "LowNoise/Wan2.2-T2V-A14B-LowNoise-Q8_0.safetensors"},
        {"Wan2_2-T2V-A14B_HIGH_fp8.safetensors", "Wan2_2-T2V-A14B-LOW_fp8.safetensors"},
        {"high_noise_model/a.safetensors", "low_noise_model/a.safetensors"},
    };
    char folder[16];
    for (int i = 0; i < COUNT_OF(names); i++) {
        snprintf(folder, sizeof folder, "named_%d", i);
        options from =
            write_folder(folder, WORDS("text.safetensors", names[i][0], names[i][1], "vae.safetensors"));
        opens_as(from, "wan22", WORDS(names[i][0], names[i][1]), names[i][0]);
        if (i) continue;
        expect_same_result(from, names[i][0]);
        check(!strstr(captured_log, "taken for"), "named transformers reported as ambiguous: %s",
              captured_log);
        expect_allocation_failures(from);
        from.diffusion_model = "test/golden/wan21/model/transformer";
        opens_as(from, "wan", WORDS("wan21/model/transformer/diffusion_pytorch_model.safetensors"),
                 "one transformer by flag");
    }
}

/* Only the words "high" and "low" in the file's own name choose a transformer, not the folder's name. */
static void test_ambiguous_file_names_refused(void) {
    options from = write_folder(
        "high", WORDS("text.safetensors", "slow.safetensors", "highway.safetensors", "vae.safetensors"));
    expect_refused(from, UNSUPPORTED, "file names without high or low",
                   WORDS("two files hold the transformer", "slow.safetensors", "highway.safetensors",
                         "--diffusion-model with", "--high-noise-diffusion-model as well"));
    from = write_folder("one", WORDS("text.safetensors", "low_noise.safetensors", NULL, "vae.safetensors"));
    opens_as(from, "wan", WORDS("low_noise.safetensors"), "one transformer named low_noise");
    check(gives_other_latent(from, "low-noise transformer alone"), "one transformer gives the latent of two");
    check(strstr(captured_log, "has \"low\", so this transformer is one of two"), "no warning: %s",
          captured_log);
    from = write_folder(
        "three", WORDS("text.safetensors", "a_high.safetensors", "b_low.safetensors", "vae.safetensors"));
    write_tensor_set(current_model.part[LOW], temporary_path("three/c_low.safetensors"),
                     current_model.part[LOW]->config);
    expect_refused(from, UNSUPPORTED, "two low-noise files",
                   WORDS("two files hold the transformer", "b_low.safetensors", "c_low.safetensors"));
    from = write_folder("rest", WORDS("text.safetensors", NULL, "low.safetensors", "vae.safetensors"));
    from.high_noise = FIXTURE "/model/transformer";
    expect_same_result(from, "high noise by flag, low noise in a folder");
}

static const char *edited_index(const char *from, const char *to) {
    static char text[4096];
    char path[TENSOR_SET_PATH];
    snprintf(path, sizeof path, "%s/model_index.json", FIXTURE "/model");
    char *whole = read_whole_file(path), *at = strstr(whole, from);
    if (!check(at != NULL, "no %s in %s", from, path)) return "{}";
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    free(whole);
    return text;
}

static options with_index(const char *text) {
    write_file(temporary_path("folder/model_index.json"), text, strlen(text));
    return (options){.model = temporary_path("folder")};
}

static void test_model_index_of_two_transformers(void) {
    static const char part[] = "/diffusion_pytorch_model.safetensors";
    char high[64], low[64];
    snprintf(high, sizeof high, "transformer%s", part);
    snprintf(low, sizeof low, "transformer_2%s", part);
    copy_file(FIXTURE "/model", temporary_path("folder"));
    options from = {.model = temporary_path("folder")};
    opens_as(from, "wan22", WORDS(high, low), "pipeline folder");
    from.diffusion_model = flags().high_noise;
    opens_as(from, "wan22", WORDS(high, "one.safetensors"), "transformer_2 by flag");
    check(gives_other_latent(from, "transformer_2 by flag"),
          "the same transformer twice gives the latent of two");
    from = with_index(
        edited_index("\"transformer_2\": [\n    \"diffusers\",\n    \"WanTransformer3DModel\"\n  ]",
                     "\"transformer_2\": [null, null]"));
    opens_as(from, "wan", WORDS(high), "transformer_2 [null, null]");
    from = with_index(edited_index("\"boundary_ratio\": 0.875", "\"boundary_ratio\": 0.5"));
    check(gives_other_latent(from, "another boundary_ratio"), "another boundary_ratio gives the same latent");
    from = with_index(edited_index("\"boundary_ratio\": 0.875", "\"boundary_ratio\": 0.9"));
    expect_same_result(from, "a boundary_ratio between the same steps");
    from = with_index(edited_index("  \"boundary_ratio\": 0.875,\n", ""));
    expect_same_result(from, "no boundary_ratio: the recipe's applies");
    from = with_index(edited_index("\"boundary_ratio\": 0.875", "\"boundary_ratio\": null"));
    check(gives_other_latent(from, "boundary_ratio null"), "with boundary_ratio null both transformers run");
    expect_refused(with_index(edited_index("\"boundary_ratio\": 0.875", "\"boundary_ratio\": -1")), META,
                   "a negative boundary_ratio", WORDS("'boundary_ratio'"));
    expect_refused(with_index(edited_index("WanPipeline", "WanVACEPipeline")), UNSUPPORTED,
                   "another pipeline class", WORDS("WanVACEPipeline"));
}

/* Refuses an interrupted download: model_index.json names both transformers, one folder is missing. */
static void test_missing_transformer_folder_refused(void) {
    char command[TENSOR_SET_PATH + 16];
    copy_file(FIXTURE "/model", temporary_path("half"));
    snprintf(command, sizeof command, "rm -r '%s'", temporary_path("half/transformer_2"));
    check(system(command) == 0, "%s", command);
    options from = {.model = temporary_path("half")};
    expect_refused(from, MISSING, "a folder without transformer_2",
                   WORDS("no 'transformer_2'", "--diffusion-model", "low-noise transformer"));
    from.diffusion_model = FIXTURE "/model/transformer_2";
    expect_same_result(from, "transformer_2 by flag");
}

int main(void) {
    struct rig rig;
    temporary_make();
    layouts_load(&family, FIXTURE "/model");
    current_model.tokenizer = FIXTURE "/model";
    expected_request = request_fox(16, 16, 2, 1, 1); /* a run of one high-noise step and one low-noise step */
    expected_request.frames = 5;
    expected_request.flow_shift = 3;
    if (!rig_open_paths(&rig, (options){.model = FIXTURE "/model"}, "fixture")) return finish();
    expected_result = run(&rig, &expected_request);
    check(expected_result.n_images == 1 && json_is_object(stage_of(expected_result.plan, "denoise_2")), "%s",
          expected_result.error.what);
    rig_close(&rig);
    test_transformers_by_flag();
    test_transformers_by_file_name();
    test_ambiguous_file_names_refused();
    test_model_index_of_two_transformers();
    test_missing_transformer_folder_refused();
    layouts_free();
    return finish();
}
