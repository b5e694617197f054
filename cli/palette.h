/* Pictures of 256 colours of their own, for GIF. */
#ifndef SLUICE_CLI_PALETTE_H
#define SLUICE_CLI_PALETTE_H

#include <stdint.h>

enum { PALETTE_COLOURS = 256 };

/* What choosing colours for pictures of one width takes. */
struct palette;

/* NULL without memory; free(3) frees it. */
struct palette *palette_new(int width);

/* Of height rows of RGB triples, packed: 256 colours as 0xFFRRGGBB, and for each pixel which of them it gets,
 * rows stride bytes apart. Colours by median cut, what each pixel misses goes to its neighbours (Floyd and
 * Steinberg). */
void palette_reduce(struct palette *palette, const uint8_t *rgb, int height, uint32_t *colours,
                    uint8_t *indices, int stride);

#endif
