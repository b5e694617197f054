/* Rows that a feed-forward takes at a time: its wide rows stay few, and no chunk is so short that widening
 * its weights takes longer than multiplying. */
#ifndef SLUICE_MODELS_ROW_CHUNK_H
#define SLUICE_MODELS_ROW_CHUNK_H

#include <stdint.h>

enum { ROW_CHUNK = 512 };

/* All chunks of T rows are equal but the last; three quarters to one and a half times ROW_CHUNK. A function
 * of T alone, because shapes may not come from the plan (R3). */
static inline int32_t row_chunk(int32_t T) {
    int32_t chunks = (T + ROW_CHUNK / 2) / ROW_CHUNK;
    return chunks < 2 ? T : (T + chunks - 1) / chunks;
}

#endif
