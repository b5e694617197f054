#include "engine/job/pictures.h"

#include "engine/job/controls.h"
#include "engine/job/request.h"
#include "engine/pictures/canny.h"

#include <string.h>

/* Index in job->pictures.fitted of the input image from which an encoded picture is made (the mask for masked
 * images and control videos). A vision encoder that needs another size than the VAE has its own copies. */
static int picture_index_of(const struct job *job, const struct encoded *encoded) {
    int vision = PICTURE_VISION + encoded->reference;
    switch (encoded->kind) {
    case ENCODED_INIT:
    case ENCODED_ENLARGED:
    case ENCODED_FRAMES:
    case ENCODED_FIRST:
        return PICTURE_INIT;
    case ENCODED_MASKED:
    case ENCODED_CONTROL:
        return PICTURE_MASK;
    case ENCODED_VISION:
        return job->pictures.input[vision].width ? vision : PICTURE_REFERENCES + encoded->reference;
    case ENCODED_REDUX:
        return PICTURE_REDUX + encoded->reference;
    case ENCODED_REFERENCE:
    case ENCODED_REFERENCE_FRAME:
        return PICTURE_REFERENCES + encoded->reference;
    case ENCODED_CONTROL_IMAGE:
        return control_picture(encoded->reference, CONTROL_IMAGE);
    case ENCODED_CONTROL_INPAINT:
        return control_picture(encoded->reference, CONTROL_INPAINT);
    }
    return PICTURE_INIT;
}

const struct sluice_picture *pictures_fitted(const struct job *job, const struct encoded *encoded) {
    return &job->pictures.fitted[picture_index_of(job, encoded)];
}

const struct sluice_picture *pictures_input(const struct job *job, const struct encoded *encoded) {
    return &job->pictures.input[picture_index_of(job, encoded)];
}

bool pictures_resizes(const struct job *job, const struct encoded *encoded) {
    const struct sluice_picture *source = pictures_fitted(job, encoded);
    return encoded->kind == ENCODED_VISION &&
           (encoded->size.width != source->width || encoded->size.height != source->height);
}

static const struct sluice_picture *copy_picture(struct job *job, int i,
                                                 const struct sluice_picture *picture) {
    if (picture) copy_sized(&job->pictures.input[i], sizeof job->pictures.input[i], picture);
    return picture ? &job->pictures.input[i] : NULL;
}

static int read_assumed_picture(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    (void)picture, (void)rgb;
    struct error none = {0};
    error_set(&none, USAGE, "an assumed picture has no pixels: this request can only be planned");
    return publish_error(&none, e);
}

/* A placeholder picture of the model's default size, without pixels, for plans without input images. */
static const struct sluice_picture *assume_picture(struct job *job, int place) {
    job->pictures.input[place] = (struct sluice_picture){.struct_size = sizeof *job->pictures.input,
                                                         .width = job->model->width,
                                                         .height = job->model->height,
                                                         .read = read_assumed_picture};
    return &job->pictures.input[place];
}

/* Assumes one control for each control network, or one for a denoiser that reads a control image. */
static void assume_controls(struct job *job) {
    bool own = job->model->recipe->images.concat == CONCAT_CONTROL_IMAGE;
    for (int i = 0; i < CONTROLS_MAX; i++) {
        int component = own ? -1 : MODEL_CONTROL + i;
        if (own ? i : !job->model->component[component].family) return;
        bool masked = controls_pictures(job, component) == CONTROL_READS_MASKED;
        assume_picture(job, control_picture(i, masked ? CONTROL_INPAINT : CONTROL_IMAGE));
        if (masked) assume_picture(job, control_picture(i, CONTROL_MASK));
        job->pictures.controls_assumed = true;
    }
}

void pictures_assume(struct job *job) {
    struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    if (job->settings.decode_only || job->context.first_pass || (r->prompt && !job->model->published)) return;
    if (!r->n_controls) assume_controls(job);
    if (!r->n_references && recipe->images.references_min) {
        job->pictures.references[0] = assume_picture(job, PICTURE_REFERENCES);
        r->references = job->pictures.references;
        r->n_references = 1;
        job->pictures.reference_assumed = true;
    }
    int redux = recipe_redux_slot(recipe);
    if (!r->n_redux_images && redux < SLOTS_MAX && job->model->component[redux].family) {
        job->pictures.redux[0] = assume_picture(job, PICTURE_REDUX);
        r->redux_images = job->pictures.redux;
        r->n_redux_images = 1;
        job->pictures.redux_assumed = true;
    }
    bool inpaints = recipe->images.concat == CONCAT_FILL || recipe->images.concat == CONCAT_INPAINT;
    if (inpaints && !r->mask && !r->init_image) {
        r->init_image = assume_picture(job, PICTURE_INIT);
        r->mask = assume_picture(job, PICTURE_MASK);
        r->strength = 1;
        job->pictures.mask_assumed = true;
    }
    if (recipe->images.concat == CONCAT_I2V) {
        bool ends = request_vision_frames(job->model) == 2;
        job->pictures.frames_assumed = !r->init_image || (ends && !r->end_image);
        if (!r->init_image) r->init_image = assume_picture(job, PICTURE_INIT);
        if (!r->end_image && ends) r->end_image = assume_picture(job, PICTURE_END);
    }
}

static void copy_controls(struct job *job) {
    const struct sluice_request *r = &job->request;
    if (!r->controls || r->n_controls > CONTROLS_MAX) return;
    for (int i = 0; i < r->n_controls; i++) {
        struct sluice_control control = controls_requested(job, i);
        copy_picture(job, control_picture(i, CONTROL_IMAGE), control.image);
        copy_picture(job, control_picture(i, CONTROL_MASK), control.mask);
        copy_picture(job, control_picture(i, CONTROL_INPAINT), control.inpaint);
    }
}

void pictures_copy(struct job *job) {
    struct sluice_request *r = &job->request;
    r->init_image = copy_picture(job, PICTURE_INIT, r->init_image);
    r->end_image = copy_picture(job, PICTURE_END, r->end_image);
    r->mask = copy_picture(job, PICTURE_MASK, r->mask);
    copy_controls(job);
    for (int i = 0; r->redux_images && i < r->n_redux_images && i < SLUICE_CONTROLS_MAX; i++)
        job->pictures.redux[i] = copy_picture(job, PICTURE_REDUX + i, r->redux_images[i]);
    if (r->redux_images) r->redux_images = job->pictures.redux;
    if (!r->references || r->n_references > LANE_REFERENCES_MAX) return;
    for (int i = 0; i < r->n_references; i++)
        job->pictures.references[i] = copy_picture(job, PICTURE_REFERENCES + i, r->references[i]);
    r->references = job->pictures.references;
}

static struct picture_size input_size(const struct job *job, int i) {
    return (struct picture_size){job->pictures.input[i].width, job->pictures.input[i].height};
}

static void fit_picture(struct job *job, int i, struct fitting fitting) {
    const struct sluice_picture *input = &job->pictures.input[i];
    bool has_alpha = job->context.upscales || (i != PICTURE_MASK && i < PICTURE_CONTROL &&
                                               component_picture_channels(model_decoder(job->model)) == RGBA);
    fitting.part.alpha = has_alpha && (input->rgb ? input->alpha != NULL : input->read_rgba_rows != NULL);
    job->pictures.fitting[i] = fitting;
    job->pictures.fitted[i] = *input;
    if (!fitting.part.alpha) job->pictures.fitted[i].alpha = NULL;
    job->pictures.fitted[i].width = fitting.size.width;
    job->pictures.fitted[i].height = fitting.size.height;
    if (fit_changes(&job->pictures.fitting[i])) job->pictures.fitted[i].rgb = NULL;
}

/* Callback sluice_picture.read_rows for a picture that copies a fitted picture of the job. user: the fitted
 * picture, whose pixels are already in memory. */
static int read_fitted_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                            void *to, struct sluice_error *e) {
    const struct sluice_picture *fitted = picture->user;
    (void)e;
    for (size_t y = 0; y < (size_t)fitted->height; y++) take(to, fitted->rgb + 3 * y * (size_t)fitted->width);
    return 0;
}

/* Fits reference images to the input sizes of VAE and vision encoder. If the sizes differ, each encoder gets
 * its own copy. Images are stretched; with picture_areas.vae_max they are shrunk to that area at most, then
 * cropped around the centre. */
static void fit_references(struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    const struct picture_areas *areas = &recipe->images.areas;
    bool has_encoder = recipe_slot(recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool has_vision = recipe_slot(recipe, FAMILY_VISION) < SLOTS_MAX;
    for (int i = 0; i < job->request.n_references; i++) {
        struct sluice_picture *input = &job->pictures.input[PICTURE_REFERENCES + i],
                              *fitted = &job->pictures.fitted[PICTURE_REFERENCES + i];
        struct picture_size from = {input->width, input->height}, vision_size = request_vision_size(job, i),
                            size = has_encoder ? job->pictures.reference_size[i] : vision_size;
        struct fitting fitting = fit_make(FIT_STRETCH, from, size);
        if (areas->vae_max) {
            struct picture_size whole = picture_limited_size(from, areas->vae_max);
            fitting.part.whole = whole;
            fitting.part.x = (whole.width - size.width) / 2;
            fitting.part.y = (whole.height - size.height) / 2;
        }
        fit_picture(job, PICTURE_REFERENCES + i, fitting);
        if (!has_vision || !memcmp(&size, &vision_size, sizeof size)) continue;
        /* The vision encoder reads the image of the request, or with vision_divisor the VAE's image.
         * pictures_read reads the VAE's images first. */
        struct sluice_picture *vision = &job->pictures.input[PICTURE_VISION + i];
        if (areas->vision_divisor)
            *vision = (struct sluice_picture){.struct_size = sizeof *vision,
                                              .width = size.width,
                                              .height = size.height,
                                              .read_rows = read_fitted_rows,
                                              .user = fitted};
        else
            *vision = *input;
        fit_picture(job, PICTURE_VISION + i,
                    fit_make(FIT_STRETCH, input_size(job, PICTURE_VISION + i), vision_size));
    }
}

/* Control images are stretched to the output size, as in diffusers. The request's input image and mask are
 * fitted as requested, also where a control inpaints them. For --canny the job reads a copy of the pixels,
 * which canny_edges overwrites. */
static void fit_controls(struct job *job, struct picture_size output) {
    for (int i = 0; i < job->n_controls; i++)
        for (int part = 0; part < CONTROL_PARTS; part++) {
            int place = control_picture(i, (enum control_part)part);
            bool like_init = job->controls[i].inpaints_init && part != CONTROL_IMAGE;
            if (!job->pictures.input[place].width) continue;
            fit_picture(
                job, place,
                fit_make(like_init ? job->settings.fit : FIT_STRETCH, input_size(job, place), output));
            if (part == CONTROL_IMAGE && job->controls[i].canny) job->pictures.fitted[place].rgb = NULL;
        }
}

/* Fits a picture to a vision encoder's input: bicubic resize, then crop, as in the encoder's training. */
static void fit_for_vision(struct job *job, int i, const struct component *vision) {
    struct picture_size unfitted = input_size(job, i);
    struct vision_grid grid = vision->family->lanes.vision_grid(vision, unfitted.width, unfitted.height);
    struct picture_size size = {grid.width, grid.height}, whole = {grid.whole.width, grid.whole.height};
    fit_picture(job, i,
                (struct fitting){.from = unfitted,
                                 .size = size,
                                 .part = {.by = TORCH_BICUBIC,
                                          .whole = whole.width ? whole : size,
                                          .x = grid.whole.left,
                                          .y = grid.whole.top,
                                          .size = size}});
}

void pictures_fit(struct job *job) {
    struct picture_size output = {job->request.width, job->request.height};
    if (job->context.upscales) { /* the image to enlarge is read as it is */
        struct picture_size size = input_size(job, PICTURE_INIT);
        fit_picture(job, PICTURE_INIT, fit_make(FIT_STRETCH, size, size));
        return;
    }
    for (int i = 0; i < PICTURE_REFERENCES; i++)
        if (job->pictures.input[i].width)
            fit_picture(job, i, fit_make(job->settings.fit, input_size(job, i), output));
    fit_references(job);
    fit_controls(job, output);
    /* The vision encoder reads first and last frame from the unfitted pictures, whatever the output size. */
    const struct component *vision = model_component(job->model, FAMILY_VISION);
    for (int i = 0; i < request_vision_frames(job->model); i++) {
        job->pictures.input[PICTURE_VISION + i] = job->pictures.input[i ? PICTURE_END : PICTURE_INIT];
        fit_for_vision(job, PICTURE_VISION + i, vision);
    }
    int redux = recipe_redux_slot(job->model->recipe);
    for (int i = 0; i < job->request.n_redux_images; i++)
        fit_for_vision(job, PICTURE_REDUX + i,
                       &job->model->component[recipe_source_slot(job->model->recipe, redux)]);
    if (job->request.n_control)
        job->pictures.control_fitting =
            fit_make(job->settings.fit, request_control_size(&job->request), output);
}

uint64_t pictures_reading_bytes(const struct job *job) {
    uint64_t most = 0;
    for (int i = 0; i < PICTURES_MAX; i++) {
        if (!job->pictures.fitted[i].width || job->pictures.fitted[i].rgb) continue;
        uint64_t bytes = fit_bytes(&job->pictures.input[i], &job->pictures.fitting[i]);
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < job->n_controls; i++) {
        uint64_t bytes = job->controls[i].canny ? canny_bytes(job->request.width) : 0;
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < job->pictures.n_encoded; i++) {
        const struct encoded *encoded = &job->pictures.encoded[i];
        const struct sluice_picture *source = pictures_fitted(job, encoded);
        struct picture_part part = {.by = TORCH_BICUBIC, .whole = encoded->size, .size = encoded->size};
        /* plus one RGB row over white, which picture_resize needs for a picture with alpha */
        uint64_t bytes = resample_bytes((struct picture_size){source->width, source->height}, &part) +
                         3 * (uint64_t)source->width;
        if (pictures_resizes(job, encoded) && bytes > most) most = bytes;
    }
    return most;
}

uint64_t pictures_control_bytes(const struct job *job) {
    uint64_t held = 0, most = 0;
    for (int i = 0; i < job->request.n_control; i++) {
        struct sluice_picture frame;
        copy_sized(&frame, sizeof frame, job->request.control[i]);
        uint64_t bytes = fit_bytes(&frame, &job->pictures.control_fitting);
        if (frame.rgb) held += (uint64_t)frame.width * (uint64_t)frame.height * 3;
        if (bytes > most) most = bytes;
    }
    return held + most;
}

enum status pictures_read(struct job *job, struct error *e) {
    for (int i = 0; i < PICTURES_MAX && e->code == OK; i++) {
        struct sluice_picture *p = &job->pictures.fitted[i];
        if (!p->width || p->rgb) continue;
        const struct fitting *fitting = &job->pictures.fitting[i];
        size_t pixels = (size_t)p->width * (size_t)p->height;
        uint8_t *rgb = job->sys->alloc(job->sys, LINE_HOST, pixels * (fitting->part.alpha ? RGBA : 3));
        if (!rgb) return error_set(e, MEMORY, "no memory for a picture");
        job->pictures.pixels[i] = rgb;
        fit_read(job->sys, &job->pictures.input[i], fitting, rgb, rgb + 3 * pixels, e);
        p->rgb = rgb;
        if (fitting->part.alpha) p->alpha = rgb + 3 * pixels;
    }
    for (int i = 0; i < job->n_controls && e->code == OK; i++) {
        uint8_t *rgb = job->pictures.pixels[control_picture(i, CONTROL_IMAGE)];
        if (job->controls[i].canny) canny_edges(job->sys, rgb, job->request.width, job->request.height, e);
    }
    return e->code;
}

/* Lists an image for the vision encoder in this slot. vision_size: size of the image in pixels. */
static void list_vision_input(struct job *job, enum encoded_kind kind, int slot, int number,
                              struct picture_size vision_size) {
    const struct component *c = &job->model->component[slot];
    struct vision_grid grid = c->family->lanes.vision_grid(c, vision_size.width, vision_size.height);
    job->pictures.encoded[job->pictures.n_encoded++] = (struct encoded){.kind = kind,
                                                                        .slot = slot,
                                                                        .reference = number,
                                                                        .size = {grid.width, grid.height},
                                                                        .columns = grid.columns,
                                                                        .rows = grid.rows,
                                                                        .n_chunks = 1};
}

/* Lists one picture for the VAE to encode; all pictures except references have the output size. */
static void list_one(struct job *job, enum encoded_kind kind, int number, int n_chunks) {
    const struct sluice_request *r = &job->request;
    struct picture_size size = {r->width, r->height};
    job->pictures.encoded[job->pictures.n_encoded++] =
        (struct encoded){.kind = kind,
                         .slot = recipe_slot(job->model->recipe, FAMILY_ENCODER),
                         .reference = number,
                         .size = kind == ENCODED_REFERENCE ? job->pictures.reference_size[number] : size,
                         .n_chunks = n_chunks};
}

/* Lists the pictures of controls that the VAE encodes: control images and images to inpaint. */
static void list_controls(struct job *job) {
    for (int i = 0; i < job->n_controls; i++) {
        int component = job->controls[i].component;
        bool latent =
            component < 0 || job->model->component[component].family->control.input == CONTROL_LATENT;
        if (latent && job->pictures.input[control_picture(i, CONTROL_IMAGE)].width)
            list_one(job, ENCODED_CONTROL_IMAGE, i, 1);
        if (latent && job->pictures.input[control_picture(i, CONTROL_INPAINT)].width)
            list_one(job, ENCODED_CONTROL_INPAINT, i, 1);
    }
}

void pictures_list_encoded(struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    bool control = recipe->images.concat == CONCAT_CONTROL, animates = job->model->init == INIT_FIRST_FRAME;
    const struct job *first = job->context.first_pass;
    for (int i = 0; first && i < r->batch && first->settings.hires >= HIRES_LANCZOS; i++)
        list_one(job, ENCODED_ENLARGED, i, 1);
    for (int slot = 0; slot < SLOTS_MAX && recipe->slot[slot].family; slot++) {
        /* A vision encoder reads every reference, or first and last frame. */
        if (recipe->slot[slot].family->kind != FAMILY_VISION || recipe->slot[slot].extra) continue;
        for (int i = 0; i < r->n_references; i++)
            list_vision_input(job, ENCODED_VISION, slot, i, request_vision_size(job, i));
        for (int i = 0; i < request_vision_frames(job->model); i++)
            list_vision_input(job, ENCODED_VISION, slot, i, input_size(job, PICTURE_VISION + i));
    }
    int redux = recipe_redux_slot(recipe), tower = redux < SLOTS_MAX ? recipe_source_slot(recipe, redux) : 0;
    for (int i = 0; i < r->n_redux_images; i++)
        list_vision_input(job, ENCODED_REDUX, tower, i, input_size(job, PICTURE_REDUX + i));
    for (int i = 0; i < r->n_redux_images; i++) {
        struct encoded rows = job->pictures.encoded[job->pictures.n_encoded - r->n_redux_images];
        rows.slot = redux;
        job->pictures.encoded[job->pictures.n_encoded++] = rows;
    }
    if (recipe_slot(recipe, FAMILY_ENCODER) == SLOTS_MAX) return;
    /* Inpainting models at strength 1 begin with pure noise and read only the masked image. Encoding the
     * input image too would draw from the generator and shift all later random numbers. */
    bool unread = recipe->images.concat == CONCAT_INPAINT && r->strength == 1;
    if (r->init_image && job->model->init == INIT_IMG2IMG && !unread) list_one(job, ENCODED_INIT, 0, 1);
    if (r->mask && !job_blends_mask(job) && !control) list_one(job, ENCODED_MASKED, 0, 1);
    for (int i = 0; i < r->n_references && !control; i++) list_one(job, ENCODED_REFERENCE, i, 1);
    list_controls(job);
    if (r->init_image && animates && recipe->images.concat == CONCAT_I2V)
        list_one(job, ENCODED_FRAMES, 0, job->pictures.n_encoded_chunks);
    else if (r->init_image && animates)
        list_one(job, ENCODED_FIRST, 0, 1);
    if (!control) return;
    /* VACE encodes the reference frames, then both parts of the control video. Without a control video it
     * encodes one grey video. */
    for (int i = 0; i < job->latents.n_reference_frames; i++) list_one(job, ENCODED_REFERENCE_FRAME, i, 1);
    for (int i = 0; i < (r->n_control ? 2 : 1); i++)
        list_one(job, ENCODED_CONTROL, i, job->pictures.n_encoded_chunks);
}
