/* Reads small files completely: implements file_read_text of loaders.h. */
#include "loaders/loaders.h"

#include <inttypes.h>

#include "engine/base/header_limit.h"

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
