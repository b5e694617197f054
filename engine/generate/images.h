/* Images and video frames, decoded or enlarged: checked, hashed and passed to the on_image callback. */
#ifndef SLUICE_GENERATE_IMAGES_H
#define SLUICE_GENERATE_IMAGES_H

#include "engine/generate/running.h"

/* After a decoder evaluation: one chunk of the frames of one image. Fails with NONFINITE. */
enum status images_decoded(struct running *r, int stage, int evaluation, struct error *e);
/* After an evaluation of the upscaler: one image or frame. Fails with NONFINITE or MEMORY. */
enum status images_enlarged(struct running *r, int stage, int evaluation, struct error *e);

#endif
