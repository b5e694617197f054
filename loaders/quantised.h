/* Finds the scales of quantised weights in safetensors files, which are separate tensors. Conventions:
 * ComfyUI's comfy/ops.py and comfy/utils.py (scaled_fp8, comfy_quant, _quantization_metadata) and
 * comfy-kitchen's tensor layouts, as of 2026. */
#ifndef SLUICE_LOADERS_QUANTISED_H
#define SLUICE_LOADERS_QUANTISED_H

#include "engine/base/index.h"

/* Sets type, shape in values and scales of every quantised weight of an index, and marks scales and
 * descriptions as used. Other weights stay unchanged. Reads descriptions and per-tensor scales, and frees the
 * quantisation metadata. MISSING (a scale that a marker or description requires), META (a scale of an
 * unquantised weight, a scale that is not a number, an invalid description), SHAPE, DUP, LIMIT, UNSUPPORTED
 * (names the format), and the errors of source_read. */
enum status quantised_pair(struct tensor_index *index, struct error *e);

#endif
