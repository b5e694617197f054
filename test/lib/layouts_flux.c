/* File layouts of Flux.1: the Hugging Face folder; the checkpoint with a flag for each other part; ComfyUI's
 * folder of split files and all-in-one checkpoints; with diffusers' or the checkpoint's tensor names. Parts
 * of other pipelines, and missing parts, are refused by name. */
#include "test/lib/layouts.h"

#include "engine/open/prompt.h"

/* Fuses q, k and v into one tensor; in single-stream blocks also the feed-forward input. */
static void fuse_all(struct tensor_set *p, struct item *item) {
    if (strstr(item->name, ".attn.to_q.")) {
        join_named(p, item, ".attn.to_q.", ".attn.to_k.");
        join_named(p, item, ".attn.to_q.", ".attn.to_v.");
        if (!strncmp(item->name, "single_", 7)) join_named(p, item, ".attn.to_q.", ".proj_mlp.");
    } else if (strstr(item->name, ".attn.add_q_proj.")) {
        join_named(p, item, ".add_q_proj.", ".add_k_proj.");
        join_named(p, item, ".add_q_proj.", ".add_v_proj.");
    }
}

static void rename_all(struct item *item, const char *const names[][2], size_t n) {
    for (size_t i = 0; i < n; i++) rename_part(item, names[i][0], names[i][1]);
}

#define RENAME(item, names) rename_all(item, names, COUNT_OF(names))

static void name_single(struct item *item) {
    static const char *const names[][2] = {{"single_transformer_blocks.", "single_blocks."},
                                           {".attn.norm_q.weight", ".norm.query_norm.scale"},
                                           {".attn.norm_k.weight", ".norm.key_norm.scale"},
                                           {".norm.linear.", ".modulation.lin."},
                                           {".proj_out.", ".linear2."},
                                           {".attn.to_q.", ".linear1."}};
    RENAME(item, names);
}

static void name_double(struct item *item) {
    static const char *const names[][2] = {{"transformer_blocks.", "double_blocks."},
                                           {".norm1.linear.", ".img_mod.lin."},
                                           {".norm1_context.linear.", ".txt_mod.lin."},
                                           {".attn.norm_q.weight", ".img_attn.norm.query_norm.scale"},
                                           {".attn.norm_k.weight", ".img_attn.norm.key_norm.scale"},
                                           {".attn.norm_added_q.weight", ".txt_attn.norm.query_norm.scale"},
                                           {".attn.norm_added_k.weight", ".txt_attn.norm.key_norm.scale"},
                                           {".attn.to_q.", ".img_attn.qkv."},
                                           {".attn.add_q_proj.", ".txt_attn.qkv."},
                                           {".attn.to_out.0.", ".img_attn.proj."},
                                           {".attn.to_add_out.", ".txt_attn.proj."},
                                           {".ff.net.0.proj.", ".img_mlp.0."},
                                           {".ff.net.2.", ".img_mlp.2."},
                                           {".ff_context.net.0.proj.", ".txt_mlp.0."},
                                           {".ff_context.net.2.", ".txt_mlp.2."}};
    RENAME(item, names);
}

static void name_other(struct item *item) {
    static const char *const names[][2] = {{"time_text_embed.timestep_embedder.", "time_in."},
                                           {"time_text_embed.guidance_embedder.", "guidance_in."},
                                           {"time_text_embed.text_embedder.", "vector_in."},
                                           {".linear_1.", ".in_layer."},
                                           {".linear_2.", ".out_layer."},
                                           {"context_embedder.", "txt_in."},
                                           {"x_embedder.", "img_in."},
                                           {"norm_out.linear.", "final_layer.adaLN_modulation.1."},
                                           {"proj_out.", "final_layer.linear."}};
    if (strstr(item->name, "norm_out.linear.")) swap_halves(item);
    RENAME(item, names);
}

/* Gives the tensors the names of the Flux checkpoint, which ComfyUI uses too. Inverse of diffusers 0.42,
 * single_file_utils.py, convert_flux_transformer_checkpoint_to_diffusers. */
static struct tensor_set *flux_to_checkpoint(const struct tensor_set *of) {
    struct tensor_set *p = tensor_set_copy(of, "");
    for (int i = 0; i < p->n; i++) fuse_all(p, &p->item[i]);
    for (int i = 0; i < p->n; i++) {
        struct item *item = &p->item[i];
        if (!strncmp(item->name, "single_transformer_blocks.", 26))
            name_single(item);
        else if (!strncmp(item->name, "transformer_blocks.", 19))
            name_double(item);
        else if (strcmp(item->name, "-") != 0)
            name_other(item);
    }
    tensor_set_drop(p, "-");
    return p;
}

static const struct layout_part parts[] = {
    {"transformer", "flux1.safetensors", offsetof(options, diffusion_model), flux_to_checkpoint, NULL, NULL,
     "transformer (flux)", EXPECTED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "clip_l.safetensors", offsetof(options, clip_l), NULL, NULL, NULL,
     "CLIP text encoder (clip)", "CLIP-L text encoder (clip)", "for --clip_l"},
    {"text_encoder_2", "t5xxl.safetensors", offsetof(options, t5xxl), NULL, NULL, NULL,
     "T5 text encoder (t5)", "T5 text encoder (t5 or umt5)", "for --t5xxl"},
    {"vae", "ae.safetensors", offsetof(options, vae), layouts_vae_to_checkpoint, NULL, NULL,
     "autoencoder (vae_kl)", EXPECTED_VAE, "for --vae"},
};

/* Tensors without a use that ComfyUI's files contain for each text encoder. */
#define EXTRA_TENSORS                                                                                        \
    { "text_encoders.clip_l.logit_scale", "text_encoders.t5xxl.logit_scale" }

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.clip_l.transformer.", "text_encoders.t5xxl.transformer.",
      "vae."},
     {"transformer", "text_encoder", "text_encoder_2", "vae"},
     EXTRA_TENSORS},
    {{"diffusion_model.", "text_encoders.clip_l.", "text_encoders.t5xxl.", "first_stage_model."},
     {"transformer", "clip_l", "t5xxl", "vae"},
     EXTRA_TENSORS},
};

const struct layout_family layouts_of_flux = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

/* Opens model files whose names mention no recipe (dev, Kontext); expects the given recipe and maximum number
 * of reference images.
 */
static void opens_as(options from, const char *recipe, int references) {
    sluice_model *m = NULL;
    struct sluice_error e;
    if (!check(!sluice_model_open(model_options(&from), &m, &e), "%s: %s (%s)", recipe, e.what, e.where))
        return;
    check(!strcmp(m->recipe->name, recipe) && m->references_max == references && !m->pipeline_named,
          "%s: %s, %d", recipe, m->recipe->name, m->references_max);
    sluice_model_close(m);
}

static void test_names(void) {
    options from = layouts_part_files();
    struct tensor_set *transformer = layouts_part("transformer"), *clip = layouts_part("text_encoder");
    bool configs = !current_model.no_configs;
    write_tensor_set(transformer, temporary_path("diffusers.safetensors"),
                     configs ? transformer->config : NULL);
    from.diffusion_model = temporary_path("diffusers.safetensors");
    expect_same_result(from, "diffusers' names in one file");
    write_sharded(clip, temporary_path("clip"), configs ? clip->config : NULL);
    from.clip_l = temporary_path("clip");
    expect_same_result(from, "a folder of shards");
}

static void test_schnell(void) {
    opens_as(layouts_part_files(), "flux_schnell", 0);
}

/* Without a recipe's name in the file name, Flux.1 Kontext opens as Flux.1 dev, because their weights have
 * equal shapes. */
static void test_unnamed(void) {
    options from = layouts_part_files();
    expect_same_result(from, "no name");
    check(strstr(captured_log, "taken for flux, whose weights look like those of flux_kontext"), "log: %s",
          captured_log);
    opens_as(from, "flux", LANE_REFERENCES_MAX);
    struct tensor_set *diffusers = tensor_set_from_component("test/golden/flux_fill/model", "transformer");
    struct tensor_set *fill = flux_to_checkpoint(diffusers);
    write_tensor_set(fill, temporary_path("fill.safetensors"), fill->config);
    from.diffusion_model = temporary_path("fill.safetensors");
    opens_as(from, "flux_fill", 0);
    tensor_set_free(fill);
    tensor_set_free(diffusers);
}

static void make_comfy(const char *folder) {
    static const char *const inner[] = {"", "/split_files", "/split_files/diffusion_models",
                                        "/split_files/text_encoders", "/split_files/vae"};
    char path[4][TENSOR_SET_NAME];
    static const char *const files[] = {"diffusion_models/flux1-dev.safetensors",
                                        "text_encoders/clip_l.safetensors",
                                        "text_encoders/t5xxl_fp16.safetensors", "vae/ae.safetensors"};
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        snprintf(path[0], TENSOR_SET_NAME, "%s%s", folder, inner[i]);
        mkdir(temporary_path(path[0]), 0777);
    }
    for (int i = 0; i < 4; i++) snprintf(path[i], TENSOR_SET_NAME, "%s/split_files/%s", folder, files[i]);
    layouts_write_parts(WORDS(path[0], path[1], path[2], path[3]), true);
}

/* Tests ComfyUI folders. The CLIP and T5 tokenizers are in the encoders' folder. An encoder of another family
 * is ignored; a second transformer is an error. */
static void test_folders(void) {
    struct tensor_set *qwen = tensor_set_from_component("test/golden/zimage_a/model", "text_encoder");
    struct tensor_set *zimage = tensor_set_from_component("test/golden/zimage_a/model", "transformer");
    make_comfy("comfy_flux");
    expect_refused((options){.model = temporary_path("comfy_flux")}, MISSING, "no tokenizer",
                   WORDS("no tokenizer for the CLIP-L", "clip_l.safetensors",
                         "--tokenizer DIR with tokenizer/ and tokenizer_2/", "FLUX.1-dev"));
    copy_file("test/golden/flux_a/model/tokenizer",
              temporary_path("comfy_flux/split_files/text_encoders/tokenizer"));
    expect_refused((options){.model = temporary_path("comfy_flux")}, MISSING, "no second tokenizer",
                   WORDS("no tokenizer for the T5", "t5xxl_fp16.safetensors", "CLIP BPE in",
                         "--tokenizer DIR with tokenizer/ and tokenizer_2/"));
    copy_file("test/golden/flux_a/model/tokenizer_2",
              temporary_path("comfy_flux/split_files/text_encoders/tokenizer_2"));
    expect_same_result((options){.model = temporary_path("comfy_flux")}, "ComfyUI's folders");
    write_tensor_set(qwen, temporary_path("comfy_flux/split_files/text_encoders/qwen_3_4b.safetensors"),
                     qwen->config);
    expect_same_result((options){.model = temporary_path("comfy_flux")},
                       "another family's encoder beside them");
    expect_allocation_failures((options){.model = temporary_path("comfy_flux")});
    copy_file(temporary_path("t5xxl.safetensors"),
              temporary_path("comfy_flux/split_files/text_encoders/t5xxl_again.safetensors"));
    expect_refused((options){.model = temporary_path("comfy_flux")}, UNSUPPORTED, "two T5",
                   WORDS("two files hold the T5 text encoder", "t5xxl_again", "t5xxl_fp16", "--t5xxl"));
    expect_same_result(
        (options){.model = temporary_path("comfy_flux"), .t5xxl = temporary_path("t5xxl.safetensors")},
        "the flag chooses");
    remove(temporary_path("comfy_flux/split_files/text_encoders/t5xxl_again.safetensors"));
    write_tensor_set(zimage, temporary_path("comfy_flux/split_files/diffusion_models/z.safetensors"),
                     zimage->config);
    expect_refused((options){.model = temporary_path("comfy_flux")}, UNSUPPORTED,
                   "another family's transformer",
                   WORDS("two files hold the transformer", "z.safetensors", "--diffusion-model"));
    expect_same_result((options){.model = temporary_path("comfy_flux"),
                                 .diffusion_model = temporary_path("flux1.safetensors")},
                       "the flag chooses the family");
    tensor_set_free(qwen);
    tensor_set_free(zimage);
}

static const char *copy_of_golden(const char *fixture) {
    char command[3 * TENSOR_SET_PATH];
    const char *folder = temporary_path("copy");
    snprintf(command, sizeof command, "rm -rf '%s' && cp -rL test/golden/%s/model '%s'", folder, fixture,
             folder);
    check(!system(command), "%s", command);
    return folder;
}

/* Tests that a file given by a flag replaces the component of a folder, which may be missing or damaged. */
static void test_overrides(void) {
    char command[3 * TENSOR_SET_PATH];
    const char *folder = copy_of_golden("flux_a");
    snprintf(command, sizeof command, "rm -r '%s/text_encoder_2' && echo damaged >'%s/vae/config.json'",
             folder, folder);
    check(!system(command), "%s", command);
    expect_refused(
        (options){.model = folder, .vae = temporary_path("ae.safetensors")}, MISSING, "no T5",
        WORDS("no 'text_encoder_2' (", "all files of the model, or --t5xxl with the T5 text encoder"));
    expect_same_result((options){.model = folder,
                                 .vae = temporary_path("ae.safetensors"),
                                 .t5xxl = temporary_path("t5xxl.safetensors")},
                       "a folder and two flags");
}

static void test_uses(void) {
    struct tensor_set *qwen = tensor_set_from_component("test/golden/zimage_a/model", "text_encoder");
    write_tensor_set(qwen, temporary_path("qwen.safetensors"), qwen->config);
    tensor_set_free(qwen);
    options from = layouts_part_files();
    from.llm = temporary_path("qwen.safetensors");
    expect_refused_as(
        from, USAGE, 2, "an encoder that Flux does not have",
        WORDS("does not use --llm", "qwen.safetensors", "text encoder (qwen3)", "transformer (flux)"));
    from = (options){.model = "test/golden/zimage_a/model", .clip_l = temporary_path("clip_l.safetensors")};
    expect_refused_as(from, USAGE, 2, "an encoder that Z-Image does not have",
                      WORDS("does not use --clip_l", "CLIP text encoder (clip)", "transformer (zimage)"));
    from = layouts_part_files();
    from.clip_l = from.t5xxl = NULL;
    expect_refused(from, MISSING, "no encoders",
                   WORDS("no 'text_encoder' and 'text_encoder_2' (",
                         "--clip_l and --t5xxl with the CLIP-L text encoder and T5 text encoder"));
    expect_refused(
        (options){.t5xxl = temporary_path("t5xxl.safetensors")}, MISSING, "an encoder alone",
        WORDS("no 'text_encoder', 'transformer' and 'vae' (", "--clip_l, --diffusion-model and --vae"));
}

static void test_tokenizers(void) {
    options from = layouts_part_files();
    from.tokenizer = "test/golden/zimage_a/model/tokenizer";
    expect_refused(from, META, "another family's tokenizer",
                   WORDS("needs a CLIP BPE tokenizer", "found BPE in", "--tokenizer DIR with"));
    from.model = "test/golden/flux_a/model";
    expect_refused(from, META, "a tokenizer of another kind",
                   WORDS("wrong kind for this model", "zimage_a/model/tokenizer", "CLIP BPE or unigram"));
    from.tokenizer = "test/golden/flux_a/model/tokenizer_2";
    expect_same_result(from, "one tokenizer by flag, the other in the folder");
    from.model = NULL;
    expect_refused(from, META, "one of two tokenizers",
                   WORDS("needs a CLIP BPE tokenizer", "found unigram in", "--tokenizer DIR with"));
    from.tokenizer = "test/golden/flux_a/model/tokenizer";
    expect_refused(from, META, "the other of two",
                   WORDS("needs a unigram tokenizer", "found CLIP BPE in", "--tokenizer DIR with"));
}

static void rewrite(const char *folder, const char *file, const char *text) {
    char path[2 * TENSOR_SET_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    write_file(path, text, strlen(text));
}

static void test_pipelines(void) {
    const char *folder = copy_of_golden("flux_a");
    rewrite(folder, "model_index.json", "{\"_class_name\": \"FluxFillPipeline\"}");
    expect_refused((options){.model = folder}, UNSUPPORTED, "a pipeline class of other weights",
                   WORDS("does not belong to the pipeline", "\"FluxFillPipeline\"",
                         "FluxPipeline, FluxImg2ImgPipeline", "FluxKontextPipeline for these weights"));
    expect_same_result((options){.model = folder, .diffusion_model = temporary_path("flux1.safetensors")},
                       "a transformer by flag ignores the folder's pipeline class");
    rewrite(folder, "model_index.json", "{\"_class_name\": \"FluxControlPipeline\"}");
    expect_refused(
        (options){.model = folder}, UNSUPPORTED, "an unknown pipeline",
        WORDS("model_index.json", "\"FluxControlPipeline\"", "ZImagePipeline", "FluxFillPipeline"));
    rewrite(folder, "model_index.json", "{\"_class_name\": \"ZImagePipeline\"}");
    expect_refused((options){.model = folder}, UNSUPPORTED, "another family's pipeline",
                   WORDS("\"ZImagePipeline\"", "FluxPipeline"));
}

static void refuse_schedule(const char *folder, const char *schedule, enum status code, const char *word) {
    rewrite(folder, "scheduler/scheduler_config.json", schedule);
    expect_refused((options){.model = folder}, code, schedule, WORDS("scheduler_config.json", word));
}

static void test_schedules(void) {
    const char *folder = copy_of_golden("flux_a");
    sluice_model *m = NULL;
    struct sluice_error e;
    options from = {.model = folder};
    rewrite(folder, "scheduler/scheduler_config.json",
            "{\"use_dynamic_shifting\": true, \"base_shift\": 0.25, \"max_shift\": 2, "
            "\"base_image_seq_len\": 64, \"max_image_seq_len\": 1000, \"shift\": 3}");
    check(!sluice_model_open(model_options(&from), &m, &e) && m->shift_rule == FLOW_SHIFT_BY_TOKENS &&
              m->flow_shift == 0 && m->shift_line.base_shift == 0.25 && m->shift_line.max_shift == 2 &&
              m->shift_line.base_tokens == 64 && m->shift_line.max_tokens == 1000,
          "a shift by size: %s", e.what);
    sluice_model_close(m);
    rewrite(folder, "scheduler/scheduler_config.json", "{\"use_dynamic_shifting\": false, \"shift\": 2.5}");
    check(!sluice_model_open(model_options(&from), &m, &e) && m->shift_rule == FLOW_SHIFT_FIXED &&
              m->flow_shift == 2.5,
          "a fixed shift: %s", e.what);
    sluice_model_close(m);
    rewrite(folder, "sluice.json", "{\"guidance\": 2, \"flow_shift\": 4, \"steps\": 7}");
    rewrite(folder, "scheduler/scheduler_config.json", "{\"use_dynamic_shifting\": true}");
    check(!sluice_model_open(model_options(&from), &m, &e) && m->shift_rule == FLOW_SHIFT_FIXED &&
              m->flow_shift == 4 && m->guidance == 2 && m->steps == 7,
          "sluice.json: %s", e.what);
    sluice_model_close(m);
    refuse_schedule(folder, "{\"use_dynamic_shifting\": true, \"time_shift_type\": \"linear\"}", UNSUPPORTED,
                    "'time_shift_type'");
    refuse_schedule(folder, "{\"use_dynamic_shifting\": true, \"max_image_seq_len\": 256}", META,
                    "'max_image_seq_len'");
    refuse_schedule(folder, "{\"use_dynamic_shifting\": 1}", META, "'use_dynamic_shifting'");
    refuse_schedule(folder, "{\"use_karras_sigmas\": true}", UNSUPPORTED, "'use_karras_sigmas'");
    refuse_schedule(folder, "{\"_class_name\": \"DDIMScheduler\"}", UNSUPPORTED, "\"DDIMScheduler\"");
}

/* Checks the token ids of CLIP and T5: special tokens, padding, truncation, and the position of the pooled
 * token. */
static void test_tokens(void) {
    static const char text[] = "a red fox in the snow";
    static char words[4000];
    struct sluice_error e;
    struct error inner = {0};
    char *json = NULL;
    sluice_model *m = NULL;
    options from = {.model = current_model.folder};
    check(!sluice_tokenize(model_options(&from), text, strlen(text), &json, &e), "tokenize: %s", e.what);
    json_t *root = json ? json_loads(json, 0, NULL) : NULL, *encoders = json_object_get(root, "encoders");
    static const int lengths[2] = {77, 512};
    for (int i = 0; i < 2; i++) {
        json_t *one = json_array_get(encoders, (size_t)i);
        const char *name = json_string_value(json_object_get(one, "name"));
        check(name && !strcmp(name, i ? "text_encoder_2" : "text_encoder") &&
                  number(one, "tokens") == lengths[i] && count(one, "ids") == (size_t)lengths[i] &&
                  json_is_false(json_object_get(one, "truncated")),
              "encoder %d: %s", i, name ? name : "none");
    }
    json_decref(root);
    sluice_free(json);
    for (size_t i = 0; i + 4 < sizeof words; i += 4) memcpy(words + i, "fox ", 4);
    if (!check(!sluice_model_open(model_options(&from), &m, &e), "%s", e.what)) return;
    for (int i = 0; i < 2; i++) {
        const struct text_recipe *recipe = &m->recipe->slot[i].text;
        const struct tokenizer *tokenizer = m->tokenizer[i];
        int32_t last = tokenizer_special(tokenizer, recipe->eos), first = -1;
        if (recipe->bos) first = tokenizer_special(tokenizer, recipe->bos);
        for (int cut = 0; cut < 2; cut++) {
            struct prompt_tokens tokens = {0};
            const char *prompt = cut ? words : text;
            prompt_encode(m->sys, recipe, tokenizer, prompt, strlen(prompt), true, &tokens, &inner);
            int end = 0;
            while (end < tokens.n_ids && tokens.ids[end] != last) end++;
            check(tokens.n_ids == lengths[i] && tokens.cut == cut && (!recipe->bos || tokens.ids[0] == first),
                  "encoder %d: %d ids", i, tokens.n_ids);
            check(cut ? end == lengths[i] - 1 : end > 4 && end < 60, "encoder %d: ends at %d", i, end);
            check(tokens.pooled_row == end, "encoder %d: row %d", i, tokens.pooled_row);
            prompt_destroy(m->sys, &tokens);
        }
    }
    sluice_model_close(m);
}

static void (*const extra_tests[])(void) = {
    test_names,      test_unnamed,   test_folders,   test_overrides, test_uses,
    test_tokenizers, test_pipelines, test_schedules, test_tokens,    NULL};
static void (*const extra_tests_schnell[])(void) = {test_names, test_schnell, NULL};
static void (*const own_published[])(void) = {test_names, NULL};

#define LIKE_ALL .family = &layouts_of_flux, .width = 48, .height = 32

const struct layouts layouts_flux = {
    LIKE_ALL,         .guidance = 3.5,     .warnings = {"metadata", "flow shift from e^0.5"},
    .one_file = true, .wrong_slots = true, .extra_tests = extra_tests};
const struct layouts layouts_flux_schnell = {
    LIKE_ALL, .warnings = {"metadata", "flow shift 1 is the default of flux_schnell"},
    .extra_tests = extra_tests_schnell};
const struct layouts layouts_flux_published = {
    LIKE_ALL,
    .tokenizer_model = "test/golden/flux_a/model",
    .guidance = 3.5,
    .no_configs = true,
    .warnings = {"published values",
                 "flow shift from e^0.5 at 256 tokens to e^1.15 at 4096 is the default of flux"},
    .extra_tests = own_published};

const struct expected_recipe expected_flux = {"flux", 512, 0},
                             expected_flux_schnell = {"flux_schnell", 256, 0},
                             expected_flux_kontext = {"flux_kontext", 512, LANE_REFERENCES_MAX},
                             expected_flux_fill = {"flux_fill", 512, 0};
