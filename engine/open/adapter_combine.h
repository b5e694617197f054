/* Combines the matched adapters of a run with their strengths. Low-rank factors for the same weight become
 * adjacent list entries. Changes to vectors (biases, norms) are summed in f32, in the order of the adapters.
 */
#ifndef SLUICE_OPEN_ADAPTER_COMBINE_H
#define SLUICE_OPEN_ADAPTER_COMBINE_H

#include "engine/open/adapter_match.h"

/* A matched adapter with its strength. */
struct adapter_use {
    const struct adapter_match *match;
    double strength; /* not 0 */
};

/* The changes of several adapters to the component in one slot. */
struct adapter_combination {
    struct sys *sys;
    struct adapted_weight *weights;
    int n_weights;
    struct replaced_vector *vectors; /* f32 values: base + sum of strength * scale * change */
    int n_vectors;
    uint64_t host_bytes;              /* bytes allocated by the combination */
    struct adapter_combined *derived; /* private to adapter_combine.c */
};

/* Combines adapters for one slot. Reads the changed vectors from the model's component in that slot (zeros
 * for a model without files). The counts of changed weights and vectors are 0 if the adapters change nothing
 * in the slot. UNSUPPORTED: a base vector has an unsupported type. IO, CHANGED: reading a base vector
 * failed. MEMORY: no memory. META: strength * scale overflows f32. The matches must outlive the combination,
 * and the combination every component adapted with it. */
enum status adapters_combine(const struct sluice_model *model, int slot, const struct adapter_use *uses,
                             int n_uses, struct adapter_combination *combination, struct error *e);
void adapter_combination_destroy(struct adapter_combination *combination);

#endif
