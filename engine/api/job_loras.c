/* A job's adapters: those that its prompts name are taken out of them, and the session's are made those that
 * are asked for. See job.h. */
#include "engine/api/job.h"

enum status job_read_marks(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const char **const texts[PROMPTS_MAX] = {&r->prompt, &r->negative_prompt};
    static const char *const names[PROMPTS_MAX] = {"prompt", "negative prompt"};
    if (job->decode_only || !r->lora_dir) return OK;
    for (int i = 0; i < PROMPTS_MAX && e->code == OK; i++) {
        if (!*texts[i] || lora_marks_read(job->sys, names[i], *texts[i], &job->marks[i], e) != OK) continue;
        if (job->marks[i].text) *texts[i] = job->marks[i].text;
    }
    return e->code;
}

/* What lies on components goes before them. */
enum status job_make_components(struct job *job, struct error *e) {
    struct requantised *r = job->place.requantised;
    struct adapted *a = job->place.adapted;
    struct adapted_base base = {job->model, r};
    struct loras loras;
    if (r && a && (!r->made || r->wanted != job->weights)) adapted_forget(a);
    if (r && requantised_make(r, job->model, job->weights, e) != OK) return e->code;
    if (!a || job->decode_only) return OK;
    if (loras_list(job->sys, &job->request, job->marks, PROMPTS_MAX, &loras, e) == OK)
        adapted_make(a, &base, &loras, job->request.lora_partial, e);
    loras_destroy(&loras);
    return e->code;
}

const struct component *job_component(const struct job *job, int slot) {
    struct adapted_base base = {job->model, job->place.requantised};
    return adapted_component(job->decode_only ? NULL : job->place.adapted, &base, slot);
}
