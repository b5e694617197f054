/* Kinds of pictures that are read: what looks at a file's head and what decodes it, a file each. Shared by
 * these and by what chooses among them (picture_read.c). */
#ifndef SLUICE_CLI_PICTURE_KINDS_H
#define SLUICE_CLI_PICTURE_KINDS_H

#include "cli/picture_read.h"

#include <stdio.h>

/* An open file. Looking fills in what is behind its name. */
struct picture_source {
    FILE *from;
    const char *name;
    int kind;               /* a row of picture_read.c's table */
    int width, height;      /* as stored: 1 to PICTURE_READ_SIDE_MAX */
    int orientation;        /* 1 to 8, as EXIF counts: how what is stored is to be turned */
    unsigned notes;         /* enum picture_note */
    uint64_t reading_bytes; /* what decoding takes beside the row that it hands over */
};

/* look: from wherever the file stands; decode: the same file once more, its rows as stored, no sooner than it
 * was looked at; notes are those of what is behind the head too. */
int picture_png_look(struct picture_source *source, struct sluice_error *e);
int picture_png_decode(struct picture_source *source, const struct row_taker *rows, struct sluice_error *e);
int picture_jpeg_look(struct picture_source *source, struct sluice_error *e);
int picture_jpeg_decode(struct picture_source *source, const struct row_taker *rows, struct sluice_error *e);
int picture_webp_look(struct picture_source *source, struct sluice_error *e);
int picture_webp_decode(struct picture_source *source, const struct row_taker *rows, struct sluice_error *e);

/* What any of them may fail with. */
int picture_unreadable(const char *name, int problem, struct sluice_error *e);
int picture_too_short(const char *name, long long bytes, struct sluice_error *e);
int picture_no_memory(const char *name, struct sluice_error *e);
/* LIMIT unless both sides are legal. */
int picture_check_sides(const char *name, long long width, long long height, struct sluice_error *e);

#endif
