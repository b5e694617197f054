/* A GGUF header while it is read, and as it is kept: what the parts of the parser share.
 *
 * The header lies in address space reserved for as much as a header may have, into which it is read in
 * growing pieces: nothing moves, so texts and values point into it, and no byte is read twice. Only the
 * functions of bytes.c move the place; each looks whether the bytes are there before anything uses them.
 */
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
    GGUF_ALIGNMENT = 32, /* where no key says another */
    GGUF_ALIGNMENT_MAX = 65536,
    GGUF_BLOCKS_MAX = 512, /* in <architecture>.block_count */
    GGUF_RANK_MAX = 8,
    GGUF_PARTS_MAX = 256,
};

/* A metadata key with its value. */
struct gguf_pair {
    struct gguf_text key;
    struct gguf_value value;
};

struct gguf_tensor {
    struct gguf_text name;
    int type; /* a number that gguf_types knows */
    int rank;
    int32_t dim[GGUF_RANK_MAX]; /* outermost first */
    uint64_t offset, bytes;     /* offset: in the data; once all is checked, in the file */
};

struct gguf {
    struct sys *sys;
    unsigned char *text;
    uint64_t reserved, committed;
    uint64_t bytes;          /* read so far */
    struct gguf_pair *pairs; /* sorted by key */
    int n_pairs;
    struct gguf_tensor *tensors; /* sorted by name */
    int n_tensors;
    uint64_t name_bytes; /* of all tensors, with a NUL each */
    char *architecture;
    uint64_t host_bytes;
};

/* What alloc_array takes for n things. */
static inline uint64_t gguf_array_bytes(uint64_t n, uint64_t bytes) {
    return n ? n * bytes : 1;
}

/* ---- bytes.c ---- */

/* The place in a header, and whose bytes stand there, for messages. */
struct gguf_place {
    const struct byte_source *source;
    struct gguf *header;
    uint64_t at;
    const char *kind;      /* "key", "tensor"; NULL: neither */
    struct gguf_text name; /* of that key or tensor */
};

/* "KIND 'NAME': WHAT", with the file and a byte of it. */
enum status gguf_fail(const struct gguf_place *place, uint64_t at, enum status code, const char *what,
                      struct error *e);
/* The byte of the file where a text lies. */
uint64_t gguf_at(const struct gguf_place *place, struct gguf_text text);
/* Bytes of the file from the place on. */
uint64_t gguf_left(const struct gguf_place *place);
/* Reserves room for the header of the place's source. */
enum status gguf_begin(struct gguf_place *place, struct error *e);
/* The next n bytes are in memory. TRUNC, LIMIT, IO, CHANGED, MEMORY. */
enum status gguf_need(struct gguf_place *place, uint64_t n, struct error *e);
/* A little-endian number of at most 8 bytes. Here, so that a length is one load: a tokenizer has 300,000. */
static inline uint64_t gguf_little_endian(const unsigned char *bytes, int n) {
    uint64_t number = 0;
    for (int i = 0; i < n; i++) number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}
enum status gguf_take(struct gguf_place *place, int n, uint64_t *number, struct error *e);
/* A length and so many bytes. BOUNDS beyond the file, LIMIT above most; what: the text's role. */
enum status gguf_take_text(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *text,
                           struct error *e);
/* The same for a name: META if it is empty or holds a NUL, UTF8. */
enum status gguf_take_name(struct gguf_place *place, const char *what, uint64_t most, struct gguf_text *name,
                           struct error *e);
/* TRUNC unless the rest of the file has room for n things of at least so many bytes. */
enum status gguf_check_count(const struct gguf_place *place, uint64_t n, uint64_t least_bytes,
                             const char *what, struct error *e);
int gguf_compare_texts(struct gguf_text a, struct gguf_text b);

/* ---- metadata.c ---- */

/* Reads n pairs, sorts them, and checks those that mean something to every file. */
enum status gguf_read_pairs(struct gguf_place *place, uint64_t n, uint64_t *alignment, struct error *e);
/* An integer from a value of any kind of integers: false if it is none of these, or beyond 63 bits. */
bool gguf_integer(const struct gguf_value *value, uint64_t i, int64_t *number);
/* The pairs whose keys begin so: their number, and the first. */
int gguf_with_prefix(const struct gguf *header, const char *prefix, const struct gguf_pair **first);

/* ---- json.c ---- */

/* The scalars and short arrays, as gguf_open says; freed with sys->release. NULL: more than a configuration
 * may have, or with an error. */
char *gguf_to_json(const struct gguf *header, const char *path, struct error *e);

/* ---- tensors.c ---- */

/* Element types by their numbers in files. A type without a name does not exist (any more). */
struct gguf_type {
    const char *name;
    enum dtype dtype;
    int values, bytes; /* of a block */
};
enum { GGUF_TYPES = 43 };
extern const struct gguf_type gguf_types[GGUF_TYPES];

/* Reads n infos, and checks that their bytes lie apart from each other in the file. */
enum status gguf_read_tensors(struct gguf_place *place, uint64_t n, uint64_t alignment, struct error *e);

#endif
