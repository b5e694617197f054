/* Quantisation of a layer as a file describes it. */
#ifndef SLUICE_LOADERS_QUANTISED_FORMAT_H
#define SLUICE_LOADERS_QUANTISED_FORMAT_H

#include "engine/base/index.h"

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
