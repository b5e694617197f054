/* What is shown of latents that are decoded: pictures and frames, compared with a reference's colours. */
#ifndef SLUICE_TEST_DECODED_IMAGES_H
#define SLUICE_TEST_DECODED_IMAGES_H

#include "test/lib/layout_checks.h"

struct decoded_images {
    unsigned char *rgb; /* frame by frame; the caller frees it */
    int width, height, frames;
    char decoder[16]; /* a tiny one's family, or "none" */
};

/* A latent's file. */
struct decoded_images decode_images(options from, const char *latent);
/* truth: [frames, height, width, 3], or the first of more, from -1 to 1 and beyond. A colour that lies
 * between two levels may be rounded to either. */
void decoded_images_expect(const struct decoded_images *decoded, int height, int width, const float *truth, const char *what);
/* A latent's file, of [1, C, Y, X] or [1, C, F, Y, X]. */
const char *write_latent_file(const char *name, int rank, const int32_t *dim, const void *values);

#endif
