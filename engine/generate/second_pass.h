/* The transition from the first to the second pass (--hires): enlarges the first pass's latents or images, and
 * makes the second pass's first samples. */
#ifndef SLUICE_GENERATE_SECOND_PASS_H
#define SLUICE_GENERATE_SECOND_PASS_H

#include "engine/generate/running.h"

/* After the first pass's last denoise stage. Enlarges each image's latent and adds new noise of the image's
 * generator. Does nothing if images are enlarged instead of latents. */
enum status second_pass_begin(struct running *r, struct error *e);
/* After the first pass has decoded an image: writes the enlarged image, which the second pass encodes. Fails
 * with MEMORY or NONFINITE. */
enum status second_pass_take_image(struct running *r, int image, struct error *e);

#endif
