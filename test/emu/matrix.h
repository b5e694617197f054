/* Arithmetic of the replaced cuBLASLt and cuDNN: oneDNN, or plain loops under the thread sanitizer, where
 * oneDNN and OpenMP are not instrumented.
 *
 * Operands are packed f32, already rounded by the caller. */
#ifndef SLUICE_EMU_MATRIX_H
#define SLUICE_EMU_MATRIX_H

#include "kernels/cpu/onednn.h"

struct matrix;

/* Returns NULL with MEMORY or DEVICE on failure. */
struct matrix *matrix_open(struct sys *sys, struct error *e);
void matrix_close(struct matrix *matrix);
/* The key is of ONEDNN_PRODUCT_T or ONEDNN_CONV. */
enum status matrix_prepare(struct matrix *matrix, const struct onednn_key *key, struct error *e);
/* dst[M,N] = src[M,K] weights[N,K]^T, or dst[Y,X,N] = conv(src[Y+k-1,X+k-1,C], weights[N,C,k,k]). Callable
 * from any thread; a failure exits the process. */
void matrix_run(struct matrix *matrix, const struct onednn_key *key, const float *src, const float *weights,
                float *dst);

/* Allocates temporary memory; exits the process on failure. */
float *matrix_floats(int64_t n);

#endif
