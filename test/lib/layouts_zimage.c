/* Layouts of Z-Image: q, k and v fused or not, prefixes that people's files have, folders of parts; other
 * formats and forms of numbers, which are refused by name. */
#include "test/lib/layouts.h"

/* ---- the layouts ---- */

static struct pile *named_originally(const struct pile *of, int split) {
    struct pile *p = pile_copy(of, "");
    name_originally(p, split);
    return p;
}

static struct pile *original(const struct pile *of) {
    return named_originally(of, -1);
}

/* Text encoders have both styles of names: as released, and as transformers 5 saves them. */
static const struct layout_part parts[] = {
    {"transformer", "fused.safetensors", offsetof(options, diffusion_model), original, NULL, NULL,
     "transformer (zimage)", ASKED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "qwen.safetensors", offsetof(options, llm), NULL, "model.", "embed_tokens.weight",
     "text encoder (qwen3)", ASKED_LLM, "for --llm"},
    {"vae", "ae.safetensors", offsetof(options, vae), layouts_vae_originally, NULL, NULL,
     "autoencoder (vae_kl)", ASKED_VAE, "for --vae"},
};

#define KEYS                                                                                                 \
    { "transformer", "llm", "vae" }
#define QWEN "text_encoders.qwen3_4b.transformer."
#define QWEN_STRAYS                                                                                          \
    { QWEN "lm_head.weight", "text_encoders.qwen3_4b.logit_scale" }

/* ComfyUI writes a scale beside the encoder; the head is tied. */
static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", QWEN "model.", "vae."}, KEYS, QWEN_STRAYS},
    {{"diffusion_model.", QWEN, "first_stage_model."}, KEYS, QWEN_STRAYS},
    {{"", "text_encoders.llm.model.", "vae."}, KEYS, {"text_encoders.llm.lm_head.weight"}},
    {{"model.diffusion_model.", "text_encoders.llm.", ""}, KEYS, {"text_encoders.llm.lm_head.weight"}},
    {{"model.diffusion_model.", "model.", "vae."}, KEYS, {"lm_head.weight"}},
};

const struct layout_family layouts_of_zimage = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};

static void test_mixed(void) {
    options from = layouts_split();
    struct pile *mixed = named_originally(layouts_part("transformer"), 1);
    check(pile_find(mixed, "layers.1.attention.to_q.weight") &&
              pile_find(mixed, "layers.0.attention.qkv.weight"),
          "one layer is split");
    write_pile(mixed, under("mixed.safetensors"), mixed->config);
    write_sharded(mixed, under("sharded"), mixed->config);
    pile_free(mixed);
    from.diffusion_model = under("mixed.safetensors");
    gives_the_same(from, "split files, mixed");
    from.diffusion_model = under("sharded/model.safetensors.index.json");
    gives_the_same(from, "a shard index");
    from.diffusion_model = under("sharded");
    gives_the_same(from, "a folder of shards");
}

/* A flag overrides what the file holds. */
static void test_override(void) {
    static const struct all_in_one one = {
        {"model.diffusion_model.", "text_encoders.llm.", "vae."}, KEYS, {"text_encoders.llm.lm_head.weight"}};
    layouts_write_all(under("all.safetensors"), &one);
    gives_the_same((options){.model = under("all.safetensors"),
                             .vae = under("ae.safetensors"),
                             .tokenizer = at_hand.tokenizer},
                   "one part overridden");
}

static void test_folders(void) {
    mkdir(under("loose"), 0777);
    layouts_write_parts(WORDS("loose/t.safetensors", "loose/q.safetensors", "loose/v.safetensors"), true);
    struct pile *divided = named_originally(layouts_part("transformer"), 0);
    write_pile(divided, under("loose/t.safetensors"), divided->config);
    pile_free(divided);
    copy_file(at_hand.tokenizer, under("loose/tokenizer"));
    gives_the_same((options){.model = under("loose")}, "loose files");
    mkdir(under("comfy"), 0777);
    mkdir(under("comfy/split_files"), 0777);
    mkdir(under("comfy/split_files/diffusion_models"), 0777);
    mkdir(under("comfy/split_files/text_encoders"), 0777);
    mkdir(under("comfy/split_files/vae"), 0777);
    layouts_write_parts(WORDS("comfy/split_files/diffusion_models/z.safetensors",
                              "comfy/split_files/text_encoders/q.safetensors",
                              "comfy/split_files/vae/ae.safetensors"),
                        true);
    is_refused((options){.model = under("comfy")}, MISSING, "no tokenizer",
               WORDS("'tokenizer'", "text_encoders/q.safetensors", "Qwen/Qwen3-4B", "--tokenizer"));
    copy_file(under("loose/tokenizer/tokenizer.json"), under("comfy/split_files/tokenizer.json"));
    gives_the_same((options){.model = under("comfy")}, "ComfyUI's folders");
    /* Something else beside them is no hindrance; a second transformer is. */
    write_file(under("comfy/notes.pt"), "\x80\x02}q\x01....", 9);
    gives_the_same((options){.model = under("comfy")}, "with another file");
    copy_file(under("fused.safetensors"), under("comfy/again.safetensors"));
    is_refused(
        (options){.model = under("comfy")}, UNSUPPORTED, "two transformers",
        WORDS("two files", "again.safetensors", "diffusion_models/z.safetensors", "--diffusion-model"));
    gives_the_same((options){.model = under("comfy"), .diffusion_model = under("fused.safetensors")},
                   "the flag chooses");
    /* Files of a Hugging Face folder in other folders, their config.json beside them. */
    mkdir(under("renamed"), 0777);
    char path[PILE_PATH];
    static const char *const folders[][2] = {{"transformer", "a"}, {"text_encoder", "b"}, {"vae", "c"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", at_hand.folder, folders[i][0]);
        char to[PILE_NAME];
        snprintf(to, sizeof to, "renamed/%s", folders[i][1]);
        copy_file(path, under(to));
    }
    copy_file(at_hand.tokenizer, under("renamed/tokenizer"));
    gives_the_same((options){.model = under("renamed")}, "renamed folders");
    check(strstr(said, "flow shift") && !strstr(said, "config.json for"), "only the schedule is assumed: %s",
          said);
}

/* ---- what is refused ---- */

static void test_missing(void) {
    const char *part[3] = {under("qwen.safetensors"), under("fused.safetensors"), under("ae.safetensors")};
    options from = layouts_split();
    for (int i = 0; i < 3; i++) {
        from.tokenizer = part[i];
        is_refused(from, BADMAGIC, "weights as tokenizer", WORDS("a safetensors file", "tokenizer.json"));
    }
    from.tokenizer = at_hand.tokenizer;
    from.vae = under("nothing.safetensors");
    is_refused(from, MISSING, "no such file", WORDS("nothing.safetensors"));
    from.vae = NULL;
    is_refused(from, MISSING, "no autoencoder", WORDS("'vae'", "--vae"));
}

static void refuse_file(const char *name, const char *bytes, size_t n, const char *word) {
    write_file(under(name), bytes, n);
    const char *path = under(name);
    options from = layouts_split();
    const char **slot[4] = {&from.llm, &from.diffusion_model, &from.vae, &from.tokenizer};
    for (int i = 0; i < 4; i++) {
        const char *kept = *slot[i];
        *slot[i] = path;
        is_refused(from, BADMAGIC, name, WORDS(name, word, i < 3 ? "or GGUF" : "tokenizer.json"));
        *slot[i] = kept;
    }
    is_refused((options){.model = path, .tokenizer = at_hand.tokenizer}, BADMAGIC, name, WORDS(name, word));
}

static void test_foreign(void) {
    refuse_file("model.ckpt", "PK\3\4\0\0\0\0\0\0\0\0model/data.pkl", 26, "pickle");
    refuse_file("model.pt", "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15, "pickle");
    refuse_file("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0", 54, "git-lfs");
    /* In a folder of parts the one that is missing is explained by the one that is not read. */
    mkdir(under("quants"), 0777);
    layouts_write_parts(WORDS("quants/t.safetensors", "quants/q.safetensors", "quants/v.safetensors"), true);
    remove(under("quants/t.safetensors"));
    copy_file(under("model.ckpt"), under("quants/z.gguf"));
    is_refused((options){.model = under("quants"), .tokenizer = at_hand.tokenizer}, BADMAGIC,
               "a pickle among parts", WORDS("z.gguf", "pickle"));
}

static options with_transformer(const char *path) {
    options from = layouts_split();
    from.diffusion_model = path;
    return from;
}

/* The transformer with one tensor more, or one of another type. */
static void refuse_quantised(const char *name, const char *tensor, const char *type, size_t bytes,
                             const char *word) {
    for (int prefixed = 0; prefixed < 2; prefixed++) {
        struct pile *p = layouts_original("transformer"), *q = NULL;
        struct item *t = pile_find(p, tensor);
        int32_t dim[1] = {(int32_t)bytes / (!strcmp(type, "F32") ? 4 : 1)};
        if (t) {
            t->type = type;
            t->bytes /= 4;
        } else {
            pile_add(p, "", tensor, type, 1, dim, "12345678", bytes);
        }
        q = pile_copy(p, prefixed ? "model.diffusion_model." : "");
        write_pile(q, under(name), q->config);
        is_refused(with_transformer(under(name)), UNSUPPORTED, name,
                   WORDS("quantised", name, word, tensor, "or GGUF"));
        pile_free(p);
        pile_free(q);
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
    struct pile *p = layouts_original("transformer");
    write_items(p, 0, p->n, under("meta.safetensors"), "quantization_config", "{}");
    is_refused((options){.model = under("meta.safetensors"),
                         .llm = under("qwen.safetensors"),
                         .vae = under("ae.safetensors"),
                         .tokenizer = at_hand.tokenizer},
               UNSUPPORTED, "metadata", WORDS("quantised", "metadata"));
    /* A scale that no form explains. */
    struct pile *all = pile_copy(p, "model.diffusion_model.");
    int32_t one[1] = {1};
    pile_add(all, "", "model.diffusion_model.layers.0.odd_scale", "F32", 1, one, "1234", 4);
    write_pile(all, under("odd.safetensors"), all->config);
    is_refused((options){.model = under("odd.safetensors"),
                         .llm = under("qwen.safetensors"),
                         .vae = under("ae.safetensors"),
                         .tokenizer = at_hand.tokenizer},
               UNUSED, "a leftover scale", WORDS("model.diffusion_model.layers.0.odd_scale", "scale"));
    pile_free(all);
    pile_free(p);
}

static void test_other_config(void) {
    const char *config = layouts_part("vae")->config;
    write_file(under("config.json"), config, strlen(config));
    gives_the_same(layouts_split(), "a config.json of one part beside all");
    remove(under("config.json"));
}

static void test_inspect_one(void) {
    json_t *root = inspect((options){.model = under("fused.safetensors")});
    json_t *one = json_array_get(json_object_get(root, "components"), 0);
    check(count(root, "components") == 1 && number(one, "tensors") < layouts_part("transformer")->n &&
              !strcmp(json_string_value(json_object_get(one, "family")), "zimage"),
          "one component of one file");
    check(count(root, "missing") == 3 && !count(root, "unknown"), "%zu missing", count(root, "missing"));
    json_decref(root);
    struct pile *p = pile_copy(layouts_part("text_encoder"), "stranger.");
    write_pile(p, under("stranger.safetensors"), NULL);
    root = inspect((options){.model = under("stranger.safetensors")});
    check(count(root, "components") == 1 && count(root, "unknown") == (size_t)p->n, "an unknown file: %zu",
          count(root, "unknown"));
    json_decref(root);
    is_refused((options){.model = under("stranger.safetensors")}, MISSING, "an unknown file",
               WORDS("no 'transformer' and 'vae' (", "no known part", "'stranger.",
                     "--diffusion-model and --vae with the transformer and autoencoder"));
    /* The same among parts that are known: the missing one is named before the tokenizer that is not there
     * either, with the number of tensors that may be it. */
    char others[PILE_NAME];
    snprintf(others, sizeof others, " and %d other tensors of no known component", p->n - 1);
    mkdir(under("strange"), 0777);
    copy_file(under("fused.safetensors"), under("strange/t.safetensors"));
    copy_file(under("ae.safetensors"), under("strange/v.safetensors"));
    is_refused((options){.model = under("strange")}, MISSING, "only two parts",
               WORDS("no 'text_encoder' (", "--llm with the text encoder"));
    copy_file(under("stranger.safetensors"), under("strange/q.safetensors"));
    is_refused((options){.model = under("strange")}, MISSING, "an unknown file among parts",
               WORDS("no 'text_encoder' (", "'stranger.", others));
    is_refused((options){.vae = under("ae.safetensors")}, MISSING, "an autoencoder alone cannot draw",
               WORDS("no 'transformer' (", "--diffusion-model", "its text encoders"));
    struct pile *all = pile_copy(layouts_part("vae"), "vae."), *t = layouts_original("transformer");
    pile_append(all, t, "model.diffusion_model.");
    pile_append(all, layouts_part("text_encoder"), "stranger.");
    write_pile(all, under("strangers.safetensors"), NULL);
    is_refused((options){.model = under("strangers.safetensors")}, MISSING, "one part of a file is unknown",
               WORDS("no 'text_encoder' (", "'stranger.", others));
    pile_free(all);
    pile_free(t);
    pile_free(p);
}

static void test_without_memory(void) {
    opens_without_memory((options){.model = under("loose")});
}

/* ---- the rows ---- */

static void (*const own[])(void) = {
    test_mixed,     test_override,     test_folders,     test_missing,        test_foreign,
    test_quantised, test_other_config, test_inspect_one, test_without_memory, NULL};
static void (*const own_wide[])(void) = {test_mixed, NULL};

/* Folders say themselves how the schedule is shifted, files cannot. */
#define LIKE_ALL                                                                                             \
    .family = &layouts_of_zimage, .tokenizer = "/tokenizer", .width = 32, .height = 48, .flow_shift = 3,     \
    .said = {"metadata", "flow shift 3"}

const struct layouts layouts_zimage = {LIKE_ALL, .one_file = true, .wrong_slots = true, .own = own};
const struct layouts layouts_zimage_wide = {LIKE_ALL, .own = own_wide};
