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

/* Formats a size with three digits, such as "419 MiB" or "12.3 GiB". Returns out. */
enum { SIZE_TEXT_BYTES = 32 };
char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);

/* strtod with a decimal point in any locale. NaN if memory is short. */
double text_number(const char *text, char **end);

/* Sorts n elements of `bytes` bytes. Returns the index of the first element that equals the element before; 0
 * if all differ. */
int sort_find_duplicate(void *things, int n, size_t bytes, int (*compare)(const void *, const void *));

#endif
