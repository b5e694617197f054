/* The decoded sound of a video: its samples are checked, hashed and passed to the caller. */
#ifndef SLUICE_GENERATE_SOUND_H
#define SLUICE_GENERATE_SOUND_H

#include "engine/generate/running.h"

/* After an evaluation of the sound decoder's stage: checks the spectrogram (NONFINITE) and dumps it. */
enum status sound_decoded(struct running *r, int video, struct error *e);
/* After an evaluation of the vocoder's stage: checks the samples (NONFINITE), dumps them, clamps them to -1
 * to 1 and passes them to on_sound. */
enum status sound_vocoded(struct running *r, int video, struct error *e);

#endif
