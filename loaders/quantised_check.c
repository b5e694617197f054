/* Rejects recognised but unsupported quantisation formats: see index_check_quantised in loaders.h. */
#include "loaders/loaders.h"

#include <string.h>

/* Quantisation formats by parts of tensor names that identify them, the most specific first. */
static const struct {
    const char *part, *form;
} signatures[] = {
    {".quant_state.bitsandbytes__", "bitsandbytes 4-bit weights"},
    {".absmax", "bitsandbytes 4-bit weights"},
    {".SCB", "bitsandbytes int8 weights"},
    {".wscales", "SVDQuant (nunchaku) 4-bit weights"},
    {".proj_down", "SVDQuant (nunchaku) 4-bit weights"},
    {".weight:", "torchao weights"},
    {"._weight_qdata", "torchao weights"},
    {".weight_packed", "packed integers (weight_packed)"},
    {".weight_scale_inv", "fp8 with block-wise scales (weight_scale_inv)"},
    {".pre_quant_scale", "weights whose inputs must be scaled (pre_quant_scale)"},
    {".weight_scale_2", "nvfp4 without a description (comfy_quant)"},
    {".qweight", "packed integers (qweight)"},
};

static const char *format_by_name(const struct tensor_index *index, const struct index_entry *entry) {
    if (entry->used) return NULL;
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (strstr(index_name(index, entry), signatures[i].part)) return signatures[i].form;
    return NULL;
}

/* The format of integer weights without a description; int8 is rejected for biases too. Other integer types
 * are accepted, because they occur in tensors that are not weights. */
static const char *format_by_type(const struct index_entry *entry) {
    size_t n = strlen(entry->name);
    if (entry->dtype == DTYPE_I8 && !entry->quant_described && !entry->used)
        return "int8 without a description (comfy_quant)";
    if (n < 7 || strcmp(entry->name + n - 7, ".weight")) return NULL;
    switch (entry->dtype) {
    case DTYPE_OTHER:
        return index_type_name(entry);
    case DTYPE_U8:
        return "packed 4-bit or 8-bit values without a description (U8)";
    default:
        return NULL;
    }
}

enum status index_check_quantised(const struct tensor_index *index, struct error *e) {
    const char *form = NULL;
    const struct index_entry *found = NULL;
    for (int pass = 0; pass < 2 && !form; pass++)
        for (int i = 0; i < index->n_entries && !form; i++) {
            found = &index->entries[i];
            if (index_contains(index, found))
                form = pass ? format_by_type(found) : format_by_name(index, found);
        }
    if (!form && !index->quantised) return OK;
    error_set(e, UNSUPPORTED, "unsupported quantisation format" WHERE "%s",
              index->sources[form ? found->source : 0].path);
    if (form)
        error_found(e, "%s: tensor '%s'", form, found->name);
    else
        error_found(e, "the metadata of a program whose quantisation is not supported");
    return error_expected(e, "%s", READABLE_WEIGHTS);
}
