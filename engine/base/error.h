/* Errors in four parts: what failed, where, what was found, what was expected. Every function that can fail
 * returns an enum status and fills a struct error of its caller. The exit class follows from the code;
 * callers may override it: invalid UTF-8 is wrong usage in a prompt, but a damaged file in a tokenizer. */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

/* Status codes with fixed numbers: engine/sluice.h repeats the numbers, and engine/api checks that the two
 * files agree. */
enum status {
    OK = 0,
    /* codes 1 to 19: problems with a file or its content; the program exits with 3 */
    TRUNC = 1,
    BADMAGIC = 2,
    VERSION = 3,
    LIMIT = 4,
    OVERFLOW = 5,
    BOUNDS = 6,
    OVERLAP = 7,
    DUP = 8,
    TYPE = 9,
    SHAPE = 10,
    ALIGN = 11,
    JSON = 12,
    UTF8 = 13,
    META = 14,
    MISSING = 15,
    UNUSED = 16,
    IO = 17,
    CHANGED = 18,
    UNSUPPORTED = 19,
    INTERNAL = 32,  /* exit 1 */
    USAGE = 33,     /* exit 2 */
    BUDGET = 34,    /* exit 4 */
    DEVICE = 35,    /* exit 5 */
    MEMORY = 36,    /* exit 5 */
    OUTPUT = 37,    /* exit 6 */
    NONFINITE = 38, /* exit 7 */
    CANCELLED = 39, /* exit 130 */
};

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
