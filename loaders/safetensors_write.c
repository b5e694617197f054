/* Writing safetensors: see loaders.h. A reader finds either the old file or the whole new one. */
#include "loaders/json.h"
#include "loaders/loaders.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/checked.h"

/* A file being written. */
struct output {
    struct sys *sys;
    const char *path; /* its final name, for messages */
    int file;
};

static enum status fail_output(const char *path, const char *what, int failed, struct error *e) {
    error_set(e, OUTPUT, "%s", what);
    error_where(e, "%s", path);
    return error_found(e, "%s", strerror(-failed));
}

static enum status write_all(const struct output *output, const void *from, uint64_t bytes, struct error *e) {
    uint64_t done = 0;
    while (done < bytes) {
        int64_t n = sys_write(output->sys, output->file, (const char *)from + done, bytes - done);
        /* A device that takes nothing and gives no reason would be asked for ever. */
        if (n <= 0) return fail_output(output->path, "cannot write file", n ? (int)n : -EIO, e);
        done += (uint64_t)n;
    }
    return OK;
}

static enum status check_tensor(const char *path, const json_t *header, const struct named_tensor *named,
                                struct error *e) {
    assert(named->tensor.space == SPACE_HOST && tensor_packed(&named->tensor));
    size_t name_bytes = strlen(named->name);
    if (!name_bytes || name_bytes > LOADER_NAME_MAX || !strcmp(named->name, "__metadata__"))
        error_set(e, META, "tensor cannot have the name '%s'", named->name);
    else if (json_object_get(header, named->name))
        error_set(e, DUP, "two tensors have the name '%s'", named->name);
    else if (!dtype_bits(named->tensor.dtype))
        error_set(e, UNSUPPORTED, "tensor '%s' has no type that can be written", named->name);
    else
        return OK;
    return error_where(e, "%s", path);
}

static enum status add_tensor(const char *path, json_t *header, const struct named_tensor *named,
                              uint64_t *offset, struct error *e) {
    if (check_tensor(path, header, named, e) != OK) return e->code;
    const struct tensor *t = &named->tensor;
    uint64_t end = *offset + (uint64_t)tensor_bytes(t);
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer(t->dim[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(t->dtype), "shape", shape,
                              "data_offsets", (json_int_t)*offset, (json_int_t)end);
    *offset = end;
    if (entry && !json_object_set_new(header, named->name, entry)) return OK;
    /* Jansson takes no other key that check_tensor lets pass. */
    error_set(e, entry ? UTF8 : MEMORY, "tensor '%s' cannot be described", named->name);
    return error_where(e, "%s", path);
}

/* The header's text, length included, padded with spaces so that data starts at a multiple of 8. */
static enum status make_header(struct sys *sys, const char *path, const json_t *json, char **text,
                               uint64_t *bytes, struct error *e) {
    size_t json_bytes = json_dumpb(json, NULL, 0, JSON_COMPACT);
    uint64_t padded = align_up(json_bytes, 8);
    *bytes = 8 + padded;
    *text = json_bytes ? sys->alloc(sys, LINE_HOST, *bytes) : NULL;
    if (!*text) {
        error_set(e, MEMORY, "no memory for a header of %" PRIu64 " bytes", *bytes);
        return error_where(e, "%s", path);
    }
    for (int i = 0; i < 8; i++) (*text)[i] = (char)(padded >> 8 * i);
    memset(*text + 8, ' ', padded);
    json_dumpb(json, *text + 8, json_bytes, JSON_COMPACT);
    return OK;
}

static enum status describe(struct sys *sys, const char *path, const struct named_tensor *tensors,
                            int n_tensors, char **text, uint64_t *bytes, struct error *e) {
    uint64_t offset = 0;
    json_t *header = json_object();
    for (int i = 0; i < n_tensors; i++)
        if (add_tensor(path, header, &tensors[i], &offset, e) != OK) goto out;
    make_header(sys, path, header, text, bytes, e);
out:
    json_decref(header);
    return e->code;
}

static char *temporary_name(struct sys *sys, const char *path) {
    size_t bytes = strlen(path) + 32;
    char *name = sys->alloc(sys, LINE_HOST, bytes);
    if (name) snprintf(name, bytes, "%s.tmp.%ld", path, (long)getpid());
    return name;
}

/* A tensor without data, piece by piece. */
static enum status write_made(const struct output *output, const struct tensor_maker *maker, int i,
                              uint64_t bytes, struct error *e) {
    enum { PIECE_BYTES = 4 << 20 };
    struct sys *sys = output->sys;
    void *piece = sys->alloc(sys, LINE_HOST, PIECE_BYTES);
    if (!piece) return error_set(e, MEMORY, "no memory for a piece of %d bytes", PIECE_BYTES);
    while (bytes && e->code == OK) {
        uint64_t n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        if (maker->make(maker->user, i, piece, n, e) == OK) write_all(output, piece, n, e);
        bytes -= n;
    }
    sys->release(sys, piece);
    return e->code;
}

/* The whole file under its temporary name, durable. Removing it after a failure is the caller's. */
static enum status write_content(struct output *output, const char *header, uint64_t header_bytes,
                                 const struct named_tensor *tensors, int n_tensors,
                                 const struct tensor_maker *maker, struct error *e) {
    struct sys *sys = output->sys;
    write_all(output, header, header_bytes, e);
    for (int i = 0; i < n_tensors && e->code == OK; i++) {
        uint64_t bytes = (uint64_t)tensor_bytes(&tensors[i].tensor);
        maker ? write_made(output, maker, i, bytes, e) : write_all(output, tensors[i].tensor.data, bytes, e);
    }
    int failed = e->code == OK ? sys->flush(sys, output->file) : 0;
    if (failed) fail_output(output->path, "cannot write file", failed, e);
    sys->close(sys, output->file);
    return e->code;
}

/* Renaming over a device or a pipe would replace it. */
static enum status check_target(const char *path, struct error *e) {
    struct stat s;
    if (stat(path, &s) || S_ISREG(s.st_mode)) return OK;
    error_set(e, OUTPUT, "cannot write file");
    error_where(e, "%s", path);
    error_found(e, "something that is no regular file");
    return error_expected(e, "a regular file, or none yet");
}

enum status safetensors_write_made(struct sys *sys, const char *path, const struct named_tensor *tensors,
                                   int n_tensors, const struct tensor_maker *maker, struct error *e) {
    struct output output = {.sys = sys, .path = path};
    char *header = NULL, *temporary = NULL;
    uint64_t header_bytes = 0;
    if (check_target(path, e) != OK) goto out;
    if (describe(sys, path, tensors, n_tensors, &header, &header_bytes, e) != OK) goto out;
    temporary = temporary_name(sys, path);
    if (!temporary) {
        error_set(e, MEMORY, "no memory for a path");
        goto out;
    }
    output.file = sys->create(sys, temporary);
    if (output.file < 0) {
        fail_output(temporary, "cannot create file", output.file, e);
        goto out;
    }
    write_content(&output, header, header_bytes, tensors, n_tensors, maker, e);
    int failed = e->code == OK ? sys->rename(sys, temporary, path) : 0;
    if (failed) fail_output(path, "cannot rename file", failed, e);
    if (e->code != OK) sys->remove(sys, temporary);
out:
    sys->release(sys, temporary);
    sys->release(sys, header);
    return e->code;
}

enum status safetensors_write(struct sys *sys, const char *path, const struct named_tensor *tensors,
                              int n_tensors, struct error *e) {
    return safetensors_write_made(sys, path, tensors, n_tensors, NULL, e);
}
