/* Predicted timing of a stage whose weights stream through a ring, and a choice of residents that keeps the
 * stream even.
 *
 * Model: one copier moves blocks in visit order and runs ahead as far as the ring has space. Space is freed
 * in visit order, when the computation of a visit ends. A visit begins when the previous one has ended and
 * its bytes have arrived. All times are maxima or sums of earlier times, so one pass over the visits gives
 * every time exactly. An independent simulator of the same model gives the times in test/lib/timing_table.c,
 * which test_plan.c compares.
 *
 * Simplifications. A block arrives in one piece; the prediction is thus an upper bound, because a block
 * really starts when its first tensors arrive (this matters most if the ring holds one block). The ring
 * wastes no space at its end. Unpinned parts of a pool are copied to staging while the disk continues, one
 * copy at a time. If full-frame buffers lie in host memory, operators wait for each of their bytes over the
 * bus, at its rate in either direction, without overlap; concurrent weight copies are not slowed. A rate of 0
 * means unknown and takes no time.
 *
 * Pure functions without clock or randomness. Independent of devices and of the store. */
#ifndef SLUICE_RUN_TIMING_H
#define SLUICE_RUN_TIMING_H

#include "engine/run/plan.h"

/* Busy seconds of computation, bus and disk, if none of them ever waits. */
struct load {
    double busy[N_BOUNDS];
};

/* A stage as a stream of blocks in visit order: first blocks visited once, then blocks visited in every
 * evaluation. Built once per stage, because the solver evaluates thousands of plans. */
struct block_stream {
    bool separate;
    int n, n_once, evaluations;
    int place[PLAN_BLOCKS_MAX]; /* index of the block in the stage */
    uint64_t bytes[PLAN_BLOCKS_MAX];
    /* Seconds: of computation; on the bus (separate device only); on the disk, which is the only link if
     * device and host share memory. */
    double compute[PLAN_BLOCKS_MAX], bus[PLAN_BLOCKS_MAX], disk[PLAN_BLOCKS_MAX];
    double host[PLAN_BLOCKS_MAX]; /* seconds of a copy within host memory, out of an unpinned pool */
    double disk_rate, host_rate;
    struct load start; /* end of the first evaluation for each resource, with unlimited space */
};

struct timing {
    double seconds;            /* of the whole stage */
    double evaluation_seconds; /* of one evaluation in steady state */
    double floor_seconds; /* first evaluation plus later ones at the largest load; prefetching can beat it
                             slightly */
    double first_floor_seconds, later_floor_seconds; /* of the first evaluation, of each later one */
    enum bound bound; /* the resource with the largest load in the whole stage */
};

/* pictures_on_host: as in struct plan_stage. */
void block_stream_make(const struct stage_need *need, const struct rates *rates, bool separate,
                       bool pictures_on_host, struct block_stream *block_stream);

/* Loads up to the end of the first evaluation, and of each later one. On a separate device everything is read
 * from the disk once: into the pool if it is pooled. */
struct load block_stream_first_load(const struct block_stream *block_stream);
struct load block_stream_later_load(const struct block_stream *block_stream, const struct plan_stage *stage);

struct timing block_stream_timing(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Seconds of block_stream_timing if they are at most `enough`; else some number in between. Stops as soon as
 * that is certain. */
double block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                            double enough);

/* Lower bound of the seconds of every plan with these residents and this pool, up to rounding. Cheap. */
double block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Selects at most `most` bytes of eligible blocks to remove from a stream, so that the rest streams evenly. A
 * block is taken when the cumulative bytes of the stream would exceed the cumulative computation time, scaled
 * to the remaining bytes, by more than `allowance` bytes. stream, eligible and taken are bit sets by block
 * index. */
struct thinning {
    const uint64_t *stream, *eligible;
    uint64_t most;
    double allowance;
};
void block_stream_thin(const struct block_stream *block_stream, const struct thinning *thinning,
                       uint64_t *taken);

/* block_stream_timing for one stage of a plan. */
struct timing timing_predict(const struct run_need *need, const struct plan *plan, int stage);

#endif
