/* Initial latents: the sample before the first step, from noise (text-to-image), a latent file, or encoded
 * pictures (img2img, inpainting, references, video frames).
 *
 * Each image has one random generator. As in diffusers, its values go first to the encoded input image, then
 * to the initial noise, then to the masked image. Pictures are encoded one after another in shared memory:
 * the host writes a picture after it has copied the encoder's output for the previous picture. */
#ifndef SLUICE_GENERATE_INITIAL_LATENTS_H
#define SLUICE_GENERATE_INITIAL_LATENTS_H

#include "engine/generate/running.h"

/* Call before the first visit: seeds the generators and fills the latents that need no encoded picture. The
 * tensor "latent" of r->latent_file replaces the noise, or is decoded in a decode-only job. Fails with SHAPE,
 * NONFINITE, MEMORY or an error of reading. The caller frees r->generators, also after failure. */
enum status initial_latents_make(struct running *r, struct error *e);
/* True if the latents are complete before the first visit: no initial image has to be encoded. */
bool initial_latents_need_no_picture(const struct job *job);

/* Brings the noise in an image's latent to the level of the first step: scales it, or mixes it with the
 * latent `picture` of the same size (img2img). picture NULL: pure noise. */
void begin_sampling(struct job *job, int image, const float *picture);

/* Callbacks of the vision and VAE encoder stages, called for every chunk of an encoded picture (a still image
 * has one chunk). encode_begins writes the encoder's input frames before the evaluation, encode_ended stores
 * the encoder's output after the evaluation. Both return the status of the frame-reading callback, MEMORY, or
 * NONFINITE. */
enum status encode_begins(const struct running *r, int stage, int evaluation, struct error *e);
enum status encode_ended(struct running *r, int stage, int evaluation, struct error *e);

#endif
