#include "engine/job/second_pass.h"

#include "loaders/json.h"

#include <string.h>

/* Sigmas of the second pass of LTX-2 without --upscale-sigmas (diffusers 0.42, pipelines/ltx2/utils.py,
 * STAGE_2_DISTILLED_SIGMA_VALUES). */
static const double upscale_sigmas[] = {0.909375, 0.725, 0.421875};

/* Largest enlargement of the second pass. */
static const double SCALE_MOST = 8;

/* Fails with USAGE if a value is not above `above` or is larger than `most`. */
static enum status check_hires_value(const char *flag, double found, double above, double most,
                                     struct error *e) {
    if (found > above && found <= most) return OK;
    return error_set(e, USAGE, "invalid value for %s" FOUND "%g" EXPECTED "above %g, to %g", flag, found,
                     above, most);
}

struct picture_size second_pass_size(const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct component *c = &job->model->component[MODEL_LATENT_UPSCALER];
    int step = job->model->size_step;
    if (job->settings.hires == HIRES_UPSCALER)
        return (struct picture_size){r->width * c->pixel_factor / c->pixel_divisor,
                                     r->height * c->pixel_factor / c->pixel_divisor};
    return (struct picture_size){(int)(r->width * r->hires_scale) / step * step,
                                 (int)(r->height * r->hires_scale) / step * step};
}

/* Refuses models that lack a component for the enlargement `how`, called `name` in requests. */
static enum status check_model(const struct sluice_model *m, enum hires how, const char *name,
                               struct error *e) {
    if (how == HIRES_MODEL && !m->component[MODEL_HIRES_UPSCALER].family)
        return error_set(e, USAGE,
                         "--hires-upscaler model needs an upscaling network" WHERE "%s" EXPECTED
                         "the model's part --hires-upscaler FILE",
                         m->name);
    if (m->recipe->images.init != INIT_IMG2IMG || m->recipe->images.areas.vae_of_output)
        return error_set(e, USAGE,
                         "--hires cannot be used with this model" WHERE "%s" FOUND "%s" EXPECTED
                         "a model that can begin at an image, with references of any size",
                         m->name, m->recipe->name);
    if (how >= HIRES_LANCZOS && !model_component(m, FAMILY_ENCODER)->family)
        return error_set(e, MISSING,
                         "the autoencoder has no encoder, which --hires-upscaler %s needs" WHERE "%s" EXPECTED
                         "a VAE with 'encoder.' tensors, or --hires-upscaler latent",
                         name, m->name);
    const struct tensor_index *network = &m->component[MODEL_HIRES_UPSCALER].index;
    if (how >= HIRES_LANCZOS && component_picture_channels(model_component(m, FAMILY_ENCODER)) == RGBA)
        return error_set(e, USAGE,
                         "--hires-upscaler %s would lose the alpha of this model's images" WHERE "%s" EXPECTED
                         "latent or latent-bilinear",
                         how == HIRES_MODEL && network->n_sources ? network->sources[0].path : name, m->name);
    return OK;
}

/* Checks a second pass with a latent upscaler, and fills in its sigmas. */
static enum status resolve_upscaler(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    const struct component *c = &m->component[MODEL_LATENT_UPSCALER];
    if (!c->family)
        return error_set(e, USAGE,
                         "a second pass at a larger size needs a latent upscaler" WHERE "%s" EXPECTED
                         "the model's part --upscaler FILE, such as ltx-2.3-spatial-upscaler-x2",
                         m->name);
    if (r->hires_scale != 0)
        return error_set(e, USAGE,
                         "--upscaler cannot be combined with --hires" WHERE "%s" EXPECTED "one of the two",
                         m->name);
    if (r->n_upscale_sigmas && !r->upscale_sigmas)
        return error_set(e, USAGE,
                         "upscale_sigmas is NULL" FOUND "n_upscale_sigmas %d" EXPECTED
                         "an array of that many sigmas",
                         r->n_upscale_sigmas);
    if (!r->upscale_sigmas) {
        r->upscale_sigmas = upscale_sigmas;
        r->n_upscale_sigmas = COUNT_OF(upscale_sigmas);
    }
    if (sampling_check_sigmas("--upscale-sigmas", r->upscale_sigmas, r->n_upscale_sigmas, e) != OK)
        return e->code;
    /* As reported with each image: the first sigma is the share of noise that the second pass begins with. */
    r->hires_strength = r->upscale_sigmas[0];
    r->hires_steps = r->n_upscale_sigmas;
    job->settings.hires = HIRES_UPSCALER;
    struct picture_size size = second_pass_size(job);
    int step = m->size_step * c->pixel_divisor;
    if (r->width % step || r->height % step)
        return error_set(e, USAGE,
                         "the size does not fit the latent upscaler" WHERE "%s" FOUND
                         "%dx%d, enlarged %g times" EXPECTED
                         "width and height in multiples of %d (-W and -H are the first pass's size)",
                         m->name, r->width, r->height, (double)c->pixel_factor / c->pixel_divisor, step);
    if (size.width <= SLUICE_SIDE_MAX && size.height <= SLUICE_SIDE_MAX) return OK;
    return error_set(e, USAGE,
                     "the video of the second pass would be too large" WHERE "%s" FOUND "%dx%d" EXPECTED
                     "at most %d pixels a side (-W and -H are the first pass's size)",
                     m->name, size.width, size.height, SLUICE_SIDE_MAX);
}

enum status second_pass_resolve(struct job *job, struct error *e) {
    static const char *const names[N_HIRES] = {[HIRES_NEAREST] = "latent",
                                               [HIRES_BILINEAR] = "latent-bilinear",
                                               [HIRES_LANCZOS] = "lanczos",
                                               [HIRES_MODEL] = "model"};
    struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    if (job->settings.decode_only || job->context.first_pass) return OK;
    if (r->upscale_latent) return resolve_upscaler(job, e);
    if (r->upscale_sigmas)
        return error_set(e, USAGE,
                         "--upscale-sigmas needs a second pass" WHERE "%s" EXPECTED "--upscaler FILE too",
                         m->name);
    if (r->hires_scale == 0) return OK;
    if (r->hires_strength == 0) r->hires_strength = 0.5;
    if (!r->hires_steps) r->hires_steps = r->steps;
    if (check_hires_value("--hires", r->hires_scale, 1, SCALE_MOST, e) != OK ||
        check_hires_value("--hires-strength", r->hires_strength, 0, 1, e) != OK ||
        check_hires_value("--hires-steps", r->hires_steps, 0, SLUICE_STEPS_MAX, e) != OK)
        return e->code;
    int how = HIRES_NEAREST;
    while (r->hires_upscaler && how < N_HIRES && (!names[how] || strcmp(r->hires_upscaler, names[how])))
        how++;
    if (how == N_HIRES)
        return error_set(e, USAGE,
                         "invalid value for --hires-upscaler" FOUND "%s" EXPECTED
                         "latent, latent-bilinear, lanczos or the file of an upscaling network",
                         r->hires_upscaler);
    if (r->init_image || r->mask || r->frames > 1)
        return error_set(
            e, USAGE,
            "--hires cannot be combined with %s" WHERE "%s" EXPECTED
            "text to image; enlarge other images with a run of their own (-i FILE --strength 0.5)",
            r->init_image ? "--init-img"
            : r->mask     ? "--mask"
                          : "--frames",
            m->name);
    if (check_model(m, (enum hires)how, names[how], e) != OK) return e->code;
    struct picture_size size = second_pass_size(job);
    if (size.width <= r->width && size.height <= r->height)
        return error_set(e, USAGE,
                         "--hires enlarges nothing" WHERE "%s" FOUND
                         "%g times %dx%d, rounded down to multiples of %d" EXPECTED "a larger --hires",
                         m->name, r->hires_scale, r->width, r->height, m->size_step);
    if (size.width > SLUICE_SIDE_MAX || size.height > SLUICE_SIDE_MAX)
        return error_set(e, USAGE,
                         "the image of --hires would be too large" WHERE "%s" FOUND "%g times %dx%d" EXPECTED
                         "at most %d pixels a side",
                         m->name, r->hires_scale, r->width, r->height, SLUICE_SIDE_MAX);
    job->settings.hires = (enum hires)how;
    return OK;
}

struct sluice_request second_pass_request(const struct job *job, double flow_shift) {
    struct sluice_request r = job->request;
    r.width = second_pass_size(job).width;
    r.height = second_pass_size(job).height;
    r.init_latent = r.plan = r.lora_dir = NULL;
    r.references = r.redux_images = NULL;
    r.n_references = r.n_redux_images = 0;
    r.steps = r.hires_steps;
    r.strength = r.hires_strength;
    r.hires_scale = 0;
    r.flow_shift = flow_shift;
    r.sigmas = NULL;
    r.n_sigmas = 0;
    if (job->settings.hires != HIRES_UPSCALER) return r;
    /* All steps of upscale_sigmas run, without guidance. */
    r.upscale_latent = false;
    r.sigmas = r.upscale_sigmas;
    r.n_sigmas = r.steps = r.n_upscale_sigmas;
    r.upscale_sigmas = NULL;
    r.n_upscale_sigmas = 0;
    r.strength = 1;
    r.flow_shift = 0;
    r.scheduler = NULL;
    r.cfg_scale = 1;
    r.audio_cfg_scale = r.modality_scale = r.audio_modality_scale = 0;
    r.stg_scale = r.audio_stg_scale = r.cfg_rescale = r.audio_cfg_rescale = r.cfg_norm = 0;
    r.n_stg_blocks = 0;
    r.n_slg_layers = 0;
    return r;
}

bool second_pass_upsamples(const struct job *job) {
    const struct job *first = job->context.first_pass;
    return first && first->settings.hires == HIRES_UPSCALER;
}

json_t *second_pass_json(const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct job *second = job->second_pass;
    if (!second) return NULL;
    if (job->settings.hires != HIRES_UPSCALER)
        return json_pack("{s:f, s:f, s:i, s:s, s:i, s:i}", "scale", r->hires_scale, "strength",
                         r->hires_strength, "steps", r->hires_steps, "upscaler",
                         r->hires_upscaler ? r->hires_upscaler : "latent", "width", second->request.width,
                         "height", second->request.height);
    const struct component *c = &job->model->component[MODEL_LATENT_UPSCALER];
    json_t *sigmas = json_array();
    for (int i = 0; i < second->request.n_sigmas; i++)
        json_push(sigmas, json_real(second->request.sigmas[i]));
    return json_pack("{s:f, s:i, s:s, s:o, s:i, s:i}", "scale", (double)c->pixel_factor / c->pixel_divisor,
                     "steps", second->request.steps, "upscaler", c->family->name, "sigmas", sigmas, "width",
                     second->request.width, "height", second->request.height);
}

struct picture_part second_pass_enlargement(const struct job *job) {
    struct picture_size size = {job->request.width, job->request.height};
    return (struct picture_part){.by = PILLOW_LANCZOS, .whole = size, .size = size};
}

uint64_t second_pass_resampling_bytes(const struct job *job) {
    struct picture_part part = second_pass_enlargement(job);
    return resample_bytes(job_output_size(job->context.first_pass), &part);
}
