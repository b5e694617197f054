/* Predicts the time of a stage whose weights stream through a ring, and chooses residents that keep the
 * stream even. Pure functions.
 * Model: one copier moves blocks in visit order and runs ahead as far as the ring has space. Space is freed
 * in visit order, when a visit's computation ends. A visit begins when the previous one has ended and its
 * bytes have arrived. All times are maxima or sums of earlier times, so one pass over the visits computes
 * them. An independent simulator gave the times in test/lib/timing_table.c.
 * Simplifications: a block arrives in one piece, so the prediction is an upper bound (most visibly if the
 * ring holds one block). The ring wastes no space at its end. Unpinned parts of a pool are copied to staging
 * while the disk continues, one copy at a time. Operators wait for every byte of full-frame buffers in host
 * memory at the bus rate, without overlap; concurrent weight copies are not slowed. A rate of 0 means unknown
 * and takes no time. */
#ifndef SLUICE_RUN_TIMING_H
#define SLUICE_RUN_TIMING_H

#include "engine/run/plan.h"

/* Busy seconds of computation, bus and disk without any waiting. */
struct load {
    double busy[N_BOUNDS];
};

/* A stage as a stream of blocks in visit order: blocks visited once, then the blocks of every evaluation.
 * Built once per stage, because the solver evaluates thousands of plans. */
struct block_stream {
    bool separate;
    int n, n_once, evaluations;
    int place[PLAN_BLOCKS_MAX]; /* stage's index of the block */
    uint64_t bytes[PLAN_BLOCKS_MAX];
    /* Seconds of computation; on the bus (separate device only); on the disk, the only link if device and
     * host share memory. */
    double compute[PLAN_BLOCKS_MAX], bus[PLAN_BLOCKS_MAX], disk[PLAN_BLOCKS_MAX];
    double host[PLAN_BLOCKS_MAX]; /* seconds to copy the block within host memory, out of an unpinned pool */
    double disk_rate, host_rate;
    struct load start; /* end of the first evaluation for each resource, with unlimited space */
};

struct timing {
    double seconds;            /* seconds of the whole stage */
    double evaluation_seconds; /* seconds of one evaluation in steady state */
    double floor_seconds;      /* seconds of the first evaluation, plus the largest load of each later one */
    double first_floor_seconds, later_floor_seconds; /* seconds of the first, of each later evaluation */
    enum bound bound; /* the resource with the largest load in the whole stage */
};

/* Builds the stream of a stage. pictures_on_host: as in struct plan_stage. */
void block_stream_make(const struct stage_need *need, const struct rates *rates, bool separate,
                       bool pictures_on_host, struct block_stream *block_stream);

/* Loads of the first evaluation, and of each later one. On a separate device everything is read from the disk
 * once; pooled blocks stay in the pool. */
struct load block_stream_first_load(const struct block_stream *block_stream);
struct load block_stream_later_load(const struct block_stream *block_stream, const struct plan_stage *stage);

struct timing block_stream_timing(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Seconds of block_stream_timing if at most `enough`; otherwise any number above `enough` and not above the
 * true seconds. Stops as soon as that is certain. */
double block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                            double enough);

/* Lower bound of the seconds of every plan with these residents and this pool, up to rounding. Cheap. */
double block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Selects eligible blocks of at most `most` bytes to remove from a stream, so that the rest streams evenly. A
 * block is taken when the stream's cumulative bytes would exceed the cumulative computation time, scaled to
 * the remaining bytes, by more than `allowance` bytes. stream, eligible, taken: bit sets by block index. */
struct thinning {
    const uint64_t *stream, *eligible;
    uint64_t most;
    double allowance;
};
void block_stream_thin(const struct block_stream *block_stream, const struct thinning *thinning,
                       uint64_t *taken);

struct timing timing_predict(const struct run_need *need, const struct plan *plan, int stage);

#endif
