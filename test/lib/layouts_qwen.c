/* File layouts of Qwen-Image: the Hugging Face folder, ComfyUI's split files, and one file with everything.
 * The transformer has diffusers' names in every layout. */
#include "test/lib/layouts.h"

static void rename_resnet(struct item *t) {
    rename_part(t, ".norm1.", ".residual.0.");
    rename_part(t, ".conv1.", ".residual.2.");
    rename_part(t, ".norm2.", ".residual.3.");
    rename_part(t, ".conv2.", ".residual.6.");
    rename_part(t, ".conv_shortcut.", ".shortcut.");
}

/* Renames the decoder's blocks with one number through all levels; each level has resnets, then an upsampler.
 */
static void rename_level(struct item *t, int resnets) {
    char from[TENSOR_SET_NAME], to[TENSOR_SET_NAME];
    int level, number = resnets;
    if (sscanf(t->name, "decoder.up_blocks.%d.resnets.%d.", &level, &number) == 2)
        snprintf(from, sizeof from, "up_blocks.%d.resnets.%d.", level, number);
    else
        snprintf(from, sizeof from, "up_blocks.%d.upsamplers.0.", level);
    snprintf(to, sizeof to, "upsamples.%d.", level * (resnets + 1) + number);
    rename_part(t, from, to);
}

struct tensor_set *layouts_wan_vae_to_checkpoint(const struct tensor_set *of) {
    static const char *const parts[][2] = {{".mid_block.resnets.0.", ".middle.0."},
                                           {".mid_block.attentions.0.", ".middle.1."},
                                           {".mid_block.resnets.1.", ".middle.2."},
                                           {"encoder.down_blocks.", "encoder.downsamples."},
                                           {"coder.conv_in.", "coder.conv1."},
                                           {"coder.norm_out.", "coder.head.0."},
                                           {"coder.conv_out.", "coder.head.2."},
                                           {"post_quant_conv.", "conv2."},
                                           {"quant_conv.", "conv1."}};
    struct tensor_set *p = tensor_set_copy(of, "");
    int resnets = 0, number;
    for (int i = 0; i < p->n; i++)
        if (sscanf(p->item[i].name, "decoder.up_blocks.0.resnets.%d.", &number) == 1 && number >= resnets)
            resnets = number + 1;
    for (int i = 0; i < p->n; i++) {
        rename_resnet(&p->item[i]);
        if (!strncmp(p->item[i].name, "decoder.up_blocks.", 18)) rename_level(&p->item[i], resnets);
        for (int k = 0; k < COUNT_OF(parts); k++) rename_part(&p->item[i], parts[k][0], parts[k][1]);
    }
    return p;
}

static const struct layout_part parts[] = {
    {"transformer", "qwen_image.safetensors", offsetof(options, diffusion_model), NULL, NULL, NULL,
     "transformer (qwen_image)", EXPECTED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "qwen_2.5_vl_7b.safetensors", offsetof(options, llm), NULL, NULL, NULL,
     "text encoder (qwen25vl)", EXPECTED_LLM, "for --llm"},
    {"vae", "qwen_image_vae.safetensors", offsetof(options, vae), layouts_wan_vae_to_checkpoint, NULL, NULL,
     "autoencoder (vae_wan)", EXPECTED_VAE, "for --vae"},
};

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.qwen25_7b.transformer.", "vae."},
     {"transformer", "text_encoder", "vae"},
     {"text_encoders.qwen25_7b.logit_scale"}},
};

const struct layout_family layouts_of_qwen = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

/* GGUF-like files of at most four axes merge the leading axes of five-axis kernels. */
static void test_merged_kernels(void) {
    struct tensor_set *p = layouts_checkpoint_part("vae");
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        if (t->rank != 5) continue;
        t->rank = 4;
        t->dim[0] *= t->dim[1];
        memmove(t->dim + 1, t->dim + 2, 3 * sizeof *t->dim);
    }
    expect_same_result(layouts_replace_part("vae", p), "kernels whose outer axes are one");
}

/* Published latent scales have 16 channels. The fixture's VAE has 5, so its scale must be in the file. */
static void test_missing_scale(void) {
    struct tensor_set *p = layouts_checkpoint_part("vae");
    write_tensor_set(p, temporary_path("no_scale.safetensors"), NULL);
    expect_refused((options){.model = current_model.folder, .vae = temporary_path("no_scale.safetensors")},
                   META, "no latent scale", WORDS("'latents_mean'", "0", "5"));
    tensor_set_free(p);
}

static void test_folders(void) {
    static const char *const inner[] = {"comfy_qwen", "comfy_qwen/diffusion_models",
                                        "comfy_qwen/text_encoders", "comfy_qwen/vae"};
    for (size_t i = 0; i < COUNT_OF(inner); i++) mkdir(temporary_path(inner[i]), 0777);
    layouts_write_parts(WORDS("comfy_qwen/diffusion_models/qwen_image_bf16.safetensors",
                              "comfy_qwen/text_encoders/qwen_2.5_vl_7b.safetensors",
                              "comfy_qwen/vae/qwen_image_vae.safetensors"),
                        true);
    options from = {.model = temporary_path("comfy_qwen"), .tokenizer = current_model.tokenizer};
    expect_same_result(from, "ComfyUI's folders");
    check(strstr(
              captured_log,
              "taken for qwen_image, whose weights look like those of qwen_image_edit, qwen_image_edit_plus"),
          "log: %s", captured_log);
    expect_allocation_failures(from);
}

/* Runs an edit request with a reference image on the model; returns its result. */
static struct result edited(options from, const char *what) {
    static uint8_t rgb[48 * 32 * 3];
    static const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = 48, .height = 32, .rgb = rgb, .name = "a picture"};
    static const struct sluice_picture *const references[] = {&picture};
    struct sluice_request r = request_fox(64, 48, 2, 1, 1);
    struct result got = {.code = SLUICE_MISSING};
    struct rig rig;
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * i % 251);
    r.references = references;
    r.n_references = 1;
    r.no_decode = true;
    if (!rig_open_paths(&rig, from, what)) return got;
    got = run(&rig, &r);
    check(got.code == SLUICE_OK && got.n_latents == 1, "%s: %s", what, got.error.what);
    rig_close(&rig);
    return got;
}

/* Reference images at timestep 0 (Edit 2511) are selected by the configuration, by an empty marker tensor
 * without a configuration, or by --edit 2511. If none of the three is present, the result differs. A
 * configuration that sets false overrides the marker tensor. */
static void test_zero_cond(void) {
    static const char mark[] = "__index_timestep_zero__";
    enum { CONFIGURED, MARKED, FLAG, UNSET, DENIED, WAYS };
    struct result got[WAYS];
    options from = layouts_part_files();
    for (int way = 0; way < WAYS; way++) {
        struct tensor_set *p =
            tensor_set_copy(layouts_part("transformer"), way % 2 ? "model.diffusion_model." : "");
        json_t *config = json_loads(p->config, 0, NULL);
        char name[TENSOR_SET_NAME];
        snprintf(name, sizeof name, "%s%s", way % 2 ? "model.diffusion_model." : "", mark);
        json_object_del(config, "zero_cond_t");
        if (way == CONFIGURED) json_object_set_new(config, "zero_cond_t", json_true());
        if (way == DENIED) json_object_set_new(config, "zero_cond_t", json_false());
        if (way == MARKED || way == DENIED) tensor_set_add(p, "", name, "F32", 1, (int32_t[]){0}, "", 0);
        char *text = json_dumps(config, 0);
        write_tensor_set(p, temporary_path("transformer.safetensors"), text);
        from.diffusion_model = temporary_path("transformer.safetensors");
        from.edit = way == FLAG ? "2511" : "plus";
        got[way] = edited(from, from.edit);
        free(text);
        json_decref(config);
        tensor_set_free(p);
    }
    same(&got[CONFIGURED], &got[MARKED], "a marker tensor");
    same(&got[CONFIGURED], &got[FLAG], "a flag");
    same(&got[UNSET], &got[DENIED], "a configuration that disables it");
    check(strcmp(got[CONFIGURED].latent[0], got[UNSET].latent[0]) != 0,
          "timestep 0 for references has no effect");
}

static void test_edit(void) {
    options from = layouts_part_files();
    from.edit = "minus";
    expect_refused_as(from, USAGE, 2, "an unknown way to edit",
                      WORDS("--edit", "minus of qwen_image", "plain, plus or 2511"));
    from = (options){.model = "test/golden/zimage_a/model", .edit = "plus"};
    expect_refused_as(from, USAGE, 2, "weights that do not edit", WORDS("--edit", "plus of zimage"));
}

static void (*const extra_tests[])(void) = {test_folders,   test_merged_kernels, test_missing_scale,
                                            test_zero_cond, test_edit,           NULL};

const struct layouts layouts_qwen = {.family = &layouts_of_qwen,
                                     .tokenizer = "/tokenizer",
                                     .width = 48,
                                     .height = 32,
                                     .warnings = {"metadata", "flow shift from e^0.5"},
                                     .two_in_file = "text_encoder",
                                     .one_file = true,
                                     .wrong_slots = true,
                                     .extra_tests = extra_tests};
