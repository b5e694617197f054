/* What is not read, by name: files of other kinds, and weights in forms that nothing here computes with. */
#include "loaders/foreign.h"

#include <stdio.h>
#include <string.h>

#include "loaders/loaders.h"

static const struct {
    const char *start;
    size_t bytes;
    const char *kind;
} foreign[] = {
    {"version ", 8, "a git-lfs pointer (run git lfs pull)"},
    {"PK\3\4", 4, "a zip or PyTorch pickle archive (.ckpt, .pt), which is not read"},
    {"\x80\x02", 2, "a PyTorch pickle (.ckpt, .pt), which is not read"},
    {"\x80\x03", 2, "a pickle, which is not read"},
    {"\x80\x04", 2, "a pickle, which is not read"},
    {"GGUF", 4, "a GGUF file"},
    {"<!DO", 4, "an HTML page"},
    {"<!do", 4, "an HTML page"},
    {"<htm", 4, "an HTML page"},
    {"<HTM", 4, "an HTML page"},
    {"<?xm", 4, "an XML document"},
    {"\x1f\x8b", 2, "a gzip archive"},
    {"\x89PNG", 4, "a PNG picture"},
    {"\x89HDF", 4, "an HDF5 file"},
};

const char *foreign_kind(const unsigned char first[FOREIGN_BYTES]) {
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (!memcmp(first, foreign[i].start, foreign[i].bytes)) return foreign[i].kind;
    /* JSON in full: a letter or white space in the length's top byte makes it larger than any file. */
    return first[0] == '{' && first[7] ? "a JSON document" : NULL;
}

enum status file_check_text(struct sys *sys, const char *path, const char *expected, struct error *e) {
    unsigned char first[FOREIGN_BYTES + 1] = {0};
    struct byte_source source;
    if (source_open(sys, path, &source, e) != OK) return e->code;
    uint64_t bytes = (uint64_t)source.identity.bytes;
    source_read(&source, first, bytes < sizeof first ? bytes : sizeof first, 0, e);
    source_close(&source);
    if (e->code != OK) return e->code;
    bool json = first[0] == '{' || first[0] == ' ' || first[0] == '\n';
    const char *kind = json ? NULL : foreign_kind(first);
    if (!kind && first[FOREIGN_BYTES] == '{' && !first[FOREIGN_BYTES - 1]) kind = "a safetensors file";
    if (!kind) return OK;
    error_set(e, BADMAGIC, "this file is of another kind");
    error_where(e, "%s, byte 0", path);
    error_found(e, "%s", kind);
    return error_expected(e, "%s", expected);
}

/* ---- quantised weights ---- */

/* How tensors beside a quantised weight are called, the most telling first. */
static const struct {
    const char *part, *form;
} marks[] = {
    {".comfy_quant", "a form named by ComfyUI's comfy_quant"},
    {"scaled_fp8", "fp8 with scales (scaled_fp8)"},
    {".quant_state.bitsandbytes__", "4 bits as bitsandbytes packs them"},
    {".absmax", "4 bits as bitsandbytes packs them"},
    {".weight_scale_2", "nvfp4"},
    {".wscales", "4 bits as SVDQuant packs them"},
    {".qweight", "packed integers (qweight)"},
};

static const char *marked_form(const struct tensor_index *index, const struct index_entry *entry) {
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(index_name(index, entry), marks[i].part)) return marks[i].form;
    return NULL;
}

static const char *typed_form(const struct index_entry *entry) {
    size_t n = strlen(entry->name);
    if (n < 7 || strcmp(entry->name + n - 7, ".weight")) return NULL;
    switch (entry->dtype) {
    case DTYPE_F8_E4M3:
        return "fp8 (F8_E4M3)";
    case DTYPE_F8_E5M2:
        return "fp8 (F8_E5M2)";
    case DTYPE_OTHER:
        return "a small floating-point type";
    case DTYPE_I8:
        return "int8";
    case DTYPE_U8:
        return "4 or 8 packed bits (U8)";
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
    error_set(e, UNSUPPORTED, "these weights are quantised, which is not read yet");
    error_where(e, "%s", index->sources[form ? found->source : 0].path);
    if (form)
        error_found(e, "%s: tensor '%s'", form, found->name);
    else
        error_found(e, "a quantisation in the metadata");
    return error_expected(e, "%s", READABLE_WEIGHTS);
}
