/* Byte sources: see source.h. */
#include "engine/base/source.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum status source_open(struct sys *sys, const char *path, struct byte_source *source, struct error *e) {
    *source = (struct byte_source){.sys = sys, .file = -1};
    int file = sys->open(sys, path);
    if (file < 0) {
        error_set(e, file == -ENOENT || file == -ENOTDIR ? MISSING : IO, "cannot open file");
        error_where(e, "%s", path);
        return error_found(e, "%s", strerror(-file));
    }
    source->file = file;
    int failed = sys->identify(sys, file, &source->identity);
    if (failed || !source->identity.regular) {
        error_set(e, IO, "cannot read file");
        error_where(e, "%s", path);
        failed ? error_found(e, "%s", strerror(-failed))
               : error_found(e, "something that is no regular file");
        error_expected(e, "a regular file");
        source_close(source);
        return e->code;
    }
    size_t n = strlen(path) + 1;
    source->path = sys->alloc(sys, LINE_HOST, n);
    if (!source->path) {
        source_close(source);
        return error_set(e, MEMORY, "no memory for a path of %zu bytes", n);
    }
    memcpy(source->path, path, n);
    return OK;
}

void source_close(struct byte_source *source) {
    if (source->file >= 0) source->sys->close(source->sys, source->file);
    if (source->path) source->sys->release(source->sys, source->path);
    source->path = NULL;
    source->file = -1;
}

static enum status check_unchanged(const struct byte_source *source, struct error *e) {
    struct file_identity now;
    int failed = source->sys->identify(source->sys, source->file, &now);
    const struct file_identity *then = &source->identity;
    if (!failed && now.bytes == then->bytes && now.modified_ns == then->modified_ns &&
        now.changed_ns == then->changed_ns)
        return OK;
    error_set(e, CHANGED, "file changed while it was in use");
    error_where(e, "%s", source->path);
    error_found(e, "%" PRId64 " bytes", failed ? -1 : now.bytes);
    return error_expected(e, "the file of %" PRId64 " bytes that was opened", then->bytes);
}

enum status source_read(const struct byte_source *source, void *to, uint64_t bytes, uint64_t offset,
                        struct error *e) {
    struct sys *sys = source->sys;
    uint64_t done = 0;
    while (done < bytes) {
        int64_t n =
            sys->read_at(sys, source->file, (char *)to + done, bytes - done, (int64_t)(offset + done));
        if (n == -EINTR) continue;
        if (n < 0) {
            error_set(e, IO, "cannot read file");
            error_where(e, "%s, byte %" PRIu64, source->path, offset + done);
            return error_found(e, "%s", strerror((int)-n));
        }
        if (n == 0) {
            /* A file that shrank since it was opened is CHANGED; one that was always too short is TRUNC. */
            if (check_unchanged(source, e) != OK) return e->code;
            error_set(e, TRUNC, "file ends early");
            error_where(e, "%s, byte %" PRIu64, source->path, offset + done);
            error_found(e, "%" PRIu64 " of the bytes", done);
            return error_expected(e, "%" PRIu64 " bytes from byte %" PRIu64, bytes, offset);
        }
        done += (uint64_t)n;
    }
    return check_unchanged(source, e);
}
