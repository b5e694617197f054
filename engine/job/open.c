#include "engine/job/open.h"

#include "engine/job/layout.h"
#include "engine/job/pictures.h"
#include "engine/job/planner.h"
#include "engine/job/prompts.h"
#include "engine/job/request.h"
#include "engine/job/second_pass.h"
#include "engine/job/upscale.h"

#include <math.h>

/* Builds the session's components with the request's weight type and adapters. Frees components with adapters
 * before their base components change, because a component with adapters refers to the base component's
 * weights. */
static enum status make_components(struct job *job, struct error *e) {
    struct requantised *r = job->context.requantised;
    struct session_adapters *a = job->context.adapters;
    struct adapter_base base = {job->model, r};
    if (job->context.first_pass) return OK; /* made by the first pass's job, which comes first */
    if (r && a && (!r->made || !conversion_equals(r->choice, job->settings.weights)))
        session_adapters_drop_components(a);
    if (r && requantised_prepare(r, job->model, job->settings.weights, e) != OK) return e->code;
    if (!a || job->settings.decode_only) return OK;
    return session_adapters_prepare(a, &base, &job->request, job->prompts.tags, PROMPTS_MAX, e);
}

/* Computes the dimensions of the latents and the chunks of frames; refuses videos that are too large. */
static enum status set_sizes(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct job_settings *settings = &job->settings;
    struct job_latents *size = &job->latents;
    const struct sluice_model *m = job->model;
    const struct job *parent = job->context.parent;
    /* The decoder is the tiny autoencoder if the model has one. With --preview taesd the tiny autoencoder
     * decodes previews only, and the VAE the images. */
    bool tiny_previews = (parent ? parent : job)->settings.preview == PREVIEW_TAESD;
    settings->decoder_slot = model_decoder_slot(m, parent ? tiny_previews : !tiny_previews);
    const struct component *decoder = &m->component[settings->decoder_slot];
    int factor = component_frame_factor(decoder), pixel_factor = decoder->pixel_factor;
    bool is_vace = m->recipe->images.concat == CONCAT_CONTROL && !settings->decode_only;
    bool animates = r->init_image && m->init == INIT_FIRST_FRAME && !settings->decode_only;
    int32_t frames = (r->frames - 1) / factor + 1;
    bool guides_sound = m->recipe->denoising.guides_denoised && r->audio_cfg_scale != 1;
    bool unguided = r->cfg_scale == 1 && (!m->boundary || r->cfg_scale_low == 1) && !guides_sound;
    settings->n_prompts = unguided ? 1 : 2;
    settings->zero_prompt = !r->prompt && r->n_redux_images && !job->pictures.redux_assumed;
    settings->n_encoded_prompts =
        r->negative_prompt || !m->force_zeros_for_empty_prompt ? settings->n_prompts : 1;
    size->batch = r->batch;
    size->n_reference_frames = is_vace ? r->n_references : 0;
    size->C = decoder->latent_channels; /* the transformer has as many latent channels */
    size->F = size->n_reference_frames + frames;
    size->Y = r->height / pixel_factor;
    size->X = r->width / pixel_factor;
    size->n_chunks = component_frame_chunks(decoder, frames, size->chunks);
    /* The sound is as long as the video. Without an audio VAE its latent has the published sizes. */
    if (m->recipe->sound.channels && !settings->decode_only && r->fps) {
        const struct recipe_sound *sound = &m->recipe->sound;
        double length = rint((double)r->frames / r->fps * sound->latents_per_second); /* in latent frames */
        const struct component *c = model_component(m, FAMILY_SOUND_DECODER);
        size->sound[0] = c->family ? c->latent_channels : sound->channels;
        size->sound[1] = 1;
        size->sound[2] = length < 1 ? 1 : (int32_t)length;
        size->sound[3] = c->family ? c->sound_bins : sound->bins;
    }
    if (animates || is_vace)
        job->pictures.n_encoded_chunks =
            component_frame_chunks(model_component(m, FAMILY_ENCODER), frames, job->pictures.encoded_chunks);
    if (animates && m->recipe->images.concat == CONCAT_NONE) size->n_clean_frames = 1;
    /* The latent and the frames of one chunk must have at most INT32_MAX values, and the video at most
     * FRAME_CHUNKS_MAX chunks. */
    int64_t latent = (int64_t)size->F * size->Y * size->X, chunk = (int64_t)r->width * r->height * factor;
    if (latent <= INT32_MAX && (size->F == 1 || chunk <= INT32_MAX) && size->n_chunks <= FRAME_CHUNKS_MAX &&
        job->pictures.n_encoded_chunks <= FRAME_CHUNKS_MAX)
        return OK;
    return error_set(e, USAGE,
                     "the video is too large to encode or decode" FOUND "%d frames of %dx%d" EXPECTED
                     "fewer frames (--frames) or a smaller size (-W, -H)",
                     r->frames, r->width, r->height);
}

/* Makes job->preview_job, which decodes one latent inside a callback of the denoising stage. Its plan takes
 * the least memory possible: all weights stream, none stay resident. The parent job's plan counts the
 * preview's memory in the denoising stage, whose weight readers continue during a preview. */
static enum status open_preview_job(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct job_context context = {.model = job->model, .device = job->device, .parent = job};
    struct sluice_request request = {.struct_size = sizeof request,
                                     .rates = r->rates,
                                     .rates_name = r->rates_name,
                                     .direct_io = r->direct_io,
                                     .vae_tiling = "on"};
    job->preview_job = sys_new(job->sys, 1, sizeof *job->preview_job, "previews", e);
    if (!job->preview_job) return e->code;
    if (job_open(job->preview_job, &context, &request,
                 (int32_t[]){1, job->latents.C, 1, job->latents.Y, job->latents.X}, e) != OK)
        return e->code;
    /* The parent job's plan already counts the temporary memory of opening the model. */
    job->preview_job->need->open_bytes = 0;
    plan_least(job->preview_job->need, 0, 0, &job->preview_job->plan);
    return OK;
}

/* Opens job->second_pass. flow_shift: the caller's; 0: computed from the second pass's size. */
static enum status open_second_pass(struct job *job, double flow_shift, struct error *e) {
    struct job_context context = job->context;
    struct sluice_request request = second_pass_request(job, flow_shift);
    context.first_pass = job;
    job->second_pass = sys_new(job->sys, 1, sizeof *job->second_pass, "the second pass", e);
    return job->second_pass ? job_open(job->second_pass, &context, &request, NULL, e) : e->code;
}

enum status job_open(struct job *job, const struct job_context *context, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e) {
    const struct sluice_model *model = context->model;
    struct sluice_request *r = &job->request;
    *job = (struct job){.sys = model->sys, .context = *context, .model = model, .device = context->device};
    if (model->decodes_only && !latent_dim)
        return error_set(
            e, USAGE,
            "only the VAE of this model was opened: it can decode latents, not generate images" WHERE
            "%s" EXPECTED "sluice_decode, or the model opened without decodes_only",
            model->name);
    for (int i = 0; i < SLOTS_MAX; i++)
        if (model->component[i].family && model->component[i].family->kind == FAMILY_TEXT)
            job->prompts.text_slot[job->prompts.n_texts++] = i;
    copy_sized(r, sizeof *r, request);
    const double flow_shift = r->flow_shift;
    pictures_copy(job);
    if (context->upscales) {
        job->settings.decode_only = true;
        if (upscale_resolve_alone(job, e) != OK) return e->code;
        pictures_fit(job);
        return make_components(job, e) == OK ? candidates_measure(job, e) : e->code;
    }
    if (latent_dim) {
        const struct component *decoder = model_decoder(model);
        job->settings.decode_only = true;
        r->no_decode = false;
        r->n_control = 0;
        r->n_controls = r->n_redux_images = 0;
        r->batch = latent_dim[0];
        r->frames = (latent_dim[2] - 1) * component_frame_factor(decoder) + 1;
        r->height = latent_dim[3] * decoder->pixel_factor;
        r->width = latent_dim[4] * decoder->pixel_factor;
        r->cfg_scale = 1;
        r->cfg_scale_low = 0;
        r->steps = 1;
    }
    if (prompts_extract_lora_tags(job, e) != OK) return e->code;
    pictures_assume(job);
    if (request_resolve(job, e) != OK) return e->code;
    if (!job->settings.decode_only) pictures_fit(job);
    if (make_components(job, e) != OK || set_sizes(job, e) != OK || upscale_resolve(job, e) != OK)
        return e->code;
    if (!job->settings.decode_only) {
        pictures_list_encoded(job);
        if (prompts_encode(job, e) != OK || schedule_make(job, e) != OK) return e->code;
    }
    if (job->settings.preview > PREVIEW_LATENT && open_preview_job(job, e) != OK) return e->code;
    if (job->context.first_pass) return OK; /* the first pass's job plans both */
    if (job->settings.hires != HIRES_NONE && open_second_pass(job, flow_shift, e) != OK) return e->code;
    return candidates_measure(job, e);
}

void job_close(struct job *job) {
    struct sys *sys = job->sys;
    if (!sys) return;
    prompts_close(job);
    layout_release(job);
    if (job->preview_job) job_close(job->preview_job);
    sys->release(sys, job->preview_job);
    if (job->second_pass) {
        job->second_pass->layout = (struct layout){0}; /* owned by this job's layout */
        job_close(job->second_pass);
    }
    sys->release(sys, job->second_pass);
    layout_close(sys, &job->layout);
    for (int i = 0; i < PICTURES_MAX; i++) sys->release(sys, job->pictures.pixels[i]);
    sys->release(sys, job->schedule.noise);
    sys->release(sys, job->schedule.grid.step);
    sys->release(sys, job->schedule.calls);
    sys->release(sys, job->schedule.timestep_inputs);
    for (int i = 0; i < job->candidates.n && job->candidates.needs; i++)
        sys->release(sys, job->candidates.needs[i]);
    sys->release(sys, job->candidates.needs);
    sys->release(sys, job->candidates.choices);
    *job = (struct job){0};
}

void job_move(struct job *to, struct job *from) {
    *to = *from;
    const struct sluice_picture **const images[] = {&to->request.init_image, &to->request.end_image,
                                                    &to->request.mask};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        if (*images[i]) *images[i] = to->pictures.input + (*images[i] - from->pictures.input);
    for (int i = 0; i < to->request.n_references; i++)
        to->pictures.references[i] = &to->pictures.input[PICTURE_REFERENCES + i];
    to->request.references = to->pictures.references;
    for (int i = 0; i < to->request.n_redux_images; i++)
        to->pictures.redux[i] = &to->pictures.input[PICTURE_REDUX + i];
    to->request.redux_images = to->pictures.redux;
    if (to->preview_job) to->preview_job->context.parent = to;
    if (to->second_pass) to->second_pass->context.first_pass = to;
    *from = (struct job){0};
}
