/* How a file describes the quantisation of a layer. */
#ifndef SLUICE_LOADERS_QUANTISED_FORM_H
#define SLUICE_LOADERS_QUANTISED_FORM_H

#include "engine/base/index.h"

enum quantised_kind { QUANTISED_NOT, QUANTISED_SINGLE, QUANTISED_NVFP4, QUANTISED_MXFP8 };

struct quantised_form {
    enum quantised_kind kind;
    enum dtype stored; /* type of the weight's bytes in the file */
    const char *name;
    bool rotated; /* columns are rotated (ConvRot) in groups of `group`; 0: the usual size */
    int64_t group;
};

/* Fills form[i] for entry i (all zero before) from the metadata and from `comfy_quant` tensors, which take
 * precedence. META, LIMIT, DUP, MISSING, UNSUPPORTED. */
enum status quantised_read_forms(const struct tensor_index *index, struct quantised_form *form,
                                 struct error *e);

/* The `comfy_quant` text for a weight of that type; NULL: none. */
const char *quantised_form_text(enum dtype dtype);

#endif
