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
enum { I4_LEVELS = 16, I4_GROUP = 16 }; /* levels of a w4a8 codebook; values that share a scale */

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

/* Finds a tensor of the weight's layer. Fails with MISSING. */
static enum status find_sibling(const struct pairing *p, const char *name, struct index_entry **to,
                                struct error *e) {
    *to = sibling(p, name);
    return *to ? OK : fail_missing(p, name, e);
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

/* Adds a section to the weight's scales. rows: weight rows per step of the section (1, or TILE_ROWS for
 * tiles); 0: the section belongs to all rows. */
static void take_scales(struct pairing *p, struct index_entry *scale, int32_t rows) {
    index_add_scales(p->weight, scale, rows);
    scale->used = scale->is_quant_metadata = true;
}

/* Checks scales that stream with the weights: their type, and that all are finite, because a NaN would spoil
 * the image silently. what, place: for messages, such as "row scale" and "row". */
static enum status check_finite(struct pairing *p, const struct index_entry *scale, enum dtype dtype,
                                const char *what, const char *place, struct error *e) {
    enum { AT_ONCE = 256 };
    float some[AT_ONCE];
    if (scale->dtype != dtype)
        return fail(e, META, p, scale, "is not a valid %s" FOUND "%s" EXPECTED "%s", what,
                    index_type_name(scale), dtype_name(dtype));
    int64_t all = index_elements(scale);
    for (int64_t at = 0; at < all && e->code == OK; at += AT_ONCE) {
        int64_t n = all - at < AT_ONCE ? all - at : AT_ONCE;
        source_read_values(&p->index->sources[scale->source], scale->offset, dtype, at, n, some, e);
        for (int64_t i = 0; i < n && e->code == OK; i++) {
            if (isfinite(some[i])) continue;
            fail(e, META, p, scale, "is not a valid %s" FOUND "%g in %s %" PRId64 EXPECTED "finite numbers",
                 what, (double)some[i], place, at + i);
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
        take_scales(p, scale, 1);
        return check_finite(p, scale, DTYPE_F32, "row scale", "row", e);
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

/* Checks the factors of a weight's columns (AWQ) and adds them to the weight's scales. */
static enum status take_factors(struct pairing *p, struct index_entry *factors, struct error *e) {
    char expected[64];
    snprintf(expected, sizeof expected, "BF16 [%" PRId32 "]", p->weight->dim[1]);
    if (factors->dtype != DTYPE_BF16 || factors->rank != 1 || factors->dim[0] != p->weight->dim[1])
        return fail_shape(p, factors, expected, e);
    take_scales(p, factors, 0);
    return check_finite(p, factors, DTYPE_BF16, "factor of columns", "column", e);
}

/* Pairs a tiled weight (NVFP4, MXFP8) with its scales; w->dim[1] becomes values instead of bytes. The scales
 * are in tiles of 128 rows by 4 blocks, whatever shape and eight-bit type the file declares. factors: factors
 * of the columns of NVFP4_AWQ; else NULL. */
static enum status pair_tiled(struct pairing *p, struct index_entry *scale, enum dtype dtype,
                              struct index_entry *factors, struct error *e) {
    struct index_entry *w = p->weight;
    char expected[64];
    int packed = dtype == DTYPE_MXFP8_TILED ? 1 : 2, values = dtype_tiled_values(dtype);
    if (check_stored(p, e) != OK) return e->code;
    if (w->rank != 2 || w->dim[0] % 16 || w->dim[1] > INT32_MAX / packed || w->dim[1] * packed % values) {
        snprintf(expected, sizeof expected, "rows a multiple of 16, columns a multiple of %d bytes",
                 values / packed);
        return fail_shape(p, w, expected, e);
    }
    if (!scale) return fail_missing(p, "weight_scale", e);
    w->dtype = dtype;
    w->dim[1] *= packed;
    if (factors && take_factors(p, factors, e) != OK) return e->code;
    int64_t rows = ((int64_t)w->dim[0] + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    int64_t blocks = (w->dim[1] / values + TILE_BLOCKS - 1) / TILE_BLOCKS * TILE_BLOCKS;
    if (scale->rank == 2 && scale->dim[0] == rows && scale->dim[1] == blocks &&
        scale->bytes == (uint64_t)(rows * blocks)) {
        take_scales(p, scale, TILE_ROWS);
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

/* Checks shape and type of one tensor of a w4a8 weight's scales. columns 0: an F32 vector; else a matrix of
 * bytes. */
static enum status check_i4_scales(const struct pairing *p, const struct index_entry *scale, int32_t rows,
                                   int32_t columns, struct error *e) {
    char expected[64];
    bool bytes = scale->dtype == DTYPE_F8_E4M3 || scale->dtype == DTYPE_U8;
    bool fits = columns ? scale->rank == 2 && scale->dim[1] == columns && bytes
                        : scale->rank == 1 && scale->dtype == DTYPE_F32;
    if (fits && scale->dim[0] == rows) return OK;
    if (columns)
        snprintf(expected, sizeof expected, "F8_E4M3 [%" PRId32 ", %" PRId32 "]", rows, columns);
    else
        snprintf(expected, sizeof expected, "F32 [%" PRId32 "]", rows);
    return fail_shape(p, scale, expected, e);
}

/* Rejects forms of w4a8 that comfy-kitchen supports but published files do not use: other group sizes, six
 * bits, a correction per group. */
static enum status check_i4_form(const struct pairing *p, struct error *e) {
    const struct index_entry *w = p->weight, *groups = sibling(p, "weight_s_rel"),
                             *correction = sibling(p, "weight_correction");
    int64_t values = p->form->scaled_values ? p->form->scaled_values : I4_GROUP;
    int64_t group = p->form->group ? p->form->group : ROTATION_COLUMNS;
    if (values != I4_GROUP || group != ROTATION_COLUMNS)
        return fail(e, UNSUPPORTED, p, w,
                    "has unsupported groups" FOUND "group_size %" PRId64
                    ", convrot_groupsize %" PRId64 EXPECTED "group_size 16, convrot_groupsize 256",
                    values, group);
    if (correction)
        return fail(e, UNSUPPORTED, p, correction,
                    "belongs to an unsupported form of asym_w4a8_int8" EXPECTED "a codebook alone");
    if (groups && groups->rank == 2 && w->rank == 2 && (int64_t)groups->dim[1] * 12 == w->dim[1])
        return fail(e, UNSUPPORTED, p, w,
                    "is stored in an unsupported form of asym_w4a8_int8" FOUND "6 bits a value" EXPECTED
                    "4 bits a value");
    return OK;
}

/* Pairs a w4a8 weight with its levels, row scales and group scales; w->dim[1] becomes values instead of
 * bytes. */
static enum status pair_i4(struct pairing *p, struct error *e) {
    struct index_entry *w = p->weight, *groups, *rows, *levels;
    if (check_stored(p, e) != OK || check_i4_form(p, e) != OK) return e->code;
    if (w->rank != 2 || w->dim[1] > INT32_MAX / 2 || w->dim[1] % (ROTATION_COLUMNS / 2))
        return fail_shape(p, w, "a matrix, columns a multiple of 128 bytes (256 values)", e);
    if (find_sibling(p, "weight_s_rel", &groups, e) != OK ||
        find_sibling(p, "weight_s_channel", &rows, e) != OK ||
        find_sibling(p, "weight_codebook", &levels, e) != OK)
        return e->code;
    w->dtype = DTYPE_I4_ROT256;
    w->dim[1] *= 2;
    if (check_i4_scales(p, groups, w->dim[0], w->dim[1] / I4_GROUP, e) != OK ||
        check_i4_scales(p, rows, w->dim[0], 0, e) != OK || check_i4_scales(p, levels, I4_LEVELS, 0, e) != OK)
        return e->code;
    take_scales(p, levels, 0);
    take_scales(p, rows, 1);
    take_scales(p, groups, 1);
    if (check_finite(p, levels, DTYPE_F32, "codebook", "level", e) != OK) return e->code;
    return check_finite(p, rows, DTYPE_F32, "row scale", "row", e);
}

static enum status pair_described(struct pairing *p, struct index_entry *scale, struct error *e) {
    p->weight->quant_described = true;
    if (p->form->kind == QUANTISED_W4A8) return pair_i4(p, e);
    if (p->form->rotated) return pair_rotated(p, scale, e);
    if (p->form->kind == QUANTISED_MXFP8) return pair_tiled(p, scale, DTYPE_MXFP8_TILED, NULL, e);
    if (p->form->kind != QUANTISED_NVFP4) return pair_single(p, scale, e);
    struct index_entry *second, *factors = sibling(p, "pre_quant_scale");
    if (pair_tiled(p, scale, factors ? DTYPE_NVFP4_AWQ : DTYPE_NVFP4_TILED, factors, e) != OK) return e->code;
    if (find_sibling(p, "weight_scale_2", &second, e) != OK) return e->code;
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
