/* Tensors of files as JSON, for `inspect`. */
#ifndef SLUICE_API_INSPECT_TENSORS_H
#define SLUICE_API_INSPECT_TENSORS_H

#include "engine/base/index.h"

#include <jansson.h>

/* {TYPE:bytes} of what the index has. */
json_t *inspect_types(const struct tensor_index *index);
/* [{"name","type","shape","bytes","used"}] */
json_t *inspect_tensors(const struct tensor_index *index);

#endif
