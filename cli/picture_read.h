/* Pictures in: PNG of any legal kind as 8-bit RGB. Interlaced ones too; 16 bits are rounded to 8; grey and
 * palettes become colours; transparency is dropped without blending, as other programs drop it (Pillow's
 * convert("RGB")); colour profiles and gamma are not applied. */
#ifndef SLUICE_CLI_PICTURE_READ_H
#define SLUICE_CLI_PICTURE_READ_H

#include "engine/sluice.h"

#include <stdbool.h>

/* Sides of 1 to this; no memory is taken for more. */
enum { PICTURE_READ_SIDE_MAX = 16384 };

/* Reads the regular file of that name, which the picture borrows; its pixels are freed with picture_free. On
 * failure it has none. transparent: the file says something of transparency, which is lost. */
int picture_read(const char *name, struct sluice_picture *picture, bool *transparent, struct sluice_error *e);
/* Its pixels; NULL is fine for them. */
void picture_free(struct sluice_picture *picture);

#endif
