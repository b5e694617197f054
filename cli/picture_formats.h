/* Interface of the image decoders, one file per format: picture_png.c, picture_jpeg.c, picture_webp.c.
 * picture_read.c chooses one by the file's signature. */
#ifndef SLUICE_CLI_PICTURE_FORMATS_H
#define SLUICE_CLI_PICTURE_FORMATS_H

#include "cli/picture_read.h"

#include <stdio.h>

/* An open image file. The decoder's read_info function fills in the members after `kind`. */
struct picture_source {
    FILE *from;
    const char *name;
    int kind;               /* index of the decoder in the table of picture_read.c */
    int width, height;      /* before EXIF orientation; 1 to PICTURE_READ_SIDE_MAX */
    int orientation;        /* EXIF orientation, 1 to 8 */
    unsigned notes;         /* enum picture_note */
    uint64_t reading_bytes; /* memory for decoding, without the output row */
};

/* read_info: reads the header, from any file position. decode: decodes the file to rows in stored
 * orientation; needs read_info before; adds the notes that the header did not show. */
int picture_png_read_info(struct picture_source *source, struct sluice_error *e);
int picture_png_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
int picture_jpeg_read_info(struct picture_source *source, struct sluice_error *e);
int picture_jpeg_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);
int picture_webp_read_info(struct picture_source *source, struct sluice_error *e);
int picture_webp_decode(struct picture_source *source, const struct row_sink *rows, struct sluice_error *e);

/* Errors that all formats share. problem: an errno. */
int picture_unreadable(const char *name, int problem, struct sluice_error *e);
int picture_too_short(const char *name, long long bytes, struct sluice_error *e);
int picture_no_memory(const char *name, struct sluice_error *e);
/* LIMIT unless both sides are 1 to PICTURE_READ_SIDE_MAX. */
int picture_check_sides(const char *name, long long width, long long height, struct sluice_error *e);

#endif
