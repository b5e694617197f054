/* Pairs quantised weights with their scales: see quantised.h. Three generations of files exist. The oldest
 * mark a component with a tensor `scaled_fp8` and have `scale_weight` next to every weight. Later files have
 * `weight_scale` and a description of each layer, in a tensor `comfy_quant`, or for all layers in the file's
 * metadata. Descriptions are read first, because integer weights have no meaning without a description. */
#include "loaders/quantised.h"

#include "loaders/json.h"
#include "loaders/loaders.h"
#include "loaders/quantised_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/half.h"
#include "engine/base/text.h"

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

static struct index_entry *quantised_sibling(const struct pairing *p, const char *name) {
    char whole[NAME_BYTES];
    snprintf(whole, sizeof whole, "%.*s.%s", p->layer_bytes, p->weight->name, name);
    return index_find(p->index, whole);
}

static enum status quantised_fail(const struct pairing *p, const struct index_entry *entry, enum status code,
                                  const char *what, struct error *e) {
    return error_set(e, code, "tensor '%s' %s" WHERE "%s, byte %" PRIu64, entry->name, what,
                     path_of(p, entry), entry->offset);
}

static void quantised_print_shape(const struct index_entry *entry, char *out, size_t bytes) {
    size_t n = (size_t)snprintf(out, bytes, "%s [", index_type_name(entry));
    for (int i = 0; i < entry->rank && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, i ? ", %" PRId32 : "%" PRId32, entry->dim[i]);
    if (n < bytes) snprintf(out + n, bytes - n, "]");
}

static enum status fail_shape(const struct pairing *p, const struct index_entry *entry, const char *expected,
                              struct error *e) {
    char found[128];
    quantised_print_shape(entry, found, sizeof found);
    quantised_fail(p, entry, SHAPE, "has the wrong shape", e);
    error_found(e, "%s", found);
    return error_expected(e, "%s", expected);
}

static enum status fail_missing(const struct pairing *p, const char *name, struct error *e) {
    return error_set(e, MISSING, "tensor '%.*s.%s' is missing" WHERE "%s" EXPECTED "the scale of '%s'",
                     p->layer_bytes, p->weight->name, name, path_of(p, p->weight), p->weight->name);
}

static struct index_entry *find_scale(const struct pairing *p, struct error *e) {
    struct index_entry *scale = quantised_sibling(p, "weight_scale"),
                       *old = quantised_sibling(p, "scale_weight");
    if (!scale || !old) return scale ? scale : old;
    quantised_fail(p, old, DUP, "is a duplicate scale", e);
    error_found(e, "also '%s'", scale->name);
    return NULL;
}

static bool is_single(const struct index_entry *entry) {
    for (int i = 0; i < entry->rank; i++)
        if (entry->dim[i] != 1) return false;
    return true;
}

static float decode_scale(enum dtype dtype, uint32_t bits) {
    float value;
    if (dtype == DTYPE_F16) return half_f16_f32((uint16_t)bits);
    if (dtype == DTYPE_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Reads the scale of a whole weight when the file is opened, because the tensor descriptor contains the
 * scale. */
static enum status read_scale(struct pairing *p, struct index_entry *scale, struct error *e) {
    unsigned char bytes[4] = {0};
    if (scale->dtype != DTYPE_F32 && scale->dtype != DTYPE_F16 && scale->dtype != DTYPE_BF16) {
        quantised_fail(p, scale, META, "is not a valid scale", e);
        error_found(e, "%s", index_type_name(scale));
        return error_expected(e, "F32, F16 or BF16");
    }
    if (source_read(&p->index->sources[scale->source], bytes, scale->bytes, scale->offset, e) != OK)
        return e->code;
    uint32_t bits =
        (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    float value = decode_scale(scale->dtype, bits);
    if (!isfinite(value)) {
        quantised_fail(p, scale, META, "is not a valid scale", e);
        error_found(e, "%g", (double)value);
        return error_expected(e, "a finite number");
    }
    p->weight->scale = value;
    scale->used = scale->is_quant_metadata = true;
    return OK;
}

static void take_scales(struct pairing *p, struct index_entry *scale) {
    p->weight->scales = (struct index_scales){scale->source, scale->offset, scale->bytes};
    scale->used = scale->is_quant_metadata = true;
}

/* Checks that row scales, which stream with the weights, are finite: a NaN would spoil the image silently. */
static enum status quantised_check_rows(struct pairing *p, const struct index_entry *scale, struct error *e) {
    float some[256];
    if (scale->dtype != DTYPE_F32) {
        quantised_fail(p, scale, META, "is not a valid row scale", e);
        error_found(e, "%s", index_type_name(scale));
        return error_expected(e, "F32");
    }
    for (uint64_t at = 0; at < scale->bytes && e->code == OK; at += sizeof some) {
        uint64_t bytes = scale->bytes - at < sizeof some ? scale->bytes - at : sizeof some;
        source_read(&p->index->sources[scale->source], some, bytes, scale->offset + at, e);
        for (size_t i = 0; i < bytes / sizeof *some && e->code == OK; i++) {
            if (isfinite(some[i])) continue;
            quantised_fail(p, scale, META, "is not a valid row scale", e);
            error_found(e, "%g in row %" PRIu64, (double)some[i], at / sizeof *some + i);
            error_expected(e, "finite numbers");
        }
    }
    return e->code;
}

/* True if a scale tensor has one scale per row of the weight: shape [rows, 1], or for int8 weights also
 * [rows], as some programs write. */
static bool is_of_rows(const struct index_entry *scale, const struct index_entry *w) {
    bool column = scale->rank == 2 && scale->dim[1] == 1, list = scale->rank == 1 && w->dtype == DTYPE_I8;
    return w->rank == 2 && (column || list) && scale->dim[0] == w->dim[0];
}

/* Accepts one scale for the weight, or one per row. */
static enum status pair_scale(struct pairing *p, struct index_entry *scale, struct error *e) {
    const struct index_entry *w = p->weight;
    if (is_single(scale)) return read_scale(p, scale, e);
    if (is_of_rows(scale, w)) {
        take_scales(p, scale);
        return quantised_check_rows(p, scale, e);
    }
    char expected[64];
    snprintf(expected, sizeof expected, "a single value, or F32 [%" PRId32 ", 1]",
             w->rank == 2 ? w->dim[0] : 1);
    return fail_shape(p, scale, w->rank == 2 ? expected : "a single value", e);
}

/* Accepts scales in tiles of 128 rows by 4 blocks, whatever shape and eight-bit type the file declares. */
static enum status pair_tiles(struct pairing *p, struct index_entry *scale, struct error *e) {
    int values = dtype_tiled_values(p->weight->dtype);
    int64_t rows = ((int64_t)p->weight->dim[0] + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    int64_t blocks = (p->weight->dim[1] / values + TILE_BLOCKS - 1) / TILE_BLOCKS * TILE_BLOCKS;
    if (scale->rank == 2 && scale->dim[0] == rows && scale->dim[1] == blocks &&
        scale->bytes == (uint64_t)(rows * blocks)) {
        take_scales(p, scale);
        return OK;
    }
    char expected[64];
    snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "] of one byte", rows, blocks);
    return fail_shape(p, scale, expected, e);
}

/* Checks that the weight is stored with the element type that the layer's description requires. */
static enum status check_stored(const struct pairing *p, enum dtype stored, struct error *e) {
    if (p->weight->dtype == stored) return OK;
    quantised_fail(p, p->weight, META, "does not have the type that its quantisation description names", e);
    error_found(e, "%s", index_type_name(p->weight));
    return error_expected(e, "%s for %s", dtype_name(stored), p->form->name);
}

static enum status pair_single(struct pairing *p, struct index_entry *scale, struct error *e) {
    if (check_stored(p, p->form->stored, e) != OK) return e->code;
    return scale ? pair_scale(p, scale, e) : fail_missing(p, "weight_scale", e);
}

/* Pairs a tiled weight (NVFP4, MXFP8) with its scales; w->dim[1] becomes values instead of bytes. */
static enum status pair_tiled(struct pairing *p, struct index_entry *scale, enum dtype dtype,
                              struct error *e) {
    struct index_entry *w = p->weight;
    int packed = dtype == DTYPE_NVFP4_TILED ? 2 : 1, values = dtype_tiled_values(dtype);
    if (check_stored(p, p->form->stored, e) != OK) return e->code;
    if (w->rank != 2 || w->dim[0] % 16 || w->dim[1] > INT32_MAX / packed || w->dim[1] * packed % values) {
        char expected[64];
        snprintf(expected, sizeof expected, "rows a multiple of 16, columns a multiple of %d bytes",
                 values / packed);
        return fail_shape(p, w, expected, e);
    }
    if (!scale) return fail_missing(p, "weight_scale", e);
    w->dtype = dtype;
    w->dim[1] *= packed;
    return pair_tiles(p, scale, e);
}

static enum status pair_nvfp4(struct pairing *p, struct index_entry *scale, struct error *e) {
    struct index_entry *second = quantised_sibling(p, "weight_scale_2");
    if (pair_tiled(p, scale, DTYPE_NVFP4_TILED, e) != OK) return e->code;
    if (!second) return fail_missing(p, "weight_scale_2", e);
    return is_single(second) ? read_scale(p, second, e) : fail_shape(p, second, "a single value", e);
}

static bool is_power_of_4(int64_t n) {
    while (n > 1 && n % 4 == 0) n /= 4;
    return n == 1;
}

static enum status refuse_group(const struct pairing *p, int64_t group, int64_t columns, struct error *e) {
    bool possible = group >= 4 && is_power_of_4(group) && columns % group == 0;
    quantised_fail(
        p, p->weight, possible ? UNSUPPORTED : META,
        possible ? "is rotated in groups of an unsupported size" : "has an invalid rotation group size", e);
    error_found(e, "groups of %" PRId64 " for %" PRId64 " columns", group, columns);
    return error_expected(e, possible ? "16, 64 or 256" : "a power of 4 that divides a matrix's columns");
}

/* Pairs int8 weights with rotated groups of columns (ConvRot). */
static enum status pair_rotated(struct pairing *p, struct index_entry *scale, struct error *e) {
    static const enum dtype types[] = {DTYPE_I8_ROT16, DTYPE_I8_ROT64, DTYPE_I8_ROT256};
    struct index_entry *w = p->weight;
    int64_t group = p->form->group ? p->form->group : ROTATION_COLUMNS;
    int64_t columns = w->rank == 2 ? w->dim[1] : 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (dtype_block_values(types[i]) != group || columns % group) continue;
        if (pair_single(p, scale, e) == OK) w->dtype = types[i];
        return e->code;
    }
    return refuse_group(p, group, columns, e);
}

static enum status pair_described(struct pairing *p, struct index_entry *scale, struct error *e) {
    p->weight->quant_described = true;
    if (p->form->rotated) return pair_rotated(p, scale, e);
    switch (p->form->kind) {
    case QUANTISED_NVFP4:
        return pair_nvfp4(p, scale, e);
    case QUANTISED_MXFP8:
        return pair_tiled(p, scale, DTYPE_MXFP8_TILED, e);
    default:
        return pair_single(p, scale, e);
    }
}

/* True if a tensor `scaled_fp8` marks the weight: at any prefix of its name, or at the top level. */
static bool is_marked_scaled_fp8(const struct pairing *p) {
    char name[NAME_BYTES];
    for (int n = p->layer_bytes; n >= 0; n--) {
        if (n && p->weight->name[n - 1] != '.') continue;
        snprintf(name, sizeof name, "%.*sscaled_fp8", n, p->weight->name);
        if (index_find(p->index, name)) return true;
    }
    return false;
}

static enum status pair_plain(struct pairing *p, struct index_entry *scale, struct error *e) {
    const struct index_entry *w = p->weight;
    bool fp8 = w->dtype == DTYPE_F8_E4M3 || w->dtype == DTYPE_F8_E5M2;
    if (fp8 && scale) return pair_scale(p, scale, e);
    if (fp8 && w->rank > 1 && is_marked_scaled_fp8(p)) return fail_missing(p, "scale_weight", e);
    bool packed = w->dtype == DTYPE_I8 || w->dtype == DTYPE_U8 || w->dtype == DTYPE_OTHER;
    if (fp8 || packed || !scale) return OK;
    quantised_fail(p, scale, META, "is the scale of a weight that is not quantised", e);
    error_found(e, "'%s' of %s", w->name, index_type_name(w));
    return error_expected(e, "F8_E4M3 or F8_E5M2");
}

/* Marks scales of a layer's input as used and ignores them: they are for eight-bit products, which the engine
 * does not compute from these files. */
static void drop_input_scales(const struct pairing *p) {
    static const char *const names[] = {"input_scale", "scale_input"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct index_entry *scale = quantised_sibling(p, names[i]);
        if (scale && dtype_is_quantised(p->weight->dtype)) scale->used = scale->is_quant_metadata = true;
    }
}

static enum status pair_weight(struct tensor_index *index, int i, const struct quantised_format *form,
                               struct error *e) {
    struct index_entry *entry = &index->entries[i];
    struct pairing p = {index, entry, form, (int)strlen(entry->name) - (int)strlen(".weight")};
    if (!ends_with(entry->name, ".weight")) return OK;
    struct index_entry *scale = find_scale(&p, e);
    if (e->code != OK) return e->code;
    if (form->kind)
        pair_described(&p, scale, e);
    else
        pair_plain(&p, scale, e);
    drop_input_scales(&p);
    return e->code;
}

/* Marks tensors that only describe other tensors as used. */
static void mark_markers_used(struct tensor_index *index) {
    static const char *const ends[] = {".comfy_quant", ".comfy_attention.config", ".scaled_fp8"};
    for (int i = 0; i < index->n_entries; i++) {
        struct index_entry *entry = &index->entries[i];
        bool marker = !strcmp(entry->name, "scaled_fp8");
        for (size_t k = 0; k < sizeof ends / sizeof *ends && !marker; k++)
            marker = ends_with(entry->name, ends[k]);
        if (marker) entry->used = entry->is_quant_metadata = true;
    }
}

enum status quantised_pair(struct tensor_index *index, struct error *e) {
    struct sys *sys = index->sys;
    uint64_t bytes = ((uint64_t)index->n_entries + 1) * sizeof(struct quantised_format);
    struct quantised_format *forms = sys->alloc(sys, LINE_HOST, bytes);
    if (!forms) {
        return error_set(e, MEMORY, "no memory for the quantisation formats of %d tensors" WHERE "%s",
                         index->n_entries, index->n_sources ? index->sources[0].path : "no file");
    }
    memset(forms, 0, bytes);
    quantised_read_formats(index, forms, e);
    for (int i = 0; i < index->n_entries && e->code == OK; i++) pair_weight(index, i, &forms[i], e);
    if (e->code == OK) mark_markers_used(index);
    sys->release(sys, forms);
    if (index->quantisation) index->host_bytes -= index->quantisation_bytes;
    sys->release(sys, index->quantisation);
    index->quantisation = NULL;
    index->quantisation_bytes = 0;
    return e->code;
}
