/* Layouts that people have: split files, all-in-one files with prefixes, folders of parts; tensors under
 * diffusers' names or their authors', q, k and v fused or not. Each gives the bits of the Hugging Face folder
 * that it was made from; what cannot be one is refused by name. */
#include "engine/sluice_bench.h"
#include "test/lib/layout_checks.h"
#include "test/lib/made_models.h"

#include <sys/stat.h>

static const char *model; /* the Hugging Face folder that everything is made from */
static struct pile *transformer, *text, *vae;
static char tokenizer[PILE_PATH];

/* ---- the layouts ---- */

static char *all_configs(void) {
    json_t *root =
        json_pack("{s:o, s:o, s:o}", "transformer", json_loads(transformer->config, 0, NULL), "llm",
                  json_loads(text->config, 0, NULL), "vae", json_loads(vae->config, 0, NULL));
    char *all = json_dumps(root, 0);
    json_decref(root);
    return all;
}

static struct pile *original(int split) {
    struct pile *p = pile_copy(transformer, "");
    name_originally(p, split);
    return p;
}

static struct pile *original_vae(void) {
    struct pile *p = pile_copy(vae, "");
    name_vae_originally(p);
    return p;
}

static void write_parts(const char *t, const char *q, const char *v, int split) {
    struct pile *a = original(split), *c = original_vae();
    write_pile(a, under(t), a->config);
    /* Both styles of names: as released, and as transformers 5 saves them. */
    struct pile *b = pile_copy(text, pile_find(text, "embed_tokens.weight") ? "model." : "");
    write_pile(b, under(q), b->config);
    write_pile(c, under(v), c->config);
    pile_free(a);
    pile_free(b);
    pile_free(c);
}

static void test_split(void) {
    write_parts("fused.safetensors", "qwen.safetensors", "ae.safetensors", -1);
    options from = {.diffusion_model = under("fused.safetensors"),
                    .llm = under("qwen.safetensors"),
                    .vae = under("ae.safetensors"),
                    .tokenizer = tokenizer};
    gives_the_same(from, "split files, fused");
    check(strstr(said, "metadata") && strstr(said, "flow shift 3"), "what was assumed is said: %s", said);
    struct pile *mixed = original(1);
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

/* A tensor that stands beside the encoder's own, as ComfyUI writes it, and the tied head. */
static void add_strays(struct pile *p, const char *prefix) {
    int32_t one[1] = {1};
    pile_add(p, prefix, "lm_head.weight", "F32", 1, one, "1234", 4);
    if (strstr(prefix, "qwen3_4b"))
        pile_add(p, "", "text_encoders.qwen3_4b.logit_scale", "F32", 0, one, "1234", 4);
}

static void write_all(const char *path, const char *of_transformer, const char *of_text, const char *of_vae) {
    struct pile *t = original(-1), *v = original_vae(), *all = pile_copy(t, of_transformer);
    char *configs = all_configs(), prefix[PILE_NAME];
    pile_append(all, text, of_text);
    pile_append(all, v, of_vae);
    size_t outer = strlen(of_text) - (strstr(of_text, "model.") ? strlen("model.") : 0);
    snprintf(prefix, sizeof prefix, "%.*s", (int)outer, of_text);
    add_strays(all, prefix);
    write_pile(all, path, configs);
    free(configs);
    pile_free(t);
    pile_free(v);
    pile_free(all);
}

static void test_all_in_one(void) {
    static const char *const prefixes[][3] = {
        {"model.diffusion_model.", "text_encoders.qwen3_4b.transformer.model.", "vae."},
        {"diffusion_model.", "text_encoders.qwen3_4b.transformer.", "first_stage_model."},
        {"", "text_encoders.llm.model.", "vae."},
        {"model.diffusion_model.", "text_encoders.llm.", ""},
        {"model.diffusion_model.", "model.", "vae."},
    };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        write_all(under("all.safetensors"), prefixes[i][0], prefixes[i][1], prefixes[i][2]);
        options from = {.model = under("all.safetensors"), .tokenizer = tokenizer};
        gives_the_same(from, prefixes[i][1]);
        check(!strstr(said, "unknown"), "%s: %s", prefixes[i][1], said);
        json_t *root = inspect(from);
        check(count(root, "components") == 3 && !count(root, "unknown") && !count(root, "missing"),
              "%s: inspect finds %zu, %zu unknown, %zu missing", prefixes[i][1], count(root, "components"),
              count(root, "unknown"), count(root, "missing"));
        size_t tensors = 0;
        for (size_t k = 0; k < count(root, "components"); k++)
            tensors += (size_t)number(json_array_get(json_object_get(root, "components"), k), "tensors");
        struct pile *fused = original(-1);
        bool stray = strstr(prefixes[i][1], "qwen3_4b") != NULL;
        check(tensors == (size_t)(fused->n + text->n + vae->n + 1 + stray), "%s: %zu tensors", prefixes[i][1],
              tensors);
        pile_free(fused);
        json_decref(root);
    }
    /* A flag overrides what the file holds. */
    write_all(under("all.safetensors"), "model.diffusion_model.", "text_encoders.llm.", "vae.");
    gives_the_same(
        (options){.model = under("all.safetensors"), .vae = under("ae.safetensors"), .tokenizer = tokenizer},
        "one part overridden");
}

static void test_folders(void) {
    mkdir(under("loose"), 0777);
    write_parts("loose/t.safetensors", "loose/q.safetensors", "loose/v.safetensors", 0);
    copy_file(tokenizer, under("loose/tokenizer"));
    gives_the_same((options){.model = under("loose")}, "loose files");
    mkdir(under("comfy"), 0777);
    mkdir(under("comfy/split_files"), 0777);
    mkdir(under("comfy/split_files/diffusion_models"), 0777);
    mkdir(under("comfy/split_files/text_encoders"), 0777);
    mkdir(under("comfy/split_files/vae"), 0777);
    write_parts("comfy/split_files/diffusion_models/z.safetensors",
                "comfy/split_files/text_encoders/q.safetensors", "comfy/split_files/vae/ae.safetensors", -1);
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
    static const char *const parts[][2] = {{"transformer", "a"}, {"text_encoder", "b"}, {"vae", "c"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", model, parts[i][0]);
        char to[PILE_NAME];
        snprintf(to, sizeof to, "renamed/%s", parts[i][1]);
        copy_file(path, under(to));
    }
    copy_file(tokenizer, under("renamed/tokenizer"));
    gives_the_same((options){.model = under("renamed")}, "renamed folders");
    check(strstr(said, "flow shift") && !strstr(said, "config.json for"), "only the schedule is assumed: %s",
          said);
}

/* ---- what is refused ---- */

static void test_slots(void) {
    const char *part[3] = {under("qwen.safetensors"), under("fused.safetensors"), under("ae.safetensors")};
    static const char *const names[3] = {"text encoder (qwen3)", "transformer (zimage)",
                                         "autoencoder (vae_kl)"};
    static const char *const asked[3] = {"text encoder (qwen3)", "transformer (zimage or flux)",
                                         "autoencoder (vae_kl)"};
    static const char *const flags[3] = {"--llm", "--diffusion-model", "--vae"};
    for (int slot = 0; slot < 3; slot++)
        for (int given = 0; given < 3; given++) {
            const char *in[3] = {part[0], part[1], part[2]};
            if (given == slot) continue;
            in[slot] = part[given];
            is_refused(
                (options){.llm = in[0], .diffusion_model = in[1], .vae = in[2], .tokenizer = tokenizer},
                UNSUPPORTED, "wrong slot",
                WORDS("do not fit their slot", names[given], asked[slot], flags[slot]));
        }
    options from = {.llm = part[0], .diffusion_model = part[1], .vae = part[2]};
    for (int i = 0; i < 3; i++) {
        from.tokenizer = part[i];
        is_refused(from, BADMAGIC, "weights as tokenizer", WORDS("a safetensors file", "tokenizer.json"));
    }
    from.tokenizer = tokenizer;
    from.vae = under("nothing.safetensors");
    is_refused(from, MISSING, "no such file", WORDS("nothing.safetensors"));
    from.vae = NULL;
    is_refused(from, MISSING, "no autoencoder", WORDS("'vae'", "--vae"));
}

static void refuse_file(const char *name, const char *bytes, size_t n, const char *word) {
    write_file(under(name), bytes, n);
    const char *path = under(name);
    options from = {.llm = under("qwen.safetensors"),
                    .diffusion_model = under("fused.safetensors"),
                    .vae = under("ae.safetensors"),
                    .tokenizer = tokenizer};
    const char **slot[4] = {&from.llm, &from.diffusion_model, &from.vae, &from.tokenizer};
    for (int i = 0; i < 4; i++) {
        const char *kept = *slot[i];
        *slot[i] = path;
        is_refused(from, BADMAGIC, name, WORDS(name, word, i < 3 ? "or GGUF" : "tokenizer.json"));
        *slot[i] = kept;
    }
    is_refused((options){.model = path, .tokenizer = tokenizer}, BADMAGIC, name, WORDS(name, word));
}

static void test_foreign(void) {
    refuse_file("model.ckpt", "PK\3\4\0\0\0\0\0\0\0\0model/data.pkl", 26, "pickle");
    refuse_file("model.pt", "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15, "pickle");
    refuse_file("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0", 54, "git-lfs");
    /* In a folder of parts the one that is missing is explained by the one that is not read. */
    mkdir(under("quants"), 0777);
    write_parts("quants/t.safetensors", "quants/q.safetensors", "quants/v.safetensors", -1);
    remove(under("quants/t.safetensors"));
    copy_file(under("model.ckpt"), under("quants/z.gguf"));
    is_refused((options){.model = under("quants"), .tokenizer = tokenizer}, BADMAGIC, "a pickle among parts",
               WORDS("z.gguf", "pickle"));
}

/* The transformer with one tensor more, or one of another type. */
static void refuse_quantised(const char *name, const char *tensor, const char *type, size_t bytes,
                             const char *word) {
    for (int prefixed = 0; prefixed < 2; prefixed++) {
        struct pile *p = original(-1), *q = NULL;
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
        is_refused((options){.llm = under("qwen.safetensors"),
                             .diffusion_model = under(name),
                             .vae = under("ae.safetensors"),
                             .tokenizer = tokenizer},
                   UNSUPPORTED, name, WORDS("quantised", name, word, tensor, "or GGUF"));
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
    struct pile *p = original(-1);
    write_items(p, 0, p->n, under("meta.safetensors"), "quantization_config", "{}");
    is_refused((options){.model = under("meta.safetensors"),
                         .llm = under("qwen.safetensors"),
                         .vae = under("ae.safetensors"),
                         .tokenizer = tokenizer},
               UNSUPPORTED, "metadata", WORDS("quantised", "metadata"));
    /* A scale that no form explains. */
    struct pile *all = pile_copy(p, "model.diffusion_model.");
    int32_t one[1] = {1};
    pile_add(all, "", "model.diffusion_model.layers.0.odd_scale", "F32", 1, one, "1234", 4);
    write_pile(all, under("odd.safetensors"), all->config);
    is_refused((options){.model = under("odd.safetensors"),
                         .llm = under("qwen.safetensors"),
                         .vae = under("ae.safetensors"),
                         .tokenizer = tokenizer},
               UNUSED, "a leftover scale", WORDS("model.diffusion_model.layers.0.odd_scale", "scale"));
    pile_free(all);
    pile_free(p);
}

static void test_shapes(void) {
    struct pile *p = original(-1), *q;
    struct item *t = pile_find(p, "layers.1.attention.qkv.weight");
    options from = {.llm = under("qwen.safetensors"),
                    .diffusion_model = under("shape.safetensors"),
                    .vae = under("ae.safetensors"),
                    .tokenizer = tokenizer};
    char expected[32];
    snprintf(expected, sizeof expected, "[%d, %d]", t->dim[0], t->dim[1]);
    t->dim[0] -= 1;
    t->bytes -= (size_t)t->dim[1] * 4;
    q = pile_copy(p, "diffusion_model.");
    write_pile(q, under("shape.safetensors"), q->config);
    is_refused(from, SHAPE, "a fused tensor's shape",
               WORDS("'diffusion_model.layers.1.attention.qkv.weight'", expected));
    pile_free(q);
    pile_drop(p, "layers.1.attention.qkv");
    write_pile(p, under("shape.safetensors"), p->config);
    is_refused(from, MISSING, "no fused tensor",
               WORDS("layers.1.attention.to_q.weight", "layers.1.attention.qkv.weight"));
    pile_free(p);
    /* Without a configuration a head of 12 is not the published one. */
    p = original(-1);
    write_pile(p, under("shape.safetensors"), NULL);
    is_refused(from, SHAPE, "published sizes", WORDS("rope axes", "config.json"));
    /* Two of a kind in one file. */
    q = pile_copy(p, "model.diffusion_model.");
    pile_append(q, p, "");
    write_pile(q, under("shape.safetensors"), NULL);
    is_refused(from, UNSUPPORTED, "two in one file", WORDS("two parts", "'model.diffusion_model.'"));
    pile_free(p);
    pile_free(q);
}

/* More ids than rows, more rows than padding explains; a config.json that is another's. */
static void test_misfits(void) {
    struct pile *p = pile_copy(text, "");
    struct item *rows = pile_find(p, "embed_tokens.weight");
    rows->dim[0] = 100;
    rows->bytes = (size_t)rows->dim[1] * 400;
    write_pile(p, under("few.safetensors"), p->config);
    is_refused((options){.llm = under("few.safetensors"),
                         .diffusion_model = under("fused.safetensors"),
                         .vae = under("ae.safetensors"),
                         .tokenizer = tokenizer},
               SHAPE, "more ids than rows", WORDS("token ids", "100", "few.safetensors"));
    pile_free(p);
    struct sluice_error e;
    check(!sluice_checkpoint_write(
              "zimage", under("rows"),
              "heads=1,axis0=16,axis1=24,axis2=24,layers=1,refiners=1,hidden=16,text_heads=1,"
              "text_key_heads=1,text_head_dim=16,text_ff=16,text_layers=2,vocabulary=1200,"
              "vae0=8,vae1=8,vae2=8,vae3=8,vae_groups=8",
              1, NULL, NULL, &e),
          "%s", e.what);
    is_refused((options){.model = under("rows"), .tokenizer = tokenizer}, SHAPE,
               "another encoder's tokenizer", WORDS("token ids", "651 in the tokenizer", "text_encoder"));
    write_file(under("config.json"), vae->config, strlen(vae->config));
    gives_the_same((options){.llm = under("qwen.safetensors"),
                             .diffusion_model = under("fused.safetensors"),
                             .vae = under("ae.safetensors"),
                             .tokenizer = tokenizer},
                   "a config.json of one part beside all");
    remove(under("config.json"));
}

static void test_inspect_one(void) {
    json_t *root = inspect((options){.model = under("fused.safetensors")});
    json_t *one = json_array_get(json_object_get(root, "components"), 0);
    check(count(root, "components") == 1 && number(one, "tensors") < transformer->n &&
              !strcmp(json_string_value(json_object_get(one, "family")), "zimage"),
          "one component of one file");
    check(count(root, "missing") == 3 && !count(root, "unknown"), "%zu missing", count(root, "missing"));
    json_decref(root);
    struct pile *p = pile_copy(text, "stranger.");
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
    snprintf(others, sizeof others, " and %d other tensors, which are no known part", p->n - 1);
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
    struct pile *all = pile_copy(vae, "vae."), *t = original(-1);
    pile_append(all, t, "model.diffusion_model.");
    pile_append(all, text, "stranger.");
    write_pile(all, under("strangers.safetensors"), NULL);
    is_refused((options){.model = under("strangers.safetensors")}, MISSING, "one part of a file is unknown",
               WORDS("no 'text_encoder' (", "'stranger.", others));
    pile_free(all);
    pile_free(t);
    pile_free(p);
}

static void test_model(const char *folder) {
    struct rig rig;
    model = folder;
    wanted_request = request_fox(32, 48, 2, 1, 1);
    wanted_request.flow_shift = 3; /* folders say so themselves, files cannot */
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", model);
    transformer = pile_read(model, "transformer");
    text = pile_read(model, "text_encoder");
    vae = pile_read(model, "vae");
    if (open_rig(&rig, (options){.model = model}, model)) {
        check(!said[0], "a Hugging Face folder leaves nothing to assume: %s", said);
        wanted = run(&rig, &wanted_request);
        result_free(&wanted);
        rig_close(&rig);
    }
    test_split();
}

static void forget_model(void) {
    pile_free(transformer);
    pile_free(text);
    pile_free(vae);
}

int main(void) {
    temporary_make();
    test_model(wide_checkpoint());
    forget_model();
    test_model("test/golden/zimage_a/model");
    test_all_in_one();
    test_folders();
    test_slots();
    test_foreign();
    test_quantised();
    test_shapes();
    test_misfits();
    test_inspect_one();
    opens_without_memory((options){.model = under("loose")});
    forget_model();
    return finish();
}
