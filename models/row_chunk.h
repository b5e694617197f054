/* Splits wide activations into chunks of rows. */
#ifndef SLUICE_MODELS_ROW_CHUNK_H
#define SLUICE_MODELS_ROW_CHUNK_H

#include "kernels/ops.h"

/* Returns the number of rows of a chunk when T rows are computed chunk by chunk. All chunks but the last have
 * equal size: three quarters to one and a half times device->chunks.rows, a multiple of chunks.step. The size
 * depends on T and the device alone: shapes must not depend on the plan, so that every plan computes the same
 * bits. */
static inline int32_t row_chunk(const struct context *x, int32_t T) {
    struct row_chunks asked = x->device->chunks;
    int32_t chunks = asked.rows ? (T + asked.rows / 2) / asked.rows : 1;
    return chunks < 2 ? T : ((T + chunks - 1) / chunks + asked.step - 1) / asked.step * asked.step;
}

#endif
