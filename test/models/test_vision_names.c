/* Qwen2.5-VL's language model and vision encoder give the same bits under the names of transformers 4 and 5,
 * ComfyUI and llama.cpp, in one file or in two files. */
#include "test/lib/block_runner.h"
#include "test/lib/tensor_set.h"

#include "engine/base/random.h"

static const char folder[] = "test/golden/qwen_edit_plus/model";

enum { ROWS = 2, COLUMNS = 3, PIXELS = 28, TOKENS = 11, FIRST = 4 };

static void rename_front(struct tensor_set *p, const char *from, const char *to) {
    for (int i = 0; i < p->n; i++)
        if (!strncmp(p->item[i].name, from, strlen(from))) rename_part(&p->item[i], from, to);
}

static void as_they_are(struct tensor_set *p) {
    (void)p;
}

static void as_in_memory(struct tensor_set *p) {
    rename_front(p, "visual.", "model.visual.");
    rename_front(p, "model.layers.", "model.language_model.layers.");
    rename_front(p, "model.norm.", "model.language_model.norm.");
    rename_front(p, "model.embed_tokens.", "model.language_model.embed_tokens.");
}

static void put_behind(struct tensor_set *p, const char *prefix) {
    struct tensor_set *prefixed = tensor_set_copy(p, prefix);
    tensor_set_drop(p, "");
    tensor_set_append(p, prefixed, "");
    tensor_set_free(prefixed);
}

static void as_sdcpp(struct tensor_set *p) {
    put_behind(p, "text_encoders.llm.");
}

static void as_comfyui(struct tensor_set *p) {
    static const float one = 1;
    put_behind(p, "text_encoders.qwen25_7b.transformer.");
    tensor_set_add(p, "", "text_encoders.qwen25_7b.logit_scale", "F32", 1, (int32_t[]){1}, &one, sizeof one);
}

/* Adds part i of n of a tensor's bytes to the set as a separate tensor. */
static void add_part(struct tensor_set *p, const struct item *t, const char *name, int i, int n) {
    int32_t dim[5];
    memcpy(dim, t->dim, sizeof dim);
    dim[0] /= n;
    tensor_set_add(p, "", name, t->type, t->rank, dim, t->data + t->bytes / (size_t)n * (size_t)i,
                   t->bytes / (size_t)n);
}

static void split_qkv(struct tensor_set *p) {
    for (int i = 0, n = p->n; i < n; i++) {
        char name[TENSOR_SET_NAME];
        char *fused = strstr(p->item[i].name, "attn.qkv.");
        if (!fused) continue;
        for (int part = 0; part < 3; part++) {
            snprintf(name, sizeof name, "v.blk.%c.attn_%c.%s", p->item[i].name[strlen("visual.blocks.")],
                     "qkv"[part], fused + strlen("attn.qkv."));
            struct item whole = p->item[i];
            add_part(p, &whole, name, part, 3);
        }
        snprintf(p->item[i].name, TENSOR_SET_NAME, "-");
    }
}

/* Splits the patch embedding's kernel for two video frames into one tensor per frame. */
static void split_frames(struct tensor_set *p) {
    struct item whole = *tensor_set_find(p, "visual.patch_embed.proj.weight");
    size_t kernel = (size_t)whole.dim[3] * (size_t)whole.dim[4] *
                    (whole.bytes / 2 / (size_t)whole.dim[0] / (size_t)whole.dim[1] / (size_t)whole.dim[3] /
                     (size_t)whole.dim[4]);
    int kernels = whole.dim[0] * whole.dim[1];
    unsigned char *half = malloc(whole.bytes / 2);
    if (!half) abort();
    for (int frame = 0; frame < 2; frame++) {
        for (int i = 0; i < kernels; i++)
            memcpy(half + kernel * (size_t)i, whole.data + kernel * (size_t)(2 * i + frame), kernel);
        tensor_set_add(p, "", frame ? "v.patch_embd.weight.1" : "v.patch_embd.weight", whole.type, 4,
                       (int32_t[]){whole.dim[0], whole.dim[1], whole.dim[3], whole.dim[4]}, half,
                       whole.bytes / 2);
    }
    free(half);
    tensor_set_drop(p, "visual.patch_embed.");
}

static void as_llama_cpp(struct tensor_set *p) {
    static const char *const parts[][2] = {
        {"visual.blocks.", "v.blk."},
        {"visual.merger.ln_q.", "v.post_ln."},
        {"visual.merger.mlp.", "mm."},
        {"attn.proj.", "attn_out."},
        {"mlp.gate_proj.", "ffn_gate."},
        {"mlp.up_proj.", "ffn_up."},
        {"mlp.down_proj.", "ffn_down."},
        {"norm1.", "ln1."},
        {"norm2.", "ln2."},
    };
    split_frames(p);
    split_qkv(p);
    tensor_set_drop(p, "-");
    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            rename_part(&p->item[i], parts[k][0], parts[k][1]);
}

static void without_prefix(struct tensor_set *p) {
    rename_front(p, "visual.", "");
}

/* Changes the vision encoder in the text encoder's file. This vision encoder must not be used, because
 * another file has one. */
static void with_others(struct tensor_set *p) {
    struct item *norm = tensor_set_find(p, "visual.merger.ln_q.weight");
    for (int i = 0; i < norm->dim[0]; i++) ((float *)(void *)norm->data)[i] *= 2;
}

static const struct {
    const char *what;
    void (*together)(
        struct tensor_set *p); /* edits the file with both encoders; NULL: it has only the text encoder */
    void (*apart)(struct tensor_set *p); /* edits the vision encoder's own file; NULL: no such file */
} layouts[] = {
    {"one file", as_they_are, NULL},
    {"transformers 5", as_in_memory, NULL},
    {"ComfyUI", as_comfyui, NULL},
    {"stable-diffusion.cpp", as_sdcpp, NULL},
    {"llama.cpp", NULL, as_llama_cpp},
    {"two files", NULL, without_prefix},
    {"another vision encoder in the text encoder's file", with_others, as_they_are},
};

static const char *write_layout(void (*name)(struct tensor_set *p), const char *file, const char *drop) {
    struct tensor_set *p = tensor_set_from_component(folder, "text_encoder");
    const char *path = temporary_path(file);
    if (drop) tensor_set_drop(p, drop);
    if (name) name(p);
    write_tensor_set(p, path, p->config);
    tensor_set_free(p);
    return path;
}

struct encoder_outputs {
    float *vision, *text;
    int64_t n_vision, n_text;
};

static struct tensor noise(int rank, const int32_t *dim) {
    struct tensor t = test_tensor(DTYPE_F32, rank, dim);
    uint64_t random = 5;
    for (int64_t i = 0; i < tensor_elements(&t); i++)
        ((float *)t.data)[i] = (float)random_below(&random, 2001) / 1000 - 1;
    return t;
}

static void compute_outputs(const struct sluice_model_options *from, struct encoder_outputs *out) {
    struct golden g = {.name = "names"};
    struct error e = {0};
    static int32_t ids[TOKENS];
    model_open(&golden_state.sys, from, &g.model, &e);
    assert_ok(&e);
    int eye = recipe_slot(g.model->recipe, FAMILY_VISION), text = recipe_slot(g.model->recipe, FAMILY_TEXT);
    int32_t seen[] = {ROWS * COLUMNS, g.model->component[eye].text_columns};
    struct lane lane = {.picture = noise(3, (int32_t[]){ROWS * PIXELS, COLUMNS * PIXELS, 3}),
                        .text = test_tensor(DTYPE_F32, 2, seen)};
    struct block_runner *b = runner_open(&g, eye, lane);
    runner_run_all(b);
    out->vision = b->lane.text.data;
    out->n_vision = tensor_elements(&b->lane.text);
    runner_close(b);
    for (int i = 0; i < TOKENS; i++) ids[i] = 3 * i;
    struct lane prompt = {
        .tokens = ids,
        .n_tokens = TOKENS,
        .text = test_tensor(DTYPE_F32, 2, (int32_t[]){TOKENS, seen[1]}),
        .vision_spans = {{.rows = lane.text, .first = FIRST, .height = ROWS, .width = COLUMNS}}};
    b = runner_open(&g, text, prompt);
    runner_run_all(b);
    out->text = b->lane.text.data;
    out->n_text = tensor_elements(&b->lane.text);
    runner_close(b);
    model_close(g.model);
}

static struct encoder_outputs wanted;

static void test_layout_gives_same_bits(void **state) {
    int i = *(int *)*state;
    struct sluice_part parts[] = {{.flag = "--llm"}, {.flag = "--llm_vision"}};
    struct sluice_model_options from = {
        .struct_size = sizeof from, .model = folder, .parts = parts, .n_parts = layouts[i].apart ? 2 : 1};
    struct encoder_outputs found;
    parts[0].path =
        write_layout(layouts[i].together, "llm.safetensors", layouts[i].together ? NULL : "visual.");
    if (layouts[i].apart) parts[1].path = write_layout(layouts[i].apart, "vision.safetensors", "model.");
    compute_outputs(&from, &found);
    assert_memory_equal(found.vision, wanted.vision, (size_t)wanted.n_vision * sizeof *wanted.vision);
    assert_memory_equal(found.text, wanted.text, (size_t)wanted.n_text * sizeof *wanted.text);
}

static void test_separate_folders_give_same_bits(void **state) {
    const struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    (void)state;
    compute_outputs(&from, &wanted);
    assert_true(wanted.n_vision && wanted.n_text);
}

int main(void) {
    enum { N = sizeof layouts / sizeof *layouts };
    struct CMUnitTest tests[N + 1] = {cmocka_unit_test(test_separate_folders_give_same_bits)};
    int which[N];
    temporary_make();
    if (!golden_begin()) return 1;
    for (int i = 0; i < N; i++) {
        which[i] = i;
        tests[i + 1] = (struct CMUnitTest){
            .name = layouts[i].what, .test_func = test_layout_gives_same_bits, .initial_state = &which[i]};
    }
    int failed = _cmocka_run_group_tests("vision names", tests, N + 1, NULL, NULL);
    printf("%d passed, %d failed\n", N + 1 - failed, failed);
    test_memory_free_to(NULL);
    golden_end();
    return failed != 0;
}
