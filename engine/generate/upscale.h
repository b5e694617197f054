/* Callbacks of the stage that enlarges images (engine/job/upscale.h). */
#ifndef SLUICE_GENERATE_UPSCALE_H
#define SLUICE_GENERATE_UPSCALE_H

#include "engine/generate/running.h"

/* Writes the image of an evaluation to the upscaler's input, as numbers from 0 to 1. */
void upscale_begins(const struct running *r, int evaluation);
/* Emits the enlarged image of an evaluation; alpha is enlarged by Pillow's Lanczos. NONFINITE; MEMORY. */
enum status upscale_ended(struct running *r, int stage, int evaluation, struct error *e);

#endif
