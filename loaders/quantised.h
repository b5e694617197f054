/* Quantised weights in safetensors files: their scales, which are separate tensors, and their descriptions.
 * Conventions: ComfyUI's comfy/ops.py and comfy/utils.py (scaled_fp8, comfy_quant, _quantization_metadata)
 * and comfy-kitchen's tensor layouts, as of 2026. */
#ifndef SLUICE_LOADERS_QUANTISED_H
#define SLUICE_LOADERS_QUANTISED_H

#include "engine/base/index.h"

/* Sets type, shape in values and scales of every quantised weight of an index, and marks scales and
 * descriptions as used. Other weights stay unchanged. Reads descriptions and per-tensor scales, and frees the
 * quantisation metadata. MISSING (a scale that a marker or description requires), META (a scale of an
 * unquantised weight, a scale that is not a number, an invalid description), SHAPE, DUP, LIMIT, UNSUPPORTED
 * (names the format), and the errors of source_read. */
enum status quantised_pair(struct tensor_index *index, struct error *e);

/* Quantisation of a layer as the file's metadata or a comfy_quant tensor describes it. */
enum quantised_kind { QUANTISED_NOT, QUANTISED_SINGLE, QUANTISED_NVFP4, QUANTISED_MXFP8 };

struct quantised_format {
    enum quantised_kind kind;
    enum dtype stored; /* element type of the weight in the file */
    const char *name;
    bool rotated; /* columns are rotated (ConvRot) in groups of `group` columns; 0: the default size */
    int64_t group;
};

/* Fills form[i] (zeroed by the caller) with the quantisation of index entry i, from the metadata and from
 * `comfy_quant` tensors, which take precedence. Fails with META, LIMIT, DUP, MISSING or UNSUPPORTED. */
enum status quantised_read_formats(const struct tensor_index *index, struct quantised_format *form,
                                   struct error *e);

/* Returns the description that `comfy_quant` contains for weights of a type; NULL: the type has no
 * description. */
const char *quantised_format_text(enum dtype dtype);

#endif
