/* Writes two files of random tensors, and makes the tensor index of the files. */
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

/* Creates the folder for the files and seeds the random numbers. */
void synthetic_files_begin(struct synthetic_files *f, struct sys *sys, uint64_t seed);

/* Adds a tensor of random values in [-1, 1], at an odd offset of one of the files. */
void synthetic_files_add(struct synthetic_files *f, const char *name, enum dtype dtype, int rank,
                         const int32_t *dim);

/* Writes the files and opens them for reads through the index. */
void synthetic_files_end(struct synthetic_files *f);

/* Removes the files. Does not free the tensor index, which the component owns. */
void synthetic_files_remove(struct synthetic_files *f);

#endif
