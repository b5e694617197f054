#include "loaders/file_kind.h"

#include <stdio.h>
#include <string.h>

#include "loaders/loaders.h"

static const struct {
    const char *start;
    size_t bytes;
    const char *kind;
} foreign[] = {
    {"version ", 8, "a git-lfs pointer (run git lfs pull)"},
    {"PK\3\4", 4, "a zip or PyTorch pickle archive (.ckpt, .pt), which is not supported"},
    {"\x80\x02", 2, "a PyTorch pickle (.ckpt, .pt), which is not supported"},
    {"\x80\x03", 2, "a pickle, which is not supported"},
    {"\x80\x04", 2, "a pickle, which is not supported"},
    {"GGUF", 4, "a GGUF file"},
    {"<!DO", 4, "an HTML page"},
    {"<!do", 4, "an HTML page"},
    {"<htm", 4, "an HTML page"},
    {"<HTM", 4, "an HTML page"},
    {"<?xm", 4, "an XML document"},
    {"\x1f\x8b", 2, "a gzip archive"},
    {"\x89PNG", 4, "a PNG picture"},
    {"\x89HDF", 4, "an HDF5 file"},
};

const char *file_kind_of(const unsigned char first[FILE_KIND_BYTES]) {
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (!memcmp(first, foreign[i].start, foreign[i].bytes)) return foreign[i].kind;
    /* A brace and a nonzero eighth byte mean a JSON file: the first eight bytes would be too large as the
     * header length of a safetensors file. */
    return first[0] == '{' && first[7] ? "a JSON document" : NULL;
}

enum status file_check_text(struct sys *sys, const char *path, const char *expected, struct error *e) {
    unsigned char first[FILE_KIND_BYTES + 1] = {0};
    struct byte_source source;
    if (source_open(sys, path, &source, e) != OK) return e->code;
    uint64_t bytes = (uint64_t)source.identity.bytes;
    source_read(&source, first, bytes < sizeof first ? bytes : sizeof first, 0, e);
    source_close(&source);
    if (e->code != OK) return e->code;
    bool json = first[0] == '{' || first[0] == ' ' || first[0] == '\n';
    const char *kind = json ? NULL : file_kind_of(first);
    if (!kind && first[FILE_KIND_BYTES] == '{' && !first[FILE_KIND_BYTES - 1]) kind = "a safetensors file";
    if (!kind) return OK;
    return error_set(e, BADMAGIC, "unexpected file format" WHERE "%s, byte 0" FOUND "%s" EXPECTED "%s", path,
                     kind, expected);
}
