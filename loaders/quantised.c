/* Pairs quantised weights with their scales: see quantised.h. Three generations of files exist. The oldest
 * mark a component with a tensor `scaled_fp8` and have `scale_weight` next to every weight. Later files have
 * `weight_scale` and a description of each layer, in a tensor `comfy_quant`, or for all layers in the file's
 * metadata. Descriptions are read first, because integer weights have no meaning without a description. */
#include "loaders/quantised.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/half.h"
#include "engine/base/text.h"
#include "loaders/loaders.h"

enum { NAME_BYTES = LOADER_NAME_MAX + 64, TILE_ROWS = 128, TILE_BLOCKS = 4, ROTATION_COLUMNS = 256 };

struct pairing {
    struct tensor_index *index;
    struct index_entry *weight;
    const struct quantised_format *form;
    int layer_bytes; /* length of the weight's name without ".weight" */
};

static const char *path_of(const struct pairing *p, const struct index_entry *entry) {
    return p->index->sources[entry->source].path;
}

static struct index_entry *sibling(const struct pairing *p, const char *name) {
    char whole[NAME_BYTES];
    snprintf(whole, sizeof whole, "%.*s.%s", p->layer_bytes, p->weight->name, name);
    return index_find(p->index, whole);
}

/* Sets an error "tensor 'NAME' WHAT" with the entry's file and byte. what: printf format, may end in FOUND
 * and EXPECTED parts (error_set). */
#define fail(e, code, p, entry, what, ...)                                                                   \
    error_set(e, code, "tensor '%s' " what WHERE "%s, byte %" PRIu64, (entry)->name, ##__VA_ARGS__,          \
              path_of(p, entry), (entry)->offset)

static enum status fail_shape(const struct pairing *p, const struct index_entry *entry, const char *expected,
                              struct error *e) {
    char found[128];
    size_t n = (size_t)snprintf(found, sizeof found, "%s [", index_type_name(entry));
    for (int i = 0; i < entry->rank && n < sizeof found; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, i ? ", %" PRId32 : "%" PRId32, entry->dim[i]);
    if (n < sizeof found) snprintf(found + n, sizeof found - n, "]");
    return fail(e, SHAPE, p, entry, "has the wrong shape" FOUND "%s" EXPECTED "%s", found, expected);
}

static enum status fail_missing(const struct pairing *p, const char *name, struct error *e) {
    return error_set(e, MISSING, "tensor '%.*s.%s' is missing" WHERE "%s" EXPECTED "the scale of '%s'",
                     p->layer_bytes, p->weight->name, name, path_of(p, p->weight), p->weight->name);
}

static bool is_single(const struct index_entry *entry) {
    for (int i = 0; i < entry->rank; i++)
        if (entry->dim[i] != 1) return false;
    return true;
}

/* Reads the scale of a whole weight when the file is opened, because the tensor descriptor contains the
 * scale. */
static enum status read_scale(struct pairing *p, struct index_entry *scale, struct error *e) {
    unsigned char b[4] = {0};
    if (scale->dtype != DTYPE_F32 && scale->dtype != DTYPE_F16 && scale->dtype != DTYPE_BF16)
        return fail(e, META, p, scale, "is not a valid scale" FOUND "%s" EXPECTED "F32, F16 or BF16",
                    index_type_name(scale));
    if (source_read(&p->index->sources[scale->source], b, scale->bytes, scale->offset, e) != OK)
        return e->code;
    uint32_t bits = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    float value = half_f16_f32((uint16_t)bits);
    if (scale->dtype == DTYPE_BF16) bits <<= 16;
    if (scale->dtype != DTYPE_F16) memcpy(&value, &bits, sizeof value);
    if (!isfinite(value))
        return fail(e, META, p, scale, "is not a valid scale" FOUND "%g" EXPECTED "a finite number",
                    (double)value);
    p->weight->scale = value;
    scale->used = scale->is_quant_metadata = true;
    return OK;
}

static void take_scales(struct pairing *p, struct index_entry *scale) {
    p->weight->scales = (struct index_scales){scale->source, scale->offset, scale->bytes};
    scale->used = scale->is_quant_metadata = true;
}

/* Checks that row scales, which stream with the weights, are finite: a NaN would spoil the image silently. */
static enum status check_rows(struct pairing *p, const struct index_entry *scale, struct error *e) {
    float some[256];
    if (scale->dtype != DTYPE_F32)
        return fail(e, META, p, scale, "is not a valid row scale" FOUND "%s" EXPECTED "F32",
                    index_type_name(scale));
    for (uint64_t at = 0; at < scale->bytes && e->code == OK; at += sizeof some) {
        uint64_t bytes = scale->bytes - at < sizeof some ? scale->bytes - at : sizeof some;
        source_read(&p->index->sources[scale->source], some, bytes, scale->offset + at, e);
        for (size_t i = 0; i < bytes / sizeof *some && e->code == OK; i++) {
            if (isfinite(some[i])) continue;
            fail(e, META, p, scale,
                 "is not a valid row scale" FOUND "%g in row %" PRIu64 EXPECTED "finite numbers",
                 (double)some[i], at / sizeof *some + i);
        }
    }
    return e->code;
}

/* Accepts one scale for the weight, or one per row: shape [rows, 1], or for int8 weights also [rows], as some
 * programs write. */
static enum status pair_scale(struct pairing *p, struct index_entry *scale, struct error *e) {
    const struct index_entry *w = p->weight;
    if (is_single(scale)) return read_scale(p, scale, e);
    bool column = scale->rank == 2 && scale->dim[1] == 1, list = scale->rank == 1 && w->dtype == DTYPE_I8;
    if (w->rank == 2 && (column || list) && scale->dim[0] == w->dim[0]) {
        take_scales(p, scale);
        return check_rows(p, scale, e);
    }
    char expected[64];
    snprintf(expected, sizeof expected, "a single value, or F32 [%" PRId32 ", 1]",
             w->rank == 2 ? w->dim[0] : 1);
    return fail_shape(p, scale, w->rank == 2 ? expected : "a single value", e);
}

/* Checks that the weight is stored with the element type that the layer's description requires. */
static enum status check_stored(const struct pairing *p, struct error *e) {
    if (p->weight->dtype == p->form->stored) return OK;
    return fail(e, META, p, p->weight,
                "does not have the type that its quantisation description names" FOUND "%s" EXPECTED
                "%s for %s",
                index_type_name(p->weight), dtype_name(p->form->stored), p->form->name);
}

static enum status pair_single(struct pairing *p, struct index_entry *scale, struct error *e) {
    if (check_stored(p, e) != OK) return e->code;
    return scale ? pair_scale(p, scale, e) : fail_missing(p, "weight_scale", e);
}

/* Pairs a tiled weight (NVFP4, MXFP8) with its scales; w->dim[1] becomes values instead of bytes. The scales
 * are in tiles of 128 rows by 4 blocks, whatever shape and eight-bit type the file declares. */
static enum status pair_tiled(struct pairing *p, struct index_entry *scale, enum dtype dtype,
                              struct error *e) {
    struct index_entry *w = p->weight;
    char expected[64];
    int packed = dtype == DTYPE_NVFP4_TILED ? 2 : 1, values = dtype_tiled_values(dtype);
    if (check_stored(p, e) != OK) return e->code;
    if (w->rank != 2 || w->dim[0] % 16 || w->dim[1] > INT32_MAX / packed || w->dim[1] * packed % values) {
        snprintf(expected, sizeof expected, "rows a multiple of 16, columns a multiple of %d bytes",
                 values / packed);
        return fail_shape(p, w, expected, e);
    }
    if (!scale) return fail_missing(p, "weight_scale", e);
    w->dtype = dtype;
    w->dim[1] *= packed;
    int64_t rows = ((int64_t)w->dim[0] + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    int64_t blocks = (w->dim[1] / values + TILE_BLOCKS - 1) / TILE_BLOCKS * TILE_BLOCKS;
    if (scale->rank == 2 && scale->dim[0] == rows && scale->dim[1] == blocks &&
        scale->bytes == (uint64_t)(rows * blocks)) {
        take_scales(p, scale);
        return OK;
    }
    snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "] of one byte", rows, blocks);
    return fail_shape(p, scale, expected, e);
}

/* Pairs int8 weights with rotated groups of columns (ConvRot). */
static enum status pair_rotated(struct pairing *p, struct index_entry *scale, struct error *e) {
    static const enum dtype types[] = {DTYPE_I8_ROT16, DTYPE_I8_ROT64, DTYPE_I8_ROT256};
    struct index_entry *w = p->weight;
    int64_t group = p->form->group ? p->form->group : ROTATION_COLUMNS, left = group;
    int64_t columns = w->rank == 2 ? w->dim[1] : 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (dtype_block_values(types[i]) != group || columns % group) continue;
        if (pair_single(p, scale, e) == OK) w->dtype = types[i];
        return e->code;
    }
    while (left > 1 && left % 4 == 0) left /= 4;
    bool possible = group >= 4 && left == 1 && columns % group == 0;
    return fail(e, possible ? UNSUPPORTED : META, p, w,
                "%s" FOUND "groups of %" PRId64 " for %" PRId64 " columns" EXPECTED "%s",
                possible ? "is rotated in groups of an unsupported size"
                         : "has an invalid rotation group size",
                group, columns, possible ? "16, 64 or 256" : "a power of 4 that divides a matrix's columns");
}

static enum status pair_described(struct pairing *p, struct index_entry *scale, struct error *e) {
    p->weight->quant_described = true;
    if (p->form->rotated) return pair_rotated(p, scale, e);
    if (p->form->kind == QUANTISED_MXFP8) return pair_tiled(p, scale, DTYPE_MXFP8_TILED, e);
    if (p->form->kind != QUANTISED_NVFP4) return pair_single(p, scale, e);
    struct index_entry *second = sibling(p, "weight_scale_2");
    if (pair_tiled(p, scale, DTYPE_NVFP4_TILED, e) != OK) return e->code;
    if (!second) return fail_missing(p, "weight_scale_2", e);
    return is_single(second) ? read_scale(p, second, e) : fail_shape(p, second, "a single value", e);
}

/* Pairs a weight without a description. In the oldest files a tensor `scaled_fp8` requires a scale: at any
 * prefix of the weight's name, or at the top level. */
static enum status pair_plain(struct pairing *p, struct index_entry *scale, struct error *e) {
    const struct index_entry *w = p->weight;
    bool fp8 = w->dtype == DTYPE_F8_E4M3 || w->dtype == DTYPE_F8_E5M2;
    bool packed = w->dtype == DTYPE_I8 || w->dtype == DTYPE_U8 || w->dtype == DTYPE_OTHER;
    if (fp8 && scale) return pair_scale(p, scale, e);
    for (int n = p->layer_bytes; fp8 && w->rank > 1 && n >= 0; n--) {
        char name[NAME_BYTES];
        if (n && w->name[n - 1] != '.') continue;
        snprintf(name, sizeof name, "%.*sscaled_fp8", n, w->name);
        if (index_find(p->index, name)) return fail_missing(p, "scale_weight", e);
    }
    if (fp8 || packed || !scale) return OK;
    return fail(e, META, p, scale,
                "is the scale of a weight that is not quantised" FOUND "'%s' of %s" EXPECTED
                "F8_E4M3 or F8_E5M2",
                w->name, index_type_name(w));
}

static enum status pair_weight(struct tensor_index *index, int i, const struct quantised_format *form,
                               struct error *e) {
    static const char *const input_scales[] = {"input_scale", "scale_input"};
    struct index_entry *entry = &index->entries[i];
    struct pairing p = {index, entry, form, (int)strlen(entry->name) - (int)strlen(".weight")};
    if (!ends_with(entry->name, ".weight")) return OK;
    struct index_entry *scale = sibling(&p, "weight_scale"), *old = sibling(&p, "scale_weight");
    if (scale && old) return fail(e, DUP, &p, old, "is a duplicate scale" FOUND "also '%s'", scale->name);
    if (!scale) scale = old;
    form->kind ? pair_described(&p, scale, e) : pair_plain(&p, scale, e);
    /* Ignores scales of the layer's input: they are for eight-bit products, which the engine does not compute
     * from these files. */
    for (size_t k = 0; k < sizeof input_scales / sizeof *input_scales; k++) {
        struct index_entry *input = sibling(&p, input_scales[k]);
        if (input && dtype_is_quantised(entry->dtype)) input->used = input->is_quant_metadata = true;
    }
    return e->code;
}

enum status quantised_pair(struct tensor_index *index, struct error *e) {
    static const char *const ends[] = {".comfy_quant", ".comfy_attention.config", ".scaled_fp8"};
    struct sys *sys = index->sys;
    struct quantised_format *forms =
        sys_new(sys, (size_t)index->n_entries, sizeof *forms, "the quantisation formats of the tensors", e);
    if (!forms) return e->code;
    quantised_read_formats(index, forms, e);
    for (int i = 0; i < index->n_entries && e->code == OK; i++) pair_weight(index, i, &forms[i], e);
    for (int i = 0; i < index->n_entries && e->code == OK; i++) {
        /* Marks as used the tensors that only describe other tensors. */
        struct index_entry *entry = &index->entries[i];
        bool marker = !strcmp(entry->name, "scaled_fp8");
        for (size_t k = 0; k < sizeof ends / sizeof *ends && !marker; k++)
            marker = ends_with(entry->name, ends[k]);
        if (marker) entry->used = entry->is_quant_metadata = true;
    }
    sys->release(sys, forms);
    if (index->quantisation) index->host_bytes -= index->quantisation_bytes;
    sys->release(sys, index->quantisation);
    index->quantisation = NULL;
    index->quantisation_bytes = 0;
    return e->code;
}

/* Quantisation formats, and parts of tensor names that identify each format. The most specific parts come
 * first. */
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
            if (!index_contains(index, found)) continue;
            if (pass) form = format_by_type(found);
            for (size_t k = 0; k < sizeof signatures / sizeof *signatures && !pass && !form; k++)
                if (!found->used && strstr(index_name(index, found), signatures[k].part))
                    form = signatures[k].form;
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
