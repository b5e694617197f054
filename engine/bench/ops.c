/* `sluice bench ops`: measures the CPU device's rates per operator class.
 *
 * Each case is a small forward like a block's. A dry run finds the case's memory, workspace, preparation and
 * work. Then the case runs several times, and the fastest run counts, because disturbances only slow a run
 * down. The rate of a class is the total work of its cases divided by their total time. Slow shapes
 * therefore weigh as much as they take. */
#include "engine/bench/bench.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dry/dry.h"
#include "kernels/ops.h"
#include "loaders/json.h"

#include <stdio.h>
#include <string.h>

/* Sizes of Z-Image: tokens of a 512 x 256 image, width of a block, feed-forward width, head size. */
enum { T = 512, C = 3840, F = 10240, D = 128 };

struct ops_case {
    enum op_class class;
    const char *shape;
    enum dtype weights;
    bool counts; /* true: the case counts for its operator class's rate; false: the case is only reported */
    void (*forward)(struct context *x, const struct ops_case *c);
    int32_t size[3]; /* sizes of the case; their meaning depends on `forward` */
};

static struct tensor matrix(struct context *x, enum dtype dtype, int32_t rows, int32_t columns) {
    return context_tensor(x, dtype, 2, (int32_t[]){rows, columns});
}

/* A matrix product; ops_case.size has rows, inputs, outputs. */
static void ops_product(struct context *x, const struct ops_case *c) {
    int32_t rows = c->size[0], inputs = c->size[1], outputs = c->size[2];
    struct tensor out = matrix(x, DTYPE_F32, rows, outputs), in = matrix(x, DTYPE_F32, rows, inputs);
    op_linear(x, out, in, matrix(x, c->weights, outputs, inputs), (struct epilogue){0});
}

/* Self-attention over T tokens; ops_case.size has the number of heads and the size of a head. */
static void ops_attend(struct context *x, const struct ops_case *c) {
    int32_t heads = c->size[0], columns = heads * c->size[1];
    struct tensor q = matrix(x, DTYPE_F32, T, columns), k = matrix(x, DTYPE_F32, T, columns);
    struct tensor v = matrix(x, DTYPE_F32, T, columns);
    op_attention(x, q, q, k, v, (struct attention_options){.queries = heads, .keys = heads, .scale = 0.1f});
}

/* A 3x3 convolution; ops_case.size has the image's side and the channels. */
static void ops_convolve(struct context *x, const struct ops_case *c) {
    int32_t side = c->size[0], channels = c->size[1];
    int32_t dim[3] = {side, side, channels}, kernel[4] = {channels, channels, 3, 3};
    struct tensor out = context_tensor(x, DTYPE_F32, 3, dim), in = context_tensor(x, DTYPE_F32, 3, dim);
    op_conv2d(x, out, in, context_tensor(x, c->weights, 4, kernel), (struct epilogue){0},
              (struct conv_options){.upsample = 1});
}

/* The memory-bound operators of a block: two gated norms, RoPE, the feed-forward's gate, and products of one
 * row. */
static void ops_move(struct context *x, const struct ops_case *c) {
    struct tensor h = matrix(x, DTYPE_F32, T, C), out = matrix(x, DTYPE_F32, T, C);
    struct tensor row = context_tensor(x, DTYPE_F32, 1, (int32_t[]){C});
    struct tensor table = context_tensor(x, DTYPE_F32, 3, (int32_t[]){T, D / 2, 2});
    struct tensor a = matrix(x, DTYPE_F32, T, F), b = matrix(x, DTYPE_F32, T, F);
    struct modulation m = {.scale = row, .gate = row, .base = out};
    op_rms_norm(x, out, h, row, 1e-6f, m);
    op_rms_norm(x, out, h, row, 1e-6f, m);
    op_rope(x, h, h, table, (struct rotation){.heads = C / D, .pairs = ROPE_INTERLEAVED});
    op_glu(x, a, a, b, ACTIVATION_SILU);
    op_linear_few(x, matrix(x, DTYPE_F32, 1, C), matrix(x, DTYPE_F32, 1, 256), matrix(x, c->weights, C, 256),
                  row, ACTIVATION_SILU);
}

static const struct ops_case cases[] = {
    {CLASS_LINEAR, "512x3840x3840", DTYPE_F32, false, ops_product, {T, C, C}},
    {CLASS_LINEAR, "512x3840x3840", DTYPE_F16, false, ops_product, {T, C, C}},
    {CLASS_LINEAR, "512x3840x3840", DTYPE_BF16, true, ops_product, {T, C, C}},
    {CLASS_LINEAR, "256x3840x10240", DTYPE_BF16, true, ops_product, {T / 2, C, F}},
    {CLASS_LINEAR_BF16, "512x3840x3840", DTYPE_F32, false, ops_product, {T, C, C}},
    {CLASS_LINEAR_BF16, "512x3840x3840", DTYPE_BF16, true, ops_product, {T, C, C}},
    {CLASS_LINEAR_BF16, "256x3840x10240", DTYPE_BF16, true, ops_product, {T / 2, C, F}},
    {CLASS_LINEAR_INT8, "512x3840x3840", DTYPE_BF16, false, ops_product, {T, C, C}},
    /* int8 runs convert weights to this type while reading. */
    {CLASS_LINEAR_INT8, "512x3840x3840", DTYPE_I8_ROT256, true, ops_product, {T, C, C}},
    {CLASS_LINEAR_INT8, "256x3840x10240", DTYPE_I8_ROT256, true, ops_product, {T / 2, C, F}},
    {CLASS_ATTENTION, "512 keys, 16 heads of 64", DTYPE_F32, true, ops_attend, {16, 64}},
    {CLASS_ATTENTION, "512 keys, 8 heads of 128", DTYPE_F32, true, ops_attend, {8, D}},
    /* The VAE decoder's attention has one head, as wide as its channels. */
    {CLASS_ATTENTION, "512 keys, 1 head of 512", DTYPE_F32, false, ops_attend, {1, 512}},
    {CLASS_CONV, "96x96, 256 channels", DTYPE_F32, true, ops_convolve, {96, 256}},
    {CLASS_CONV, "192x192, 64 channels", DTYPE_F32, true, ops_convolve, {192, 64}},
    {CLASS_BYTES, "norms, rope, swiglu, rows of a block", DTYPE_BF16, true, ops_move, {0}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static enum precision precision_of(const struct ops_case *c) {
    return c->class == CLASS_LINEAR_BF16   ? PRECISION_BF16
           : c->class == CLASS_LINEAR_INT8 ? PRECISION_INT8
                                           : PRECISION_F32;
}

struct ops_bench {
    struct bench *bench;
    struct device *device;
    int threads;
    /* work (FLOPs or bytes) and seconds, summed over the cases with `counts` */
    double work[N_OP_CLASSES], seconds[N_OP_CLASSES];
};

/* Finds a case's memory and work by a dry run, which also prepares the device. *work: FLOPs, or bytes for
 * memory-bound operators. */
static enum status measure_dry(struct ops_bench *b, const struct ops_case *c, struct context *x,
                               double *work) {
    struct op_rates ones = {.per_second = {1, 1, 1, 1, 1, 1, 1}};
    struct arena counting = arena_counting();
    struct dry dry;
    struct context dry_context = {
        .device = &dry.device, .precision = x->precision, .scratch = &counting, .error = x->error};
    dry_init(&dry, &b->bench->sys, b->device, true);
    dry.rates = &ones;
    c->forward(&dry_context, c);
    *work = dry.seconds;
    x->workspace_bytes = dry.workspace_bytes;
    x->scratch->bytes = counting.peak;
    dry_destroy(&dry);
    return x->error->code;
}

/* Returns the shortest time of a few runs of a case after a warm-up run, within about a second. */
static double best_try(struct ops_bench *b, const struct ops_case *c, struct context *x) {
    enum { TRIES = 4 };
    struct sys *sys = &b->bench->sys;
    double best = 0, began = sys->clock(sys);
    for (int i = 0; i <= TRIES && x->error->code == OK; i++) {
        double start = sys->clock(sys);
        x->scratch->used = 0;
        c->forward(x, c);
        double end = sys->clock(sys), seconds = end - start;
        bool warm = i > 0;
        if (warm && (best == 0 || seconds < best)) best = seconds;
        if (warm && end - began > 1) break;
    }
    return best;
}

static enum status run_case(struct ops_bench *b, const struct ops_case *c, struct error *e) {
    struct sys *sys = &b->bench->sys;
    struct arena arena = {0};
    struct context x = {.device = b->device, .precision = precision_of(c), .scratch = &arena, .error = e};
    double work = 0;
    if (measure_dry(b, c, &x, &work) != OK) return e->code;
    uint64_t bytes = arena.bytes + x.workspace_bytes;
    arena.base = sys->map(sys, LINE_ACTIVATION, bytes);
    if (!arena.base)
        return error_set(e, MEMORY, "no memory for a benchmark of %llu bytes", (unsigned long long)bytes);
    x.workspace = arena.base + arena.bytes;
    /* Fills the operands with values near 0.01 (f32, bf16) or 1 (f16). Unwritten pages would all map to one
     * zero page, which never leaves the cache. */
    uint16_t *values = (uint16_t *)(void *)arena.base;
    for (uint64_t i = 0; i < bytes / sizeof *values; i++) values[i] = (uint16_t)(0x3C00 + i * 37 % 128);
    double seconds = best_try(b, c, &x);
    if (e->code == OK && seconds > 0) {
        const char *unit = c->class == CLASS_BYTES ? "bytes_per_second" : "flops_per_second";
        json_push(b->bench->rows,
                  json_pack("{s:s, s:s, s:s, s:i, s:f}", "op", op_class_name(c->class), "shape", c->shape,
                            "dtype", dtype_name(c->weights), "threads", b->threads, unit, work / seconds));
        b->work[c->class] += c->counts ? work : 0;
        b->seconds[c->class] += c->counts ? seconds : 0;
    }
    sys->unmap(sys, LINE_ACTIVATION, arena.base, bytes);
    return e->code;
}

/* Runs all cases with this thread count; `from`, `to`: start and end of these runs in the benchmark's
 * progress, 0 to 1. */
static enum status run_cases(struct bench *bench, int threads, double from, double to, struct error *e) {
    struct ops_bench b = {.bench = bench, .threads = threads, .device = cpu_open(&bench->sys, threads, e)};
    if (!b.device) return e->code;
    for (int i = 0; i < N_CASES && e->code == OK; i++) {
        char what[96];
        if (b.device->unsupported[precision_of(&cases[i])]) continue;
        snprintf(what, sizeof what, "%s, %d threads", op_class_name(cases[i].class), threads);
        if (bench_go_on(bench, from + (to - from) * i / N_CASES, what, e) == OK) run_case(&b, &cases[i], e);
    }
    for (int i = 0; i < N_OP_CLASSES; i++)
        if (b.seconds[i] > 0) bench->measured.ops.per_second[i] = b.work[i] / b.seconds[i];
    b.device->destroy(b.device);
    return e->code;
}

json_t *ops_slower(const struct op_rates *one, const struct op_rates *all, int threads) {
    json_t *slower = json_array();
    for (int i = 0; i < N_OP_CLASSES; i++) {
        double alone = one->per_second[i], together = all->per_second[i];
        if (together <= 0 || together >= alone) continue;
        json_push(slower, json_pack("{s:s, s:i, s:f}", "op", op_class_name((enum op_class)i), "threads",
                                    threads, "of_one_thread", together / alone));
    }
    return slower;
}

int sluice_bench_ops(const struct sluice_bench_options *options, char **json, char **rates,
                     struct sluice_error *error) {
    struct error e = {0};
    struct bench bench;
    bench_start(&bench, options, &e);
    /* Measures with one thread first, because the rates measured last, with the session's thread count, are
     * saved. */
    double half = bench.threads > 1 ? 0.6 : 0;
    if (e.code == OK && bench.threads > 1) run_cases(&bench, 1, 0, half, &e);
    struct op_rates one = bench.measured.ops;
    if (e.code == OK) run_cases(&bench, bench.threads, half, 1, &e);
    json_t *slower = e.code == OK ? ops_slower(&one, &bench.measured.ops, bench.threads) : NULL;
    json_t *rest = slower ? json_pack("{s:o}", "slower", slower) : NULL;
    return bench_finish(&bench, rest, bench.threads, json, rates, &e, error);
}
