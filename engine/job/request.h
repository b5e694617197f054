/* Resolves a request: fills in its defaults and checks it against model and device, before any memory is
 * planned. */
#ifndef SLUICE_JOB_REQUEST_H
#define SLUICE_JOB_REQUEST_H

#include "engine/job/job.h"

/* Resolves job->request. Writes job->settings (all but decoder_slot and the numbers of prompts, which open.c
 * adds) and pictures.reference_size. Reads job->model, device, settings.decode_only and the pictures that
 * pictures_copy copied. Fails with USAGE for an invalid request, with SHAPE (exit 2) for a reference image of
 * an unsupported size, with MISSING for a missing component. */
enum status request_resolve(struct job *job, struct error *e);

/* Resolves the request of a job that only enlarges an image (job_context.upscales): budgets, precision,
 * direct reads. Fails with USAGE for an invalid request. */
enum status request_resolve_upscale(struct job *job, struct error *e);

/* Size at which reference image i is passed to the vision encoder, which may resize it again. Needs
 * job->pictures.reference_size[i]. */
struct picture_size request_vision_size(const struct job *job, int i);
/* Number of video frames whose vision tokens the denoiser reads: 0, 1 (the first) or 2 (first and last). */
int request_vision_frames(const struct sluice_model *model);
/* Size of each frame of the control video; 0x0 without a control video. */
struct picture_size request_control_size(const struct sluice_request *request);
/* True if two strings are equal; `choice` may be NULL. */
bool choice_is(const char *choice, const char *how);

#endif
