/* The transition from the first to the second pass (--hires): enlarges the first pass's latents or images,
 * and makes the second pass's first samples. */
#ifndef SLUICE_GENERATE_SECOND_PASS_H
#define SLUICE_GENERATE_SECOND_PASS_H

#include "engine/generate/running.h"

/* After the first pass's last denoise stage. Enlarges each image's latent and adds new noise of the image's
 * generator. Does nothing if images are enlarged instead of latents. For a latent upscaler, only puts the
 * clean frames of image-to-video into the latents that the upscaler reads. */
enum status second_pass_begin(struct running *r, struct error *e);
/* After the stage of a latent upscaler: adds noise to the enlarged latents and to the first pass's sound
 * latents, and makes the second pass's first inputs. NONFINITE if an enlarged latent is not finite. */
enum status second_pass_upsampled(struct running *r, struct error *e);
/* Resizes a finished image of the first pass, packed RGB [Y, X, 3] U8, by Pillow's Lanczos to the second
 * pass's size. The second pass encodes the result. */
void second_pass_enlarge(struct running *r, int image, struct tensor rgb);

#endif
