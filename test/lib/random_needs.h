/* Needs of runs (struct run_need) for tests of the plan solver, made from seeded_state (seeded.h). */
#ifndef SLUICE_TEST_RANDOM_NEEDS_H
#define SLUICE_TEST_RANDOM_NEEDS_H

#include "engine/run/plan.h"

/* Makes a need of one stage without blocks, and returns the stage. disk: bytes per second. */
struct stage_need *one_stage(struct run_need *need, int evaluations, double disk);

/* Adds blocks that are visited in every step and can stay resident. */
void add_blocks(struct stage_need *n, int count, double bytes, double seconds);

/* Returns the bytes of all blocks. */
uint64_t stage_bytes(const struct stage_need *n);

/* Makes a random stage whose compute, bus and disk take about equal time, so that each may be the bottleneck.
 */
void random_stage(struct stage_need *n, int n_blocks);

/* Makes a random need of 1 to most_blocks blocks in each stage. */
void random_need(struct run_need *need, bool separate, int n_stages, int most_blocks);

/* Checks that a plan for these budgets is refused, and that the error states the minimum of the memory (RAM
 * or VRAM) that is too small. */
void check_refused(const struct run_need *need, uint64_t ram, uint64_t vram);

#endif
