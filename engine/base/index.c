/* The tensor index: see index.h. Loaders build it; this is what everybody else asks of it. */
#include "engine/base/index.h"

#include <stdlib.h>
#include <string.h>

static int compare_name(const void *name, const void *entry) {
    return strcmp(name, ((const struct index_entry *)entry)->name);
}

struct index_entry *index_find(const struct tensor_index *index, const char *name) {
    if (!index->n_entries) return NULL;
    return bsearch(name, index->entries, (size_t)index->n_entries, sizeof *index->entries, compare_name);
}

int index_last_block(const struct tensor_index *index, const char *prefix) {
    size_t n = strlen(prefix);
    int last = -1;
    for (int i = 0; i < index->n_entries; i++) {
        const char *name = index->entries[i].name;
        if (strncmp(name, prefix, n)) continue;
        char *end;
        long block = strtol(name + n, &end, 10);
        if (end != name + n && *end == '.' && block > last && block < 1 << 20) last = (int)block;
    }
    return last;
}

uint64_t index_bytes(const struct tensor_index *index) {
    uint64_t bytes = 0; /* of disjoint parts of files: cannot wrap */
    for (int i = 0; i < index->n_entries; i++) bytes += index->entries[i].bytes;
    return bytes;
}

void index_destroy(struct tensor_index *index) {
    for (int i = 0; i < index->n_sources; i++) source_close(&index->sources[i]);
    if (index->sys) {
        index->sys->release(index->sys, index->sources);
        index->sys->release(index->sys, index->entries);
        index->sys->release(index->sys, index->names);
    }
    *index = (struct tensor_index){0};
}
