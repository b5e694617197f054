/* Pictures of another size than what is drawn, made to fit: which part of the resampled picture is seen and
 * where it lies, and how its pixels come to memory. A picture whose reader hands rows over is resampled on
 * the way and never held whole.
 *
 * Source of crop's and pad's sizes: diffusers 0.42, image_processor.py (resize_mode "crop" and "fill",
 * "default" is stretch). */
#ifndef SLUICE_PICTURES_FIT_H
#define SLUICE_PICTURES_FIT_H

#include "engine/pictures/resample.h"

enum fit { FIT_CROP, FIT_PAD, FIT_STRETCH, N_FITS };

/* The part of the picture that is made lies at (left, top) of `size`; the rest goes on as the part's edges.
 */
struct fitting {
    struct picture_size from, size;
    struct picture_part part;
    int left, top;
};

const char *fit_name(enum fit fit);
/* NULL is crop. USAGE for names that are none. */
enum status fit_find(const char *name, enum fit *fit, struct error *e);
/* Sides of 1 to 16384. */
struct fitting fit_make(enum fit fit, struct picture_size from, struct picture_size size);
bool fit_changes(const struct fitting *fitting);

/* Memory for a while, beside the pixels that are made: resampling, the whole picture where its reader hands
 * over nothing less, and what the reader itself takes. */
uint64_t fit_bytes(const struct sluice_picture *given, const struct fitting *fitting);
/* to: size.height rows of size.width RGB triples, packed. Takes fit_bytes; whatever the caller's function
 * fails with, MEMORY, IO for a reader of too few rows. */
enum status fit_read(struct sys *sys, const struct sluice_picture *given, const struct fitting *fitting,
                     uint8_t *to, struct error *e);

#endif
