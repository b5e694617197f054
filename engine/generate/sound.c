#include "engine/generate/sound.h"

#include "engine/generate/dump.h"

#include <stdio.h>

/* Dumps a tensor of one video's sound (--dump) as NAME, or NAME_001 and so on after the first video. */
static enum status dump_sound(const struct job *job, const char *prefix, int video, struct tensor t,
                              struct error *e) {
    char name[32];
    if (!job->request.dump) return e->code;
    video ? snprintf(name, sizeof name, "%s_%03d", prefix, video) : snprintf(name, sizeof name, "%s", prefix);
    return dump_save(job->sys, job->request.dump, name, t, e);
}

enum status sound_decoded(struct running *r, int video, struct error *e) {
    struct tensor mel = r->pass->layout.mel[video];
    if (check_finite(mel, "the sound's spectrogram", "sound", -1, e) != OK) return e->code;
    return dump_sound(r->pass, "mel", video, mel, e);
}

enum status sound_vocoded(struct running *r, int video, struct error *e) {
    const struct job *job = r->pass;
    const struct component *vocoder = model_component(job->model, FAMILY_VOCODER);
    struct tensor wave = job->layout.wave;
    float *samples = wave.data;
    char *sha256 = r->report->sound_sha256[video];
    if (check_finite(wave, "the sound", "vocoder", -1, e) != OK ||
        dump_sound(job, "wave", video, wave, e) != OK)
        return e->code;
    for (int64_t i = 0, n = tensor_elements(&wave); i < n; i++)
        samples[i] = samples[i] < -1 ? -1 : samples[i] > 1 ? 1 : samples[i];
    sha256_hex(samples, (size_t)tensor_bytes(&wave), sha256);
    r->report->n_sounds = video + 1;
    struct sluice_sound out = {.struct_size = sizeof out,
                               .index = video,
                               .sample_rate = vocoder->sample_rate,
                               .channels = wave.dim[1],
                               .samples = wave.dim[0],
                               .pcm = samples,
                               .sha256 = sha256};
    if (r->options->on_sound) r->options->on_sound(r->options->user, &out);
    return OK;
}
