/* Sizes of rings and staging that are worth trying: which blocks that follow each other they hold is all that
 * matters of them, so they are sums of such blocks. Pure functions; no budget, no choice: see plan_search.c.
 */
#ifndef SLUICE_RUN_SIZES_H
#define SLUICE_RUN_SIZES_H

#include "engine/run/pace.h"

/* Up to so many blocks all sums are sizes. */
enum { SIZES_RING_BLOCKS = 16, SIZES_STAGING_BLOCKS = 12, SIZES_MAX = 2 * SIZES_STAGING_BLOCKS * 16 + 16 };

enum sizes_kind {
    SIZES_SOME,
    SIZES_ALL,     /* if there are at most SIZES_RING_BLOCKS */
    SIZES_UNTIMED, /* rates are unknown: room for one block or two */
};

/* From room for any 8 blocks that follow each other to the least, in which nothing overlaps but what is
 * smaller. sizes has room for SIZES_MAX; largest first, in pages. Returns how many. */
int sizes_of_ring(const struct stage_need *need, const struct course *course, const struct plan_stage *stage,
                  enum sizes_kind kind, uint64_t *sizes);

/* Staging that holds what comes next from the disk keeps it reading while the bus is busy with pooled blocks:
 * like a ring, it is as large as some blocks that follow each other. As above. */
int sizes_of_staging(const struct run_need *need, int i_stage, const struct course *course,
                     const struct plan_stage *stage, uint64_t *sizes);

#endif
