/* Made-up models for `bench stream`: lists of blocks with the bytes and computing times of real ones, whose
 * only operator is one product with the block's weights. They run through the real plan, store and executor,
 * on the timed device or on a paced one. */
#ifndef SLUICE_BENCH_STREAM_MODEL_H
#define SLUICE_BENCH_STREAM_MODEL_H

#include "engine/run/executor.h"

enum { STREAM_BLOCKS_MAX = 64, STREAM_LANES_MAX = 2, STREAM_EVALUATIONS = 6 };

/* One block: a matrix of bf16 weights, rows x columns, with which tokens rows of activations are multiplied.
 */
struct stream_block {
    int32_t rows, columns, tokens;
};

struct stream_model {
    struct sys *sys;
    int n_blocks;
    struct stream_block sizes[STREAM_BLOCKS_MAX];
    struct component component;
    struct block blocks[STREAM_BLOCKS_MAX];
    struct packed_segment segments[STREAM_BLOCKS_MAX];
    const struct block *list[STREAM_BLOCKS_MAX];
    struct byte_source source;
    char path[32];
};

/* A block that packed has about this many bytes and that takes these seconds a lane at flops a second. */
struct stream_block stream_block_of(double bytes, double seconds, double flops);

/* Makes the component of model->sizes in place; model stays where it is. Its weights are read from file 0 of
 * sys, which need not exist: sys->read_at says what it holds. Nothing to destroy. */
void stream_model_make(struct stream_model *model, struct sys *sys);

/* How a model is run. */
struct stream_run {
    const struct stream_model *model;
    struct device *device;
    struct rates rates; /* ops: of the device; h2d: of its bus */
    int lanes;
    bool branches_apart; /* each lane has visits of its own: every block passes once a lane */
    int readers;
    int evaluations; /* 3 to STREAM_EVALUATIONS */
    /* Called between operators and while they wait for weights; false ends the run with CANCELLED. May be
     * NULL. */
    bool (*go_on)(void *user);
    void *user;
};

/* Lists the visits and measures dry; need->stage[0] then has bytes and seconds. */
enum status stream_measure(const struct stream_run *run, struct run_need *need, struct error *e);

/* Seconds of the first step, which fills residents and pool; of one when it is steady: the mean of the last
 * two. */
struct stream_times {
    double first, steady;
};

/* Runs it under the plan. */
enum status stream_execute(const struct stream_run *run, const struct run_need *need, const struct plan *plan,
                           struct stream_times *times, struct error *e);

#endif
