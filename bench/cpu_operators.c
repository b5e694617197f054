/* Runs one operator of a model on the CPU device: convolution, matrix product, attention, or convolution
 * over time. Except for attention, also runs the same operation in oneDNN under ideal conditions: in one
 * piece, with f32 weights that are already repacked and channels padded to multiples of 8.
 * torch_operators.py loads this as a shared library and alternates both with PyTorch in one process, so that
 * all are measured under the same load.
 *
 * One shape at a time: operator_open, any number of runs, operator_close. Not thread-safe. */
#include "engine/bench/random_weights.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/dry/dry.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum kind { CONVOLUTION, PRODUCT, ATTENTION, OVER_TIME };
enum norm { NORM_NONE, NORM_GROUPS, NORM_PIXEL };

/* Shape of an operator. Array n of a convolution: input rows, columns and channels; output channels; kernel
 * size 1 or 3; upsampling factor 1 or 2; stride; kind of the preceding norm, which SiLU follows. For a
 * matrix product: rows, inputs, outputs. For attention: tokens, heads, head size. A convolution over time
 * has the sizes of a convolution, but n[7] is the number of frames. Each frame also reads the two preceding
 * frames. All frames are normalised and activated once, in advance. type: name of the weights' type. */
struct shape {
    int32_t kind, n[8];
    const char *type;
};

EXPORT int operator_open(const struct shape *shape, int threads);
EXPORT double operator_sluice(void);
/* Runs the oneDNN version of the operator and returns its CPU seconds; 0 for attention. */
EXPORT double operator_onednn(void);
EXPORT double operator_flops(void);
EXPORT void operator_close(void);

/* Operands of oneDNN. */
enum part { IN, WEIGHTS, BIAS, OUT, SCRATCH, N_PARTS };

static struct {
    struct sys sys;
    struct error error;
    struct shape shape;
    struct device *device;
    struct onednn *onednn;
    struct context context;
    struct arena arena;
    struct onednn_key key;
    struct onednn_operands operands;
    char *memory;
    uint64_t bytes, onednn_bytes;
    double flops, floats[N_PARTS];
} b;

/* CPU time of the whole process in seconds, which other load hardly affects. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double report(double seconds) {
    char line[1200];
    if (b.error.code) fprintf(stderr, "%s\n", error_line(&b.error, line, sizeof line));
    return b.error.code ? -1 : seconds;
}

static enum dtype type_of(const char *name) {
    for (int i = 0; i < N_DTYPES; i++)
        if (!strcmp(name, dtype_name((enum dtype)i))) return (enum dtype)i;
    return DTYPE_F32;
}

static struct tensor scratch_tensor(struct context *x, enum dtype dtype, int rank, const int32_t *dim) {
    return context_tensor(x, dtype, rank, dim);
}

static struct conv_options options_of(const struct shape *s) {
    return (struct conv_options){.upsample = s->n[5], .stride = s->n[6], .pad_before = s->n[6] == 2};
}

static void convolve(struct context *x) {
    enum { GROUPS = 32 };
    const int32_t *n = b.shape.n;
    struct conv_options o = options_of(&b.shape);
    int32_t rows = conv_size(n[0], &o, false), columns = conv_size(n[1], &o, false);
    struct tensor in = scratch_tensor(x, DTYPE_F32, 3, n), channels = scratch_tensor(x, DTYPE_F32, 1, &n[2]);
    struct tensor out = scratch_tensor(x, DTYPE_F32, 3, (int32_t[]){rows, columns, n[3]});
    struct tensor weight = scratch_tensor(x, type_of(b.shape.type), 4, (int32_t[]){n[3], n[2], n[4], n[4]});
    struct tensor bias = scratch_tensor(x, DTYPE_F32, 1, &n[3]);
    if (n[7]) o.activation = ACTIVATION_SILU;
    if (n[7] == NORM_PIXEL) o.pixel_norm = (struct pixel_norm){channels, 1e-26f};
    if (n[7] == NORM_GROUPS) {
        struct tensor statistics = scratch_tensor(x, DTYPE_F32, 2, (int32_t[]){GROUPS, 2});
        op_group_statistics(x, statistics, in, (struct rows_before){0}, GROUPS, 1e-6f);
        o.norm = (struct group_norm){statistics, channels, channels};
    }
    op_conv2d(x, out, in, weight, (struct epilogue){.bias = bias}, o);
}

/* Computes a convolution over time as models/vae_causal.c does, for frames with two preceding frames. */
static void convolve_over_time(struct context *x) {
    enum { SLICES = 3 };
    const int32_t *n = b.shape.n;
    struct tensor in = scratch_tensor(x, DTYPE_F32, 2, (int32_t[]){n[0] * n[1], n[2]}),
                  gamma = scratch_tensor(x, DTYPE_F32, 1, &n[2]);
    struct tensor out = scratch_tensor(x, DTYPE_F32, 3, (int32_t[]){n[0], n[1], n[3]}), normed[SLICES],
                  weight[SLICES];
    struct epilogue sum = {.bias = scratch_tensor(x, DTYPE_F32, 1, &n[3])};
    for (int i = 0; i < SLICES; i++) {
        normed[i] = scratch_tensor(x, DTYPE_F32, 3, n);
        weight[i] = scratch_tensor(x, type_of(b.shape.type), 4, (int32_t[]){n[3], n[2], n[4], n[4]});
    }
    for (int32_t frame = 0; frame < n[7]; frame++) {
        op_rms_norm(x, tensor_reshape(normed[frame % SLICES], 2, in.dim), in, gamma, 1e-26f,
                    (struct modulation){.activation = ACTIVATION_SILU});
        struct epilogue parts = sum;
        for (int i = 0; i < SLICES; i++, parts = (struct epilogue){.residual = out})
            op_conv2d(x, out, normed[(frame + 1 + i) % SLICES], weight[i], parts, options_of(&b.shape));
    }
}

static void multiply(struct context *x) {
    const int32_t *n = b.shape.n;
    struct tensor in = scratch_tensor(x, DTYPE_F32, 2, n),
                  out = scratch_tensor(x, DTYPE_F32, 2, (int32_t[]){n[0], n[2]});
    struct tensor weight = scratch_tensor(x, type_of(b.shape.type), 2, (int32_t[]){n[2], n[1]});
    op_linear(x, out, in, weight, (struct epilogue){.bias = scratch_tensor(x, DTYPE_F32, 1, &n[2])});
}

static void attend(struct context *x) {
    const int32_t *n = b.shape.n;
    int32_t dim[] = {n[0], n[1] * n[2]};
    struct tensor q = scratch_tensor(x, DTYPE_F32, 2, dim), k = scratch_tensor(x, DTYPE_F32, 2, dim);
    struct tensor v = scratch_tensor(x, DTYPE_F32, 2, dim), out = scratch_tensor(x, DTYPE_F32, 2, dim);
    op_attention(x, out, q, k, v, (struct attention_options){.queries = n[1], .keys = n[1], .scale = 0.09f});
}

static void compute(struct context *x) {
    static void (*const forwards[])(struct context * x) = {[CONVOLUTION] = convolve,
                                                           [PRODUCT] = multiply,
                                                           [ATTENTION] = attend,
                                                           [OVER_TIME] = convolve_over_time};
    x->scratch->used = 0;
    forwards[b.shape.kind](x);
}

/* Finds the sizes of memory and workspace with a dry run, which also prepares the device. */
static void open_sluice(void) {
    struct arena counting = arena_counting();
    struct op_rates ones = {.per_second = {1, 1, 1, 1, 1}};
    struct dry dry;
    struct context x = {.device = &dry.device, .scratch = &counting, .error = &b.error};
    dry_init(&dry, &b.sys, b.device, true);
    dry.rates = &ones;
    compute(&x);
    b.flops = x.flops;
    b.arena.bytes = counting.peak;
    b.context = (struct context){
        .device = b.device, .scratch = &b.arena, .error = &b.error, .workspace_bytes = dry.workspace_bytes};
    b.bytes = b.arena.bytes + dry.workspace_bytes;
    dry_destroy(&dry);
}

static int32_t multiple_of_8(int32_t n) {
    return (n + 7) / 8 * 8;
}

/* Reserves space for an operand of oneDNN. Returns the operand's byte offset in the benchmark's memory. */
static uint64_t onednn_part(double floats) {
    uint64_t at = b.bytes + b.onednn_bytes;
    b.onednn_bytes += align_up((uint64_t)floats * sizeof(float), ARENA_ALIGN);
    return at;
}

static void layout_convolution(void) {
    const int32_t *n = b.shape.n;
    struct conv_options o = options_of(&b.shape);
    int32_t rows = conv_size(n[0], &o, false), columns = conv_size(n[1], &o, false);
    int32_t c = multiple_of_8(n[2]), outputs = multiple_of_8(n[3]), kernel = n[4], stride = n[6];
    b.key = (struct onednn_key){ONEDNN_CONV, {rows, columns, c, outputs, kernel, stride - 1}};
    double pixels = (double)((rows - 1) * stride + kernel) * ((columns - 1) * stride + kernel);
    b.floats[IN] = pixels * c;
    b.floats[OUT] = (double)rows * columns * outputs;
    b.floats[BIAS] = outputs;
}

static void layout_product(void) {
    const int32_t *n = b.shape.n;
    b.key = (struct onednn_key){ONEDNN_PRODUCT_T, {n[0], n[2], n[1]}};
    b.floats[IN] = (double)n[0] * n[1];
    b.floats[OUT] = (double)n[0] * n[2];
    b.floats[WEIGHTS] = (double)n[1] * n[2];
}

static void open_onednn(void) {
    uint64_t at[N_PARTS];
    bool convolves = b.shape.kind == CONVOLUTION || b.shape.kind == OVER_TIME;
    if (convolves) layout_convolution();
    if (b.shape.kind == PRODUCT) layout_product();
    if (b.shape.kind != ATTENTION) {
        b.key.number[ONEDNN_SHARED] = 1;
        if (onednn_prepare(b.onednn, &b.key, &b.error)) return;
        struct onednn_facts facts = onednn_facts(b.onednn, &b.key);
        if (convolves) b.floats[WEIGHTS] = (double)facts.weights_bytes / sizeof(float);
        b.floats[SCRATCH] = (double)facts.scratch_bytes / sizeof(float);
    }
    for (int i = 0; i < N_PARTS; i++) at[i] = onednn_part(b.floats[i]);
    b.memory = b.sys.map(&b.sys, LINE_ACTIVATION, b.bytes + b.onednn_bytes);
    if (!b.memory) {
        error_set(&b.error, MEMORY, "cannot allocate %llu bytes for the benchmark",
                  (unsigned long long)(b.bytes + b.onednn_bytes));
        return;
    }
    b.operands = (struct onednn_operands){.src = b.memory + at[IN],
                                          .weights = b.memory + at[WEIGHTS],
                                          .bias = b.memory + at[BIAS],
                                          .dst = b.memory + at[OUT],
                                          .scratch = b.memory + at[SCRATCH]};
}

int operator_open(const struct shape *shape, int threads) {
    memset(&b, 0, sizeof b);
    b.shape = *shape;
    sys_init_machine(&b.sys);
    b.device = cpu_open(&b.sys, threads, &b.error);
    b.onednn = b.device ? onednn_open(&b.sys, threads, &b.error) : NULL;
    if (b.onednn) open_sluice();
    if (b.onednn && !b.error.code) open_onednn();
    if (b.error.code) return (int)report(0);
    /* Fills the operands with values near 0.01 (f32, bf16) or 1 (f16): no page is the shared zero page, and
     * no value is denormal. */
    uint16_t *values = (uint16_t *)(void *)b.memory;
    for (uint64_t i = 0; i < (b.bytes + b.onednn_bytes) / sizeof *values; i++)
        values[i] = (uint16_t)(0x3C00 + i * 37 % 128);
    b.arena.base = b.memory;
    b.context.workspace = b.memory + b.arena.bytes;
    return 0;
}

double operator_sluice(void) {
    double start = cpu_seconds();
    compute(&b.context);
    return report(cpu_seconds() - start);
}

double operator_onednn(void) {
    if (b.shape.kind == ATTENTION) return 0;
    int runs = b.shape.kind == OVER_TIME ? 3 * b.shape.n[7] : 1;
    double start = cpu_seconds();
    for (int i = 0; i < runs; i++) onednn_run(b.onednn, &b.key, b.operands, &b.error);
    return report(cpu_seconds() - start);
}

double operator_flops(void) {
    return b.flops;
}

void operator_close(void) {
    if (b.memory) b.sys.unmap(&b.sys, LINE_ACTIVATION, b.memory, b.bytes + b.onednn_bytes);
    onednn_close(b.onednn);
    if (b.device) b.device->destroy(b.device);
    memset(&b, 0, sizeof b);
}
