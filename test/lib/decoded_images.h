/* Decodes latents to images and frames, and compares them with reference pixels. */
#ifndef SLUICE_TEST_DECODED_IMAGES_H
#define SLUICE_TEST_DECODED_IMAGES_H

#include "test/lib/layout_checks.h"

struct decoded_images {
    unsigned char *rgb; /* pixels, frame by frame; freed by the caller */
    int width, height, frames;
    char decoder[16]; /* family of the tiny decoder that was used, or "none" */
};

struct decoded_images decode_images(options from, const char *latent);
/* Compares decoded images with reference pixels [frames or more, height, width, 3] in the nominal range -1
 * to 1. A value between two 8-bit levels may be rounded to either. */
void decoded_images_expect(const struct decoded_images *decoded, int height, int width, const float *truth,
                           const char *what);
/* Writes a latent file [1, C, Y, X] or [1, C, F, Y, X]; returns its path. */
const char *write_latent_file(const char *name, int rank, const int32_t *dim, const void *values);

/* Adds the tensor PREFIX0.weight, which belongs to another component. */
void add_other_tensor(struct tensor_set *p, const char *prefix);
/* Writes a changed copy of a tiny decoder's file; returns its path. without: prefix of removed tensors;
 * added: prefix of an added tensor; NULL: none. */
const char *write_near_decoder(const struct tensor_set *tiny, const char *without, const char *added);

#endif
