/* PNG files made byte by byte, by the specification (W3C PNG, second edition) and without libpng, right ones
 * and wrong ones. */
#ifndef SLUICE_TEST_PNG_BYTES_H
#define SLUICE_TEST_PNG_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    unsigned char *at;
    size_t n, room;
};

void png_put(struct bytes *b, const void *from, size_t n);
void png_put_byte(struct bytes *b, unsigned value);
void png_put_u32(struct bytes *b, uint32_t value);
void png_put_signature(struct bytes *b);
void png_put_chunk(struct bytes *b, const char *type, const void *data, size_t n);

struct kind {
    unsigned width, height, depth, colours;
    bool interlaced;
};

void png_put_ihdr(struct bytes *b, struct kind k);

/* Something that is not smooth, from 0 to 2^depth - 1; of a palette from 0 to its last place. */
unsigned png_sample_of(struct kind k, unsigned x, unsigned y, unsigned c);

/* Entry i of the palette that pictures here have: all that their depth can tell apart. */
void png_palette_of(unsigned i, unsigned char rgb[3]);
void png_put_palette(struct bytes *b, unsigned n);
void png_put_deflated(struct bytes *b, const void *from, size_t n);

/* The compressed rows, in chunks of at most so many bytes. */
void png_put_idat(struct bytes *b, struct kind k, size_t most);

/* A right file up to its IDAT. */
void png_put_start(struct bytes *b, struct kind k);
struct bytes png_make(struct kind k);

#endif
