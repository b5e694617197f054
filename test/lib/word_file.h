/* A file of any size whose contents are computed when read: each 16-bit word is the result of word_at for its
 * offset. The including file defines word_at; the loop is in this header so that word_at is inlined. */
#ifndef SLUICE_TEST_WORD_FILE_H
#define SLUICE_TEST_WORD_FILE_H

#include "engine/base/sys.h"

static uint16_t word_at(uint64_t offset);

static inline int64_t read_words(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    uint16_t *words = to;
    for (size_t i = 0; i < bytes / 2; i++) words[i] = word_at((uint64_t)offset + 2 * i);
    return (int64_t)bytes;
}

static inline int identify_words(struct sys *sys, int file, struct file_identity *identity) {
    *identity = (struct file_identity){.regular = true};
    return 0;
}

#endif
