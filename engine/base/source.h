/* A byte source: one file that weights are read from, by position, from any thread; or bytes in memory that
 * were made of one.
 *
 * Bytes are read, never mapped: a truncated file must be an error, not a signal. The file's identity is taken
 * when it is opened and compared after every read, so that a file whose bytes may have changed in mid-run is
 * CHANGED, not other pixels. Another file of its name is not read, and does not matter.
 *
 * A source may have a second descriptor that passes the page cache by: a model that is read over and over and
 * is larger than the cache gains nothing from it, and pushes everything else out. */
#ifndef SLUICE_BASE_SOURCE_H
#define SLUICE_BASE_SOURCE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct byte_source {
    struct sys *sys;
    char *path;                    /* owned; in memory what errors call it, borrowed */
    int file;                      /* -1 in memory */
    int direct;                    /* the second descriptor, or -1; see source_open_direct */
    struct file_identity identity; /* in memory all 0 but for its bytes */
    const char *memory;            /* borrowed; NULL: a file */
};

/* Memory of a reader's own for direct reads: blocks that cannot be read where they belong come here, and what
 * is wanted of them is copied out. */
struct bounce {
    char *memory;   /* aligned to SYS_DIRECT_BLOCK; NULL: reads go through the page cache */
    uint64_t bytes; /* a multiple of SYS_DIRECT_BLOCK */
};

/* Opens path. MISSING if there is none, IO if it is no regular file or cannot be opened. */
enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e);
/* These bytes, which must outlive it and not change, as must the path. Closing it does nothing. */
struct byte_source source_of_memory(struct sys *sys, const char *path, const void *memory, uint64_t bytes);
void source_close(struct byte_source *source);

/* Opens the second descriptor if it is not open yet, and tries it. 0, also in memory, where there is none; or
 * negative errno where the file system does not do this (-EINVAL, -EOPNOTSUPP) or the path has another file
 * by now (-ESTALE): then the source is read through the page cache as before. Thread-safe, for models are
 * shared by sessions. */
int source_open_direct(struct byte_source *source);
/* Has it been opened? */
bool source_is_direct(const struct byte_source *source);

/* Reads exactly bytes at offset, repeating short reads. TRUNC past the end, IO, CHANGED. Thread-safe. */
enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e);
/* The same past the page cache; the source must be direct. Offset, bytes and to need no alignment; where
 * offset and to agree modulo SYS_DIRECT_BLOCK, whole blocks are read where they belong. One thread a bounce
 * at a time. */
enum status source_read_direct(const struct byte_source *source, const struct bounce *bounce, void *to,
                               uint64_t bytes, uint64_t offset, struct error *e);

#endif
