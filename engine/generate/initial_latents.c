#include "engine/generate/initial_latents.h"

#include "engine/generate/control_images.h"
#include "engine/generate/control_video.h"
#include "engine/generate/denoise.h"
#include "engine/generate/dump.h"
#include "engine/generate/frame_conditioning.h"
#include "engine/job/pictures.h"
#include "engine/open/latent_file.h"
#include "engine/pictures/pictures.h"

#include <stdio.h>
#include <string.h>

static enum status load_latents(struct job *job, const char *path, struct error *e) {
    struct tensor_index index;
    int32_t dim[5];
    if (latent_open(job->sys, path, &index, dim, e) == OK) {
        struct tensor *latent = job->layout.latent;
        if (dim[0] != job->latents.batch || memcmp(dim + 1, latent->dim, 4 * sizeof *dim) != 0) {
            error_set(e, SHAPE, "the tensor 'latent' has the wrong shape" WHERE "%s", path);
            latent_found(index_find(&index, "latent"), e);
            if (job->latents.F == 1)
                error_expected(e, "[%d, %d, %d, %d]", job->latents.batch, job->latents.C, job->latents.Y,
                               job->latents.X);
            else
                error_expected(e, "[%d, %d, %d, %d, %d]", job->latents.batch, job->latents.C, job->latents.F,
                               job->latents.Y, job->latents.X);
        }
        for (int i = 0; i < job->latents.batch && e->code == OK; i++) latent_read(&index, i, latent[i], e);
        for (int i = 0; i < job->latents.batch && e->code == OK; i++)
            check_finite(latent[i], "the latent file", "start", -1, e);
    }
    index_destroy(&index);
    return e->code;
}

static void fill_picture(const struct job *job, int i) {
    const struct encoded *encoded = &job->pictures.encoded[i];
    struct sluice_picture picture = *pictures_fitted(job, encoded);
    const struct sluice_picture *mask = NULL;
    const struct encoded_tensors *t = &job->layout.encoded[i];
    if (t->resized.rank) {
        picture.width = encoded->size.width;
        picture.height = encoded->size.height;
        picture.rgb = t->resized.data;
        picture.alpha = NULL; /* already composited over white */
    }
    if (encoded->kind == ENCODED_ENLARGED) {
        struct tensor rgb = job->layout.enlarged[encoded->reference];
        picture = (struct sluice_picture){.width = rgb.dim[1], .height = rgb.dim[0], .rgb = rgb.data};
    }
    if (encoded->kind == ENCODED_MASKED) {
        mask = &job->pictures.fitted[PICTURE_MASK];
        picture = job->pictures.fitted[PICTURE_INIT];
    }
    const struct picture_format *format = &job->model->component[encoded->slot].picture_format;
    struct tensor out = tensor_reshape(t->picture, 3, t->picture.dim + 1);
    if (format->deviation[0] == 0)
        picture_to_tensor(&picture, mask, false, out);
    else
        picture_to_vision(&picture, format->mean, format->deviation, out);
}

/* Returns the index, in pictures.encoded, of the picture that an evaluation encodes. *chunk: index of the
 * chunk of frames. */
static int encoded_index(const struct job *job, int stage, int evaluation, int *chunk) {
    int n_chunks = job->layout.stages[stage].n_chunks;
    *chunk = evaluation % n_chunks;
    return job_find_encoded(job, job->layout.slot[stage], n_chunks, evaluation / n_chunks);
}

enum status encode_begins(const struct running *r, int stage, int evaluation, struct error *e) {
    const struct job *job = r->pass;
    int chunk, i = encoded_index(job, stage, evaluation, &chunk);
    const struct encoded *encoded = &job->pictures.encoded[i];
    struct tensor out = job->layout.encoded[i].picture;
    /* An encoder that reads rows of another encoder has no picture. */
    if (job->model->recipe->slot[encoded->slot].reads) return OK;
    if (encoded->kind == ENCODED_CONTROL)
        return control_video_fill(job, encoded, &job->pictures.encoded_chunks[chunk], out, e);
    if (encoded->kind == ENCODED_CONTROL_IMAGE || encoded->kind == ENCODED_CONTROL_INPAINT)
        control_images_fill(job, encoded, out);
    else if (encoded->kind == ENCODED_FRAMES)
        frame_conditioning_fill(job, &job->pictures.encoded_chunks[chunk], out);
    else if (encoded->kind == ENCODED_REFERENCE_FRAME)
        control_video_fill_reference(job, encoded, out);
    else
        fill_picture(job, i);
    return OK;
}

/* Writes an image's latent from the encoder's output: the mean or, if `drawn`, a sample drawn with the
 * image's generator. */
static void take_latent(struct running *r, int image, struct tensor moments, bool drawn, struct tensor to) {
    const struct component *c = model_component(r->pass->model, FAMILY_ENCODER);
    if (drawn) draw_noise(r, image, to);
    posterior_sample(moments, drawn ? to.data : NULL, &c->latent_format, latent_planes(to));
}

void begin_sampling(struct job *job, int image, const float *picture) {
    struct tensor latent = job->layout.latent[image];
    int64_t n = picture ? tensor_elements(&latent) : job_sample_values(job);
    grid_initial_sample(&job->schedule.grid, latent.data, picture, n);
    scale_model_input(job, image, 0);
}

/* Makes the first sample of an image from the encoded input image (img2img, inpainting). The image's latent
 * is in prediction[0], which is unused before the first step, or in inpaint_latent for the inpainting blend.
 * Inpainting at strength 1 begins with pure noise. Diffusers then draws noise for the masked image without
 * using it; this function does so too, because samplers continue with the same generator. */
static void begin_at_picture(struct running *r, int image, struct tensor moments) {
    struct job *job = r->pass;
    const struct layout *l = &job->layout;
    bool blends = job_blends_mask(job);
    struct tensor latent = l->latent[image], picture = blends ? l->inpaint_latent[image] : l->prediction[0];
    take_latent(r, image, moments, job->model->recipe->images.samples_posterior, picture);
    if (!r->latent_file || job->context.first_pass) draw_noise(r, image, latent);
    /* Kept because the inpainting blend adds the initial noise to the input image's latent again after every
     * step. */
    const struct tensor *noise = &l->inpaint_noise[image];
    if (noise->rank) memcpy(noise->data, latent.data, (size_t)tensor_bytes(noise));
    if (blends && job->model->recipe->images.samples_posterior) draw_noise(r, image, l->prediction[0]);
    begin_sampling(job, image, blends && job->request.strength == 1 ? NULL : picture.data);
}

/* Returns the concat channels that hold the latent of the masked image; the mask is in the other channels. */
static struct tensor masked_latent(const struct job *job, int image) {
    struct tensor concat = job->layout.concat[image];
    bool first = job->model->recipe->images.concat == CONCAT_FILL;
    return tensor_slice(concat, first ? 0 : concat.dim[0] - job->latents.C, job->latents.C);
}

/* Fills the concat channels of an inpainting model: the latent of the masked image, and the mask. */
static void take_masked(struct running *r, int image, struct tensor moments) {
    const struct job *job = r->pass;
    const struct sluice_picture *mask = &job->pictures.fitted[PICTURE_MASK];
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    struct tensor concat = job->layout.concat[image];
    take_latent(r, image, moments, job->model->recipe->images.samples_posterior, masked_latent(job, image));
    if (job->model->recipe->images.concat == CONCAT_FILL)
        mask_to_channels(mask, factor,
                         latent_planes(tensor_slice(concat, job->latents.C, concat.dim[0] - job->latents.C)));
    else
        mask_to_latent(mask, factor, tensor_reshape(tensor_slice(concat, 0, 1), 2, concat.dim + 2));
}

/* Dumps an encoder output (--dump). VAE latents ("encoded") and vision tokens ("seen") are numbered
 * separately. */
static enum status dump_encoded(const struct job *job, int i, struct tensor made, struct error *e) {
    bool vision = encoded_is_tokens(&job->pictures.encoded[i]);
    const char *what = vision ? "seen" : "encoded";
    char name[32];
    int number = 0;
    if (!job->request.dump) return OK;
    for (int k = 0; k < i; k++) number += encoded_is_tokens(&job->pictures.encoded[k]) == vision;
    number ? snprintf(name, sizeof name, "%s_%03d", what, number) : snprintf(name, sizeof name, "%s", what);
    return dump_save(job->sys, job->request.dump, name, made, e);
}

/* Stores the encoder's mean of a picture that all images of the batch share: reference image, video frame or
 * control video. */
static enum status take_shared(const struct job *job, int i, int chunk, struct error *e) {
    const struct encoded *encoded = &job->pictures.encoded[i];
    const struct layout *l = &job->layout;
    enum encoded_kind kind = encoded->kind;
    bool control = kind == ENCODED_CONTROL || kind == ENCODED_REFERENCE_FRAME;
    int reference = encoded->reference + job_init_is_reference(job);
    struct tensor to = kind == ENCODED_REFERENCE ? l->reference[reference]
                       : kind == ENCODED_FIRST   ? l->clean_frame
                       : kind == ENCODED_FRAMES  ? frame_conditioning_latent(job)
                                                 : control_video_latent(job, encoded);
    int frame = control ? control_video_frame(job, encoded, chunk) : chunk;
    posterior_sample(l->encoded[i].moments, NULL, &model_component(job->model, FAMILY_ENCODER)->latent_format,
                     latent_frame(to, frame));
    if (chunk + 1 < encoded->n_chunks) return OK;
    for (int image = 0; image < job->latents.batch && kind == ENCODED_FIRST; image++)
        scale_model_input(job, image, 0);
    if (!control && kind != ENCODED_FRAMES) return dump_encoded(job, i, latent_planes(to), e);
    /* Completes the concat channels after the last encoded picture or video. */
    if (i + 1 < job->pictures.n_encoded) return OK;
    if (kind == ENCODED_FRAMES)
        frame_conditioning_mask(job);
    else
        control_video_finish(job);
    return job->request.dump ? dump_save(job->sys, job->request.dump, "concat", *l->concat, e) : OK;
}

/* Stores an encoder output once per image of the batch, sampled with the noise of each image. Without
 * the inpainting blend the encoder output of the input image goes to prediction[0], shared by all images. */
static enum status take_per_image(struct running *r, int i, struct error *e) {
    const struct job *job = r->pass;
    const struct layout *l = &job->layout;
    const struct encoded *encoded = &job->pictures.encoded[i];
    bool is_init = encoded->kind == ENCODED_INIT || encoded->kind == ENCODED_ENLARGED;
    struct tensor moments = l->encoded[i].moments,
                  shown = job_blends_mask(job) ? l->inpaint_latent[0] : l->prediction[0];
    for (int image = 0; image < job->latents.batch && e->code == OK; image++) {
        if (encoded->kind == ENCODED_ENLARGED && image != encoded->reference) continue;
        if (is_init)
            begin_at_picture(r, image, moments);
        else
            take_masked(r, image, moments);
        if (!image) dump_encoded(job, i, latent_planes(is_init ? shown : masked_latent(job, 0)), e);
    }
    return e->code;
}

enum status encode_ended(struct running *r, int stage, int evaluation, struct error *e) {
    const struct job *job = r->pass;
    int chunk, i = encoded_index(job, stage, evaluation, &chunk);
    const struct encoded_tensors *t = &job->layout.encoded[i];
    enum encoded_kind kind = job->pictures.encoded[i].kind;
    bool vision = encoded_is_tokens(&job->pictures.encoded[i]);
    if (check_finite(vision ? t->tokens : t->moments, "the encoded image", vision ? "vision" : "encode", -1,
                     e) != OK)
        return e->code;
    if (vision) return dump_encoded(job, i, t->tokens, e);
    if (kind == ENCODED_CONTROL_IMAGE || kind == ENCODED_CONTROL_INPAINT)
        return control_images_take(job, i, t->moments, e);
    if (kind == ENCODED_INIT || kind == ENCODED_ENLARGED || kind == ENCODED_MASKED)
        return take_per_image(r, i, e);
    return take_shared(job, i, chunk, e);
}

bool initial_latents_need_no_picture(const struct job *job) {
    for (int i = 0; i < job->pictures.n_encoded; i++)
        if (job->pictures.encoded[i].kind == ENCODED_INIT ||
            job->pictures.encoded[i].kind == ENCODED_ENLARGED)
            return false;
    return true;
}

enum status initial_latents_make(struct running *r, struct error *e) {
    struct job *job = r->pass;
    struct layout *l = &job->layout;
    if (r->latent_file && load_latents(job, r->latent_file, e) != OK) return e->code;
    if (job->settings.decode_only) return OK;
    r->generators =
        sys_new(job->sys, (size_t)job->latents.batch, sizeof *r->generators, "the random generators", e);
    for (int i = 0; i < job->latents.batch && r->generators; i++)
        generator_seed(&r->generators[i], job->request.seed + (uint64_t)i);
    for (int i = 0; i < job->pictures.n_encoded && e->code == OK; i++) {
        const struct tensor *to = &l->encoded[i].resized;
        if (to->rank)
            picture_resize(job->sys, pictures_fitted(job, &job->pictures.encoded[i]), TORCH_BICUBIC,
                           job->pictures.encoded[i].size, to->data, e);
    }
    if (e->code != OK || control_images_begin(job, e) != OK) return e->code;
    for (int i = 0; i < job->latents.batch && initial_latents_need_no_picture(job); i++) {
        struct tensor sound = job_sound(job, l->latent[i]);
        if (!r->latent_file) draw_noise(r, i, l->latent[i]);
        if (sound.rank) draw_noise(r, i, sound);
        begin_sampling(job, i, NULL);
    }
    if (!l->mask.rank) return OK;
    const struct sluice_picture *mask = &job->pictures.fitted[PICTURE_MASK];
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    if (job->model->recipe->images.mask_bilinear)
        mask_to_latent_bilinear(mask, factor, l->mask);
    else
        mask_to_latent(mask, factor, l->mask);
    return OK;
}
