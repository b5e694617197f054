#include "engine/job/upscale.h"

#include "engine/job/request.h"
#include "engine/pictures/pictures.h"

static enum status set_sizes(struct job *job, struct picture_size from, int component, struct error *e) {
    const struct component *c = &job->model->component[component];
    if (!c->family)
        return error_set(e, USAGE,
                         "enlarging images needs an upscaler" WHERE "%s" EXPECTED
                         "a model opened with --upscale-model FILE",
                         job->model->name);
    int64_t scale = c->pixel_factor, width = from.width * scale, height = from.height * scale;
    if (width > SLUICE_SIDE_MAX || height > SLUICE_SIDE_MAX)
        return error_set(e, USAGE,
                         "the enlarged image would be too large" WHERE "%s" FOUND
                         "%dx%d, enlarged %lld times" EXPECTED "at most %d pixels a side",
                         c->index.n_sources ? c->index.sources[0].path : c->family->name, from.width,
                         from.height, (long long)scale, SLUICE_SIDE_MAX);
    job->upscale = (struct job_upscale){from, {(int)width, (int)height}, component};
    return OK;
}

enum status upscale_resolve(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct picture_size size = {r->width, r->height};
    if (job->settings.hires == HIRES_MODEL) return set_sizes(job, size, MODEL_HIRES_UPSCALER, e);
    /* With a second pass, the second pass's job enlarges the finished images. */
    if (!r->upscale || r->no_decode || job->settings.decode_only || job->settings.hires) return OK;
    return set_sizes(job, size, MODEL_UPSCALER, e);
}

enum status upscale_resolve_alone(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const struct sluice_picture *picture = r->init_image;
    if (!picture)
        return error_set(e, USAGE, "no image to enlarge was given" WHERE "%s" EXPECTED "an image",
                         job->model->name);
    if (picture_check(picture, "the image to enlarge", e) != OK || request_resolve_upscale(job, e) != OK)
        return e->code;
    job->settings.decoder_slot = MODEL_UPSCALER;
    job->latents.batch = 1;
    return set_sizes(job, (struct picture_size){picture->width, picture->height}, MODEL_UPSCALER, e);
}

bool upscale_has_alpha(const struct job *job) {
    if (job->context.upscales) return job->pictures.fitting[PICTURE_INIT].part.alpha;
    return component_picture_channels(&job->model->component[job->settings.decoder_slot]) == RGBA;
}

struct picture_part upscale_alpha_part(const struct job *job) {
    return (struct picture_part){
        .by = PILLOW_LANCZOS, .whole = job->upscale.to, .size = job->upscale.to, .alpha = true};
}

uint64_t upscale_alpha_bytes(const struct job *job) {
    struct picture_part part = upscale_alpha_part(job);
    if (!upscale_has_alpha(job)) return 0;
    return resample_bytes(job->upscale.from, &part) + RGBA * (uint64_t)job->upscale.from.width +
           3 * (uint64_t)job->upscale.to.width;
}
