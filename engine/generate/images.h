/* Images and video frames, decoded or enlarged: checked, hashed and passed to the on_image callback. */
#ifndef SLUICE_GENERATE_IMAGES_H
#define SLUICE_GENERATE_IMAGES_H

#include "engine/generate/running.h"

/* After a decoder evaluation: one chunk of the frames of one image. Fails with NONFINITE. */
enum status images_decoded(struct running *r, int stage, int evaluation, struct error *e);
/* Hashes an image and passes it to on_image. rgb: [Y, X, 3] U8, packed; alpha: [Y, X] U8, or rank 0. */
void images_emit(struct running *r, int image, int frame, struct tensor rgb, struct tensor alpha);

#endif
