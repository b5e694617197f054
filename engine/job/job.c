#include "engine/job/job.h"

#include <stdio.h>

const struct component *job_component(const struct job *job, int slot) {
    struct adapter_base base = {job->model, job->context.requantised};
    return session_adapters_component(job->settings.decode_only ? NULL : job->context.adapters, &base, slot);
}

const struct component *job_tiny_decoder(const struct job *job) {
    const struct component *c = &job->model->component[job->settings.decoder_slot];
    return c->family->kind == FAMILY_TINY_DECODER && !job->request.no_decode ? c : NULL;
}

bool job_blends_mask(const struct job *job) {
    return job->request.mask && !job->settings.decode_only &&
           job->model->recipe->images.concat == CONCAT_NONE;
}

int job_branches(const struct job *job) {
    int n = 1;
    for (int i = 0; i < job->schedule.n_spans; i++)
        if (job_span_branches(&job->schedule.spans[i]) > n) n = job_span_branches(&job->schedule.spans[i]);
    return n;
}

double job_flops(const struct job *job) {
    double flops = 0;
    for (int s = 0; s < job->layout.n_stages; s++) flops += job->need->stage[s].flops;
    return flops;
}

int job_find_encoded(const struct job *job, int slot, int n_chunks, int number) {
    for (int i = 0; i < job->pictures.n_encoded; i++)
        if (job->pictures.encoded[i].slot == slot && job->pictures.encoded[i].n_chunks == n_chunks &&
            !number--)
            return i;
    return -1;
}

char *job_numbered(const char *name, int i, char out[16]) {
    i ? snprintf(out, 16, "%s_%d", name, i + 1) : snprintf(out, 16, "%s", name);
    return out;
}
