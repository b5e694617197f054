/* Reads the bytes of GGUF headers in file order, and parses the fixed part; metadata.c parses the metadata,
 * tensors.c the tensor infos. See gguf.h and header.h. */
#include "loaders/gguf/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/checked.h"

enum { PAGE = 4096, FIRST_PIECE = 64 << 10, LARGEST_PIECE = 16 << 20, LEAST_RESERVED = 32 << 20 };

enum { FIXED_BYTES = 24, MAGIC_BYTES = 4, LEAST_VERSION = 2, MOST_VERSION = 3 };

static const char magic[] = "GGUF";

uint64_t gguf_at(const struct gguf_place *place, struct gguf_text text) {
    return (uint64_t)(text.text - (const char *)place->header->text);
}

uint64_t gguf_left(const struct gguf_place *place) {
    return (uint64_t)place->source->identity.bytes - place->at;
}

/* Reads the header at least up to `end`. The pieces grow, so that few calls are needed and at most twice the
 * needed bytes are read. */
static enum status read_on(struct gguf_place *place, uint64_t end, struct error *e) {
    struct gguf *header = place->header;
    uint64_t more = header->bytes < FIRST_PIECE     ? FIRST_PIECE
                    : header->bytes < LARGEST_PIECE ? header->bytes
                                                    : LARGEST_PIECE;
    uint64_t to = header->bytes + more > end ? header->bytes + more : end;
    if (to > header->reserved) to = header->reserved;
    uint64_t pages = align_up(to, PAGE) - header->committed;
    if (header_limit_check(header->sys, place->source->path, pages, e) != OK) return e->code;
    if (to < end ||
        (pages && header->sys->commit(header->sys, LINE_HOST, header->text + header->committed, pages)))
        return error_set(e, MEMORY, "no memory for %" PRIu64 " bytes of a header" WHERE "%s", to,
                         place->source->path);
    header->committed += pages;
    uint64_t from = header->bytes;
    if (source_read(place->source, header->text + from, to - from, from, e) == OK) header->bytes = to;
    return e->code;
}

enum status gguf_need(struct gguf_place *place, uint64_t n, struct error *e) {
    if (n > gguf_left(place))
        return gguf_fail(e, TRUNC, place, place->at,
                         "file ends too early, maybe an incomplete download" FOUND "%" PRIu64
                         " bytes" EXPECTED "at least %" PRIu64,
                         gguf_left(place), n);
    if (n > GGUF_HEADER_BYTES_MAX - place->at)
        return gguf_fail(e, LIMIT, place, place->at, "header is too long" EXPECTED "at most %d bytes",
                         GGUF_HEADER_BYTES_MAX);
    return n <= place->header->bytes - place->at ? OK : read_on(place, place->at + n, e);
}

enum status gguf_take(struct gguf_place *place, int n, uint64_t *number, struct error *e) {
    if (gguf_need(place, (uint64_t)n, e) != OK) return e->code;
    *number = gguf_little_endian(place->header->text + place->at, n);
    place->at += (uint64_t)n;
    return OK;
}

enum status gguf_take_text(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *text,
                           struct error *e) {
    uint64_t at = place->at;
    if (gguf_take(place, 8, &text->bytes, e) != OK) return e->code;
    uint64_t left = gguf_left(place);
    if (text->bytes <= left && text->bytes <= most) {
        if (gguf_need(place, text->bytes, e) != OK) return e->code;
        text->text = (const char *)place->header->text + place->at;
        place->at += text->bytes;
        return OK;
    }
    bool beyond = text->bytes > left;
    return gguf_fail(e, beyond ? BOUNDS : LIMIT, place, at,
                     "%s" FOUND "%s of %" PRIu64 " bytes" EXPECTED "at most %" PRIu64,
                     beyond ? "a string extends past the end of the file" : "a string is too long", what,
                     text->bytes, beyond ? left : most);
}

enum status gguf_take_name(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *name,
                           struct error *e) {
    uint64_t at = place->at;
    if (gguf_take_text(place, what, most, name, e) != OK) return e->code;
    if (!name->bytes)
        gguf_fail(e, META, place, at, "name is empty");
    else if (memchr(name->text, 0, name->bytes))
        gguf_fail(e, META, place, at, "name contains a NUL byte");
    else if (utf8_valid_bytes(name->text, name->bytes) < name->bytes)
        gguf_fail(e, UTF8, place, at, "name is not valid UTF-8");
    else
        return OK;
    error_found(e, "%s of %" PRIu64 " bytes", what, name->bytes);
    return e->code;
}

enum status gguf_check_count(const struct gguf_place *place, uint64_t n, uint64_t least_bytes,
                             const char *what, struct error *e) {
    if (n <= gguf_left(place) / least_bytes) return OK;
    return gguf_fail(e, TRUNC, place, place->at,
                     "file is too short for its contents, maybe an incomplete download" FOUND "%" PRIu64
                     " bytes for %" PRIu64 " %s" EXPECTED "at least %" PRIu64 " bytes each",
                     gguf_left(place), n, what, least_bytes);
}

int gguf_compare_texts(struct gguf_text a, struct gguf_text b) {
    int order = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static enum status check_most(struct gguf_place *place, uint64_t n, uint64_t most, const char *what,
                              struct error *e) {
    if (n <= most) return OK;
    return gguf_fail(e, LIMIT, place, place->at - 8, "%s" FOUND "%" PRIu64 EXPECTED "at most %" PRIu64, what,
                     n, most);
}

/* Reserves address space for the largest possible header, and reads the fixed part: magic, version, and the
 * numbers of tensors and metadata pairs. If address space is limited (ulimit), reserves less, because few
 * headers need 32 MB. */
static enum status read_fixed(struct gguf_place *place, uint64_t *n_tensors, uint64_t *n_pairs,
                              struct error *e) {
    struct gguf *header = place->header;
    uint64_t bytes = gguf_left(place), version = 0;
    if (bytes < FIXED_BYTES)
        return gguf_fail(e, TRUNC, place, 0,
                         "file is too short for a GGUF header" FOUND "%" PRIu64 " bytes" EXPECTED
                         "at least %d",
                         bytes, FIXED_BYTES);
    header->reserved = bytes < GGUF_HEADER_BYTES_MAX ? bytes : GGUF_HEADER_BYTES_MAX;
    header->text = header->sys->reserve(header->sys, header->reserved);
    while (!header->text && header->reserved > LEAST_RESERVED) {
        header->reserved /= 2;
        header->text = header->sys->reserve(header->sys, header->reserved);
    }
    if (!header->text)
        return error_set(e, MEMORY, "no memory for a header of up to %" PRIu64 " bytes" WHERE "%s",
                         header->reserved, place->source->path);
    if (gguf_need(place, FIXED_BYTES, e) != OK) return e->code;
    const unsigned char *first = header->text;
    if (memcmp(first, magic, MAGIC_BYTES)) {
        const char *kind = file_kind_of(first);
        char start[64];
        snprintf(start, sizeof start, "a file that starts with %02x %02x %02x %02x", first[0], first[1],
                 first[2], first[3]);
        if (!kind && first[FILE_KIND_BYTES] == '{' && !first[FILE_KIND_BYTES - 1])
            kind = "a safetensors file";
        return gguf_fail(e, BADMAGIC, place, 0, "not a GGUF file" FOUND "%s" EXPECTED "GGUF",
                         kind ? kind : start);
    }
    place->at = MAGIC_BYTES;
    if (gguf_take(place, 4, &version, e) != OK) return e->code;
    if (version < LEAST_VERSION || version > MOST_VERSION) {
        bool big_endian = version && !(version & 0xffff); /* the bytes of the version number are reversed */
        return gguf_fail(e, VERSION, place, MAGIC_BYTES, "%s" FOUND "0x%" PRIx64 EXPECTED "%d or %d",
                         big_endian ? "big-endian GGUF files are not supported" : "unsupported GGUF version",
                         version, LEAST_VERSION, MOST_VERSION);
    }
    if (gguf_take(place, 8, n_tensors, e) != OK) return e->code;
    if (check_most(place, *n_tensors, LOADER_TENSORS_MAX, "too many tensors", e) != OK) return e->code;
    if (gguf_take(place, 8, n_pairs, e) != OK) return e->code;
    return check_most(place, *n_pairs, GGUF_PAIRS_MAX, "too many metadata keys", e);
}

enum status gguf_read(const struct byte_source *source, struct gguf **header, struct error *e) {
    struct sys *sys = source->sys;
    uint64_t n_tensors = 0, n_pairs = 0, alignment = 0;
    struct gguf *h = *header = sys_new(sys, 1, sizeof *h, "a header", e);
    if (!h) return e->code;
    *h = (struct gguf){.sys = sys};
    struct gguf_place place = {.source = source, .header = h};
    if (read_fixed(&place, &n_tensors, &n_pairs, e) != OK ||
        gguf_read_pairs(&place, n_pairs, &alignment, e) != OK ||
        gguf_read_tensors(&place, n_tensors, alignment, e) != OK) {
        gguf_close(h);
        *header = NULL;
        return e->code;
    }
    /* Keeps the header, and returns memory pages beyond it to the system. */
    uint64_t keep = align_up(place.at, PAGE);
    if (keep < h->committed) {
        sys->decommit(sys, LINE_HOST, h->text + keep, h->committed - keep);
        h->committed = keep;
    }
    h->bytes = place.at;
    return OK;
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
