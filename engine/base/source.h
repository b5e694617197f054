/* A byte source: a file, or bytes in memory instead of a file. Any thread can read weights from it at any
 * position. Files are read, never mapped: a truncated file must be an error, not a signal. The file's
 * identity is recorded at opening and compared after every read: if the file may have changed, the read fails
 * with CHANGED, because changed weights would change the image. A new file under the same name has no effect.
 * A second descriptor can bypass the page cache: a model larger than the cache gains nothing from caching and
 * evicts all other files. */
#ifndef SLUICE_BASE_SOURCE_H
#define SLUICE_BASE_SOURCE_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct byte_source {
    struct sys *sys;
    char *path; /* path of the file, owned; for a memory source a borrowed name for messages */
    int file;   /* file descriptor; -1 for a memory source */
    int direct; /* descriptor that bypasses the page cache, or -1; see source_open_direct */
    /* Identity of the file at opening; for a memory source only the size is set. */
    struct file_identity identity;
    const char *memory; /* bytes of a memory source, borrowed; NULL for a file */
};

/* One reader's buffer for direct reads. Blocks that cannot be read to their destination directly are read
 * into the buffer and copied. */
struct bounce {
    char *memory;   /* aligned to SYS_DIRECT_BLOCK; NULL: read through the page cache */
    uint64_t bytes; /* size of the buffer in bytes, a multiple of SYS_DIRECT_BLOCK */
};

/* Opens path. MISSING if it does not exist; IO if it is not a regular file or cannot be opened. */
enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e);
/* A source over bytes in memory. Bytes and path must stay unchanged while the source exists. Closing such a
 * source has no effect. */
struct byte_source source_of_memory(struct sys *sys, const char *path, const void *memory, uint64_t bytes);
void source_close(struct byte_source *source);

/* Opens and tests the descriptor for direct reads, unless already open. Returns 0 (always for a memory
 * source) or a negative errno: -EINVAL or -EOPNOTSUPP if the file system supports no direct reads, -ESTALE if
 * the path names another file now. After a failure the source is read through the page cache. Thread-safe,
 * because sessions share models. */
int source_open_direct(struct byte_source *source);
bool source_is_direct(const struct byte_source *source);

/* Reads exactly `bytes` bytes at offset. Errors: TRUNC past the end, IO, CHANGED. Thread-safe. */
enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e);
/* Reads like source_read but bypasses the page cache; needs source_open_direct first. offset, bytes and `to`
 * need no alignment; if offset and `to` agree modulo SYS_DIRECT_BLOCK, whole blocks are read in place. One
 * thread per bounce buffer at a time. */
enum status source_read_direct(const struct byte_source *source, const struct bounce *bounce, void *to,
                               uint64_t bytes, uint64_t offset, struct error *e);

#endif
