/* Replaces cuBLASLt (kernels/cuda/cublaslt.h) and cuDNN (kernels/cuda/cudnn.h). oneDNN computes from f32
 * copies of the operands, or plain loops under ThreadSanitizer, where oneDNN and OpenMP are not instrumented.
 *
 * Products: operands are bf16 or f16 and sums f32, as on the device; the CPU's vector units sum in another
 * order. Convolutions of f32: operands are rounded to TF32 like sm_80's cvt.rna (to nearest, ties away from
 * zero), which cuDNN's kernels presumably use; sums are f32, in another order than cuDNN's. An f16 result is
 * rounded once.
 *
 * Rejects shapes that were not prepared, and addresses with which the libraries would crash or be slow. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"

#include "engine/base/half.h"
#include "enqueue.h"
#include "f16.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cuda/hash_table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* An emulated library. oneDNN's memory belongs to the emulator, so a separate struct sys counts it. */
struct library {
    struct sys *sys, machine;
    struct hash_table prepared; /* keys of the prepared shapes */
    struct onednn *onednn;
    pthread_mutex_t lock; /* lock, because a stream may compute while the program prepares shapes */
};

struct products {
    struct library library;
};

struct convolutions {
    struct library library;
};

static void library_close(struct library *l) {
    if (!l) return;
    l->sys->release(l->sys, l->prepared.entries);
#ifndef __SANITIZE_THREAD__
    onednn_close(l->onednn);
#endif
    pthread_mutex_destroy(&l->lock);
    l->sys->release(l->sys, l);
}

/* Opens a library unless EMU_ABSENT contains `absent`. Returns NULL and sets MEMORY or DEVICE on failure. */
static void *library_open(struct sys *sys, const char *absent, const char *name, size_t key_bytes,
                          struct error *e) {
    if (emu_absent(absent)) {
        error_set(e, DEVICE, "%s cannot be loaded", name);
        return NULL;
    }
    struct library *l = sys->alloc(sys, LINE_HOST, sizeof *l);
    if (!l) {
        error_set(e, MEMORY, "no memory for %s", name);
        return NULL;
    }
    l->sys = sys;
    l->prepared = (struct hash_table){.sys = sys, .key_bytes = key_bytes, .entry_bytes = key_bytes};
    sys_init_machine(&l->machine);
    pthread_mutex_init(&l->lock, NULL);
#ifndef __SANITIZE_THREAD__
    l->onednn = onednn_open(&l->machine, 1, e);
    if (!l->onednn) library_close(l), l = NULL;
#endif
    return l;
}

static float *floats(int64_t n) {
    float *memory = malloc((size_t)n * sizeof *memory);
    if (!memory) emu_stop("no memory for operands of a library");
    return memory;
}

/* library_run computes dst[M,N] = src[M,K] weights[N,K]^T, or dst[Y,X,N] = conv(src[Y+k-1,X+k-1,C],
 * weights[N,C,k,k]), from contiguous operands that the caller has rounded. A failure exits the process. */
#ifdef __SANITIZE_THREAD__

/* Disables TSan for loops over copies of the operands, which need no checks. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

UNWATCHED static void multiply(const int32_t n[3], const float *src, const float *weights, float *dst) {
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++) {
            float sum = 0;
            for (int64_t k = 0; k < n[2]; k++) sum += src[i * n[2] + k] * weights[j * n[2] + k];
            dst[i * n[1] + j] = sum;
        }
}

UNWATCHED static float convolve_one(const int32_t n[5], const float *src, const float *weights) {
    int64_t c = n[2], side = n[4], row = (n[1] + side - 1) * c;
    float sum = 0;
    for (int64_t y = 0; y < side; y++)
        for (int64_t x = 0; x < side; x++)
            for (int64_t i = 0; i < c; i++)
                sum += src[y * row + x * c + i] * weights[(i * side + y) * side + x];
    return sum;
}

UNWATCHED static void convolve(const int32_t n[5], const float *src, const float *weights, float *dst) {
    int64_t c = n[2], taps = (int64_t)n[4] * n[4], row = (n[1] + n[4] - 1) * c;
    for (int64_t y = 0; y < n[0]; y++)
        for (int64_t x = 0; x < n[1]; x++)
            for (int64_t j = 0; j < n[3]; j++)
                dst[(y * n[1] + x) * n[3] + j] =
                    convolve_one(n, src + y * row + x * c, weights + j * c * taps);
}

static enum status library_compile(struct library *l, const struct onednn_key *of, struct error *e) {
    (void)l, (void)of, (void)e;
    return OK;
}

static void library_run(struct library *l, const struct onednn_key *key, const float *src,
                        const float *weights, float *dst) {
    (void)l;
    if (key->kind == ONEDNN_CONV)
        convolve(key->number, src, weights, dst);
    else
        multiply(key->number, src, weights, dst);
}

#else

static struct onednn_key repacking(const struct onednn_key *key) {
    struct onednn_key repack = *key;
    repack.kind = ONEDNN_REPACK;
    return repack;
}

static enum status library_compile(struct library *l, const struct onednn_key *of, struct error *e) {
    struct onednn_key repack = repacking(of);
    pthread_mutex_lock(&l->lock);
    enum status s = onednn_prepare(l->onednn, of, e);
    if (!s && of->kind == ONEDNN_CONV) s = onednn_prepare(l->onednn, &repack, e);
    pthread_mutex_unlock(&l->lock);
    return s;
}

static void run(struct library *l, const struct onednn_key *key, struct onednn_operands operands) {
    struct error e = {0};
    char line[800];
    uint64_t bytes = onednn_facts(l->onednn, key).scratch_bytes;
    operands.scratch = floats((int64_t)(bytes / sizeof(float)) + 1);
    if (onednn_run(l->onednn, key, operands, &e)) emu_stop(error_line(&e, line, sizeof line));
    free(operands.scratch);
}

static void library_run(struct library *l, const struct onednn_key *key, const float *src,
                        const float *weights, float *dst) {
    struct onednn_operands operands = {.src = src, .weights = weights, .dst = dst};
    float *packed = NULL, *bias = NULL;
    pthread_mutex_lock(&l->lock);
    if (key->kind == ONEDNN_CONV) {
        struct onednn_key repack = repacking(key);
        uint64_t bytes = onednn_facts(l->onednn, key).weights_bytes;
        packed = floats((int64_t)(bytes / sizeof(float)) + 1);
        bias = floats(key->number[3]);
        for (int32_t i = 0; i < key->number[3]; i++) bias[i] = 0;
        run(l, &repack, (struct onednn_operands){.src = weights, .dst = packed});
        operands.weights = packed, operands.bias = bias;
    }
    run(l, key, operands);
    pthread_mutex_unlock(&l->lock);
    free(bias);
    free(packed);
}

#endif

/* Prepares the shape of a library's key, which oneDNN computes as the shape `of`. */
static enum status library_prepare(struct library *l, const void *key, const struct onednn_key *of,
                                   struct error *e) {
    if (hash_table_find(&l->prepared, key)) return OK;
    if (library_compile(l, of, e)) return e->code;
    return hash_table_add(&l->prepared, key) ? OK
                                             : error_set(e, MEMORY, "no memory for the table of a library");
}

/* Overwrites the workspace with garbage, because a library may overwrite its workspace. */
static void scribble(void *workspace, size_t bytes) {
    enum { ENDS = 256 };
    memset(workspace, 0xff, ENDS);
    memset((char *)workspace + bytes - ENDS, 0xff, ENDS);
}

struct products *products_open(struct sys *sys, struct error *e) {
    return library_open(sys, "cublaslt", "cuBLASLt", sizeof(struct product_key), e);
}

void products_close(struct products *p) {
    library_close((struct library *)p);
}

void products_version(const struct products *p, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "cuBLASLt %d.%d emulated", products_release(p) / 100, products_release(p) % 100);
}

int products_release(const struct products *p) {
    (void)p;
    return emu_release("EMU_CUBLASLT", 1300);
}

static struct onednn_key product_as_onednn(const struct product_key *key) {
    return (struct onednn_key){ONEDNN_PRODUCT_T, {key->m, key->n, key->k}};
}

enum status products_prepare(struct products *p, const struct product_key *key, struct error *e) {
    struct onednn_key of = product_as_onednn(key);
    if (emu_major() >= 10 && products_release(p) < 1208)
        return error_set(e, DEVICE, "cuBLASLt: choosing an algorithm failed" FOUND "NOT_SUPPORTED (15)");
    return library_prepare(&p->library, key, &of, e);
}

/* The emulated library has one algorithm. */
enum status products_choose_ranked(struct products *p, const struct product_key *key, int rank,
                                   struct error *e) {
    if (rank) return error_set(e, DEVICE, "the emulated cuBLASLt has only one algorithm");
    return products_prepare(p, key, e);
}

struct product_call {
    struct library *library;
    struct product_key key;
    struct product_operands operands;
};

/* Rounds to bf16 (to nearest even; NaN stays NaN) and returns the bits. */
static uint16_t nearest(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float half_to_f32(uint16_t half, bool f16) {
    return f16 ? half_f16_f32(half) : half_bf16_f32(half);
}

/* Returns a contiguous f32 copy of a bf16 or f16 matrix whose row stride is `row` values. */
static float *f32_copy(const uint16_t *from, bool f16, int64_t rows, int64_t columns, int64_t row) {
    float *to = floats(rows * columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * columns + j] = half_to_f32(from[i * row + j], f16);
    return to;
}

static void product_finish(const struct product_call *c, const float *from) {
    const struct product_key *key = &c->key;
    const struct product_operands *o = &c->operands;
    const float *bias = o->bias;
    const uint16_t *half_bias = o->bias;
    float *out = o->out;
    uint16_t *half_out = o->out;
    for (int64_t i = 0; i < key->m; i++)
        for (int64_t j = 0; j < key->n; j++) {
            float value = from[i * key->n + j];
            if (key->bias) value += key->rounded ? half_to_f32(half_bias[j], key->f16) : bias[j];
            if (key->residual) value += o->residual[i * key->residual_row + j];
            if (key->rounded)
                half_out[i * key->out_row + j] = key->f16 ? emu_f16(value) : nearest(value);
            else
                out[i * key->out_row + j] = value;
        }
}

static void product_compute(void *arguments) {
    const struct product_call *c = arguments;
    const struct product_key *key = &c->key;
    struct onednn_key of = product_as_onednn(key);
    scribble(c->operands.workspace, PRODUCTS_WORKSPACE);
    float *in = f32_copy(c->operands.in, key->f16, key->m, key->k, key->in_row);
    float *weight = f32_copy(c->operands.weight, key->f16, key->n, key->k, key->k);
    float *out = floats((int64_t)key->m * key->n);
    library_run(c->library, &of, in, weight, out);
    product_finish(c, out);
    free(out);
    free(weight);
    free(in);
}

enum status products_run(struct products *p, const struct product_key *key,
                         const struct product_operands *operands, cudaStream_t stream, struct error *e) {
    if (!hash_table_find(&p->library.prepared, key)) {
        return error_set(e, INTERNAL,
                         "a product was not prepared" FOUND
                         "%d x %d x %d, f16 %d, bias %d, residual %d, rounded %d, wide %d",
                         key->m, key->n, key->k, key->f16, key->bias, key->residual, key->rounded, key->wide);
    }
    uintptr_t align = key->wide ? 16 : (uintptr_t)product_out_bytes(key);
    emu_require_aligned("in of a product", operands->in, 16);
    emu_require_aligned("weight of a product", operands->weight, 16);
    emu_require_aligned("workspace of a product", operands->workspace, 256);
    emu_require_aligned("out of a product", operands->out, align);
    if (key->bias) emu_require_aligned("bias of a product", operands->bias, 16);
    if (key->residual) emu_require_aligned("residual of a product", operands->residual, align);
    if (key->rounded && key->residual) emu_stop("a 2-byte result cannot have a residual");
    struct product_call call = {&p->library, *key, *operands};
    emu_enqueue("product", product_compute, &call, sizeof call, stream);
    return OK;
}

/* The emulator has no code to load, but exercises the caller's warm-up path. */
uint64_t products_warm_up_bytes(const struct products *p) {
    (void)p;
    return PRODUCTS_WORKSPACE;
}

enum status products_warm_up(struct products *p, void *scratch, uint64_t scratch_bytes, cudaStream_t stream,
                             struct error *e) {
    (void)p, (void)scratch_bytes, (void)stream, (void)e;
    emu_require_aligned("scratch of products", scratch, 256);
    return OK;
}

/* Reports every prepared product, because the emulator does not record which products have run. */
void products_algorithms(const struct products *p, device_algorithm *say, void *user) {
    for (uint64_t i = 0; i < p->library.prepared.capacity; i++) {
        const struct product_key *key = hash_table_at(&p->library.prepared, i);
        char shape[64];
        if (!key) continue;
        snprintf(shape, sizeof shape, "%d x %d x %d", key->m, key->n, key->k);
        say(user, "linear", shape, "emulated");
    }
}

struct convolutions *convolutions_open(struct sys *sys, struct error *e) {
    return library_open(sys, "cudnn", "cuDNN", sizeof(struct convolution_key), e);
}

void convolutions_close(struct convolutions *c) {
    library_close((struct library *)c);
}

void convolutions_version(const struct convolutions *c, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "cuDNN %d.%d emulated", convolutions_release(c) / 100,
             convolutions_release(c) % 100);
}

int convolutions_release(const struct convolutions *c) {
    (void)c;
    return emu_release("EMU_CUDNN", 913);
}

/* Returns the height or width of the stride-1 result from which a strided convolution's result is picked. */
static int32_t dense(const struct convolution_key *key, int32_t of_out) {
    return (of_out - 1) * key->stride + 1;
}

static struct onednn_key convolution_as_onednn(const struct convolution_key *key) {
    int32_t rows = dense(key, key->rows), columns = dense(key, key->columns);
    return (struct onednn_key){ONEDNN_CONV, {rows, columns, key->in, key->out, key->side}};
}

enum status convolutions_prepare(struct convolutions *c, const struct convolution_key *key, struct error *e) {
    struct onednn_key of = convolution_as_onednn(key);
    if (emu_major() >= 10 && convolutions_release(c) < 907)
        return error_set(e, DEVICE, "cuDNN: choosing an algorithm failed" FOUND "ARCH_MISMATCH (3004)");
    return library_prepare(&c->library, key, &of, e);
}

struct convolution_call {
    struct library *library;
    struct convolution_key key;
    struct convolution_operands operands;
};

/* Rounds to TF32 (10 fraction bits); keeps infinity and NaN. */
static float tf32(float f) {
    enum { LOST = 13, EXPONENT = 0x7f800000 };
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & EXPONENT) == EXPONENT) return f;
    bits = (bits + (1u << (LOST - 1))) >> LOST << LOST;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Returns operand value i as the tensor cores read it. */
static float conv_operand(const struct convolution_key *key, const void *from, int64_t i) {
    return key->f16 ? half_f16_f32(((const uint16_t *)from)[i]) : tf32(((const float *)from)[i]);
}

static float *conv_input(const struct convolution_key *key, const void *from, int64_t n) {
    float *to = floats(n);
    for (int64_t i = 0; i < n; i++) to[i] = conv_operand(key, from, i);
    return to;
}

/* Returns the weights [N,k,k,C] as [N,C,k,k]. */
static float *conv_weights(const struct convolution_key *key, const void *from) {
    int64_t taps = (int64_t)key->side * key->side, c = key->in;
    float *to = floats(key->out * c * taps);
    for (int64_t n = 0; n < key->out; n++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < c; i++)
                to[(n * c + i) * taps + t] = conv_operand(key, from, (n * taps + t) * c + i);
    return to;
}

/* Stores one pixel per stride in each direction of a stride-1 convolution's result. */
static void pick(const struct convolution_key *key, const float *sums, void *to) {
    int64_t columns = dense(key, key->columns), n = key->out;
    float *floats_to = to;
    uint16_t *halves_to = to;
    for (int64_t y = 0; y < key->rows; y++)
        for (int64_t x = 0; x < key->columns; x++)
            for (int64_t i = 0; i < n; i++) {
                float sum = sums[(y * columns + x) * key->stride * n + i];
                int64_t at = (y * key->columns + x) * n + i;
                if (key->f16)
                    halves_to[at] = emu_f16(sum * CONVOLUTION_HALF_SCALE);
                else
                    floats_to[at] = sum;
            }
}

static void convolution_compute(void *arguments) {
    const struct convolution_call *c = arguments;
    const struct convolution_key *key = &c->key;
    const struct convolution_operands *o = &c->operands;
    struct onednn_key of = convolution_as_onednn(key);
    int64_t rows = convolution_reach(key, key->rows), columns = convolution_reach(key, key->columns);
    int64_t outputs = (int64_t)dense(key, key->rows) * dense(key, key->columns) * key->out;
    scribble(o->workspace, CONVOLUTIONS_WORKSPACE);
    float *in = conv_input(key, o->in, rows * columns * key->in);
    float *weights = conv_weights(key, o->weights);
    float *out = floats(outputs);
    library_run(c->library, &of, in, weights, out);
    pick(key, out, o->out);
    free(out);
    free(weights);
    free(in);
}

enum status convolutions_run(struct convolutions *c, const struct convolution_key *key,
                             const struct convolution_operands *operands, cudaStream_t stream,
                             struct error *e) {
    if (!hash_table_find(&c->library.prepared, key)) {
        char shape[CONVOLUTION_SHAPE];
        return error_set(e, INTERNAL, "a convolution was not prepared" FOUND "%s",
                         convolution_shape(key, shape));
    }
    emu_require_aligned("in of a convolution", operands->in, 16);
    emu_require_aligned("weights of a convolution", operands->weights, 16);
    emu_require_aligned("out of a convolution", operands->out, 16);
    emu_require_aligned("workspace of a convolution", operands->workspace, 256);
    if (key->in % 8 || key->out % 8) emu_stop("channels of a convolution are not multiples of 8");
    struct convolution_call call = {&c->library, *key, *operands};
    emu_enqueue("convolution", convolution_compute, &call, sizeof call, stream);
    return OK;
}

/* The emulator has no code to load, but exercises the caller's warm-up path. */
uint64_t convolutions_warm_up_bytes(const struct convolutions *c) {
    (void)c;
    return CONVOLUTIONS_WORKSPACE;
}

enum status convolutions_warm_up(struct convolutions *c, void *scratch, uint64_t scratch_bytes,
                                 cudaStream_t stream, struct error *e) {
    (void)c, (void)scratch_bytes, (void)stream, (void)e;
    emu_require_aligned("scratch of convolutions", scratch, 256);
    return OK;
}

/* Reports every prepared convolution, because the emulator does not record which convolutions have run. */
void convolutions_algorithms(const struct convolutions *c, device_algorithm *say, void *user) {
    for (uint64_t i = 0; i < c->library.prepared.capacity; i++) {
        const struct convolution_key *key = hash_table_at(&c->library.prepared, i);
        char shape[CONVOLUTION_SHAPE];
        if (key) say(user, "conv2d", convolution_shape(key, shape), "emulated");
    }
}
