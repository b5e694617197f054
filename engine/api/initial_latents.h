/* Initial latents: the sample before the first step, from noise (text-to-image), a latent file, or encoded
 * pictures (img2img, inpainting, references, video frames).
 *
 * Each image has one random generator. As in diffusers, its values go first to the encoded input image, then
 * to the initial noise, then to the masked image. Pictures are encoded one after another in shared memory:
 * the host writes a picture after it has copied the encoder's output for the previous picture. */
#ifndef SLUICE_API_INITIAL_LATENTS_H
#define SLUICE_API_INITIAL_LATENTS_H

#include "engine/api/job.h"
#include "engine/sample/noise.h"

struct initial_latents {
    struct job *job;
    struct generator *generators; /* one per image; owned */
    const char *latent_file;      /* file of initial noise (--init-latent) or latent to decode; NULL: none */
};

/* Call before the first visit: seeds the generators and fills the latents that need no encoded picture.
 * latent_file: the file's tensor "latent" replaces the noise, or is decoded in a decode-only job. Fails with
 * SHAPE, NONFINITE, MEMORY or an error of reading. */
enum status initial_latents_open(struct initial_latents *init, struct job *job, const char *latent_file,
                                 struct error *e);
/* initial_latents_fill_input and initial_latents_take_encoded are called for every chunk of encoded picture i
 * (a still image has chunk 0 only). initial_latents_fill_input writes the encoder's input frames before the
 * evaluation, initial_latents_take_encoded stores the encoder's output after the evaluation. Both return the
 * status of the frame-reading callback, MEMORY, or NONFINITE. */
enum status initial_latents_fill_input(const struct job *job, int i, int chunk, struct error *e);
enum status initial_latents_take_encoded(struct initial_latents *init, int i, int chunk, struct error *e);
void initial_latents_close(struct initial_latents *init);
/* Fills `to` with standard normals from the generator of one image of the batch. */
void initial_latents_draw(struct initial_latents *init, int image, struct tensor to);
/* Writes the denoiser's input for call i_call: the sample times the call's input_scale, with clean frames put
 * in. Skips the scaling if layout.input is the latent itself. */
void scale_model_input(const struct job *job, int image, int i_call);

/* True if the latents are complete before the first visit: no initial image has to be encoded. */
bool initial_latents_need_no_picture(const struct job *job);

/* Fails with NONFINITE, if t has NaN or infinity. The message names stage and step (step: from 0; negative:
 * not named). */
enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e);

#endif
