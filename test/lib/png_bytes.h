/* Writes valid and invalid PNG files byte by byte (W3C PNG specification, second edition), without libpng. */
#ifndef SLUICE_TEST_PNG_BYTES_H
#define SLUICE_TEST_PNG_BYTES_H

#include "test/lib/bytes.h"

#include <stdbool.h>

void png_put_u32(struct bytes *b, uint32_t value);
void png_put_signature(struct bytes *b);
void png_put_chunk(struct bytes *b, const char *type, const void *data, size_t n);

struct kind {
    unsigned width, height, depth, colours;
    bool interlaced;
};

void png_put_ihdr(struct bytes *b, struct kind k);

/* A sample that varies unevenly, 0 to 2^depth - 1; for palette images an index of the palette. */
unsigned png_sample_of(struct kind k, unsigned x, unsigned y, unsigned c);

/* Entry i of the palette of all test images, which has 2^depth entries. */
void png_palette_of(unsigned i, unsigned char rgb[3]);
void png_put_palette(struct bytes *b, unsigned n);
void png_put_deflated(struct bytes *b, const void *from, size_t n);

/* Appends the compressed rows, in IDAT chunks of at most `most` bytes. */
void png_put_idat(struct bytes *b, struct kind k, size_t most);

/* Appends the start of a valid file, up to its IDAT. */
void png_put_start(struct bytes *b, struct kind k);
struct bytes png_make(struct kind k);

#endif
