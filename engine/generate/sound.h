/* The decoded sound of a video: checks, hashes and emits its samples. */
#ifndef SLUICE_GENERATE_SOUND_H
#define SLUICE_GENERATE_SOUND_H

#include "engine/generate/running.h"

/* After an evaluation of the sound decoder's stage: fails with NONFINITE, and dumps the spectrogram. */
enum status sound_decoded(struct running *r, int video, struct error *e);
/* After an evaluation of the vocoder's stage: limits the samples to -1..1 and passes them to on_sound. */
enum status sound_vocoded(struct running *r, int video, struct error *e);

#endif
