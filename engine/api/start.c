/* Beginnings: see start.h. */
#include "engine/api/start.h"

#include "engine/api/given.h"
#include "engine/api/latents.h"
#include "engine/open/latent_file.h"
#include "engine/api/led.h"
#include "engine/pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e) {
    const float *values = t.data;
    int64_t n = tensor_elements(&t), bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !isfinite(values[i]);
    if (!bad) return OK;
    error_set(e, NONFINITE, "%s holds values that are no finite numbers", what);
    step < 0 ? error_where(e, "stage %s", stage) : error_where(e, "stage %s, step %d", stage, step + 1);
    return error_found(e, "%lld of %lld", (long long)bad, (long long)n);
}

/* ---- noise ---- */

static enum status seed_generators(struct start *start, struct error *e) {
    struct job *job = start->job;
    start->generators = job->sys->alloc(job->sys, LINE_HOST, (size_t)job->batch * sizeof *start->generators);
    if (!start->generators) return error_set(e, MEMORY, "no memory for generators");
    for (int i = 0; i < job->batch; i++)
        generator_seed(&start->generators[i], job->request.seed + (uint64_t)i);
    return OK;
}

void start_draw(struct start *start, int image, struct tensor to) {
    generator_normals(&start->generators[image], to.data, tensor_elements(&to));
}

static enum status load_latents(struct job *job, const char *path, struct error *e) {
    struct tensor_index index;
    int32_t dim[5];
    if (latent_open(job->sys, path, &index, dim, e) == OK) {
        struct tensor *latent = job->layout.latent;
        if (dim[0] != job->batch || memcmp(dim + 1, latent->dim, 4 * sizeof *dim) != 0) {
            error_set(e, SHAPE, "the tensor 'latent' has the wrong shape");
            error_where(e, "%s", path);
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

void start_scale_input(const struct job *job, int image, int i_call) {
    const float *sample = job->layout.latent[image].data;
    float *input = job->layout.input[image].data, scale = job->calls[i_call].input_scale;
    int64_t n = tensor_elements(&job->layout.latent[image]);
    for (int64_t i = 0; i < n && input != sample; i++) input[i] = scale * sample[i];
    given_put(job, job->layout.input[image]);
}

/* ---- pictures in ---- */

static enum status resize_shown(struct job *job, struct error *e) {
    for (int i = 0; i < job->n_encoded && e->code == OK; i++) {
        const struct encoded *encoded = &job->encoded[i];
        const struct tensor *to = &job->layout.encoded[i].resized;
        if (to->rank)
            picture_resize(job->sys, job_source(job, encoded), TORCH_BICUBIC, encoded->size, to->data, e);
    }
    return e->code;
}

static void fill_picture(const struct job *job, int i) {
    const struct encoded *encoded = &job->encoded[i];
    struct sluice_picture picture = *job_source(job, encoded);
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
        picture_to_seen(&picture, format->mean, format->deviation, out);
}

enum status start_fill(const struct job *job, int i, int chunk, struct error *e) {
    const struct encoded *encoded = &job->encoded[i];
    struct tensor out = job->layout.encoded[i].picture;
    if (encoded->kind == ENCODED_LED) return led_fill(job, encoded, &job->encoded_chunks[chunk], out, e);
    if (encoded->kind == ENCODED_FRAMES)
        given_fill(job, &job->encoded_chunks[chunk], out);
    else if (encoded->kind == ENCODED_FRONT)
        led_fill_front(job, encoded, out);
    else
        fill_picture(job, i);
    return OK;
}

/* ---- what the encoder made of them ---- */

/* The latent of a picture: drawn from what the encoder says of it, or its mean. */
static void take_latent(struct start *start, int image, struct tensor moments, bool drawn, struct tensor to) {
    const struct component *c = model_component(start->job->model, FAMILY_ENCODER);
    if (drawn) start_draw(start, image, to);
    posterior_sample(moments, drawn ? to.data : NULL, &c->latent_format, latent_planes(to));
}

/* Of a video a frame's mean. */
static void take_frame(const struct job *job, struct tensor moments, struct tensor to, int frame) {
    const struct component *c = model_component(job->model, FAMILY_ENCODER);
    posterior_sample(moments, NULL, &c->latent_format, latent_frame(to, frame));
}

/* What the mask leaves is put back at the noise that the run begins with (kept.h). */
static void keep_noise(const struct job *job, int image) {
    const struct tensor *noise = &job->layout.kept_noise[image];
    if (noise->rank) memcpy(noise->data, job->layout.latent[image].data, (size_t)tensor_bytes(noise));
}

/* Of noise, where the run begins. */
static void start_begin(struct start *start, int image, const float *picture) {
    struct job *job = start->job;
    struct tensor latent = job->layout.latent[image];
    grid_begin(&job->grid, latent.data, picture, tensor_elements(&latent));
    start_scale_input(job, image, 0);
}

/* No denoiser has written predictions yet: the first is room for the picture's latent, where none is kept.
 * With a mask and nothing left of the picture a run begins with noise alone, as without one. What diffusers
 * draws for the picture around the mask, and then does not read, is drawn here too: samplers draw after it.
 */
static void begin_at_picture(struct start *start, int image, struct tensor moments) {
    struct job *job = start->job;
    const struct layout *l = &job->layout;
    bool keeps = job_keeps(job);
    struct tensor latent = l->latent[image], picture = keeps ? l->kept[image] : l->prediction[0];
    take_latent(start, image, moments, job->model->recipe->samples_init, picture);
    if (!start->latent_file) start_draw(start, image, latent);
    keep_noise(job, image);
    if (keeps && job->model->recipe->samples_init) start_draw(start, image, l->prediction[0]);
    start_begin(start, image, keeps && job->request.strength == 1 ? NULL : picture.data);
}

/* Where of what lies beside the latent the picture around the mask is; the mask is what else there is. */
static struct tensor masked_latent(const struct job *job, int image) {
    struct tensor concat = job->layout.concat[image];
    bool first = job->model->recipe->concat == CONCAT_MASKED;
    return tensor_slice(concat, first ? 0 : concat.dim[0] - job->C, job->C);
}

static void take_mask(const struct job *job, struct tensor concat) {
    const struct sluice_picture *mask = &job->picture[PICTURE_MASK];
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    if (job->model->recipe->concat == CONCAT_MASKED)
        mask_to_channels(mask, factor, latent_planes(tensor_slice(concat, job->C, concat.dim[0] - job->C)));
    else
        mask_to_latent(mask, factor, tensor_reshape(tensor_slice(concat, 0, 1), 2, concat.dim + 2));
}

/* Beside the latent lie that of the picture around the mask, and the mask. */
static void take_masked(struct start *start, int image, struct tensor moments) {
    struct job *job = start->job;
    take_latent(start, image, moments, job->model->recipe->samples_init, masked_latent(job, image));
    take_mask(job, job->layout.concat[image]);
}

/* Latents of pictures, and what vision encoders see of them, are numbered each by themselves. */
static enum status dump_encoded(const struct job *job, int i, struct tensor made, struct error *e) {
    bool sees = job->encoded[i].kind == ENCODED_VISION;
    const char *what = sees ? "seen" : "encoded";
    char name[32];
    int number = 0;
    if (!job->request.dump) return OK;
    for (int k = 0; k < i; k++) number += (job->encoded[k].kind == ENCODED_VISION) == sees;
    number ? snprintf(name, sizeof name, "%s_%03d", what, number) : snprintf(name, sizeof name, "%s", what);
    return dump_save(job->sys, job->request.dump, name, made, e);
}

static struct tensor given_place(const struct job *job, const struct encoded *encoded) {
    const struct layout *l = &job->layout;
    if (encoded->kind == ENCODED_REFERENCE) return l->reference[encoded->reference];
    if (encoded->kind == ENCODED_FIRST) return l->given;
    return encoded->kind == ENCODED_FRAMES ? given_latent(job) : led_latent(job, encoded);
}

/* All that lies beside the latent, once the last of it is encoded. */
static enum status finish_concat(const struct job *job, int i, struct error *e) {
    if (i + 1 < job->n_encoded) return OK;
    if (job->encoded[i].kind == ENCODED_FRAMES)
        given_mask(job);
    else
        led_finish(job);
    return job->request.dump ? dump_save(job->sys, job->request.dump, "concat", *job->layout.concat, e) : OK;
}

/* What is the same for all images, for nothing is drawn. */
static enum status take_given(const struct job *job, int i, int chunk, struct error *e) {
    const struct encoded *encoded = &job->encoded[i];
    bool led = encoded->kind == ENCODED_LED || encoded->kind == ENCODED_FRONT;
    struct tensor to = given_place(job, encoded);
    take_frame(job, job->layout.encoded[i].moments, to, led ? led_frame(job, encoded, chunk) : chunk);
    if (chunk + 1 < encoded->n_chunks) return OK;
    if (led || encoded->kind == ENCODED_FRAMES) return finish_concat(job, i, e);
    for (int image = 0; image < job->batch && encoded->kind == ENCODED_FIRST; image++)
        start_scale_input(job, image, 0);
    return dump_encoded(job, i, latent_planes(to), e);
}

/* Of each image by itself; it may lie where the next one's will. */
static enum status take_drawn(struct start *start, int i, struct error *e) {
    const struct job *job = start->job;
    const struct layout *l = &job->layout;
    bool begins = job->encoded[i].kind == ENCODED_INIT;
    struct tensor moments = l->encoded[i].moments, shown = job_keeps(job) ? l->kept[0] : l->prediction[0];
    for (int image = 0; image < job->batch && e->code == OK; image++) {
        if (begins)
            begin_at_picture(start, image, moments);
        else
            take_masked(start, image, moments);
        if (!image) dump_encoded(job, i, latent_planes(begins ? shown : masked_latent(job, 0)), e);
    }
    return e->code;
}

enum status start_encoded(struct start *start, int i, int chunk, struct error *e) {
    const struct job *job = start->job;
    const struct encoded_tensors *t = &job->layout.encoded[i];
    bool sees = job->encoded[i].kind == ENCODED_VISION;
    if (check_finite(sees ? t->tokens : t->moments, "the encoded picture", sees ? "vision" : "encode", -1,
                     e) != OK)
        return e->code;
    switch (job->encoded[i].kind) {
    case ENCODED_VISION:
        return dump_encoded(job, i, t->tokens, e);
    case ENCODED_INIT:
    case ENCODED_MASKED:
        return take_drawn(start, i, e);
    case ENCODED_REFERENCE:
    case ENCODED_FRAMES:
    case ENCODED_FIRST:
    case ENCODED_LED:
    case ENCODED_FRONT:
        return take_given(job, i, chunk, e);
    }
    return e->code;
}

/* ---- all ---- */

bool start_is_early(const struct job *job) {
    for (int i = 0; i < job->n_encoded; i++)
        if (job->encoded[i].kind == ENCODED_INIT) return false;
    return true;
}

enum status start_open(struct start *start, struct job *job, const char *latent_file, struct error *e) {
    *start = (struct start){.job = job, .latent_file = latent_file};
    if (latent_file && load_latents(job, latent_file, e) != OK) return e->code;
    if (job->decode_only) return OK;
    if (seed_generators(start, e) != OK || resize_shown(job, e) != OK) return e->code;
    for (int i = 0; i < job->batch && start_is_early(job); i++) {
        if (!latent_file) start_draw(start, i, job->layout.latent[i]);
        start_begin(start, i, NULL);
    }
    if (job->layout.mask.rank)
        mask_to_latent(&job->picture[PICTURE_MASK], model_component(job->model, FAMILY_ENCODER)->pixel_factor,
                       job->layout.mask);
    return OK;
}

void start_close(struct start *start) {
    if (start->job) start->job->sys->release(start->job->sys, start->generators);
}
