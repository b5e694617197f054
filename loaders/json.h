/* JSON: Jansson's values with our own parser, which has limits and errors that name file and byte. json_parse
 * builds a whole document, for small files. json_walk iterates over the members of an object and decodes one
 * member at a time. A safetensors header of 100 MB would take gigabytes as one document, and its members must
 * be counted before memory is allocated for them. Invariants: text is parsed only after its nesting has been
 * checked, because the parser recurses. Duplicate keys are errors at every decoded level; callers of a walk
 * detect duplicates among its members. Jansson's allocator belongs to the process: this library does not
 * replace it. */
#ifndef SLUICE_LOADERS_JSON_H
#define SLUICE_LOADERS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

/* Size in bytes of a JSON document above which the caller should call sys->trim after releasing the
 * document. sys->trim returns free heap memory to the system. */
enum { JSON_LARGE_BYTES = 1 << 20 };

/* Number of failed JSON allocations on this thread. Jansson drops a member when memory is short, and the
 * document looks complete. Code that builds a document therefore compares the number before and after, and
 * adds members with json_put and json_push; json_count_failure counts results (0 or -1) of Jansson
 * functions. */
unsigned failed_json_allocations(void);
void json_put(json_t *object, const char *name, json_t *value);
void json_push(json_t *array, json_t *value);
void json_count_failure(int failed);
/* Serialises a document and releases root; free the text with free. NULL if memory is short, if root is NULL,
 * or if allocations have failed since failures_before. */
char *json_to_text(json_t *root, size_t flags, unsigned failures_before);

/* A part of a file's JSON text; all pointers are borrowed. */
struct json_text {
    const char *path;
    const char *text;
    uint64_t bytes;
    uint64_t offset; /* offset of text[0] in the file, for messages */
};

/* Parses a whole document, an object or an array, of at most 256 MB and depth_limit levels (a flat object is
 * 1). *root is freed with json_decref; NULL on failure. Errors: JSON (also for a byte order mark), LIMIT
 * (size, nesting, a number beyond the range of a double), DUP, UTF8 (also a lone surrogate), META (\u0000 in
 * a string), MEMORY. An integer beyond 64 bits becomes a real number, because transformers writes 10^30 for
 * "no limit".
 */
enum status json_parse(const char *path, const char *text, uint64_t bytes, int depth_limit, json_t **root,
                       struct error *e);

/* Flag of json_decode, in a bit that Jansson does not use: integers beyond 64 bits become real numbers,
 * others stay integers. */
enum { JSON_BIG_INT_AS_REAL = 1 << 24 };

/* Decodes one value of any type from a walk (json_walk_next has checked its nesting). flags: JSON_ALLOW_NUL
 * for \u0000 in strings, JSON_DECODE_INT_AS_REAL or JSON_BIG_INT_AS_REAL for integers beyond 64 bits, which
 * fail with LIMIT without one of the two. Other errors as in json_parse. */
enum status json_decode(const struct json_text *value, size_t flags, json_t **root, struct error *e);

/* Returns the first character of a text that is not white space; it determines the type of a JSON value. 0:
 * only white space. */
char json_first_char(const struct json_text *value);

/* Makes a JSON string from text such as a path or a shortened message. If the text is invalid UTF-8, '?'
 * replaces every byte above 127. NULL if memory is short. */
json_t *json_string_of(const char *text);

/* Returns a configuration as a flat JSON object: the inverse of config_parse (loaders.h). */
struct config;
json_t *config_json(const struct config *config);

struct json_member {
    struct json_text name;  /* name of the member as in the file, with quotes and escapes */
    struct json_text value; /* text of the value, not validated before json_decode */
};

struct json_walk {
    struct json_text container; /* the object or array */
    uint64_t at;                /* offset of the next byte in it */
    int depth_limit;            /* levels that values may nest */
    bool array;                 /* the container is an array */
    bool begun;                 /* a member was returned */
};

/* Starts a walk over an object whose values nest at most depth_limit - 1 levels. Fails with JSON if the text
 * is no object. */
enum status json_walk_start(struct json_walk *walk, const struct json_text *object, int depth_limit,
                            struct error *e);
/* Starts a walk over an array. Its elements are members with empty names. The value of a missing element
 * ("[1,,2]") is an empty text, which json_decode rejects. Fails with JSON if the text is no array. */
enum status json_walk_array(struct json_walk *walk, const struct json_text *array, int depth_limit,
                            struct error *e);
/* Returns the next member in text order. False at the end, where only white space follows, or on error
 * (e->code: JSON, or LIMIT for nesting). */
bool json_walk_next(struct json_walk *walk, struct json_member *member, struct error *e);

#endif
