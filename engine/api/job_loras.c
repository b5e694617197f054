/* LoRAs of a job: <lora:...> tags of its prompts, and components with the request's adapters. See job.h. */
#include "engine/api/job.h"

#include "engine/open/paths.h"

enum status job_extract_lora_tags(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const char **const texts[PROMPTS_MAX] = {&r->prompt, &r->negative_prompt};
    static const char *const names[PROMPTS_MAX] = {"prompt", "negative prompt"};
    if (job->decode_only || !r->lora_dir) return OK;
    if (!path_is_folder(r->lora_dir)) {
        return error_set(e, MISSING,
                         "the folder of --lora-dir does not exist" WHERE "%s" EXPECTED
                         "the folder that holds the LoRA files of <lora:NAME> tags",
                         r->lora_dir);
    }
    for (int i = 0; i < PROMPTS_MAX && e->code == OK; i++) {
        if (!*texts[i] || lora_tags_read(job->sys, names[i], *texts[i], &job->tags[i], e) != OK) continue;
        if (job->tags[i].text) *texts[i] = job->tags[i].text;
    }
    return e->code;
}

/* Frees components with adapters before their base components change, because a component with adapters
 * refers to the base component's weights. */
enum status job_make_components(struct job *job, struct error *e) {
    struct requantised *r = job->context.requantised;
    struct session_adapters *a = job->context.adapters;
    struct adapter_base base = {job->model, r};
    struct loras loras;
    if (r && a && (!r->made || r->type != job->weights)) session_adapters_drop_components(a);
    if (r && requantised_prepare(r, job->model, job->weights, e) != OK) return e->code;
    if (!a || job->decode_only) return OK;
    if (loras_list(job->sys, &job->request, job->tags, PROMPTS_MAX, &loras, e) == OK)
        session_adapters_prepare(a, &base, &loras, job->request.lora_partial, e);
    loras_destroy(&loras);
    return e->code;
}

const struct component *job_component(const struct job *job, int slot) {
    struct adapter_base base = {job->model, job->context.requantised};
    return session_adapters_component(job->decode_only ? NULL : job->context.adapters, &base, slot);
}
