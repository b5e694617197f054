/* Previews: what a denoiser takes each image to be, shown behind a step.
 *
 * They are made of its prediction, before the sampler moves the sample by it: what is not noise in the
 * sample, not the sample itself. Nothing of the run reads what they write. Every image of a batch has its
 * own. */
#ifndef SLUICE_API_PREVIEW_H
#define SLUICE_API_PREVIEW_H

#include "engine/api/running.h"

/* What a job's previews need of a layout's tensors. */
void preview_tensors(const struct job *job, struct layout *l, struct arena *arena, bool *ok);
/* Of the images after that call? */
bool preview_is_due(const struct running *r, int i_call);
/* Takes what that call gave of an image, guided and as the denoiser gives it, before its sample moves. */
void preview_take(const struct job *job, int image, int i_call, const float *output);
/* Hands the preview of what was taken to the caller; of what is no finite numbers there is none. */
enum status preview_hand_out(struct running *r, int image, int step, struct error *e);
/* How many there will be. */
int preview_count(const struct job *job);

#endif
