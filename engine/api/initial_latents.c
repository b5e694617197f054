#include "engine/api/initial_latents.h"

#include "engine/api/frame_conditioning.h"
#include "engine/api/latents.h"
#include "engine/open/latent_file.h"
#include "engine/api/control_video.h"
#include "engine/pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e) {
    const float *values = t.data;
    int64_t n = tensor_elements(&t), bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !isfinite(values[i]);
    if (!bad) return OK;
    error_set(e, NONFINITE, "%s contains NaN or infinite values", what);
    step < 0 ? error_where(e, "stage %s", stage) : error_where(e, "stage %s, step %d", stage, step + 1);
    return error_found(e, "%lld of %lld values", (long long)bad, (long long)n);
}

static enum status seed_generators(struct initial_latents *init, struct error *e) {
    struct job *job = init->job;
    init->generators = job->sys->alloc(job->sys, LINE_HOST, (size_t)job->batch * sizeof *init->generators);
    if (!init->generators) return error_set(e, MEMORY, "no memory for the random generators");
    for (int i = 0; i < job->batch; i++)
        generator_seed(&init->generators[i], job->request.seed + (uint64_t)i);
    return OK;
}

void initial_latents_draw(struct initial_latents *init, int image, struct tensor to) {
    generator_normals(&init->generators[image], to.data, tensor_elements(&to));
}

static enum status load_latents(struct job *job, const char *path, struct error *e) {
    struct tensor_index index;
    int32_t dim[5];
    if (latent_open(job->sys, path, &index, dim, e) == OK) {
        struct tensor *latent = job->layout.latent;
        if (dim[0] != job->batch || memcmp(dim + 1, latent->dim, 4 * sizeof *dim) != 0) {
            error_set(e, SHAPE, "the tensor 'latent' has the wrong shape" WHERE "%s", path);
            latent_found(index_find(&index, "latent"), e);
            if (job->F == 1)
                error_expected(e, "[%d, %d, %d, %d]", job->batch, job->C, job->Y, job->X);
            else
                error_expected(e, "[%d, %d, %d, %d, %d]", job->batch, job->C, job->F, job->Y, job->X);
        }
        for (int i = 0; i < job->batch && e->code == OK; i++) latent_read(&index, i, latent[i], e);
        for (int i = 0; i < job->batch && e->code == OK; i++)
            check_finite(latent[i], "the latent file", "start", -1, e);
    }
    index_destroy(&index);
    return e->code;
}

void scale_model_input(const struct job *job, int image, int i_call) {
    const float *sample = job->layout.latent[image].data;
    float *input = job->layout.input[image].data, scale = job->calls[i_call].input_scale;
    int64_t n = tensor_elements(&job->layout.latent[image]);
    for (int64_t i = 0; i < n && input != sample; i++) input[i] = scale * sample[i];
    frame_conditioning_put_clean(job, job->layout.input[image]);
}

static enum status resize_for_vision(struct job *job, struct error *e) {
    for (int i = 0; i < job->n_encoded && e->code == OK; i++) {
        const struct encoded *encoded = &job->encoded[i];
        const struct tensor *to = &job->layout.encoded[i].resized;
        if (to->rank)
            picture_resize(job->sys, job_fitted_picture(job, encoded), TORCH_BICUBIC, encoded->size, to->data,
                           e);
    }
    return e->code;
}

static void fill_picture(const struct job *job, int i) {
    const struct encoded *encoded = &job->encoded[i];
    struct sluice_picture picture = *job_fitted_picture(job, encoded);
    const struct sluice_picture *mask = NULL;
    const struct encoded_tensors *t = &job->layout.encoded[i];
    if (t->resized.rank) {
        picture.width = encoded->size.width;
        picture.height = encoded->size.height;
        picture.rgb = t->resized.data;
    }
    if (encoded->kind == ENCODED_MASKED) {
        mask = &job->picture[PICTURE_MASK];
        picture = job->picture[PICTURE_INIT];
    }
    const struct picture_format *format = &job->model->component[encoded->slot].picture_format;
    struct tensor out = tensor_reshape(t->picture, 3, t->picture.dim + 1);
    if (format->deviation[0] == 0)
        picture_to_tensor(&picture, mask, out);
    else
        picture_to_vision(&picture, format->mean, format->deviation, out);
}

enum status initial_latents_fill_input(const struct job *job, int i, int chunk, struct error *e) {
    const struct encoded *encoded = &job->encoded[i];
    struct tensor out = job->layout.encoded[i].picture;
    if (encoded->kind == ENCODED_CONTROL)
        return control_video_fill(job, encoded, &job->encoded_chunks[chunk], out, e);
    if (encoded->kind == ENCODED_FRAMES)
        frame_conditioning_fill(job, &job->encoded_chunks[chunk], out);
    else if (encoded->kind == ENCODED_REFERENCE_FRAME)
        control_video_fill_reference(job, encoded, out);
    else
        fill_picture(job, i);
    return OK;
}

/* Writes an image's latent: the encoder's mean or, if `drawn`, a sample from the image's generator. */
static void take_latent(struct initial_latents *init, int image, struct tensor moments, bool drawn,
                        struct tensor to) {
    const struct component *c = model_component(init->job->model, FAMILY_ENCODER);
    if (drawn) initial_latents_draw(init, image, to);
    posterior_sample(moments, drawn ? to.data : NULL, &c->latent_format, latent_planes(to));
}

static void take_frame_mean(const struct job *job, struct tensor moments, struct tensor to, int frame) {
    const struct component *c = model_component(job->model, FAMILY_ENCODER);
    posterior_sample(moments, NULL, &c->latent_format, latent_frame(to, frame));
}

/* Saves the run's initial noise: inpaint_blend adds the noise to the input image's latent again at every
 * step. */
static void save_inpaint_noise(const struct job *job, int image) {
    const struct tensor *noise = &job->layout.inpaint_noise[image];
    if (noise->rank) memcpy(noise->data, job->layout.latent[image].data, (size_t)tensor_bytes(noise));
}

/* Brings the noise to the level of the first step: scaled, or mixed with the image's latent (img2img). */
static void begin_sampling(struct initial_latents *init, int image, const float *picture) {
    struct job *job = init->job;
    struct tensor latent = job->layout.latent[image];
    grid_initial_sample(&job->grid, latent.data, picture, tensor_elements(&latent));
    scale_model_input(job, image, 0);
}

/* Makes the first sample of an image from the encoded input image (img2img, inpainting), whose latent is in
 * prediction[0] (unused before the first step), or in inpaint_latent for inpainting by blending. Inpainting
 * at strength 1 begins with pure noise. Diffusers then draws noise for the masked image without using it;
 * this function does so too, because samplers continue with the same generator. */
static void begin_at_picture(struct initial_latents *init, int image, struct tensor moments) {
    struct job *job = init->job;
    const struct layout *l = &job->layout;
    bool blends = job_blends_mask(job);
    struct tensor latent = l->latent[image], picture = blends ? l->inpaint_latent[image] : l->prediction[0];
    take_latent(init, image, moments, job->model->recipe->samples_posterior, picture);
    if (!init->latent_file) initial_latents_draw(init, image, latent);
    save_inpaint_noise(job, image);
    if (blends && job->model->recipe->samples_posterior) initial_latents_draw(init, image, l->prediction[0]);
    begin_sampling(init, image, blends && job->request.strength == 1 ? NULL : picture.data);
}

/* The part of the concat channels that holds the latent of the masked image; the rest is the mask. */
static struct tensor masked_latent(const struct job *job, int image) {
    struct tensor concat = job->layout.concat[image];
    bool first = job->model->recipe->concat == CONCAT_FILL;
    return tensor_slice(concat, first ? 0 : concat.dim[0] - job->C, job->C);
}

static void take_mask(const struct job *job, struct tensor concat) {
    const struct sluice_picture *mask = &job->picture[PICTURE_MASK];
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    if (job->model->recipe->concat == CONCAT_FILL)
        mask_to_channels(mask, factor, latent_planes(tensor_slice(concat, job->C, concat.dim[0] - job->C)));
    else
        mask_to_latent(mask, factor, tensor_reshape(tensor_slice(concat, 0, 1), 2, concat.dim + 2));
}

/* Fills the concat channels of an inpainting model: the latent of the masked image, and the mask. */
static void take_masked(struct initial_latents *init, int image, struct tensor moments) {
    struct job *job = init->job;
    take_latent(init, image, moments, job->model->recipe->samples_posterior, masked_latent(job, image));
    take_mask(job, job->layout.concat[image]);
}

/* Dumps an encoder output (--dump). VAE latents ("encoded") and vision tokens ("seen") are numbered
 * separately. */
static enum status dump_encoded(const struct job *job, int i, struct tensor made, struct error *e) {
    bool vision = job->encoded[i].kind == ENCODED_VISION;
    const char *what = vision ? "seen" : "encoded";
    char name[32];
    int number = 0;
    if (!job->request.dump) return OK;
    for (int k = 0; k < i; k++) number += (job->encoded[k].kind == ENCODED_VISION) == vision;
    number ? snprintf(name, sizeof name, "%s_%03d", what, number) : snprintf(name, sizeof name, "%s", what);
    return dump_save(job->sys, job->request.dump, name, made, e);
}

static struct tensor encoded_destination(const struct job *job, const struct encoded *encoded) {
    const struct layout *l = &job->layout;
    if (encoded->kind == ENCODED_REFERENCE) return l->reference[encoded->reference];
    if (encoded->kind == ENCODED_FIRST) return l->clean_frame;
    return encoded->kind == ENCODED_FRAMES ? frame_conditioning_latent(job)
                                           : control_video_latent(job, encoded);
}

/* Completes the concat channels after the last encoded picture or video. */
static enum status finish_concat(const struct job *job, int i, struct error *e) {
    if (i + 1 < job->n_encoded) return OK;
    if (job->encoded[i].kind == ENCODED_FRAMES)
        frame_conditioning_mask(job);
    else
        control_video_finish(job);
    return job->request.dump ? dump_save(job->sys, job->request.dump, "concat", *job->layout.concat, e) : OK;
}

/* Stores the encoder's mean for a picture that all images of the batch share: a reference, video frame or
 * control video. */
static enum status take_shared(const struct job *job, int i, int chunk, struct error *e) {
    const struct encoded *encoded = &job->encoded[i];
    bool control = encoded->kind == ENCODED_CONTROL || encoded->kind == ENCODED_REFERENCE_FRAME;
    struct tensor to = encoded_destination(job, encoded);
    take_frame_mean(job, job->layout.encoded[i].moments, to,
                    control ? control_video_frame(job, encoded, chunk) : chunk);
    if (chunk + 1 < encoded->n_chunks) return OK;
    if (control || encoded->kind == ENCODED_FRAMES) return finish_concat(job, i, e);
    for (int image = 0; image < job->batch && encoded->kind == ENCODED_FIRST; image++)
        scale_model_input(job, image, 0);
    return dump_encoded(job, i, latent_planes(to), e);
}

/* Stores an encoder output once per image of the batch, sampled with the noise of each image. Without
 * inpainting the encoder output of the input image goes to prediction[0], shared by all images. */
static enum status take_per_image(struct initial_latents *init, int i, struct error *e) {
    const struct job *job = init->job;
    const struct layout *l = &job->layout;
    bool is_init = job->encoded[i].kind == ENCODED_INIT;
    struct tensor moments = l->encoded[i].moments,
                  shown = job_blends_mask(job) ? l->inpaint_latent[0] : l->prediction[0];
    for (int image = 0; image < job->batch && e->code == OK; image++) {
        if (is_init)
            begin_at_picture(init, image, moments);
        else
            take_masked(init, image, moments);
        if (!image) dump_encoded(job, i, latent_planes(is_init ? shown : masked_latent(job, 0)), e);
    }
    return e->code;
}

enum status initial_latents_take_encoded(struct initial_latents *init, int i, int chunk, struct error *e) {
    const struct job *job = init->job;
    const struct encoded_tensors *t = &job->layout.encoded[i];
    bool vision = job->encoded[i].kind == ENCODED_VISION;
    if (check_finite(vision ? t->tokens : t->moments, "the encoded image", vision ? "vision" : "encode", -1,
                     e) != OK)
        return e->code;
    switch (job->encoded[i].kind) {
    case ENCODED_VISION:
        return dump_encoded(job, i, t->tokens, e);
    case ENCODED_INIT:
    case ENCODED_MASKED:
        return take_per_image(init, i, e);
    case ENCODED_REFERENCE:
    case ENCODED_FRAMES:
    case ENCODED_FIRST:
    case ENCODED_CONTROL:
    case ENCODED_REFERENCE_FRAME:
        return take_shared(job, i, chunk, e);
    }
    return e->code;
}

bool initial_latents_need_no_picture(const struct job *job) {
    for (int i = 0; i < job->n_encoded; i++)
        if (job->encoded[i].kind == ENCODED_INIT) return false;
    return true;
}

enum status initial_latents_open(struct initial_latents *init, struct job *job, const char *latent_file,
                                 struct error *e) {
    *init = (struct initial_latents){.job = job, .latent_file = latent_file};
    if (latent_file && load_latents(job, latent_file, e) != OK) return e->code;
    if (job->decode_only) return OK;
    if (seed_generators(init, e) != OK || resize_for_vision(job, e) != OK) return e->code;
    for (int i = 0; i < job->batch && initial_latents_need_no_picture(job); i++) {
        if (!latent_file) initial_latents_draw(init, i, job->layout.latent[i]);
        begin_sampling(init, i, NULL);
    }
    if (job->layout.mask.rank)
        mask_to_latent(&job->picture[PICTURE_MASK], model_component(job->model, FAMILY_ENCODER)->pixel_factor,
                       job->layout.mask);
    return OK;
}

void initial_latents_close(struct initial_latents *init) {
    if (init->job) init->job->sys->release(init->job->sys, init->generators);
}
