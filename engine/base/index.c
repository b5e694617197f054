/* Looks up tensors by name: implements index.h. */
#include "engine/base/index.h"

#include "engine/base/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int index_compare_names(const void *a, const void *b) {
    return strcmp(((const struct index_entry *)a)->name, ((const struct index_entry *)b)->name);
}

static int compare_name(const void *name, const void *entry) {
    return strcmp(name, ((const struct index_entry *)entry)->name);
}

enum { LOOKUP_NAME_MAX = 512 }; /* longest tensor name that families look up, prefix included */

struct tensor_index index_view(const struct tensor_index *whole, const char *prefix, int view) {
    struct tensor_index result = *whole;
    result.sys = NULL;
    result.host_bytes = 0;
    result.prefix = prefix;
    result.view = view;
    return result;
}

const char *index_prefix(const struct tensor_index *index) {
    return index->prefix ? index->prefix : "";
}

const char *index_name(const struct tensor_index *index, const struct index_entry *entry) {
    size_t n = strlen(index_prefix(index));
    return strncmp(entry->name, index_prefix(index), n) ? entry->name : entry->name + n;
}

const char *index_type_name(const struct index_entry *entry) {
    return entry->type_name ? entry->type_name : dtype_name(entry->dtype);
}

void index_add_scales(struct index_entry *entry, const struct index_entry *scales, int32_t rows) {
    entry->scales.section[entry->scales.n++] =
        (struct scale_section){scales->source, scales->offset, scales->bytes, rows};
    entry->scales.bytes += scales->bytes;
}

enum status index_read_scales(const struct tensor_index *index, const struct index_entry *entry, void *to,
                              struct error *e) {
    char *at = to;
    for (int i = 0; i < entry->scales.n && e->code == OK; i++) {
        const struct scale_section *section = &entry->scales.section[i];
        source_read(&index->sources[section->source], at, section->bytes, section->offset, e);
        at += section->bytes;
    }
    return e->code;
}

bool index_contains(const struct tensor_index *index, const struct index_entry *entry) {
    return entry->view == index->view;
}

struct index_entry *index_find(const struct tensor_index *index, const char *name) {
    char whole[LOOKUP_NAME_MAX];
    if (!index->n_entries) return NULL;
    if (index->prefix && snprintf(whole, sizeof whole, "%s%s", index->prefix, name) >= LOOKUP_NAME_MAX)
        return NULL;
    return bsearch(index->prefix ? whole : name, index->entries, (size_t)index->n_entries,
                   sizeof *index->entries, compare_name);
}

int index_last_block(const struct tensor_index *index, const char *prefix) {
    size_t n = strlen(prefix);
    int last = -1;
    for (int i = 0; i < index->n_entries; i++) {
        const char *name = index_name(index, &index->entries[i]);
        if (strncmp(name, prefix, n)) continue;
        char *end;
        long block = strtol(name + n, &end, 10);
        if (end != name + n && *end == '.' && block > last && block < 1 << 20) last = (int)block;
    }
    return last;
}

/* Reads 16-bit values into the second half of the f32 output buffer and converts them from the front, so that
 * no conversion overwrites an unconverted value. */
enum status source_read_values(const struct byte_source *source, uint64_t offset, enum dtype dtype,
                               int64_t first, int64_t n, float *to, struct error *e) {
    uint64_t size = dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    char *from = (char *)to + (uint64_t)n * (sizeof(float) - size);
    if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) {
        return error_set(e, UNSUPPORTED,
                         "a vector of the model or adapter has an unsupported element type" WHERE "%s" FOUND
                         "%s" EXPECTED "F32, F16 or BF16",
                         source->path, dtype_name(dtype));
    }
    if (source_read(source, from, (uint64_t)n * size, offset + (uint64_t)first * size, e) != OK)
        return e->code;
    for (int64_t i = 0; i < n && size < sizeof(float); i++) {
        uint16_t half;
        memcpy(&half, from + (uint64_t)i * size, sizeof half);
        to[i] = dtype == DTYPE_BF16 ? half_bf16_f32(half) : half_f16_f32(half);
    }
    return OK;
}

uint64_t index_bytes(const struct tensor_index *index) {
    uint64_t bytes = 0; /* the sum cannot overflow: tensors are disjoint parts of files */
    for (int i = 0; i < index->n_entries; i++) bytes += index->entries[i].bytes;
    return bytes;
}

void index_destroy(struct tensor_index *index) {
    if (index->sys) {
        for (int i = 0; i < index->n_sources; i++) source_close(&index->sources[i]);
        index->sys->release(index->sys, index->sources);
        index->sys->release(index->sys, index->entries);
        index->sys->release(index->sys, index->names);
        index->sys->release(index->sys, index->config);
        index->sys->release(index->sys, index->adapter);
        index->sys->release(index->sys, index->quantisation);
    }
    *index = (struct tensor_index){0};
}
