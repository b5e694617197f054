/* Synthetic models of `bench stream`: number, size and compute time of the blocks of real models. */
#ifndef SLUICE_BENCH_STREAM_SHAPES_H
#define SLUICE_BENCH_STREAM_SHAPES_H

#include "engine/bench/stream_model.h"

/* A run of equal blocks. */
struct stream_shape {
    const char *name;
    struct {
        int n;
        double bytes, seconds; /* bytes and compute seconds per block */
    } blocks[2];
};

/* FLOPs per second of the timed device: high enough that a whole number of tokens gives any block's compute
 * time with an error of a few 1e-5. */
#define STREAM_TIMED_FLOPS 1e15

/* Number of models in the main table, and number of all models (some run only with asynchronous launches). */
enum { STREAM_SHAPES = 4, STREAM_SHAPES_ALL = 6 };
extern const struct stream_shape stream_shapes[STREAM_SHAPES_ALL];

/* Adds the shape's blocks to a model's sizes, for this many FLOPs per second. */
void stream_shape_add(const struct stream_shape *shape, double flops, struct stream_model *model);

#endif
