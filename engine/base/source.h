/* A byte source: one file that weights are read from, by position, from any thread.
 *
 * Bytes are read, never mapped: a truncated file must be an error, not a signal. The file's identity is taken
 * when it is opened and compared after every read, so that a file that changes in mid-run is CHANGED, not
 * other pixels. */
#ifndef SLUICE_BASE_SOURCE_H
#define SLUICE_BASE_SOURCE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct byte_source {
    struct sys *sys;
    char *path; /* owned */
    int file;
    struct file_identity identity;
};

/* Opens path. MISSING if there is none, IO if it is no regular file or cannot be opened. */
enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e);
void source_close(struct byte_source *source);

/* Reads exactly bytes at offset, repeating short reads. TRUNC past the end, IO, CHANGED. Thread-safe. */
enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e);

#endif
