/* Beginnings: see start.h. */
#include "engine/api/start.h"

#include "engine/api/latents.h"
#include "engine/api/pictures.h"
#include "engine/sample/flow.h"

#include <math.h>
#include <stdio.h>

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

static void draw(struct start *start, int image, struct tensor to) {
    generator_normals(&start->generators[image], to.data, tensor_elements(&to));
}

static enum status load_latents(struct job *job, const char *path, struct error *e) {
    struct tensor_index index;
    int32_t dim[4];
    if (latent_open(job->sys, path, &index, dim, e) == OK) {
        const struct tensor *to = &job->latent[0];
        if (dim[0] != job->batch || dim[1] != to->dim[0] || dim[2] != to->dim[1] || dim[3] != to->dim[2]) {
            error_set(e, SHAPE, "the tensor 'latent' has the wrong shape");
            error_where(e, "%s", path);
            error_found(e, "[%d, %d, %d, %d]", dim[0], dim[1], dim[2], dim[3]);
            error_expected(e, "[%d, %d, %d, %d]", job->batch, to->dim[0], to->dim[1], to->dim[2]);
        }
        for (int i = 0; i < job->batch && e->code == OK; i++) latent_read(&index, i, job->latent[i], e);
        for (int i = 0; i < job->batch && e->code == OK; i++)
            check_finite(job->latent[i], "the latent file", "start", -1, e);
    }
    index_destroy(&index);
    return e->code;
}

/* ---- pictures in ---- */

static enum status resize_references(struct job *job, struct error *e) {
    for (int i = 0; i < job->n_encoded && e->code == OK; i++) {
        const struct encoded *encoded = &job->encoded[i];
        if (!encoded->resized.rank) continue;
        struct picture_size size = {encoded->resized.dim[1], encoded->resized.dim[0]};
        picture_resize(job->sys, job_source(job, encoded), size, encoded->resized.data, e);
    }
    return e->code;
}

static void fill_picture(const struct job *job, int i) {
    const struct encoded *encoded = &job->encoded[i];
    struct sluice_picture picture = *job_source(job, encoded);
    const struct sluice_picture *mask = NULL;
    if (encoded->resized.rank) {
        picture.width = encoded->resized.dim[1];
        picture.height = encoded->resized.dim[0];
        picture.rgb = encoded->resized.data;
    }
    if (encoded->kind == ENCODED_MASKED) {
        mask = job->request.mask;
        picture = *job->request.init_image;
    }
    picture_to_tensor(&picture, mask, encoded->picture);
}

/* ---- what the encoder made of them ---- */

/* The latent of a picture: drawn from what the encoder says of it, or its mean. */
static void take_latent(struct start *start, int image, const struct encoded *encoded, bool drawn,
                        struct tensor to) {
    const struct component *c = model_component(start->job->model, FAMILY_ENCODER);
    if (drawn) draw(start, image, to);
    posterior_sample(encoded->moments, drawn ? to.data : NULL, c->latent_scale, c->latent_shift, to);
}

/* No denoiser has written predictions yet: the first is room for the picture's latent. */
static void begin_at_picture(struct start *start, int image, const struct encoded *encoded) {
    struct job *job = start->job;
    struct tensor latent = job->latent[image], picture = job->prediction[0];
    take_latent(start, image, encoded, job->model->recipe->samples_init, picture);
    if (!start->latent_file) draw(start, image, latent);
    flow_begin(latent.data, picture.data, tensor_elements(&latent), job->sigmas[0]);
}

/* Beside the latent lie that of the picture around the mask, and the mask. */
static void take_masked(struct start *start, int image, const struct encoded *encoded) {
    struct job *job = start->job;
    struct tensor control = job->control[image];
    int32_t channels = job->latent[image].dim[0];
    take_latent(start, image, encoded, job->model->recipe->samples_init, tensor_slice(control, 0, channels));
    mask_to_channels(job->request.mask, model_component(job->model, FAMILY_ENCODER)->pixel_factor,
                     tensor_slice(control, channels, control.dim[0] - channels));
}

static enum status dump_encoded(const struct job *job, int i, struct tensor latent, struct error *e) {
    char name[32] = "encoded";
    if (i) snprintf(name, sizeof name, "encoded_%03d", i);
    return job->request.dump ? ring_save(job->sys, job->request.dump, name, latent, e) : OK;
}

enum status start_encoded(struct start *start, int i, struct error *e) {
    struct job *job = start->job;
    const struct encoded *encoded = &job->encoded[i];
    struct tensor shown = job->prediction[0];
    if (check_finite(encoded->moments, "the encoded picture", "encode", -1, e) != OK) return e->code;
    for (int image = 0; image < job->batch && e->code == OK; image++) {
        if (encoded->kind == ENCODED_REFERENCE) {
            shown = job->reference[encoded->reference];
            if (!image) take_latent(start, image, encoded, false, shown);
        } else if (encoded->kind == ENCODED_INIT) {
            begin_at_picture(start, image, encoded);
        } else {
            take_masked(start, image, encoded);
            shown = tensor_slice(job->control[0], 0, job->latent[0].dim[0]);
        }
        if (!image) dump_encoded(job, i, shown, e);
    }
    if (e->code == OK && i + 1 < job->n_encoded) fill_picture(job, i + 1);
    return e->code;
}

/* ---- all ---- */

bool start_is_early(const struct job *job) {
    return !job->n_encoded || job->encoded[0].kind != ENCODED_INIT;
}

enum status start_open(struct start *start, struct job *job, const char *latent_file, struct error *e) {
    *start = (struct start){.job = job, .latent_file = latent_file};
    if (latent_file && load_latents(job, latent_file, e) != OK) return e->code;
    if (job->decode_only) return OK;
    if (seed_generators(start, e) != OK || resize_references(job, e) != OK) return e->code;
    for (int i = 0; i < job->batch && start_is_early(job) && !latent_file; i++)
        draw(start, i, job->latent[i]);
    if (job->n_encoded) fill_picture(job, 0);
    return OK;
}

void start_close(struct start *start) {
    if (start->job) start->job->sys->release(start->job->sys, start->generators);
}
