/* Fits input pictures of another size to the size of the run (--fit crop|pad|stretch) and reads their pixels.
 * Pictures with a row reader are resampled row by row and never held whole. Sizes of crop and pad follow
 * diffusers 0.42, image_processor.py (resize_mode "crop" and "fill"; "default" is stretch). */
#ifndef SLUICE_PICTURES_FIT_H
#define SLUICE_PICTURES_FIT_H

#include "engine/pictures/resample.h"

enum fit { FIT_CROP, FIT_PAD, FIT_STRETCH, N_FITS };

/* How a picture is fitted: the resampled part is placed at (left, top) in an image of `size`; copies of edge
 * pixels fill the rest. */
struct fitting {
    struct picture_size from, size;
    struct picture_part part;
    int left, top;
};

const char *fit_name(enum fit fit);
/* Finds a --fit mode by name; NULL is crop. USAGE for unknown names. */
enum status fit_find(const char *name, enum fit *fit, struct error *e);
/* Computes how a picture of size `from` is fitted to `size`; sides from 1 to 16384. */
struct fitting fit_make(enum fit fit, struct picture_size from, struct picture_size size);
bool fit_changes(const struct fitting *fitting);

/* Temporary bytes of fit_read, not counting the resulting pixels: for resampling, for a whole picture that
 * has no row reader, and for the picture's reader. */
uint64_t fit_bytes(const struct sluice_picture *picture, const struct fitting *fitting);
/* Reads and fits a picture. to: size.height packed rows of size.width RGB triples. alpha: if
 * fitting->part.alpha is set, packed rows of size.width alpha bytes; else not used. Needs fit_bytes bytes of
 * memory. Returns the status of the caller's read function, MEMORY, or IO for too few rows. */
enum status fit_read(struct sys *sys, const struct sluice_picture *picture, const struct fitting *fitting,
                     uint8_t *to, uint8_t *alpha, struct error *e);

#endif
