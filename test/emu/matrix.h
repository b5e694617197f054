/* What the stand-ins for cuBLASLt and cuDNN compute with: oneDNN, or loops in one fixed order under
 * ThreadSanitizer, which knows nothing of what oneDNN's code and OpenMP's threads do.
 *
 * Operands are f32 and packed: whoever rounds rounds before. */
#ifndef SLUICE_EMU_MATRIX_H
#define SLUICE_EMU_MATRIX_H

#include "kernels/cpu/onednn.h"

struct matrix;

/* MEMORY or DEVICE; NULL then. */
struct matrix *matrix_open(struct sys *sys, struct error *e);
void matrix_close(struct matrix *matrix);
/* Both keys are oneDNN's: of ONEDNN_PRODUCT_T, or ONEDNN_CONV. */
enum status matrix_prepare(struct matrix *matrix, const struct onednn_key *key, struct error *e);
/* dst[M,N] = src[M,K] . weights[N,K]^T, or dst[Y,X,N] = src[Y+k-1,X+k-1,C] * weights[N,C,k,k]. From any
 * thread; a failure ends the process. */
void matrix_run(struct matrix *matrix, const struct onednn_key *key, const float *src, const float *weights,
                float *dst);

/* Memory for a while; ends the process where there is none. */
float *matrix_floats(int64_t n);

#endif
