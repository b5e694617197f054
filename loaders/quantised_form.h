/* What files say of how a layer is quantised. */
#ifndef SLUICE_LOADERS_QUANTISED_FORM_H
#define SLUICE_LOADERS_QUANTISED_FORM_H

#include "engine/base/index.h"

enum quantised_kind { QUANTISED_NOT, QUANTISED_SINGLE, QUANTISED_NVFP4, QUANTISED_MXFP8 };

struct quantised_form {
    enum quantised_kind kind;
    enum dtype stored; /* what the file calls the weight's bytes */
    const char *name;
    bool rotated; /* columns were rotated (convrot) in groups of so many, 0: of as many as is usual */
    int64_t group;
};

/* Fills form[i] of entry i, all zero before, from the metadata's description of layers and from the tensors
 * `comfy_quant`, which stand above it. META, LIMIT, DUP, MISSING, UNSUPPORTED. */
enum status quantised_read_forms(const struct tensor_index *index, struct quantised_form *form,
                                 struct error *e);

/* What `comfy_quant` says of a weight of that type; NULL: no form has it. */
const char *quantised_form_text(enum dtype dtype);

#endif
