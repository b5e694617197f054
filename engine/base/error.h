/* What went wrong, said so that a person can act: what, where, found, expected.
 *
 * Every fallible function returns an enum status and fills a struct error that its caller owns. The status is
 * the error's code; the exit class (what a script sees) follows from the code unless the caller knows better
 * (a prompt with bad UTF-8 is wrong usage, a tokenizer file with bad UTF-8 is a damaged input). */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

/* Pinned numbers: they are public (engine/sluice.h repeats them, engine/api checks that both agree). */
enum status {
    OK = 0,
    /* a file or the text in it: exit 3 */
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
    /* everything else */
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
    int exit;        /* exit class of engine/sluice.h and the program */
    char what[240];  /* the thing that failed, as a noun or a short sentence */
    char where[320]; /* file and byte offset, flag, stage; long paths are shortened in the middle */
    char found[160];
    char expected[160];
};

/* The name of a code as scripts see it ("TRUNC"). Never NULL. */
const char *status_name(enum status code);

/* Starts an error: code and what (printf style), the exit class from the code, other fields empty.
 * The first error wins: if *e already holds one, nothing changes. e may not be NULL. Returns e->code. */
enum status error_set(struct error *e, enum status code, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Fill the other fields of the error just set. Each returns e->code, so that the last can be returned. */
enum status error_where(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum status error_found(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum status error_expected(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same error as wrong usage (exit 2): for what the caller typed rather than what a file holds. */
enum status error_is_usage(struct error *e);

/* One line without newline: "what (where): found X, expected Y". Returns out. */
char *error_line(const struct error *e, char *out, int out_bytes);

#endif
