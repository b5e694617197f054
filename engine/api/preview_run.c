#include "engine/api/preview_run.h"

#include "engine/api/preview.h"
#include "kernels/ops.h"

#include <string.h>

enum status preview_run_open(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct job_context place = {.model = job->model, .device = job->device, .parent = job};
    struct sluice_request request = {.struct_size = sizeof request,
                                     .rates = r->rates,
                                     .rates_name = r->rates_name,
                                     .direct_io = r->direct_io,
                                     .vae_tiling = "on"};
    job->preview_job = job->sys->alloc(job->sys, LINE_HOST, sizeof *job->preview_job);
    if (!job->preview_job) return error_set(e, MEMORY, "no memory for previews");
    if (job_open(job->preview_job, &place, &request, (int32_t[]){1, job->C, 1, job->Y, job->X}, e) != OK)
        return e->code;
    /* The parent job's plan already counts the temporary memory of opening the model. */
    job->preview_job->need->open_bytes = 0;
    plan_least(job->preview_job->need, 0, 0, &job->preview_job->plan);
    return OK;
}

uint64_t preview_run_host_bytes(const struct job *job) {
    const struct job *inner = job->preview_job;
    return inner ? sizeof *inner + inner->need->host_bytes - inner->model->host_bytes : 0;
}

void preview_run_add_need(const struct job *job, bool runs_previews, struct stage_need *need) {
    const struct job *inner = job->preview_job;
    if (!inner) return;
    const struct run_need *n = inner->need;
    uint64_t primitives = n->primitives_bytes;
    uint64_t ram = inner->plan.ram_peak_bytes - n->base_bytes - n->host_bytes;
    uint64_t vram = n->separate ? inner->plan.vram_peak_bytes - n->device_bytes : 0;
    need->library_bytes += primitives;
    if (!runs_previews) return;
    need->callback_ram_bytes = ram - (n->separate ? 0 : primitives);
    need->callback_vram_bytes = vram - (n->separate ? primitives : 0);
    need->callback_seconds = inner->plan.seconds * preview_count(job);
}

static bool preview_run_tick(void *user, const struct visit *visit, double done, struct error *e) {
    struct running *r = user;
    (void)visit, (void)done;
    if (!atomic_load_explicit(&r->session->cancelled, memory_order_relaxed)) return true;
    error_set(e, CANCELLED, "cancelled" WHERE "a preview");
    return false;
}

static enum status preview_run_stage_ended(void *user, int stage, struct error *e) {
    (void)user, (void)stage;
    return e->code;
}

static enum status preview_run_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    (void)user, (void)visit;
    return e->code;
}

static void copy_latent_frame(struct tensor to, struct tensor frame) {
    size_t bytes = (size_t)frame.dim[1] * sizeof(float);
    for (int32_t c = 0; c < frame.dim[0]; c++)
        memcpy((char *)to.data + (size_t)c * bytes, (const char *)frame.data + c * frame.row_bytes, bytes);
}

enum status preview_run(struct running *r, struct tensor frame, struct tensor *rgb, struct error *e) {
    struct job *inner = r->job->preview_job;
    struct sys *sys = r->session->sys;
    struct run_hooks hooks = {.user = r,
                              .evaluation_ended = preview_run_evaluation_ended,
                              .stage_ended = preview_run_stage_ended,
                              .tick = preview_run_tick};
    struct residents none = {.sys = sys, .device = inner->device->memory ? inner->device : NULL};
    struct context x = {.device = inner->device, .error = e};
    double stalled = 0;
    if (job_allocate(inner, e) != OK) return e->code;
    struct layout *l = &inner->layout;
    struct run run = job_run(inner, l, &hooks);
    run.nested = true;
    copy_latent_frame(*l->latent, frame);
    executor_run(&run, inner->need, &inner->plan, &none, NULL, e);
    residents_destroy(&none);
    if (e->code != OK) return e->code;
    *rgb = l->rgb;
    op_image_to_rgb(&x, l->rgb, tensor_reshape(l->picture, 3, l->rgb.dim));
    return device_wait(inner->device, &stalled, e);
}
