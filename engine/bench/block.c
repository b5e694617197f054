/* `sluice bench block`: compares a block and a VAE decoder of published sizes with the rate of oneDNN's own
 * matrix products.
 *
 * Each round runs the family's forward with random weights, then every product and convolution of the
 * forward once in oneDNN's best way: whole, with weights in f32 that are already repacked. Both rates are
 * thus measured within the same seconds, because other programs may use the machine too. Reports medians
 * over rounds. */
#include "engine/bench/block.h"
#include "engine/bench/predict.h"
#include "engine/bench/random_weights.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cpu/onednn.h"
#include "loaders/json.h"
#include "loaders/quantise/quantise.h"
#include "models/models.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PRODUCTS_MAX = 64 };

struct product {
    struct onednn_key key;
    int calls;    /* calls per forward */
    double flops; /* FLOPs of one matrix product or convolution, without padding */
};

/* Device wrapper: records the time per operator class, and the products and convolutions of a forward. */
struct watch {
    struct device device;
    struct sys *sys;
    struct device *target;
    struct {
        double seconds, flops; /* seconds and FLOPs of one operator class; 0 FLOPs for memory-bound classes */
    } class[N_OP_CLASSES];
    struct product products[PRODUCTS_MAX];
    int n_products;
};

static void watch_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    const struct device *target = ((const struct watch *)device)->target;
    target->cost(target, op, cost);
}

static enum status watch_prepare(struct device *device, const struct op *op, struct error *e) {
    struct device *target = ((struct watch *)device)->target;
    return target->prepare(target, op, e);
}

/* Rounds a number of channels up to a multiple of 8, as oneDNN needs. */
static int32_t eights(int32_t n) {
    return (n + 7) / 8 * 8;
}

static bool is_product(enum op_class class) {
    return class == CLASS_LINEAR || class == CLASS_LINEAR_BF16 || class == CLASS_LINEAR_INT8;
}

static enum status watch_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct watch *w = (struct watch *)device;
    enum op_class class = op_class_of(op);
    double start = w->sys->clock(w->sys);
    w->target->run(w->target, op, workspace, e);
    w->class[class].seconds += w->sys->clock(w->sys) - start;
    if (class != CLASS_BYTES) w->class[class].flops += op_flops(op);
    if (!is_product(class) && class != CLASS_CONV) return e->code;
    /* Counts the oneDNN primitive that computes the whole product or convolution with all threads. If the
     * table is full, the product is left out of the comparison; no supported model has nearly as many. */
    const int32_t *out = op->out.dim, *weight = op->in[1].dim;
    struct onednn_key product = {ONEDNN_PRODUCT_T, {op->in[0].dim[0], weight[0], weight[1]}};
    struct onednn_key conv = {
        ONEDNN_CONV, {out[0], out[1], eights(weight[1]), eights(weight[0]), weight[2], op->conv.stride == 2}};
    struct onednn_key key = op->kind == OP_LINEAR ? product : conv;
    key.number[ONEDNN_SHARED] = 1;
    int i = 0;
    while (i < w->n_products && memcmp(&w->products[i].key, &key, sizeof key) != 0) i++;
    if (i == PRODUCTS_MAX) return e->code;
    if (i == w->n_products) w->products[w->n_products++] = (struct product){key, 0, op_flops(op)};
    w->products[i].calls++;
    return e->code;
}

enum { LIBRARY = N_OP_CLASSES, ALL, PLAIN, N_TIMES };

struct round_times {
    /* seconds of one round: per operator class, of oneDNN's products, of the forward, and of the forward's
     * part that oneDNN also computes */
    double seconds[N_TIMES];
};

struct block_bench {
    struct bench *bench;
    const struct bench_block_case *c;
    /* plain: component to compare with, of bf16 weights or without adapter */
    struct random_component component, plain;
    struct watch watch;
    struct onednn *onednn;
    char *memory; /* buffer for the largest matrix product that is measured with plain oneDNN */
    uint64_t bytes;
    struct round_times rounds[BENCH_ROUNDS_MAX];
    int n_rounds;
    char what[64]; /* text of the current round, for the progress report */
    double fraction;
    struct error *error;
};

struct product_layout {
    uint64_t in, weights, bias, out, scratch, end;
};

static uint64_t take_floats(uint64_t *used, double n) {
    uint64_t at = *used;
    *used = align_up(at + (uint64_t)n * sizeof(float), ARENA_ALIGN);
    return at;
}

static struct product_layout product_layout_of(const struct block_bench *b, const struct onednn_key *key) {
    const int32_t *n = key->number;
    struct onednn_facts facts = onednn_facts(b->onednn, key);
    struct product_layout l = {0};
    bool conv = key->kind == ONEDNN_CONV;
    int32_t stride = n[5] + 1;
    double pixels = (double)((n[0] - 1) * stride + n[4]) * ((n[1] - 1) * stride + n[4]);
    l.in = take_floats(&l.end, conv ? pixels * n[2] : (double)n[0] * n[2]);
    l.weights = take_floats(&l.end, conv ? (double)facts.weights_bytes / sizeof(float) : (double)n[1] * n[2]);
    l.bias = take_floats(&l.end, conv ? n[3] : 0);
    l.out = take_floats(&l.end, conv ? (double)n[0] * n[1] * n[3] : (double)n[0] * n[1]);
    l.scratch = l.end;
    l.end += facts.scratch_bytes;
    return l;
}

/* Allocates and fills a buffer for the largest matrix product. Unwritten pages would all map to one zero
 * page. */
static enum status prepare_products(struct block_bench *b, struct error *e) {
    struct sys *sys = &b->bench->sys;
    struct tensor values = tensor_make(NULL, DTYPE_F32, 1, (int32_t[]){1});
    uint64_t random = 3;
    for (int i = 0; i < b->watch.n_products; i++) {
        const struct onednn_key *key = &b->watch.products[i].key;
        uint64_t bytes = product_layout_of(b, key).end;
        if (bytes > b->bytes) b->bytes = bytes;
        if (onednn_prepare(b->onednn, key, e) != OK) return e->code;
    }
    b->memory = sys->map(sys, LINE_ACTIVATION, b->bytes);
    if (!b->memory)
        return error_set(e, MEMORY, "no memory for a benchmark of %llu bytes", (unsigned long long)b->bytes);
    random_weights_fill(&random, &values, 1, b->memory, b->bytes);
    return OK;
}

static double clock_of(const struct block_bench *b) {
    return b->bench->sys.clock(&b->bench->sys);
}

static double time_product(struct block_bench *b, const struct onednn_key *key, struct error *e) {
    struct product_layout l = product_layout_of(b, key);
    struct onednn_operands operands = {.src = b->memory + l.in,
                                       .weights = b->memory + l.weights,
                                       .bias = b->memory + l.bias,
                                       .dst = b->memory + l.out,
                                       .scratch = b->memory + l.scratch};
    double start = clock_of(b);
    onednn_run(b->onednn, key, operands, e);
    return clock_of(b) - start;
}

/* Checks for cancellation between operators, so that cancelling takes effect at once. */
static bool block_tick(void *user) {
    struct block_bench *b = user;
    return bench_go_on(b->bench, b->fraction, b->what, b->error) == OK;
}

static enum status run_round(struct block_bench *b, int round, struct error *e) {
    struct watch *watch = &b->watch;
    struct round_times times = {0};
    double share = (double)round / (b->c->rounds + 1);
    /* Calls the progress callback before the round's clock starts, so that the callback's time is not
     * measured. */
    b->fraction = b->c->from + share * (b->c->to - b->c->from);
    snprintf(b->what, sizeof b->what, "%s, round %d of %d", b->c->name, round, b->c->rounds);
    if (bench_go_on(b->bench, b->fraction, b->what, e) != OK) return e->code;
    /* Resets all measurements but keeps the products' shapes. */
    memset(watch->class, 0, sizeof watch->class);
    for (int i = 0; i < watch->n_products; i++) watch->products[i].calls = 0;
    double start = clock_of(b);
    if (random_component_run(&b->component, &watch->device, e) != OK) return e->code;
    times.seconds[ALL] = clock_of(b) - start;
    for (int i = 0; i < N_OP_CLASSES; i++) times.seconds[i] = watch->class[i].seconds;
    start = clock_of(b);
    if (b->plain.sys) random_component_run(&b->plain, b->plain.device, e);
    times.seconds[PLAIN] = clock_of(b) - start;
    if (e->code != OK || (!b->memory && prepare_products(b, e) != OK)) return e->code;
    for (int i = 0; i < watch->n_products && block_tick(b) && e->code == OK; i++) {
        const struct product *p = &watch->products[i];
        times.seconds[LIBRARY] += p->calls * time_product(b, &p->key, e);
    }
    if (round > 0) b->rounds[b->n_rounds++] = times; /* round 0 is a warm-up */
    return e->code;
}

/* Median over rounds of a time or, if over >= 0, of the ratio of this time to another time (index `over`) of
 * the same round. */
static double median_of(const struct block_bench *b, int time, int over) {
    double values[BENCH_ROUNDS_MAX];
    for (int i = 0; i < b->n_rounds; i++)
        values[i] = b->rounds[i].seconds[time] / (over < 0 ? 1 : b->rounds[i].seconds[over]);
    return bench_median(values, b->n_rounds);
}

static json_t *block_add_row(const struct block_bench *b, const char *what, double seconds, double flops) {
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:f}", "part", b->c->name, "shape",
                            b->c->shape, "type", dtype_name(b->c->sizes.type), "what", what, "threads",
                            b->bench->threads, "precision", precision_name(b->c->sizes.precision), "rounds",
                            b->n_rounds, "seconds", seconds);
    if (flops > 0) {
        json_put(row, "flops", json_real(flops));
        json_put(row, "flops_per_second", json_real(flops / seconds));
    }
    json_push(b->bench->rows, row);
    return row;
}

/* Adds report rows: the forward relative to oneDNN's rate, oneDNN's rate, time per operator class. */
static void block_add_rows(const struct block_bench *b) {
    double work = 0, all = 0;
    for (int i = 0; i < N_OP_CLASSES; i++) {
        all += b->watch.class[i].flops;
        if (is_product((enum op_class)i) || i == CLASS_CONV) work += b->watch.class[i].flops;
    }
    json_t *row = block_add_row(b, "all", median_of(b, ALL, -1), all);
    json_put(row, "product_rate_share", json_real(all / work * median_of(b, LIBRARY, ALL)));
    int rank = b->c->sizes.adapter_rank;
    if (rank) json_put(row, "adapter_rank", json_integer(rank));
    const char *of = rank ? "of_base" : b->c->sizes.precision != PRECISION_F32 ? "of_f32" : "of_bf16";
    if (b->plain.sys) json_put(row, of, json_real(median_of(b, ALL, PLAIN)));
    block_add_row(b, "library", median_of(b, LIBRARY, -1), work);
    for (int i = 0; i < N_OP_CLASSES; i++) {
        double flops = b->watch.class[i].flops;
        if (median_of(b, i, -1) <= 0) continue;
        row = block_add_row(b, op_class_name((enum op_class)i), median_of(b, i, -1), flops);
        json_put(row, "time_share", json_real(median_of(b, i, ALL)));
        if (flops > 0)
            json_put(row, "product_rate_share", json_real(flops / work * median_of(b, LIBRARY, i)));
    }
}

/* Makes the component to measure and, if the case is not a bf16 block in f32, a component to compare with:
 * the same without adapters, else in f32 with bf16 weights. */
static enum status make_components(struct block_bench *b, struct device *device, struct error *e) {
    struct random_component_sizes plain = b->c->sizes;
    bool differs = plain.adapter_rank || plain.precision != PRECISION_F32 || plain.type != DTYPE_BF16;
    if (plain.adapter_rank) {
        plain.adapter_rank = 0;
    } else {
        plain.precision = PRECISION_F32;
        plain.type = DTYPE_BF16;
    }
    if (random_component_make(&b->component, &b->bench->sys, device, &b->c->sizes, e) != OK) return e->code;
    if (!differs) return OK;
    if (random_component_make(&b->plain, &b->bench->sys, device, &plain, e) != OK) return e->code;
    b->plain.context.tick = block_tick;
    b->plain.context.tick_user = b;
    return OK;
}

enum status bench_block_measure(struct bench *bench, struct device *device, const struct bench_block_case *c,
                                struct error *e) {
    struct block_bench b = {.bench = bench, .c = c, .error = e};
    b.onednn = onednn_open(&bench->sys, bench->threads, e);
    if (b.onednn && make_components(&b, device, e) == OK) {
        b.watch = (struct watch){.device = {.name = device->name,
                                            .threads = device->threads,
                                            .chunks = device->chunks,
                                            .operands = device->operands,
                                            .cost = watch_cost,
                                            .prepare = watch_prepare,
                                            .run = watch_run},
                                 .sys = &bench->sys,
                                 .target = device};
        b.component.context.tick = block_tick;
        b.component.context.tick_user = &b;
        for (int i = 0; i <= c->rounds && run_round(&b, i, e) == OK; i++) continue;
        if (e->code == OK) block_add_rows(&b);
    }
    if (b.memory) bench->sys.unmap(&bench->sys, LINE_ACTIVATION, b.memory, b.bytes);
    if (b.component.sys) random_component_destroy(&b.component);
    if (b.plain.sys) random_component_destroy(&b.plain);
    onednn_close(b.onednn);
    return e->code;
}

struct bench_block_case bench_block_case_named(const char *name) {
    for (const struct family *const *f = families; *f; f++)
        for (const struct measured_block *m = (*f)->measured; m && m->name; m++)
            if (!strcmp(m->name, name))
                return (struct bench_block_case){.name = m->name,
                                                 .shape = m->shape,
                                                 .sizes = {.family = *f,
                                                           .block = m->kind,
                                                           .text_rows = m->text_rows,
                                                           .text_columns = m->text_columns,
                                                           .latent_channels = m->latent_channels,
                                                           .latent_side = m->latent_side,
                                                           .picture_side = m->picture_side,
                                                           .type = DTYPE_BF16},
                                                 .rounds = m->rounds};
    assert(!"a family defines every case");
    return (struct bench_block_case){0};
}

static enum status find_type(const char *name, enum dtype *type, struct error *e) {
    *type = name ? quantise_type(name) : N_DTYPES;
    if (!name || *type != N_DTYPES) return OK;
    for (int i = 0; i < N_DTYPES; i++)
        if (!strcasecmp(name, dtype_name((enum dtype)i)) && dtype_is_weight((enum dtype)i)) {
            *type = (enum dtype)i;
            return OK;
        }
    return error_set(e, USAGE, "unknown weight type" FOUND "%s" EXPECTED "f32, f16, q8_0, q4_k, f8_e4m3 ...",
                     name);
}

/* Finds a precision by name. NULL gives F32, which random components take as the family's default. Fails with
 * USAGE for an unknown precision or one that the device does not support. */
static enum status find_precision(const char *name, const struct device *device, enum precision *precision,
                                  struct error *e) {
    *precision = name ? precision_named(name) : PRECISION_F32;
    if (!name) return OK;
    const char *lacks = *precision < N_PRECISIONS ? device->unsupported[*precision] : "unknown precision";
    return lacks ? error_set(e, USAGE, "invalid value for --precision: %s" FOUND "%s", lacks, name) : OK;
}

/* Measures a block and a VAE decoder with bf16 weights. With another type or precision, or an adapter,
 * measures the block at two numbers of tokens instead. */
static void measure_parts(struct bench *bench, struct device *device, enum precision precision,
                          enum dtype type, struct error *e) {
    static const double share[] = {0, 0.3, 1};
    const bool compared = bench->options.type || bench->options.adapter_rank || precision != PRECISION_F32;
    const char *const parts[2] = {"block", compared ? "short block" : "decoder"};
    if (bench->options.adapter_rank < 0 || bench->options.adapter_rank > SLUICE_ADAPTER_RANK_MAX)
        error_set(e, USAGE, "invalid adapter rank %d", bench->options.adapter_rank);
    for (int i = 0; i < 2 && e->code == OK; i++) {
        struct bench_block_case c = bench_block_case_named(parts[i]);
        c.sizes.precision = precision;
        c.sizes.type = random_component_type(c.sizes.family, precision, type);
        c.sizes.adapter_rank = bench->options.adapter_rank;
        c.from = share[i];
        c.to = share[i + 1];
        bench_block_measure(bench, device, &c, e);
    }
}

int sluice_bench_block(const struct sluice_bench_options *options, char **json, struct sluice_error *error) {
    struct error e = {0};
    struct bench bench;
    enum dtype type = N_DTYPES;
    enum precision precision = PRECISION_F32;
    bench_start(&bench, options, &e);
    const char *predict = e.code == OK ? bench.options.predict : NULL;
    struct device *device = NULL;
    if (e.code == OK)
        device = predict ? cuda_plan_device(&bench.sys, NULL, &e) : cpu_open(&bench.sys, bench.threads, &e);
    if (device && find_precision(bench.options.precision, device, &precision, &e) == OK &&
        find_type(bench.options.type, &type, &e) == OK) {
        if (predict)
            predict_bench(&bench, device, predict, precision, type, &e);
        else
            measure_parts(&bench, device, precision, type, &e);
    }
    if (device) device->destroy(device);
    /* "precision" of the report: without --precision bf16, although UNets are predicted in f16. */
    json_t *card = predict ? json_pack("{s:s, s:s}", "card", predict, "precision",
                                       precision_name(precision ? precision : PRECISION_BF16))
                           : NULL;
    return bench_finish(&bench, card, predict ? 0 : bench.threads, json, NULL, &e, error);
}
