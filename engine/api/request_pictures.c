/* The pictures of a request: which of them the model takes, at what sizes, and the size that is drawn after
 * them. See request.h. */
#include "engine/api/request.h"

#include "engine/pictures/pictures.h"
#include "engine/sample/sampling.h"

#include <math.h>
#include <string.h>

/* ---- to start from ---- */

int request_frames_seen(const struct sluice_model *m) {
    const struct component *denoiser = model_component(m, FAMILY_DENOISER),
                           *vision = model_component(m, FAMILY_VISION);
    if (!denoiser->image_columns) return 0;
    struct sight sight =
        vision->family ? vision->family->sees(vision, m->width, m->height) : (struct sight){0};
    return denoiser->image_rows > sight.columns * sight.rows ? 2 : 1;
}

static enum status check_strength(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (s->model->init == INIT_FRAME && r->strength != 1)
        return request_misused(e, "--strength", r->strength,
                               "nothing: this model takes the picture as it is");
    if (!(r->strength > 0 && r->strength <= 1))
        return request_misused(e, "--strength", r->strength, "more than 0, up to 1");
    if (sampling_first_step(s->sampling, r->steps, r->strength) < r->steps) return OK;
    error_set(e, USAGE, "--strength leaves no step to run");
    error_found(e, "%g of %d steps", r->strength, r->steps);
    return error_expected(e, "at least %g, or more steps", 1.0 / r->steps);
}

static enum status check_init(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    const struct sluice_model *m = s->model;
    if (m->recipe->concat == CONCAT_FRAMES && !r->init_image) {
        error_set(e, USAGE, "this model goes on from a picture, and there is none");
        error_where(e, "%s", m->name);
        return error_expected(e, "--init-img");
    }
    if (!r->init_image) return OK;
    if (m->init == INIT_NONE)
        return request_refuse_of_model(s, "--init-img",
                                       "a model that makes videos of pictures, as WAN's I2V and TI2V", e);
    if (m->init == INIT_FRAME && m->recipe->concat == CONCAT_NONE && r->frames == 1) {
        error_set(e, USAGE, "a video of one frame is the picture that it begins with (--init-img)");
        return error_expected(e, "more --frames");
    }
    return picture_check(r->init_image, "--init-img", e) == OK ? check_strength(s, e) : e->code;
}

/* A last frame, of models that begin with a first one. */
static enum status check_end(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int seen = request_frames_seen(s->model);
    bool takes = s->model->recipe->concat == CONCAT_FRAMES && seen != 1;
    if (!r->end_image && seen < 2) return OK;
    if (!r->end_image) {
        error_set(e, USAGE, "this model goes from a first picture to a last one, and there is no last one");
        error_where(e, "%s", s->model->name);
        return error_expected(e, "--end-img beside --init-img");
    }
    if (!takes)
        return request_refuse_of_model(
            s, "--end-img", "a model that takes a last frame, as WAN 2.2's I2V and 2.1's FLF2V", e);
    if (r->frames == 1) {
        error_set(e, USAGE, "a video of one frame has no other last one (--end-img)");
        return error_expected(e, "more --frames");
    }
    return picture_check(r->end_image, "--end-img", e);
}

static enum status check_mask(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    enum concat_rule concat = s->model->recipe->concat;
    bool fills = concat == CONCAT_MASKED || concat == CONCAT_INPAINT;
    if (r->mask && concat == CONCAT_LED && !r->n_control) {
        error_set(e, USAGE, "a mask (--mask) says what of a video is drawn anew, and there is no video");
        return error_expected(e, "--control beside it");
    }
    if (r->mask && concat == CONCAT_LED) return picture_check(r->mask, "--mask", e);
    if (r->mask && s->model->init != INIT_NOISED)
        return request_refuse_of_model(s, "--mask", "a model that draws pictures, or WAN VACE", e);
    if (r->mask && !r->init_image && !fills) {
        error_set(e, USAGE, "a mask (--mask) says what of a picture is drawn anew, and there is no picture");
        return error_expected(e, "--init-img beside it");
    }
    if (fills && !(r->mask && r->init_image)) {
        error_set(e, USAGE, "this model fills a mask in a picture and needs both");
        error_where(e, "%s", s->model->name);
        error_found(e, "%s", r->init_image ? "no mask" : r->mask ? "no picture" : "neither");
        return error_expected(e, "--init-img and --mask");
    }
    return r->mask ? picture_check(r->mask, "--mask", e) : OK;
}

/* ---- references ---- */

struct picture_size request_shown_size(const struct recipe *recipe, const struct sluice_picture *picture) {
    struct picture_size size = {picture->width, picture->height};
    const struct picture_areas *areas = &recipe->areas;
    return areas->seen ? picture_area_size(size, areas->seen, areas->multiple) : size;
}

/* Does the vision encoder read a picture that is shown at that size, if there is one? */
static bool reads_shown(const struct sluice_model *model, struct picture_size size) {
    const struct component *vision = model_component(model, FAMILY_VISION);
    if (!size.width || !size.height) return false;
    return !vision->family || vision->family->sees(vision, size.width, size.height).columns;
}

/* In front of a video a picture keeps its size, in whole pixels of the latent; 0 where nothing of it is left
 * on the canvas. */
static struct picture_size led_reference_size(const struct settling *s, struct picture_size given) {
    int factor = model_decoder(s->model)->pixel_factor;
    struct picture_size size = {given.width - given.width % factor, given.height - given.height % factor};
    struct picture_size canvas = {s->request->width, s->request->height};
    if (!size.width || !size.height) return size;
    struct picture_size shown = picture_canvas_size(size, canvas);
    return shown.width && shown.height ? size : (struct picture_size){0};
}

static enum status find_reference_size(const struct settling *s, const struct sluice_picture *picture,
                                       struct picture_size *size, struct error *e) {
    const struct recipe *recipe = s->model->recipe;
    const struct picture_areas *areas = &recipe->areas;
    struct picture_size shown = request_shown_size(recipe, picture),
                        given = {picture->width, picture->height};
    if (recipe->concat == CONCAT_LED)
        *size = led_reference_size(s, given);
    else if (areas->encoded)
        *size = picture_area_size(given, areas->encoded, areas->multiple);
    else if (picture_reference_size(picture, s->model->size_step, size, e) != OK)
        return e->code;
    if (size->width && size->height && reads_shown(s->model, shown)) return OK;
    error_set(e, SHAPE, "the reference picture is too long for its width, or too wide for its height");
    if (picture->name) error_where(e, "%s", picture->name);
    error_found(e, "%dx%d", picture->width, picture->height);
    return error_expected(e, "a picture nearer to a square");
}

static enum status check_number_of_references(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int least = s->model->recipe->references_min, most = s->model->references_max;
    if (r->n_references >= least && r->n_references <= most) return OK;
    if (r->n_references < least)
        error_set(e, USAGE, "this model edits a picture, and there is none (--ref-image)");
    else
        error_set(e, USAGE, "there are more references (--ref-image) than this model takes");
    error_where(e, "%s", s->model->name);
    error_found(e, "%d", r->n_references);
    if (!least) return error_expected(e, "at most %d", most);
    return least == most ? error_expected(e, "%d", most) : error_expected(e, "%d to %d", least, most);
}

static enum status check_references(struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int most = s->model->references_max;
    if (r->n_references < 0 || (r->n_references && !r->references))
        return request_misused(e, "the number of references", r->n_references, "that of those given");
    if (r->n_references && !most)
        return request_refuse_of_model(
            s, "--ref-image",
            recipe_is_edited(s->model->recipe)
                ? "an editing model, or --edit, which says that these weights are one's"
                : "a model that takes references, as FLUX.1-Kontext, Qwen-Image-Edit or WAN VACE",
            e);
    if (check_number_of_references(s, e) != OK) return e->code;
    for (int i = 0; i < r->n_references && e->code == OK; i++)
        if (picture_check(r->references[i], "--ref-image", e) == OK)
            find_reference_size(s, r->references[i], &s->reference_size[i], e);
    return e->code;
}

/* A vision encoder may be absent from a model, which then takes no pictures that are seen with it. */
static enum status check_vision(const struct settling *s, struct error *e) {
    const struct sluice_model *m = s->model;
    int slot = recipe_slot(m->recipe, FAMILY_VISION);
    bool refers = s->request->n_references, begins = model_component(m, FAMILY_DENOISER)->image_columns;
    if (!(refers || begins) || slot == SLOTS_MAX || m->component[slot].family) return OK;
    error_set(e, MISSING, "the model has no %s, which %s are seen with", m->recipe->slot[slot].family->word,
              begins ? "pictures" : "references");
    if (!m->recipe->slot[slot].with) {
        error_where(e, "%s", m->name);
        return error_expected(e, "%s with a file that has its tensors", m->recipe->slot[slot].flag);
    }
    error_where(e, "%s", model_component(m, FAMILY_TEXT)->index.sources[0].path);
    return error_expected(e, "its tensors there, or %s with a file that has them",
                          m->recipe->slot[slot].flag);
}

/* ---- frames that lead ---- */

struct picture_size request_control_size(const struct sluice_request *r) {
    struct sluice_picture first = {0};
    if (r->n_control > 0 && r->control && r->control[0]) copy_sized(&first, sizeof first, r->control[0]);
    return (struct picture_size){first.width, first.height};
}

static enum status check_control_frame(const struct sluice_request *r, int i, struct error *e) {
    struct picture_size size = request_control_size(r);
    struct sluice_picture frame = {0};
    if (r->control[i]) copy_sized(&frame, sizeof frame, r->control[i]);
    if (picture_check(&frame, "--control", e) != OK) return e->code;
    if (frame.width == size.width && frame.height == size.height) return OK;
    error_set(e, USAGE, "frames that lead a video (--control) have one size");
    if (frame.name) error_where(e, "%s", frame.name);
    error_found(e, "%dx%d", frame.width, frame.height);
    return error_expected(e, "%dx%d, as the first has", size.width, size.height);
}

static enum status check_control(const struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (r->n_control < 0 || (r->n_control && !r->control))
        return request_misused(e, "the number of frames that lead", r->n_control, "that of those given");
    if (!r->n_control) return OK;
    if (r->n_control < r->frames) {
        error_set(e, USAGE, "fewer frames lead (--control) than are drawn (--frames)");
        error_found(e, "%d for %d", r->n_control, r->frames);
        return error_expected(e, "as many, or more");
    }
    for (int i = 0; i < r->n_control && e->code == OK; i++) check_control_frame(r, i, e);
    return e->code;
}

/* ---- all pictures ---- */

enum status request_check_pictures(struct settling *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (s->decode_only) return OK;
    if (fit_find(r->fit, &s->fit, e) != OK) return e->code;
    if (check_init(s, e) != OK || check_mask(s, e) != OK || check_references(s, e) != OK) return e->code;
    if (check_vision(s, e) != OK || check_end(s, e) != OK || check_control(s, e) != OK) return e->code;
    /* References may be for a vision encoder alone. */
    bool refers = r->n_references && recipe_slot(s->model->recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool led = s->model->recipe->concat == CONCAT_LED;
    if (!(r->init_image || refers || led) || model_component(s->model, FAMILY_ENCODER)->family) return OK;
    const struct component *decoder = model_component(s->model, FAMILY_DECODER);
    bool tiny = !decoder->family; /* which has no encoder at all */
    error_set(e, MISSING, "the %s has no %s, which %s read with", tiny ? "model" : "autoencoder",
              tiny ? "autoencoder" : "encoder",
              led ? "what leads a video, if it is grey, is" : "pictures are");
    error_where(e, "%s", tiny ? s->model->name : decoder->index.sources[0].path);
    if (tiny) return error_expected(e, "--vae with an autoencoder that has 'encoder.' tensors");
    return error_expected(e, "its 'encoder.' tensors, or --vae with an autoencoder that has them");
}

/* ---- what is drawn ---- */

/* A side of a picture to start from, in whole steps. */
static int side_of(int pixels, int step) {
    return pixels < step ? step : pixels - pixels % step;
}

/* The side that goes with one that is asked for. */
static int side_beside(int asked, int other, int same) {
    return (int)fmin(round((double)asked * other / same), SLUICE_SIDE_MAX);
}

/* Of a video that begins with a picture, with the picture's aspect: of the side that is asked for, else of as
 * many pixels as the model's own (as the examples of diffusers 0.42, pipelines/wan/pipeline_wan_i2v.py,
 * choose them). */
static struct picture_size size_of_frame(const struct settling *s, struct picture_size first) {
    const struct sluice_request *r = s->request;
    if (r->width > 0 && !r->height)
        return (struct picture_size){r->width, side_beside(r->width, first.height, first.width)};
    if (r->height > 0 && !r->width)
        return (struct picture_size){side_beside(r->height, first.width, first.height), r->height};
    return picture_area_size(first, (int64_t)s->model->width * s->model->height, 1);
}

struct picture_size request_drawn_size(const struct settling *s) {
    const struct sluice_request *r = s->request;
    const struct sluice_model *m = s->model;
    const struct picture_areas *areas = &m->recipe->areas;
    const struct sluice_picture *init = r->init_image, *last = NULL;
    struct picture_size size = {m->width, m->height};
    if (s->decode_only) return size;
    if (r->references && r->n_references > 0 && r->n_references <= m->references_max)
        last = r->references[r->n_references - 1];
    struct picture_size led = request_control_size(r);
    if (led.width > 0 && led.height > 0)
        size = size_of_frame(s, led);
    else if (init)
        size = (struct picture_size){init->width, init->height};
    else if (areas->drawn && last && last->width > 0 && last->height > 0)
        size = picture_area_size((struct picture_size){last->width, last->height}, areas->drawn,
                                 areas->multiple);
    else
        return size;
    if (init && m->init == INIT_FRAME && init->width > 0 && init->height > 0) size = size_of_frame(s, size);
    return (struct picture_size){side_of(size.width, m->size_step), side_of(size.height, m->size_step)};
}
