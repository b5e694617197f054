/* GGUF headers: reads the fixed part; metadata.c and tensors.c read the rest. See gguf.h. */
#include "loaders/gguf/header.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/checked.h"

enum { FIXED_BYTES = 24, MAGIC_BYTES = 4, LEAST_VERSION = 2, MOST_VERSION = 3 };

static const char magic[] = "GGUF";

static enum status fail_magic(struct gguf_place *place, struct error *e) {
    const unsigned char *first = place->header->text;
    const char *kind = file_kind_of(first);
    gguf_fail(place, 0, BADMAGIC, "not a GGUF file", e);
    if (kind)
        error_found(e, "%s", kind);
    else if (first[FILE_KIND_BYTES] == '{' && !first[FILE_KIND_BYTES - 1])
        error_found(e, "a safetensors file");
    else
        error_found(e, "a file that starts with %02x %02x %02x %02x", first[0], first[1], first[2], first[3]);
    return error_expected(e, "GGUF");
}

/* Checks the format version. Detects big-endian files by the version number, whose bytes are reversed. */
static enum status check_version(struct gguf_place *place, uint64_t version, struct error *e) {
    if (version >= LEAST_VERSION && version <= MOST_VERSION) return OK;
    bool foreign = version && !(version & 0xffff);
    gguf_fail(place, MAGIC_BYTES, VERSION,
              foreign ? "big-endian GGUF files are not supported" : "unsupported GGUF version", e);
    error_found(e, "0x%" PRIx64, version);
    return error_expected(e, "%d or %d", LEAST_VERSION, MOST_VERSION);
}

static enum status check_most(struct gguf_place *place, uint64_t n, uint64_t most, const char *what,
                              struct error *e) {
    if (n <= most) return OK;
    gguf_fail(place, place->at - 8, LIMIT, what, e);
    error_found(e, "%" PRIu64, n);
    return error_expected(e, "at most %" PRIu64, most);
}

static enum status gguf_read_fixed(struct gguf_place *place, uint64_t *n_tensors, uint64_t *n_pairs,
                                   struct error *e) {
    uint64_t bytes = gguf_left(place), number = 0;
    if (bytes < FIXED_BYTES) {
        gguf_fail(place, 0, TRUNC, "file is too short for a GGUF header", e);
        error_found(e, "%" PRIu64 " bytes", bytes);
        return error_expected(e, "at least %d", FIXED_BYTES);
    }
    if (gguf_begin(place, e) != OK || gguf_need(place, FIXED_BYTES, e) != OK) return e->code;
    if (memcmp(place->header->text, magic, MAGIC_BYTES)) return fail_magic(place, e);
    place->at = MAGIC_BYTES;
    if (gguf_take(place, 4, &number, e) != OK) return e->code;
    if (check_version(place, number, e) != OK) return e->code;
    if (gguf_take(place, 8, n_tensors, e) != OK) return e->code;
    if (check_most(place, *n_tensors, LOADER_TENSORS_MAX, "too many tensors", e) != OK) return e->code;
    if (gguf_take(place, 8, n_pairs, e) != OK) return e->code;
    return check_most(place, *n_pairs, GGUF_PAIRS_MAX, "too many metadata keys", e);
}

/* Returns memory pages beyond the header to the system, and keeps the header. */
static void finish(struct gguf_place *place) {
    enum { PAGE = 4096 };
    struct gguf *header = place->header;
    uint64_t keep = align_up(place->at, PAGE);
    if (keep < header->committed)
        header->sys->decommit(header->sys, LINE_HOST, header->text + keep, header->committed - keep);
    header->committed = keep < header->committed ? keep : header->committed;
    header->bytes = place->at;
    header->host_bytes += header->committed;
}

enum status gguf_read(const struct byte_source *source, struct gguf **header, struct error *e) {
    struct sys *sys = source->sys;
    uint64_t n_tensors = 0, n_pairs = 0, alignment = 0;
    *header = sys->alloc(sys, LINE_HOST, sizeof **header);
    if (!*header) return error_set(e, MEMORY, "no memory for a header");
    **header = (struct gguf){.sys = sys, .host_bytes = sizeof **header};
    struct gguf_place place = {.source = source, .header = *header};
    if (gguf_read_fixed(&place, &n_tensors, &n_pairs, e) == OK &&
        gguf_read_pairs(&place, n_pairs, &alignment, e) == OK &&
        gguf_read_tensors(&place, n_tensors, alignment, e) == OK) {
        finish(&place);
        return OK;
    }
    gguf_close(*header);
    *header = NULL;
    return e->code;
}

void gguf_close(struct gguf *header) {
    if (!header) return;
    struct sys *sys = header->sys;
    if (header->committed) sys->decommit(sys, LINE_HOST, header->text, header->committed);
    sys->unreserve(sys, header->text, header->reserved);
    sys->release(sys, header->pairs);
    sys->release(sys, header->tensors);
    sys->release(sys, header->architecture);
    sys->release(sys, header);
}

uint64_t gguf_host_bytes(const struct gguf *header) {
    return header->host_bytes;
}

bool gguf_is(struct sys *sys, const char *path) {
    char first[MAGIC_BYTES];
    int file = sys->open(sys, path);
    if (file < 0) return false;
    int64_t done = 0, n = 1;
    for (; done < MAGIC_BYTES && n > 0; done += n)
        n = sys_read_at(sys, file, first + done, (size_t)(MAGIC_BYTES - done), done);
    sys->close(sys, file);
    return done == MAGIC_BYTES && !memcmp(first, magic, MAGIC_BYTES);
}
