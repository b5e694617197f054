/* Reads byte ranges of files, through or past the page cache: implements source.h. */
#include "engine/base/source.h"

#include "engine/base/checked.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e) {
    *source = (struct byte_source){.sys = sys, .file = -1, .direct = -1};
    int file = sys->open(sys, path);
    if (file < 0)
        return error_set(e, file == -ENOENT || file == -ENOTDIR ? MISSING : IO,
                         "cannot open file" WHERE "%s" FOUND "%s", path, strerror(-file));
    source->file = file;
    int failed = sys->identify(sys, file, &source->identity);
    if (failed || !source->identity.regular) {
        error_set(e, IO, "cannot read file" WHERE "%s", path);
        failed ? error_found(e, "%s", strerror(-failed)) : error_found(e, "a folder, pipe or device");
        error_expected(e, "a regular file");
        source_close(source);
        return e->code;
    }
    size_t n = strlen(path) + 1;
    source->path = sys_new(sys, n, 1, "the path of a file", e);
    if (source->path)
        memcpy(source->path, path, n);
    else
        source_close(source);
    return e->code;
}

struct byte_source source_of_memory(struct sys *sys, const char *path, const void *memory, uint64_t bytes) {
    return (struct byte_source){.sys = sys,
                                .path = (char *)(uintptr_t)path,
                                .file = -1,
                                .direct = -1,
                                .identity = {.bytes = (int64_t)bytes},
                                .memory = memory};
}

void source_close(struct byte_source *source) {
    if (source->memory) return;
    if (source->file >= 0) source->sys->close(source->sys, source->file);
    if (source->direct >= 0) source->sys->close(source->sys, source->direct);
    if (source->path) source->sys->release(source->sys, source->path);
    source->path = NULL;
    source->file = source->direct = -1;
}

/* True if both identities are of the same file (device and inode). */
static bool source_is_inode(const struct file_identity *a, const struct file_identity *b) {
    return a->device == b->device && a->inode == b->inode;
}

bool source_is_direct(const struct byte_source *source) {
    return __atomic_load_n(&source->direct, __ATOMIC_ACQUIRE) >= 0;
}

int source_open_direct(struct byte_source *source) {
    if (source->memory || source_is_direct(source)) return 0;
    int file = source->sys->open_direct(source->sys, source->path);
    if (file < 0) return file;
    /* Tests that the new descriptor is of the same file and can be read directly (O_DIRECT). Some file
     * systems refuse direct access only at the first read. */
    _Alignas(SYS_DIRECT_BLOCK) char block[SYS_DIRECT_BLOCK];
    struct file_identity identity;
    int failed = source->sys->identify(source->sys, file, &identity), none = -1;
    if (!failed && !source_is_inode(&source->identity, &identity)) failed = -ESTALE;
    if (!failed) {
        int64_t n = sys_read_at(source->sys, file, block, sizeof block, 0);
        if (n < 0) failed = (int)n;
    }
    /* If another session opened a descriptor for direct reads at the same time, both sessions use the
     * descriptor that was opened first. */
    if (failed ||
        !__atomic_compare_exchange_n(&source->direct, &none, file, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        source->sys->close(source->sys, file);
    return failed;
}

/* Fails with CHANGED if the file's size, time or inode differ from those at opening. */
static enum status check_unchanged(const struct byte_source *source, struct error *e) {
    struct file_identity now;
    int failed = source->sys->identify(source->sys, source->file, &now);
    const struct file_identity *then = &source->identity;
    if (!failed && now.bytes == then->bytes && now.modified_ns == then->modified_ns &&
        source_is_inode(then, &now))
        return OK;
    error_set(e, CHANGED, "file changed while it was in use" WHERE "%s", source->path);
    if (failed)
        error_found(e, "%s", strerror(-failed));
    else if (now.bytes == then->bytes)
        error_found(e, "%" PRId64 " bytes, modified since it was opened", now.bytes);
    else
        error_found(e, "%" PRId64 " bytes", now.bytes);
    return error_expected(e, "the unchanged file of %" PRId64 " bytes", then->bytes);
}

/* Fails with IO: a read at byte `at` returned the negative errno `problem`. */
static enum status read_failed(const struct byte_source *source, uint64_t at, int64_t problem,
                               struct error *e) {
    return error_set(e, IO, "cannot read file" WHERE "%s, byte %" PRIu64 FOUND "%s", source->path, at,
                     strerror((int)-problem));
}

/* Fails with TRUNC: the file holds only `done` of the bytes requested from offset. */
static enum status ends_early(const struct byte_source *source, uint64_t bytes, uint64_t offset,
                              uint64_t done, struct error *e) {
    return error_set(e, TRUNC,
                     "file ends too early, maybe an incomplete download" WHERE "%s, byte %" PRIu64 FOUND
                     "%" PRIu64 " bytes" EXPECTED "%" PRIu64 " bytes from byte %" PRIu64,
                     source->path, offset + done, done, bytes, offset);
}

enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e) {
    struct sys *sys = source->sys;
    uint64_t done = 0;
    if (source->memory) {
        uint64_t all = (uint64_t)source->identity.bytes, there = offset < all ? all - offset : 0;
        if (bytes > there) return ends_early(source, bytes, offset, there, e);
        memcpy(to, source->memory + offset, bytes);
        return OK;
    }
    while (done < bytes) {
        int64_t n = sys_read_at(sys, source->file, (char *)to + done, bytes - done, (int64_t)(offset + done));
        if (n < 0) return read_failed(source, offset + done, n, e);
        if (n == 0) {
            /* A file that shrank since opening is CHANGED; a file that was always short is TRUNC. */
            if (check_unchanged(source, e) != OK) return e->code;
            return ends_early(source, bytes, offset, done, e);
        }
        done += (uint64_t)n;
    }
    return check_unchanged(source, e);
}

/* Part of a direct read that remains to be done. */
struct direct_read {
    char *to;
    uint64_t offset, bytes;
};

/* Direct read: reads whole disk blocks in place where memory address and file offset agree, else through the
 * bounce buffer. The unaligned start is read separately. Returns the number of requested bytes read, or a
 * negative errno. */
static int64_t read_blocks(const struct byte_source *source, int file, const struct bounce *bounce,
                           const struct direct_read *r) {
    struct sys *sys = source->sys;
    uint64_t skip = r->offset % SYS_DIRECT_BLOCK, want = align_up(skip + r->bytes, SYS_DIRECT_BLOCK);
    bool agree = (uintptr_t)r->to % SYS_DIRECT_BLOCK == skip;
    uint64_t whole = r->bytes / SYS_DIRECT_BLOCK * SYS_DIRECT_BLOCK;
    if (agree && !skip && whole) return sys_read_at(sys, file, r->to, whole, (int64_t)r->offset);
    if (agree && want > SYS_DIRECT_BLOCK) want = SYS_DIRECT_BLOCK;
    if (want > bounce->bytes) want = bounce->bytes;
    int64_t n = sys_read_at(sys, file, bounce->memory, want, (int64_t)(r->offset - skip));
    if (n < 0) return n;
    uint64_t got = (uint64_t)n > skip ? (uint64_t)n - skip : 0;
    if (got > r->bytes) got = r->bytes;
    memcpy(r->to, bounce->memory + skip, got);
    return (int64_t)got;
}

enum status source_read_direct(const struct byte_source *source, const struct bounce *bounce, void *to,
                               uint64_t bytes, uint64_t offset, struct error *e) {
    int file = __atomic_load_n(&source->direct, __ATOMIC_ACQUIRE);
    uint64_t done = 0;
    while (done < bytes) {
        struct direct_read rest = {(char *)to + done, offset + done, bytes - done};
        int64_t n = read_blocks(source, file, bounce, &rest);
        if (n < 0) return read_failed(source, rest.offset, n, e);
        /* A read of zero bytes means the end of the file; source_read chooses the error code. */
        if (!n) return source_read(source, rest.to, rest.bytes, rest.offset, e);
        done += (uint64_t)n;
    }
    return check_unchanged(source, e);
}
