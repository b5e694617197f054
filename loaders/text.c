/* Texts from files: reads small files completely, checks UTF-8, and detects foreign file formats by their
 * first bytes. See loaders.h. */
#include "loaders/loaders.h"

#include <inttypes.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/sys.h"

char *copy_text(struct sys *sys, const char *from, uint64_t bytes, struct error *e) {
    char *copy = sys_new(sys, bytes + 1, 1, "a text of a file", e);
    if (copy && bytes) memcpy(copy, from, bytes);
    return copy;
}

uint64_t utf8_valid_bytes(const char *text, uint64_t bytes) {
    uint64_t i = 0;
    while (i < bytes) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &code);
        if (n <= 0) return i;
        i += (uint64_t)n;
    }
    return bytes;
}

enum status file_read_text(struct sys *sys, const char *path, uint64_t limit_bytes, char **text,
                           uint64_t *bytes, struct error *e) {
    struct byte_source source;
    *text = NULL;
    if (source_open(sys, path, &source, e) != OK) return e->code;
    *bytes = (uint64_t)source.identity.bytes;
    if (*bytes > limit_bytes) {
        error_set(e, LIMIT,
                  "file is too long" WHERE "%s" FOUND "%" PRIu64 " bytes" EXPECTED "at most %" PRIu64, path,
                  *bytes, limit_bytes);
        goto out;
    }
    if (header_limit_check(sys, path, *bytes, e) != OK) goto out;
    *text = sys->alloc(sys, LINE_HOST, *bytes + 1);
    if (!*text) {
        error_set(e, MEMORY, "no memory for a file of %" PRIu64 " bytes" WHERE "%s", *bytes, path);
        goto out;
    }
    source_read(&source, *text, *bytes, 0, e);
out:
    source_close(&source);
    if (e->code == OK) return OK;
    sys->release(sys, *text);
    *text = NULL;
    return e->code;
}

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
