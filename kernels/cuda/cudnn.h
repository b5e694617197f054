/* The only interface to cuDNN: 2D convolutions without padding, by one fixed deterministic algorithm.
 *
 * in [(Y - 1) stride + k, (X - 1) stride + k, C], weights [N, k, k, C], out [Y, X, N]: packed, at multiples
 * of 16 bytes. Either all are f32: tensor cores round in and weights to TF32 and sum in f32. Or all are f16,
 * with f32 sums; out is then the sum times CONVOLUTION_HALF_SCALE, rounded to nearest even, because cuDNN has
 * no convolution from f16 to f32. C and N are multiples of 8. Bias is added later, in the pass that adds the
 * residual and removes the padding. A convolution is identified by its shape and kept until
 * convolutions_close, like products. test/emu/libraries.c implements this header without cuDNN. */
#ifndef SLUICE_CUDA_CUDNN_H
#define SLUICE_CUDA_CUDNN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "kernels/device.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>

/* Workspace limit of every convolution, in bytes. */
enum { CONVOLUTIONS_WORKSPACE = 64 << 20 };

/* A power of two, so that scaling is exact. f16 results hold sums up to 4.19e6, and sums above 0.004 with all
 * of f16's 11 bits. */
#define CONVOLUTION_HALF_SCALE 0x1p-6f

struct convolution_key {
    int32_t rows, columns; /* output size in pixels */
    int32_t in, out;       /* input channels; output channels */
    int32_t side;          /* kernel size, 1 to 3 */
    int32_t stride;        /* stride in input pixels, 1 or 2 */
    int32_t f16;           /* 1: operands and result are f16; 0: f32 */
};

enum { CONVOLUTION_SHAPE = 128 };

/* Writes a convolution's shape as "512 x 512 pixels, 128 to 256 channels, kernel 3, stride 1, f16" to out
 * (CONVOLUTION_SHAPE bytes) and returns out. */
static inline const char *convolution_shape(const struct convolution_key *key, char *out) {
    snprintf(out, CONVOLUTION_SHAPE, "%d x %d pixels, %d to %d channels, kernel %d, stride %d%s", key->rows,
             key->columns, key->in, key->out, key->side, key->stride, key->f16 ? ", f16" : "");
    return out;
}

/* Returns how many input rows (or columns) of_out output rows (or columns) of a convolution read. */
static inline int32_t convolution_reach(const struct convolution_key *key, int32_t of_out) {
    return (of_out - 1) * key->stride + key->side;
}

/* Returns the scratch bytes of the warm-up call that loads a convolution's kernels. */
static inline uint64_t convolution_warm_up_bytes(const struct convolution_key *key) {
    uint64_t side = (uint64_t)key->side, in = (uint64_t)key->in, out = (uint64_t)key->out;
    uint64_t rows = (uint64_t)convolution_reach(key, key->rows);
    uint64_t columns = (uint64_t)convolution_reach(key, key->columns);
    uint64_t from = rows * columns * in, to = (uint64_t)key->rows * (uint64_t)key->columns * out;
    uint64_t weights = side * side * in * out, most = from > to ? from : to;
    return CONVOLUTIONS_WORKSPACE + (key->f16 ? 2 : sizeof(float)) * (most > weights ? most : weights);
}

struct convolution_operands {
    const void *in, *weights;
    void *out;
    void *workspace; /* scratch of CONVOLUTIONS_WORKSPACE bytes, aligned to 256 */
};

struct convolutions;

/* Opens cuDNN. NULL with DEVICE (library missing or does not start) or MEMORY. */
struct convolutions *convolutions_open(struct sys *sys, struct error *e);
void convolutions_close(struct convolutions *convolutions);
/* Writes the version of the loaded cuDNN, such as "cuDNN 9.13.0", to out. */
void convolutions_version(const struct convolutions *convolutions, char *out, size_t out_bytes);
/* Returns the release of the loaded cuDNN as 100 * major + minor. */
int convolutions_release(const struct convolutions *convolutions);
/* Builds the cuDNN objects of a convolution. MEMORY, or DEVICE if cuDNN does not support the convolution. */
enum status convolutions_prepare(struct convolutions *convolutions, const struct convolution_key *key,
                                 struct error *e);
/* Queues a convolution on the stream. INTERNAL if the convolution was not prepared, DEVICE if cuDNN fails. */
enum status convolutions_run(struct convolutions *convolutions, const struct convolution_key *key,
                             const struct convolution_operands *operands, cudaStream_t stream,
                             struct error *e);
/* Reports each convolution that has run: "conv2d", the convolution's shape, cuDNN's algorithm. */
void convolutions_algorithms(const struct convolutions *convolutions, device_algorithm *report, void *user);
/* Warm-up of convolutions: runs each prepared convolution once, as products_warm_up does for products. */
uint64_t convolutions_warm_up_bytes(const struct convolutions *convolutions);
enum status convolutions_warm_up(struct convolutions *convolutions, void *scratch, uint64_t scratch_bytes,
                                 cudaStream_t stream, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
