/* The models that `bench stream` makes up: how many blocks of what size and computing time real ones have. */
#ifndef SLUICE_BENCH_STREAM_SHAPES_H
#define SLUICE_BENCH_STREAM_SHAPES_H

#include "engine/bench/stream_model.h"

/* Runs of equal blocks, one after the other. */
struct stream_shape {
    const char *name;
    struct {
        int n;
        double bytes, seconds; /* of each */
    } blocks[2];
};

/* The timed device multiplies at a rate so high that tokens can express any time to a few parts in 10^5. */
#define STREAM_TIMED_FLOPS 1e15

/* Those of the table; then those that only a host that runs ahead is shown with. */
enum { STREAM_SHAPES = 4, STREAM_SHAPES_ALL = 6 };
extern const struct stream_shape stream_shapes[STREAM_SHAPES_ALL];

/* Adds its blocks to a model's sizes, at so many FLOPs a second. */
void stream_shape_add(const struct stream_shape *shape, double flops, struct stream_model *model);

#endif
