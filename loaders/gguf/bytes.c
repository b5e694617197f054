/* Reads the bytes of a GGUF header in file order: see header.h. */
#include "loaders/gguf/header.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/header_limit.h"

enum {
    PAGE = 4096,
    FIRST_PIECE = 64 << 10,
    LARGEST_PIECE = 16 << 20,
    LEAST_RESERVED = 32 << 20,
    SHOWN_NAME_MAX = 120
};

enum status gguf_fail(const struct gguf_place *place, uint64_t at, enum status code, const char *what,
                      struct error *e) {
    int shown = place->name.bytes < SHOWN_NAME_MAX ? (int)place->name.bytes : SHOWN_NAME_MAX;
    if (place->kind)
        error_set(e, code, "%s '%.*s': %s", place->kind, shown, place->name.text, what);
    else
        error_set(e, code, "%s", what);
    return error_where(e, "%s, byte %" PRIu64, place->source->path, at);
}

uint64_t gguf_at(const struct gguf_place *place, struct gguf_text text) {
    return (uint64_t)(text.text - (const char *)place->header->text);
}

uint64_t gguf_left(const struct gguf_place *place) {
    return (uint64_t)place->source->identity.bytes - place->at;
}

/* Reserves address space for the largest possible header. If address space is limited (ulimit), reserves
 * less, because few headers need 32 MB. */
enum status gguf_begin(struct gguf_place *place, struct error *e) {
    struct gguf *header = place->header;
    uint64_t bytes = (uint64_t)place->source->identity.bytes;
    header->reserved = bytes < GGUF_HEADER_BYTES_MAX ? bytes : GGUF_HEADER_BYTES_MAX;
    header->text = header->sys->reserve(header->sys, header->reserved);
    while (!header->text && header->reserved > LEAST_RESERVED) {
        header->reserved /= 2;
        header->text = header->sys->reserve(header->sys, header->reserved);
    }
    if (header->text) return OK;
    return error_set(e, MEMORY, "no memory for a header of up to %" PRIu64 " bytes" WHERE "%s",
                     header->reserved, place->source->path);
}

/* Reads the header at least up to `end`, in growing pieces, so that few calls are needed, and at most twice
 * the needed bytes are read. */
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
        (pages && header->sys->commit(header->sys, LINE_HOST, header->text + header->committed, pages))) {
        return error_set(e, MEMORY, "no memory for %" PRIu64 " bytes of a header" WHERE "%s", to,
                         place->source->path);
    }
    header->committed += pages;
    uint64_t from = header->bytes;
    if (source_read(place->source, header->text + from, to - from, from, e) == OK) header->bytes = to;
    return e->code;
}

enum status gguf_need(struct gguf_place *place, uint64_t n, struct error *e) {
    if (n > gguf_left(place)) {
        gguf_fail(place, place->at, TRUNC, "file ends too early, maybe an incomplete download", e);
        error_found(e, "%" PRIu64 " bytes", gguf_left(place));
        return error_expected(e, "at least %" PRIu64, n);
    }
    if (n > GGUF_HEADER_BYTES_MAX - place->at) {
        gguf_fail(place, place->at, LIMIT, "header is too long", e);
        return error_expected(e, "at most %d bytes", GGUF_HEADER_BYTES_MAX);
    }
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
    gguf_fail(place, at, beyond ? BOUNDS : LIMIT,
              beyond ? "a string extends past the end of the file" : "a string is too long", e);
    error_found(e, "%s of %" PRIu64 " bytes", what, text->bytes);
    return error_expected(e, "at most %" PRIu64, beyond ? left : most);
}

enum status gguf_take_name(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *name,
                           struct error *e) {
    uint64_t at = place->at;
    if (gguf_take_text(place, what, most, name, e) != OK) return e->code;
    if (!name->bytes)
        gguf_fail(place, at, META, "name is empty", e);
    else if (memchr(name->text, 0, name->bytes))
        gguf_fail(place, at, META, "name contains a NUL byte", e);
    else if (utf8_valid_bytes(name->text, name->bytes) < name->bytes)
        gguf_fail(place, at, UTF8, "name is not valid UTF-8", e);
    else
        return OK;
    error_found(e, "%s of %" PRIu64 " bytes", what, name->bytes);
    return e->code;
}

enum status gguf_check_count(const struct gguf_place *place, uint64_t n, uint64_t least_bytes,
                             const char *what, struct error *e) {
    if (n <= gguf_left(place) / least_bytes) return OK;
    gguf_fail(place, place->at, TRUNC, "file is too short for its contents, maybe an incomplete download", e);
    error_found(e, "%" PRIu64 " bytes for %" PRIu64 " %s", gguf_left(place), n, what);
    return error_expected(e, "at least %" PRIu64 " bytes each", least_bytes);
}

int gguf_compare_texts(struct gguf_text a, struct gguf_text b) {
    int order = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}
