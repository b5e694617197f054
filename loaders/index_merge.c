/* Merges the indexes of several files into one: shards, parts of a GGUF file, several inputs of `convert`.
 * See loaders.h. */
#include "loaders/loaders.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"

enum { QUANTISATION_BYTES_MAX = 16 << 20 };

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
        for (int k = 0; k < entry->scales.n; k++) entry->scales.section[k].source += index->n_sources;
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
    if (bytes > QUANTISATION_BYTES_MAX)
        return error_set(e, LIMIT,
                         "_quantization_metadata of all shards is too long" WHERE "%s" EXPECTED
                         "at most %d bytes",
                         path, QUANTISATION_BYTES_MAX);
    if (!bytes) return OK;
    index->quantisation = sys_new(index->sys, bytes, 1, "the quantisation metadata", e);
    if (!index->quantisation) return e->code;
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

enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e) {
    uint64_t n_entries = 0, n_sources = 0, name_bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        n_sources += (uint64_t)parts[i].n_sources;
        n_entries += (uint64_t)parts[i].n_entries;
        name_bytes += names_bytes(&parts[i]);
    }
    index->sys = sys;
    index->entries = sys_new(sys, n_entries, sizeof *index->entries, "a tensor index", e);
    index->names = sys_new(sys, name_bytes, 1, "the tensor names", e);
    index->sources = sys_new(sys, n_sources, sizeof *index->sources, "the files of a tensor index", e);
    if (e->code != OK) return e->code;
    index->host_bytes = n_entries * sizeof *index->entries + name_bytes + n_sources * sizeof *index->sources;
    if (join_quantisations(path, parts, n_parts, index, e) != OK) return e->code;
    char *names = index->names;
    for (int i = 0; i < n_parts; i++) names = append_part(index, &parts[i], names);
    int twice =
        sort_find_duplicate(index->entries, index->n_entries, sizeof *index->entries, index_compare_names);
    if (!twice) return OK;
    const struct index_entry *one = &index->entries[twice - 1], *other = &index->entries[twice];
    return error_set(e, DUP, "tensor '%s' is in two shards" WHERE "%s" FOUND "%s and %s", one->name, path,
                     file_of(index, one), file_of(index, other));
}
