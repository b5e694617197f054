/* Callbacks of the stage that enlarges images (engine/job/upscale.h). */
#ifndef SLUICE_GENERATE_UPSCALE_H
#define SLUICE_GENERATE_UPSCALE_H

#include "engine/generate/running.h"

/* Writes the image of an evaluation to the upscaler's input, with values 0 to 1. */
void upscale_begins(const struct running *r, int evaluation);
/* Writes the enlarged image of an evaluation as bytes to layout.upscale.rgb, and its alpha, enlarged by
 * Pillow's Lanczos, to layout.upscale.alpha. NONFINITE; MEMORY. */
enum status upscale_ended(struct running *r, int stage, int evaluation, struct error *e);

#endif
