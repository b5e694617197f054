/* The only interface to cuBLASLt: large matrix products of bf16 or f16 with f32 sums.
 *
 * A product is identified by its shape. prepare chooses its algorithm from shape, types and architecture
 * alone, with a fixed workspace limit and fixed alignments, and keeps the algorithm until products_close.
 * test/emu/libraries.c implements this header without cuBLASLt. */
#ifndef SLUICE_CUDA_CUBLASLT_H
#define SLUICE_CUDA_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "kernels/device.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Workspace limit of every product, in bytes. NVIDIA recommends 32 MiB on Hopper and 4 MiB elsewhere; one
 * size for all GPUs keeps plans equal. */
enum { PRODUCTS_WORKSPACE = 32 << 20 };
/* Number of algorithms that benchmarks compare for one shape. */
enum { PRODUCTS_RANKS = 8 };

/* Shape of out[M,N] = in[M,K] . weight[N,K]^T (+ bias[N]) (+ residual[M,N]). in and weight are bf16 or
 * f16. Other tensors are f32, except that out and bias may have the type of in (rounded once from f32,
 * nearest even, without residual). weight is packed; other rows may be strided, in elements. K and the row
 * stride of `in` are multiples of 8. */
struct product_key {
    int32_t m, n, k;
    int32_t in_row;
    /* Flags, 0 or 1. f16: in and weight are f16, not bf16; rounded: out and bias have that type, not f32. */
    int32_t bias, residual;
    int16_t f16, rounded;
    int32_t wide; /* 1: out and residual start at multiples of 16 bytes, as fast cuBLASLt kernels require */
    int64_t out_row, residual_row; /* row strides in elements; residual_row is 0 without a residual */
};

static inline uint64_t product_out_bytes(const struct product_key *key) {
    return key->rounded ? 2 : sizeof(float);
}

/* True if all rows of out and residual start at multiples of 16 bytes, provided that the first rows do. Then
 * product_key.wide is 0 only for misaligned first rows, which no forward has. */
static inline bool product_rows_wide(const struct product_key *key) {
    return key->out_row * (int64_t)product_out_bytes(key) % 16 == 0 && key->residual_row % 4 == 0;
}

/* Returns the scratch bytes of a warm-up call: the library's workspace plus the largest operand, because
 * operands overlap. */
static inline uint64_t product_warm_up_bytes(const struct product_key *key) {
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    uint64_t row = (uint64_t)(key->out_row > key->residual_row ? key->out_row : key->residual_row);
    uint64_t in = 2 * m * (uint64_t)key->in_row, weight = 2 * n * k, out = product_out_bytes(key) * m * row;
    uint64_t product = in > weight ? in : weight, bias = sizeof(float) * n;
    uint64_t most = product > out ? product : out;
    return PRODUCTS_WORKSPACE + (most > bias ? most : bias);
}

struct product_operands {
    const void *in, *weight, *bias; /* operands: addresses are multiples of 16 bytes; bias may be NULL */
    const float *residual;
    void *out;       /* result [M,N]; may alias residual */
    void *workspace; /* scratch of PRODUCTS_WORKSPACE bytes, aligned to 256 */
};

struct products;

/* Opens cuBLASLt for the current GPU. NULL with DEVICE (library missing or does not start) or MEMORY. */
struct products *products_open(struct sys *sys, struct error *e);
void products_close(struct products *products);
/* Writes the version of the loaded cuBLASLt, such as "cuBLASLt 13.0.2", to out. */
void products_version(const struct products *products, char *out, size_t out_bytes);
/* Returns the release of the loaded cuBLASLt as 100 * major + minor. */
int products_release(const struct products *products);
/* Chooses the product's algorithm unless already chosen. MEMORY, or DEVICE if cuBLASLt has none. */
enum status products_prepare(struct products *products, const struct product_key *key, struct error *e);
/* For benchmarks: prepares a product with algorithm number `rank`, 0 to PRODUCTS_RANKS - 1, of
 * cuBLASLt's list for the shape; 0 is the choice of products_prepare. DEVICE if the list is shorter. */
enum status products_choose_ranked(struct products *products, const struct product_key *key, int rank,
                                   struct error *e);
/* Queues the product on the stream. INTERNAL if the product was not prepared, DEVICE if cuBLASLt fails. */
enum status products_run(struct products *products, const struct product_key *key,
                         const struct product_operands *operands, cudaStream_t stream, struct error *e);
/* Reports each product that has run: "linear", the product's shape, cuBLASLt's algorithm. */
void products_algorithms(const struct products *products, device_algorithm *report, void *user);
/* Returns the scratch bytes that products_warm_up needs; 0: all products have run. */
uint64_t products_warm_up_bytes(const struct products *products);
/* Runs every prepared product once if it has not run yet, so that its kernels are loaded before memory is
 * measured. Operands are garbage in scratch device memory (a multiple of 256 bytes). Two kinds of products
 * load at their first call instead: products that need more scratch, and products with wide = 0 although
 * product_rows_wide is true (no forward calls these). */
enum status products_warm_up(struct products *products, void *scratch, uint64_t scratch_bytes,
                             cudaStream_t stream, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
