/* Input pictures of a job: which are used, at what size, and how their pixels are read. See job.h. */
#include "engine/api/job.h"

#include "engine/api/arguments.h"
#include "engine/api/request.h"

#include <string.h>

/* Index in job->picture of the input image from which an encoded picture is made (the mask for masked images
 * and control videos). A vision encoder that needs another size than the VAE has its own copies. */
static int picture_index_of(const struct job *job, const struct encoded *encoded) {
    int vision = PICTURE_VISION + encoded->reference;
    switch (encoded->kind) {
    case ENCODED_INIT:
    case ENCODED_FRAMES:
    case ENCODED_FIRST:
        return PICTURE_INIT;
    case ENCODED_MASKED:
    case ENCODED_CONTROL:
        return PICTURE_MASK;
    case ENCODED_VISION:
        return job->input_picture[vision].width ? vision : PICTURE_REFERENCES + encoded->reference;
    case ENCODED_REFERENCE:
    case ENCODED_REFERENCE_FRAME:
        return PICTURE_REFERENCES + encoded->reference;
    }
    return PICTURE_INIT;
}

const struct sluice_picture *job_fitted_picture(const struct job *job, const struct encoded *encoded) {
    return &job->picture[picture_index_of(job, encoded)];
}

const struct sluice_picture *job_input_picture(const struct job *job, const struct encoded *encoded) {
    return &job->input_picture[picture_index_of(job, encoded)];
}

bool job_resizes(const struct job *job, const struct encoded *encoded) {
    const struct sluice_picture *source = job_fitted_picture(job, encoded);
    return encoded->kind == ENCODED_VISION &&
           (encoded->size.width != source->width || encoded->size.height != source->height);
}

static const struct sluice_picture *job_copy_picture(struct job *job, int i,
                                                     const struct sluice_picture *picture) {
    if (picture) copy_sized(&job->input_picture[i], sizeof job->input_picture[i], picture);
    return picture ? &job->input_picture[i] : NULL;
}

static int read_assumed_picture(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    (void)picture, (void)rgb;
    struct error none = {0};
    error_set(&none, USAGE, "an assumed picture has no pixels: this request can only be planned");
    return publish_error(&none, e);
}

/* A placeholder picture of the model's default size, without pixels, for plans without input images. */
static const struct sluice_picture *job_assume_picture(struct job *job, int place) {
    job->input_picture[place] = (struct sluice_picture){.struct_size = sizeof *job->input_picture,
                                                        .width = job->model->width,
                                                        .height = job->model->height,
                                                        .read = read_assumed_picture};
    return &job->input_picture[place];
}

static void job_assume_frames(struct job *job) {
    struct sluice_request *r = &job->request;
    bool ends = request_vision_frames(job->model) == 2;
    job->frames_assumed = !r->init_image || (ends && !r->end_image);
    if (!r->init_image) r->init_image = job_assume_picture(job, PICTURE_INIT);
    if (!r->end_image && ends) r->end_image = job_assume_picture(job, PICTURE_END);
}

static void job_assume_mask(struct job *job) {
    struct sluice_request *r = &job->request;
    if (r->mask || r->init_image) return;
    r->init_image = job_assume_picture(job, PICTURE_INIT);
    r->mask = job_assume_picture(job, PICTURE_MASK);
    r->strength = 1;
    job->mask_assumed = true;
}

/* When only planning (no prompt or no model files), adds placeholders for the input images that the model
 * needs. */
void job_assume_pictures(struct job *job) {
    struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    if (job->decode_only || (r->prompt && !job->model->published)) return;
    if (!r->n_references && recipe->references_min) {
        job->references[0] = job_assume_picture(job, PICTURE_REFERENCES);
        r->references = job->references;
        r->n_references = 1;
        job->reference_assumed = true;
    }
    if (recipe->concat == CONCAT_FILL || recipe->concat == CONCAT_INPAINT) job_assume_mask(job);
    if (recipe->concat == CONCAT_I2V) job_assume_frames(job);
}

/* Copies no references if there are more than LANE_REFERENCES_MAX: request_resolve will refuse the request.
 */
void job_copy_pictures(struct job *job) {
    struct sluice_request *r = &job->request;
    r->init_image = job_copy_picture(job, PICTURE_INIT, r->init_image);
    r->end_image = job_copy_picture(job, PICTURE_END, r->end_image);
    r->mask = job_copy_picture(job, PICTURE_MASK, r->mask);
    if (!r->references || r->n_references > LANE_REFERENCES_MAX) return;
    for (int i = 0; i < r->n_references; i++)
        job->references[i] = job_copy_picture(job, PICTURE_REFERENCES + i, r->references[i]);
    r->references = job->references;
}

static struct picture_size job_input_size(const struct job *job, int i) {
    return (struct picture_size){job->input_picture[i].width, job->input_picture[i].height};
}

static void job_fit_picture(struct job *job, int i, struct fitting fitting) {
    job->fitting[i] = fitting;
    job->picture[i] = job->input_picture[i];
    job->picture[i].width = fitting.size.width;
    job->picture[i].height = fitting.size.height;
    if (fit_changes(&job->fitting[i])) job->picture[i].rgb = NULL;
}

/* Fits references to the sizes that VAE and vision encoder read, with a copy for each if the sizes differ. */
static void job_fit_references(struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    bool has_encoder = recipe_slot(recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool has_vision = recipe_slot(recipe, FAMILY_VISION) < SLOTS_MAX;
    for (int i = 0; i < job->request.n_references; i++) {
        const struct sluice_picture *reference = &job->input_picture[PICTURE_REFERENCES + i];
        struct picture_size vision_size = request_vision_size(recipe, reference),
                            size = has_encoder ? job->reference_size[i] : vision_size;
        job_fit_picture(job, PICTURE_REFERENCES + i,
                        fit_make(FIT_STRETCH, job_input_size(job, PICTURE_REFERENCES + i), size));
        if (!has_vision || !memcmp(&size, &vision_size, sizeof size)) continue;
        job->input_picture[PICTURE_VISION + i] = *reference;
        job_fit_picture(job, PICTURE_VISION + i,
                        fit_make(FIT_STRETCH, job_input_size(job, PICTURE_VISION + i), vision_size));
    }
}

/* How a vision encoder reads a picture of a given size: bicubic resize, then center crop, as in the encoder's
 * training. */
static struct fitting fit_for_vision(struct picture_size from, const struct vision_grid *grid) {
    struct picture_size size = {grid->width, grid->height}, whole = {grid->whole.width, grid->whole.height};
    return (struct fitting){.from = from,
                            .size = size,
                            .part = {.by = TORCH_BICUBIC,
                                     .whole = whole.width ? whole : size,
                                     .x = grid->whole.left,
                                     .y = grid->whole.top,
                                     .size = size}};
}

/* Fits first and last frame for the vision encoder from the unfitted pictures, whatever the output size. */
static void job_fit_vision_frames(struct job *job) {
    const struct component *vision = model_component(job->model, FAMILY_VISION);
    const int places[] = {PICTURE_INIT, PICTURE_END};
    for (int i = 0; i < request_vision_frames(job->model); i++) {
        struct picture_size from = job_input_size(job, places[i]);
        struct vision_grid grid = vision->family->vision_grid(vision, from.width, from.height);
        job->input_picture[PICTURE_VISION + i] = job->input_picture[places[i]];
        job_fit_picture(job, PICTURE_VISION + i, fit_for_vision(from, &grid));
    }
}

void job_fit_pictures(struct job *job, enum fit fit) {
    struct picture_size output = {job->request.width, job->request.height};
    for (int i = 0; i < PICTURE_REFERENCES; i++)
        if (job->input_picture[i].width)
            job_fit_picture(job, i, fit_make(fit, job_input_size(job, i), output));
    job_fit_references(job);
    job_fit_vision_frames(job);
    if (job->request.n_control)
        job->control_fitting = fit_make(fit, request_control_size(&job->request), output);
}

uint64_t job_reading_bytes(const struct job *job) {
    uint64_t most = 0;
    for (int i = 0; i < PICTURES_MAX; i++) {
        if (!job->picture[i].width || job->picture[i].rgb) continue;
        uint64_t bytes = fit_bytes(&job->input_picture[i], &job->fitting[i]);
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < job->n_encoded; i++) {
        const struct encoded *encoded = &job->encoded[i];
        const struct sluice_picture *source = job_fitted_picture(job, encoded);
        struct picture_part part = {.by = TORCH_BICUBIC, .whole = encoded->size, .size = encoded->size};
        uint64_t bytes = resample_bytes((struct picture_size){source->width, source->height}, &part);
        if (job_resizes(job, encoded) && bytes > most) most = bytes;
    }
    return most;
}

uint64_t job_control_bytes(const struct job *job) {
    uint64_t held = 0, most = 0;
    for (int i = 0; i < job->request.n_control; i++) {
        struct sluice_picture frame;
        copy_sized(&frame, sizeof frame, job->request.control[i]);
        uint64_t bytes = fit_bytes(&frame, &job->control_fitting);
        if (frame.rgb) held += (uint64_t)frame.width * (uint64_t)frame.height * 3;
        if (bytes > most) most = bytes;
    }
    return held + most;
}

enum status job_read_pictures(struct job *job, struct error *e) {
    for (int i = 0; i < PICTURES_MAX && e->code == OK; i++) {
        struct sluice_picture *p = &job->picture[i];
        if (!p->width || p->rgb) continue;
        job->pixels[i] = job->sys->alloc(job->sys, LINE_HOST, (size_t)p->width * (size_t)p->height * 3);
        if (!job->pixels[i]) return error_set(e, MEMORY, "no memory for a picture");
        fit_read(job->sys, &job->input_picture[i], &job->fitting[i], job->pixels[i], e);
        p->rgb = job->pixels[i];
    }
    return e->code;
}

static void job_list_vision_input(struct job *job, int slot, int number, struct picture_size vision_size) {
    const struct component *c = &job->model->component[slot];
    struct vision_grid grid = c->family->vision_grid(c, vision_size.width, vision_size.height);
    job->encoded[job->n_encoded++] = (struct encoded){.kind = ENCODED_VISION,
                                                      .slot = slot,
                                                      .reference = number,
                                                      .size = {grid.width, grid.height},
                                                      .columns = grid.columns,
                                                      .rows = grid.rows,
                                                      .n_chunks = 1};
}

/* Lists the inputs of a vision encoder: every reference, or first and last frame. */
static void job_list_vision(struct job *job, int slot) {
    for (int i = 0; i < job->request.n_references; i++)
        job_list_vision_input(job, slot, i,
                              request_vision_size(job->model->recipe, job->request.references[i]));
    for (int i = 0; i < request_vision_frames(job->model); i++)
        job_list_vision_input(job, slot, i, job_input_size(job, PICTURE_VISION + i));
}

bool job_blends_mask(const struct job *job) {
    return job->request.mask && !job->decode_only && job->model->recipe->concat == CONCAT_NONE;
}

/* True if the input image is encoded. False for inpainting models at strength 1, which begin with pure noise
 * and read only the masked image. Encoding the input image too would draw from the generator and shift all
 * later random numbers. */
static bool job_reads_init(const struct job *job) {
    const struct sluice_request *r = &job->request;
    return r->init_image && job->model->init == INIT_IMG2IMG &&
           !(job->model->recipe->concat == CONCAT_INPAINT && r->strength == 1);
}

/* Lists one picture for the VAE to encode; all pictures except references have the output size. */
static void job_list_one(struct job *job, enum encoded_kind kind, int number, int n_chunks) {
    const struct sluice_request *r = &job->request;
    struct picture_size size = {r->width, r->height};
    job->encoded[job->n_encoded++] =
        (struct encoded){.kind = kind,
                         .slot = recipe_slot(job->model->recipe, FAMILY_ENCODER),
                         .reference = number,
                         .size = kind == ENCODED_REFERENCE ? job->reference_size[number] : size,
                         .n_chunks = n_chunks};
}

/* Lists reference frames and both parts of the control video, or one grey video if there is no control video.
 */
static void job_list_control(struct job *job) {
    for (int i = 0; i < job->n_reference_frames; i++) job_list_one(job, ENCODED_REFERENCE_FRAME, i, 1);
    for (int i = 0; i < (job->request.n_control ? 2 : 1); i++)
        job_list_one(job, ENCODED_CONTROL, i, job->n_encoded_chunks);
}

void job_list_encoded(struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    bool control = recipe->concat == CONCAT_CONTROL;
    for (int slot = 0; slot < SLOTS_MAX && recipe->slot[slot].family; slot++)
        if (recipe->slot[slot].family->kind == FAMILY_VISION) job_list_vision(job, slot);
    if (recipe_slot(recipe, FAMILY_ENCODER) == SLOTS_MAX) return;
    if (job_reads_init(job)) job_list_one(job, ENCODED_INIT, 0, 1);
    if (r->mask && !job_blends_mask(job) && !control) job_list_one(job, ENCODED_MASKED, 0, 1);
    for (int i = 0; i < r->n_references && !control; i++) job_list_one(job, ENCODED_REFERENCE, i, 1);
    if (r->init_image && job->model->init == INIT_FIRST_FRAME && recipe->concat == CONCAT_I2V)
        job_list_one(job, ENCODED_FRAMES, 0, job->n_encoded_chunks);
    else if (r->init_image && job->model->init == INIT_FIRST_FRAME)
        job_list_one(job, ENCODED_FIRST, 0, 1);
    if (control) job_list_control(job);
}
