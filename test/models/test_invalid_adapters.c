/* Files that are no adapters, or adapters for another model: each file is refused quickly, with an error that
 * names it, and without leaks. With the option `partial`, modules that do not fit only cause warnings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/open/adapter_combine.h"
#include "test/lib/adapter_files.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"
#include "test/lib/fault_sys.h"

static struct sluice_model *zimage, *sd1, *published;

enum model { ZIMAGE, SD1, PUBLISHED };

/* Opens a model: from a folder, or without files by a recipe's name, at its published sizes. */
static struct sluice_model *open_model(const char *name) {
    bool folder = strchr(name, '/') != NULL;
    struct sluice_model_options options = {
        .struct_size = sizeof options, .model = folder ? name : NULL, .family = folder ? NULL : name};
    struct sluice_model *model = NULL;
    struct error e = {0};
    char line[1024];
    model_open(NULL, &options, &model, &e);
    check(e.code == OK, "%s: %s", name, error_line(&e, line, sizeof line));
    return model;
}

/* Adds tensors of zeros that a text lists: "NAME TYPE DIM,DIM; ...". */
static void add_tensors(struct adapter_writer *w, const char *text) {
    static const struct {
        const char *name;
        int size;
    } types[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8}, {"U8", 1}, {"F8_E4M3", 1}};
    for (int used = 0; *text; text += used) {
        char name[256], type[16], dims[64] = "";
        int32_t dim[8];
        int rank = 0, size = 0;
        if (!check(sscanf(text, " %255s %15s %63[0-9,-]%n", name, type, dims, &used) == 3, "%s", text))
            return;
        for (char *at = dims; *at && *at != '-'; at += *at == ',') dim[rank++] = (int32_t)strtol(at, &at, 10);
        for (int i = 0; i < COUNT_OF(types); i++)
            if (!strcmp(types[i].name, type)) size = types[i].size;
        adapter_writer_add(w, name, type, size, rank, dim, NULL);
        used += (int)strspn(text + used, "; ");
    }
}

static const char *write_tensors(const char *text, const char *metadata) {
    static char path[128];
    struct adapter_writer w;
    snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
    adapter_writer_begin(&w);
    add_tensors(&w, text);
    return adapter_writer_end(&w, path, metadata);
}

/* Opens an adapter and matches it with the model on a memory-counting sys. All memory must be freed. */
static enum status match_refusing_leaks(const struct sluice_model *m, const char *path, bool partial,
                                        struct adapter_match *match, struct error *e) {
    struct adapter *a = NULL;
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    int open_before = count_open_files();
    *match = (struct adapter_match){0};
    *e = (struct error){0};
    if (adapter_open(m->sys, path, &a, e) == OK) adapter_match(a, m, partial, match, e);
    struct adapter_match copy = *match;
    adapter_match_destroy(match);
    adapter_close(a);
    check(sys_memory_use(m->sys).live_bytes[LINE_HOST] == before && count_open_files() == open_before,
          "a refused adapter leaks memory");
    *match = copy; /* callers read only counts and warnings, which remain valid */
    return e->code;
}

#define W1       "diffusion_model.layers.0.feed_forward.w1"
#define W1_PAIR  W1 ".lora_A.weight F32 2,36; " W1 ".lora_B.weight F32 96,2; "
#define KONV     "lora_unet_up_blocks_2_resnets_0_conv1"
#define TOO_MANY "lora_unet_layers_0_attention_qkv"

static const struct row {
    const char *what, *tensors;
    enum status code;
    const char *words[2];
    enum model model;
} rows[] = {
    {"factors of different rank",
     W1 ".lora_A.weight F32 2,36; " W1 ".lora_B.weight F32 96,3",
     SHAPE,
     {"has another rank than the other factor of its module", "[96, 3]"},
     false},
    {"rank 0", W1 ".lora_A.weight F32 0,36; " W1 ".lora_B.weight F32 96,0", SHAPE, {"is empty", W1}, false},
    {"wrong columns",
     W1 ".lora_A.weight F32 2,35; " W1 ".lora_B.weight F32 96,2",
     SHAPE,
     {"expected [r, 36]", "[2, 35]"},
     false},
    {"wrong rows",
     W1 ".lora_A.weight F32 2,36; " W1 ".lora_B.weight F32 95,2",
     SHAPE,
     {"expected [96, r]", "[95, 2]"},
     false},
    {"rows of one part for a fused weight",
     TOO_MANY ".lora_down.weight F32 2,36; " TOO_MANY ".lora_up.weight F32 36,2",
     SHAPE,
     {"expected [108, r]", "[36, 2]"},
     false},
    {"a matrix for a convolution",
     KONV ".lora_down.weight F32 2,252; " KONV ".lora_up.weight F32 12,2",
     SHAPE,
     {"expected [r, 28, 3, 3]", "[2, 252]"},
     true},
    {"a kernel of another size",
     KONV ".lora_down.weight F32 2,28,1,1; " KONV ".lora_up.weight F32 12,2,1,1",
     SHAPE,
     {"expected [r, 28, 3, 3]", "[2, 28, 1, 1]"},
     true},
    {"a 3x3 kernel in the up factor",
     KONV ".lora_down.weight F32 2,28,3,3; " KONV ".lora_up.weight F32 12,2,3,3",
     SHAPE,
     {"expected [12, r]", "[12, 2, 3, 3]"},
     true},
    {"one factor", W1 ".lora_A.weight F32 2,36", MISSING, {"has only one of its two factors", W1}, ZIMAGE},
    {"alpha alone", W1 ".alpha F32 -", MISSING, {"has no factors", W1}, ZIMAGE},
    {"lora_mid alone", W1 ".lora_mid.weight F32 2,2,1,1", MISSING, {"without the factor", W1}, ZIMAGE},
    {"w1 whole and factored",
     W1 ".lokr_w1 F32 4,3; " W1 ".lokr_w1_a F32 4,1; " W1 ".lokr_w1_b F32 1,3; " W1 ".lokr_w2 F32 24,12",
     DUP,
     {"whole, and as a product", W1},
     false},
    {"one LoKr factor", W1 ".lokr_w1 F32 4,3", MISSING, {"has only one of its two factors", W1}, ZIMAGE},
    {"two kinds of adapter",
     W1_PAIR W1 ".lokr_w1 F32 4,3; " W1 ".lokr_w2 F32 24,12",
     DUP,
     {"two kinds of adapter", W1},
     ZIMAGE},
    {"a difference of another rank", W1 ".diff F32 96,6,6", SHAPE, {W1, "other axes"}, ZIMAGE},
    {"a kernel in LoKr's w1",
     W1 ".lokr_w1 F32 4,1,2,2; " W1 ".lokr_w2 F32 24,9",
     SHAPE,
     {W1, "other axes"},
     ZIMAGE},
    {"a vector of alphas", W1_PAIR W1 ".alpha F32 2", SHAPE, {"is not a scalar", ".alpha"}, ZIMAGE},
    {"alpha of type U8", W1_PAIR W1 ".alpha U8 -", UNSUPPORTED, {"has an unsupported type", "U8"}, ZIMAGE},
    {"factors of type F64",
     W1 ".lora_A.weight F64 2,36; " W1 ".lora_B.weight F64 96,2",
     UNSUPPORTED,
     {"element type", "F64"},
     false},
    {"the same factor twice",
     W1 ".lora_A.weight F32 2,36; " W1 ".lora_down.weight F32 2,36; " W1 ".lora_B.weight F32 96,2",
     DUP,
     {"the same role in one module", ".lora_down.weight"},
     false},
    {"one weight twice",
     W1_PAIR "transformer.layers.0.feed_forward.w1.lora_A.weight F32 2,36; "
             "transformer.layers.0.feed_forward.w1.lora_B.weight F32 96,2",
     DUP,
     {"two modules of the adapter", "'transformer.layers.0.feed_forward.w1.lora_A.weight'"},
     false},
    {"DoRA", W1_PAIR W1 ".dora_scale F32 96,1", UNSUPPORTED, {"DoRA", W1}, ZIMAGE},
    {"DoRA in peft's names",
     W1_PAIR W1 ".lora_magnitude_vector.weight F32 96",
     UNSUPPORTED,
     {"DoRA", W1},
     ZIMAGE},
    {"OFT", W1 ".oft_blocks F32 4,9,9", UNSUPPORTED, {"found OFT", ".oft_blocks"}, ZIMAGE},
    {"set_weight", W1 ".set_weight F32 96,36", UNSUPPORTED, {"a replacement of a weight", W1}, ZIMAGE},
    {"a difference of full rank",
     W1 ".diff BF16 10240,3840",
     UNSUPPORTED,
     {"convert --lora", "difference of rank 3840"},
     PUBLISHED},
    {"a vector for a matrix's bias",
     "diffusion_model.layers.0.adaLN_modulation.0.diff_b F32 143",
     SHAPE,
     {"expected 144 values", "[143]"},
     false},
    {"factors of a norm",
     "diffusion_model.layers.0.ffn_norm1.lora_A.weight F32 2,36; "
     "diffusion_model.layers.0.ffn_norm1.lora_B.weight F32 1,2",
     UNSUPPORTED,
     {"a vector, which no matrix product uses", "ffn_norm1"},
     false},
    {"factors of a position embedding",
     "lora_te_text_model_embeddings_position_embedding.lora_down.weight F32 2,8; "
     "lora_te_text_model_embeddings_position_embedding.lora_up.weight F32 77,2",
     UNSUPPORTED,
     {"an embedding table", "position_embedding"},
     true},
    {"factors of a token embedding",
     "lora_te_text_model_embeddings_token_embedding.lora_down.weight F32 2,8; "
     "lora_te_text_model_embeddings_token_embedding.lora_up.weight F32 100,2",
     UNSUPPORTED,
     {"an embedding table", "token_embedding"},
     true},
    {"factors of a tensor that is only added",
     "diffusion_model.cap_pad_token.lora_A.weight F32 1,36; "
     "diffusion_model.cap_pad_token.lora_B.weight F32 1,1",
     UNSUPPORTED,
     {"a tensor that no matrix product uses", "cap_pad_token"},
     ZIMAGE},
    {"peft's embedding factors",
     "text_encoder.text_model.embeddings.token_embedding.lora_embedding_A F32 2,100",
     UNSUPPORTED,
     {"an adapted embedding", "token_embedding"},
     true},
    {"LoHa of different shapes",
     W1 ".hada_w1_a F32 96,2; " W1 ".hada_w1_b F32 2,36; " W1 ".hada_w2_a F32 95,2; " W1
        ".hada_w2_b F32 2,36",
     SHAPE,
     {"differ in shape", "[95, 36]"},
     false},
    {"LoHa of the wrong size",
     W1 ".hada_w1_a F32 95,2; " W1 ".hada_w1_b F32 2,36; " W1 ".hada_w2_a F32 95,2; " W1
        ".hada_w2_b F32 2,36",
     SHAPE,
     {"LoHa [95, 36]", "expected [96, 36]"},
     false},
    {"LoKr of the wrong size",
     W1 ".lokr_w1 F32 4,3; " W1 ".lokr_w2_a F32 25,2; " W1 ".lokr_w2_b F32 2,12",
     SHAPE,
     {"LoKr [100, 36]", "expected [96, 36]"},
     false},
    {"LoHa of a rank beyond the weight's",
     W1 ".hada_w1_a F32 96,9; " W1 ".hada_w1_b F32 9,36; " W1 ".hada_w2_a F32 96,9; " W1
        ".hada_w2_b F32 9,36",
     UNSUPPORTED,
     {"has full rank", "convert --lora"},
     false},
    {"LoHa of ranks whose product is beyond 31 bits",
     W1 ".hada_w1_a BF16 96,70000; " W1 ".hada_w1_b BF16 70000,36; " W1 ".hada_w2_a BF16 96,70000; " W1
        ".hada_w2_b BF16 70000,36",
     OVERFLOW,
     {"is too large", W1},
     false},
    {"a layer that the model lacks",
     "diffusion_model.layers.99.feed_forward.w1.lora_A.weight F32 2,36; "
     "diffusion_model.layers.99.feed_forward.w1.lora_B.weight F32 96,2; " W1_PAIR,
     MISSING,
     {"layers.99.feed_forward.w1.lora_A.weight", "nearest: 'layers.0.feed_forward.w1.weight'"},
     false},
    {"a misspelt module",
     "diffusion_model.layers.0.feed_foward.w1.lora_A.weight F32 2,36; "
     "diffusion_model.layers.0.feed_foward.w1.lora_B.weight F32 96,2; x.weight F32 3; " W1_PAIR,
     MISSING,
     {"nearest: 'layers.0.feed_forward.w1.weight'", "and 1 more"},
     false},
    {"an adapter of another model",
     "lora_unet_double_blocks_3_img_attn_qkv.lora_down.weight BF16 2,3072; "
     "lora_unet_double_blocks_3_img_attn_qkv.lora_up.weight BF16 9216,2",
     MISSING,
     {"the adapter fits nothing in this model", "an adapter of flux"},
     false},
    {"no tensors", "", UNSUPPORTED, {"not a LoRA", "no tensors"}, ZIMAGE},
    {"a textual inversion", "emp_params F32 2,768", UNSUPPORTED, {"not a LoRA", "'emp_params'"}, ZIMAGE},
};

static void check_words(const struct error *e, const struct row *row) {
    char line[1024];
    error_line(e, line, sizeof line);
    check(e->code == row->code, "%s: %s, not %s: %s", row->what, status_name(e->code), status_name(row->code),
          line);
    check(e->exit == 3, "%s: exit %d", row->what, e->exit);
    for (int i = 0; i < COUNT_OF(row->words); i++)
        check(strstr(line, row->words[i]) != NULL, "%s: '%s' is missing in: %s", row->what, row->words[i],
              line);
}

static void test_malformed_adapters_refused(void) {
    for (int i = 0; i < COUNT_OF(rows); i++) {
        struct sluice_model *const models[] = {zimage, sd1, published};
        struct adapter_match match;
        struct error e;
        match_refusing_leaks(models[rows[i].model], write_tensors(rows[i].tensors, NULL), false, &match, &e);
        check_words(&e, &rows[i]);
    }
}

static const char *write_pair(double alpha, float value) {
    static char path[128];
    float down[72] = {0};
    struct adapter_writer w;
    down[71] = value;
    snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
    adapter_writer_begin(&w);
    adapter_writer_add_f32(&w, W1 ".lora_A.weight", down, 2, 36, 0);
    adapter_writer_add_f32(&w, W1 ".lora_B.weight", NULL, 96, 2, 0);
    adapter_writer_add(&w, W1 ".alpha", "F64", 8, 0, NULL, &alpha);
    return adapter_writer_end(&w, path, NULL);
}

/* The adapter's values are finite, but overflow at a scale of 1,000. */
static void test_scale_overflow_refused(void) {
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct adapter_combination c = {0};
    struct adapter_use use = {&match, 1};
    struct error e = {0};
    int slot = recipe_slot(zimage->recipe, FAMILY_DENOISER);
    if (adapter_open(zimage->sys, write_pair(1e38, 0), &a, &e) == OK)
        adapter_match(a, zimage, false, &match, &e);
    check(e.code == OK && adapters_combine(zimage, slot, &use, 1, &c, &e) == OK, "%s", e.what);
    adapter_combination_destroy(&c);
    use.strength = 1000;
    check(adapters_combine(zimage, slot, &use, 1, &c, &e) == META && strstr(e.what, W1), "%s", e.what);
    adapter_match_destroy(&match);
    adapter_close(a);
}

static void test_nonfinite_values_refused(void) {
    static const struct row nan_alpha = {"alpha NaN", "", META, {"not finite", ".alpha"}, ZIMAGE};
    static const struct row inf_alpha = {"alpha infinite", "", META, {"not finite", ".alpha"}, ZIMAGE};
    struct adapter_match match;
    struct adapter *a = NULL;
    struct error e = {0};
    test_scale_overflow_refused();
    match_refusing_leaks(zimage, write_pair(__builtin_nan(""), 0), false, &match, &e);
    check_words(&e, &nan_alpha);
    match_refusing_leaks(zimage, write_pair(__builtin_inf(), 0), false, &match, &e);
    check_words(&e, &inf_alpha);
    match_refusing_leaks(zimage, write_pair(1e300, 0), false, &match, &e);
    check_words(&e, &inf_alpha);
    check(match_refusing_leaks(zimage, write_pair(0, 0), false, &match, &e) == OK && match.n_notes == 1 &&
              strstr(match.note[0], "alpha is 0"),
          "alpha 0: %s, %d warnings", e.what, match.n_notes);
    check(adapter_open(zimage->sys, write_pair(1, 1), &a, &e) == OK && adapter_check_finite(a, &e) == OK,
          "%s", e.what);
    adapter_close(a);
    check(adapter_open(zimage->sys, write_pair(1, __builtin_nanf("")), &a, &e) == OK &&
              adapter_check_finite(a, &e) == NONFINITE && strstr(e.what, W1 ".lora_A.weight"),
          "a factor with NaN: %s", e.what);
    adapter_close(a);
}

static void test_unsupported_peft_config_refused(void) {
    static const struct {
        const char *json;
        enum status code;
        const char *word;
    } texts[] = {
        {"{\"transformer.lora_alpha\": \"8\"}", META, "transformer.lora_alpha"},
        {"{\"transformer.lora_alpha\": 1e39}", META, "transformer.lora_alpha"},
        {"{\"lora_alpha\": 8, \"alpha_pattern\": {\".*w1\": 2}}", UNSUPPORTED, "regular expression"},
        {"{\"lora_alpha\": 8", JSON, ""},
    };
    for (int i = 0; i < COUNT_OF(texts); i++) {
        struct adapter_match match;
        struct error e;
        char line[1024];
        const char *tensors = "transformer.layers.0.feed_forward.w1.lora_A.weight F32 2,36; "
                              "transformer.layers.0.feed_forward.w1.lora_B.weight F32 96,2";
        match_refusing_leaks(zimage, write_tensors(tensors, texts[i].json), false, &match, &e);
        error_line(&e, line, sizeof line);
        check(e.code == texts[i].code && strstr(line, texts[i].word), "%s: %s: %s", texts[i].json,
              status_name(e.code), line);
    }
}

static void test_partial_match_reports_unmatched(void) {
    struct adapter_match match;
    struct error e;
    const char *path = write_tensors("diffusion_model.layers.99.feed_forward.w1.lora_A.weight F32 2,36; "
                                     "diffusion_model.layers.99.feed_forward.w1.lora_B.weight F32 96,2; "
                                     "something.else F32 3; " W1_PAIR,
                                     NULL);
    check(match_refusing_leaks(zimage, path, true, &match, &e) == OK && match.n_unmatched == 2 &&
              match.n_notes == 1 && strstr(match.note[0], "fit nothing: 2") &&
              strstr(match.note[0], "layers.99"),
          "partial: %s, %d unmatched, %s", e.what, match.n_unmatched, match.note[0]);
    path = write_tensors("diffusion_model.layers.99.feed_forward.w1.lora_A.weight F32 2,36; "
                         "diffusion_model.layers.99.feed_forward.w1.lora_B.weight F32 96,2",
                         NULL);
    check(match_refusing_leaks(zimage, path, true, &match, &e) == MISSING, "no module fits: %s", e.what);
    path = write_tensors(W1 ".lora_A.weight F32 2,35; " W1 ".lora_B.weight F32 96,2", NULL);
    check(match_refusing_leaks(zimage, path, true, &match, &e) == SHAPE, "a wrong shape: %s", e.what);
    /* The adapter names one layer under two naming schemes. */
    path = write_tensors("lora_unet_layers_0_attention_qkv.lora_down.weight F32 2,36; "
                         "lora_unet_layers_0_attention_qkv.lora_up.weight F32 108,2; "
                         "lora_unet_layers_0_attention_to_k.lora_down.weight F32 2,36; "
                         "lora_unet_layers_0_attention_to_k.lora_up.weight F32 36,2",
                         NULL);
    check(match_refusing_leaks(zimage, path, false, &match, &e) == OK && match.n_notes == 1 &&
              strstr(match.note[0], "by two conventions (one is used): 1"),
          "two namings: %s, %d: %s", e.what, match.n_notes, match.note[0]);
}

/* The adapter file has the maximum number of tensors, whose names have long common prefixes. */
static void test_many_unmatched_tensors_are_fast(void) {
    enum { MODULES = LOADER_TENSORS_MAX / 2 };
    struct adapter_match match;
    struct adapter_writer w;
    struct error e;
    char path[128], name[160];
    snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
    adapter_writer_begin(&w);
    for (int i = 0; i < MODULES; i++) {
        snprintf(name, sizeof name, "lora_unet_layers_%d_feed_forward_w1.lora_down.weight", i);
        adapter_writer_add_f32(&w, name, NULL, 2, 36, 0);
        snprintf(name, sizeof name, "lora_unet_layers_%d_feed_forward_w1.lora_up.weight", i);
        adapter_writer_add_f32(&w, name, NULL, 96, 2, 0);
    }
    adapter_writer_end(&w, path, NULL);
    check(match_refusing_leaks(zimage, path, false, &match, &e) == MISSING, "%d modules: %s", MODULES,
          e.what);
    check(match_refusing_leaks(zimage, path, true, &match, &e) == OK && match.n_unmatched > MODULES - 100,
          "%d modules: %s, %d unmatched", MODULES, e.what, match.n_unmatched);
}

/* Writes an adapter file with every kind of adapter, bias and norm differences, and peft's configuration. */
static const char *write_everything(void) {
    return write_tensors(
        "lora_unet_conv_in.lora_down.weight F32 3,4,1,1; lora_unet_conv_in.lora_up.weight F32 8,2,1,1; "
        "lora_unet_conv_in.lora_mid.weight F32 2,3,3,3; lora_unet_conv_out.alpha F32 -; " KONV
        ".hada_w1_a F16 2,12; " KONV ".hada_w1_b F16 3,28; " KONV ".hada_w2_a F16 3,12; " KONV
        ".hada_w2_b F16 2,28; " KONV ".hada_t1 F16 2,3,3,3; " KONV ".hada_t2 F16 3,2,3,3; " KONV
        ".diff_b F32 12; lora_unet_up_blocks_2_attentions_0_proj_in.lokr_w1 BF16 4,3; "
        "lora_unet_up_blocks_2_attentions_0_proj_in.lokr_w2_a BF16 3,1; "
        "lora_unet_up_blocks_2_attentions_0_proj_in.lokr_w2_b BF16 1,4; "
        "lora_unet_conv_norm_out.diff F32 8; lora_unet_conv_out.diff F32 4,8,3,3",
        "{\"lora_alpha\": 8}");
}

static enum status use_everything(const struct sluice_model *m, const char *path, struct error *e) {
    struct adapter *a = NULL;
    struct adapter_match match = {0};
    struct adapter_combination c = {0};
    int slot = recipe_slot(m->recipe, FAMILY_DENOISER);
    *e = (struct error){0};
    if (adapter_open(m->sys, path, &a, e) == OK && adapter_match(a, m, false, &match, e) == OK &&
        adapter_check_finite(a, e) == OK) {
        struct adapter_use use = {&match, 1};
        adapters_combine(m, slot, &use, 1, &c, e);
        check(e->code != OK || (c.n_weights == 4 && c.n_vectors == 2), "%d weights, %d vectors", c.n_weights,
              c.n_vectors);
    }
    adapter_combination_destroy(&c);
    adapter_match_destroy(&match);
    adapter_close(a);
    return e->code;
}

/* Every call of the adapter reader is made to fail, one at a time: expects the fault's error code and no
 * leak. */
static void test_no_leak_after_fault(void) {
    enum { CALLS_MOST = 1000 };
    static const struct {
        enum call call;
        enum fault fault;
        enum status code, other;
    } faults[] = {{CALL_ALLOC, FAULT_ERROR, MEMORY, MEMORY},
                  {CALL_READ, FAULT_ERROR, IO, IO},
                  {CALL_READ, FAULT_END, TRUNC, TRUNC},
                  {CALL_OPEN, FAULT_ERROR, IO, IO},
                  {CALL_IDENTIFY, FAULT_ERROR, IO, CHANGED}};
    static struct fault_sys fault_sys;
    const char *path = write_everything();
    struct sluice_model_options options = {.struct_size = sizeof options, .model = "test/golden/sd1/model"};
    struct sluice_model *m = NULL;
    struct error e = {0};
    fault_sys_init(&fault_sys, 1);
    if (!check(model_open(&fault_sys.sys, &options, &m, &e) == OK, "%s", e.what)) return;
    int64_t before = fault_sys_live_bytes(&fault_sys);
    check(use_everything(m, path, &e) == OK, "%s", e.what);
    for (int i = 0; i < COUNT_OF(faults); i++) {
        long at = 0;
        enum status code;
        do {
            fault_sys_fail(&fault_sys, faults[i].call, ++at, 0);
            fault_sys.fault = faults[i].fault;
            code = use_everything(m, path, &e);
            check(code == OK || code == faults[i].code || code == faults[i].other, "fault %d at %ld: %s: %s",
                  i, at, status_name(code), e.what);
            check(fault_sys_live_bytes(&fault_sys) == before, "fault %d at %ld: %ld bytes leak", i, at,
                  (long)(fault_sys_live_bytes(&fault_sys) - before));
        } while (code != OK && at < CALLS_MOST);
        check(at > 1 && at < CALLS_MOST, "fault %d failed %ld times", i, at - 1);
    }
    fault_sys_fail(&fault_sys, CALL_ALLOC, 0, 0);
    model_close(m);
}

static void test_model_file_refused(void) {
    static const struct row row = {"a model",
                                   "",
                                   UNSUPPORTED,
                                   {"the file is not a LoRA or other adapter", "transformer (zimage)"},
                                   ZIMAGE};
    struct adapter_match match;
    struct error e;
    match_refusing_leaks(zimage, "models/demo/transformer/diffusion_pytorch_model.safetensors", false, &match,
                         &e);
    check_words(&e, &row);
}

int main(void) {
    temporary_make();
    zimage = open_model("test/golden/zimage_a/model");
    sd1 = open_model("test/golden/sd1/model");
    published = open_model("zimage");
    if (zimage && sd1 && published) {
        test_malformed_adapters_refused();
        test_nonfinite_values_refused();
        test_unsupported_peft_config_refused();
        test_partial_match_reports_unmatched();
        test_many_unmatched_tensors_are_fast();
        test_model_file_refused();
        test_no_leak_after_fault();
    }
    model_close(zimage);
    model_close(sd1);
    model_close(published);
    return finish();
}
