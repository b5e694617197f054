/* JSON from files: Jansson behind our limits, with errors that name file and byte.
 *
 * Two ways in. json_parse builds a whole document, for files of known small size. The walk below goes through
 * an object's members one by one and hands each to Jansson alone: a header of 100 MB would cost Jansson
 * gigabytes if it became one document, and its members must be counted before anything is built from them.
 *
 * Invariants: Jansson is only given text whose nesting has been measured (it recurses); duplicate keys are
 * errors at every level that Jansson sees, and the caller's to find among the members of a walk. */
#ifndef SLUICE_LOADERS_JSON_H
#define SLUICE_LOADERS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* Documents above this freed size leave enough behind in the C library's heap to be worth sys->trim. */
enum { JSON_LARGE_BYTES = 1 << 20 };

/* How often Jansson has lacked memory on this thread: a call that does may give a document without a part of
 * it. From the first call on its allocations are watched, in the whole process, through whatever allocator it
 * has. Who builds a document asks before and after. */
unsigned json_losses(void);
/* A document's text, freed with free. NULL if the document is NULL, or was built while json_losses moved from
 * what it was before. Takes root. */
char *json_hand_out(json_t *root, size_t flags, unsigned losses_before);
/* json_loadb, for json_parse and json_decode. False without memory: what was built so far stays allocated, as
 * Jansson cannot be trusted to give it back. */
bool json_load_watched(const char *text, size_t bytes, size_t flags, json_t **root, json_error_t *failure);

/* Part of a file's text; borrows all of it. */
struct json_text {
    const char *path;
    const char *text;
    uint64_t bytes;
    uint64_t offset; /* of text[0] in the file, for messages */
};

/* Parses a whole document, an object or an array, of at most 256 MB and depth_limit levels of nesting (a flat
 * object is 1). *root is freed with json_decref; NULL on failure. JSON (a byte order mark too), LIMIT (size,
 * nesting, a number beyond 64 bits), DUP, UTF8 (a lone surrogate too), META (\u0000 in a string), MEMORY. */
enum status json_parse(const char *path, const char *text, uint64_t bytes, int depth_limit, json_t **root,
                       struct error *e);

/* Decodes one value of any kind. The caller knows its nesting to be harmless: it comes out of a walk. flags
 * are Jansson's, added to JSON_REJECT_DUPLICATES and JSON_DECODE_ANY. LIMIT only for a number beyond 64 bits;
 * the other errors as above. */
enum status json_decode(const struct json_text *value, size_t flags, json_t **root, struct error *e);

/* The first character that is no white space, which tells the value's kind; 0 if there is none. */
char json_first_char(const struct json_text *value);

/* A string of text that need not be UTF-8 (a path, a message with one, shortened in the middle of a
 * character): then '?' stands for every byte above 127. NULL without memory. */
json_t *json_string_of(const char *text);

struct json_member {
    struct json_text name;  /* with its quotes and escapes */
    struct json_text value; /* bounded by nesting and quotes only: json_decode says whether it is JSON */
};

struct json_walk {
    struct json_text object;
    uint64_t at;
    int depth_limit;
    bool begun;
};

/* Starts a walk over an object whose values nest at most depth_limit - 1 levels. JSON if it is no object. */
enum status json_walk_start(struct json_walk *walk, const struct json_text *object, int depth_limit,
                            struct error *e);
/* The next member, in the order of the text. False at the end or on error (JSON, LIMIT for nesting): e->code
 * tells which. At the end nothing but white space follows the object. */
bool json_walk_next(struct json_walk *walk, struct json_member *member, struct error *e);

#endif
