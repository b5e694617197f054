/* Synthetic models for `sluice-dev stream`: lists of blocks with the bytes and compute times of real models.
 * A block's only operator is one product with its weights. Synthetic models run through the real plan, store
 * and executor, on the timed or the paced device. */
#ifndef SLUICE_DEV_STREAM_MODEL_H
#define SLUICE_DEV_STREAM_MODEL_H

#include "engine/run/executor.h"

enum { STREAM_BLOCKS_MAX = 64, STREAM_LANES_MAX = 2, STREAM_EVALUATIONS = 6 };

/* A block of a synthetic model: a bf16 matrix of rows x columns, multiplied with `tokens` rows of
 * activations. */
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

/* Returns a block of about `bytes` bytes that takes `seconds` per lane at `flops` FLOPs per second. */
struct stream_block stream_block_of(double bytes, double seconds, double flops);

/* Builds the component of a synthetic model from model->sizes; the struct must not move afterwards. Weights
 * are read from file 0 of sys, which need not exist: sys->read_at provides them. Nothing to destroy. */
void stream_model_make(struct stream_model *model, struct sys *sys);

struct stream_run {
    const struct stream_model *model;
    struct device *device;
    struct rates rates; /* rates of the device (ops) and of its bus (h2d) */
    int lanes;
    bool branches_apart; /* each lane has its own visits, so every block is copied once per lane */
    int readers;
    int evaluations; /* number of steps, 3 to STREAM_EVALUATIONS */
    /* Optional callback, called between operators and while an operator waits for weights. Returns false to
     * cancel. */
    bool (*go_on)(void *user);
    void *user;
};

/* Lists the visits and runs them on the dry device, which counts instead of computing. Fills bytes and
 * seconds of need->stage[0]. */
enum status stream_measure(const struct stream_run *run, struct run_need *need, struct error *e);

/* Seconds of the first step (which fills the residents and the host memory pool), and of a steady step (mean
 * of the last two). */
struct stream_times {
    double first, steady;
};

enum status stream_execute(const struct stream_run *run, const struct run_need *need, const struct plan *plan,
                           struct stream_times *times, struct error *e);

/* A synthetic model: one or two sequences of equal blocks. */
struct stream_shape {
    const char *name;
    struct {
        int n;
        double bytes, seconds; /* bytes and compute seconds of one block */
    } blocks[2];
};

/* FLOPs per second of the timed device: high enough that a whole number of tokens gives any block's compute
 * time with an error of a few 1e-5. */
#define STREAM_TIMED_FLOPS 1e15

/* Number of synthetic models in the main table, and of all synthetic models (some run only with asynchronous
 * launches). */
enum { STREAM_SHAPES = 4, STREAM_SHAPES_ALL = 6 };
extern const struct stream_shape stream_shapes[STREAM_SHAPES_ALL];

/* Adds the blocks of a shape to a model's sizes. flops: FLOPs per second of the device, to convert compute
 * seconds to matrix sizes. */
void stream_shape_add(const struct stream_shape *shape, double flops, struct stream_model *model);

#endif
