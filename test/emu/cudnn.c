/* Replaces cuDNN (kernels/cuda/cudnn.h). Operands are rounded to TF32 like sm_80's cvt.rna (to nearest, ties
 * away from zero), which cuDNN's kernels presumably use; sums are f32, in another order than cuDNN's.
 *
 * Rejects shapes that were not prepared, and addresses that cuDNN's fast kernels do not accept. */
#include "kernels/cuda/cudnn.h"

#include "enqueue.h"
#include "kernels/cuda/hash_table.h"
#include "matrix.h"

#include <stdio.h>
#include <stdlib.h>

struct convolution {
    struct convolution_key key;
};

struct convolutions {
    struct sys *sys;
    struct hash_table table;
    struct matrix *matrix;
};

struct convolutions *convolutions_open(struct sys *sys, struct error *e) {
    if (emu_absent("cudnn")) {
        error_set(e, DEVICE, "cuDNN cannot be loaded");
        return NULL;
    }
    struct convolutions *c = sys->alloc(sys, LINE_HOST, sizeof *c);
    if (!c) {
        error_set(e, MEMORY, "no memory for cuDNN");
        return NULL;
    }
    c->sys = sys;
    c->table = (struct hash_table){
        .sys = sys, .key_bytes = sizeof(struct convolution_key), .entry_bytes = sizeof(struct convolution)};
    c->matrix = matrix_open(sys, e);
    if (c->matrix) return c;
    convolutions_close(c);
    return NULL;
}

void convolutions_close(struct convolutions *c) {
    if (!c) return;
    c->sys->release(c->sys, c->table.entries);
    matrix_close(c->matrix);
    c->sys->release(c->sys, c);
}

void convolutions_version(const struct convolutions *c, char *out, size_t out_bytes) {
    (void)c;
    snprintf(out, out_bytes, "cuDNN emulated");
}

/* Returns the height or width of the stride-1 result from which a strided convolution's result is picked. */
static int32_t dense(const struct convolution_key *key, int32_t of_out) {
    return (of_out - 1) * key->stride + 1;
}

static struct onednn_key matrix_key(const struct convolution_key *key) {
    int32_t rows = dense(key, key->rows), columns = dense(key, key->columns);
    return (struct onednn_key){ONEDNN_CONV, {rows, columns, key->in, key->out, key->side}};
}

enum status convolutions_prepare(struct convolutions *c, const struct convolution_key *key, struct error *e) {
    if (hash_table_find(&c->table, key)) return OK;
    struct convolution convolution = {*key};
    struct onednn_key of = matrix_key(key);
    if (matrix_prepare(c->matrix, &of, e)) return e->code;
    return hash_table_add(&c->table, &convolution)
               ? OK
               : error_set(e, MEMORY, "no memory for the table of convolutions");
}

struct call {
    struct matrix *matrix;
    struct convolution_key key;
    struct convolution_operands operands;
};

/* Overwrites the workspace with garbage, because cuDNN may overwrite its workspace. */
static void scribble(void *workspace) {
    enum { ENDS = 256 };
    memset(workspace, 0xff, ENDS);
    memset((char *)workspace + CONVOLUTIONS_WORKSPACE - ENDS, 0xff, ENDS);
}

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

static float *rounded(const float *from, int64_t n) {
    float *to = matrix_floats(n);
    for (int64_t i = 0; i < n; i++) to[i] = tf32(from[i]);
    return to;
}

/* Returns the weights [N,k,k,C] rounded to TF32, as [N,C,k,k]. */
static float *rounded_weights(const struct convolution_key *key, const float *from) {
    int64_t taps = (int64_t)key->side * key->side, c = key->in;
    float *to = matrix_floats(key->out * c * taps);
    for (int64_t n = 0; n < key->out; n++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < c; i++) to[(n * c + i) * taps + t] = tf32(from[(n * taps + t) * c + i]);
    return to;
}

/* Picks one pixel per stride in each direction from a stride-1 convolution's result. */
static void pick(const struct convolution_key *key, const float *from, float *to) {
    int64_t columns = dense(key, key->columns), n = key->out;
    for (int64_t y = 0; y < key->rows; y++)
        for (int64_t x = 0; x < key->columns; x++)
            memcpy(to + (y * key->columns + x) * n, from + (y * columns + x) * key->stride * n,
                   (size_t)n * sizeof *to);
}

static void compute(void *arguments) {
    const struct call *c = arguments;
    const struct convolution_key *key = &c->key;
    const struct convolution_operands *o = &c->operands;
    struct onednn_key of = matrix_key(key);
    int64_t rows = convolution_reach(key, key->rows), columns = convolution_reach(key, key->columns);
    int64_t outputs = (int64_t)dense(key, key->rows) * dense(key, key->columns) * key->out;
    scribble(o->workspace);
    float *in = rounded(o->in, rows * columns * key->in);
    float *weights = rounded_weights(key, o->weights);
    float *out = matrix_floats(outputs);
    matrix_run(c->matrix, &of, in, weights, out);
    pick(key, out, o->out);
    free(out);
    free(weights);
    free(in);
}

enum status convolutions_run(struct convolutions *c, const struct convolution_key *key,
                             const struct convolution_operands *operands, cudaStream_t stream,
                             struct error *e) {
    if (!hash_table_find(&c->table, key)) {
        char shape[CONVOLUTION_SHAPE];
        return error_set(e, INTERNAL, "a convolution was not prepared" FOUND "%s",
                         convolution_shape(key, shape));
    }
    emu_require_aligned("in of a convolution", operands->in, 16);
    emu_require_aligned("weights of a convolution", operands->weights, 16);
    emu_require_aligned("out of a convolution", operands->out, 16);
    emu_require_aligned("workspace of a convolution", operands->workspace, 256);
    if (key->in % 8 || key->out % 8) emu_stop("channels of a convolution are not multiples of 8");
    struct call call = {c->matrix, *key, *operands};
    emu_enqueue("convolution", compute, &call, sizeof call, stream);
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
    for (uint64_t i = 0; i < c->table.capacity; i++) {
        const struct convolution *convolution = hash_table_at(&c->table, i);
        char shape[CONVOLUTION_SHAPE];
        if (convolution) say(user, "conv2d", convolution_shape(&convolution->key, shape), "emulated");
    }
}
