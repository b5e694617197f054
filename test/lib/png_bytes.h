/* PNG files made byte by byte, by the specification (W3C PNG, second edition) and without libpng, right ones
 * and wrong ones. */
#ifndef SLUICE_TEST_PNG_BYTES_H
#define SLUICE_TEST_PNG_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

struct bytes {
    unsigned char *at;
    size_t n, room;
};

static inline void put(struct bytes *b, const void *from, size_t n) {
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->at = realloc(b->at, b->room);
        if (!b->at) abort();
    }
    if (n) memcpy(b->at + b->n, from, n);
    b->n += n;
}

static inline void put_byte(struct bytes *b, unsigned value) {
    put(b, &(unsigned char){(unsigned char)value}, 1);
}

static inline void put_u32(struct bytes *b, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) put_byte(b, value >> shift & 255);
}

static inline void put_signature(struct bytes *b) {
    put(b, "\x89PNG\r\n\x1a\n", 8);
}

static inline void put_chunk(struct bytes *b, const char *type, const void *data, size_t n) {
    put_u32(b, (uint32_t)n);
    put(b, type, 4);
    put(b, data, n);
    put_u32(b, (uint32_t)crc32(0, b->at + b->n - n - 4, (uInt)(n + 4)));
}

struct kind {
    unsigned width, height, depth, colours;
    bool interlaced;
};

static inline void put_ihdr(struct bytes *b, struct kind k) {
    struct bytes data = {0};
    put_u32(&data, k.width);
    put_u32(&data, k.height);
    put(&data, (unsigned char[]){(unsigned char)k.depth, (unsigned char)k.colours, 0, 0, k.interlaced}, 5);
    put_chunk(b, "IHDR", data.at, data.n);
    free(data.at);
}

static inline unsigned channels_of(unsigned colours) {
    return colours == 2 ? 3 : colours == 4 ? 2 : colours == 6 ? 4 : 1;
}

/* Something that is not smooth, from 0 to 2^depth - 1; of a palette from 0 to its last place. */
static inline unsigned sample_of(struct kind k, unsigned x, unsigned y, unsigned c) {
    uint32_t z = (x * 73856093u) ^ (y * 19349663u) ^ ((c + 1) * 83492791u);
    z = (z ^ z >> 15) * 0x2c1b3c6du;
    return (z ^ z >> 12) & ((1u << k.depth) - 1);
}

/* Entry i of the palette that pictures here have: all that their depth can tell apart. */
static inline void palette_of(unsigned i, unsigned char rgb[3]) {
    rgb[0] = (unsigned char)(i * 7 + 1);
    rgb[1] = (unsigned char)(255 - i);
    rgb[2] = (unsigned char)(i * i);
}

static inline void put_palette(struct bytes *b, unsigned n) {
    unsigned char rgb[3 * 300];
    for (unsigned i = 0; i < n; i++) palette_of(i, rgb + 3 * i);
    put_chunk(b, "PLTE", rgb, 3 * n);
}

static inline unsigned char predicted(unsigned filter, int left, int up, int corner) {
    int p = left + up - corner, a = abs(p - left), b = abs(p - up), c = abs(p - corner);
    int paeth = a <= b && a <= c ? left : b <= c ? up : corner;
    int of[] = {0, left, up, (left + up) / 2, paeth};
    return (unsigned char)of[filter];
}

/* The rows of one pass, filtered: every filter in turn. */
static inline void put_pass(struct bytes *b, struct kind k, const unsigned step[4]) {
    unsigned channels = channels_of(k.colours), bits = channels * k.depth;
    unsigned columns = (k.width - step[0] + step[2] - 1) / step[2];
    size_t row_bytes = ((size_t)columns * bits + 7) / 8, back = (bits + 7) / 8;
    unsigned char *rows = calloc(2, row_bytes), *row = rows, *before = rows + row_bytes;
    for (unsigned y = step[1], i = 0; y < k.height; y += step[3], i++) {
        memset(row, 0, row_bytes);
        for (unsigned j = 0; j < columns * channels; j++) {
            unsigned v = sample_of(k, step[0] + j / channels * step[2], y, j % channels);
            size_t bit = (size_t)j * k.depth;
            if (k.depth == 16) row[bit / 8] = (unsigned char)(v >> 8), row[bit / 8 + 1] = (unsigned char)v;
            if (k.depth <= 8) row[bit / 8] |= (unsigned char)(v << (8 - k.depth - bit % 8));
        }
        put_byte(b, i % 5);
        for (size_t j = 0; j < row_bytes; j++)
            put_byte(b, (unsigned char)(row[j] - predicted(i % 5, j < back ? 0 : row[j - back], before[j],
                                                           j < back ? 0 : before[j - back])));
        unsigned char *swap = row;
        row = before;
        before = swap;
    }
    free(rows);
}

/* What is compressed into IDAT. */
static inline void put_rows(struct bytes *b, struct kind k) {
    static const unsigned whole[4] = {0, 0, 1, 1};
    static const unsigned adam7[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                         {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    if (!k.interlaced) put_pass(b, k, whole);
    for (int i = 0; i < 7 && k.interlaced; i++)
        if (adam7[i][0] < k.width && adam7[i][1] < k.height) put_pass(b, k, adam7[i]);
}

static inline void put_deflated(struct bytes *b, const void *from, size_t n) {
    uLongf room = compressBound(n);
    unsigned char *to = malloc(room);
    if (!to || compress2(to, &room, from, n, 6) != Z_OK) abort();
    put(b, to, room);
    free(to);
}

/* The compressed rows, in chunks of at most so many bytes. */
static inline void put_idat(struct bytes *b, struct kind k, size_t most) {
    struct bytes rows = {0}, data = {0};
    put_rows(&rows, k);
    put_deflated(&data, rows.at, rows.n);
    for (size_t i = 0; i < data.n; i += most)
        put_chunk(b, "IDAT", data.at + i, data.n - i < most ? data.n - i : most);
    free(rows.at);
    free(data.at);
}

/* A right file up to its IDAT. */
static inline void put_start(struct bytes *b, struct kind k) {
    put_signature(b);
    put_ihdr(b, k);
    if (k.colours == 3) put_palette(b, 1u << k.depth);
}

static inline struct bytes make_png(struct kind k) {
    struct bytes b = {0};
    put_start(&b, k);
    put_idat(&b, k, 8192);
    put_chunk(&b, "IEND", "", 0);
    return b;
}

#endif
