/* Forms of quantisation that are recognised and not read: see index_check_quantised in loaders.h. */
#include "loaders/foreign.h"
#include "loaders/loaders.h"

#include <string.h>

/* How tensors beside a quantised weight are called, or end, the most telling first. */
static const struct {
    const char *part, *form;
} marks[] = {
    {".quant_state.bitsandbytes__", "4 bits as bitsandbytes packs them"},
    {".absmax", "4 bits as bitsandbytes packs them"},
    {".SCB", "int8 as bitsandbytes packs it"},
    {".wscales", "4 bits as SVDQuant (nunchaku) packs them"},
    {".proj_down", "4 bits as SVDQuant (nunchaku) packs them"},
    {".weight:", "weights as torchao packs them"},
    {"._weight_qdata", "weights as torchao packs them"},
    {".weight_packed", "packed integers (weight_packed)"},
    {".weight_scale_inv", "fp8 with a scale for a block of rows and columns (weight_scale_inv)"},
    {".pre_quant_scale", "weights whose inputs must be scaled (pre_quant_scale)"},
    {".weight_scale_2", "nvfp4 that nothing describes as such (comfy_quant)"},
    {".qweight", "packed integers (qweight)"},
};

static const char *marked_form(const struct tensor_index *index, const struct index_entry *entry) {
    if (entry->used) return NULL;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(index_name(index, entry), marks[i].part)) return marks[i].form;
    return NULL;
}

/* Biases are never integers either; other types stand for other things where no weight is meant. */
static const char *typed_form(const struct index_entry *entry) {
    size_t n = strlen(entry->name);
    if (entry->dtype == DTYPE_I8 && !entry->quant_described && !entry->used)
        return "int8 that nothing describes (comfy_quant)";
    if (n < 7 || strcmp(entry->name + n - 7, ".weight")) return NULL;
    switch (entry->dtype) {
    case DTYPE_OTHER:
        return index_type_name(entry);
    case DTYPE_U8:
        return "4 or 8 packed bits that nothing describes (U8)";
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
            if (index_has(index, found)) form = pass ? typed_form(found) : marked_form(index, found);
        }
    if (!form && !index->quantised) return OK;
    error_set(e, UNSUPPORTED, "these weights are quantised in a form that is not read");
    error_where(e, "%s", index->sources[form ? found->source : 0].path);
    if (form)
        error_found(e, "%s: tensor '%s'", form, found->name);
    else
        error_found(e, "a quantisation of another program in the metadata");
    return error_expected(e, "%s", READABLE_WEIGHTS);
}
