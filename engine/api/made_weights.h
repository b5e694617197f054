/* Weights of models that nobody trained, for checkpoints and benches: random, as weight tables say how far
 * they spread (weight_spec.spread), so that a forward over them neither overflows nor dies out. */
#ifndef SLUICE_API_MADE_WEIGHTS_H
#define SLUICE_API_MADE_WEIGHTS_H

#include "engine/base/tensor.h"

/* Fills to with the f32 or bf16 values of a tensor of that shape, or the next bytes of them. random is the
 * generator's state: its start is a seed. */
void made_weights(uint64_t *random, const struct tensor *shape, double spread, void *to, uint64_t bytes);

#endif
