#include "engine/job/job.h"

#include <stdio.h>
#include <string.h>

const struct component *job_component(const struct job *job, int slot) {
    struct adapter_base base = {job->model, job->context.requantised};
    return session_adapters_component(job->settings.decode_only ? NULL : job->context.adapters, &base, slot);
}

const struct component *job_tiny_decoder(const struct job *job) {
    const struct component *c = &job->model->component[job->settings.decoder_slot];
    return c->family && c->family->kind == FAMILY_TINY_DECODER && !job->request.no_decode ? c : NULL;
}

struct picture_size job_output_size(const struct job *job) {
    struct picture_size decoded = {job->request.width, job->request.height};
    return job->upscale.to.width ? job->upscale.to : decoded;
}

bool job_decodes(const struct job *job) {
    return job->second_pass ? job->settings.hires >= HIRES_LANCZOS : !job->request.no_decode;
}

int64_t job_sample_values(const struct job *job) {
    const struct job_latents *size = &job->latents;
    return (int64_t)size->C * size->F * size->Y * size->X +
           (int64_t)size->sound[0] * size->sound[2] * size->sound[3];
}

struct tensor job_sound(const struct job *job, struct tensor latent) {
    if (!job->latents.sound[0]) return (struct tensor){0};
    float *values = latent.data;
    return tensor_make(values ? values + tensor_elements(&latent) : NULL, DTYPE_F32, 4, job->latents.sound);
}

bool job_decodes_sound(const struct job *job) {
    return job->latents.sound[0] && !job->request.no_audio && job_decodes(job) && !job->second_pass &&
           model_component(job->model, FAMILY_SOUND_DECODER)->family &&
           model_component(job->model, FAMILY_VOCODER)->family;
}

bool job_blends_mask(const struct job *job) {
    return job->request.mask && !job->settings.decode_only &&
           job->model->recipe->images.concat == CONCAT_NONE;
}

bool job_init_is_reference(const struct job *job) {
    return job->model->recipe->images.init_is_reference && job_blends_mask(job);
}

int job_branches(const struct job *job) {
    int n = 1;
    for (int i = 0; i < job->schedule.n_spans; i++)
        if (job_span_branches(&job->schedule.spans[i]) > n) n = job_span_branches(&job->schedule.spans[i]);
    return n;
}

bool job_skips_layers(const struct job *job) {
    for (int i = 0; i < job->schedule.n_spans; i++)
        if (job->schedule.spans[i].n_slg_calls) return true;
    return false;
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

/* ---- schedule ---- */

/* Fills the step grid; image-to-image skips the first steps, by strength. */
static void fill_grid(struct job *job) {
    const struct sluice_request *r = &job->request;
    struct job_schedule *to = &job->schedule;
    struct schedule_options options = job->settings.sampling.grid;
    options.n = r->steps;
    options.shift = r->flow_shift;
    options.terminal = job->settings.terminal;
    options.is_flow = job->settings.sampling.prediction->is_flow;
    options.exponential_shift = job->model->shift_rule != FLOW_SHIFT_FIXED;
    options.table = to->noise;
    sampling_fill(&job->settings.sampling, &options, &to->grid);
    to->n_steps = r->steps;
    bool begins_at_image = r->init_image && job->model->init == INIT_IMG2IMG;
    if (!begins_at_image && !job->context.first_pass) return;
    int first = sampling_first_step(&job->settings.sampling, r->steps, r->strength), last = to->grid.n - 1;
    if (first > last) first = last;
    grid_skip(&to->grid, first);
    to->n_steps -= first;
}

/* Flow models: 1 - sigma; eps and v models: the same function of the training timestep. Source: diffusers
 * 0.42, pipelines/z_image, cfg_truncation (f32 level, f64 comparison). */
float schedule_level(const struct job *job, const struct grid_point *at) {
    const struct job_schedule *s = &job->schedule;
    float timestep = at->timestep;
    if (s->grid.continuous_timesteps) timestep = (float)noise_table_timestep(s->noise, (double)at->sigma);
    return (TRAINED_TIMESTEPS - timestep) / TRAINED_TIMESTEPS;
}

static bool is_guided_at(const struct job *job, const struct grid_point *at) {
    return (double)schedule_level(job, at) <= job->request.cfg_until || job->request.cfg_until >= 1;
}

/* As in diffusers 0.42 (pipelines/stable_diffusion_3), steps that run are counted from 0 and the interval is
 * open at both ends; img2img also counts from its first step that runs. */
bool schedule_in_slg_interval(const struct job *job, int step) {
    const struct sluice_request *r = &job->request;
    return step > job->schedule.n_steps * r->slg_start && step < job->schedule.n_steps * r->slg_end;
}

/* Appends the denoiser calls of a step, one per evaluation of the sampler. */
static void list_step(struct job *job, int step, bool guided) {
    const struct sluice_request *r = &job->request;
    struct job_schedule *to = &job->schedule;
    const struct sampling *s = &job->settings.sampling;
    struct job_span *span = &to->spans[to->n_spans - 1];
    struct denoiser_call call = {
        .step = step, .scale = guided ? span->scale : 1, .guided = guided && span->n_prompts > 1};
    /* Skip-layer guidance applies to guided steps. */
    if (call.guided && r->n_slg_layers && schedule_in_slg_interval(job, step)) call.slg_scale = r->slg_scale;
    for (call.evaluation = 0; call.evaluation < s->sampler->evaluations; call.evaluation++) {
        call.at = to->grid.step[step].at;
        if (call.evaluation && !s->sampler->evaluation_point(&to->grid, step, call.evaluation, &call.at))
            break;
        call.input_scale = call.at.input_scale;
        if (call.input_scale != 1) to->scales_input = true;
        if (call.slg_scale != 0 && !span->n_slg_calls++) span->first_slg_call = span->n_calls;
        to->calls[to->n_calls] = call;
        to->timestep_inputs[to->n_calls++] = s->prediction->timestep_input(call.at.timestep);
        span->n_calls++;
        if (call.guided) span->n_guided_calls = span->n_calls;
    }
    to->calls[to->n_calls - 1].ends_step = true;
}

enum status schedule_make(struct job *job, struct error *e) {
    const struct sluice_model *m = job->model;
    struct job_schedule *to = &job->schedule;
    const struct recipe *recipe = m->recipe;
    const struct sluice_request *r = &job->request;
    size_t n = (size_t)r->steps + GRID_EXTRA_STEPS;
    size_t calls = n * (size_t)job->settings.sampling.sampler->evaluations;
    struct sys *sys = job->sys;
    bool adds = !job->settings.sampling.prediction->is_flow;
    if (adds) to->noise = sys->alloc(sys, LINE_HOST, sizeof *to->noise);
    to->grid.step = sys->alloc(sys, LINE_HOST, n * sizeof *to->grid.step);
    to->calls = sys->alloc(sys, LINE_HOST, calls * sizeof *to->calls);
    to->timestep_inputs = sys->alloc(sys, LINE_HOST, calls * sizeof *to->timestep_inputs);
    if ((adds && !to->noise) || !to->grid.step || !to->calls || !to->timestep_inputs)
        return error_set(e, MEMORY, "no memory for %zu steps", n);
    if (adds) noise_table_fill(to->noise, &job->settings.sampling.noise);
    fill_grid(job);
    bool guided = true, guides = recipe->denoising.guides_denoised;
    bool guides_sound = guides && r->audio_cfg_scale != 1,
         stg = guides && (r->stg_scale != 0 || r->audio_stg_scale != 0),
         isolated = guides && (r->modality_scale != 1 || r->audio_modality_scale != 1);
    for (int step = 0; step < to->grid.n; step++) {
        guided = guided && is_guided_at(job, &to->grid.step[step].at);
        /* Models with two denoisers (WAN 2.2) use the second one below the boundary timestep. */
        float timestep = to->grid.step[step].at.timestep;
        bool low = m->boundary > 0 && (double)timestep < m->boundary * TRAINED_TIMESTEPS;
        double scale = !guided ? 1 : low ? r->cfg_scale_low : r->cfg_scale;
        if (!to->n_spans || to->spans[to->n_spans - 1].slot != recipe->denoising.span[low].slot)
            to->spans[to->n_spans++] = (struct job_span){.slot = recipe->denoising.span[low].slot,
                                                         .first_call = to->n_calls,
                                                         .scale = scale,
                                                         .n_prompts = scale != 1 || guides_sound ? 2 : 1,
                                                         .stg = stg,
                                                         .isolated = isolated};
        list_step(job, step, guided);
    }
    return OK;
}

bool schedule_previews_step(const struct job *job, int step) {
    bool last = step + 1 == job->schedule.grid.n;
    return job->settings.preview != PREVIEW_NONE && (step + 1) % job->request.preview_every == 0 &&
           (!last || job->request.no_decode);
}

int schedule_count_previews(const struct job *job) {
    int n = 0;
    for (int step = 0; step < job->schedule.grid.n; step++)
        n += schedule_previews_step(job, step) ? job->latents.batch : 0;
    return n;
}

bool job_control_runs(const struct job *job, int i, int step) {
    double n = job->schedule.grid.n;
    return step / n >= job->controls[i].start && (step + 1) / n <= job->controls[i].end;
}

int job_control_shape(const struct job *job, int i, int32_t dim[4]) {
    if (job->controls[i].component < 0) return 0;
    const struct component *c = &job->model->component[job->controls[i].component];
    const struct job_latents *size = &job->latents;
    if (c->family->control.input == CONTROL_LATENT) {
        memcpy(dim, (int32_t[]){c->concat_channels, 1, size->Y, size->X}, 4 * sizeof *dim);
        return 4;
    }
    int factor = model_decoder(job->model)->pixel_factor;
    memcpy(dim, (int32_t[]){size->Y * factor, size->X * factor, 3}, 3 * sizeof *dim);
    return 3;
}
