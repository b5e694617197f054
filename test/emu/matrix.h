/* Matrix arithmetic of the emulated cuBLASLt and cuDNN: oneDNN, or plain loops under ThreadSanitizer, where
 * oneDNN and OpenMP are not instrumented.
 *
 * Operands are contiguous f32, already rounded by the caller. */
#ifndef SLUICE_EMU_MATRIX_H
#define SLUICE_EMU_MATRIX_H

#include "kernels/cpu/onednn.h"

struct matrix;

/* Opens oneDNN. Returns NULL and sets MEMORY or DEVICE on failure. */
struct matrix *matrix_open(struct sys *sys, struct error *e);
void matrix_close(struct matrix *matrix);
/* Prepares a shape; the key's kind is ONEDNN_PRODUCT_T or ONEDNN_CONV. */
enum status matrix_prepare(struct matrix *matrix, const struct onednn_key *key, struct error *e);
/* Computes dst[M,N] = src[M,K] weights[N,K]^T, or dst[Y,X,N] = conv(src[Y+k-1,X+k-1,C], weights[N,C,k,k]).
 * Callable from any thread; a failure exits the process. */
void matrix_run(struct matrix *matrix, const struct onednn_key *key, const float *src, const float *weights,
                float *dst);

/* Allocates temporary memory for n floats; exits the process on failure. */
float *matrix_floats(int64_t n);

#endif
