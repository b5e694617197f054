/* Files of made-up tensors, and the index that a reader of them would have made. */
#ifndef SLUICE_TEST_SYNTHETIC_FILES_H
#define SLUICE_TEST_SYNTHETIC_FILES_H

#include "engine/base/index.h"

enum { SYNTHETIC_FILES = 2, SYNTHETIC_ENTRIES_MAX = 160, SYNTHETIC_NAME = 32 };

struct synthetic_files {
    struct sys *sys;
    char folder[40], path[SYNTHETIC_FILES][64];
    unsigned char *contents[SYNTHETIC_FILES];
    uint64_t bytes[SYNTHETIC_FILES];
    struct tensor_index index;
    uint64_t random;
};

/* A folder, empty yet; numbers come from the seed. */
void synthetic_files_begin(struct synthetic_files *f, struct sys *sys, uint64_t seed);

/* Numbers between -1 and 1 of this type, at an odd place of either file. */
void synthetic_files_add(struct synthetic_files *f, const char *name, enum dtype dtype, int rank, const int32_t *dim);

/* Writes the files and opens them for the index. */
void synthetic_files_end(struct synthetic_files *f);

/* The index may belong to a component, which destroys it. */
void synthetic_files_remove(struct synthetic_files *f);

#endif
