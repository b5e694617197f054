/* Texts and their order. */
#ifndef SLUICE_BASE_TEXT_H
#define SLUICE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* A size as people write it, "419 MiB", "12.3 GiB": three digits. Returns out. */
enum { SIZE_TEXT_BYTES = 32 };
char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);

/* strtod, whatever the process's locale has for a point. NaN without memory. */
double text_number(const char *text, char **end);

/* Sorts n things of so many bytes. The place of the first that compares equal to the one before it; 0 if all
 * differ. */
int sort_unlike(void *things, int n, size_t bytes, int (*compare)(const void *, const void *));

#endif
