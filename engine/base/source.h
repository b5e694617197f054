/* A byte source: a file that weights are read from by position, from any thread; or bytes in memory that
 * replace one.
 *
 * Files are read, never mapped: a truncated file must be an error, not a signal. The identity of the file is
 * recorded when it is opened and compared after every read. If its bytes may have changed during a run, the
 * result is CHANGED rather than other pixels. A new file under the same name is not read and has no effect.
 *
 * A source may have a second descriptor that bypasses the page cache. A model that is read repeatedly and
 * exceeds the cache gains nothing from the cache and evicts everything else from it. */
#ifndef SLUICE_BASE_SOURCE_H
#define SLUICE_BASE_SOURCE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct byte_source {
    struct sys *sys;
    char *path;                    /* owned; in memory: the name for messages, borrowed */
    int file;                      /* -1 in memory */
    int direct;                    /* the second descriptor, or -1; see source_open_direct */
    struct file_identity identity; /* in memory: all 0 except the size */
    const char *memory;            /* borrowed; NULL: a file */
};

/* Buffer of one reader for direct reads: blocks that cannot be read in place are read here and copied. */
struct bounce {
    char *memory;   /* aligned to SYS_DIRECT_BLOCK; NULL: reads go through the page cache */
    uint64_t bytes; /* a multiple of SYS_DIRECT_BLOCK */
};

/* Opens path. MISSING if it does not exist; IO if it is not a regular file or cannot be opened. */
enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e);
/* A source over these bytes, which must outlive it unchanged, as must the path. Closing it has no effect. */
struct byte_source source_of_memory(struct sys *sys, const char *path, const void *memory, uint64_t bytes);
void source_close(struct byte_source *source);

/* Opens and tests the second descriptor if it is not open yet. Returns 0 (always in memory, where there is
 * none) or a negative errno: -EINVAL or -EOPNOTSUPP if the file system does not support direct reads, -ESTALE
 * if the path names another file now. After a failure the source is read through the page cache. Thread-safe,
 * because sessions share models. */
int source_open_direct(struct byte_source *source);
bool source_is_direct(const struct byte_source *source);

/* Reads exactly `bytes` bytes at offset, repeating short reads. TRUNC past the end, IO, CHANGED.
 * Thread-safe. */
enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e);
/* Reads like source_read but bypasses the page cache; the source must be open for direct reads. offset, bytes
 * and `to` need no alignment. If offset and `to` agree modulo SYS_DIRECT_BLOCK, whole blocks are read in
 * place. One thread per bounce buffer at a time. */
enum status source_read_direct(const struct byte_source *source, const struct bounce *bounce, void *to,
                               uint64_t bytes, uint64_t offset, struct error *e);

#endif
