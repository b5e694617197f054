#include "cli/sound.h"

#include "cli/fail.h"
#include "cli/outfile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int sound_copy(struct sound *to, const struct sluice_sound *from, struct sluice_error *e) {
    size_t bytes = (size_t)from->samples * (size_t)from->channels * sizeof *to->pcm;
    *to = (struct sound){from->sample_rate, from->channels, from->samples, malloc(bytes)};
    if (!to->pcm) return fail(e, SLUICE_MEMORY, "no memory for a sound of %zu bytes", bytes);
    memcpy(to->pcm, from->pcm, bytes);
    return SLUICE_OK;
}

void sound_free(struct sound *sound) {
    free(sound->pcm);
    *sound = (struct sound){0};
}

/* FFmpeg's encoders of sound take less than 2 MiB (AAC and Opus, FFmpeg 5.1). */
int64_t sound_bytes(double seconds) {
    enum { RATE = 48000, CHANNELS = 2, ENCODER_BYTES = 2 << 20 };
    return ENCODER_BYTES + (int64_t)((seconds + 1) * RATE * CHANNELS * sizeof(float));
}

/* Writes a little-endian number of 2 or 4 bytes. */
static void put_number(FILE *file, uint32_t number, int bytes) {
    for (int i = 0; i < bytes; i++) fputc((int)(number >> 8 * i & 255), file);
}

int sound_write_wav(const struct sound *sound, const char *name, struct sluice_error *e) {
    enum { PCM = 1, SAMPLE_BYTES = 2, HEADER_BYTES = 36, PEAK = 32767 };
    int64_t values = sound->samples * sound->channels;
    uint32_t bytes = (uint32_t)(values * SAMPLE_BYTES), row = (uint32_t)(sound->channels * SAMPLE_BYTES),
             rate = (uint32_t)sound->sample_rate;
    struct outfile out;
    if (outfile_open(&out, name, e)) return e->code;
    errno = 0;
    fputs("RIFF", out.file), put_number(out.file, HEADER_BYTES + bytes, 4), fputs("WAVEfmt ", out.file);
    put_number(out.file, 16, 4), put_number(out.file, PCM, 2);
    put_number(out.file, (uint32_t)sound->channels, 2), put_number(out.file, rate, 4);
    put_number(out.file, rate * row, 4), put_number(out.file, row, 2);
    put_number(out.file, 8 * SAMPLE_BYTES, 2), fputs("data", out.file), put_number(out.file, bytes, 4);
    for (int64_t i = 0; i < values; i++) /* rounded toward zero, as diffusers 0.42 (export_utils.py) */
        put_number(out.file, (uint32_t)(int32_t)(sound->pcm[i] * PEAK), SAMPLE_BYTES);
    if (!ferror(out.file)) return outfile_commit(&out, e);
    int problem = errno ? errno : EIO;
    outfile_abandon(&out);
    return fail_output(e, name, problem);
}
