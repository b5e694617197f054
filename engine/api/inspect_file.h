/* Describes the tensors of files, and adapter files (LoRA), as JSON for `inspect`. */
#ifndef SLUICE_API_INSPECT_FILE_H
#define SLUICE_API_INSPECT_FILE_H

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/sys.h"

#include <jansson.h>

/* Returns a file's weight bytes per tensor type as JSON: {TYPE:bytes}. */
json_t *inspect_types(const struct tensor_index *index);
/* Lists all tensors of a file as JSON: [{"name","type","shape","bytes","used"}]. */
json_t *inspect_tensors(const struct tensor_index *index);

/* True for a safetensors file with tensors named like adapter factors (lora_A, lora_down, ...). False if the
 * file cannot be read. */
bool inspect_is_adapter(struct sys *sys, const char *path);

/* Describes an adapter file as JSON:
 * {"file","tensors","bytes","types":{TYPE:bytes},"modules","dialects","forms","ranks","alphas" (each
 * {NAME:modules}),"parts":[{"name","modules","ranks","alphas"}],"recipes" (published models that take every
 * tensor of the adapter),"list" (with tensors: the file's tensors)}. Appends the names of tensors that are
 * not adapter factors to unknown. Fails like adapter_open. */
enum status inspect_adapter(struct sys *sys, const char *path, bool tensors, json_t **adapter,
                            json_t *unknown, struct error *e);

#endif
