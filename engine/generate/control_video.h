/* WAN VACE control videos (CONCAT_CONTROL). --control gives a video of as many frames as the output, --mask
 * marks the region to repaint, -r gives reference images.
 *
 * Reference images become extra latent frames in front of the video, last image first, and are cut off after
 * denoising. The denoiser's concat channels are, in order: the latent of the control video outside the mask
 * ("inactive" in diffusers), the latent of the control video inside the mask ("reactive"), and the mask, one
 * channel per pixel under a latent pixel. The inactive video is grey inside the mask, the reactive one grey
 * outside. Grey mask values reach the model unchanged; a pixel counts as inside from half of white on.
 * Without a control video the control video is all grey and everything is generated; without a mask the whole
 * control video is reactive. The concat channels of a reference frame are the reference image's latent, then
 * zeros. Source: diffusers 0.42, pipelines/wan/pipeline_wan_vace.py. */
#ifndef SLUICE_GENERATE_CONTROL_VIDEO_H
#define SLUICE_GENERATE_CONTROL_VIDEO_H

#include "engine/job/job.h"

/* Writes one chunk of the control video's inactive or reactive part to out, [N, Y, X, 3]. Returns the status
 * of the frame-reading callback, or MEMORY. */
enum status control_video_fill(const struct job *job, const struct encoded *encoded,
                               const struct frame_chunk *chunk, struct tensor out, struct error *e);
/* Writes a reference image to out, [1, Y, X, 3], scaled to fit and centred on white. */
void control_video_fill_reference(const struct job *job, const struct encoded *encoded, struct tensor out);
/* Destination of an encoder output (control video or reference image): the part of the concat channels [C, F,
 * Y, X], and the index of the latent frame that a chunk fills. */
struct tensor control_video_latent(const struct job *job, const struct encoded *encoded);
int control_video_frame(const struct job *job, const struct encoded *encoded, int chunk);
/* Fills the other concat channels (the mask, and zeros for reference frames) after the last picture is
 * encoded. */
void control_video_finish(const struct job *job);
/* Removes the reference frames from a latent, in place. */
void control_video_cut_references(const struct job *job, struct tensor latent);

#endif
