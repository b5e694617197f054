/* Input pictures of a request: which the model takes, at what sizes, and the output size. See request.h. */
#include "engine/api/request.h"

#include "engine/pictures/pictures.h"
#include "engine/sample/sampling.h"

#include <math.h>
#include <string.h>

int request_vision_frames(const struct sluice_model *m) {
    const struct component *denoiser = model_component(m, FAMILY_DENOISER),
                           *vision = model_component(m, FAMILY_VISION);
    if (!denoiser->image_columns) return 0;
    struct vision_grid grid =
        vision->family ? vision->family->vision_grid(vision, m->width, m->height) : (struct vision_grid){0};
    return denoiser->image_rows > grid.columns * grid.rows ? 2 : 1;
}

static enum status check_strength(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (s->model->init == INIT_FIRST_FRAME && r->strength != 1)
        return request_bad_value(
            e, "--strength", r->strength,
            "no --strength: this model uses the input image as its first frame, unchanged");
    if (!(r->strength > 0 && r->strength <= 1))
        return request_bad_value(e, "--strength", r->strength, "more than 0, up to 1");
    if (sampling_first_step(s->sampling, r->steps, r->strength) < r->steps) return OK;
    return error_set(e, USAGE,
                     "--strength is too low: no step would run" FOUND "%g of %d steps" EXPECTED
                     "--strength of at least %g, or more --steps",
                     r->strength, r->steps, 1.0 / r->steps);
}

static enum status check_init(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    const struct sluice_model *m = s->model;
    if (m->recipe->concat == CONCAT_I2V && !r->init_image) {
        return error_set(
            e, USAGE, "this image-to-video model needs a first frame" WHERE "%s" EXPECTED "--init-img FILE",
            m->name);
    }
    if (!r->init_image) return OK;
    if (m->init == INIT_NONE)
        return request_not_for_model(s, "--init-img", "an image-to-video model, such as WAN I2V or TI2V", e);
    if (m->init == INIT_FIRST_FRAME && m->recipe->concat == CONCAT_NONE && r->frames == 1) {
        return error_set(
            e, USAGE,
            "an image-to-video request of one frame would only repeat the input image (--init-img)" EXPECTED
            "more --frames");
    }
    return picture_check(r->init_image, "--init-img", e) == OK ? check_strength(s, e) : e->code;
}

/* Checks --end-img: only models that start from a first frame accept a last frame. */
static enum status check_end(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int vision_frames = request_vision_frames(s->model);
    bool takes_last = s->model->recipe->concat == CONCAT_I2V && vision_frames != 1;
    if (!r->end_image && vision_frames < 2) return OK;
    if (!r->end_image) {
        return error_set(e, USAGE,
                         "this model needs a first and a last frame; the last one is missing" WHERE
                         "%s" EXPECTED "--end-img FILE in addition to --init-img",
                         s->model->name);
    }
    if (!takes_last)
        return request_not_for_model(
            s, "--end-img", "a model that takes a last frame, such as WAN 2.2 I2V or WAN 2.1 FLF2V", e);
    if (r->frames == 1) {
        return error_set(
            e, USAGE, "a video of one frame has no separate last frame (--end-img)" EXPECTED "more --frames");
    }
    return picture_check(r->end_image, "--end-img", e);
}

static enum status check_mask(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    enum concat_rule concat = s->model->recipe->concat;
    bool inpaints = concat == CONCAT_FILL || concat == CONCAT_INPAINT;
    if (r->mask && concat == CONCAT_CONTROL && !r->n_control) {
        return error_set(e, USAGE,
                         "a mask (--mask) needs a control video to repaint, and there is none" EXPECTED
                         "--control FOLDER in addition");
    }
    if (r->mask && concat == CONCAT_CONTROL) return picture_check(r->mask, "--mask", e);
    if (r->mask && s->model->init != INIT_IMG2IMG)
        return request_not_for_model(s, "--mask", "an image model, or WAN VACE", e);
    if (r->mask && !r->init_image && !inpaints) {
        return error_set(e, USAGE,
                         "a mask (--mask) needs an input image to repaint, and there is none" EXPECTED
                         "--init-img FILE in addition");
    }
    if (inpaints && !(r->mask && r->init_image)) {
        return error_set(e, USAGE,
                         "this inpainting model needs an input image and a mask" WHERE "%s" FOUND
                         "%s" EXPECTED "--init-img and --mask",
                         s->model->name,
                         r->init_image ? "no mask"
                         : r->mask     ? "no input image"
                                       : "neither");
    }
    return r->mask ? picture_check(r->mask, "--mask", e) : OK;
}

struct picture_size request_vision_size(const struct recipe *recipe, const struct sluice_picture *picture) {
    struct picture_size size = {picture->width, picture->height};
    const struct picture_areas *areas = &recipe->areas;
    return areas->vision ? picture_area_size(size, areas->vision, areas->multiple) : size;
}

/* True if the model has no vision encoder, or its vision encoder can read a picture of the given size. */
static bool vision_can_read(const struct sluice_model *model, struct picture_size size) {
    const struct component *vision = model_component(model, FAMILY_VISION);
    if (!size.width || !size.height) return false;
    return !vision->family || vision->family->vision_grid(vision, size.width, size.height).columns;
}

/* The size of a VACE reference image in whole latent pixels; 0x0 if nothing would remain at the output
 * size. */
static struct picture_size reference_frame_size(const struct request_resolver *s, struct picture_size input) {
    int factor = model_decoder(s->model)->pixel_factor;
    struct picture_size size = {input.width - input.width % factor, input.height - input.height % factor};
    struct picture_size output = {s->request->width, s->request->height};
    if (!size.width || !size.height) return size;
    struct picture_size vision_size = picture_letterbox_size(size, output);
    return vision_size.width && vision_size.height ? size : (struct picture_size){0};
}

static enum status find_reference_size(const struct request_resolver *s, const struct sluice_picture *picture,
                                       struct picture_size *size, struct error *e) {
    const struct recipe *recipe = s->model->recipe;
    const struct picture_areas *areas = &recipe->areas;
    struct picture_size vision_size = request_vision_size(recipe, picture),
                        input = {picture->width, picture->height};
    if (recipe->concat == CONCAT_CONTROL)
        *size = reference_frame_size(s, input);
    else if (areas->vae)
        *size = picture_area_size(input, areas->vae, areas->multiple);
    else if (picture_reference_size(picture, s->model->size_step, size, e) != OK)
        return e->code;
    if (size->width && size->height && vision_can_read(s->model, vision_size)) return OK;
    error_set(e, SHAPE, "the reference image is too narrow");
    if (picture->name) error_where(e, "%s", picture->name);
    error_found(e, "%dx%d", picture->width, picture->height);
    return error_expected(e, "an image closer to a square");
}

static enum status check_number_of_references(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int least = s->model->recipe->references_min, most = s->model->references_max;
    if (r->n_references >= least && r->n_references <= most) return OK;
    if (r->n_references < least)
        error_set(e, USAGE, "this editing model needs a reference image (--ref-image)");
    else
        error_set(e, USAGE, "too many reference images (--ref-image) for this model");
    error_where(e, "%s", s->model->name);
    error_found(e, "%d", r->n_references);
    if (!least) return error_expected(e, "at most %d", most);
    return least == most ? error_expected(e, "%d", most) : error_expected(e, "%d to %d", least, most);
}

static enum status check_references(struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    int most = s->model->references_max;
    if (r->n_references < 0 || (r->n_references && !r->references))
        return request_bad_value(e, "n_references", r->n_references, "the number of pictures in references");
    if (r->n_references && !most)
        return request_not_for_model(
            s, "--ref-image",
            recipe_has_edit_variant(s->model->recipe)
                ? "an editing model; or --edit, if these weights are an editing model's"
                : "a model that takes references, such as FLUX.1-Kontext, Qwen-Image-Edit or WAN VACE",
            e);
    if (check_number_of_references(s, e) != OK) return e->code;
    for (int i = 0; i < r->n_references && e->code == OK; i++)
        if (picture_check(r->references[i], "--ref-image", e) == OK)
            find_reference_size(s, r->references[i], &s->reference_size[i], e);
    return e->code;
}

/* Refuses pictures that need the vision encoder if that optional component is missing. */
static enum status check_vision(const struct request_resolver *s, struct error *e) {
    const struct sluice_model *m = s->model;
    int slot = recipe_slot(m->recipe, FAMILY_VISION);
    bool refers = s->request->n_references, begins = model_component(m, FAMILY_DENOISER)->image_columns;
    if (!(refers || begins) || slot == SLOTS_MAX || m->component[slot].family) return OK;
    error_set(e, MISSING, "the model lacks its %s, which is needed to read %s",
              m->recipe->slot[slot].family->display_name, begins ? "the input image" : "references");
    if (!m->recipe->slot[slot].shares_file_with) {
        error_where(e, "%s", m->name);
        return error_expected(e, "%s FILE", m->recipe->slot[slot].flag);
    }
    error_where(e, "%s", model_component(m, FAMILY_TEXT)->index.sources[0].path);
    return error_expected(e, "its tensors in that file, or %s FILE", m->recipe->slot[slot].flag);
}

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
    error_set(e, USAGE, "all frames of a control video (--control) must have one size");
    if (frame.name) error_where(e, "%s", frame.name);
    error_found(e, "%dx%d", frame.width, frame.height);
    return error_expected(e, "%dx%d, like the first frame", size.width, size.height);
}

static enum status check_control(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (r->n_control < 0 || (r->n_control && !r->control))
        return request_bad_value(e, "n_control", r->n_control, "the number of frames in control");
    if (!r->n_control) return OK;
    if (r->n_control < r->frames) {
        return error_set(e, USAGE,
                         "the control video (--control) has too few frames for --frames" FOUND
                         "%d frames for --frames %d" EXPECTED "as many frames or more",
                         r->n_control, r->frames);
    }
    for (int i = 0; i < r->n_control && e->code == OK; i++) check_control_frame(r, i, e);
    return e->code;
}

enum status request_check_pictures(struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (s->decode_only) return OK;
    if (fit_find(r->fit, &s->fit, e) != OK) return e->code;
    if (check_init(s, e) != OK || check_mask(s, e) != OK || check_references(s, e) != OK) return e->code;
    if (check_vision(s, e) != OK || check_end(s, e) != OK || check_control(s, e) != OK) return e->code;
    /* Reference images need VAE encoder weights only if the recipe has a VAE encoder; other recipes read
     * references with the vision encoder. */
    bool refers = r->n_references && recipe_slot(s->model->recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool control = s->model->recipe->concat == CONCAT_CONTROL;
    if (!(r->init_image || refers || control) || model_component(s->model, FAMILY_ENCODER)->family) return OK;
    const struct component *decoder = model_component(s->model, FAMILY_DECODER);
    bool tiny = !decoder->family; /* a tiny autoencoder (TAESD) is in use, and no VAE encoder is loaded */
    error_set(e, MISSING, "the %s has no %s, which is needed to read %s" WHERE "%s",
              tiny ? "model" : "autoencoder", tiny ? "autoencoder" : "encoder",
              control ? "a control video (grey without --control)" : "input images",
              tiny ? s->model->name : decoder->index.sources[0].path);
    if (tiny) return error_expected(e, "--vae FILE of an autoencoder with 'encoder.' tensors");
    return error_expected(e, "'encoder.' tensors in that file, or --vae FILE of an autoencoder with them");
}

static int round_side_down(int pixels, int step) {
    return pixels < step ? step : pixels - pixels % step;
}

static int proportional_side(int asked, int other, int same) {
    return (int)fmin(round((double)asked * other / same), SLUICE_SIDE_MAX);
}

/* Output size of image-to-video, with the first frame's aspect ratio: with the requested width or height if
 * given, else with about as many pixels as the model's default size (as in the examples of diffusers 0.42,
 * pipelines/wan/pipeline_wan_i2v.py). */
static struct picture_size size_of_frame(const struct request_resolver *s, struct picture_size first) {
    const struct sluice_request *r = s->request;
    if (r->width > 0 && !r->height)
        return (struct picture_size){r->width, proportional_side(r->width, first.height, first.width)};
    if (r->height > 0 && !r->width)
        return (struct picture_size){proportional_side(r->height, first.width, first.height), r->height};
    return picture_area_size(first, (int64_t)s->model->width * s->model->height, 1);
}

struct picture_size request_output_size(const struct request_resolver *s) {
    const struct sluice_request *r = s->request;
    const struct sluice_model *m = s->model;
    const struct picture_areas *areas = &m->recipe->areas;
    const struct sluice_picture *init = r->init_image, *last = NULL;
    struct picture_size size = {m->width, m->height};
    if (s->decode_only) return size;
    if (r->references && r->n_references > 0 && r->n_references <= m->references_max)
        last = r->references[r->n_references - 1];
    struct picture_size control = request_control_size(r);
    if (control.width > 0 && control.height > 0)
        size = size_of_frame(s, control);
    else if (init)
        size = (struct picture_size){init->width, init->height};
    else if (areas->output && last && last->width > 0 && last->height > 0)
        size = picture_area_size((struct picture_size){last->width, last->height}, areas->output,
                                 areas->multiple);
    else
        return size;
    if (init && m->init == INIT_FIRST_FRAME && init->width > 0 && init->height > 0)
        size = size_of_frame(s, size);
    return (struct picture_size){round_side_down(size.width, m->size_step),
                                 round_side_down(size.height, m->size_step)};
}
