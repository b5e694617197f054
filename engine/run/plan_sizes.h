/* Candidate sizes of rings and staging for the planner: sums of consecutive block sizes, because only the
 * number of consecutive blocks that fit matters. Pure functions; plan_search.c chooses. */
#ifndef SLUICE_RUN_PLAN_SIZES_H
#define SLUICE_RUN_PLAN_SIZES_H

#include "engine/run/timing.h"

/* All sums of consecutive blocks are candidates if at most this many blocks pass the ring or staging. */
enum { SIZES_RING_BLOCKS = 16, SIZES_STAGING_BLOCKS = 12, SIZES_MAX = 2 * SIZES_STAGING_BLOCKS * 16 + 16 };

enum sizes_kind {
    SIZES_SOME,
    SIZES_ALL, /* candidates: all sums of block sizes, if the stage has at most SIZES_RING_BLOCKS blocks */
    SIZES_UNTIMED, /* candidates if rates are unknown: space for one block, and for two blocks */
};

/* Candidate ring sizes, from space for any 8 consecutive blocks down to the least ring, which holds the
 * largest block. Writes whole-page bytes, largest first, to `sizes` (SIZES_MAX). Returns their number. */
int sizes_of_ring(const struct stage_need *need, const struct block_stream *block_stream,
                  const struct plan_stage *stage, enum sizes_kind kind, uint64_t *sizes);

/* Candidate staging sizes; output as in sizes_of_ring. Larger staging keeps the disk busy while the bus
 * copies pooled blocks. */
int sizes_of_staging(const struct run_need *need, int i_stage, const struct block_stream *block_stream,
                     const struct plan_stage *stage, uint64_t *sizes);

#endif
