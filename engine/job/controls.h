/* Control images of a request: checks them against the model's control networks, and fills job->controls. */
#ifndef SLUICE_JOB_CONTROLS_H
#define SLUICE_JOB_CONTROLS_H

#include "engine/job/job.h"

/* Pictures that a control network reads. In brackets: its input channels. */
enum control_pictures {
    CONTROL_READS_IMAGE,   /* the control image */
    CONTROL_READS_MASKED,  /* the image to inpaint and its mask [latent, 1 - mask] */
    CONTROL_READS_INPAINT, /* the control image, and optionally the image to inpaint and its mask [latent,
                              1 - mask, latent] */
};
/* Pictures of a component of the model; -1 (the denoiser reads the image): CONTROL_READS_IMAGE. */
enum control_pictures controls_pictures(const struct job *job, int component);

/* Returns control i of the request, or the defaults if the plan assumes the control. */
struct sluice_control controls_requested(const struct job *job, int i);

/* Resolves the controls of the request. Call after pictures_copy and pictures_assume. Writes job->controls,
 * and gives the request's image and mask to inpainting networks without their own. Fails with USAGE, or
 * with LIMIT for a picture's size. */
enum status controls_resolve(struct job *job, struct error *e);

/* True if the VAE encodes a control image. */
bool controls_need_encoder(const struct job *job);

enum { CONTROL_NAME_BYTES = 128 };
/* Name of the network of control i: its file without extension, or its folder for a diffusers file name; the
 * family's name if it has no files; the model's name for an image that the denoiser reads. Returns out. */
char *controls_name(const struct job *job, int i, char out[CONTROL_NAME_BYTES]);
enum { CONTROLS_TEXT_BYTES = CONTROLS_MAX * (CONTROL_NAME_BYTES + 192) };
/* Describes the controls for the metadata of images (sluice_image.controls). Returns out; NULL: none. */
char *controls_text(const struct job *job, char out[CONTROLS_TEXT_BYTES]);
/* Name of the control's mode; NULL: the network has no modes, or no names of them. */
const char *controls_mode_name(const struct job *job, int i);

#endif
