/* Merges indexes of several files: see index_merge.h. */
#include "loaders/index_merge.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"

enum { QUANTISATION_BYTES_MAX = 16 << 20 };

static enum status merge_fail_memory(const char *path, struct error *e) {
    return error_set(e, MEMORY, "no memory for a tensor index" WHERE "%s", path);
}

static uint64_t names_bytes(const struct tensor_index *part) {
    uint64_t bytes = 0;
    for (int i = 0; i < part->n_entries; i++) bytes += strlen(part->entries[i].name) + 1;
    return bytes;
}

enum status index_add_size(struct index_size *size, const struct tensor_index *part, const char *path,
                           struct error *e) {
    size->n_entries += part->n_entries;
    size->name_bytes += names_bytes(part);
    if (size->n_entries <= LOADER_TENSORS_MAX && size->name_bytes <= LOADER_NAMES_BYTES_MAX) return OK;
    return error_set(e, LIMIT,
                     "too many tensors in all shards" WHERE "%s" EXPECTED
                     "at most %d tensors, with %d bytes of names in total",
                     path, LOADER_TENSORS_MAX, LOADER_NAMES_BYTES_MAX);
}

/* Moves the sources of one index (part) to the merged index and appends copies of the part's entries. Returns
 * the end of the used name storage. */
static char *append_part(struct tensor_index *index, struct tensor_index *part, char *names) {
    for (int i = 0; i < part->n_entries; i++) {
        struct index_entry *entry = &index->entries[index->n_entries++];
        size_t bytes = strlen(part->entries[i].name) + 1;
        *entry = part->entries[i];
        entry->source += index->n_sources;
        entry->scales.source += index->n_sources;
        entry->name = memcpy(names, part->entries[i].name, bytes);
        names += bytes;
    }
    index->quantised |= part->quantised;
    index->predicts_v |= part->predicts_v;
    if (!index->config && part->config) {
        index->config = part->config;
        index->host_bytes += strlen(part->config) + 1;
        part->config = NULL;
    }
    for (int i = 0; i < part->n_sources; i++) {
        index->host_bytes += strlen(part->sources[i].path) + 1;
        index->sources[index->n_sources++] = part->sources[i];
    }
    part->n_sources = 0;
    index_destroy(part);
    return names;
}

/* Concatenates the quantisation metadata of all merged files. */
static enum status join_quantisations(const char *path, const struct tensor_index *parts, int n_parts,
                                      struct tensor_index *index, struct error *e) {
    uint64_t bytes = 0, at = 0; /* the sum cannot overflow: at most 256 texts from headers of up to 100 MB */
    for (int i = 0; i < n_parts; i++) bytes += parts[i].quantisation_bytes;
    if (bytes > QUANTISATION_BYTES_MAX) {
        return error_set(e, LIMIT,
                         "_quantization_metadata of all shards is too long" WHERE "%s" EXPECTED
                         "at most %d bytes",
                         path, QUANTISATION_BYTES_MAX);
    }
    if (!bytes) return OK;
    index->quantisation = index->sys->alloc(index->sys, LINE_HOST, bytes);
    if (!index->quantisation) return merge_fail_memory(path, e);
    index->quantisation_bytes = bytes;
    index->host_bytes += bytes;
    for (int i = 0; i < n_parts; at += parts[i++].quantisation_bytes)
        if (parts[i].quantisation)
            memcpy(index->quantisation + at, parts[i].quantisation, parts[i].quantisation_bytes);
    return OK;
}

static const char *file_of(const struct tensor_index *index, const struct index_entry *entry) {
    const char *path = index->sources[entry->source].path, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum status merge_sort_names(const char *path, struct tensor_index *index, struct error *e) {
    int twice =
        sort_find_duplicate(index->entries, index->n_entries, sizeof *index->entries, index_compare_names);
    if (!twice) return OK;
    const struct index_entry *one = &index->entries[twice - 1], *other = &index->entries[twice];
    return error_set(e, DUP, "tensor '%s' is in two shards" WHERE "%s" FOUND "%s and %s", one->name, path,
                     file_of(index, one), file_of(index, other));
}

enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e) {
    uint64_t entry_bytes = 0, name_bytes = 0, source_bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        source_bytes += (uint64_t)parts[i].n_sources * sizeof *index->sources;
        entry_bytes += (uint64_t)parts[i].n_entries * sizeof *index->entries;
        name_bytes += names_bytes(&parts[i]);
    }
    index->sys = sys;
    index->entries = sys->alloc(sys, LINE_HOST, entry_bytes);
    index->names = sys->alloc(sys, LINE_HOST, name_bytes);
    index->sources = sys->alloc(sys, LINE_HOST, source_bytes);
    if (!index->entries || !index->names || !index->sources) return merge_fail_memory(path, e);
    index->host_bytes = entry_bytes + name_bytes + source_bytes;
    if (join_quantisations(path, parts, n_parts, index, e) != OK) return e->code;
    char *names = index->names;
    for (int i = 0; i < n_parts; i++) names = append_part(index, &parts[i], names);
    return merge_sort_names(path, index, e);
}
