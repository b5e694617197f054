/* `convert --lora`: weights become W + strength scale B A, compared with f64 arithmetic, for every kind of
 * adapter and naming scheme, with q, k and v separate or fused in base or adapter. The sum is rounded once.
 * Also tests refusals. */
#include "bench/dev/checkpoint.h"
#include "test/lib/conversions.h"
#include "test/lib/random_models.h"

#include <math.h>

#define SIZES                                                                                                \
    "heads=2,axis0=32,axis1=48,axis2=48,layers=1,refiners=1,hidden=256,text_heads=2,text_key_heads=1,"       \
    "text_head_dim=64,text_ff=512,text_layers=2,vocabulary=300,vae0=32,vae1=32,vae2=32,vae3=32,vae_groups="  \
    "8,latent_channels=4"
#define IN_F32 SIZES ",dtype=f32"
enum { RANK = 3, ADAPTER_SEED = 7 };

static const char *model;

static const char *of_model(const char *part) {
    static char paths[8][160];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", model, part);
    return path;
}

static const char *write_adapter(const char *name, const char *dialect, uint64_t seed) {
    const char *path = temporary_path(name);
    struct error e = {0};
    struct adapter_options options = {
        .base = {.family = "zimage", .dimensions = IN_F32, .seed = seed}, .dialect = dialect, .rank = RANK};
    check(!adapter_write(&options, path, &e), "%s: %s", dialect, e.what);
    return path;
}

static float *values_of(const struct opened *o, const char *name, const char *end,
                        const struct index_entry **entry) {
    char whole[200];
    snprintf(whole, sizeof whole, "%s%s", name, end);
    *entry = index_find(&o->index, whole);
    return *entry ? numbers_of(o, *entry) : NULL;
}

/* A matrix of a LoRA module in an adapter file; rows 0: the module has no such matrix. */
struct factor64 {
    float *at;
    int64_t rows, columns;
};

static struct factor64 factor_of(const struct opened *a, const char *module, const char *end) {
    const struct index_entry *entry;
    struct factor64 f = {.at = values_of(a, module, end, &entry)};
    if (f.at && entry->rank) {
        f.rows = entry->dim[0];
        f.columns = entry_elements(entry) / f.rows;
    }
    return f;
}

static double product_at(const struct factor64 *up, const struct factor64 *down, int64_t row,
                         int64_t column) {
    double sum = 0;
    for (int64_t j = 0; j < up->columns; j++)
        sum += (double)up->at[row * up->columns + j] * (double)down->at[j * down->columns + column];
    return sum;
}

/* Matrices and scale of an adapter module, as named in LyCORIS's formulas. */
struct module64 {
    struct factor64 up, down, up2, down2, outer;
    double scale;
};

static bool open_module(const struct opened *a, const char *name, struct module64 *m) {
    struct factor64 alpha = factor_of(a, name, ".alpha");
    *m = (struct module64){.up = factor_of(a, name, ".lora_up.weight")};
    m->down = factor_of(a, name, ".lora_down.weight");
    if (!m->up.at)
        m->up = factor_of(a, name, ".lora_B.weight"), m->down = factor_of(a, name, ".lora_A.weight");
    if (!m->up.at) {
        m->up = factor_of(a, name, ".hada_w1_a"), m->down = factor_of(a, name, ".hada_w1_b");
        m->up2 = factor_of(a, name, ".hada_w2_a"), m->down2 = factor_of(a, name, ".hada_w2_b");
    }
    if (!m->up.at) {
        m->up = factor_of(a, name, ".lokr_w2_a"), m->down = factor_of(a, name, ".lokr_w2_b");
        m->outer = factor_of(a, name, ".lokr_w1");
    }
    m->scale = alpha.at && m->down.rows ? (double)alpha.at[0] / (double)m->down.rows : 1;
    free(alpha.at);
    return m->up.at != NULL;
}

static void close_module(struct module64 *m) {
    free(m->up.at), free(m->down.at), free(m->up2.at), free(m->down2.at), free(m->outer.at);
}

static double added_at(const struct module64 *m, int64_t row, int64_t column) {
    if (m->outer.at) {
        int64_t rows = m->up.rows, columns = m->down.columns;
        double outer = (double)m->outer.at[row / rows * m->outer.columns + column / columns];
        return m->scale * outer * product_at(&m->up, &m->down, row % rows, column % columns);
    }
    double sum = m->scale * product_at(&m->up, &m->down, row, column);
    return m->up2.at ? sum * product_at(&m->up2, &m->down2, row, column) : sum;
}

/* A base weight, the adapter module that changes it, and the module's row for the weight's first row. */
struct pairing {
    const char *weight, *module;
    int first;
};

/* Returns the largest difference between two arrays, divided by the largest value. */
static double worst_of(const struct opened *base, const struct opened *merged,
                       const struct opened *adapters[2], const double *strengths, const struct pairing *p) {
    const struct index_entry *entry, *other;
    float *was = values_of(base, p->weight, ".weight", &entry);
    float *is = values_of(merged, p->weight, ".weight", &other);
    double worst = 0, largest = 0, change = 0;
    if (!check(was && is && entry_elements(entry) == entry_elements(other),
               "'%s' is missing in base or output", p->weight))
        return 1;
    int64_t columns = entry_elements(entry) / entry->dim[0];
    for (int k = 0; k < 2 && adapters[k]; k++) {
        struct module64 m;
        check(open_module(adapters[k], p->module, &m), "the adapter has no module '%s'", p->module);
        for (int64_t i = 0; i < entry_elements(entry); i++) {
            double added = strengths[k] * added_at(&m, p->first + i / columns, i % columns);
            was[i] = (float)((double)was[i] + added);
            change = fmax(change, fabs(added));
        }
        close_module(&m);
    }
    for (int64_t i = 0; i < entry_elements(entry); i++) {
        worst = fmax(worst, fabs((double)is[i] - (double)was[i]));
        largest = fmax(largest, fabs((double)was[i]));
    }
    check(change > 0.01 * largest, "'%s' changes too little to measure", p->weight);
    free(was), free(is);
    return worst / largest;
}

/* Writes the transformer with q, k and v fused as attention.qkv, as in the authors' checkpoints. */
static const char *fused_transformer(void) {
    enum { MOST = 200 };
    static struct named_tensor tensors[MOST];
    struct opened o;
    struct error e = {0};
    int n = 0;
    if (!open_weights(&o, of_model("transformer"))) return NULL;
    for (int i = 0; i < o.index.n_entries && n < MOST; i++) {
        const struct index_entry *entry = &o.index.entries[i];
        static char names[MOST][120];
        const char *q = strstr(entry->name, "attention.to_q.weight");
        if (strstr(entry->name, "attention.to_k.") || strstr(entry->name, "attention.to_v.")) continue;
        snprintf(names[n], sizeof names[n], "%s", entry->name);
        float *numbers = numbers_of(&o, entry);
        tensors[n] =
            (struct named_tensor){names[n], tensor_make(numbers, DTYPE_F32, entry->rank, entry->dim)};
        if (q) {
            size_t part = entry->bytes;
            char *all = malloc(3 * part);
            for (int k = 0; k < 3 && all; k++) {
                char name[120];
                snprintf(name, sizeof name, "%.*sattention.to_%c.weight", (int)(q - entry->name), entry->name,
                         "qkv"[k]);
                float *values = numbers_of(&o, index_find(&o.index, name));
                memcpy(all + (size_t)k * part, values, part);
                free(values);
            }
            free(numbers);
            snprintf(names[n], sizeof names[n], "%.*sattention.qkv.weight", (int)(q - entry->name),
                     entry->name);
            int32_t dim[] = {3 * entry->dim[0], entry->dim[1]};
            tensors[n].tensor = tensor_make(all, DTYPE_F32, 2, dim);
        }
        n++;
    }
    const char *path = temporary_path("fused.safetensors");
    check(safetensors_write(&o.machine, path, tensors, n, &e) == OK, "%s", e.what);
    for (int i = 0; i < n; i++) free(tensors[i].tensor.data);
    index_destroy(&o.index);
    return path;
}

#define TO_Q "layers.0.attention.to_q"
#define TO_V "layers.0.attention.to_v"
#define W2   "layers.0.feed_forward.w2"
enum { DIM = 256 };

static void check_merged(const char *dialect, const char *base_path, const struct pairing *pairings, int n) {
    struct convert_args args = {.inputs = {base_path}, .output = temporary_path("merged.safetensors")};
    struct opened base, merged, adapters[2];
    const struct opened *both[2] = {&adapters[0], &adapters[1]};
    static const double strengths[2] = {0.6, -1};
    for (int i = 0; i < 2; i++) {
        char name[40];
        snprintf(name, sizeof name, "adapter%d.safetensors", i);
        args.loras[i] =
            (struct sluice_lora){write_adapter(name, dialect, ADAPTER_SEED + (uint64_t)i), strengths[i]};
        if (!open_weights(&adapters[i], args.loras[i].path)) return;
    }
    if (expect_converted(&args) && open_weights(&base, base_path) && open_weights(&merged, args.output)) {
        for (int i = 0; i < n; i++) {
            double worst = worst_of(&base, &merged, both, strengths, &pairings[i]);
            check(worst < 3e-7, "%s, '%s': error %g", dialect, pairings[i].weight, worst);
        }
        index_destroy(&base.index);
        index_destroy(&merged.index);
    }
    for (int i = 0; i < 2; i++) index_destroy(&adapters[i].index);
}

static void test_merged_weights_equal_f64(void) {
    static const struct pairing comfy[] = {{TO_Q, "diffusion_model.layers.0.attention.qkv", 0},
                                           {TO_V, "diffusion_model.layers.0.attention.qkv", 2 * DIM},
                                           {W2, "diffusion_model." W2, 0},
                                           {"all_x_embedder.2-1", "diffusion_model.x_embedder", 0}};
    static const struct pairing loha[] = {{TO_V, "lycoris_layers_0_attention_to_v", 0}};
    static const struct pairing lokr[] = {{TO_V, "lora_unet_layers_0_attention_qkv", 2 * DIM},
                                          {W2, "lora_unet_layers_0_feed_forward_w2", 0}};
    const char *transformer = of_model("transformer");
    check_merged("comfy", transformer, comfy, COUNT_OF(comfy));
    check_merged("loha", transformer, loha, COUNT_OF(loha));
    check_merged("lokr", transformer, lokr, COUNT_OF(lokr));
}

/* Merges a LoRA with one low-rank pair for all of a fused q, k, v tensor, and a LoRA with a pair for each. */
static void test_fused_qkv_merged(void) {
    static const struct pairing whole[] = {
        {"layers.0.attention.qkv", "diffusion_model.layers.0.attention.qkv", 0}};
    const char *fused = fused_transformer();
    check_merged("comfy", fused, whole, 1);
    struct opened split, together;
    const char *adapter = write_adapter("parts.safetensors", "kohya_diffusers", 3),
               *split_path = temporary_path("split.safetensors"),
               *together_path = temporary_path("together.safetensors");
    if (!expect_converted(ASK(of_model("transformer"), split_path, NULL, .loras = {{adapter, 0.7}})) ||
        !expect_converted(ASK(fused, together_path, NULL, .loras = {{adapter, 0.7}})) ||
        !open_weights(&split, split_path) || !open_weights(&together, together_path))
        return;
    const struct index_entry *entry, *part;
    float *all = values_of(&together, "layers.0.attention.qkv", ".weight", &entry);
    for (int k = 0; k < 3 && all; k++) {
        char name[60];
        snprintf(name, sizeof name, "layers.0.attention.to_%c", "qkv"[k]);
        float *own = values_of(&split, name, ".weight", &part);
        check(own && !memcmp(own, all + k * entry_elements(part), (size_t)entry_elements(part) * sizeof *own),
              "%s differs", name);
        free(own);
    }
    check(all != NULL, "the output has no qkv");
    free(all);
    index_destroy(&split.index);
    index_destroy(&together.index);
}

static void same_files(const char *one, const char *other, const char *what) {
    struct opened x, y;
    if (!open_weights(&x, one) || !open_weights(&y, other)) return;
    check(x.index.n_entries == y.index.n_entries, "%s: %d tensors instead of %d", what, x.index.n_entries,
          y.index.n_entries);
    for (int i = 0; i < x.index.n_entries && i < y.index.n_entries; i++) {
        const struct index_entry *a = &x.index.entries[i], *b = &y.index.entries[i];
        float *p = numbers_of(&x, a), *q = numbers_of(&y, b);
        check(a->dtype == b->dtype && entry_elements(a) == entry_elements(b) &&
                  !memcmp(p, q, (size_t)entry_elements(a) * sizeof *p),
              "%s: '%s' differs", what, a->name);
        free(p), free(q);
    }
    index_destroy(&x.index);
    index_destroy(&y.index);
}

/* Output in a type equals the merged weight written in f32 and then converted to that type. */
static void test_sum_rounded_once(void) {
    static const char *const types[] = {"q8_0", "f8_e4m3", "bf16"};
    const char *adapter = write_adapter("once.safetensors", "comfy_vectors", 5),
               *sum = temporary_path("sum.safetensors");
    if (!expect_converted(ASK(of_model("transformer"), sum, NULL, .loras = {{adapter, 0.8}}))) return;
    for (int i = 0; i < 3; i++) {
        const char *direct = temporary_path(i ? "direct.safetensors" : "direct.gguf"),
                   *twice = temporary_path(i ? "twice.safetensors" : "twice.gguf");
        if (expect_converted(ASK(of_model("transformer"), direct, types[i], .loras = {{adapter, 0.8}})) &&
            expect_converted(ASK(sum, twice, types[i])))
            same_files(direct, twice, types[i]);
    }
}

/* A merged weight in a quantised type that convert can write gets a new scale; for other quantised types
 * --type must name a new type. */
static void test_quantised_base_gets_new_scale(void) {
    const char *adapter = write_adapter("base.safetensors", "kohya", 5),
               *f8 = temporary_path("f8.safetensors"), *kept = temporary_path("kept.safetensors"),
               *numbers = temporary_path("numbers.safetensors"), *sum = temporary_path("f8sum.safetensors"),
               *again = temporary_path("again.safetensors");
    if (expect_converted(ASK(of_model("transformer"), f8, "f8_e4m3")) &&
        expect_converted(ASK(f8, kept, NULL, .loras = {{adapter, 1}})) &&
        expect_converted(ASK(f8, numbers, "f32")) &&
        expect_converted(ASK(numbers, sum, NULL, .loras = {{adapter, 1}})) &&
        expect_converted(ASK(sum, again, "f8_e4m3")))
        same_files(kept, again, "f8 with a new scale");
}

static void test_unsuitable_adapters_refused(void) {
    const struct {
        const char *base, *adapter;
        double strength;
        enum status code;
        const char *word;
    } rows[] = {
        {"vae", write_adapter("other.safetensors", "kohya", 5), 1, UNSUPPORTED, "autoencoder"},
        {"text_encoder", temporary_path("other.safetensors"), 1, MISSING, "the adapter changes nothing"},
        {"transformer", temporary_path("other.safetensors"), NAN, USAGE, "strength"},
        {"transformer", temporary_path("nowhere.safetensors"), 1, MISSING, "nowhere"},
        {"transformer", of_model("transformer/diffusion_pytorch_model-00001-of-00002.safetensors"), 1,
         UNSUPPORTED, "not a LoRA or other adapter"},
    };
    for (int i = 0; i < COUNT_OF(rows); i++)
        expect_not_converted(ASK(of_model(rows[i].base), temporary_path("refused.safetensors"), NULL,
                                 .loras = {{rows[i].adapter, rows[i].strength}}),
                             rows[i].code, rows[i].word);
}

static void test_unwritable_base_type_refused(void) {
    char input[200];
    snprintf(input, sizeof input, "%s/transformer", random_model("iq", "zimage", SIZES ",dtype=iq4_nl", 1));
    const char *adapter = write_adapter("iq.safetensors", "kohya", 5), *output = temporary_path("iq.gguf");
    expect_not_converted(ASK(input, output, NULL, .loras = {{adapter, 1}}), UNSUPPORTED, "IQ4_NL");
    expect_converted(ASK(input, output, "q8_0", .loras = {{adapter, 1}}));
}

static void test_strength_0_changes_nothing(void) {
    const char *adapter = write_adapter("zero_lora.safetensors", "kohya", 5), *base = of_model("transformer"),
               *zero = temporary_path("zero.safetensors"), *plain = temporary_path("plain.safetensors");
    if (expect_converted(ASK(base, zero, NULL, .loras = {{adapter, 0}})) &&
        expect_converted(ASK(base, plain, NULL)))
        same_files(zero, plain, "strength 0");
}

static void test_nan_factor_refused(void) {
    const char *path = write_adapter("nan.safetensors", "kohya", 5);
    static const unsigned char nan_bytes[] = {0, 0, 0xc0, 0x7f};
    FILE *f = fopen(path, "r+b");
    check(f && !fseek(f, -8, SEEK_END) && fwrite(nan_bytes, 4, 1, f) == 1 && !fclose(f), "cannot write %s",
          path);
    expect_not_converted(
        ASK(of_model("transformer"), temporary_path("refused.safetensors"), NULL, .loras = {{path, 1}}),
        NONFINITE, "nan.safetensors");
}

static void test_no_output_after_failed_allocation(void) {
    const char *adapter = write_adapter("fault_lora.safetensors", "loha", 5),
               *output = temporary_path("fault.safetensors");
    for (long n = 1;; n += 1 + n / 8) {
        struct error e;
        fault_sys_fail(&convert_sys, CALL_ALLOC, n, 0);
        enum status status = convert(ASK(of_model("transformer"), output, NULL, .loras = {{adapter, 1}}), &e);
        bool failed = atomic_load(&convert_sys.count[CALL_ALLOC]) >= n;
        check(status == (failed ? MEMORY : OK), "allocation %ld: %s", n, status_name(status));
        check(file_exists(output) == !failed, "allocation %ld: output file after an error, or none", n);
        check_no_leak("a failed allocation");
        if (!failed) break;
    }
    fault_sys_restart(&convert_sys);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    fault_sys_init(&convert_sys, 1);
    model = random_model("base", "zimage", IN_F32, 1);
    test_merged_weights_equal_f64();
    test_fused_qkv_merged();
    test_sum_rounded_once();
    test_quantised_base_gets_new_scale();
    test_unwritable_base_type_refused();
    test_strength_0_changes_nothing();
    test_unsuitable_adapters_refused();
    test_nan_factor_refused();
    test_no_output_after_failed_allocation();
    return finish();
}
