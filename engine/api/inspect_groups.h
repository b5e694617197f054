/* What a component's tensors are stored in, group by group. */
#ifndef SLUICE_API_INSPECT_GROUPS_H
#define SLUICE_API_INSPECT_GROUPS_H

#include "engine/base/index.h"

#include <jansson.h>

/* Adds to a component's description: "values" of all its weights, "bits_per_weight" with all that is stored
 * for them, and "groups", the tensors of repeated blocks together: [{"name":"layers.N","tensors","bytes",
 * "values","bits_per_weight","types":{TYPE:bytes}}]; what repeats nowhere is the group "others". Scales and
 * descriptions count with the type that the file has for them; they are no values. */
void inspect_add_groups(const struct tensor_index *index, json_t *component);

#endif
