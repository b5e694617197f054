/* Atomic file output: see output.h. */
#include "loaders/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/checked.h"

enum { PIECE_BYTES = 4 << 20, ALIGN_MAX = 64 };

static enum status output_fail(const char *path, const char *what, int failed, struct error *e) {
    return error_set(e, OUTPUT, "%s" WHERE "%s" FOUND "%s", what, path, strerror(-failed));
}

enum status output_open(struct sys *sys, const char *path, struct output *output, struct error *e) {
    size_t bytes = strlen(path) + 32;
    struct stat s;
    *output = (struct output){.sys = sys, .path = path, .file = -1};
    if (!stat(path, &s) && !S_ISREG(s.st_mode)) { /* rename(2) would replace a device or pipe by a file */
        return error_set(e, OUTPUT,
                         "cannot write file" WHERE "%s" FOUND "a folder, pipe or device" EXPECTED
                         "a regular file, or a new file name",
                         path);
    }
    output->temporary = sys_new(sys, bytes, 1, "a path", e);
    if (!output->temporary) return e->code;
    /* Creates an unnamed file in the output's folder. During this call `temporary` holds the folder's
     * path. */
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 1;
    memcpy(output->temporary, slash ? path : ".", n);
    output->file = sys->create_unnamed(sys, output->temporary);
    snprintf(output->temporary, bytes, "%s.tmp.%ld", path, (long)getpid());
    output->unnamed = output->file >= 0;
    if (output->file == -EOPNOTSUPP) output->file = sys->create(sys, output->temporary);
    return output->file < 0 ? output_fail(path, "cannot create file", output->file, e) : OK;
}

enum status output_write(struct output *output, const void *from, uint64_t bytes, struct error *e) {
    uint64_t done = 0;
    while (done < bytes) {
        int64_t n = sys_write(output->sys, output->file, (const char *)from + done, bytes - done);
        /* A write of 0 bytes is treated as an error, because a repeated write could loop forever. */
        if (n <= 0) return output_fail(output->path, "cannot write file", n ? (int)n : -EIO, e);
        done += (uint64_t)n;
    }
    output->bytes += bytes;
    return OK;
}

enum status output_pad(struct output *output, uint64_t align, struct error *e) {
    static const char zeros[ALIGN_MAX];
    return output_write(output, zeros, align_up(output->bytes, align) - output->bytes, e);
}

enum status output_tensor(struct output *output, const struct tensor_maker *maker, int i,
                          const struct tensor *tensor, struct error *e) {
    struct sys *sys = output->sys;
    if (!maker) return output_write(output, tensor->data, (uint64_t)tensor_bytes(tensor), e);
    uint64_t row = (uint64_t)tensor->row_bytes, block = (uint64_t)dtype_block_bytes(tensor->dtype);
    uint64_t unit = row && row <= PIECE_BYTES ? row : block, most = PIECE_BYTES / unit * unit;
    uint64_t left = (uint64_t)tensor_bytes(tensor), bytes = left < most ? left : most;
    void *piece = sys_new(sys, bytes + 1, 1, "a piece of a tensor", e);
    while (left && e->code == OK) {
        uint64_t n = left < most ? left : most;
        if (maker->make(maker->user, i, piece, n, e) == OK) output_write(output, piece, n, e);
        left -= n;
    }
    sys->release(sys, piece);
    return e->code;
}

enum status output_close(struct output *output, struct error *e) {
    struct sys *sys = output->sys;
    if (output->file >= 0) {
        int failed = e->code == OK ? sys->flush(sys, output->file) : 0;
        if (failed) output_fail(output->path, "cannot write file", failed, e);
        if (e->code == OK) {
            /* linkat(2) cannot replace an existing file, so an unnamed file is linked under a temporary name
             * and renamed. Removes a temporary file of a killed process with the same id. */
            failed = output->unnamed ? sys->link(sys, output->file, output->temporary) : 0;
            if (failed == -EEXIST && !sys->remove(sys, output->temporary))
                failed = sys->link(sys, output->file, output->temporary);
            output->unnamed = output->unnamed && failed;
            if (!failed) failed = sys->rename(sys, output->temporary, output->path);
            if (failed) output_fail(output->path, "cannot rename file", failed, e);
        }
        sys->close(sys, output->file);
        if (e->code != OK && !output->unnamed) sys->remove(sys, output->temporary);
    }
    sys->release(sys, output->temporary);
    return e->code;
}
