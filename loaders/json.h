/* JSON, from files and for those who ask: Jansson's values, read within our limits by a reader of our own,
 * with errors that name file and byte.
 *
 * Two ways in. json_parse builds a whole document, for files of known small size. The walk below goes through
 * an object's members one by one, each of which is decoded alone: a header of 100 MB would take gigabytes if
 * it became one document, and its members must be counted before anything is built from them.
 *
 * Invariants: text is decoded once its nesting has been measured (the reader recurses); duplicate keys are
 * errors at every level that is decoded, and the caller's to find among the members of a walk. Jansson's
 * allocator is the process's: whoever embeds the library may set another one, we set none. */
#ifndef SLUICE_LOADERS_JSON_H
#define SLUICE_LOADERS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* Documents above this freed size leave enough behind in the C library's heap to be worth sys->trim. */
enum { JSON_LARGE_BYTES = 1 << 20 };

/* How often a document that was built on this thread has lost something: Jansson returns from where it lacks
 * memory, and a document without a member looks like any other. Who builds one asks before and after, and
 * joins it with these: json_object_set_new and json_array_append_new, where NULL is a loss too, and whatever
 * else of Jansson's returns 0 or -1. */
unsigned failed_json_allocations(void);
void json_put(json_t *object, const char *name, json_t *value);
void json_push(json_t *array, json_t *value);
void json_watch(int failed);
/* A document's text, freed with free. NULL without memory, and if the document is NULL or was built while
 * failed_json_allocations moved from what it was before. Takes root. */
char *json_hand_out(json_t *root, size_t flags, unsigned losses_before);

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

/* Decodes one value of any kind. The caller knows its nesting to be harmless: it comes out of a walk. flags:
 * JSON_ALLOW_NUL for \u0000 in strings, JSON_DECODE_INT_AS_REAL for integers beyond 64 bits. Otherwise LIMIT
 * only for a number beyond 64 bits; the other errors as above. */
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
