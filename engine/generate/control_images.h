/* Control images of control networks, and of denoisers with a control image (Flux.1 Canny and Depth): the
 * tensors layout.control_input and layout.concat.
 *
 * Networks read pixels, or a latent of the image: the mean of the VAE's posterior, normalised like the
 * denoiser's latent. (ComfyUI takes the mean too; diffusers draws a sample, in some pipelines from the global
 * generator.) All images of a batch share one control image.
 *
 * A network with C + 1 input channels inpaints. It reads the latent of the image to inpaint, with -1 in
 * repainted pixels, then 1 - mask (diffusers 0.42, pipeline_qwenimage_controlnet_inpaint.py).
 *
 * A network with 2 C + 1 input channels reads the latent of the control image, then 1 - mask, then the latent
 * of the image to inpaint, with grey in repainted pixels. Channels without an image or mask are zeros
 * (pipeline_z_image_controlnet_inpaint.py).
 *
 * The mask of a latent pixel is that of its upper left pixel. */
#ifndef SLUICE_GENERATE_CONTROL_IMAGES_H
#define SLUICE_GENERATE_CONTROL_IMAGES_H

#include "engine/job/job.h"

/* Before the first visit: writes the pixels and mask channels of the control networks' inputs. Fails like
 * dump_save. */
enum status control_images_begin(const struct job *job, struct error *e);
/* Writes a picture for the VAE to out [1, Y, X, C], with C: 3, or 4 for a VAE with alpha. encoded: of kind
 * ENCODED_CONTROL_IMAGE or ENCODED_CONTROL_INPAINT. */
void control_images_fill(const struct job *job, const struct encoded *encoded, struct tensor out);
/* Stores the encoder's output for encoded picture i. Fails like dump_save. */
enum status control_images_take(const struct job *job, int i, struct tensor moments, struct error *e);

#endif
