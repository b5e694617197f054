#include "test/lib/png_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

void png_put_u32(struct bytes *b, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes_number(b, value >> shift, 1);
}

void png_put_signature(struct bytes *b) {
    bytes_put(b, "\x89PNG\r\n\x1a\n", 8);
}

void png_put_chunk(struct bytes *b, const char *type, const void *data, size_t n) {
    png_put_u32(b, (uint32_t)n);
    bytes_put(b, type, 4);
    bytes_put(b, data, n);
    png_put_u32(b, (uint32_t)crc32(0, b->at + b->n - n - 4, (uInt)(n + 4)));
}

void png_put_ihdr(struct bytes *b, struct kind k) {
    struct bytes data = {0};
    png_put_u32(&data, k.width);
    png_put_u32(&data, k.height);
    bytes_put(&data, (unsigned char[]){(unsigned char)k.depth, (unsigned char)k.colours, 0, 0, k.interlaced},
              5);
    png_put_chunk(b, "IHDR", data.at, data.n);
    free(data.at);
}

static unsigned png_channels(unsigned colours) {
    return colours == 2 ? 3 : colours == 4 ? 2 : colours == 6 ? 4 : 1;
}

unsigned png_sample_of(struct kind k, unsigned x, unsigned y, unsigned c) {
    uint32_t z = (x * 73856093u) ^ (y * 19349663u) ^ ((c + 1) * 83492791u);
    z = (z ^ z >> 15) * 0x2c1b3c6du;
    return (z ^ z >> 12) & ((1u << k.depth) - 1);
}

void png_palette_of(unsigned i, unsigned char rgb[3]) {
    rgb[0] = (unsigned char)(i * 7 + 1);
    rgb[1] = (unsigned char)(255 - i);
    rgb[2] = (unsigned char)(i * i);
}

void png_put_palette(struct bytes *b, unsigned n) {
    unsigned char rgb[3 * 300];
    for (unsigned i = 0; i < n; i++) png_palette_of(i, rgb + 3 * i);
    png_put_chunk(b, "PLTE", rgb, 3 * n);
}

static unsigned char png_predicted(unsigned filter, int left, int up, int corner) {
    int p = left + up - corner, a = abs(p - left), b = abs(p - up), c = abs(p - corner);
    int paeth = a <= b && a <= c ? left : b <= c ? up : corner;
    int of[] = {0, left, up, (left + up) / 2, paeth};
    return (unsigned char)of[filter];
}

/* Writes the rows of one interlace pass, each with the next PNG filter in turn. */
static void png_put_pass(struct bytes *b, struct kind k, const unsigned step[4]) {
    unsigned channels = png_channels(k.colours), bits = channels * k.depth;
    unsigned columns = (k.width - step[0] + step[2] - 1) / step[2];
    size_t row_bytes = ((size_t)columns * bits + 7) / 8, back = (bits + 7) / 8;
    unsigned char *rows = calloc(2, row_bytes), *row = rows, *before = rows + row_bytes;
    for (unsigned y = step[1], i = 0; y < k.height; y += step[3], i++) {
        memset(row, 0, row_bytes);
        for (unsigned j = 0; j < columns * channels; j++) {
            unsigned v = png_sample_of(k, step[0] + j / channels * step[2], y, j % channels);
            size_t bit = (size_t)j * k.depth;
            if (k.depth == 16) row[bit / 8] = (unsigned char)(v >> 8), row[bit / 8 + 1] = (unsigned char)v;
            if (k.depth <= 8) row[bit / 8] |= (unsigned char)(v << (8 - k.depth - bit % 8));
        }
        bytes_number(b, i % 5, 1);
        for (size_t j = 0; j < row_bytes; j++) {
            unsigned char left = j < back ? 0 : row[j - back], corner = j < back ? 0 : before[j - back];
            bytes_number(b, row[j] - (unsigned)png_predicted(i % 5, left, before[j], corner), 1);
        }
        unsigned char *swap = row;
        row = before;
        before = swap;
    }
    free(rows);
}

/* Writes the uncompressed data of IDAT. */
static void png_put_rows(struct bytes *b, struct kind k) {
    static const unsigned whole[4] = {0, 0, 1, 1};
    static const unsigned adam7[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                         {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    if (!k.interlaced) png_put_pass(b, k, whole);
    for (int i = 0; i < 7 && k.interlaced; i++)
        if (adam7[i][0] < k.width && adam7[i][1] < k.height) png_put_pass(b, k, adam7[i]);
}

void png_put_deflated(struct bytes *b, const void *from, size_t n) {
    uLongf room = compressBound(n);
    unsigned char *to = malloc(room);
    if (!to || compress2(to, &room, from, n, 6) != Z_OK) abort();
    bytes_put(b, to, room);
    free(to);
}

void png_put_idat(struct bytes *b, struct kind k, size_t most) {
    struct bytes rows = {0}, data = {0};
    png_put_rows(&rows, k);
    png_put_deflated(&data, rows.at, rows.n);
    for (size_t i = 0; i < data.n; i += most)
        png_put_chunk(b, "IDAT", data.at + i, data.n - i < most ? data.n - i : most);
    free(rows.at);
    free(data.at);
}

void png_put_start(struct bytes *b, struct kind k) {
    png_put_signature(b);
    png_put_ihdr(b, k);
    if (k.colours == 3) png_put_palette(b, 1u << k.depth);
}

struct bytes png_make(struct kind k) {
    struct bytes b = {0};
    png_put_start(&b, k);
    png_put_idat(&b, k, 8192);
    png_put_chunk(&b, "IEND", "", 0);
    return b;
}
