/* The sound of a video: kept until the video is complete, written as a track of the video or as a WAV file.
 */
#ifndef SLUICE_CLI_SOUND_H
#define SLUICE_CLI_SOUND_H

#include "engine/sluice.h"

struct sound {
    int sample_rate, channels;
    int64_t samples; /* number of samples of each channel */
    float *pcm;      /* [samples][channels], -1 to 1; owned; NULL: no sound */
};

/* Copies the library's sound; free it with sound_free. MEMORY. */
int sound_copy(struct sound *to, const struct sluice_sound *from, struct sluice_error *e);
void sound_free(struct sound *sound);
/* Memory of the copy of a sound (48 kHz, stereo) and of FFmpeg's encoder, in bytes, for plans. */
int64_t sound_bytes(double seconds);
/* Writes a WAV file of 16-bit PCM. Exit code 6 if it cannot be written. */
int sound_write_wav(const struct sound *sound, const char *name, struct sluice_error *e);

#endif
