/* Input pictures of a job: which are used and encoded, at what sizes, and how their pixels are read. */
#ifndef SLUICE_JOB_PICTURES_H
#define SLUICE_JOB_PICTURES_H

#include "engine/job/job.h"

/* Called in this order by job_open: copy the request's input images; add placeholder images that only a plan
 * uses (no prompt or no model files); compute how images are fitted to the output size; list the pictures to
 * encode. pictures_copy copies no references if there are more than LANE_REFERENCES_MAX: request_resolve
 * refuses such a request. */
void pictures_copy(struct job *job);
void pictures_assume(struct job *job);
void pictures_fit(struct job *job);
void pictures_list_encoded(struct job *job);

/* The input image of an encoded picture, after fitting (pictures_fitted) or before (pictures_input). For a
 * masked image returns the mask, for a video the first frame. */
const struct sluice_picture *pictures_fitted(const struct job *job, const struct encoded *encoded);
const struct sluice_picture *pictures_input(const struct job *job, const struct encoded *encoded);
/* True if the fitted picture is resized once more, to the vision encoder's input size. */
bool pictures_resizes(const struct job *job, const struct encoded *encoded);
/* Temporary bytes for reading the input images one at a time, excluding the resulting pixels. */
uint64_t pictures_reading_bytes(const struct job *job);
/* Bytes of the control video during the run: the caller's pixels, and buffers for reading one frame. */
uint64_t pictures_control_bytes(const struct job *job);
/* Reads and fits the input images. Call after the plan was found to fit the budget. Returns the status of the
 * image-reading callback, or MEMORY. */
enum status pictures_read(struct job *job, struct error *e);

#endif
