#include "engine/generate/denoise.h"

#include "engine/generate/control_video.h"
#include "engine/generate/dump.h"
#include "engine/generate/frame_conditioning.h"
#include "engine/generate/preview.h"
#include "engine/generate/running.h"
#include "engine/job/job.h"

#include <math.h>
#include <string.h>

void scale_model_input(const struct job *job, int image, int i_call) {
    const float *sample = job->layout.latent[image].data;
    float *input = job->layout.input[image].data, scale = job->schedule.calls[i_call].input_scale;
    int64_t n = job_sample_values(job);
    for (int64_t i = 0; i < n && input != sample; i++) input[i] = scale * sample[i];
    frame_conditioning_put_clean(job, job->layout.input[image]);
}

/* Inpainting with a model that has no mask input: after every denoiser call the unmasked part of the sample
 * is overwritten with the input image's latent; where the mask lies between 0 and 1, both are mixed. The
 * latent is noised to the level at which the next step begins, and has no noise after the last call. The
 * unmasked region therefore stays fixed during sampling. After an evaluation within a step the level is also
 * that of the step's end, even if the sampler's next evaluation is in the middle of the step (as diffusers
 * does for KDPM2). Source: diffusers 0.42, pipelines/stable_diffusion/pipeline_stable_diffusion_inpaint.py,
 * the branch for 4-channel UNets; pipelines/flux2/pipeline_flux2_klein_inpaint.py. scratch: a buffer of as
 * many floats as the sample has. */
static void blend_mask(const struct job *job, int image, int i_call, float *scratch) {
    const struct layout *l = &job->layout;
    const struct denoiser_call *call = &job->schedule.calls[i_call];
    const float *repaint = l->mask.data, *picture = l->inpaint_latent[image].data, *noised = picture;
    float *sample = l->latent[image].data;
    int64_t pixels = tensor_elements(&l->mask), n = tensor_elements(&l->latent[image]);
    if (i_call + 1 < job->schedule.n_calls) {
        const struct grid_point *at = call->ends_step ? &call[1].at : &job->schedule.grid.step[call->step].to;
        grid_add_noise(at, picture, l->inpaint_noise[image].data, scratch, n);
        noised = scratch;
    }
    for (int64_t i = 0; i < n; i++) {
        float share = repaint[i % pixels];
        if (share == 0)
            sample[i] = noised[i];
        else if (share < 1)
            sample[i] = (1 - share) * noised[i] + share * sample[i];
    }
}

/* Returns the prediction of a branch. place: index of the image in its batch group. Not for use if the span
 * lacks the branch. */
static struct tensor branch_prediction(const struct layout *l, const struct job_span *span,
                                       enum branch branch, int place) {
    return l->prediction[job_span_branch(span, branch) * l->images_per_group + place];
}

/* Applies LTX-2's guidance to the predictions of one stream: the video's values, or the sound's, which
 * follow. place: index of the image in its batch group. Reads the denoiser's input: unlike the sample, it has
 * the clean frames of image-to-video. */
static void guide_denoised(const struct job *job, const struct job_span *span,
                           const struct denoiser_call *call, int image, int place, bool is_sound) {
    const struct layout *l = &job->layout;
    const struct sluice_request *r = &job->request;
    int64_t video = tensor_elements(&l->latent[image]), first = is_sound ? video : 0;
    int64_t n = is_sound ? job_sample_values(job) - video : video;
    const float *pass[BRANCHES_MAX];
    for (int b = 0; b < BRANCHES_MAX; b++)
        pass[b] = (const float *)branch_prediction(l, span, (enum branch)b, place).data + first;
    struct denoised_guidance guidance = {
        .sample = (const float *)l->input[image].data + first,
        .sigma = call->at.noise,
        .negative = call->guided ? pass[BRANCH_NEGATIVE] : NULL,
        .stg = span->stg ? pass[BRANCH_STG] : NULL,
        .isolated = span->isolated ? pass[BRANCH_ISOLATED] : NULL,
        .cfg_scale = is_sound ? r->audio_cfg_scale : call->scale,
        .stg_scale = is_sound ? r->audio_stg_scale : r->stg_scale,
        .modality_scale = is_sound ? r->audio_modality_scale : r->modality_scale,
        .rescale = is_sound ? r->audio_cfg_rescale : r->cfg_rescale,
    };
    if (guidance.negative || guidance.stg || guidance.isolated)
        guidance_denoised((float *)l->prediction[place].data + first, n, &guidance);
}

/* Applies the sampler's update to one image's sample after denoiser call i_call. place: index of the image in
 * its batch group. */
static enum status move_sample(struct running *r, const struct job_span *span, int i_call, int image,
                               int place, struct error *e) {
    struct job *job = r->pass;
    struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct sampling *s = &job->settings.sampling;
    const struct denoiser_call *call = &job->schedule.calls[i_call];
    struct tensor sample = l->latent[image], guided = l->prediction[place];
    struct tensor negative = branch_prediction(l, span, BRANCH_NEGATIVE, place),
                  skipped = branch_prediction(l, span, BRANCH_SKIP, place);
    float *output = guided.data, *history[SAMPLER_HISTORY_MAX];
    int64_t n = job_sample_values(job);
    bool previews = call->ends_step && !r->no_previews && schedule_previews_step(job, call->step);
    bool draws = s->sampler->draws_noise != NOISE_NEVER && job->schedule.grid.step[call->step].to.noise > 0 &&
                 (s->sampler->draws_noise == NOISE_EVERY_EVALUATION || call->ends_step);
    /* Guidance. */
    if (call->slg_scale != 0) guidance_slg_begin(skipped, guided, call->slg_scale);
    if (recipe->denoising.guides_denoised) {
        guide_denoised(job, span, call, image, place, false);
        if (job->latents.sound[0]) guide_denoised(job, span, call, image, place, true);
    } else if (call->scale != 1) {
        double norm = job->request.cfg_norm > 0 ? job->request.cfg_norm * guidance_norm(guided) : INFINITY;
        recipe->denoising.guide(guided, negative, recipe->patch, call->scale);
        if (norm < INFINITY) guidance_limit_norm(guided, norm);
    }
    if (call->slg_scale != 0) guidance_slg_add(guided, skipped);
    if (previews) preview_capture(job, image, i_call, output);
    /* Calls the sampler's update with the denoiser's output converted to the prediction type that the sampler
     * expects. */
    s->prediction->convert(output, sample.data, n, &call->at, s->sampler->form);
    if (draws) draw_noise(r, image, l->noise);
    for (int k = 0; k < s->sampler->history; k++) history[k] = l->history[image][k].data;
    s->sampler->update(&(struct sampler_update){.grid = &job->schedule.grid,
                                                .prediction = s->prediction,
                                                .solver = &s->solver,
                                                .step = call->step,
                                                .evaluation = call->evaluation,
                                                .sample = sample.data,
                                                .output = output,
                                                .history = history,
                                                .noise = draws ? l->noise.data : NULL,
                                                .n = n});
    if (l->mask.rank) blend_mask(job, image, i_call, output);
    if (i_call + 1 < job->schedule.n_calls) scale_model_input(job, image, i_call + 1);
    struct tensor sound = job_sound(job, sample);
    if (check_finite(sample, "the latent", "denoise", call->step, e) == OK && sound.rank)
        check_finite(sound, "the sound's latent", "denoise", call->step, e);
    return e->code == OK && previews ? preview_emit(r, image, call->step, e) : e->code;
}

enum status denoise_evaluation_ended(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->pass;
    const struct layout *l = &job->layout;
    int groups = l->choice.groups, group = evaluation % groups, first, n;
    const struct job_span *span = &job->schedule.spans[l->span[stage]];
    int i_call = span->first_call + evaluation / groups;
    const struct denoiser_call *call = &job->schedule.calls[i_call];
    layout_images(l, job->latents.batch, group, &first, &n);
    for (int i = 0; i < n && e->code == OK; i++) move_sample(r, span, i_call, first + i, i, e);
    if (e->code != OK || group + 1 < groups || !call->ends_step) return e->code;
    if (job->request.dump) dump_step_latents(job, call->step + 1, e);
    progress_step_ended(r, running_step(r, call->step));
    return e->code;
}

enum status denoise_stage_ended(struct running *r, int stage, struct error *e) {
    const struct job *job = r->pass;
    const struct layout *l = &job->layout;
    struct report *report = r->report;
    if (l->span[stage] + 1 < job->schedule.n_spans) return OK;
    if (job->second_pass) return OK; /* the second pass continues from these latents */
    for (int i = 0; i < job->latents.batch; i++) {
        frame_conditioning_put_clean(job, l->latent[i]);
        control_video_cut_references(job, l->latent[i]);
        sha256_hex(l->video[i].data, (size_t)tensor_bytes(&l->video[i]), report->latent_sha256[i]);
    }
    report->n_latents = job->latents.batch;
    struct tensor sound[BATCH_MAX];
    for (int i = 0; i < job->latents.batch; i++) sound[i] = job_sound(job, l->latent[i]);
    if (job->request.save_audio_latent &&
        latents_save(job->sys, job->request.save_audio_latent, "latent", job->model->recipe->name, sound,
                     job->latents.batch, e) != OK)
        return e->code;
    if (job->request.save_latent)
        latents_save(job->sys, job->request.save_latent, "latent", job->model->recipe->name, l->video,
                     job->latents.batch, e);
    return e->code;
}
