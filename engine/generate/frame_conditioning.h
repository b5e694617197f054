/* First/last-frame conditioning: image-to-video models that start from an input image (--init-img), or go
 * from a first frame to a last frame (--end-img).
 *
 * CONCAT_I2V (WAN I2V, FLF2V): the denoiser reads extra channels next to the latent: a mask of the fixed
 * frames (one channel per video frame under a latent frame), and the latent of a video that has the fixed
 * frames and is grey elsewhere. Clean frames (WAN 2.2 TI2V; job.n_clean_frames): the image's latent replaces
 * the first latent frame, without noise, in every denoiser input and in the result. The sampler still updates
 * the first frame of the sample, without effect. Source: diffusers 0.42, pipelines/wan/pipeline_wan_i2v.py.
 */
#ifndef SLUICE_GENERATE_FRAME_CONDITIONING_H
#define SLUICE_GENERATE_FRAME_CONDITIONING_H

#include "engine/job/job.h"

/* CONCAT_I2V: writes one chunk of the video to encode to out, [N, Y, X, 3]: input images in fixed frames,
 * else grey (0). */
void frame_conditioning_fill(const struct job *job, const struct frame_chunk *chunk, struct tensor out);
/* CONCAT_I2V: writes the frame mask (1: fixed, 0: generated) to the first channels of layout.concat. */
void frame_conditioning_mask(const struct job *job);
/* CONCAT_I2V: the slice of layout.concat that receives the encoded video, [C, F, Y, X]. */
struct tensor frame_conditioning_latent(const struct job *job);
/* Overwrites the first n_clean_frames frames of a latent [C, F, Y, X] with the input image's latent. */
void frame_conditioning_put_clean(const struct job *job, struct tensor latent);

#endif
