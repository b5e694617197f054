/* Errors in four parts: what failed, where, what was found, what was expected. Every function that can fail
 * returns an enum status and fills a struct error of its caller. The exit class follows from the code;
 * callers may override it: invalid UTF-8 is wrong usage in a prompt, but a damaged file in a tokenizer. */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

#include "engine/sluice.h"

/* Status codes, with the fixed numbers of the public codes. */
enum status {
    OK = SLUICE_OK,
    /* codes 1 to 19: problems with a file or its content; the program exits with 3 */
    TRUNC = SLUICE_TRUNC,
    BADMAGIC = SLUICE_BADMAGIC,
    VERSION = SLUICE_VERSION_CODE,
    LIMIT = SLUICE_LIMIT,
    OVERFLOW = SLUICE_OVERFLOW,
    BOUNDS = SLUICE_BOUNDS,
    OVERLAP = SLUICE_OVERLAP,
    DUP = SLUICE_DUP,
    TYPE = SLUICE_TYPE,
    SHAPE = SLUICE_SHAPE,
    ALIGN = SLUICE_ALIGN,
    JSON = SLUICE_JSON,
    UTF8 = SLUICE_UTF8,
    META = SLUICE_META,
    MISSING = SLUICE_MISSING,
    UNUSED = SLUICE_UNUSED,
    IO = SLUICE_IO,
    CHANGED = SLUICE_CHANGED,
    UNSUPPORTED = SLUICE_UNSUPPORTED,
    INTERNAL = SLUICE_INTERNAL,   /* exit 1 */
    USAGE = SLUICE_USAGE,         /* exit 2 */
    BUDGET = SLUICE_BUDGET,       /* exit 4 */
    DEVICE = SLUICE_DEVICE,       /* exit 5 */
    MEMORY = SLUICE_MEMORY,       /* exit 5 */
    OUTPUT = SLUICE_OUTPUT,       /* exit 6 */
    NONFINITE = SLUICE_NONFINITE, /* exit 7 */
    CANCELLED = SLUICE_CANCELLED, /* exit 130 */
};

/* Has the layout of the first members of struct sluice_error (checked in engine/open/public_structs.c). */
struct error {
    enum status code;
    int exit;        /* exit class, as in engine/sluice.h and the program's exit code */
    char what[240];  /* what failed: a noun phrase or short sentence */
    char where[320]; /* file and byte offset, flag or stage; long paths are shortened in the middle */
    char found[160];
    char expected[160];
};

/* Name of a code for scripts ("TRUNC"). Never NULL. */
const char *status_name(enum status code);

/* Separators of the parts in the format of error_set(). */
#define WHERE    "\1"
#define FOUND    "\2"
#define EXPECTED "\3"

/* Fills an error: return error_set(e, DUP, "two tensors have the same name" WHERE "%s" FOUND "'%s'", path,
 * name). The first part is what failed; the others follow in any order, each at most once. The exit class
 * follows from the code. If *e already holds an error, nothing changes: the first error stays. e may
 * not be NULL. Returns e->code. */
enum status error_set(struct error *e, enum status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* error_where, error_found, error_expected: add one part to an error that another function set, unless the
 * error has that part. Return e->code. */
enum status error_where(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum status error_found(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum status error_expected(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Changes the exit class of the error to wrong usage (2), for input that the user typed. */
enum status error_is_usage(struct error *e);

/* Formats an error as one line without newline: "what (where): found X, expected Y". Returns out. */
char *error_line(const struct error *e, char *out, int out_bytes);

#endif
