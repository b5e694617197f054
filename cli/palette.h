/* Reduces each image to its own 256 colours, for GIF. */
#ifndef SLUICE_CLI_PALETTE_H
#define SLUICE_CLI_PALETTE_H

#include <stdint.h>

enum { PALETTE_COLOURS = 256 };

/* Buffers for quantising images of one width. */
struct palette;

/* Allocates the buffers, to be freed with free(3). NULL if out of memory. */
struct palette *palette_new(int width);

/* Quantises an image by median cut and dithers it (Floyd and Steinberg). rgb: height packed rows of RGB
 * triples. Writes 256 colours as 0xFFRRGGBB and one colour index per pixel; rows of indices are stride bytes
 * apart. */
void palette_reduce(struct palette *palette, const uint8_t *rgb, int height, uint32_t *colours,
                    uint8_t *indices, int stride);

#endif
