/* Reads the orientation of an image from EXIF; makes EXIF data with a comment. */
#ifndef SLUICE_CLI_EXIF_H
#define SLUICE_CLI_EXIF_H

#include <stdbool.h>
#include <stdio.h>

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
