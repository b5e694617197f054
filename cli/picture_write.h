/* Pictures out: PNG, JPEG or WebP by the name's extension, RGB of 8 bits, with the text `parameters`: of PNG
 * a chunk of that name, else EXIF's UserComment, where tools look for it. PNG and JPEG take memory for a few
 * rows; WebP some bytes a pixel (picture_write_bytes), which a run's plan must have counted. */
#ifndef SLUICE_CLI_PICTURE_WRITE_H
#define SLUICE_CLI_PICTURE_WRITE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

struct picture_content {
    const struct sluice_image *image;
    const char *parameters; /* UTF-8; NULL: none is written */
    int quality;            /* 1 to 100; PNG has none */
};

enum { PICTURE_QUALITY = 90 };

/* Does the name end as pictures that any build writes do? */
bool picture_has_extension(const char *name);
/* USAGE for names that this build writes no picture under; "-" is PNG. */
int picture_check_name(const char *name, struct sluice_error *e);
/* Of a picture of that name, while it is written. */
int picture_write_bytes_a_pixel(const char *name);
/* The longest side of such a picture. */
int picture_side_most(const char *name);
bool picture_takes_quality(const char *name);

/* Writes the picture under name, or to stdout if name is "-"; exit 6 and no file on failure. */
int picture_write(const char *name, const struct picture_content *content, struct sluice_error *e);

/* ---- of the formats, a file each ---- */

int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e);
int picture_encode_jpeg(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);
int picture_encode_webp(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);
/* OUTPUT, with what a library said. */
int picture_unencodable(const char *name, const char *message, struct sluice_error *e);

#endif
