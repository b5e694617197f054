#include "engine/cache/requantised.h"

#include "kernels/cpu/weights.h"
#include "loaders/quantise/quantise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REQUANTISED_TYPES "f8_e4m3, f8_e5m2, q8_0, q6_k, q5_k, q5_0, q4_k, q4_0, bf16, f16 or f32"

/* Weight values per second that one reader thread converts, measured (bench/LOG.md). */
#define ROUNDED_VALUES  1e8
#define SEARCHED_VALUES 5e7

enum status requantised_type(const char *name, bool converted, enum dtype *type, struct error *e) {
    *type = name ? quantise_type(name) : N_DTYPES;
    if (!name || (*type != N_DTYPES && (converted || !dtype_is_rotated(*type)))) return OK;
    return error_set(e, USAGE, "unknown weight type (--type)" FOUND "%s" EXPECTED "%s%s%s", name,
                     converted ? "int8_convrot, " : "", REQUANTISED_TYPES,
                     *type == N_DTYPES ? "" : " (this type needs a file written by `sluice convert`)");
}

/* Buffers for finding the largest absolute value of a weight tensor. */
struct scan {
    char stored[4 * READER_VALUES];
    float numbers[READER_VALUES];
};

void requantised_destroy(struct requantised *r) {
    for (int i = 0; i < SLOTS_MAX; i++)
        if (r->component[i].family) component_destroy(&r->component[i]);
    *r = (struct requantised){0};
}

enum status requantised_prepare(struct requantised *r, const struct sluice_model *model, enum dtype type,
                                struct error *e) {
    if (r->made && r->type == type) return OK;
    requantised_destroy(r);
    r->made = true;
    r->type = type;
    if (type == N_DTYPES) return OK;
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) {
        const struct family *family = model->component[i].family;
        if (family && !family_decodes(family) && family->kind != FAMILY_ENCODER)
            component_requantise(&model->component[i], type, &r->component[i], e);
    }
    if (e->code != OK) requantised_destroy(r);
    return e->code;
}

const struct component *requantised_component(const struct requantised *r, const struct sluice_model *model,
                                              int slot) {
    return r && r->component[slot].family ? &r->component[slot] : &model->component[slot];
}

uint64_t requantised_bytes(const struct requantised *r, int readers) {
    uint64_t bytes = 0;
    for (int i = 0; r && i < SLOTS_MAX; i++)
        if (r->component[i].family) bytes += component_layout_bytes(&r->component[i]);
    return bytes ? bytes + (uint64_t)readers * READER_WORK_BYTES + sizeof(struct scan) : 0;
}

static void stored_to_f32(float *numbers, const void *from, enum dtype dtype, float scale, int64_t values) {
    struct tensor stored = tensor_make((void *)(uintptr_t)from, dtype, 1, (int32_t[]){(int32_t)values});
    stored.scale = scale;
    weights_widen(numbers, &stored, 0, 1);
}

void requantised_convert(const struct packed_conversion *c, const void *from, float *numbers, void *to,
                         int64_t values) {
    stored_to_f32(numbers, from, c->from, c->from_scale, values);
    quantise_rows(c->to, c->to_scale, numbers, 1, values, to);
}

double requantised_seconds(enum dtype type, int64_t values) {
    bool searches = dtype_block_values(type) == 256;
    return (double)values / (searches ? SEARCHED_VALUES : ROUNDED_VALUES);
}

struct scaling {
    bool (*tick)(void *user, struct error *e);
    void *user;
    struct scan *scan;
};

static enum status scan_entry(const struct component *c, const struct index_entry *entry, struct scan *scan,
                              float *most, struct error *e) {
    int64_t n = index_elements(entry);
    *most = 0;
    for (int64_t at = 0; at < n && e->code == OK; at += READER_VALUES) {
        int64_t values = n - at < READER_VALUES ? n - at : READER_VALUES;
        if (source_read(&c->index.sources[entry->source], scan->stored,
                        (uint64_t)dtype_bytes(entry->dtype, values),
                        entry->offset + (uint64_t)dtype_bytes(entry->dtype, at), e) != OK)
            break;
        stored_to_f32(scan->numbers, scan->stored, entry->dtype, entry->scale, values);
        for (int64_t i = 0; i < values; i++)
            if (fabsf(scan->numbers[i]) > *most) *most = fabsf(scan->numbers[i]);
    }
    return e->code;
}

static enum status scale_component(struct component *c, enum dtype type, const struct scaling *scaling,
                                   struct error *e) {
    for (int i = 0; i < c->index.n_entries && e->code == OK; i++) {
        const struct index_entry *entry = &c->index.entries[i];
        float most;
        if (requantise_of_entry(c, entry) != type || !scaling->tick(scaling->user, e)) continue;
        if (scan_entry(c, entry, scaling->scan, &most, e) == OK)
            requantise_set_scale(c, entry, quantise_scale(type, most));
    }
    return e->code;
}

enum status requantised_scale(struct requantised *r, struct sys *sys, int slot,
                              bool (*tick)(void *user, struct error *e), void *user, struct error *e) {
    bool scales = r->type == DTYPE_F8_E4M3 || r->type == DTYPE_F8_E5M2;
    if (!scales || r->scaled[slot] || !r->component[slot].family) return OK;
    struct scaling scaling = {tick, user, sys->alloc(sys, LINE_HOST, sizeof *scaling.scan)};
    if (!scaling.scan) return error_set(e, MEMORY, "no memory to scan weights for their scale");
    scale_component(&r->component[slot], r->type, &scaling, e);
    sys->release(sys, scaling.scan);
    r->scaled[slot] = e->code == OK;
    return e->code;
}
