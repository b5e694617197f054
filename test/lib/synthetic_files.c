#include "test/lib/synthetic_files.h"

#include "engine/base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void synthetic_files_begin(struct synthetic_files *f, struct sys *sys, uint64_t seed) {
    *f = (struct synthetic_files){.sys = sys, .random = seed, .index.sys = sys};
    /* The files are in the build folder, because /tmp may be on a file system without direct reads. */
    strcpy(f->folder, access("build", W_OK) ? "/tmp/sluice_store_XXXXXX" : "build/sluice_store_XXXXXX");
    if (!mkdtemp(f->folder)) abort();
    f->index.entries = sys->alloc(sys, LINE_HOST, SYNTHETIC_ENTRIES_MAX * sizeof *f->index.entries);
    f->index.names = sys->alloc(sys, LINE_HOST, SYNTHETIC_ENTRIES_MAX * SYNTHETIC_NAME);
    f->index.sources = sys->alloc(sys, LINE_HOST, SYNTHETIC_FILES * sizeof *f->index.sources);
}

void synthetic_files_add(struct synthetic_files *f, const char *name, enum dtype dtype, int rank,
                         const int32_t *dim) {
    struct tensor shape = tensor_make(NULL, dtype, rank, dim);
    int file = (int)random_below(&f->random, SYNTHETIC_FILES), n = f->index.n_entries++;
    uint64_t bytes = (uint64_t)tensor_bytes(&shape), at = f->bytes[file] + random_below(&f->random, 40);
    size_t element = (size_t)dtype_bits(dtype) / 8;
    f->contents[file] = realloc(f->contents[file], at + bytes);
    memset(f->contents[file] + f->bytes[file], 0x55, at - f->bytes[file]);
    for (uint64_t i = 0; i < bytes; i += element) {
        float value = (float)(int64_t)random_next(&f->random) * 0x1p-63f;
        memcpy(f->contents[file] + at + i, (char *)&value + 4 - element, element);
    }
    f->bytes[file] = at + bytes;
    char *stored = f->index.names + n * SYNTHETIC_NAME;
    snprintf(stored, SYNTHETIC_NAME, "%s", name);
    struct index_entry entry = {.name = stored,
                                .dtype = dtype,
                                .rank = rank,
                                .scale = 1,
                                .source = file,
                                .offset = at,
                                .bytes = bytes};
    for (int i = 0; i < rank; i++) entry.dim[i] = dim[i];
    int i = n;
    for (; i > 0 && strcmp(f->index.entries[i - 1].name, stored) > 0; i--)
        f->index.entries[i] = f->index.entries[i - 1];
    f->index.entries[i] = entry;
}

void synthetic_files_end(struct synthetic_files *f) {
    struct error e = {0};
    for (int i = 0; i < SYNTHETIC_FILES; i++) {
        snprintf(f->path[i], sizeof f->path[i], "%s/%d", f->folder, i);
        FILE *file = fopen(f->path[i], "wb");
        if (!file || (f->bytes[i] && fwrite(f->contents[i], f->bytes[i], 1, file) != 1) || fclose(file))
            abort();
        if (source_open(f->sys, f->path[i], &f->index.sources[f->index.n_sources++], &e) != OK) abort();
    }
}

void synthetic_files_remove(struct synthetic_files *f) {
    for (int i = 0; i < SYNTHETIC_FILES; i++) {
        remove(f->path[i]);
        free(f->contents[i]);
    }
    rmdir(f->folder);
}
