/* Describes adapter files (LoRA) for `inspect`. */
#ifndef SLUICE_API_INSPECT_ADAPTER_H
#define SLUICE_API_INSPECT_ADAPTER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <jansson.h>

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
