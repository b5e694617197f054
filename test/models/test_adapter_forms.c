/* Tests the values that each kind of adapter adds to a weight. Factors read from a file and multiplied must
 * agree with LyCORIS 3.2's formulas (modules/loha.py, lokr.py, locon.py; peft 0.21 for alphas) in plain
 * loops. Also tests several adapters on one bias or norm, and scales. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/open/adapter_combine.h"
#include "test/lib/adapter_files.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#define LINEAR_MODULE                                                                                        \
    "lora_unet_layers_0_feed_forward_w1" /* module of the linear weight [96, 36] of zimage_a */
#define CONV_MODULE                                                                                          \
    "lora_unet_up_blocks_2_resnets_0_conv1" /* module of the convolution weight [12, 28, 3, 3] of sd1 */

enum { ROWS_MOST = 96, COLUMNS_MOST = 252, ROLES = 8 };

static struct sluice_model *zimage, *sd1;

static struct sluice_model *open_model(const char *folder) {
    struct sluice_model_options options = {.struct_size = sizeof options, .model = folder};
    struct sluice_model *model = NULL;
    struct error e = {0};
    char line[1024];
    model_open(NULL, &options, &model, &e);
    check(e.code == OK, "%s: %s", folder, error_line(&e, line, sizeof line));
    return model;
}

/* One tensor of an adapter file. end: text after the module's name in the tensor's name. */
struct file_tensor {
    const char *end;
    int rank;
    int32_t dim[4];
    float at[8192];
};

static uint64_t random_state = 1;

static float random_value(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(int32_t)(random_state >> 32) / 2147483648.0);
}

/* Writes an adapter file of one module. Each file gets a new name, because several files may be open. */
static const char *write_module(const char *module, struct file_tensor *tensors, int n, const float *alpha) {
    static char path[128];
    static int i_file;
    struct adapter_writer w;
    char name[256];
    snprintf(path, sizeof path, "%s/%d.safetensors", temporary, i_file++);
    adapter_writer_begin(&w);
    for (int i = 0; i < n; i++) {
        int all = 1;
        for (int k = 0; k < tensors[i].rank; k++) all *= tensors[i].dim[k];
        for (int k = 0; k < all; k++) tensors[i].at[k] = random_value();
        snprintf(name, sizeof name, "%s.%s", module, tensors[i].end);
        adapter_writer_add(&w, name, "F32", 4, tensors[i].rank, tensors[i].dim, tensors[i].at);
    }
    snprintf(name, sizeof name, "%s.alpha", module);
    if (alpha) adapter_writer_add(&w, name, "F32", 4, 0, NULL, alpha);
    return adapter_writer_end(&w, path, NULL);
}

static bool open_and_match(const struct sluice_model *m, const char *path, struct adapter **a,
                           struct adapter_match *match) {
    struct error e = {0};
    char line[1024];
    *a = NULL;
    if (adapter_open(m->sys, path, a, &e) == OK) adapter_match(*a, m, false, match, &e);
    return check(e.code == OK, "%s", error_line(&e, line, sizeof line));
}

static const struct adapter_part *denoiser_part(const struct sluice_model *m,
                                                const struct adapter_match *match) {
    return &match->part[recipe_slot(m->recipe, FAMILY_DENOISER)];
}

static float *read_factor(const struct factor *f, int64_t *n) {
    struct error e = {0};
    *n = 1;
    for (int i = 0; i < f->rank; i++) *n *= f->dim[i];
    float *at = malloc((size_t)*n * sizeof *at);
    check(source_read_values(f->source, f->offset, f->dtype, 0, *n, at, &e) == OK, "%s", e.what);
    return at;
}

/* Computes the whole matrix scale * up * down. */
static void multiply(const struct adapted_weight *w, double *out, int64_t *columns) {
    int64_t n_up, n_down, rank = w->up.dim[1], rows = w->up.dim[0];
    float *up = read_factor(&w->up, &n_up), *down = read_factor(&w->down, &n_down);
    *columns = n_down / rank;
    check(w->down.dim[0] == rank && n_up == rows * rank, "a rank of %d", w->down.dim[0]);
    for (int64_t o = 0; o < rows; o++)
        for (int64_t i = 0; i < *columns; i++) {
            double sum = 0;
            for (int64_t k = 0; k < rank; k++)
                sum += (double)up[o * rank + k] * (double)down[k * *columns + i];
            out[o * *columns + i] = sum * (double)w->scale;
        }
    free(up);
    free(down);
}

static double at2(const struct file_tensor *g, int i, int k) {
    int columns = 1;
    for (int d = 1; d < g->rank; d++) columns *= g->dim[d];
    return (double)g->at[i * columns + k];
}

/* Returns the sum over r of a[o, r] b[r, i], where r is the rank index. */
static double product(const struct file_tensor *a, const struct file_tensor *b, int o, int i) {
    double sum = 0;
    for (int r = 0; r < a->dim[1]; r++) sum += at2(a, o, r) * at2(b, r, i);
    return sum;
}

/* Product with a Tucker core t: returns the sum over ranks p, q of t[p, q, y] a[p, o] b[q, i], where `place`
 * is i * kernel + y. */
static double cored(const struct file_tensor *t, const struct file_tensor *a, const struct file_tensor *b,
                    int o, int place) {
    int kernel = t->dim[2] * t->dim[3], i = place / kernel, y = place % kernel;
    double sum = 0;
    for (int p = 0; p < t->dim[0]; p++)
        for (int q = 0; q < t->dim[1]; q++) sum += at2(t, p, q * kernel + y) * at2(a, p, o) * at2(b, q, i);
    return sum;
}

static double whole(const struct file_tensor *g, int o, int i) {
    return at2(&g[0], o, i);
}
static double lora(const struct file_tensor *g, int o, int i) {
    return product(&g[1], &g[0], o, i);
}
static double locon(const struct file_tensor *g, int o, int place) {
    int kernel = 9, i = place / kernel, y = place % kernel;
    double sum = 0;
    for (int a = 0; a < g[1].dim[1]; a++)
        for (int b = 0; b < g[0].dim[0]; b++)
            sum += at2(&g[1], o, a) * at2(&g[2], a, b * kernel + y) * at2(&g[0], b, i);
    return sum;
}
static double loha(const struct file_tensor *g, int o, int i) {
    return product(&g[0], &g[1], o, i) * product(&g[2], &g[3], o, i);
}
static double loha_cored(const struct file_tensor *g, int o, int i) {
    return cored(&g[4], &g[0], &g[1], o, i) * cored(&g[5], &g[2], &g[3], o, i);
}
/* kron(w1, w2)[o, i] = w1[o / rows of w2, i / columns of w2] w2[o % rows of w2, i % columns of w2] */
static double lokr_whole_factored(const struct file_tensor *g, int o, int i) {
    int rows = g[1].dim[0], columns = g[2].dim[1];
    return at2(&g[0], o / rows, i / columns) * product(&g[1], &g[2], o % rows, i % columns);
}
static double lokr_both_factored(const struct file_tensor *g, int o, int i) {
    int rows = g[2].dim[0], columns = g[3].dim[1];
    return product(&g[0], &g[1], o / rows, i / columns) * product(&g[2], &g[3], o % rows, i % columns);
}
static double lokr_factored_whole(const struct file_tensor *g, int o, int i) {
    int rows = g[2].dim[0], columns = g[2].dim[1];
    return product(&g[0], &g[1], o / rows, i / columns) * at2(&g[2], o % rows, i % columns);
}
static double lokr_cored(const struct file_tensor *g, int o, int i) {
    int kernel = 9, rows = g[1].dim[1], columns = g[2].dim[1] * kernel;
    return at2(&g[0], o / rows, i / columns) * cored(&g[3], &g[1], &g[2], o % rows, i % columns);
}

static double lokr_both_whole(const struct file_tensor *g, int o, int i) {
    return at2(&g[0], o / g[1].dim[0], i / g[1].dim[1]) * at2(&g[1], o % g[1].dim[0], i % g[1].dim[1]);
}

static struct form {
    const char *name, *module;
    struct file_tensor tensors[ROLES];
    double (*formula)(const struct file_tensor *g, int o, int i);
    double divisor; /* the formula's scale is alpha / divisor; 0: alpha has no effect */
} forms[] = {
    {"LoRA",
     LINEAR_MODULE,
     {{"lora_down.weight", 2, {3, 36}, {0}}, {"lora_up.weight", 2, {96, 3}, {0}}},
     lora,
     3},
    {"LoRA of a convolution",
     CONV_MODULE,
     {{"lora_down.weight", 4, {2, 28, 3, 3}, {0}}, {"lora_up.weight", 4, {12, 2, 1, 1}, {0}}},
     lora,
     2},
    {"LoRA with a middle",
     CONV_MODULE,
     {{"lora_down.weight", 4, {3, 28, 1, 1}, {0}},
      {"lora_up.weight", 4, {12, 2, 1, 1}, {0}},
      {"lora_mid.weight", 4, {2, 3, 3, 3}, {0}}},
     locon,
     3},
    {"LoHa",
     LINEAR_MODULE,
     {{"hada_w1_a", 2, {96, 3}, {0}},
      {"hada_w1_b", 2, {3, 36}, {0}},
      {"hada_w2_a", 2, {96, 4}, {0}},
      {"hada_w2_b", 2, {4, 36}, {0}}},
     loha,
     3},
    {"LoHa of a convolution",
     CONV_MODULE,
     {{"hada_w1_a", 2, {12, 2}, {0}},
      {"hada_w1_b", 2, {2, 252}, {0}},
      {"hada_w2_a", 2, {12, 3}, {0}},
      {"hada_w2_b", 2, {3, 252}, {0}}},
     loha,
     2},
    {"LoHa with a core",
     CONV_MODULE,
     {{"hada_w1_a", 2, {2, 12}, {0}},
      {"hada_w1_b", 2, {3, 28}, {0}},
      {"hada_w2_a", 2, {3, 12}, {0}},
      {"hada_w2_b", 2, {2, 28}, {0}},
      {"hada_t1", 4, {2, 3, 3, 3}, {0}},
      {"hada_t2", 4, {3, 2, 3, 3}, {0}}},
     loha_cored,
     3},
    {"LoKr, w2 factored",
     LINEAR_MODULE,
     {{"lokr_w1", 2, {4, 3}, {0}}, {"lokr_w2_a", 2, {24, 5}, {0}}, {"lokr_w2_b", 2, {5, 12}, {0}}},
     lokr_whole_factored,
     5},
    {"LoKr, both factored",
     LINEAR_MODULE,
     {{"lokr_w1_a", 2, {8, 2}, {0}},
      {"lokr_w1_b", 2, {2, 6}, {0}},
      {"lokr_w2_a", 2, {12, 3}, {0}},
      {"lokr_w2_b", 2, {3, 6}, {0}}},
     lokr_both_factored,
     3},
    {"LoKr, w1 factored",
     LINEAR_MODULE,
     {{"lokr_w1_a", 2, {32, 2}, {0}}, {"lokr_w1_b", 2, {2, 9}, {0}}, {"lokr_w2", 2, {3, 4}, {0}}},
     lokr_factored_whole,
     2},
    {"LoKr of a convolution",
     CONV_MODULE,
     {{"lokr_w1", 2, {3, 4}, {0}}, {"lokr_w2_a", 2, {4, 2}, {0}}, {"lokr_w2_b", 2, {2, 63}, {0}}},
     lokr_whole_factored,
     2},
    {"LoKr with a core",
     CONV_MODULE,
     {{"lokr_w1", 2, {3, 4}, {0}},
      {"lokr_w2_a", 2, {2, 4}, {0}},
      {"lokr_w2_b", 2, {3, 7}, {0}},
      {"lokr_t2", 4, {2, 3, 3, 3}, {0}}},
     lokr_cored,
     3},
    {"a difference", LINEAR_MODULE, {{"diff", 2, {96, 36}, {0}}}, whole, 0},
    {"a difference of a convolution", CONV_MODULE, {{"diff", 4, {12, 28, 3, 3}, {0}}}, whole, 0},
    /* LoKr with two small full matrices: applied as low-rank factors; alpha has no effect. */
    {"LoKr, neither w1 nor w2 factored",
     LINEAR_MODULE,
     {{"lokr_w1", 2, {32, 9}, {0}}, {"lokr_w2", 2, {3, 4}, {0}}},
     lokr_both_whole,
     0},
};

static void test_product_equals_formula(struct form *f) {
    static double made[ROWS_MOST * COLUMNS_MOST];
    const struct sluice_model *m = strcmp(f->module, LINEAR_MODULE) ? sd1 : zimage;
    const float alpha = 5;
    struct adapter *a;
    struct adapter_match match;
    int n = 0;
    int64_t columns = 1;
    double worst = 0, largest = 0, scale = f->divisor > 0 ? (double)(alpha / (float)f->divisor) : 1;
    while (n < ROLES && f->tensors[n].end) n++;
    if (!open_and_match(m, write_module(f->module, f->tensors, n, &alpha), &a, &match)) return;
    const struct adapter_part *part = denoiser_part(m, &match);
    if (check(part->n_weights == 1 && part->n_vectors == 0, "%s: %d weights", f->name, part->n_weights)) {
        multiply(&part->weights[0], made, &columns);
        for (int o = 0; o < part->weights[0].up.dim[0]; o++)
            for (int i = 0; i < columns; i++) {
                double truth = scale * f->formula(f->tensors, o, i);
                worst = fmax(worst, fabs(made[o * columns + i] - truth));
                largest = fmax(largest, fabs(truth));
            }
    }
    /* tolerance 1e-6: the change of the weight is computed in f64 and rounded to f32 once */
    check(largest > .1 && worst < 1e-6 * largest, "%s: off by %g of %g", f->name, worst, largest);
    adapter_match_destroy(&match);
    adapter_close(a);
}

#define QKV_BIAS "diffusion_model.double_blocks.0.img_attn.qkv"

static void read_bias(const struct sluice_model *m, const char *name, float *to, int n) {
    const struct component *c = model_component(m, FAMILY_DENOISER);
    struct error e = {0};
    const struct index_entry *entry = index_find(&c->index, name);
    if (check(entry && entry->dim[0] == n, "%s", name))
        source_read_values(&c->index.sources[entry->source], entry->offset, entry->dtype, 0, n, to, &e);
}

/* Adds differences to a fused bias (strength 0.5), to one part of the fused bias (-2) and to norms (".diff").
 */
static void test_bias_and_norm_differences(void) {
    enum { DIM = 36 };
    static struct file_tensor fused = {"diff_b", 1, {3 * DIM}, {0}}, part = {"diff_b", 1, {DIM}, {0}};
    static const char *const names[] = {"to_q", "to_k", "to_v"};
    struct sluice_model *m = open_model("test/golden/flux_a/model");
    int slot = recipe_slot(m->recipe, FAMILY_DENOISER);
    struct adapter *one = NULL, *other = NULL;
    struct adapter_match first, second;
    struct adapter_combination c = {0};
    struct error e = {0};
    if (!open_and_match(m, write_module(QKV_BIAS, &fused, 1, NULL), &one, &first)) return;
    if (!open_and_match(m, write_module("transformer.transformer_blocks.0.attn.to_k", &part, 1, NULL), &other,
                        &second))
        return;
    struct adapter_use uses[] = {{&first, .5}, {&second, -2}};
    check(adapters_combine(m, slot, uses, 2, &c, &e) == OK && c.n_vectors == 3 && !c.n_weights,
          "expected another number of bias and norm differences than %d: %s", c.n_vectors, e.what);
    for (int i = 0; i < c.n_vectors; i++) {
        char name[128];
        float base[DIM];
        int64_t n;
        float *made = read_factor(&c.vectors[i].values, &n);
        double worst = 0;
        snprintf(name, sizeof name, "transformer_blocks.0.attn.%s.bias", names[i]);
        read_bias(m, name, base, DIM);
        for (int k = 0; k < DIM && n == DIM; k++) {
            double truth = (double)base[k] + .5 * (double)fused.at[i * DIM + k];
            if (i == 1) truth -= 2 * (double)part.at[k];
            worst = fmax(worst, fabs((double)made[k] - truth));
        }
        check(n == DIM && worst < 1e-6, "%s: %d values, off by %g", name, (int)n, worst);
        free(made);
    }
    adapter_combination_destroy(&c);
    adapter_match_destroy(&first);
    adapter_match_destroy(&second);
    adapter_close(one);
    adapter_close(other);
    model_close(m);
}

static const struct {
    const char *what, *type; /* type: dtype of a scalar tensor ".alpha"; NULL: no such tensor */
    int size;
    union {
        float f32;
        double f64;
        int64_t i64;
        uint16_t half;
    } alpha;
    const char *metadata;
    float scale;
} scales[] = {
    {"no alpha", NULL, 0, {0}, NULL, 1},
    {"F32", "F32", 4, {.f32 = 2}, NULL, .5f},
    {"F64", "F64", 8, {.f64 = 6}, NULL, 1.5f},
    {"I64", "I64", 8, {.i64 = 8}, NULL, 2},
    {"BF16", "BF16", 2, {.half = 0x4040}, NULL, .75f},
    {"F16", "F16", 2, {.half = 0x4200}, NULL, .75f},
    {"peft", NULL, 0, {0}, "{\"transformer.r\": 4, \"transformer.lora_alpha\": 8}", 2},
    {"peft, keys without a component", NULL, 0, {0}, "{\"r\": 4, \"lora_alpha\": 12}", 3},
    {"rslora", NULL, 0, {0}, "{\"transformer.lora_alpha\": 8, \"transformer.use_rslora\": true}", 4},
    {"alpha_pattern",
     NULL,
     0,
     {0},
     "{\"transformer.lora_alpha\": 8, \"transformer.alpha_pattern\": {\"layers.0.feed_forward.w1\": 2}}",
     .5f},
    {"alpha_pattern, end of a name",
     NULL,
     0,
     {0},
     "{\"transformer.lora_alpha\": 8, \"transformer.alpha_pattern\": {\"w1\": 1, \"w2\": 9}}",
     .25f},
    {"alpha of another component", NULL, 0, {0}, "{\"text_encoder.lora_alpha\": 8}", 1},
    {"the file's alpha before the configuration's",
     "F32",
     4,
     {.f32 = 1},
     "{\"transformer.lora_alpha\": 8}",
     .25f},
};

static void test_alpha_scales(void) {
    static const char module[] = "transformer.layers.0.feed_forward.w1";
    for (int i = 0; i < COUNT_OF(scales); i++) {
        char path[128], name[128];
        struct adapter_writer w;
        struct adapter *a;
        struct adapter_match match;
        snprintf(path, sizeof path, "%s/adapter.safetensors", temporary);
        adapter_writer_begin(&w);
        snprintf(name, sizeof name, "%s.lora_A.weight", module);
        adapter_writer_add_f32(&w, name, NULL, 4, 36, 0);
        snprintf(name, sizeof name, "%s.lora_B.weight", module);
        adapter_writer_add_f32(&w, name, NULL, 96, 4, 0);
        snprintf(name, sizeof name, "%s.alpha", module);
        if (scales[i].type)
            adapter_writer_add(&w, name, scales[i].type, scales[i].size, 0, NULL, &scales[i].alpha);
        if (!open_and_match(zimage, adapter_writer_end(&w, path, scales[i].metadata), &a, &match)) continue;
        const struct adapter_part *part = denoiser_part(zimage, &match);
        check(part->n_weights == 1 && part->weights[0].scale == scales[i].scale, "%s: scale %g, not %g",
              scales[i].what, (double)part->weights[0].scale, (double)scales[i].scale);
        adapter_match_destroy(&match);
        adapter_close(a);
    }
}

static const struct {
    const char *file, *prefix;
    int first, second; /* first, second: expected numbers of weights changed in the high-noise and in the
                          low-noise transformer */
    int notes;         /* expected number of warnings about which transformer was assumed */
} halves[] = {
    {"wan_high_noise_4steps.safetensors", "diffusion_model.", 1, 0, 1},
    {"Wan2.2-LowNoise.safetensors", "diffusion_model.", 0, 1, 1},
    {"high_noise_and_low_noise.safetensors", "diffusion_model.", 1, 1, 1},
    {"lightning.safetensors", "transformer.", 1, 1, 1},
    {"highway.safetensors", "transformer.", 1, 1, 1},
    {"low/lightning.safetensors", "transformer.", 0, 1, 1},
    {"lightning.safetensors", "transformer_2.", 0, 1, 0},
};

static void test_adapter_goes_to_the_right_transformer(void) {
    struct sluice_model *m = open_model("test/golden/wan22/model");
    char path[256], name[128], command[256];
    const struct component *c = model_component(m, FAMILY_DENOISER);
    const struct index_entry *entry = index_find(&c->index, "blocks.0.attn1.to_q.weight");
    snprintf(command, sizeof command, "mkdir -p '%s/low'", temporary);
    if (!check(entry && !system(command), "%s", command)) return;
    for (int i = 0; i < COUNT_OF(halves); i++) {
        struct adapter_writer w;
        struct adapter *a;
        struct adapter_match match;
        snprintf(path, sizeof path, "%s/%s", temporary, halves[i].file);
        adapter_writer_begin(&w);
        snprintf(name, sizeof name, "%sblocks.0.attn1.to_q.lora_A.weight", halves[i].prefix);
        adapter_writer_add_f32(&w, name, NULL, 2, entry->dim[1], 0);
        snprintf(name, sizeof name, "%sblocks.0.attn1.to_q.lora_B.weight", halves[i].prefix);
        adapter_writer_add_f32(&w, name, NULL, entry->dim[0], 2, 0);
        if (!open_and_match(m, adapter_writer_end(&w, path, NULL), &a, &match)) continue;
        int of[2] = {0}, n = 0;
        for (int slot = 0; slot < SLOTS_MAX && m->recipe->slot[slot].family; slot++)
            if (m->recipe->slot[slot].family->kind == FAMILY_DENOISER) of[n++] = match.part[slot].n_weights;
        check(of[0] == halves[i].first && of[1] == halves[i].second && match.n_notes == halves[i].notes,
              "%s, %s: %d and %d weights, %d notes", halves[i].file, halves[i].prefix, of[0], of[1],
              match.n_notes);
        adapter_match_destroy(&match);
        adapter_close(a);
    }
    model_close(m);
}

static void test_inspect_counts_dora(void) {
    char path[256], *json = NULL;
    struct adapter_writer w;
    struct sluice_error error;
    struct sluice_model_options from = {.struct_size = sizeof from, .model = path};
    snprintf(path, sizeof path, "%s/dora.safetensors", temporary);
    adapter_writer_begin(&w);
    adapter_writer_add_f32(&w, "transformer.layers.0.attention.to_q.lora_A.weight", NULL, 2, 96, 0);
    adapter_writer_add_f32(&w, "transformer.layers.0.attention.to_q.lora_B.weight", NULL, 96, 2, 0);
    adapter_writer_add_f32(&w, "transformer.layers.0.attention.to_q.lora_magnitude_vector", NULL, 96, 1, 0);
    if (!check(adapter_writer_end(&w, path, NULL) && !sluice_inspect(&from, false, &json, &error), "%s: %s",
               path, error.what))
        return;
    check(strstr(json, "\"DoRA\": 1") || strstr(json, "\"DoRA\":1"), "inspect does not count DoRA: %s", json);
    sluice_free(json);
}

int main(void) {
    temporary_make();
    zimage = open_model("test/golden/zimage_a/model");
    sd1 = open_model("test/golden/sd1/model");
    for (int i = 0; i < COUNT_OF(forms) && zimage && sd1; i++) test_product_equals_formula(&forms[i]);
    test_bias_and_norm_differences();
    test_alpha_scales();
    test_adapter_goes_to_the_right_transformer();
    test_inspect_counts_dora();
    model_close(zimage);
    model_close(sd1);
    return finish();
}
