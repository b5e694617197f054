/* What a video is led by (CONCAT_LED): a video of as many frames, of which a mask says what is drawn anew,
 * and pictures that are frames in front of it while it is drawn, in the opposite of the order in which they
 * were given, and cut off at its end.
 *
 * Beside the latent lie that of the leading video where nothing is drawn, that of where it is drawn (grey
 * elsewhere, both), and the mask, a channel a pixel under a latent pixel, whose greys are told as they are;
 * in the pictures it draws from half of white on. Without a leading video all is grey, and drawn; without a
 * mask all of the leading video is. In front are the pictures' latents, zeros, and zeros.
 *
 * Source: diffusers 0.42, pipelines/wan/pipeline_wan_vace.py. */
#ifndef SLUICE_API_LED_H
#define SLUICE_API_LED_H

#include "engine/api/job.h"

/* Frames of that chunk of the video that is encoded, to out, the tensor of a chunk's frames. Whatever the
 * caller's function that reads a frame fails with; MEMORY. */
enum status led_fill(const struct job *job, const struct encoded *encoded, const struct frame_chunk *chunk,
                     struct tensor out, struct error *e);
/* A picture in front, to the chunk's one frame: as large as fits into it, the rest white. */
void led_fill_front(const struct job *job, const struct encoded *encoded, struct tensor out);
/* Where the latent of that video, or of the pictures in front, goes: [C, F, Y, X], of it the frame of a
 * chunk. */
struct tensor led_latent(const struct job *job, const struct encoded *encoded);
int led_frame(const struct job *job, const struct encoded *encoded, int chunk);
/* Once all are encoded: what is not the latent of anything. */
void led_finish(const struct job *job);
/* Cuts what was in front off a latent, in its place. */
void led_cut(const struct job *job, struct tensor latent);

#endif
