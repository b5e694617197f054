/* Reads images as 8-bit RGB: PNG of any kind, JPEG and WebP. 16-bit samples are rounded to 8; grey and
 * palettes become RGB; transparency is dropped without blending, as Pillow's convert("RGB") does; an animated
 * WebP gives its first frame; colour profiles and gamma are ignored. The EXIF orientation is applied. CMYK
 * JPEG is refused. */
#ifndef SLUICE_CLI_PICTURE_READ_H
#define SLUICE_CLI_PICTURE_READ_H

#include "engine/sluice.h"

/* Ignored properties of an image, as bit flags. */
enum picture_note { PICTURE_TRANSPARENT = 1, PICTURE_ANIMATED = 2 };

/* Largest width and height. Larger images are refused before memory is allocated. */
enum { PICTURE_READ_SIDE_MAX = SLUICE_SIDE_MAX };

/* Reads the header of a regular file: size of the image and memory for reading it. *picture borrows name.
 * *notes: the ignored properties that the header shows. */
int picture_open(const char *name, struct sluice_picture *picture, unsigned *notes, struct sluice_error *e);
/* Callback for rows of `width` RGB triples, from top to bottom. */
struct row_sink {
    void (*take)(void *to, const uint8_t *row);
    void *to;
};

/* Decodes the pixels, with the memory of picture->reading_bytes. *notes: ignored properties that the header
 * did not show. CHANGED if the file has another size than at picture_open. */
int picture_read(const struct sluice_picture *picture, const struct row_sink *rows, unsigned *notes,
                 struct sluice_error *e);

#endif
