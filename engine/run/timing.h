/* Predicts the time of a stage whose weights stream through a ring, and chooses residents that keep the
 * stream even. Pure functions. Model: one copier moves blocks in visit order and runs ahead as far as the
 * ring has space. Space is freed in visit order, when a visit's computation ends. A visit begins when the
 * previous one has ended and its bytes have arrived. All times are maxima or sums of earlier times, so one
 * pass over the visits computes them. test_plan.c compares it with an independent simulator.
 * Simplifications: a block arrives as a whole, so the prediction is an upper bound (most visibly if the ring
 * holds one block). The ring wastes no space at its end. Unpinned parts of a pool are copied to staging while
 * the disk continues, one copy at a time. Operators wait for every byte of full-frame buffers in host memory
 * at the bus rate, without overlap; concurrent weight copies are not slowed. A rate of 0 means unknown and
 * takes no time. */
#ifndef SLUICE_RUN_TIMING_H
#define SLUICE_RUN_TIMING_H

#include "engine/run/plan.h"

/* Busy seconds of each resource (computation, bus, disk), without waiting. */
struct load {
    double busy[N_BOUNDS];
};

/* A stage as a stream of blocks in visit order: blocks visited once, then the blocks of every evaluation.
 * Built once per stage, because the solver evaluates thousands of plans. */
struct block_stream {
    bool separate;
    int n, n_once, evaluations;
    int place[PLAN_BLOCKS_MAX]; /* index of the block in its stage */
    uint64_t bytes[PLAN_BLOCKS_MAX];
    /* Seconds per block and evaluation: computation, copy over the bus (separate device only), read from the
     * disk. */
    double compute[PLAN_BLOCKS_MAX], bus[PLAN_BLOCKS_MAX], disk[PLAN_BLOCKS_MAX];
    double host[PLAN_BLOCKS_MAX]; /* seconds to copy the block within host memory, out of an unpinned pool */
    double disk_rate, host_rate;
    /* Times at which compute, bus and disk finish the first evaluation, if the ring were unlimited. */
    struct load start;
};

struct timing {
    double seconds;            /* predicted seconds of the whole stage */
    double evaluation_seconds; /* seconds of one evaluation in steady state */
    double floor_seconds;      /* lower bound of `seconds`: busy time of the busiest resource */
    /* floor_seconds of the first evaluation alone, and of each later evaluation */
    double first_floor_seconds, later_floor_seconds;
    enum bound bound; /* the resource with the largest load in the whole stage */
};

/* Builds the stream of a stage. pictures_on_host: as in struct plan_stage. */
void block_stream_make(const struct stage_need *need, const struct rates *rates, bool separate,
                       bool pictures_on_host, struct block_stream *block_stream);

/* Load of the first evaluation (block_stream_first_load), which reads all blocks from the disk, and of each
 * later one (block_stream_later_load). On a separate device later loads read only blocks outside the pool. */
struct load block_stream_first_load(const struct block_stream *block_stream);
struct load block_stream_later_load(const struct block_stream *block_stream, const struct plan_stage *stage);

struct timing block_stream_timing(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Predicts the seconds of a stage, as block_stream_timing. Stops early if they exceed `enough`: the result is
 * then only a lower bound, above `enough`. */
double block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                            double enough);

/* Lower bound, up to rounding, of the seconds of every plan with this stage's residents and pool. Cheap. */
double block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Input of block_stream_thin, which takes eligible blocks (at most `most` bytes) out of a stream so that the
 * rest streams evenly. A block is taken if the bytes streamed so far would otherwise exceed an even rate per
 * second of computation by more than `allowance` bytes. stream, eligible, taken: bit sets by block index. */
struct thinning {
    const uint64_t *stream, *eligible;
    uint64_t most;
    double allowance;
};
void block_stream_thin(const struct block_stream *block_stream, const struct thinning *thinning,
                       uint64_t *taken);

struct timing timing_predict(const struct run_need *need, const struct plan *plan, int stage);

#endif
