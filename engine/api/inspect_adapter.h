/* What is in an adapter's file, for `inspect`. */
#ifndef SLUICE_API_INSPECT_ADAPTER_H
#define SLUICE_API_INSPECT_ADAPTER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <jansson.h>

/* Is it one file of tensors that are called as factors of adapters are? What cannot be read is none. */
bool inspect_is_adapter(struct sys *sys, const char *path);

/* {"file","tensors","bytes","types":{TYPE:bytes},"modules","dialects","forms","ranks","alphas" (each
 * {NAME:modules}),"parts":[{"name","modules","ranks","alphas"}],"recipes" (that are published and that all of
 * it fits),"list" (of tensors, if they are asked for)}; names of tensors that are no factors go to *unknown.
 * What adapter_open fails with. */
enum status inspect_adapter(struct sys *sys, const char *path, bool tensors, json_t **adapter,
                            json_t *unknown, struct error *e);

#endif
