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

/* Rejects devices and pipes, which a rename would replace. */
static enum status check_target(const char *path, struct error *e) {
    struct stat s;
    if (stat(path, &s) || S_ISREG(s.st_mode)) return OK;
    return error_set(e, OUTPUT,
                     "cannot write file" WHERE "%s" FOUND "a folder, pipe or device" EXPECTED
                     "a regular file, or a new file name",
                     path);
}

/* Creates an unnamed file in the output's folder; output->temporary temporarily holds the folder's name. */
static void create_unnamed(struct output *output) {
    const char *slash = strrchr(output->path, '/');
    size_t n = slash ? (size_t)(slash - output->path) + 1 : 1;
    memcpy(output->temporary, slash ? output->path : ".", n);
    output->temporary[n] = 0;
    output->file = output->sys->create_unnamed(output->sys, output->temporary);
}

/* Gives an unnamed output file its final name. linkat(2) cannot replace an existing file, so the file is
 * linked under a temporary name and renamed. Removes a temporary file of a killed process with the same
 * id. */
static int rename_to_final(struct output *output) {
    struct sys *sys = output->sys;
    int failed = output->unnamed ? sys->link(sys, output->file, output->temporary) : 0;
    if (failed == -EEXIST && !sys->remove(sys, output->temporary))
        failed = sys->link(sys, output->file, output->temporary);
    output->unnamed = output->unnamed && failed;
    return failed ? failed : sys->rename(sys, output->temporary, output->path);
}

enum status output_open(struct sys *sys, const char *path, struct output *output, struct error *e) {
    size_t bytes = strlen(path) + 32;
    *output = (struct output){.sys = sys, .path = path, .file = -1};
    if (check_target(path, e) != OK) return e->code;
    output->temporary = sys->alloc(sys, LINE_HOST, bytes);
    if (!output->temporary) return error_set(e, MEMORY, "no memory for a path");
    create_unnamed(output);
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

static uint64_t output_piece_of(const struct tensor *tensor) {
    uint64_t row = (uint64_t)tensor->row_bytes, block = (uint64_t)dtype_block_bytes(tensor->dtype);
    uint64_t unit = row && row <= PIECE_BYTES ? row : block;
    return PIECE_BYTES / unit * unit;
}

enum status output_make(struct output *output, const struct tensor_maker *maker, int i,
                        const struct tensor *tensor, struct error *e) {
    struct sys *sys = output->sys;
    uint64_t left = (uint64_t)tensor_bytes(tensor), most = output_piece_of(tensor),
             bytes = left < most ? left : most;
    void *piece = sys->alloc(sys, LINE_HOST, bytes + 1);
    if (!piece) return error_set(e, MEMORY, "no memory for a buffer of %" PRIu64 " bytes", bytes);
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
        failed = e->code == OK ? rename_to_final(output) : 0;
        if (failed) output_fail(output->path, "cannot rename file", failed, e);
        sys->close(sys, output->file);
        if (e->code != OK && !output->unnamed) sys->remove(sys, output->temporary);
    }
    sys->release(sys, output->temporary);
    return e->code;
}
