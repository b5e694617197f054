/* What counts of EXIF here: how a picture is turned, and a comment in it. */
#ifndef SLUICE_CLI_EXIF_H
#define SLUICE_CLI_EXIF_H

#include <stdbool.h>
#include <stdio.h>

/* Chunks of a file that it is looked for in: nobody writes as many, and passing over each takes a while. */
enum { EXIF_WITHIN = 4096 };

/* 1 to 8, of the TIFF structure of at most so many bytes that begins where the file stands; 1, as stored,
 * where it says nothing, or nothing that can be read. */
int exif_orientation(FILE *from, unsigned long bytes);

struct exif {
    unsigned char *at; /* "Exif", two zeros, TIFF; to be freed; a zero behind its end */
    size_t bytes;
};

/* Only a UserComment in UTF-16, of well-formed UTF-8. False without memory. */
bool exif_of_comment(const char *utf8, struct exif *out);

#endif
