/* Writes images: PNG, JPEG or WebP by extension, 8-bit RGB, with the generation parameters as text: in PNG a
 * text chunk `parameters`, else EXIF's UserComment, as AUTOMATIC1111's web UI does. PNG and JPEG need memory
 * for a few rows; WebP needs picture_write_bytes_a_pixel, which the plan of a run has to count. */
#ifndef SLUICE_CLI_PICTURE_WRITE_H
#define SLUICE_CLI_PICTURE_WRITE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

struct picture_content {
    const struct sluice_image *image;
    const char *parameters; /* UTF-8 text; NULL: none */
    int quality;            /* 1 to 100; PNG ignores it */
};

enum { PICTURE_QUALITY = 90 };

/* True if the name has the extension of an image format, even if this build cannot write it. */
bool picture_has_extension(const char *name);
/* USAGE if this build cannot write images with the extension of the given name. "-" is PNG. */
int picture_check_name(const char *name, struct sluice_error *e);
/* Bytes of memory per pixel for writing an image, by the extension of the given name. */
int picture_write_bytes_a_pixel(const char *name);
int picture_max_side(const char *name);
bool picture_takes_quality(const char *name);

/* Writes the image to a file, or to stdout if name is "-". Exit code 6 and no file on failure. */
int picture_write(const char *name, const struct picture_content *content, struct sluice_error *e);

int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e);
int picture_encode_jpeg(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);
int picture_encode_webp(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);
/* Fills the error OUTPUT with the message of the encoder's library. */
int picture_unencodable(const char *name, const char *message, struct sluice_error *e);

#endif
