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
#include "test/lib/script.h"
#include "test/lib/temporary_folder.h"

/* Modules of a linear weight [96, 36] of zimage_a, and of a convolution weight [12, 28, 3, 3] of sd1. */
#define LINEAR_MODULE "lora_unet_layers_0_feed_forward_w1"
#define CONV_MODULE   "lora_unet_up_blocks_2_resnets_0_conv1"

enum { ROWS_MOST = 96, COLUMNS_MOST = 252, ROLES = 8 };

static struct sluice_model *zimage, *sd1;

/* One tensor of an adapter file, named MODULE.end. */
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

/* form LABEL MODEL FORMULA DIVISOR END SHAPE... */
static void command_form(struct command *c) {
    static const struct {
        const char *name;
        double (*compute)(const struct file_tensor *g, int o, int i);
    } formulas[] = {
        {"lora", lora},
        {"locon", locon},
        {"loha", loha},
        {"loha_cored", loha_cored},
        {"lokr_whole_factored", lokr_whole_factored},
        {"lokr_both_factored", lokr_both_factored},
        {"lokr_factored_whole", lokr_factored_whole},
        {"lokr_cored", lokr_cored},
        {"whole", whole},
        {"lokr_both_whole", lokr_both_whole},
    };
    static double made[ROWS_MOST * COLUMNS_MOST];
    static struct file_tensor tensors[ROLES];
    const struct sluice_model *m = is(c->word[1], "sd1") ? sd1 : zimage;
    const float alpha = 5, divisor = strtof(c->word[3], NULL);
    struct adapter *a;
    struct adapter_match match;
    int n = 0, f = 0;
    int64_t columns = 1;
    double worst = 0, largest = 0, scale = divisor > 0 ? (double)(alpha / divisor) : 1;
    while (f < COUNT_OF(formulas) && !is(formulas[f].name, c->word[2])) f++;
    if (!check(f < COUNT_OF(formulas), "there is no formula %s", c->word[2])) return;
    for (int i = 4; i + 1 < c->n; i += 2, n++) {
        tensors[n].end = c->word[i];
        tensors[n].rank = adapter_dimensions(c->word[i + 1], tensors[n].dim);
    }
    if (!open_and_match(m, write_module(m == sd1 ? CONV_MODULE : LINEAR_MODULE, tensors, n, &alpha), &a,
                        &match))
        return;
    const struct adapter_part *part = denoiser_part(m, &match);
    if (check(part->n_weights == 1 && part->n_vectors == 0, "%s: %d weights", c->word[0], part->n_weights)) {
        multiply(&part->weights[0], made, &columns);
        for (int o = 0; o < part->weights[0].up.dim[0]; o++)
            for (int i = 0; i < columns; i++) {
                double truth = scale * formulas[f].compute(tensors, o, i);
                worst = fmax(worst, fabs(made[o * columns + i] - truth));
                largest = fmax(largest, fabs(truth));
            }
    }
    /* tolerance 1e-6: the change of the weight is computed in f64 and rounded to f32 once */
    check(largest > .1 && worst < 1e-6 * largest, "%s: off by %g of %g", c->word[0], worst, largest);
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
    struct sluice_model *m = adapter_test_model("test/golden/flux_a/model");
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

/* scale LABEL SCALE [.alpha TYPE VALUE] [metadata JSON] */
static void command_scale(struct command *c) {
    static const char module[] = "transformer.layers.0.feed_forward.w1";
    char name[128];
    const char *metadata = NULL;
    float scale = strtof(c->word[1], NULL);
    struct adapter_writer w;
    struct adapter *a;
    struct adapter_match match;
    adapter_writer_begin(&w);
    snprintf(name, sizeof name, "%s.lora_A.weight", module);
    adapter_writer_add_f32(&w, name, NULL, 4, 36, 0);
    snprintf(name, sizeof name, "%s.lora_B.weight", module);
    adapter_writer_add_f32(&w, name, NULL, 96, 4, 0);
    for (int i = 2; i < c->n; i++) {
        if (is(c->word[i], "metadata")) {
            metadata = c->word[++i];
            continue;
        }
        const char *type = c->word[i + 1], *value = c->word[i + 2];
        const float f32 = strtof(value, NULL);
        const double f64 = strtod(value, NULL);
        const int64_t i64 = atoi(value);
        const uint16_t half = (uint16_t)strtol(value, NULL, 16);
        const void *data = is(type, "F32")   ? (const void *)&f32
                           : is(type, "F64") ? (const void *)&f64
                           : is(type, "I64") ? (const void *)&i64
                                             : &half;
        snprintf(name, sizeof name, "%s%s", module, c->word[i]);
        adapter_writer_add(&w, name, type,
                           strstr(type, "16")   ? 2
                           : strstr(type, "32") ? 4
                                                : 8,
                           0, NULL, data);
        i += 2;
    }
    if (!open_and_match(zimage, adapter_writer_end(&w, temporary_path("adapter.safetensors"), metadata), &a,
                        &match))
        return;
    const struct adapter_part *part = denoiser_part(zimage, &match);
    check(part->n_weights == 1 && part->weights[0].scale == scale, "%s: scale %g, not %g", c->word[0],
          (double)part->weights[0].scale, (double)scale);
    adapter_match_destroy(&match);
    adapter_close(a);
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
    static const struct script_command commands[] = {
        {"form", 6, 0, command_form}, {"scale", 2, 0, command_scale}, {0}};
    temporary_make();
    zimage = adapter_test_model("test/golden/zimage_a/model");
    sd1 = adapter_test_model("test/golden/sd1/model");
    script_run("test/models/adapters/values.txt", commands, NULL);
    test_bias_and_norm_differences();
    test_inspect_counts_dora();
    model_close(zimage);
    model_close(sd1);
    return finish();
}
