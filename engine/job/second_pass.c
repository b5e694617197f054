#include "engine/job/second_pass.h"

#include <string.h>

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
    int step = job->model->size_step;
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

enum status second_pass_resolve(struct job *job, struct error *e) {
    static const char *const names[N_HIRES] = {[HIRES_NEAREST] = "latent",
                                               [HIRES_BILINEAR] = "latent-bilinear",
                                               [HIRES_LANCZOS] = "lanczos",
                                               [HIRES_MODEL] = "model"};
    struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    if (r->hires_scale == 0 || job->settings.decode_only || job->context.first_pass) return OK;
    if (r->hires_strength == 0) r->hires_strength = 0.5;
    if (!r->hires_steps) r->hires_steps = r->steps;
    if (check_hires_value("--hires", r->hires_scale, 1, SCALE_MOST, e) != OK ||
        check_hires_value("--hires-strength", r->hires_strength, 0, 1, e) != OK ||
        check_hires_value("--hires-steps", r->hires_steps, 0, SLUICE_STEPS_MAX, e) != OK)
        return e->code;
    int how = HIRES_NEAREST;
    while (r->hires_upscaler && how < N_HIRES && strcmp(r->hires_upscaler, names[how])) how++;
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

struct picture_part second_pass_enlargement(const struct job *job) {
    struct picture_size size = {job->request.width, job->request.height};
    return (struct picture_part){.by = PILLOW_LANCZOS, .whole = size, .size = size};
}

uint64_t second_pass_resampling_bytes(const struct job *job) {
    struct picture_part part = second_pass_enlargement(job);
    return resample_bytes(job_output_size(job->context.first_pass), &part);
}
