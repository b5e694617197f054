/* Replaces cuBLASLt (kernels/cuda/cublaslt.h). Operands are bf16 and sums f32, as on the device; the CPU's
 * vector units sum in another order.
 *
 * Rejects shapes that were not prepared, and addresses without the alignment of the key, with which cuBLASLt
 * would crash or be slow. */
#include "kernels/cuda/cublaslt.h"

#include "enqueue.h"
#include "kernels/cuda/hash_table.h"
#include "matrix.h"

#include <stdio.h>
#include <stdlib.h>

struct product {
    struct product_key key;
};

struct products {
    struct sys *sys;
    struct hash_table table;
    struct matrix *matrix;
};

struct products *products_open(struct sys *sys, struct error *e) {
    if (emu_absent("cublaslt")) {
        error_set(e, DEVICE, "cuBLASLt cannot be loaded");
        return NULL;
    }
    struct products *p = sys->alloc(sys, LINE_HOST, sizeof *p);
    if (!p) {
        error_set(e, MEMORY, "no memory for cuBLASLt");
        return NULL;
    }
    p->sys = sys;
    p->table = (struct hash_table){
        .sys = sys, .key_bytes = sizeof(struct product_key), .entry_bytes = sizeof(struct product)};
    p->matrix = matrix_open(sys, e);
    if (p->matrix) return p;
    products_close(p);
    return NULL;
}

void products_close(struct products *p) {
    if (!p) return;
    p->sys->release(p->sys, p->table.entries);
    matrix_close(p->matrix);
    p->sys->release(p->sys, p);
}

void products_version(const struct products *p, char *out, size_t out_bytes) {
    (void)p;
    snprintf(out, out_bytes, "cuBLASLt emulated");
}

static struct onednn_key matrix_key(const struct product_key *key) {
    return (struct onednn_key){ONEDNN_PRODUCT_T, {key->m, key->n, key->k}};
}

enum status products_prepare(struct products *p, const struct product_key *key, struct error *e) {
    if (hash_table_find(&p->table, key)) return OK;
    struct product product = {.key = *key};
    struct onednn_key of = matrix_key(key);
    if (matrix_prepare(p->matrix, &of, e)) return e->code;
    return hash_table_add(&p->table, &product) ? OK
                                               : error_set(e, MEMORY, "no memory for the table of products");
}

struct call {
    struct matrix *matrix;
    struct product_key key;
    struct product_operands operands;
};

/* Overwrites the workspace with garbage, because cuBLASLt may overwrite its workspace. */
static void scribble(void *workspace) {
    enum { ENDS = 256 };
    memset(workspace, 0xff, ENDS);
    memset((char *)workspace + PRODUCTS_WORKSPACE - ENDS, 0xff, ENDS);
}

static float bf16_to_f32(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to bf16 (to nearest even; NaN stays NaN) and returns the bits. */
static uint16_t nearest(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Returns a contiguous f32 copy of a bf16 matrix whose row stride is `row` values. */
static float *f32_copy(const uint16_t *from, int64_t rows, int64_t columns, int64_t row) {
    float *to = matrix_floats(rows * columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * columns + j] = bf16_to_f32(from[i * row + j]);
    return to;
}

static void finish(const struct call *c, const float *from) {
    const struct product_key *key = &c->key;
    const struct product_operands *o = &c->operands;
    const float *bias = o->bias;
    const uint16_t *half_bias = o->bias;
    float *out = o->out;
    uint16_t *half_out = o->out;
    for (int64_t i = 0; i < key->m; i++)
        for (int64_t j = 0; j < key->n; j++) {
            float value = from[i * key->n + j];
            if (key->bias) value += key->rounded ? bf16_to_f32(half_bias[j]) : bias[j];
            if (key->residual) value += o->residual[i * key->residual_row + j];
            if (key->rounded)
                half_out[i * key->out_row + j] = nearest(value);
            else
                out[i * key->out_row + j] = value;
        }
}

static void compute(void *arguments) {
    const struct call *c = arguments;
    const struct product_key *key = &c->key;
    struct onednn_key of = matrix_key(key);
    scribble(c->operands.workspace);
    float *in = f32_copy(c->operands.in, key->m, key->k, key->in_row);
    float *weight = f32_copy(c->operands.weight, key->n, key->k, key->k);
    float *out = matrix_floats((int64_t)key->m * key->n);
    matrix_run(c->matrix, &of, in, weight, out);
    finish(c, out);
    free(out);
    free(weight);
    free(in);
}

static void check(const struct product_key *key, const struct product_operands *operands) {
    uintptr_t align = key->wide ? 16 : (uintptr_t)product_out_bytes(key);
    emu_require_aligned("in of a product", operands->in, 16);
    emu_require_aligned("weight of a product", operands->weight, 16);
    emu_require_aligned("workspace of a product", operands->workspace, 256);
    emu_require_aligned("out of a product", operands->out, align);
    if (key->bias) emu_require_aligned("bias of a product", operands->bias, 16);
    if (key->residual) emu_require_aligned("residual of a product", operands->residual, align);
}

enum status products_run(struct products *p, const struct product_key *key,
                         const struct product_operands *operands, cudaStream_t stream, struct error *e) {
    if (!hash_table_find(&p->table, key)) {
        return error_set(e, INTERNAL,
                         "a product was not prepared" FOUND
                         "%d x %d x %d, bias %d, residual %d, rounded %d, wide %d",
                         key->m, key->n, key->k, key->bias, key->residual, key->rounded, key->wide);
    }
    check(key, operands);
    if (key->rounded && key->residual) emu_stop("a bf16 result cannot have a residual");
    struct call call = {p->matrix, *key, *operands};
    emu_enqueue("product", compute, &call, sizeof call, stream);
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
    for (uint64_t i = 0; i < p->table.capacity; i++) {
        const struct product *product = hash_table_at(&p->table, i);
        char shape[64];
        if (!product) continue;
        snprintf(shape, sizeof shape, "%d x %d x %d", product->key.m, product->key.n, product->key.k);
        say(user, "linear", shape, "emulated");
    }
}
