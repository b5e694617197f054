/* Reads and writes images: PNG of any kind, JPEG and WebP, by one file per format (picture_png.c ...).
 *
 * Images are read as 8-bit RGB or RGBA: 16-bit samples are rounded to 8; grey and palettes become RGB; an
 * image without transparency gets alpha 255; RGB drops transparency without blending, as Pillow's
 * convert("RGB") does; an animated WebP gives its first frame; colour profiles and gamma are ignored. The
 * EXIF orientation is applied. CMYK JPEG is refused.
 *
 * Written images carry the generation parameters as text: in PNG a text chunk `parameters`, else EXIF's
 * UserComment, as AUTOMATIC1111's web UI does. PNG and JPEG need memory for a few rows; WebP needs
 * picture_write_bytes_a_pixel, which the plan of a run has to count. */
#ifndef SLUICE_CLI_PICTURE_H
#define SLUICE_CLI_PICTURE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

/* ---- reading ---- */

/* Ignored properties of an image, as bit flags. */
enum picture_note { PICTURE_TRANSPARENT = 1, PICTURE_ANIMATED = 2 };

/* Largest width and height. Larger images are refused before memory is allocated. */
enum { PICTURE_READ_SIDE_MAX = SLUICE_SIDE_MAX };

/* Reads the header of a regular file: size of the image and memory for reading it. *picture borrows name.
 * *notes: the ignored properties that the header shows. */
int picture_open(const char *name, struct sluice_picture *picture, unsigned *notes, struct sluice_error *e);
/* Callback for rows of `width` RGB triples or RGBA quadruples, from top to bottom. */
struct row_sink {
    void (*take)(void *to, const uint8_t *row);
    void *to;
    bool rgba; /* RGBA; false: RGB */
};

/* Decodes the pixels, with the memory of picture->reading_bytes. *notes: ignored properties that the header
 * did not show, with rows->rgba without transparency. CHANGED if the file has another size than at
 * picture_open. */
int picture_read(const struct sluice_picture *picture, const struct row_sink *rows, unsigned *notes,
                 struct sluice_error *e);

/* ---- writing ---- */

struct picture_content {
    const struct sluice_image *image; /* with alpha if image->alpha is not NULL */
    const char *parameters;           /* generation parameters as UTF-8 text; NULL: none */
    int quality;                      /* JPEG and WebP quality, 1 to 100; PNG ignores it */
};

enum { PICTURE_QUALITY = 90 };

/* True if the name has the extension of an image format, even if this build cannot write it. */
bool picture_has_extension(const char *name);
/* USAGE if this build cannot write images with the extension of the given name. "-" is PNG. */
int picture_check_name(const char *name, struct sluice_error *e);
/* Bytes of memory per pixel for writing an image, by the extension of the name. alpha: images with alpha. */
int picture_write_bytes_a_pixel(const char *name, bool alpha);
int picture_max_side(const char *name);
/* False if the format of the given extension has no alpha (JPEG): picture_write lays the image over white. */
bool picture_keeps_alpha(const char *name);
bool picture_takes_quality(const char *name);

/* Writes the image to a file, or to stdout if name is "-". Exit code 6 and no file on failure. */
int picture_write(const char *name, const struct picture_content *content, struct sluice_error *e);

/* ---- the formats: picture_png.c, picture_jpeg.c, picture_webp.c ---- */

/* An open image file. A format's read_info function fills the members after `format`. */
struct picture_source {
    FILE *from;
    const char *name;
    int format;             /* index in the table of picture.c */
    int width, height;      /* image size as stored, without EXIF orientation; 1 to PICTURE_READ_SIDE_MAX */
    int orientation;        /* EXIF orientation, 1 to 8 */
    unsigned notes;         /* enum picture_note */
    uint64_t reading_bytes; /* memory for decoding, without the output row */
};

/* read_info: reads the header, from any file position. decode: decodes the file to rows in stored
 * orientation; needs read_info before; adds the notes that the header did not show. encode: writes an image
 * to an open file; `name` is for messages. */
int picture_png_read_info(struct picture_source *source, struct sluice_error *e);
int picture_png_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
int picture_encode_png(FILE *to, const char *name, const struct picture_content *content,
                       struct sluice_error *e);
int picture_jpeg_read_info(struct picture_source *source, struct sluice_error *e);
int picture_jpeg_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
int picture_encode_jpeg(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);
int picture_webp_read_info(struct picture_source *source, struct sluice_error *e);
int picture_webp_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
int picture_encode_webp(FILE *to, const char *name, const struct picture_content *content,
                        struct sluice_error *e);

/* Writes row y of an image with alpha as RGBA quadruples. */
void picture_join_row(const struct sluice_image *image, size_t y, uint8_t *to);
/* A colour over white, rounded to nearest. */
static inline uint8_t picture_over_white(int value, int alpha) {
    return (uint8_t)((255 * (255 - alpha) + value * alpha + 127) / 255);
}

/* Errors that the image formats share. problem: an errno. message: the text of the encoder's library. */
int picture_unreadable(const char *name, int problem, struct sluice_error *e);
int picture_too_short(const char *name, long long bytes, struct sluice_error *e);
int picture_no_memory(const char *name, struct sluice_error *e);
int picture_unencodable(const char *name, const char *message, struct sluice_error *e);
/* Fails with LIMIT unless both sides of the image are 1 to PICTURE_READ_SIDE_MAX. */
int picture_check_sides(const char *name, long long width, long long height, struct sluice_error *e);

/* Number of chunks or segments that are searched for EXIF. Bounds the time for malformed files; real files
 * have fewer. */
enum { EXIF_CHUNKS_MAX = 4096 };

/* Reads the orientation, 1 to 8, from a TIFF structure of at most `bytes` bytes at the current position of
 * the file. Returns 1 (as stored) if the structure has no orientation or is invalid. */
int exif_orientation(FILE *from, unsigned long bytes);

struct exif {
    unsigned char *at; /* "Exif", two zeros, TIFF structure, one padding zero; free with free(3) */
    size_t bytes;      /* without the padding */
};

/* Makes an EXIF block whose only entry is UserComment in UTF-16. utf8 must be well-formed. False if out of
 * memory. */
bool exif_from_comment(const char *utf8, struct exif *out);

#endif
