/* Tensor lists of files as JSON, for `inspect`. */
#ifndef SLUICE_API_INSPECT_TENSORS_H
#define SLUICE_API_INSPECT_TENSORS_H

#include "engine/base/index.h"

#include <jansson.h>

/* Returns the bytes per tensor type: {TYPE:bytes}. */
json_t *inspect_types(const struct tensor_index *index);
/* Lists all tensors: [{"name","type","shape","bytes","used"}]. */
json_t *inspect_tensors(const struct tensor_index *index);

#endif
