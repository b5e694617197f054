/* Validation of UTF-8 as utf8proc defines it: surrogates and overlong forms are invalid. */
#ifndef SLUICE_LOADERS_UTF8_H
#define SLUICE_LOADERS_UTF8_H

#include <stdint.h>
#include <utf8proc.h>

/* Offset of the first byte that does not start a valid UTF-8 sequence; `bytes` if all are valid. */
static inline uint64_t utf8_valid_bytes(const char *text, uint64_t bytes) {
    uint64_t i = 0;
    while (i < bytes) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &code);
        if (n <= 0) return i;
        i += (uint64_t)n;
    }
    return bytes;
}

#endif
