/* How a forward cuts its rows where they are wide. */
#ifndef SLUICE_MODELS_ROW_CHUNK_H
#define SLUICE_MODELS_ROW_CHUNK_H

#include "kernels/ops.h"

/* All chunks of T rows are alike but the last: three quarters to one and a half times what the device asks
 * for, in whole steps of its. A function of T and the device alone, because shapes may not come from the plan
 * (R3).
 */
static inline int32_t row_chunk(const struct context *x, int32_t T) {
    struct row_chunks asked = x->device->chunks;
    int32_t chunks = asked.rows ? (T + asked.rows / 2) / asked.rows : 1;
    return chunks < 2 ? T : ((T + chunks - 1) / chunks + asked.step - 1) / asked.step * asked.step;
}

#endif
