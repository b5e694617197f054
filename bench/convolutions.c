/* One convolution of a UNet as the CPU device computes it, and as oneDNN does at its best: whole, with
 * weights that are f32, channels in eights and repacked already. torch_convolutions.py loads this as a
 * library and calls both in turn with PyTorch, so that all are measured in the same seconds of a machine that
 * others use.
 *
 * One shape at a time: convolution_open, any number of runs, convolution_close. Not for threads of the
 * caller's. */
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

/* Of in: rows, columns, channels; of out: channels. A kernel of 1 or 3, 1 or 2 as upsampling, as stride; the
 * weights' type by its name. */
struct shape {
    int32_t rows, columns, channels, outputs, kernel, upsample, stride;
    const char *type;
};

EXPORT int convolution_open(const struct shape *shape, int threads);
EXPORT double convolution_ours(void);
EXPORT double convolution_library(void);
EXPORT double convolution_flops(void);
EXPORT void convolution_close(void);

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
    uint64_t bytes, library_bytes;
    double flops;
} b;

/* Of the whole process: what others do on the machine is not in it. */
static double processor_seconds(void) {
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

static void convolve(struct context *x) {
    const struct shape *s = &b.shape;
    struct conv_options o = {.upsample = s->upsample, .stride = s->stride, .before = s->stride == 2};
    int32_t rows = conv_size(s->rows, &o, false), columns = conv_size(s->columns, &o, false);
    x->scratch->used = 0;
    struct tensor in = context_tensor(x, DTYPE_F32, 3, (int32_t[]){s->rows, s->columns, s->channels});
    struct tensor out = context_tensor(x, DTYPE_F32, 3, (int32_t[]){rows, columns, s->outputs});
    struct tensor weight =
        context_tensor(x, type_of(s->type), 4, (int32_t[]){s->outputs, s->channels, s->kernel, s->kernel});
    struct tensor bias = context_tensor(x, DTYPE_F32, 1, &s->outputs);
    op_conv2d(x, out, in, weight, (struct epilogue){.bias = bias}, o);
}

/* Memory and workspace of the operator, from a dry run, which prepares the device too. */
static void open_ours(void) {
    struct arena counting = arena_counting();
    struct op_rates ones = {.per_second = {1, 1, 1, 1, 1}};
    struct dry dry;
    struct context x = {.device = &dry.device, .scratch = &counting, .error = &b.error};
    dry_init(&dry, &b.sys, b.device, true);
    dry.rates = &ones;
    convolve(&x);
    b.flops = dry.seconds;
    b.arena.bytes = counting.peak;
    b.context = (struct context){
        .device = b.device, .scratch = &b.arena, .error = &b.error, .workspace_bytes = dry.workspace_bytes};
    b.bytes = b.arena.bytes + dry.workspace_bytes;
    dry_destroy(&dry);
}

static int32_t eights(int32_t n) {
    return (n + 7) / 8 * 8;
}

/* Offsets of what the library reads and writes become addresses once there is memory. */
static uint64_t library_part(double floats) {
    uint64_t at = b.bytes + b.library_bytes;
    b.library_bytes += align_up((uint64_t)floats * sizeof(float), ARENA_ALIGN);
    return at;
}

static void open_library(void) {
    const struct shape *s = &b.shape;
    struct conv_options o = {.upsample = s->upsample, .stride = s->stride, .before = s->stride == 2};
    int32_t rows = conv_size(s->rows, &o, false), columns = conv_size(s->columns, &o, false);
    int32_t c = eights(s->channels), n = eights(s->outputs), stride = s->stride;
    b.key = (struct onednn_key){ONEDNN_CONV, {rows, columns, c, n, s->kernel, stride - 1}};
    b.key.number[ONEDNN_SHARED] = 1;
    if (onednn_prepare(b.onednn, &b.key, &b.error)) return;
    struct onednn_facts facts = onednn_facts(b.onednn, &b.key);
    double pixels = (double)((rows - 1) * stride + s->kernel) * ((columns - 1) * stride + s->kernel);
    uint64_t in = library_part(pixels * c), out = library_part((double)rows * columns * n);
    uint64_t weights = library_part((double)facts.weights_bytes / sizeof(float)), bias = library_part(n);
    uint64_t scratch = library_part((double)facts.scratch_bytes / sizeof(float));
    b.memory = b.sys.map(&b.sys, LINE_ACTIVATION, b.bytes + b.library_bytes);
    if (!b.memory) {
        error_set(&b.error, MEMORY, "no memory for a bench of %llu bytes",
                  (unsigned long long)(b.bytes + b.library_bytes));
        return;
    }
    b.operands = (struct onednn_operands){.src = b.memory + in,
                                          .weights = b.memory + weights,
                                          .bias = b.memory + bias,
                                          .dst = b.memory + out,
                                          .scratch = b.memory + scratch};
}

int convolution_open(const struct shape *shape, int threads) {
    memset(&b, 0, sizeof b);
    b.shape = *shape;
    sys_init_machine(&b.sys);
    b.device = cpu_open(&b.sys, threads, &b.error);
    b.onednn = b.device ? onednn_open(&b.sys, threads, &b.error) : NULL;
    if (b.onednn) open_ours();
    if (b.onednn && !b.error.code) open_library();
    if (b.error.code) return (int)report(0);
    /* Numbers near 0.01 in f32 and bf16, near 1 in f16: no page is zeros, no value slow. */
    uint16_t *numbers = (uint16_t *)(void *)b.memory;
    for (uint64_t i = 0; i < (b.bytes + b.library_bytes) / sizeof *numbers; i++)
        numbers[i] = (uint16_t)(0x3C00 + i * 37 % 128);
    b.arena.base = b.memory;
    b.context.workspace = b.memory + b.arena.bytes;
    return 0;
}

double convolution_ours(void) {
    double start = processor_seconds();
    convolve(&b.context);
    return report(processor_seconds() - start);
}

double convolution_library(void) {
    double start = processor_seconds();
    onednn_run(b.onednn, &b.key, b.operands, &b.error);
    return report(processor_seconds() - start);
}

double convolution_flops(void) {
    return b.flops;
}

void convolution_close(void) {
    if (b.memory) b.sys.unmap(&b.sys, LINE_ACTIVATION, b.memory, b.bytes + b.library_bytes);
    onednn_close(b.onednn);
    if (b.device) b.device->destroy(b.device);
    memset(&b, 0, sizeof b);
}
