/* Files of made-up tensors, and the index that a reader of them would have made. */
#ifndef SLUICE_TEST_TOY_FILES_H
#define SLUICE_TEST_TOY_FILES_H

#include "engine/base/index.h"

enum { TOY_FILES = 2, TOY_ENTRIES_MAX = 160, TOY_NAME = 32 };

struct toy_files {
    struct sys *sys;
    char folder[40], path[TOY_FILES][64];
    unsigned char *contents[TOY_FILES];
    uint64_t bytes[TOY_FILES];
    struct tensor_index index;
    uint64_t random;
};

/* A folder, empty yet; numbers come from the seed. */
void toy_files_begin(struct toy_files *f, struct sys *sys, uint64_t seed);

/* Numbers between -1 and 1 of this type, at an odd place of either file. */
void toy_files_add(struct toy_files *f, const char *name, enum dtype dtype, int rank, const int32_t *dim);

/* Writes the files and opens them for the index. */
void toy_files_end(struct toy_files *f);

/* The index may belong to a component, which destroys it. */
void toy_files_remove(struct toy_files *f);

#endif
