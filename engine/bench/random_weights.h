/* Random weights for checkpoints and benchmarks, with the deviation given in weight tables
 * (weight_spec.init_scale), so that a forward neither overflows nor vanishes. Numbers are uniform. Quantised
 * weights have random codes and scales of one magnitude, so that their root mean square equals that of the
 * uniform numbers. */
#ifndef SLUICE_BENCH_RANDOM_WEIGHTS_H
#define SLUICE_BENCH_RANDOM_WEIGHTS_H

#include "engine/base/tensor.h"

/* Returns the scale (per tensor or row) for random values of this type and shape; 1 if the type has none. */
float random_weights_scale(const struct tensor *shape, double init_scale);

/* Generates the next bytes (whole blocks) of a weight with the type and shape of `shape`; values are to be
 * multiplied by shape->scale. random: generator state; its start value is the seed. */
void random_weights_fill(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                         uint64_t bytes);

/* Generates the next bytes of tensor.scales: for I8 and F8 one f32 per row, around shape->scale. */
void random_weights_fill_scales(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                                uint64_t bytes);

#endif
