/* A growing buffer for the files that tests generate, and a short notation for binary files. */
#ifndef SLUICE_TEST_BYTES_H
#define SLUICE_TEST_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Freed with free(at). A zero byte that n does not count follows the bytes. */
struct bytes {
    unsigned char *at;
    size_t n, room;
};

void bytes_put(struct bytes *b, const void *from, size_t n);
void bytes_fill(struct bytes *b, int byte, size_t n);

/* Appends a little-endian integer of 1 to 8 bytes. */
void bytes_number(struct bytes *b, uint64_t number, int bytes);

__attribute__((format(printf, 2, 3))) void bytes_print(struct bytes *b, const char *format, ...);

/* Appends what words, separated by spaces, stand for: 7 is a u32; 7:8 an integer of 8 bytes; 'abc the three
 * bytes abc; $abc the length 3 as a u64, then the bytes; $abc*70000 the text abc repeated 70,000 times; .5
 * five zeros; / zeros up to a multiple of 32, /64 of 64. */
void bytes_words(struct bytes *b, const char *words);

/* As bytes_words, of words made by printf's format. */
__attribute__((format(printf, 2, 3))) void bytes_print_words(struct bytes *b, const char *format, ...);
struct bytes bytes_of(const char *words);

/* Reads a file; fails the running cmocka test if the file cannot be read. */
struct bytes bytes_of_file(const char *path);

#endif
