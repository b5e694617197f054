/* Frames of a video that are given: pictures that it begins with, or begins and ends with.
 *
 * A denoiser reads them beside the latent (CONCAT_FRAMES): which frames are given, a channel a frame under a
 * latent one, and the latent of a video of these frames with grey ones between them. Or the first is the
 * latent's own first frame (job.given_frames): what denoisers read has it without noise in every call, the
 * sampler goes on with what it makes of it, and at the end it takes its place.
 *
 * Source: diffusers 0.42, pipelines/wan/pipeline_wan_i2v.py. */
#ifndef SLUICE_API_GIVEN_H
#define SLUICE_API_GIVEN_H

#include "engine/api/job.h"

/* Frames of that chunk of the video that is encoded to out, the tensor of a chunk's frames. */
void given_fill(const struct job *job, const struct frame_chunk *chunk, struct tensor out);
/* Which frames are given, to their channels of what lies beside the latent. */
void given_mask(const struct job *job);
/* Where in what lies beside the latent the latent of given frames is, [C, F, Y, X]. */
struct tensor given_latent(const struct job *job);
/* The latent's first frames in that image's place, where they are given. */
void given_put(const struct job *job, struct tensor latent);

#endif
