/* Weights of models that nobody trained, for checkpoints and benches: random, as weight tables say how far
 * they spread (weight_spec.spread), so that a forward over them neither overflows nor dies out.
 *
 * Numbers are uniform. Quantised ones have random codes and scales of one size, so that their root mean
 * square is that of the uniform ones. */
#ifndef SLUICE_BENCH_RANDOM_WEIGHTS_H
#define SLUICE_BENCH_RANDOM_WEIGHTS_H

#include "engine/base/tensor.h"

/* What made values of that type and shape are best multiplied by: the scale of a weight that has one, as a
 * whole or a row. 1 where the type is never scaled as a whole. */
float random_weights_scale(const struct tensor *shape, double init_scale);

/* Fills to with the next bytes, in whole blocks, of a weight of any type: values of that shape, which will be
 * multiplied by shape->scale. random is the generator's state: its start is a seed. */
void random_weights_fill(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                         uint64_t bytes);

/* The next bytes of what its tensor.scales points to: of I8 and F8 an f32 a row, around shape->scale. */
void random_weights_fill_scales(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                                uint64_t bytes);

#endif
