/* The only door to cuBLASLt: large matrix products in bf16 with f32 sums.
 *
 * A product is named by its shape; its algorithm is chosen when it is prepared, from shape, types and
 * architecture alone, with a fixed limit of workspace and fixed alignments (R1, R2), and kept until
 * products_close. test/emu/ has another file behind this header. */
#ifndef SLUICE_CUDA_PRODUCTS_H
#define SLUICE_CUDA_PRODUCTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "kernels/device.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* What every product may use. NVIDIA recommends 32 MiB on Hopper and 4 elsewhere; one size is one table. */
enum { PRODUCTS_WORKSPACE = 32 << 20 };

/* out[M,N] = in[M,K] . weight[N,K]^T (+ bias[N]) (+ residual[M,N]): in and weight bf16, the rest f32, or out
 * and bias bf16 (rounded: once, to nearest even, what f32 would be; without a residual). weight is packed,
 * other rows may be strided, in elements. K and in's rows are multiples of 8. */
struct product_key {
    int32_t m, n, k;
    int32_t in_row;
    int32_t bias, residual, rounded; /* 1: there is one, it is */
    int32_t wide; /* 1: out and residual begin at multiples of 16 bytes, which the fast kernels ask for */
    int64_t out_row, residual_row; /* the latter 0 without a residual */
};

static inline uint64_t product_out_bytes(const struct product_key *key) {
    return key->rounded ? 2 : sizeof(float);
}

/* Whether all rows of out and residual begin at multiples of 16 bytes if the first ones do. Then only an
 * unusual call is not wide. */
static inline bool product_rows_wide(const struct product_key *key) {
    return key->out_row * (int64_t)product_out_bytes(key) % 16 == 0 && key->residual_row % 4 == 0;
}

/* What trying it takes, operands lying over each other: the library's workspace and the largest operand. */
static inline uint64_t product_touch_bytes(const struct product_key *key) {
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    uint64_t row = (uint64_t)(key->out_row > key->residual_row ? key->out_row : key->residual_row);
    uint64_t in = 2 * m * (uint64_t)key->in_row, weight = 2 * n * k, out = product_out_bytes(key) * m * row;
    uint64_t product = in > weight ? in : weight, bias = sizeof(float) * n;
    uint64_t most = product > out ? product : out;
    return PRODUCTS_WORKSPACE + (most > bias ? most : bias);
}

struct product_operands {
    const void *in, *weight, *bias; /* multiples of 16 bytes */
    const float *residual;
    void *out;       /* may be residual */
    void *workspace; /* PRODUCTS_WORKSPACE bytes, aligned to 256 */
};

struct products;

/* For the current GPU. DEVICE if the library is not there or does not start, MEMORY; NULL then. */
struct products *products_open(struct sys *sys, struct error *e);
void products_close(struct products *products);
/* "cuBLASLt 13.0.2" into out. */
void products_version(const struct products *products, char *out, size_t out_bytes);
/* Chooses an algorithm unless that is done. MEMORY, or DEVICE if there is none. */
enum status products_prepare(struct products *products, const struct product_key *key, struct error *e);
/* Queues it on the stream. INTERNAL if it was not prepared, DEVICE. */
enum status products_run(struct products *products, const struct product_key *key,
                         const struct product_operands *operands, cudaStream_t stream, struct error *e);
/* Says each product that has run, as struct device does: "linear", its shape, the library's algorithm. */
void products_algorithms(const struct products *products, device_algorithm *say, void *user);
/* Scratch memory that products_touch can use: 0 if it has nothing to do. */
uint64_t products_touch_needs(const struct products *products);
/* Runs every product that has been prepared and not been run yet once, on scratch memory of the device (a
 * multiple of 256), so that its kernels are loaded before memory is measured. Operands are garbage. What does
 * not fit (product_touch_bytes) is left to its first call, and so is what is not wide though its rows are: no
 * forward calls that. */
enum status products_touch(struct products *products, void *scratch, uint64_t scratch_bytes,
                           cudaStream_t stream, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
