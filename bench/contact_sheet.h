/* A contact sheet: pictures in rows, the prompt under each, as one PNG. Knows nothing of models or sessions;
 * the only file of ours that draws text, by cairo. */
#ifndef SLUICE_BENCH_CONTACT_SHEET_H
#define SLUICE_BENCH_CONTACT_SHEET_H

#include <stdint.h>

struct sheet_picture {
    const char *prompt;
    int width, height;
    const uint8_t *rgb; /* height rows of width RGB triples, packed */
};

struct contact_sheet {
    const char *title, *subtitle, *footer; /* one line each */
    const struct sheet_picture *pictures;
    int n_pictures;
};

/* Writes the sheet to file, under a temporary name until it is whole. NULL, or what went wrong. */
const char *contact_sheet_write(const struct contact_sheet *sheet, const char *file);

#endif
