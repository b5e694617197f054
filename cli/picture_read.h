/* Pictures in: PNG of any legal kind, JPEG and WebP, as 8-bit RGB. 16 bits are rounded to 8; grey and
 * palettes become colours; transparency is dropped without blending, as other programs drop it (Pillow's
 * convert("RGB")); of an animated WebP it is the first picture; colour profiles and gamma are not applied.
 * What EXIF says is turned is turned back. JPEG in the colours of print (CMYK) is refused. */
#ifndef SLUICE_CLI_PICTURE_READ_H
#define SLUICE_CLI_PICTURE_READ_H

#include "engine/sluice.h"

/* What is not used of a picture. */
enum picture_note { PICTURE_TRANSPARENT = 1, PICTURE_ANIMATED = 2 };

/* Sides of 1 to this; no memory is taken for more. */
enum { PICTURE_READ_SIDE_MAX = SLUICE_SIDE_MAX };

/* Looks at the head of the regular file of that name, which the picture borrows: its size and what reading it
 * takes. *transparent: the head says something of transparency, which is lost. */
int picture_open(const char *name, struct sluice_picture *picture, unsigned *notes, struct sluice_error *e);
/* Where rows of width RGB triples go, from the first to the last. */
struct row_taker {
    void (*take)(void *to, const uint8_t *row);
    void *to;
};

/* Its pixels. *notes: what only is said behind the head. CHANGED if the file has another
 * size by now. Takes memory: the picture's reading_bytes. */
int picture_read(const struct sluice_picture *picture, const struct row_taker *rows, unsigned *notes,
                 struct sluice_error *e);

#endif
