/* Metadata of GGUF models: architecture, number of blocks, settings, tokenizers, and tensor names of other
 * programs. Some test cases begin with the number of a defect (g39 ...). test_gguf.c tests the defects that
 * need no model.
 *
 * The tested files are copies of test/golden/stored with changed metadata and tensor names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/open/contents.h"
#include "engine/open/model.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"
#include "test/lib/assert_ok.h"
#include "test/lib/model_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STORED "test/golden/stored/"
#define ZIMAGE STORED "zimage_gguf/model/"
#define QWEN3  ZIMAGE "text_encoders/qwen3.gguf"
#define FLUX   STORED "flux_gguf/model/"

enum { PATH = 256, NAME = 128, TENSORS_MAX = 256 };

static struct sys sys;
static char folder[] = "/tmp/sluice-models-XXXXXX";

/* Callback that renames a tensor: writes the new name, or "" to leave the tensor out. */
typedef void (*renaming)(const char *name, char to[NAME]);

struct source_file {
    const char *path;
    renaming rename;
    struct tensor_index index;
};

struct copying {
    int n;
    char name[TENSORS_MAX][NAME];
    struct named_tensor tensor[TENSORS_MAX];
    const struct index_entry *entry[TENSORS_MAX];
    const struct byte_source *source[TENSORS_MAX];
    uint64_t done[TENSORS_MAX];
};

static enum status copy_bytes(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct copying *c = user;
    source_read(c->source[i], to, bytes, c->entry[i]->offset + c->done[i], e);
    c->done[i] += bytes;
    return e->code;
}

static void keep_name(const char *name, char to[NAME]) {
    snprintf(to, NAME, "%s", name);
}

static const char *path_of(const char *name) {
    static char path[PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void add_tensors(struct copying *c, struct source_file *old) {
    struct error e = {0};
    component_open(&sys, old->path, &old->index, &e);
    assert_ok(&e);
    for (int i = 0; i < old->index.n_entries; i++) {
        const struct index_entry *entry = &old->index.entries[i];
        assert_true(c->n < TENSORS_MAX);
        old->rename(entry->name, c->name[c->n]);
        if (!*c->name[c->n]) continue;
        c->entry[c->n] = entry;
        c->source[c->n] = &old->index.sources[entry->source];
        c->tensor[c->n] =
            (struct named_tensor){c->name[c->n], tensor_make(NULL, entry->dtype, entry->rank, entry->dim)};
        c->n++;
    }
}

/* Writes a GGUF file with the tensors of the source files, renamed, and new metadata. */
static const char *rewrite_all(struct source_file *old, int n_old, const struct gguf_metadata *metadata,
                               int n) {
    static struct copying c;
    const char *path = path_of("new.gguf");
    struct error e = {0};
    memset(&c, 0, sizeof c);
    for (int i = 0; i < n_old; i++) add_tensors(&c, &old[i]);
    gguf_write_made(&sys, path, metadata, n, c.tensor, c.n, &(struct tensor_maker){&c, copy_bytes}, &e);
    assert_ok(&e);
    for (int i = 0; i < n_old; i++) index_destroy(&old[i].index);
    return path;
}

static const char *rewrite(const char *from, renaming rename, const struct gguf_metadata *metadata, int n) {
    struct source_file old = {from, rename, {0}};
    return rewrite_all(&old, 1, metadata, n);
}

static struct gguf_metadata text(const char *key, const char *value) {
    return (struct gguf_metadata){.key = key, .kind = GGUF_STRING, .text = value};
}

static struct gguf_metadata number(const char *key, enum gguf_kind kind, double value) {
    return (struct gguf_metadata){.key = key, .kind = kind, .number = value};
}

/* Expects that the engine recognises this family from the file's contents; NULL: no family. */
static void expect_family(const char *path, const struct family *family) {
    struct contents contents;
    struct tensor_index whole;
    struct error e = {0};
    contents_open(&sys, path, &whole, &contents, &e);
    assert_ok(&e);
    assert_int_equal(contents.n, family ? 1 : 0);
    if (family) assert_ptr_equal(contents.component[0].family, family);
    index_destroy(&whole);
}

static void expect_refusal(const char *path, const char *found, const char *expected) {
    struct contents contents;
    struct tensor_index whole;
    struct error e = {0};
    char line[1024];
    assert_int_equal(contents_open(&sys, path, &whole, &contents, &e), UNSUPPORTED);
    error_line(&e, line, sizeof line);
    if (!strstr(e.found, found) || !strstr(e.expected, expected)) fail_msg("%s", line);
}

static const char *with_architecture(const char *from, renaming rename, const char *name) {
    struct gguf_metadata metadata = text("general.architecture", name);
    return rewrite(from, rename, &metadata, 1);
}

static void test_g39_architectures(void **state) {
    (void)state;
    const char *zimage = ZIMAGE "diffusion_models/zimage.gguf", *flux = FLUX "unet/flux.gguf";
    static const char *const silent[] = {"pig", "cow", ""};
    expect_family(zimage, &family_zimage);
    expect_family(flux, &family_flux);
    expect_family(QWEN3, &family_qwen3);
    expect_family(FLUX "t5/t5.gguf", &family_t5);
    expect_family(rewrite(flux, keep_name, NULL, 0), &family_flux);
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        expect_family(with_architecture(zimage, keep_name, silent[i]), &family_zimage);
    expect_family(with_architecture(FLUX "t5/t5.gguf", keep_name, "t5"), &family_t5);
    expect_refusal(with_architecture(flux, keep_name, "llama"), "\"llama\"", "flux");
    expect_refusal(with_architecture(flux, keep_name, "lumina2"), "\"lumina2\"", "flux");
    expect_refusal(with_architecture(QWEN3, keep_name, "flux"), "\"flux\"", "qwen3");
    expect_refusal(with_architecture(QWEN3, keep_name, "qwen3vl"), "\"qwen3vl\"", "qwen3");
}

/* Leaves out the q and k norms; the encoder then looks like Qwen2 or Llama. */
static void drop_norms(const char *name, char to[NAME]) {
    keep_name(strstr(name, "_norm.weight") && strstr(name, "attn_") && !strstr(name, "attn_norm") ? "" : name,
              to);
}

static void expect_model_failure(struct model_paths o, enum status code, const char *found) {
    struct sluice_model *model;
    struct error e = {0};
    char line[1024];
    assert_int_not_equal(model_open(&sys, model_options(&o), &model, &e), OK);
    error_line(&e, line, sizeof line);
    if (e.code != code || !strstr(e.found, found)) fail_msg("%s", line);
}

static void test_g39_text_encoders(void **state) {
    (void)state;
    static const char *const others[] = {"llama", "qwen3vl", "qwen2", "gemma3"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *path = with_architecture(QWEN3, drop_norms, others[i]);
        expect_refusal(path, others[i], "lumina2");
        expect_refusal(path, others[i], "t5encoder");
        expect_model_failure((struct model_paths){.diffusion_model = path}, UNSUPPORTED, others[i]);
        expect_model_failure((struct model_paths){.model = path}, UNSUPPORTED, others[i]);
    }
    expect_family(with_architecture(QWEN3, drop_norms, "qwen3"), NULL);
    expect_model_failure((struct model_paths){.llm = with_architecture(QWEN3, drop_norms, "qwen3"),
                                              .diffusion_model = ZIMAGE "diffusion_models/zimage.gguf"},
                         UNSUPPORTED, "no known component");
}

/* Opens Z-Image with a Qwen3 text encoder in GGUF, with one additional metadata pair unless NULL. The
 * tokenizer comes from a separate file. */
static enum status open_with(const struct gguf_metadata *pair, struct error *e) {
    struct gguf_metadata metadata[2] = {text("general.architecture", "qwen3")};
    if (pair) metadata[1] = *pair;
    struct sluice_model *model = NULL;
    struct model_paths o = {.llm = rewrite(QWEN3, keep_name, metadata, pair ? 2 : 1),
                            .diffusion_model = ZIMAGE "diffusion_models/zimage.gguf",
                            .vae = ZIMAGE "vae",
                            .tokenizer = QWEN3};
    *e = (struct error){0};
    model_open(&sys, model_options(&o), &model, e);
    model_close(model);
    return e->code;
}

static void test_g40_block_count(void **state) {
    (void)state;
    static const char key[] = "qwen3.block_count";
    struct error e;
    const struct gguf_metadata wrong[] = {
        number(key, GGUF_U32, 0),          number(key, GGUF_U32, 1),
        number(key, GGUF_U32, 3),          number(key, GGUF_U32, 513),
        number(key, GGUF_U32, UINT32_MAX), number(key, GGUF_F32, 2.5),
        number(key, GGUF_BOOL, 1),         text(key, "2"),
    };
    open_with(NULL, &e);
    assert_ok(&e);
    open_with(&(struct gguf_metadata){.key = key, .kind = GGUF_U32, .number = 2}, &e);
    assert_ok(&e);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (open_with(&wrong[i], &e) != META) fail_msg("row %zu: %s", i, status_name(e.code));
}

static void test_unsupported_settings_refused(void **state) {
    (void)state;
    struct error e;
    const struct gguf_metadata yarn = text("qwen3.rope.scaling.type", "yarn"),
                               none = text("qwen3.rope.scaling.type", "none"),
                               slow = number("qwen3.rope.freq_base", GGUF_F32, 0.5),
                               word = text("qwen3.attention.layer_norm_rms_epsilon", "small");
    assert_int_equal(open_with(&yarn, &e), UNSUPPORTED);
    assert_int_equal(open_with(&none, &e), OK);
    assert_int_equal(open_with(&slow, &e), META);
    assert_int_equal(open_with(&word, &e), META);
}

static void test_embedded_tokenizer_preferred(void **state) {
    (void)state;
    char real[4096], *json = NULL;
    struct sluice_error e = {0};
    assert_non_null(realpath(QWEN3, real));
    assert_int_equal(symlink(real, path_of("encoder.gguf")), 0);
    FILE *other = fopen(path_of("tokenizer.json"), "w");
    assert_non_null(other);
    assert_true(fputs("{}", other) >= 0);
    assert_int_equal(fclose(other), 0);
    struct model_paths o = {.llm = path_of("encoder.gguf")};
    assert_int_equal(sluice_tokenize(model_options(&o), "fox", 3, &json, &e), SLUICE_OK);
    assert_non_null(strstr(json, "\"text_encoder\""));
    sluice_free(json);
    unlink(path_of("encoder.gguf"));
    unlink(path_of("tokenizer.json"));
}

static void test_t13_tokenizer_larger_than_embedding(void **state) {
    (void)state;
    struct model_paths o = {.model = "test/golden/zimage_b/model", .tokenizer = QWEN3};
    expect_model_failure(o, SHAPE, "651 in the tokenizer");
}

static void drop_one(const char *name, char to[NAME]) {
    keep_name(strcmp(name, "blk.0.attn_v.weight") ? name : "", to);
}

static void test_missing_tensor_named_as_in_file(void **state) {
    (void)state;
    struct sluice_model *model;
    struct error e = {0};
    struct model_paths o = {.llm = with_architecture(QWEN3, drop_one, "qwen3"),
                            .diffusion_model = ZIMAGE "diffusion_models/zimage.gguf",
                            .vae = ZIMAGE "vae",
                            .tokenizer = QWEN3};
    assert_int_equal(model_open(&sys, model_options(&o), &model, &e), MISSING);
    assert_non_null(strstr(e.what, "blk.0.attn_v.weight"));
}

static void behind_prefix(const char *name, char to[NAME]) {
    snprintf(to, NAME, "model.diffusion_model.%s", name);
}

static void replace(char name[NAME], const char *part, const char *by) {
    char *at = strstr(name, part), rest[NAME];
    if (!at) return;
    snprintf(rest, sizeof rest, "%s", at + strlen(part));
    snprintf(at, (size_t)(name + NAME - at), "%s%s", by, rest);
}

/* Renames a CLIP model's tensors as clip.cpp's converter does. */
static void clip_cpp(const char *name, char to[NAME]) {
    static const char *const pairs[][2] = {
        {"text_model", "t"},     {"encoder.layers", "blk"}, {"embeddings.", ""},     {"_proj", ""},
        {"self_attn.", "attn_"}, {"layer_norm", "ln"},      {"mlp.fc1", "ffn_down"}, {"mlp.fc2", "ffn_up"},
        {"embedding", "embd"},   {"final", "post"},
    };
    keep_name(name, to);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) replace(to, pairs[i][0], pairs[i][1]);
}

static struct tensor_index open_part(const char *path) {
    struct contents contents;
    struct tensor_index whole;
    struct error e = {0};
    contents_open(&sys, path, &whole, &contents, &e);
    assert_ok(&e);
    return whole;
}

static void test_prefixed_names(void **state) {
    (void)state;
    const char *path = rewrite(FLUX "unet/flux.gguf", behind_prefix, NULL, 0);
    struct contents contents;
    struct tensor_index whole;
    struct error e = {0};
    contents_open(&sys, path, &whole, &contents, &e);
    assert_ok(&e);
    assert_int_equal(contents.n, 1);
    assert_ptr_equal(contents.component[0].family, &family_flux);
    assert_string_equal(contents.component[0].prefix, "model.diffusion_model.");
    index_destroy(&whole);
}

static void behind_encoder(const char *name, char to[NAME]) {
    snprintf(to, NAME, "text_encoders.llm.%s", name);
}

/* With transformer and encoder in one file, the tokenizer is read after the transformer was examined. */
static void test_tokenizer_of_combined_file(void **state) {
    (void)state;
    struct source_file old[] = {{ZIMAGE "diffusion_models/zimage.gguf", behind_prefix, {0}},
                                {QWEN3, behind_encoder, {0}}};
    const struct gguf_metadata metadata[] = {text("general.architecture", "lumina2"),
                                             text("tokenizer.ggml.model", "gpt2"),
                                             text("tokenizer.ggml.pre", "qwen2")};
    struct model_paths o = {.model = rewrite_all(old, 2, metadata, 3)};
    struct sluice_error e = {0};
    char *json = NULL;
    assert_int_equal(sluice_tokenize(model_options(&o), "fox", 3, &json, &e), SLUICE_MISSING);
    assert_non_null(strstr(e.what, "tokenizer.ggml.tokens"));
    assert_null(json);
}

/* Under clip.cpp's and transformers' names, every CLIP tensor belongs to the same block, at the same offset.
 */
static void test_clip_cpp_names(void **state) {
    (void)state;
    const struct gguf_metadata metadata[] = {
        text("general.architecture", "clip"), number("clip.text.attention.head_count", GGUF_U32, 2),
        number("clip.text.attention.layer_norm_epsilon", GGUF_F32, 1e-5)};
    const char *from = "test/golden/flux_a/model/text_encoder/model.safetensors";
    expect_family(rewrite(from, clip_cpp, metadata, 3), &family_clip);
    struct component old = {.family = &family_clip, .sys = &sys, .index = open_part(from)};
    struct component new = {.family = &family_clip, .sys = &sys, .index = open_part(path_of("new.gguf"))};
    enum config_origin origin;
    struct error e = {0};
    int place;
    const struct recipe *recipe = models_find_slot(&family_clip, NULL, NULL, &place);
    const struct slot *slot = &recipe->slot[place];
    configuration_bind(&old, from, slot, &origin, &e);
    configuration_bind(&new, path_of("new.gguf"), slot, &origin, &e);
    assert_ok(&e);
    assert_int_equal(origin, CONFIG_METADATA);
    assert_int_equal(new.n_unknown, 0);
    assert_int_equal(new.n_blocks, old.n_blocks);
    assert_memory_equal(new.dims, old.dims, sizeof old.dims);
    assert_memory_equal(new.settings, old.settings, sizeof old.settings);
    for (int i = 0; i < old.n_blocks; i++) {
        assert_int_equal(new.blocks[i].n_segments, old.blocks[i].n_segments);
        for (int k = 0; k < old.blocks[i].n_segments; k++) {
            struct packed_segment a = old.blocks[i].segments[k], b = new.blocks[i].segments[k];
            char one[1 << 16], other[1 << 16];
            assert_true(a.bytes == b.bytes && a.packed_offset == b.packed_offset && a.bytes <= sizeof one);
            source_read(&old.index.sources[0], one, a.bytes, a.file_offset, &e);
            source_read(&new.index.sources[0], other, b.bytes, b.file_offset, &e);
            assert_ok(&e);
            assert_memory_equal(one, other, a.bytes);
        }
    }
    component_destroy(&old);
    component_destroy(&new);
}

static int begin(void **state) {
    (void)state;
    sys_init_machine(&sys);
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    unlink(path_of("new.gguf"));
    return rmdir(folder) || sys_memory_use(&sys).live_bytes[LINE_HOST];
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_g39_architectures),
        cmocka_unit_test(test_g39_text_encoders),
        cmocka_unit_test(test_g40_block_count),
        cmocka_unit_test(test_unsupported_settings_refused),
        cmocka_unit_test(test_embedded_tokenizer_preferred),
        cmocka_unit_test(test_t13_tokenizer_larger_than_embedding),
        cmocka_unit_test(test_missing_tensor_named_as_in_file),
        cmocka_unit_test(test_prefixed_names),
        cmocka_unit_test(test_tokenizer_of_combined_file),
        cmocka_unit_test(test_clip_cpp_names),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, begin, end);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
