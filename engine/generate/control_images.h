/* Control images of control networks, and of denoisers with a control image (Flux.1 Canny and Depth): the
 * tensors layout.control_input and layout.concat.
 *
 * Networks read pixels, or a latent of the image: the mean of the VAE's posterior (as ComfyUI; diffusers
 * draws a sample, some pipelines from the global generator), normalised like the denoiser's latent. All
 * images of a batch share one control image. Channels of a network that inpaints: C + 1:   latent of the
 * image with -1 in repainted pixels; 1 - mask (diffusers 0.42, pipelines/qwenimage,
 *            pipeline_qwenimage_controlnet_inpaint.py)
 *   2 C + 1: latent of the control image; 1 - mask; latent of the image to inpaint with grey in repainted
 *            pixels; zeros where the request has no image or mask (pipelines/z_image,
 *            pipeline_z_image_controlnet_inpaint.py)
 * The mask of a latent pixel is that of its upper left pixel. */
#ifndef SLUICE_GENERATE_CONTROL_IMAGES_H
#define SLUICE_GENERATE_CONTROL_IMAGES_H

#include "engine/job/job.h"

/* Before the first visit: writes the pixels and mask channels of the control networks' inputs. Fails like
 * dump_save. */
enum status control_images_begin(const struct job *job, struct error *e);
/* Writes the picture that the VAE encodes, ENCODED_CONTROL_IMAGE or ENCODED_CONTROL_INPAINT, to out [1, Y, X,
 * C], C: 3, or 4 for a VAE with alpha. */
void control_images_fill(const struct job *job, const struct encoded *encoded, struct tensor out);
/* Stores the encoder's output for encoded picture i. Fails like dump_save. */
enum status control_images_take(const struct job *job, int i, struct tensor moments, struct error *e);

#endif
