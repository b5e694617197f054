/* File layouts of Z-Image: q, k and v fused or separate, published prefixes, folders of parts; unsupported
 * file formats and number formats, which are refused by name. */
#include "test/lib/layouts.h"

static struct tensor_set *named_as_checkpoint(const struct tensor_set *of, int split) {
    struct tensor_set *p = tensor_set_copy(of, "");
    rename_zimage_to_checkpoint(p, split);
    return p;
}

static struct tensor_set *zimage_to_checkpoint(const struct tensor_set *of) {
    return named_as_checkpoint(of, -1);
}

/* Text encoder files have tensor names as in the release, or as written by transformers 5. */
static const struct layout_part parts[] = {
    {"transformer", "fused.safetensors", offsetof(options, diffusion_model), zimage_to_checkpoint, NULL, NULL,
     "transformer (zimage)", EXPECTED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "qwen.safetensors", offsetof(options, llm), NULL, "model.", "embed_tokens.weight",
     "text encoder (qwen3)", EXPECTED_LLM, "for --llm"},
    {"vae", "ae.safetensors", offsetof(options, vae), layouts_vae_to_checkpoint, NULL, NULL,
     "autoencoder (vae_kl)", EXPECTED_VAE, "for --vae"},
};

#define KEYS                                                                                                 \
    { "transformer", "llm", "vae" }
#define QWEN "text_encoders.qwen3_4b.transformer."
#define QWEN_EXTRA_TENSORS                                                                                   \
    { QWEN "lm_head.weight", "text_encoders.qwen3_4b.logit_scale" }

/* ComfyUI writes an extra scale tensor for the encoder. The encoder's output head shares its weights with the
 * embedding. */
static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", QWEN "model.", "vae."}, KEYS, QWEN_EXTRA_TENSORS},
    {{"diffusion_model.", QWEN, "first_stage_model."}, KEYS, QWEN_EXTRA_TENSORS},
    {{"", "text_encoders.llm.model.", "vae."}, KEYS, {"text_encoders.llm.lm_head.weight"}},
    {{"model.diffusion_model.", "text_encoders.llm.", ""}, KEYS, {"text_encoders.llm.lm_head.weight"}},
    {{"model.diffusion_model.", "model.", "vae."}, KEYS, {"lm_head.weight"}},
};

const struct layout_family layouts_of_zimage = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

static void test_mixed(void) {
    options from = layouts_part_files();
    struct tensor_set *mixed = named_as_checkpoint(layouts_part("transformer"), 1);
    check(tensor_set_find(mixed, "layers.1.attention.to_q.weight") &&
              tensor_set_find(mixed, "layers.0.attention.qkv.weight"),
          "one layer is split");
    write_tensor_set(mixed, temporary_path("mixed.safetensors"), mixed->config);
    write_sharded(mixed, temporary_path("sharded"), mixed->config);
    tensor_set_free(mixed);
    from.diffusion_model = temporary_path("mixed.safetensors");
    expect_same_result(from, "split files, mixed");
    from.diffusion_model = temporary_path("sharded/model.safetensors.index.json");
    expect_same_result(from, "a shard index");
    from.diffusion_model = temporary_path("sharded");
    expect_same_result(from, "a folder of shards");
}

static void test_override(void) {
    static const struct all_in_one one = {
        {"model.diffusion_model.", "text_encoders.llm.", "vae."}, KEYS, {"text_encoders.llm.lm_head.weight"}};
    layouts_write_all(temporary_path("all.safetensors"), &one);
    expect_same_result((options){.model = temporary_path("all.safetensors"),
                                 .vae = temporary_path("ae.safetensors"),
                                 .tokenizer = current_model.tokenizer},
                       "one part overridden");
}

static void test_folders(void) {
    mkdir(temporary_path("loose"), 0777);
    layouts_write_parts(WORDS("loose/t.safetensors", "loose/q.safetensors", "loose/v.safetensors"), true);
    struct tensor_set *divided = named_as_checkpoint(layouts_part("transformer"), 0);
    write_tensor_set(divided, temporary_path("loose/t.safetensors"), divided->config);
    tensor_set_free(divided);
    copy_file(current_model.tokenizer, temporary_path("loose/tokenizer"));
    expect_same_result((options){.model = temporary_path("loose")}, "loose files");
    mkdir(temporary_path("comfy"), 0777);
    mkdir(temporary_path("comfy/split_files"), 0777);
    mkdir(temporary_path("comfy/split_files/diffusion_models"), 0777);
    mkdir(temporary_path("comfy/split_files/text_encoders"), 0777);
    mkdir(temporary_path("comfy/split_files/vae"), 0777);
    layouts_write_parts(WORDS("comfy/split_files/diffusion_models/z.safetensors",
                              "comfy/split_files/text_encoders/q.safetensors",
                              "comfy/split_files/vae/ae.safetensors"),
                        true);
    expect_refused((options){.model = temporary_path("comfy")}, MISSING, "no tokenizer",
                   WORDS("no tokenizer for the text encoder", "text_encoders/q.safetensors", "Qwen/Qwen3-4B",
                         "--tokenizer"));
    copy_file(temporary_path("loose/tokenizer/tokenizer.json"),
              temporary_path("comfy/split_files/tokenizer.json"));
    expect_same_result((options){.model = temporary_path("comfy")}, "ComfyUI's folders");
    /* Unrelated files in a model folder are ignored; a second transformer is an error. */
    write_file(temporary_path("comfy/notes.pt"), "\x80\x02}q\x01....", 9);
    expect_same_result((options){.model = temporary_path("comfy")}, "with another file");
    copy_file(temporary_path("fused.safetensors"), temporary_path("comfy/again.safetensors"));
    expect_refused(
        (options){.model = temporary_path("comfy")}, UNSUPPORTED, "two transformers",
        WORDS("two files", "again.safetensors", "diffusion_models/z.safetensors", "--diffusion-model"));
    expect_same_result(
        (options){.model = temporary_path("comfy"), .diffusion_model = temporary_path("fused.safetensors")},
        "the flag chooses");
    /* Tests the Hugging Face layout with other folder names, each folder with its config.json. */
    mkdir(temporary_path("renamed"), 0777);
    char path[TENSOR_SET_PATH];
    static const char *const folders[][2] = {{"transformer", "a"}, {"text_encoder", "b"}, {"vae", "c"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", current_model.folder, folders[i][0]);
        char to[TENSOR_SET_NAME];
        snprintf(to, sizeof to, "renamed/%s", folders[i][1]);
        copy_file(path, temporary_path(to));
    }
    copy_file(current_model.tokenizer, temporary_path("renamed/tokenizer"));
    expect_same_result((options){.model = temporary_path("renamed")}, "renamed folders");
    check(strstr(captured_log, "flow shift") && !strstr(captured_log, "config.json for"),
          "only the schedule is assumed: %s", captured_log);
}

static void test_missing(void) {
    const char *part[3] = {temporary_path("qwen.safetensors"), temporary_path("fused.safetensors"),
                           temporary_path("ae.safetensors")};
    options from = layouts_part_files();
    for (int i = 0; i < 3; i++) {
        from.tokenizer = part[i];
        expect_refused(from, BADMAGIC, "weights as tokenizer", WORDS("a safetensors file", "tokenizer.json"));
    }
    from.tokenizer = current_model.tokenizer;
    from.vae = temporary_path("nothing.safetensors");
    expect_refused(from, MISSING, "no such file", WORDS("nothing.safetensors"));
    from.vae = NULL;
    expect_refused(from, MISSING, "no autoencoder", WORDS("'vae'", "--vae"));
}

static void refuse_file(const char *name, const char *bytes, size_t n, const char *word) {
    write_file(temporary_path(name), bytes, n);
    const char *path = temporary_path(name);
    options from = layouts_part_files();
    const char **slot[4] = {&from.llm, &from.diffusion_model, &from.vae, &from.tokenizer};
    for (int i = 0; i < 4; i++) {
        const char *kept = *slot[i];
        *slot[i] = path;
        expect_refused(from, BADMAGIC, name, WORDS(name, word, i < 3 ? "or GGUF" : "tokenizer.json"));
        *slot[i] = kept;
    }
    expect_refused((options){.model = path, .tokenizer = current_model.tokenizer}, BADMAGIC, name,
                   WORDS(name, word));
}

static void test_foreign(void) {
    refuse_file("model.ckpt", "PK\3\4\0\0\0\0\0\0\0\0model/data.pkl", 26, "pickle");
    refuse_file("model.pt", "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15, "pickle");
    refuse_file("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0", 54, "git-lfs");
    /* In a folder with one file per component, the error about a missing component names the unreadable file
     * that may hold it. */
    mkdir(temporary_path("quants"), 0777);
    layouts_write_parts(WORDS("quants/t.safetensors", "quants/q.safetensors", "quants/v.safetensors"), true);
    remove(temporary_path("quants/t.safetensors"));
    copy_file(temporary_path("model.ckpt"), temporary_path("quants/z.gguf"));
    expect_refused((options){.model = temporary_path("quants"), .tokenizer = current_model.tokenizer},
                   BADMAGIC, "a pickle among parts", WORDS("z.gguf", "pickle"));
}

static options with_transformer(const char *path) {
    options from = layouts_part_files();
    from.diffusion_model = path;
    return from;
}

/* Refuses the transformer with one extra tensor, or with one tensor of another type. */
static void refuse_quantised(const char *name, const char *tensor, const char *type, size_t bytes,
                             const char *word) {
    for (int prefixed = 0; prefixed < 2; prefixed++) {
        struct tensor_set *p = layouts_checkpoint_part("transformer"), *q = NULL;
        struct item *t = tensor_set_find(p, tensor);
        int32_t dim[1] = {(int32_t)bytes / (!strcmp(type, "F32") ? 4 : 1)};
        if (t) {
            t->type = type;
            t->bytes /= 4;
        } else {
            tensor_set_add(p, "", tensor, type, 1, dim, "12345678", bytes);
        }
        q = tensor_set_copy(p, prefixed ? "model.diffusion_model." : "");
        write_tensor_set(q, temporary_path(name), q->config);
        expect_refused(with_transformer(temporary_path(name)), UNSUPPORTED, name,
                       WORDS("quantisation", name, word, tensor, "or GGUF"));
        tensor_set_free(p);
        tensor_set_free(q);
    }
}

static void test_quantised(void) {
    refuse_quantised("int8.safetensors", "layers.2.feed_forward.w3.weight", "I8", 0, "int8");
    refuse_quantised("packed.safetensors", "layers.2.feed_forward.w3.weight", "U8", 0, "packed");
    refuse_quantised("nvfp4.safetensors", "layers.0.feed_forward.w1.weight_scale_2", "F32", 4, "nvfp4");
    refuse_quantised("nf4.safetensors", "layers.0.feed_forward.w1.weight.absmax", "U8", 4, "bitsandbytes");
    refuse_quantised("int8bnb.safetensors", "layers.0.feed_forward.w1.SCB", "F32", 4, "bitsandbytes");
    refuse_quantised("torchao.safetensors", "layers.0.feed_forward.w1._weight_qdata", "F8_E4M3", 4,
                     "torchao");
    refuse_quantised("svdq.safetensors", "layers.0.feed_forward.w1.wscales", "F8_E4M3", 4, "SVDQuant");
    struct tensor_set *p = layouts_checkpoint_part("transformer");
    write_tensors(p, 0, p->n, temporary_path("meta.safetensors"), "quantization_config", "{}");
    expect_refused((options){.model = temporary_path("meta.safetensors"),
                             .llm = temporary_path("qwen.safetensors"),
                             .vae = temporary_path("ae.safetensors"),
                             .tokenizer = current_model.tokenizer},
                   UNSUPPORTED, "metadata", WORDS("quantisation", "metadata"));
    /* Adds a scale tensor that belongs to no known quantisation format. */
    struct tensor_set *all = tensor_set_copy(p, "model.diffusion_model.");
    int32_t one[1] = {1};
    tensor_set_add(all, "", "model.diffusion_model.layers.0.odd_scale", "F32", 1, one, "1234", 4);
    write_tensor_set(all, temporary_path("odd.safetensors"), all->config);
    expect_refused((options){.model = temporary_path("odd.safetensors"),
                             .llm = temporary_path("qwen.safetensors"),
                             .vae = temporary_path("ae.safetensors"),
                             .tokenizer = current_model.tokenizer},
                   UNUSED, "a leftover scale", WORDS("model.diffusion_model.layers.0.odd_scale", "scale"));
    tensor_set_free(all);
    tensor_set_free(p);
}

static void test_other_config(void) {
    const char *config = layouts_part("vae")->config;
    write_file(temporary_path("config.json"), config, strlen(config));
    expect_same_result(layouts_part_files(), "a config.json of one part beside all");
    remove(temporary_path("config.json"));
}

static void test_inspect_one(void) {
    json_t *root = inspect((options){.model = temporary_path("fused.safetensors")});
    json_t *one = json_array_get(json_object_get(root, "components"), 0);
    check(count(root, "components") == 1 && number(one, "tensors") < layouts_part("transformer")->n &&
              !strcmp(json_string_value(json_object_get(one, "family")), "zimage"),
          "one component of one file");
    check(count(root, "missing") == 3 && !count(root, "unknown"), "%zu missing", count(root, "missing"));
    json_decref(root);
    struct tensor_set *p = tensor_set_copy(layouts_part("text_encoder"), "foreign.");
    write_tensor_set(p, temporary_path("foreign.safetensors"), NULL);
    root = inspect((options){.model = temporary_path("foreign.safetensors")});
    check(count(root, "components") == 1 && count(root, "unknown") == (size_t)p->n, "an unknown file: %zu",
          count(root, "unknown"));
    json_decref(root);
    expect_refused((options){.model = temporary_path("foreign.safetensors")}, MISSING, "an unknown file",
                   WORDS("no 'transformer' and 'vae' (", "of no known component", "'foreign.",
                         "--diffusion-model and --vae with the transformer and autoencoder"));
    /* If the folder has other known components, the error names the missing component, not the missing
     * tokenizer. It states how many tensors may belong to the missing component. */
    char others[TENSOR_SET_NAME];
    snprintf(others, sizeof others, " and %d other tensors of no known component", p->n - 1);
    mkdir(temporary_path("foreign"), 0777);
    copy_file(temporary_path("fused.safetensors"), temporary_path("foreign/t.safetensors"));
    copy_file(temporary_path("ae.safetensors"), temporary_path("foreign/v.safetensors"));
    expect_refused((options){.model = temporary_path("foreign")}, MISSING, "only two parts",
                   WORDS("no 'text_encoder' (", "--llm with the text encoder"));
    copy_file(temporary_path("foreign.safetensors"), temporary_path("foreign/q.safetensors"));
    expect_refused((options){.model = temporary_path("foreign")}, MISSING, "an unknown file among parts",
                   WORDS("no 'text_encoder' (", "'foreign.", others));
    expect_refused((options){.vae = temporary_path("ae.safetensors")}, MISSING,
                   "an autoencoder alone cannot draw",
                   WORDS("no 'transformer' (", "--diffusion-model", "its text encoders"));
    struct tensor_set *all = tensor_set_copy(layouts_part("vae"), "vae."),
                      *t = layouts_checkpoint_part("transformer");
    tensor_set_append(all, t, "model.diffusion_model.");
    tensor_set_append(all, layouts_part("text_encoder"), "foreign.");
    write_tensor_set(all, temporary_path("foreign_part.safetensors"), NULL);
    expect_refused((options){.model = temporary_path("foreign_part.safetensors")}, MISSING,
                   "one part of a file is unknown", WORDS("no 'text_encoder' (", "'foreign.", others));
    tensor_set_free(all);
    tensor_set_free(t);
    tensor_set_free(p);
}

static void test_without_memory(void) {
    expect_allocation_failures((options){.model = temporary_path("loose")});
}

static void (*const extra_tests[])(void) = {
    test_mixed,     test_override,     test_folders,     test_missing,        test_foreign,
    test_quantised, test_other_config, test_inspect_one, test_without_memory, NULL};
static void (*const own_wide[])(void) = {test_mixed, NULL};

/* Model folders contain the schedule's shift, single files do not. */
#define LIKE_ALL                                                                                             \
    .family = &layouts_of_zimage, .tokenizer = "/tokenizer", .width = 32, .height = 48, .flow_shift = 3,     \
    .warnings = {"metadata", "flow shift 3"}

const struct layouts layouts_zimage = {LIKE_ALL, .one_file = true, .wrong_slots = true,
                                       .extra_tests = extra_tests};
const struct layouts layouts_zimage_wide = {LIKE_ALL, .extra_tests = own_wide};
