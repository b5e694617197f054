/* Random weights: see made_weights.h. */
#include "engine/api/made_weights.h"

#include "engine/base/random.h"

#include <math.h>
#include <string.h>

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Inputs of one output: what a sum of products runs over. */
static double inputs_of(const struct tensor *t) {
    double inputs = 1;
    for (int i = 1; i < t->rank; i++) inputs *= t->dim[i];
    return inputs;
}

void made_weights(uint64_t *random, const struct tensor *shape, double spread, void *to, uint64_t bytes) {
    float middle = spread == 0 ? 1 : 0;
    float range =
        (float)(spread == 0 ? 0.2 : 2 * spread * (shape->rank > 1 ? sqrt(3 / inputs_of(shape)) : 0.1));
    uint64_t n = bytes * 8 / (uint64_t)dtype_bits(shape->dtype);
    for (uint64_t k = 0; k < n; k++) {
        float value = middle + range * ((float)(random_next(random) >> 40) * 0x1p-24f - 0.5f);
        if (shape->dtype == DTYPE_F32)
            ((float *)to)[k] = value;
        else
            ((uint16_t *)to)[k] = to_bf16(value);
    }
}
