#include "engine/api/request.h"

#include "engine/sample/sampling.h"
#include "engine/base/text.h"

#include <stdio.h>
#include <string.h>

enum status request_bad_value(struct error *e, const char *flag, double found, const char *expected) {
    return error_set(e, USAGE, "invalid value for %s" FOUND "%g" EXPECTED "%s", flag, found, expected);
}

enum status request_check_range(const char *flag, double found, double least, double most, struct error *e) {
    char expected[64];
    if (found >= least && found <= most) return OK;
    snprintf(expected, sizeof expected, "%g to %g", least, most);
    return request_bad_value(e, flag, found, expected);
}

static enum status request_check_size(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    char multiple[64];
    int step = s->model->size_step;
    snprintf(multiple, sizeof multiple, "a multiple of %d from %d to %d", step, step, SLUICE_SIDE_MAX);
    if (r->width < step || r->width > SLUICE_SIDE_MAX || r->width % step)
        return request_bad_value(e, "the width (-W)", r->width, multiple);
    if (r->height < step || r->height > SLUICE_SIDE_MAX || r->height % step)
        return request_bad_value(e, "the height (-H)", r->height, multiple);
    return OK;
}

bool choice_is(const char *choice, const char *how) {
    return choice && !strcmp(choice, how);
}

static enum status request_check_choice(const char *flag, const char *how, struct error *e) {
    if (!how || choice_is(how, "on") || choice_is(how, "off") || choice_is(how, "auto")) return OK;
    return error_set(e, USAGE, "invalid value for %s" FOUND "%s" EXPECTED "auto, on or off", flag, how);
}

static enum status find_device_budget(struct request_resolver *s, struct error *e) {
    struct sluice_request *r = s->request;
    uint64_t all = s->device->memory_bytes;
    if (!s->device->memory || r->max_vram_percent == 0 || r->max_vram_bytes) return OK;
    if (!all) {
        return error_set(e, USAGE,
                         "--max-vram as a percentage needs a GPU of known memory size" FOUND "%g%%" EXPECTED
                         "a size such as 8G",
                         r->max_vram_percent);
    }
    if (!(r->max_vram_percent > 0 && r->max_vram_percent <= 100))
        return request_bad_value(e, "the percentage of --max-vram", r->max_vram_percent,
                                 "more than 0, up to 100");
    r->max_vram_bytes = (int64_t)((double)all * r->max_vram_percent / 100);
    return OK;
}

static enum status check_device_budget(const struct request_resolver *s, struct error *e) {
    int64_t budget = s->request->max_vram_bytes;
    uint64_t all = s->device->memory_bytes;
    if (budget >= 0 && (!all || (uint64_t)budget <= all)) return OK;
    error_set(e, USAGE, "invalid device memory budget (--max-vram)" WHERE "%s", s->device->name);
    char size[SIZE_TEXT_BYTES];
    if (budget < 0)
        error_found(e, "%lld bytes", (long long)budget);
    else
        error_found(e, "%lld bytes (%s)", (long long)budget, size_text((uint64_t)budget, size));
    return all ? error_expected(e, "a positive size, at most the device's %s", size_text(all, size))
               : error_expected(e, "a positive size");
}

static enum status check_low_scale(const struct request_resolver *s, struct error *e) {
    double low = s->request->cfg_scale_low;
    if (low != 0 && !(s->model->boundary > 0))
        return request_bad_value(e, "a second value of --cfg-scale", low,
                                 "one value: this model has no second transformer for low noise levels");
    return request_check_range("the second value of --cfg-scale", low, 0, SLUICE_SCALE_MAX, e);
}

static enum status check_guidance(const struct request_resolver *s, struct error *e) {
    double guidance = s->request->guidance;
    if (guidance != 0 && !s->model->recipe->takes_guidance)
        return request_bad_value(e, "--guidance", guidance,
                                 "no --guidance: this model is not guidance-distilled (use --cfg-scale)");
    return request_check_range("--guidance", guidance, 0, SLUICE_SCALE_MAX, e);
}

enum status request_not_for_model(const struct request_resolver *s, const char *flag, const char *expected,
                                  struct error *e) {
    return error_set(e, USAGE, "%s cannot be used with this model" WHERE "%s" FOUND "%s" EXPECTED "%s", flag,
                     s->model->name, s->model->recipe->name, expected);
}

/* True if skip-layer guidance can skip block number `layer` of the denoiser. */
static bool has_layer(const struct component *c, int layer) {
    int i = 0;
    while (i < c->n_blocks && (!c->blocks[i].kind->skippable || c->blocks[i].number != layer)) i++;
    return i < c->n_blocks;
}

static int last_layer(const struct component *c) {
    int last = -1;
    for (int i = 0; i < c->n_blocks; i++)
        if (c->blocks[i].kind->skippable && c->blocks[i].number > last) last = c->blocks[i].number;
    return last;
}

static enum status check_slg(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    const struct recipe *recipe = s->model->recipe;
    request_check_range("--slg-scale", r->slg_scale, 0, SLUICE_SCALE_MAX, e);
    request_check_range("--slg-start", r->slg_start, 0, 1, e);
    request_check_range("--slg-end", r->slg_end, 0, 1, e);
    request_check_range("the number of layers (--slg-layers)", r->n_slg_layers, 0, FAMILY_BLOCKS_MAX, e);
    if (e->code != OK || s->decode_only || !r->n_slg_layers) return e->code;
    if (!r->slg_layers)
        return request_bad_value(e, "n_slg_layers", r->n_slg_layers, "slg_layers to be set, not NULL");
    for (int i = 0; i < (s->model->boundary > 0 ? DENOISER_SPANS_MAX : 1) && e->code == OK; i++) {
        const struct component *c = &s->model->component[recipe->span[i].slot];
        int last = last_layer(c);
        if (last < 0)
            return request_not_for_model(s, "--slg-layers", "a model with skip-layer guidance, such as SD3",
                                         e);
        for (int k = 0; k < r->n_slg_layers && e->code == OK; k++) {
            char expected[32];
            snprintf(expected, sizeof expected, "layers from 0 to %d", last);
            if (!has_layer(c, r->slg_layers[k]))
                request_bad_value(e, "--slg-layers", r->slg_layers[k], expected);
        }
    }
    return e->code;
}

static enum status check_loras(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    request_check_range("the number of adapters (--lora)", r->n_loras, 0, SLUICE_LORAS_MAX, e);
    for (int i = 0; i < r->n_loras && e->code == OK; i++) {
        if (!r->loras || !r->loras[i].path)
            return request_bad_value(e, "n_loras", r->n_loras, "loras to be set, each with a path");
        request_check_range("the strength of --lora FILE:STRENGTH", r->loras[i].strength, -SLUICE_SCALE_MAX,
                            SLUICE_SCALE_MAX, e);
    }
    return e->code;
}

/* Called before check_frames: the control video's length determines the number of frames. */
static enum status check_control(const struct request_resolver *s, struct error *e) {
    if (!s->request->n_control || s->model->recipe->concat == CONCAT_CONTROL) return OK;
    return request_not_for_model(s, "--control", "a model with a control video, such as WAN VACE", e);
}

/* The number of frames must be 1 + a multiple of the VAE's temporal factor. */
static enum status check_frames(const struct request_resolver *s, struct error *e) {
    int frames = s->request->frames, most = s->model->recipe->frames_max;
    int factor = component_frame_factor(model_decoder(s->model));
    if (frames >= 1 && frames <= (most ? most : 1) && (frames - 1) % factor == 0) return OK;
    error_set(e, USAGE, "invalid number of frames (--frames)" WHERE "%s" FOUND "%d", s->model->name, frames);
    return most ? error_expected(e, "1 to %d, one more than a multiple of %d", most, factor)
                : error_expected(e, "no --frames: this model makes images, not videos");
}

/* Checks the prompt before the chat template is added, so that positions in error messages refer to the
 * caller's text. */
static enum status check_prompt(const char *name, const char *text, struct error *e) {
    return text ? tokenizer_check_text(name, text, strlen(text), SLUICE_TEXT_BYTES_MAX, e) : OK;
}

/* Checks --prompt-weights and --clip-skip against the model's text encoders. */
static enum status check_text_options(const struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    const struct recipe *recipe = s->model->recipe;
    bool weighs = false, skips = false;
    int least = 1, most = INT32_MAX;
    for (int i = 0; i < recipe->n_conditions; i++) {
        const struct component *c = &s->model->component[recipe->condition[i].slot];
        weighs |= recipe->slot[recipe->condition[i].slot].text.windows_max > 0;
        if (recipe->condition[i].what != CONDITION_TOKENS || !c->skip_most) continue;
        skips = true;
        if (c->skip_least > least) least = c->skip_least;
        if (c->skip_most < most) most = c->skip_most;
    }
    if (r->prompt_weights && !choice_is(r->prompt_weights, "on") && !choice_is(r->prompt_weights, "off")) {
        return error_set(e, USAGE, "invalid value for --prompt-weights" FOUND "%s" EXPECTED "on or off",
                         r->prompt_weights);
    }
    if (choice_is(r->prompt_weights, "on") && !weighs)
        return request_not_for_model(s, "--prompt-weights on",
                                     "off: this model has no (word:1.3) prompt weights", e);
    if (r->clip_skip && !skips)
        return request_not_for_model(s, "--clip-skip",
                                     "a model that reads the hidden states of a CLIP text encoder", e);
    return r->clip_skip ? request_check_range("--clip-skip", r->clip_skip, least, most, e) : OK;
}

/* Checks --preview latent, which projects latent channels to RGB with factors that exist only for published
 * VAEs. */
static enum status check_preview_colours(const struct request_resolver *s, struct error *e) {
    const struct latent_colours *colours = s->model->recipe->colours;
    int channels = model_component(s->model, FAMILY_DECODER)->latent_channels;
    if (colours && colours->n == channels) return OK;
    error_set(e, USAGE,
              "--preview latent has no colour table for this model's latents (use --preview vae)" WHERE
              "%s" FOUND "%d latent channels",
              s->model->name, channels);
    return colours ? error_expected(e, "%d, as in the published %s", colours->n, s->model->recipe->name)
                   : error_expected(e, "a model with a published VAE");
}

static enum status check_preview_decoder(const struct request_resolver *s, struct error *e) {
    bool tiny = s->preview == PREVIEW_TAESD;
    int slot = model_decoder_slot(s->model, tiny);
    if (slot < SLOTS_MAX && (s->model->component[slot].family->kind == FAMILY_TINY_DECODER) == tiny)
        return OK;
    return error_set(e, USAGE, "--preview %s needs %s" WHERE "%s" FOUND "none" EXPECTED "%s",
                     s->request->preview, tiny ? "a tiny autoencoder (TAESD)" : "a VAE", s->model->name,
                     tiny ? "--taesd FILE" : "--vae FILE");
}

static enum status find_preview(struct request_resolver *s, struct error *e) {
    static const char *const names[N_PREVIEWS] = {
        [PREVIEW_LATENT] = "latent", [PREVIEW_TAESD] = "taesd", [PREVIEW_VAE] = "vae"};
    const char *name = s->request->preview;
    int preview = PREVIEW_LATENT;
    request_check_range("--preview-every", s->request->preview_every, 1, SLUICE_STEPS_MAX, e);
    if (!name || s->decode_only || e->code != OK) return e->code;
    while (preview < N_PREVIEWS && strcmp(name, names[preview])) preview++;
    if (preview == N_PREVIEWS) {
        return error_set(e, USAGE, "invalid value for --preview" FOUND "%s" EXPECTED "latent, taesd or vae",
                         name);
    }
    s->preview = (enum preview)preview;
    return preview == PREVIEW_LATENT ? check_preview_colours(s, e) : check_preview_decoder(s, e);
}

static enum status find_sampling(struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    *s->sampling = s->model->sampling;
    if (s->decode_only) return OK;
    return sampling_choose(
        &(struct sampling_choice){
            .sampler = r->sampler, .schedule = r->scheduler, .prediction = r->prediction, .steps = r->steps},
        s->sampling, e);
}

static enum status check_request(struct request_resolver *s, struct error *e) {
    const struct sluice_request *r = s->request;
    if (!s->decode_only && request_check_size(s, e) != OK) return e->code;
    check_prompt("prompt", r->prompt, e);
    check_prompt("negative prompt", r->negative_prompt, e);
    if (e->code != OK || check_control(s, e) != OK || check_frames(s, e) != OK) return e->code;
    if (!s->decode_only && check_text_options(s, e) != OK) return e->code;
    if (request_check_range("the number of steps", r->steps, 1, SLUICE_STEPS_MAX, e) != OK ||
        find_sampling(s, e) != OK)
        return e->code;
    request_check_range("the batch", r->batch, 1, BATCH_MAX, e);
    if (request_check_range("--cfg-scale", r->cfg_scale, 0, SLUICE_SCALE_MAX, e) != OK) return e->code;
    if (check_low_scale(s, e) != OK || check_guidance(s, e) != OK || check_slg(s, e) != OK ||
        check_loras(s, e) != OK || request_check_pictures(s, e) != OK)
        return e->code;
    if (request_check_range("image_bytes_a_pixel", r->image_bytes_a_pixel, 0, 1024, e) != OK ||
        request_check_range("caller_bytes", (double)r->caller_bytes, 0, 1LL << 50, e) != OK)
        return e->code;
    if (r->max_ram_bytes < 0)
        return request_bad_value(e, "the memory budget (--max-ram)", (double)r->max_ram_bytes,
                                 "a positive size");
    if (find_device_budget(s, e) != OK || check_device_budget(s, e) != OK) return e->code;
    if (find_preview(s, e) != OK) return e->code;
    if (request_check_choice("--direct-io", r->direct_io, e) != OK) return e->code;
    return request_check_choice("--vae-tiling", r->vae_tiling, e);
}

enum precision request_default_precision(const struct device *device) {
    return device->unsupported[PRECISION_F32] ? PRECISION_BF16 : PRECISION_F32;
}

static enum status find_precision(struct request_resolver *s, struct error *e) {
    const char *name = s->request->precision;
    int precision = 0;
    if (!name) name = precision_name(request_default_precision(s->device));
    while (name && precision < N_PRECISIONS && strcmp(name, precision_name((enum precision)precision)))
        precision++;
    const char *lacks = precision < N_PRECISIONS ? s->device->unsupported[precision] : "unknown precision";
    s->precision = (enum precision)precision;
    if (!lacks) return OK;
    error_set(e, USAGE, "invalid value for --precision: %s" FOUND "%s", lacks, name);
    if (s->device->unsupported[PRECISION_F32]) return error_expected(e, "bf16, or --device cpu");
    return error_expected(e, s->device->unsupported[PRECISION_BF16] ? "f32" : "f32 or bf16");
}

/* Upper bound of a flow shift computed from the image size, since for huge sizes the shift would overflow
 * float32. */
#define SHIFT_MAX 1e30

/* The flow shift: a constant of the model, or computed from the number of latent tokens. */
static double shift_of_size(const struct request_resolver *s) {
    const struct sluice_model *m = s->model;
    const struct flow_shift_line *line = &m->shift_line;
    int64_t tokens = (int64_t)(s->request->width / m->size_step) * (s->request->height / m->size_step);
    if (m->flow_shift != 0 || m->shift_rule == FLOW_SHIFT_FIXED) return m->flow_shift;
    double shift = schedule_shift_of_tokens(tokens, line->base_tokens, line->base_shift, line->max_tokens,
                                            line->max_shift);
    return shift < SHIFT_MAX ? shift : SHIFT_MAX;
}

/* Number of control video frames in use: at most the model's limit, and 1 + a multiple of the VAE's temporal
 * factor. */
static int control_frames(const struct request_resolver *s) {
    int factor = component_frame_factor(model_decoder(s->model));
    int frames = (s->request->n_control - 1) / factor * factor + 1, most = s->model->recipe->frames_max;
    return frames < most ? frames : most;
}

static void fill_defaults(struct request_resolver *s) {
    struct sluice_request *r = s->request;
    const struct sluice_model *m = s->model;
    struct picture_size drawn = request_output_size(s);
    if (!r->width) r->width = drawn.width;
    if (!r->height) r->height = drawn.height;
    if (!r->frames) r->frames = r->n_control > 0 ? control_frames(s) : m->frames;
    if (!r->fps) r->fps = m->fps;
    if (!r->batch) r->batch = 1;
    if (!r->preview_every) r->preview_every = 1;
    if (!r->negative_prompt) r->negative_prompt = m->recipe->default_negative;
    if (m->boundary > 0 && r->cfg_scale_low == 0) r->cfg_scale_low = r->cfg_scale;
    s->terminal = r->flow_shift == 0 ? m->shift_terminal : 0;
    if (r->flow_shift == 0) r->flow_shift = s->decode_only ? 1 : shift_of_size(s);
}

enum status request_resolve(struct request_resolver *s, struct error *e) {
    double shift = s->request->flow_shift;
    if (shift != 0 &&
        request_check_range("--flow-shift", shift, SLUICE_FLOW_SHIFT_LEAST, SLUICE_FLOW_SHIFT_MAX, e) != OK)
        return e->code;
    fill_defaults(s);
    if (check_request(s, e) != OK) return e->code;
    if (s->model->recipe->cfg_needs_negative && !s->request->negative_prompt) s->request->cfg_scale = 1;
    if (shift != 0 && !s->decode_only && !s->sampling->prediction->is_flow)
        return request_bad_value(e, "--flow-shift", shift,
                                 "no --flow-shift: this is not a flow model (or --prediction flow)");
    return find_precision(s, e);
}
