/* The GGUF header during and after parsing; shared by the parts of the parser. The header lies in address
 * space reserved for the largest header and is read in growing pieces. The header never moves in memory, so
 * texts and values can point into the header, and no byte is read twice. Only functions of header.c advance
 * the read position, after checking that the bytes exist. */
#ifndef SLUICE_LOADERS_GGUF_HEADER_H
#define SLUICE_LOADERS_GGUF_HEADER_H

#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"

enum {
    GGUF_PAIRS_MAX = 65536,
    GGUF_KEY_MAX = 65535,
    GGUF_STRING_MAX = 16 << 20,
    GGUF_ARRAY_BYTES_MAX = 256 << 20,
    GGUF_HEADER_BYTES_MAX = 512 << 20,
    GGUF_ALIGNMENT = 32, /* default alignment of the data in bytes */
    GGUF_ALIGNMENT_MAX = 65536,
    GGUF_BLOCKS_MAX = 512, /* largest <architecture>.block_count */
    GGUF_RANK_MAX = 8,
    GGUF_PARTS_MAX = 256,
};

struct gguf_pair {
    struct gguf_text key;
    struct gguf_value value;
};

struct gguf_tensor {
    struct gguf_text name;
    int type; /* index into gguf_types */
    int rank;
    int32_t dim[GGUF_RANK_MAX]; /* outermost first */
    uint64_t offset, bytes;     /* offset of the tensor data: first in the data section, later in the file */
};

struct gguf {
    struct sys *sys;
    unsigned char *text;
    uint64_t reserved, committed;
    uint64_t bytes;          /* bytes of the header read so far */
    struct gguf_pair *pairs; /* sorted by key */
    int n_pairs;
    struct gguf_tensor *tensors; /* sorted by name */
    int n_tensors;
    uint64_t name_bytes; /* total bytes of the tensor names, each with a NUL */
    char *architecture;
};

/* A position in a header, and the key or tensor being read, for messages. */
struct gguf_place {
    const struct byte_source *source;
    struct gguf *header;
    uint64_t at;
    const char *kind;      /* "key" or "tensor"; NULL: neither */
    struct gguf_text name; /* name of the key or tensor being read */
};

/* Sets an error "KIND 'NAME': WHAT" with the file's path and the byte offset `at`. what: printf format, may
 * end in FOUND and EXPECTED parts (error_set). */
#define gguf_fail(e, code, place, at, what, ...)                                                             \
    error_set(e, code, "%s%s%.*s%s" what WHERE "%s, byte %" PRIu64, (place)->kind ? (place)->kind : "",      \
              (place)->kind ? " '" : "", gguf_shown_bytes(place), (place)->kind ? (place)->name.text : "",   \
              (place)->kind ? "': " : "", ##__VA_ARGS__, (place)->source->path, (uint64_t)(at))
static inline int gguf_shown_bytes(const struct gguf_place *place) {
    enum { SHOWN_NAME_MAX = 120 };
    if (!place->kind) return 0;
    return place->name.bytes < SHOWN_NAME_MAX ? (int)place->name.bytes : SHOWN_NAME_MAX;
}
/* Returns the byte offset in the file of a string in the header. */
uint64_t gguf_at(const struct gguf_place *place, struct gguf_text text);
/* Number of bytes from the current position to the end of the file. */
uint64_t gguf_left(const struct gguf_place *place);
/* Ensures that the next n bytes are in memory. Fails with TRUNC, LIMIT, IO, CHANGED or MEMORY. */
enum status gguf_need(struct gguf_place *place, uint64_t n, struct error *e);
/* A little-endian number of at most 8 bytes. Inline for speed: the metadata of a tokenizer has 300,000 string
 * lengths. */
static inline uint64_t gguf_little_endian(const unsigned char *bytes, int n) {
    uint64_t number = 0;
    for (int i = 0; i < n; i++) number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}
/* Reads a little-endian number of n bytes. */
enum status gguf_take(struct gguf_place *place, int n, uint64_t *number, struct error *e);
/* Reads a string: its length, then its bytes. BOUNDS if it extends past the file, LIMIT if it exceeds `most`
 * bytes. what: name of the string in messages. */
enum status gguf_take_text(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *text,
                           struct error *e);
/* As gguf_take_text, for a key or tensor name. META: empty or with a NUL; UTF8: invalid UTF-8. */
enum status gguf_take_name(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *name,
                           struct error *e);
/* Checks that the rest of the file can hold n items of at least least_bytes each; else TRUNC. */
enum status gguf_check_count(const struct gguf_place *place, uint64_t n, uint64_t least_bytes,
                             const char *what, struct error *e);
/* Compares two strings for sorting, like memcmp; a prefix comes first. */
int gguf_compare_texts(struct gguf_text a, struct gguf_text b);

/* Reads n metadata pairs, sorts them, and checks the general keys (alignment, architecture, block count). */
enum status gguf_read_pairs(struct gguf_place *place, uint64_t n, uint64_t *alignment, struct error *e);
/* Returns element i of a metadata value as an integer; false if the type is no integer or the number exceeds
 * 63 bits. */
bool gguf_integer(const struct gguf_value *value, uint64_t i, int64_t *number);
/* Finds the metadata pairs whose keys start with prefix. Returns their number; *first is the first pair. */
int gguf_with_prefix(const struct gguf *header, const char *prefix, const struct gguf_pair **first);

/* The scalar metadata and short arrays as JSON, as gguf_open documents; free with sys->release. NULL: too
 * large for a configuration, or an error. */
char *gguf_to_json(const struct gguf *header, const char *path, struct error *e);

/* GGUF element types; the index is the type number in files. A number without a name is unused, or its type
 * was removed from ggml. */
struct gguf_type {
    const char *name;
    enum dtype dtype;
    int values, bytes; /* number of values, and of bytes, of one quantisation block */
};
enum { GGUF_TYPES = 43 };
extern const struct gguf_type gguf_types[GGUF_TYPES];

/* Reads n tensor infos and checks that their data does not overlap and lies in the file. */
enum status gguf_read_tensors(struct gguf_place *place, uint64_t n, uint64_t alignment, struct error *e);

#endif
