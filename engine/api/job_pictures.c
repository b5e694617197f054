/* The pictures of a job: which are used, at what sizes and for what, and how their pixels come to memory. See
 * job.h. */
#include "engine/api/job.h"

#include "engine/api/caller.h"
#include "engine/api/request.h"

#include <string.h>

/* Which of the pictures stands behind one that is encoded; of a masked one that is the mask. What vision
 * encoders see is apart where it is not what an autoencoder reads. */
static int job_picture_of(const struct job *job, const struct encoded *encoded) {
    int shown = PICTURE_SHOWN + encoded->reference;
    switch (encoded->kind) {
    case ENCODED_INIT:
    case ENCODED_FRAMES:
    case ENCODED_FIRST:
        return PICTURE_INIT;
    case ENCODED_MASKED:
    case ENCODED_LED:
        return PICTURE_MASK;
    case ENCODED_VISION:
        return job->given[shown].width ? shown : PICTURE_REFERENCES + encoded->reference;
    case ENCODED_REFERENCE:
    case ENCODED_FRONT:
        return PICTURE_REFERENCES + encoded->reference;
    }
    return PICTURE_INIT;
}

const struct sluice_picture *job_source(const struct job *job, const struct encoded *encoded) {
    return &job->picture[job_picture_of(job, encoded)];
}

const struct sluice_picture *job_given(const struct job *job, const struct encoded *encoded) {
    return &job->given[job_picture_of(job, encoded)];
}

bool job_resizes(const struct job *job, const struct encoded *encoded) {
    const struct sluice_picture *source = job_source(job, encoded);
    return encoded->kind == ENCODED_VISION &&
           (encoded->size.width != source->width || encoded->size.height != source->height);
}

static const struct sluice_picture *job_copy_picture(struct job *job, int i,
                                                     const struct sluice_picture *given) {
    if (given) copy_sized(&job->given[i], sizeof job->given[i], given);
    return given ? &job->given[i] : NULL;
}

static int job_read_nothing(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    (void)picture, (void)rgb;
    struct error none = {0};
    error_set(&none, USAGE, "a picture that was assumed has no pixels");
    return publish_error(&none, e);
}

/* One of the size that is drawn, which nobody can look at. */
static const struct sluice_picture *job_assume_picture(struct job *job, int place) {
    job->given[place] = (struct sluice_picture){.struct_size = sizeof *job->given,
                                                .width = job->model->width,
                                                .height = job->model->height,
                                                .read = job_read_nothing};
    return &job->given[place];
}

/* What a model that goes on from a picture cannot do without. */
static void job_assume_frames(struct job *job) {
    struct sluice_request *r = &job->request;
    bool ends = request_frames_seen(job->model) == 2;
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

/* Planning, without a prompt or without files, a model that cannot do without pictures: they are there. */
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
    if (recipe->concat == CONCAT_MASKED || recipe->concat == CONCAT_INPAINT) job_assume_mask(job);
    if (recipe->concat == CONCAT_FRAMES) job_assume_frames(job);
}

/* More references than any model takes stay where they are, to be refused. */
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

static struct picture_size job_given_size(const struct job *job, int i) {
    return (struct picture_size){job->given[i].width, job->given[i].height};
}

static void job_fit_picture(struct job *job, int i, struct fitting fitting) {
    job->fitting[i] = fitting;
    job->picture[i] = job->given[i];
    job->picture[i].width = fitting.size.width;
    job->picture[i].height = fitting.size.height;
    if (fit_changes(&job->fitting[i])) job->picture[i].rgb = NULL;
}

/* References are read at the sizes at which encoders see them: twice where those are two. */
static void job_fit_references(struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    bool reads = recipe_slot(recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool sees = recipe_slot(recipe, FAMILY_VISION) < SLOTS_MAX;
    for (int i = 0; i < job->request.n_references; i++) {
        const struct sluice_picture *given = &job->given[PICTURE_REFERENCES + i];
        struct picture_size shown = request_shown_size(recipe, given),
                            size = reads ? job->reference_size[i] : shown;
        job_fit_picture(job, PICTURE_REFERENCES + i,
                        fit_make(FIT_STRETCH, job_given_size(job, PICTURE_REFERENCES + i), size));
        if (!sees || !memcmp(&size, &shown, sizeof size)) continue;
        job->given[PICTURE_SHOWN + i] = *given;
        job_fit_picture(job, PICTURE_SHOWN + i,
                        fit_make(FIT_STRETCH, job_given_size(job, PICTURE_SHOWN + i), shown));
    }
}

/* As a vision encoder reads a picture of that size: resampled as those who trained it resample, and cut. */
static struct fitting job_fit_sight(struct picture_size from, const struct sight *sight) {
    struct picture_size size = {sight->width, sight->height},
                        whole = {sight->whole.width, sight->whole.height};
    return (struct fitting){.from = from,
                            .size = size,
                            .part = {.by = TORCH_BICUBIC,
                                     .whole = whole.width ? whole : size,
                                     .x = sight->whole.left,
                                     .y = sight->whole.top,
                                     .size = size}};
}

/* First and last frame as a vision encoder sees them: from the pictures themselves, whatever is drawn. */
static void job_fit_seen_frames(struct job *job) {
    const struct component *vision = model_component(job->model, FAMILY_VISION);
    const int places[] = {PICTURE_INIT, PICTURE_END};
    for (int i = 0; i < request_frames_seen(job->model); i++) {
        struct picture_size from = job_given_size(job, places[i]);
        struct sight sight = vision->family->sees(vision, from.width, from.height);
        job->given[PICTURE_SHOWN + i] = job->given[places[i]];
        job_fit_picture(job, PICTURE_SHOWN + i, job_fit_sight(from, &sight));
    }
}

void job_fit_pictures(struct job *job, enum fit fit) {
    struct picture_size drawn = {job->request.width, job->request.height};
    for (int i = 0; i < PICTURE_REFERENCES; i++)
        if (job->given[i].width) job_fit_picture(job, i, fit_make(fit, job_given_size(job, i), drawn));
    job_fit_references(job);
    job_fit_seen_frames(job);
    if (job->request.n_control)
        job->control_fitting = fit_make(fit, request_control_size(&job->request), drawn);
}

uint64_t job_reading_bytes(const struct job *job) {
    uint64_t most = 0;
    for (int i = 0; i < PICTURES_MAX; i++) {
        if (!job->picture[i].width || job->picture[i].rgb) continue;
        uint64_t bytes = fit_bytes(&job->given[i], &job->fitting[i]);
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < job->n_encoded; i++) {
        const struct encoded *encoded = &job->encoded[i];
        const struct sluice_picture *source = job_source(job, encoded);
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
        fit_read(job->sys, &job->given[i], &job->fitting[i], job->pixels[i], e);
        p->rgb = job->pixels[i];
    }
    return e->code;
}

static void job_list_seen(struct job *job, int slot, int number, struct picture_size shown) {
    const struct component *c = &job->model->component[slot];
    struct sight sight = c->family->sees(c, shown.width, shown.height);
    job->encoded[job->n_encoded++] = (struct encoded){.kind = ENCODED_VISION,
                                                      .slot = slot,
                                                      .reference = number,
                                                      .size = {sight.width, sight.height},
                                                      .columns = sight.columns,
                                                      .rows = sight.rows,
                                                      .n_chunks = 1};
}

/* What vision encoders see: every reference, or first and last frame, at the size that the family reads it
 * at.
 */
static void job_list_vision(struct job *job, int slot) {
    for (int i = 0; i < job->request.n_references; i++)
        job_list_seen(job, slot, i, request_shown_size(job->model->recipe, job->request.references[i]));
    for (int i = 0; i < request_frames_seen(job->model); i++)
        job_list_seen(job, slot, i, job_given_size(job, PICTURE_SHOWN + i));
}

bool job_keeps(const struct job *job) {
    return job->request.mask && !job->decode_only && job->model->recipe->concat == CONCAT_NONE;
}

/* A model that sees the mask and begins with noise alone needs nothing of the picture but what lies around
 * the mask; what it drew from the picture's distribution would shift every draw after it. */
static bool job_reads_init(const struct job *job) {
    const struct sluice_request *r = &job->request;
    return r->init_image && job->model->init == INIT_NOISED &&
           !(job->model->recipe->concat == CONCAT_INPAINT && r->strength == 1);
}

/* Pictures of the autoencoder's that are encoded: as large as what is drawn, but for references. */
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

/* Where nothing leads, what stays and what is drawn are one grey video. */
static void job_list_led(struct job *job) {
    for (int i = 0; i < job->n_front; i++) job_list_one(job, ENCODED_FRONT, i, 1);
    for (int i = 0; i < (job->request.n_control ? 2 : 1); i++)
        job_list_one(job, ENCODED_LED, i, job->n_encoded_chunks);
}

void job_list_encoded(struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    bool led = recipe->concat == CONCAT_LED;
    for (int slot = 0; slot < SLOTS_MAX && recipe->slot[slot].family; slot++)
        if (recipe->slot[slot].family->kind == FAMILY_VISION) job_list_vision(job, slot);
    if (recipe_slot(recipe, FAMILY_ENCODER) == SLOTS_MAX) return;
    if (job_reads_init(job)) job_list_one(job, ENCODED_INIT, 0, 1);
    if (r->mask && !job_keeps(job) && !led) job_list_one(job, ENCODED_MASKED, 0, 1);
    for (int i = 0; i < r->n_references && !led; i++) job_list_one(job, ENCODED_REFERENCE, i, 1);
    if (r->init_image && job->model->init == INIT_FRAME && recipe->concat == CONCAT_FRAMES)
        job_list_one(job, ENCODED_FRAMES, 0, job->n_encoded_chunks);
    else if (r->init_image && job->model->init == INIT_FRAME)
        job_list_one(job, ENCODED_FIRST, 0, 1);
    if (led) job_list_led(job);
}
