/* Resolves requests: a table with the range of each number, then the checks that involve several fields,
 * input images, or the model's components. */
#include "engine/job/request.h"

#include "engine/base/text.h"
#include "engine/job/check.h"
#include "engine/job/controls.h"
#include "engine/job/second_pass.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

bool choice_is(const char *choice, const char *how) {
    return choice && !strcmp(choice, how);
}

static enum status not_for_model(const struct sluice_model *m, const char *flag, const char *expected,
                                 struct error *e) {
    return error_set(e, USAGE, "%s cannot be used with this model" WHERE "%s" FOUND "%s" EXPECTED "%s", flag,
                     m->name, m->recipe->name, expected);
}

/* ---- numbers ---- */

/* Feature that a model needs if the number is not 0. Rows of the table that name a feature have no range. */
enum need { NEEDS_NOTHING, NEEDS_LOW_NOISE_DENOISER, NEEDS_GUIDANCE_INPUT, NEEDS_DENOISED_GUIDANCE };

#define INTEGER(member) offsetof(struct sluice_request, member), false
#define REAL(member)    offsetof(struct sluice_request, member), true
/* Two rows: models without guides_denoised refuse the number; then its range. */
#define DENOISED_GUIDANCE(member, flag, most)                                                                \
    {REAL(member), flag, 0, 0, NEEDS_DENOISED_GUIDANCE, "0: only LTX-2 has this guidance"}, {                \
        REAL(member), flag, 0, most, NEEDS_NOTHING, NULL                                                     \
    }

static const struct number {
    size_t offset;
    bool is_real; /* true: the request's field is a double; false: an int */
    const char *flag;
    double least, most;
    enum need needs;
    const char *without; /* expected value in the error for a model without the needed feature */
} numbers[] = {
    {INTEGER(steps), "the number of steps", 1, SLUICE_STEPS_MAX, NEEDS_NOTHING, NULL},
    {INTEGER(batch), "the batch", 1, BATCH_MAX, NEEDS_NOTHING, NULL},
    {REAL(cfg_scale), "--cfg-scale", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    {REAL(cfg_scale_low), "a second value of --cfg-scale", 0, 0, NEEDS_LOW_NOISE_DENOISER,
     "one value: this model has no second transformer for low noise levels"},
    {REAL(cfg_scale_low), "the second value of --cfg-scale", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    {REAL(guidance), "--guidance", 0, 0, NEEDS_GUIDANCE_INPUT,
     "no --guidance: this model is not guidance-distilled (use --cfg-scale)"},
    {REAL(guidance), "--guidance", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    DENOISED_GUIDANCE(audio_cfg_scale, "--audio-cfg-scale", SLUICE_SCALE_MAX),
    DENOISED_GUIDANCE(stg_scale, "--stg-scale", SLUICE_SCALE_MAX),
    DENOISED_GUIDANCE(audio_stg_scale, "the second value of --stg-scale", SLUICE_SCALE_MAX),
    DENOISED_GUIDANCE(modality_scale, "--modality-scale", SLUICE_SCALE_MAX),
    DENOISED_GUIDANCE(audio_modality_scale, "the second value of --modality-scale", SLUICE_SCALE_MAX),
    DENOISED_GUIDANCE(cfg_rescale, "--cfg-rescale", 1),
    DENOISED_GUIDANCE(audio_cfg_rescale, "the second value of --cfg-rescale", 1),
    {INTEGER(n_stg_blocks), "the number of blocks (--stg-blocks)", 0, SLUICE_STG_BLOCKS_MAX, NEEDS_NOTHING,
     NULL},
    {INTEGER(n_upscale_sigmas), "the number of sigmas (--upscale-sigmas)", 0, SLUICE_STEPS_MAX, NEEDS_NOTHING,
     NULL},
    {REAL(cfg_norm), "--cfg-norm", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    {REAL(redux_strength), "--redux-strength", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    {REAL(cfg_until), "--cfg-until", SLUICE_CFG_UNTIL_LEAST, 1, NEEDS_NOTHING, NULL},
    {REAL(slg_scale), "--slg-scale", 0, SLUICE_SCALE_MAX, NEEDS_NOTHING, NULL},
    {REAL(slg_start), "--slg-start", 0, 1, NEEDS_NOTHING, NULL},
    {REAL(slg_end), "--slg-end", 0, 1, NEEDS_NOTHING, NULL},
    {INTEGER(n_slg_layers), "the number of layers (--slg-layers)", 0, FAMILY_BLOCKS_MAX, NEEDS_NOTHING, NULL},
    {INTEGER(n_loras), "the number of adapters (--lora)", 0, SLUICE_LORAS_MAX, NEEDS_NOTHING, NULL},
    {INTEGER(image_bytes_a_pixel), "image_bytes_a_pixel", 0, 1024, NEEDS_NOTHING, NULL},
    {INTEGER(preview_every), "--preview-every", 1, SLUICE_STEPS_MAX, NEEDS_NOTHING, NULL},
};

static enum status check_numbers(const struct sluice_request *r, const struct sluice_model *m,
                                 struct error *e) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct number *n = &numbers[i];
        const char *at = (const char *)r + n->offset;
        double found = n->is_real ? *(const double *)(const void *)at : *(const int *)(const void *)at;
        bool lacks = (n->needs == NEEDS_LOW_NOISE_DENOISER && !(m->boundary > 0)) ||
                     (n->needs == NEEDS_GUIDANCE_INPUT && !m->recipe->denoising.takes_guidance) ||
                     (n->needs == NEEDS_DENOISED_GUIDANCE && !m->recipe->denoising.guides_denoised);
        if (found != 0 && lacks) return bad_value(e, n->flag, found, n->without);
        if (!n->needs && check_range(n->flag, found, n->least, n->most, e) != OK) return e->code;
    }
    return check_range("caller_bytes", (double)r->caller_bytes, 0, 1LL << 50, e);
}

static enum status check_choice(const char *flag, const char *how, struct error *e) {
    if (!how || choice_is(how, "on") || choice_is(how, "off") || choice_is(how, "auto")) return OK;
    return error_set(e, USAGE, "invalid value for %s" FOUND "%s" EXPECTED "auto, on or off", flag, how);
}

/* ---- sizes, prompts, guidance, budgets ---- */

/* Checks the text of the prompts and the output size (multiples of the model's step). The number of frames
 * must be 1 more than a multiple of the VAE's temporal factor. */
/* of_control: the size follows from a control image. */
static enum status check_size(const struct job *job, bool of_control, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    int step = m->size_step, most = m->recipe->frames_max;
    int factor = component_frame_factor(model_decoder(m));
    char multiple[64];
    snprintf(multiple, sizeof multiple, "a multiple of %d from %d to %d", step, step, SLUICE_SIDE_MAX);
    if (!job->settings.decode_only && (r->width < step || r->width > SLUICE_SIDE_MAX || r->width % step))
        return bad_value(
            e, of_control ? "the width, which follows from the control image (-W)" : "the width (-W)",
            r->width, multiple);
    if (!job->settings.decode_only && (r->height < step || r->height > SLUICE_SIDE_MAX || r->height % step))
        return bad_value(
            e, of_control ? "the height, which follows from the control image (-H)" : "the height (-H)",
            r->height, multiple);
    /* The prompts are checked before the chat template is added, so that positions in messages refer to the
     * caller's text. */
    if (r->prompt &&
        tokenizer_check_text("prompt", r->prompt, strlen(r->prompt), SLUICE_TEXT_BYTES_MAX, e) != OK)
        return e->code;
    if (r->negative_prompt &&
        tokenizer_check_text("negative prompt", r->negative_prompt, strlen(r->negative_prompt),
                             SLUICE_TEXT_BYTES_MAX, e) != OK)
        return e->code;
    if (r->n_control && m->recipe->images.concat != CONCAT_CONTROL)
        return not_for_model(m, "--control", "a model with a control video, such as WAN VACE", e);
    if (r->frames >= 1 && r->frames <= (most ? most : 1) && (r->frames - 1) % factor == 0) return OK;
    error_set(e, USAGE, "invalid number of frames (--frames)" WHERE "%s" FOUND "%d", m->name, r->frames);
    return most ? error_expected(e, "1 to %d, one more than a multiple of %d", most, factor)
                : error_expected(e, "no --frames: this model makes images, not videos");
}

/* Checks --prompt-weights and --clip-skip against the model's text encoders. */
static enum status check_text_options(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    bool weighs = false, skips = false;
    int least = 1, most = INT32_MAX;
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        const struct component *c = &job->model->component[recipe->text.condition[i].slot];
        weighs |= recipe->slot[recipe->text.condition[i].slot].text.windows_max > 0;
        if (recipe->text.condition[i].what != CONDITION_TOKENS || !c->skip_most) continue;
        skips = true;
        if (c->skip_least > least) least = c->skip_least;
        if (c->skip_most < most) most = c->skip_most;
    }
    if (r->prompt_weights && !choice_is(r->prompt_weights, "on") && !choice_is(r->prompt_weights, "off"))
        return error_set(e, USAGE, "invalid value for --prompt-weights" FOUND "%s" EXPECTED "on or off",
                         r->prompt_weights);
    if (choice_is(r->prompt_weights, "on") && !weighs)
        return not_for_model(job->model, "--prompt-weights on",
                             "off: this model has no (word:1.3) prompt weights", e);
    if (r->clip_skip && !skips)
        return not_for_model(job->model, "--clip-skip",
                             "a model that reads the hidden states of a CLIP text encoder", e);
    return r->clip_skip ? check_range("--clip-skip", r->clip_skip, least, most, e) : OK;
}

/* Checks that every denoiser has the layers of skip-layer guidance, and each adapter a path and strength. */
static enum status check_lists(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    bool skips = r->n_slg_layers && !job->settings.decode_only;
    if (skips && !r->slg_layers)
        return bad_value(e, "n_slg_layers", r->n_slg_layers, "slg_layers to be set, not NULL");
    for (int i = 0; skips && i < (m->boundary > 0 ? DENOISER_SPANS_MAX : 1); i++) {
        const struct component *c = &m->component[m->recipe->denoising.span[i].slot];
        int last = -1;
        for (int k = 0; k < c->n_blocks; k++)
            if (c->blocks[k].kind->skippable && c->blocks[k].number > last) last = c->blocks[k].number;
        if (last < 0)
            return not_for_model(m, "--slg-layers", "a model with skip-layer guidance, such as SD3", e);
        for (int k = 0; k < r->n_slg_layers; k++) {
            char expected[32];
            int b = 0;
            while (b < c->n_blocks &&
                   (!c->blocks[b].kind->skippable || c->blocks[b].number != r->slg_layers[k]))
                b++;
            if (b < c->n_blocks) continue;
            snprintf(expected, sizeof expected, "layers from 0 to %d", last);
            return bad_value(e, "--slg-layers", r->slg_layers[k], expected);
        }
    }
    for (int i = 0; i < r->n_loras && e->code == OK; i++) {
        if (!r->loras || !r->loras[i].path)
            return bad_value(e, "n_loras", r->n_loras, "loras to be set, each with a path");
        check_range("the strength of --lora FILE:STRENGTH", r->loras[i].strength, -SLUICE_SCALE_MAX,
                    SLUICE_SCALE_MAX, e);
    }
    return e->code;
}

/* Checks the fields of models with sound, and of LTX-2's guidance. */
static enum status check_sound(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    char expected[48];
    if ((r->save_audio_latent || r->no_audio) && !m->recipe->sound.channels)
        return not_for_model(m, r->no_audio ? "--no-audio" : "--save-audio-latent",
                             "a model that makes sound, such as LTX-2", e);
    if (!m->recipe->denoising.guides_denoised)
        return r->n_stg_blocks ? not_for_model(m, "--stg-blocks", "LTX-2", e) : OK;
    if (r->cfg_norm > 0)
        return bad_value(e, "--cfg-norm", r->cfg_norm, "no --cfg-norm: LTX-2 has --cfg-rescale instead");
    if (!r->n_stg_blocks && (r->stg_scale != 0 || r->audio_stg_scale != 0))
        return bad_value(e, "--stg-scale", r->stg_scale != 0 ? r->stg_scale : r->audio_stg_scale,
                         "--stg-blocks too, the blocks of this guidance");
    if (r->n_stg_blocks && !r->stg_blocks)
        return bad_value(e, "n_stg_blocks", r->n_stg_blocks, "stg_blocks to be set, not NULL");
    int last = component_last_perturbable(model_component(m, FAMILY_DENOISER));
    snprintf(expected, sizeof expected, "blocks from 0 to %d", last);
    for (int i = 0; i < r->n_stg_blocks; i++)
        if (r->stg_blocks[i] < 0 || r->stg_blocks[i] > last)
            return bad_value(e, "--stg-blocks", r->stg_blocks[i], expected);
    return OK;
}

/* Converts a device budget in percent to bytes, then checks both budgets. */
static enum status check_budgets(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    uint64_t all = job->device->memory_bytes;
    char size[SIZE_TEXT_BYTES];
    if (r->max_ram_bytes < 0)
        return bad_value(e, "the memory budget (--max-ram)", (double)r->max_ram_bytes, "a positive size");
    if (job->device->memory && r->max_vram_percent != 0 && !r->max_vram_bytes) {
        if (!all)
            return error_set(e, USAGE,
                             "--max-vram as a percentage needs a GPU of known memory size" FOUND
                             "%g%%" EXPECTED "a size such as 8G",
                             r->max_vram_percent);
        if (!(r->max_vram_percent > 0 && r->max_vram_percent <= 100))
            return bad_value(e, "the percentage of --max-vram", r->max_vram_percent,
                             "more than 0, up to 100");
        r->max_vram_bytes = (int64_t)((double)all * r->max_vram_percent / 100);
    }
    int64_t budget = r->max_vram_bytes;
    if (budget >= 0 && (!all || (uint64_t)budget <= all)) return OK;
    error_set(e, USAGE, "invalid device memory budget (--max-vram)" WHERE "%s", job->device->name);
    if (budget < 0)
        error_found(e, "%lld bytes", (long long)budget);
    else
        error_found(e, "%lld bytes (%s)", (long long)budget, size_text((uint64_t)budget, size));
    return all ? error_expected(e, "a positive size, at most the device's %s", size_text(all, size))
               : error_expected(e, "a positive size");
}

/* ---- input images ---- */

int request_vision_frames(const struct sluice_model *m) {
    const struct component *denoiser = model_component(m, FAMILY_DENOISER),
                           *vision = model_component(m, FAMILY_VISION);
    if (!denoiser->image_columns) return 0;
    struct vision_grid grid = vision->family ? vision->family->lanes.vision_grid(vision, m->width, m->height)
                                             : (struct vision_grid){0};
    return denoiser->image_rows > grid.columns * grid.rows ? 2 : 1;
}

/* Checks --init-img and --strength. */
static enum status check_init(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    if (m->recipe->images.concat == CONCAT_I2V && !r->init_image)
        return error_set(
            e, USAGE, "this image-to-video model needs a first frame" WHERE "%s" EXPECTED "--init-img FILE",
            m->name);
    if (!r->init_image) return OK;
    if (m->init == INIT_NONE)
        return not_for_model(m, "--init-img", "an image-to-video model, such as WAN I2V or TI2V", e);
    if (m->init == INIT_FIRST_FRAME && m->recipe->images.concat == CONCAT_NONE && r->frames == 1)
        return error_set(
            e, USAGE,
            "an image-to-video request of one frame would only repeat the input image (--init-img)" EXPECTED
            "more --frames");
    if (picture_check(r->init_image, "--init-img", e) != OK) return e->code;
    if (m->init == INIT_FIRST_FRAME && r->strength != 1)
        return bad_value(e, "--strength", r->strength,
                         "no --strength: this model uses the input image as its first frame, unchanged");
    if (!(r->strength > 0 && r->strength <= 1))
        return bad_value(e, "--strength", r->strength, "more than 0, up to 1");
    if (sampling_first_step(&job->settings.sampling, r->steps, r->strength) < r->steps) return OK;
    return error_set(e, USAGE,
                     "--strength is too low: no step would run" FOUND "%g of %d steps" EXPECTED
                     "--strength of at least %g, or more --steps",
                     r->strength, r->steps, 1.0 / r->steps);
}

/* Checks --end-img: only models that start from a first frame accept a last frame. */
static enum status check_end(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    int vision_frames = request_vision_frames(job->model);
    bool takes_last = job->model->recipe->images.concat == CONCAT_I2V && vision_frames != 1;
    if (!r->end_image && vision_frames < 2) return OK;
    if (!r->end_image)
        return error_set(e, USAGE,
                         "this model needs a first and a last frame; the last one is missing" WHERE
                         "%s" EXPECTED "--end-img FILE in addition to --init-img",
                         job->model->name);
    if (!takes_last)
        return not_for_model(job->model, "--end-img",
                             "a model that takes a last frame, such as WAN 2.2 I2V or WAN 2.1 FLF2V", e);
    if (r->frames == 1)
        return error_set(
            e, USAGE, "a video of one frame has no separate last frame (--end-img)" EXPECTED "more --frames");
    return picture_check(r->end_image, "--end-img", e);
}

static enum status check_mask(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    enum concat_rule concat = job->model->recipe->images.concat;
    bool inpaints = concat == CONCAT_FILL || concat == CONCAT_INPAINT;
    if (r->mask && concat == CONCAT_CONTROL && !r->n_control)
        return error_set(e, USAGE,
                         "a mask (--mask) needs a control video to repaint, and there is none" EXPECTED
                         "--control FOLDER in addition");
    if (r->mask && concat == CONCAT_CONTROL) return picture_check(r->mask, "--mask", e);
    if (r->mask && job->model->init != INIT_IMG2IMG)
        return not_for_model(job->model, "--mask", "an image model, or WAN VACE", e);
    if (r->mask && !r->init_image && !inpaints)
        return error_set(e, USAGE,
                         "a mask (--mask) needs an input image to repaint, and there is none" EXPECTED
                         "--init-img FILE in addition");
    if (inpaints && !(r->mask && r->init_image))
        return error_set(e, USAGE,
                         "this inpainting model needs an input image and a mask" WHERE "%s" FOUND
                         "%s" EXPECTED "--init-img and --mask",
                         job->model->name,
                         r->init_image ? "no mask"
                         : r->mask     ? "no input image"
                                       : "neither");
    return r->mask ? picture_check(r->mask, "--mask", e) : OK;
}

struct picture_size request_vision_size(const struct job *job, int i) {
    const struct sluice_picture *picture = job->request.references[i];
    const struct picture_areas *areas = &job->model->recipe->images.areas;
    struct picture_size from = {picture->width, picture->height}, vae = job->pictures.reference_size[i];
    int divisor = areas->vision_divisor;
    if (divisor) return (struct picture_size){vae.width / divisor, vae.height / divisor};
    return areas->vision ? picture_area_size(from, areas->vision, areas->multiple) : from;
}

/* Sets pictures.reference_size[i], the size at which the VAE encodes reference image i. Fails with SHAPE if
 * VAE or vision encoder cannot read an image of that shape. */
static enum status find_reference_size(struct job *job, int i, struct error *e) {
    const struct sluice_model *m = job->model;
    const struct sluice_picture *picture = job->request.references[i];
    const struct picture_areas *areas = &m->recipe->images.areas;
    const struct component *vision = model_component(m, FAMILY_VISION);
    struct picture_size *size = &job->pictures.reference_size[i], from = {picture->width, picture->height};
    if (m->recipe->images.concat == CONCAT_CONTROL) {
        /* A VACE reference image is cropped to whole latent pixels; its size is 0x0 if no pixel would remain
         * after scaling to the output size. */
        int factor = model_decoder(m)->pixel_factor;
        struct picture_size output = {job->request.width, job->request.height};
        *size = (struct picture_size){picture->width - picture->width % factor,
                                      picture->height - picture->height % factor};
        struct picture_size scaled =
            size->width && size->height ? picture_letterbox_size(*size, output) : (struct picture_size){0};
        if (!scaled.width || !scaled.height) *size = scaled;
    } else if (areas->vae) {
        *size = picture_area_size(from, areas->vae, areas->multiple);
    } else if (areas->vae_of_output) {
        *size = (struct picture_size){job->request.width, job->request.height};
    } else if (areas->vae_max) {
        if (picture_limited_check(picture, e) != OK) return e->code;
        *size = picture_limited_size(from, areas->vae_max);
        size->width -= size->width % m->size_step;
        size->height -= size->height % m->size_step;
    } else if (picture_reference_size(picture, m->size_step, size, e) != OK) {
        return e->code;
    }
    struct picture_size vision_size = request_vision_size(job, i);
    bool readable =
        vision_size.width && vision_size.height &&
        (!vision->family ||
         vision->family->lanes.vision_grid(vision, vision_size.width, vision_size.height).columns);
    if (size->width && size->height && readable) return OK;
    return error_set(e, SHAPE,
                     "the reference image is too narrow" WHERE "%s" FOUND "%dx%d" EXPECTED
                     "an image closer to a square",
                     picture->name ? picture->name : "", picture->width, picture->height);
}

static enum status check_references(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    int least = m->recipe->images.references_min, most = m->references_max;
    if (job->context.first_pass) return OK; /* the second pass reads the first pass's references */
    /* An input image that is a reference takes one of the denoiser's LANE_REFERENCES_MAX references. */
    if (job_init_is_reference(job) && most == LANE_REFERENCES_MAX) most--;
    if (r->n_references < 0 || (r->n_references && !r->references))
        return bad_value(e, "n_references", r->n_references, "the number of pictures in references");
    if (r->n_references && !most)
        return not_for_model(m, "--ref-image",
                             recipe_has_edit_variant(m->recipe)
                                 ? "an editing model; or --edit, if these weights are an editing model's"
                                 : "a model that takes references, such as Flux.2, FLUX.1-Kontext, "
                                   "Qwen-Image-2.1 or Qwen-Image-Edit",
                             e);
    if (r->n_references < least || r->n_references > most) {
        error_set(e, USAGE, "%s" WHERE "%s" FOUND "%d",
                  r->n_references < least ? "this editing model needs a reference image (--ref-image)"
                                          : "too many reference images (--ref-image) for this model",
                  m->name, r->n_references);
        if (!least) return error_expected(e, "at most %d", most);
        return least == most ? error_expected(e, "%d", most) : error_expected(e, "%d to %d", least, most);
    }
    for (int i = 0; i < r->n_references && e->code == OK; i++)
        if (picture_check(r->references[i], "--ref-image", e) == OK) find_reference_size(job, i, e);
    return e->code;
}

/* Refuses pictures that need the vision encoder if that optional component is missing. */
static enum status check_vision(const struct job *job, struct error *e) {
    const struct sluice_model *m = job->model;
    int slot = recipe_slot(m->recipe, FAMILY_VISION);
    bool refers = job->request.n_references, begins = model_component(m, FAMILY_DENOISER)->image_columns;
    if (!(refers || begins) || slot == SLOTS_MAX || m->component[slot].family) return OK;
    bool shares = m->recipe->slot[slot].shares_file_with; /* the file of the text encoder has its tensors */
    return error_set(e, MISSING,
                     "the model lacks its %s, which is needed to read %s" WHERE "%s" EXPECTED "%s%s FILE",
                     m->recipe->slot[slot].family->display_name, begins ? "the input image" : "references",
                     shares ? model_component(m, FAMILY_TEXT)->index.sources[0].path : m->name,
                     shares ? "its tensors in that file, or " : "", m->recipe->slot[slot].flag);
}

/* Checks redux_images, and that the model has the components that read them. */
static enum status check_redux(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    int slot = recipe_redux_slot(m->recipe);
    if (r->n_redux_images < 0 || r->n_redux_images > SLUICE_CONTROLS_MAX ||
        (r->n_redux_images && !r->redux_images))
        return bad_value(e, "the number of images (--redux-image)", r->n_redux_images,
                         "at most 4, and redux_images");
    for (int i = 0; i < r->n_redux_images; i++)
        if (!r->redux_images[i])
            return error_set(e, USAGE, "redux_images[%d] is NULL" EXPECTED "an image (--redux-image)", i);
    if (!r->n_redux_images && r->redux_strength == 1) return OK;
    if (slot == SLOTS_MAX)
        return not_for_model(m, r->n_redux_images ? "--redux-image" : "--redux-strength", "a model of Flux.1",
                             e);
    if (!r->n_redux_images)
        return error_set(e, USAGE, "--redux-strength needs an image" EXPECTED "--redux-image FILE");
    if (!m->component[slot].family)
        return error_set(e, MISSING,
                         "the model lacks the %s, which --redux-image needs" WHERE "%s" EXPECTED
                         "--redux PATH: the folder of black-forest-labs/FLUX.1-Redux-dev, or "
                         "flux1-redux-dev.safetensors of that repository",
                         m->recipe->slot[slot].family->display_name, m->name);
    for (int i = 0; i < r->n_redux_images && e->code == OK; i++)
        picture_check(r->redux_images[i], "--redux-image", e);
    return e->code;
}

struct picture_size request_control_size(const struct sluice_request *r) {
    struct sluice_picture first = {0};
    if (r->n_control > 0 && r->control && r->control[0]) copy_sized(&first, sizeof first, r->control[0]);
    return (struct picture_size){first.width, first.height};
}

static enum status check_control(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    if (r->n_control < 0 || (r->n_control && !r->control))
        return bad_value(e, "n_control", r->n_control, "the number of frames in control");
    if (!r->n_control) return OK;
    if (r->n_control < r->frames)
        return error_set(e, USAGE,
                         "the control video (--control) has too few frames for --frames" FOUND
                         "%d frames for --frames %d" EXPECTED "as many frames or more",
                         r->n_control, r->frames);
    struct picture_size size = request_control_size(r);
    for (int i = 0; i < r->n_control; i++) {
        struct sluice_picture frame = {0};
        if (r->control[i]) copy_sized(&frame, sizeof frame, r->control[i]);
        if (picture_check(&frame, "--control", e) != OK) return e->code;
        if (frame.width == size.width && frame.height == size.height) continue;
        return error_set(e, USAGE,
                         "all frames of a control video (--control) must have one size" WHERE "%s" FOUND
                         "%dx%d" EXPECTED "%dx%d, like the first frame",
                         frame.name ? frame.name : "", frame.width, frame.height, size.width, size.height);
    }
    return OK;
}

static enum status check_pictures(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    if (job->settings.decode_only) return OK;
    if (fit_find(r->fit, &job->settings.fit, e) != OK) return e->code;
    if (check_init(job, e) != OK || check_mask(job, e) != OK || check_references(job, e) != OK)
        return e->code;
    if (check_vision(job, e) != OK || check_redux(job, e) != OK || check_end(job, e) != OK ||
        check_control(job, e) != OK || controls_resolve(job, e) != OK)
        return e->code;
    /* Reference images need VAE encoder weights only if the recipe has a VAE encoder; other recipes read
     * references with the vision encoder. */
    bool refers = r->n_references && recipe_slot(job->model->recipe, FAMILY_ENCODER) < SLOTS_MAX;
    bool control = job->model->recipe->images.concat == CONCAT_CONTROL;
    if (!(r->init_image || refers || control || controls_need_encoder(job)) ||
        model_component(job->model, FAMILY_ENCODER)->family)
        return OK;
    const struct component *decoder = model_component(job->model, FAMILY_DECODER);
    bool tiny = !decoder->family; /* a tiny autoencoder (TAESD) is in use, and no VAE encoder is loaded */
    return error_set(e, MISSING, "the %s has no %s, which is needed to read %s" WHERE "%s" EXPECTED "%s",
                     tiny ? "model" : "autoencoder", tiny ? "autoencoder" : "encoder",
                     control                      ? "a control video (grey without --control)"
                     : controls_need_encoder(job) ? "control images"
                                                  : "input images",
                     tiny ? job->model->name : decoder->index.sources[0].path,
                     tiny ? "--vae FILE of an autoencoder with 'encoder.' tensors"
                          : "'encoder.' tensors in that file, or --vae FILE of an autoencoder with them");
}

/* ---- previews ---- */

static enum status find_preview(struct job *job, struct error *e) {
    static const char *const names[N_PREVIEWS] = {
        [PREVIEW_LATENT] = "latent", [PREVIEW_TAESD] = "taesd", [PREVIEW_VAE] = "vae"};
    const struct sluice_model *m = job->model;
    const char *name = job->request.preview;
    int preview = PREVIEW_LATENT;
    if (!name || job->settings.decode_only) return OK;
    while (preview < N_PREVIEWS && strcmp(name, names[preview])) preview++;
    if (preview == N_PREVIEWS)
        return error_set(e, USAGE, "invalid value for --preview" FOUND "%s" EXPECTED "latent, taesd or vae",
                         name);
    job->settings.preview = (enum preview)preview;
    if (preview == PREVIEW_LATENT) {
        /* The factors that project latent channels to RGB exist only for published VAEs. */
        const struct latent_colours *colours = m->recipe->colours;
        int channels = model_component(m, FAMILY_DECODER)->latent_channels;
        if (colours && colours->n == channels) return OK;
        error_set(e, USAGE,
                  "--preview latent has no colour table for this model's latents (use --preview vae)" WHERE
                  "%s" FOUND "%d latent channels",
                  m->name, channels);
        return colours ? error_expected(e, "%d, as in the published %s", colours->n, m->recipe->name)
                       : error_expected(e, "a model with a published VAE");
    }
    bool tiny = preview == PREVIEW_TAESD;
    int slot = model_decoder_slot(m, tiny);
    if (slot < SLOTS_MAX && (m->component[slot].family->kind == FAMILY_TINY_DECODER) == tiny) return OK;
    return error_set(e, USAGE, "--preview %s needs %s" WHERE "%s" FOUND "none" EXPECTED "%s", name,
                     tiny ? "a tiny autoencoder (TAESD)" : "a VAE", m->name,
                     tiny ? "--taesd FILE" : "--vae FILE");
}

/* ---- defaults ---- */

static int proportional_side(int asked, int other, int same) {
    return (int)fmin(round((double)asked * other / same), SLUICE_SIDE_MAX);
}

static int round_side_down(int pixels, int step) {
    return pixels < step ? step : pixels - pixels % step;
}

/* Output size of image-to-video, with the first frame's aspect ratio: with the requested width or height if
 * given, else with about as many pixels as the model's default size (as in the examples of diffusers 0.42,
 * pipelines/wan/pipeline_wan_i2v.py). */
static struct picture_size size_of_frame(const struct job *job, struct picture_size first) {
    const struct sluice_request *r = &job->request;
    if (r->width > 0 && !r->height)
        return (struct picture_size){r->width, proportional_side(r->width, first.height, first.width)};
    if (r->height > 0 && !r->width)
        return (struct picture_size){proportional_side(r->height, first.width, first.height), r->height};
    return picture_area_size(first, (int64_t)job->model->width * job->model->height, 1);
}

/* Size of the first control image, else of its image to inpaint; 0x0: the request has no control image. */
static struct picture_size control_image_size(const struct job *job) {
    const struct sluice_picture *first = &job->pictures.input[control_picture(0, CONTROL_IMAGE)];
    if (!first->width) first = &job->pictures.input[control_picture(0, CONTROL_INPAINT)];
    return (struct picture_size){first->width, first->height};
}

static struct picture_size output_size(const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    const struct picture_areas *areas = &m->recipe->images.areas;
    const struct sluice_picture *init = r->init_image, *first = NULL, *last = NULL;
    struct picture_size size = {m->width, m->height};
    if (job->settings.decode_only) return size;
    if (r->references && r->n_references > 0 && r->n_references <= m->references_max)
        first = r->references[0], last = r->references[r->n_references - 1];
    struct picture_size control = request_control_size(r), shape = control_image_size(job);
    if (control.width > 0 && control.height > 0) {
        size = size_of_frame(job, control);
    } else if (!init && shape.width > 0 && shape.height > 0) {
        size = size_of_frame(job, shape);
    } else if (init) {
        size = (struct picture_size){init->width, init->height};
    } else if (areas->output_of_first && first) {
        size = (struct picture_size){first->width, first->height};
    } else if (areas->output && last && last->width > 0 && last->height > 0) {
        size = (struct picture_size){last->width, last->height};
        size = areas->rounds_up ? picture_area_size_up(size, areas->output, areas->multiple)
                                : picture_area_size(size, areas->output, areas->multiple);
    } else {
        return size;
    }
    if (areas->vae_max && size.width > 0 && size.height > 0)
        size = picture_limited_size(size, areas->vae_max);
    if (init && m->init == INIT_FIRST_FRAME && init->width > 0 && init->height > 0)
        size = size_of_frame(job, size);
    return (struct picture_size){round_side_down(size.width, m->size_step),
                                 round_side_down(size.height, m->size_step)};
}

/* Upper bound of a flow shift computed from the image size, since for huge sizes the shift would overflow
 * float32. */
#define SHIFT_MAX 1e30

static void fill_defaults(struct job *job) {
    struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    struct picture_size size = output_size(job);
    if (!r->width) r->width = size.width;
    if (!r->height) r->height = size.height;
    if (!r->frames && r->n_control > 0) {
        /* Default number of frames: as many of the control video's as the model and the VAE's temporal factor
         * allow. */
        int factor = component_frame_factor(model_decoder(m)), most = m->recipe->frames_max;
        int frames = (r->n_control - 1) / factor * factor + 1;
        r->frames = frames < most ? frames : most;
    }
    if (!r->frames && r->n_control <= 0) r->frames = m->frames;
    if (!r->fps) r->fps = m->fps;
    if (!r->batch) r->batch = 1;
    if (!r->preview_every) r->preview_every = 1;
    if (r->cfg_until == 0) r->cfg_until = 1;
    if (r->redux_strength == 0) r->redux_strength = 1;
    if (!r->negative_prompt) r->negative_prompt = m->recipe->text.default_negative;
    if (m->boundary > 0 && r->cfg_scale_low == 0) r->cfg_scale_low = r->cfg_scale;
    if (m->recipe->denoising.guides_denoised) {
        if (r->modality_scale == 0) r->modality_scale = 1;
        if (r->audio_cfg_scale == 0) r->audio_cfg_scale = r->cfg_scale;
        if (r->audio_stg_scale == 0) r->audio_stg_scale = r->stg_scale;
        if (r->audio_modality_scale == 0) r->audio_modality_scale = r->modality_scale;
        if (r->audio_cfg_rescale == 0) r->audio_cfg_rescale = r->cfg_rescale;
    }
    job->settings.terminal = r->flow_shift == 0 ? m->shift_terminal : 0;
    if (r->flow_shift != 0) return;
    /* The flow shift: a constant of the model, or computed from the number of latent tokens (Flux.2: and of
     * steps). */
    const struct flow_shift_line *line = &m->shift_line;
    r->flow_shift = job->settings.decode_only ? 1 : m->flow_shift;
    if (job->settings.decode_only || m->flow_shift != 0 || m->shift_rule == FLOW_SHIFT_FIXED) return;
    int frame_factor = component_frame_factor(model_decoder(m));
    int64_t tokens = (int64_t)((r->frames - 1) / frame_factor + 1) * (r->width / m->token_side) *
                     (r->height / m->token_side);
    double shift = m->shift_rule == FLOW_SHIFT_FLUX2
                       ? schedule_shift_flux2(tokens, r->steps)
                       : schedule_shift_of_tokens(tokens, line->base_tokens, line->base_shift,
                                                  line->max_tokens, line->max_shift);
    r->flow_shift = shift < SHIFT_MAX ? shift : SHIFT_MAX;
}

static enum status find_precision(struct job *job, struct error *e) {
    const char *name = job->request.precision, *unsupported[N_PRECISIONS];
    const struct family *denoiser = job->context.upscales
                                        ? job->model->component[MODEL_UPSCALER].family
                                        : model_component(job->model, FAMILY_DENOISER)->family;
    enum precision exact = device_default_precision(job->device);
    memcpy(unsupported, job->device->unsupported, sizeof unsupported);
    if (!(denoiser && denoiser->f16_operands) && !unsupported[PRECISION_F16])
        unsupported[PRECISION_F16] = "activations of this model may exceed the range of f16";
    if (!name) name = precision_name(denoiser ? family_precision(denoiser, job->device) : exact);
    enum precision precision = precision_named(name);
    const char *lacks = precision < N_PRECISIONS ? unsupported[precision] : "unknown precision";
    job->settings.precision = precision;
    job->settings.text_precision =
        precision == PRECISION_INT8 || precision == PRECISION_F16 ? exact : precision;
    if (!lacks) return OK;
    char supported[64] = "";
    for (int p = 0, n = 0; p < N_PRECISIONS; p++)
        if (!unsupported[p])
            n += snprintf(supported + n, sizeof supported - (size_t)n, "%s%s", n ? ", " : "",
                          precision_name((enum precision)p));
    error_set(e, USAGE, "invalid value for --precision: %s" FOUND "%s", lacks, name);
    return error_expected(e, "%s%s", supported, unsupported[PRECISION_F32] ? ", or --device cpu" : "");
}

/* Resolves the sigmas of the steps. Those of the request (--sigmas), else those of a distilled model's recipe
 * if the request has as many steps and neither a schedule nor a shift, replace steps and flow_shift. */
static enum status resolve_sigmas(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const struct recipe_denoising *denoising = &job->model->recipe->denoising;
    if (r->n_sigmas && !r->sigmas) return bad_value(e, "n_sigmas", r->n_sigmas, "sigmas to be set, not NULL");
    if (!r->sigmas && r->steps == denoising->n_sigmas && r->flow_shift == 0 && !r->scheduler) {
        r->sigmas = denoising->sigmas;
        r->n_sigmas = denoising->n_sigmas;
    }
    if (!r->sigmas) return OK;
    if (r->flow_shift != 0)
        return bad_value(e, "--flow-shift", r->flow_shift, "no --flow-shift: --sigmas are not shifted");
    if (check_range("the number of sigmas (--sigmas)", r->n_sigmas, 1, SLUICE_STEPS_MAX, e) != OK)
        return e->code;
    r->steps = r->n_sigmas;
    r->flow_shift = 1;
    return OK;
}

enum status request_resolve(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    struct job_settings *settings = &job->settings;
    double shift = r->flow_shift; /* 0: the model's */
    bool decodes = settings->decode_only;
    if (shift != 0 &&
        check_range("--flow-shift", shift, SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX, e) != OK)
        return e->code;
    if (!decodes && resolve_sigmas(job, e) != OK) return e->code;
    bool of_control =
        (!r->width || !r->height) && !r->init_image && r->n_control <= 0 && control_image_size(job).width > 0;
    fill_defaults(job);
    if (check_size(job, of_control, e) != OK || (!decodes && check_text_options(job, e) != OK) ||
        check_numbers(r, job->model, e) != OK)
        return e->code;
    settings->sampling = job->model->sampling;
    const struct sampling_choice choice = {.sampler = r->sampler,
                                           .schedule = r->scheduler,
                                           .prediction = r->prediction,
                                           .steps = r->steps,
                                           .sigmas = decodes ? NULL : r->sigmas};
    if (!decodes && sampling_choose(&choice, &settings->sampling, e) != OK) return e->code;
    if (check_lists(job, e) != OK || (!decodes && check_sound(job, e) != OK) ||
        (!decodes && check_pictures(job, e) != OK) || check_budgets(job, e) != OK ||
        find_preview(job, e) != OK || check_choice("--direct-io", r->direct_io, e) != OK ||
        check_choice("--vae-tiling", r->vae_tiling, e) != OK)
        return e->code;
    if (job->model->recipe->denoising.cfg_needs_negative && !r->negative_prompt) r->cfg_scale = 1;
    if (shift != 0 && !decodes && !settings->sampling.prediction->is_flow)
        return bad_value(e, "--flow-shift", shift,
                         "no --flow-shift: this is not a flow model (or --prediction flow)");
    if (find_precision(job, e) != OK || second_pass_resolve(job, e) != OK) return e->code;
    return requantised_choice(r->type, r->precision, &settings->weights, e);
}

enum status request_resolve_upscale(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    job->settings.weights.type = N_DTYPES;
    r->type = r->preview = NULL;
    r->width = r->init_image->width;
    r->height = r->init_image->height;
    r->batch = r->frames = r->steps = 1;
    r->n_control = r->n_controls = r->n_loras = r->n_references = r->n_redux_images = r->n_slg_layers = 0;
    r->mask = r->end_image = NULL;
    r->cfg_scale = r->cfg_until = 1;
    r->no_decode = true;
    if (check_range("image_bytes_a_pixel", r->image_bytes_a_pixel, 0, 1024, e) != OK ||
        check_range("caller_bytes", (double)r->caller_bytes, 0, 1LL << 50, e) != OK)
        return e->code;
    if (check_budgets(job, e) != OK || check_choice("--direct-io", r->direct_io, e) != OK ||
        check_choice("--vae-tiling", r->vae_tiling, e) != OK)
        return e->code;
    return find_precision(job, e);
}
