/* Weights of safetensors files whose scales lie in tensors beside them.
 *
 * Conventions: ComfyUI's comfy/ops.py and comfy/utils.py (scaled_fp8, comfy_quant, _quantization_metadata)
 * and comfy-kitchen's tensor layouts, as of 2026. */
#ifndef SLUICE_LOADERS_QUANTISED_H
#define SLUICE_LOADERS_QUANTISED_H

#include "engine/base/index.h"

/* Gives every quantised weight of a whole index its type, its values' shape and its scales, and marks what
 * lies beside it as used. Weights without anything beside them stay as they are. Reads descriptions and
 * single scales; what the metadata says is freed.
 *
 * MISSING (a scale that a marker or description asks for), META (a scale beside a weight of another type; one
 * that is no number; a description that does not fit), SHAPE, DUP, LIMIT, UNSUPPORTED (a form by its name),
 * and source_read's. */
enum status quantised_pair(struct tensor_index *index, struct error *e);

#endif
