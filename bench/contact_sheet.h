/* Draws a contact sheet: images in rows with their prompts, as one PNG. */
#ifndef SLUICE_BENCH_CONTACT_SHEET_H
#define SLUICE_BENCH_CONTACT_SHEET_H

#include <stdint.h>

struct sheet_picture {
    const char *prompt;
    int width, height;
    const uint8_t *rgb; /* RGB pixels, 3 bytes each: `height` rows of `width` pixels without padding */
};

struct contact_sheet {
    const char *title, *subtitle, *footer;
    const struct sheet_picture *pictures;
    int n_pictures;
};

/* Writes the sheet through a temporary file that is renamed when complete. Returns NULL or an error
 * message. */
const char *contact_sheet_write(const struct contact_sheet *sheet, const char *file);

#endif
