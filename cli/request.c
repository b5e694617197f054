#include "cli/request.h"

#include "cli/fail.h"
#include "cli/messages.h"
#include "cli/picture.h"
#include "cli/args.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- combinations of flags ---- */

/* Error for a flag that other flags of the command line exclude; quotes its value as typed. */
static int refuse(const struct args *args, const char *flag, const char *why, const char *expected,
                  struct sluice_error *e) {
    return fail(e, SLUICE_USAGE, "%s" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s", why, flag,
                args->typed[flag_find(flag) - flags], expected);
}

bool request_upscales(const struct args *args) {
    bool only = args->n_operands && !args->model.model && !args->model.family && args->model.n_parts == 1;
    return args->command->bit == UPSCALE ||
           (args->command->bit == PLAN && only && args_has_flag(args, "--upscale-model"));
}

int request_check(const struct args *args, struct sluice_error *e) {
    static const char *const slg[] = {"--slg-scale", "--slg-start", "--slg-end"};
    static const char *const preview[] = {"--preview-every", "--preview-path"};
    static const char *const hires[] = {"--hires-strength", "--hires-steps", "--hires-upscaler"};
    const struct sluice_model_options *m = &args->model;
    bool upscales = request_upscales(args), decodes = args->operands[0] && !upscales;
    /* --max-ram above this machine's memory is refused, except in plans for other machines: `plan` with
     * --family or with a card's name ("cuda:4060", longer than any "cuda:N"). */
    const char *device = args->device ? args->device : "";
    bool card = strncmp(device, "cuda:", 5) == 0 && strlen(device) > strlen("cuda:99");
    if (args->max_ram_bytes > sluice_memory_bytes() && !(args->command->bit == PLAN && (m->family || card))) {
        const struct flag *flag = flag_find("--max-ram");
        return value_above_memory(flag, args->typed[flag - flags], e);
    }
    /* Checks that the flags name a model or its parts, or for `decode` a decoder. The library checks all
     * other inputs of a run. */
    if (!upscales && !m->model && !m->family && !args_has_flag(args, "--vae") &&
        !args_has_flag(args, "--taesd") && (decodes || (!m->n_parts && !m->tokenizer)))
        return fail(e, SLUICE_USAGE, "no model is given" WHERE "sluice %s" EXPECTED "%s", args->command->name,
                    decodes ? "-m PATH, --vae PATH or --taesd PATH" : "-m PATH, or a flag for every part");
    if (upscales && !m->n_parts)
        return fail(e, SLUICE_USAGE,
                    "no upscaler is given" WHERE "sluice upscale" EXPECTED "--upscale-model FILE");
    if (args->dimensions && !m->family)
        return refuse(args, "--dims", "only a model without files can have other sizes",
                      "--family NAME, or no --dims", e);
    if (args->command->bit == GENERATE && !args->prompt.text && !args->redux_images.n)
        return fail(e, SLUICE_USAGE,
                    "no prompt is given" WHERE "sluice generate" EXPECTED "-p TEXT or -p @FILE");
    if (args->batch >= 2 && args->seed.value > INT64_MAX - (uint64_t)(args->batch - 1))
        return refuse(args, "--seed", "the last seed of the batch is above 9223372036854775807",
                      "a smaller seed", e);
    if (args_has_flag(args, "--strength") && !args->init_image)
        return refuse(args, "--strength", "there is no input image to change", "--init-img FILE too", e);
    if (args->fit && !args->init_image && !args->mask && !args->control)
        return refuse(args, "--fit", "there is no input image to fit",
                      "--init-img FILE, --mask FILE or --control DIR too", e);
    for (int i = 0; i < 3; i++)
        if (!args->slg_layers.n && args_has_flag(args, slg[i]))
            return refuse(args, slg[i], "there are no layers to skip", "--slg-layers A,B too", e);
    for (int i = 0; i < 2; i++)
        if (!args->preview && args_has_flag(args, preview[i]))
            return refuse(args, preview[i], "previews are off", "--preview HOW too", e);
    for (int i = 0; i < 3; i++)
        if (!args_has_flag(args, "--hires") && args_has_flag(args, hires[i]))
            return refuse(args, hires[i], "there is no second pass", "--hires SCALE too", e);
    if (args->no_decode && args_has_flag(args, "--upscale-model"))
        return refuse(args, "--upscale-model", "--no-decode makes no image to enlarge", "one of the two", e);
    if (args->upscale_sigmas.n && !args_has_flag(args, "--upscaler"))
        return refuse(args, "--upscale-sigmas", "there is no second pass", "--upscaler FILE too", e);
    if (args_has_flag(args, "--redux-strength") && !args->redux_images.n)
        return refuse(args, "--redux-strength", "there is no image for Flux Redux", "--redux-image FILE too",
                      e);
    return controls_check(args, e);
}

/* A random seed has 32 bits, as in other programs: short enough to type. */
int request_seed(const struct args *args, uint64_t *seed, struct sluice_error *e) {
    uint32_t drawn = 0;
    *seed = args->seed.value;
    if (!args->seed.random) return SLUICE_OK;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
        return fail(e, SLUICE_INTERNAL, "the system gives no random number" FOUND "%s", strerror(errno));
    }
    *seed = drawn;
    return SLUICE_OK;
}

/* ---- files ---- */

static void note_unused(const struct args *args, const char *name, unsigned notes) {
    if (args->quiet) return;
    if (notes & PICTURE_TRANSPARENT) message_note("%s: transparency is ignored", name);
    if (notes & PICTURE_ANIMATED) message_note("%s is animated: only the first frame is used", name);
}

static int decode_rows(const struct sluice_picture *picture, const struct row_sink *rows,
                       struct sluice_error *e) {
    unsigned notes = 0;
    int status = picture_read(picture, rows, &notes, e);
    note_unused(picture->user, picture->name, notes);
    return status;
}

/* Callbacks of the library: decode an image. picture->user: struct args. */
static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    return decode_rows(picture, &(struct row_sink){take, to, false}, e);
}

static int read_rgba_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                          void *to, struct sluice_error *e) {
    return decode_rows(picture, &(struct row_sink){take, to, true}, e);
}

struct next_row {
    uint8_t *at;
    size_t bytes;
};

static void copy_row(void *to, const uint8_t *row) {
    struct next_row *next = to;
    memcpy(next->at, row, next->bytes);
    next->at += next->bytes;
}

/* Callback of the library: decodes an image to packed rows. */
static int read_pixels(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    return read_rows(picture, copy_row, &(struct next_row){rgb, 3 * (size_t)picture->width}, e);
}

/* Reads the header of an image. Adds its properties (enum picture_note) to *notes. */
static int open_image(const struct args *args, const char *name, struct sluice_picture *picture,
                      unsigned *notes, struct sluice_error *e) {
    unsigned properties = 0;
    int status = picture_open(name, picture, &properties, e);
    picture->read = read_pixels;
    picture->read_rows = read_rows;
    picture->read_rgba_rows = read_rgba_rows;
    picture->user = (void *)(uintptr_t)args;
    *notes |= properties;
    return status;
}

static int open_one(const struct args *args, const char *name, struct sluice_picture *picture,
                    unsigned *notes, struct sluice_error *e) {
    return name ? open_image(args, name, picture, notes, e) : SLUICE_OK;
}

static int is_frame(const struct dirent *entry) {
    return entry->d_name[0] != '.' && picture_has_extension(entry->d_name);
}

/* Opens the frames of --control DIR, sorted by name with numbers compared as numbers (f-2.png before
 * f-10.png). Files without an image extension are ignored. */
static int open_control(const struct args *args, struct request_files *files, struct sluice_error *e) {
    enum { FRAMES_MAX = 4096 }; /* frames of a control video; no model generates more frames */
    struct dirent **entries = NULL;
    int n = scandir(args->control, &entries, is_frame, versionsort), status = SLUICE_OK;
    if (n <= 0 || n > FRAMES_MAX) {
        const char *problem = n < 0 ? strerror(errno) : n ? "too many images" : "no images";
        status = fail(e, SLUICE_IO, "cannot use the control video: %s" WHERE "%s" EXPECTED "%s", problem,
                      args->control,
                      n < 0 ? "a folder of images" : "the frames of a video, as f-1.png, f-2.png ...");
    } else {
        files->control_names = calloc((size_t)n, sizeof *files->control_names);
        files->control = calloc((size_t)n, sizeof *files->control);
        files->control_list = calloc((size_t)n, sizeof *files->control_list);
        if (!files->control_names || !files->control || !files->control_list)
            status = fail(e, SLUICE_MEMORY, "no memory");
    }
    for (int i = 0; i < n && !status; i++) {
        files->control_list[i] = &files->control[i];
        if (asprintf(&files->control_names[i], "%s/%s", args->control, entries[i]->d_name) < 0)
            status = fail(e, SLUICE_MEMORY, "no memory");
        else
            files->n_control = i + 1;
    }
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    for (int i = 0; i < files->n_control && !status; i++)
        status = open_image(args, files->control_names[i], &files->control[i], &files->control_notes, e);
    return status;
}

/* Opens the images of the controls and fills files->controls. */
static int open_controls(const struct args *args, struct request_files *files, struct sluice_error *e) {
    int status = SLUICE_OK;
    for (int i = 0; i < args->controls.n && !status; i++) {
        const struct control_args *from = &args->controls.at[i];
        const char *const names[] = {from->image, from->mask, from->inpaint};
        struct sluice_picture *pictures = files->control_pictures[i];
        size_t digits = from->mode ? strspn(from->mode, "0123456789") : 0;
        bool number = digits && digits <= 9 && !from->mode[digits]; /* 10 digits may overflow an int */
        for (int k = 0; k < 3 && !status; k++)
            status = open_one(args, names[k], &pictures[k], &files->control_picture_notes[i][k], e);
        files->controls[i] = (struct sluice_control){.struct_size = sizeof files->controls[i],
                                                     .network = from->network,
                                                     .image = from->image ? &pictures[0] : NULL,
                                                     .mask = from->mask ? &pictures[1] : NULL,
                                                     .inpaint = from->inpaint ? &pictures[2] : NULL,
                                                     .strength = from->strength,
                                                     .start = from->start,
                                                     .end = from->end,
                                                     .mode = number ? atoi(from->mode) : -1,
                                                     .mode_name = number ? NULL : from->mode,
                                                     .canny = from->canny};
    }
    files->n_controls = args->controls.n;
    for (int i = 0; i < args->controls.n_networks; i++) /* networks that inpaint -i with --mask */
        if (controls_lack(args, i))
            files->controls[files->n_controls++] = (struct sluice_control){
                .struct_size = sizeof *files->controls, .network = i, .strength = 1, .end = 1, .mode = -1};
    return status;
}

int request_read_files(const struct args *args, struct request_files *files, struct sluice_error *e) {
    static const struct textfile_kind plan = {"the plan", 4 << 20, SLUICE_USAGE},
                                      rates = {"the rates file", 1 << 20, SLUICE_IO};
    int status = SLUICE_OK;
    if (args->plan) status = textfile_read(args->plan, &plan, &files->plan, e);
    if (!status && args->rates) status = textfile_read(args->rates, &rates, &files->rates, e);
    if (!status) status = open_one(args, args->init_image, &files->init, &files->init_notes, e);
    if (!status) status = open_one(args, args->end_image, &files->end, &files->end_notes, e);
    if (!status) status = open_one(args, args->mask, &files->mask, &files->mask_notes, e);
    for (int i = 0; i < args->references.n && !status; i++) {
        status = open_one(args, args->references.at[i], &files->references[i], &files->reference_notes[i], e);
        files->reference_list[i] = &files->references[i];
        files->n_references = i + 1;
    }
    for (int i = 0; i < args->redux_images.n && !status; i++) {
        unsigned notes = 0;
        status = open_one(args, args->redux_images.at[i], &files->redux[i], &notes, e);
        files->redux_list[i] = &files->redux[i];
        files->n_redux = i + 1;
    }
    if (!status) status = open_controls(args, files, e);
    return status || !args->control ? status : open_control(args, files, e);
}

void request_note_images(const struct args *args, const struct request_files *files,
                         const sluice_model *model) {
    unsigned used = sluice_model_has_alpha(model) ? PICTURE_TRANSPARENT : 0;
    note_unused(args, args->init_image, files->init_notes & ~used);
    note_unused(args, args->end_image, files->end_notes & ~used);
    note_unused(args, args->mask, files->mask_notes);
    for (int i = 0; i < files->n_references; i++)
        note_unused(args, args->references.at[i], files->reference_notes[i] & ~used);
    note_unused(args, args->control, files->control_notes);
    for (int i = 0; i < args->controls.n; i++) {
        const struct control_args *from = &args->controls.at[i];
        const char *const names[] = {from->image, from->mask, from->inpaint};
        for (int k = 0; k < 3; k++) note_unused(args, names[k], files->control_picture_notes[i][k]);
    }
}

void request_free_files(struct request_files *files) {
    for (int i = 0; i < files->n_control; i++) free(files->control_names[i]);
    free(files->control_names);
    free(files->control);
    free(files->control_list);
    free(files->plan);
    free(files->rates);
}

/* ---- the request ---- */

/* Fills in the input images, and the size and number of frames that depend on them. */
static void fill_images(struct sluice_request *request, const struct args *args,
                        const struct request_files *files) {
    if (files->init.width) request->init_image = &files->init;
    if (files->end.width) request->end_image = &files->end;
    if (files->mask.width) request->mask = &files->mask;
    if (files->n_references) request->references = files->reference_list;
    request->n_references = files->n_references;
    request->control = files->control_list;
    request->n_control = files->n_control;
    request->controls = files->controls;
    request->n_controls = files->n_controls;
    request->guess_mode = args->guess_mode;
    if (files->n_redux) request->redux_images = files->redux_list;
    request->n_redux_images = files->n_redux;
    if (args_has_flag(args, "--redux-strength")) request->redux_strength = args->redux_strength;
    /* With an input image and without -W or -H, width and height stay 0: the library derives them. */
    if (request->init_image || request->n_references || request->n_control || request->n_controls)
        request->width = request->height = 0;
    /* As many frames as the control video, rounded down to 4 k + 1, as WAN's VAE requires. */
    if (request->n_control && !args->frames) request->frames = (request->n_control - 1) / 4 * 4 + 1;
    if (args->width) request->width = args->width;
    if (args->height) request->height = args->height;
    if (args->frames) request->frames = args->frames;
}

static void fill_guidance(struct sluice_request *request, const struct args *args) {
    if (args_has_flag(args, "--cfg-scale")) {
        request->cfg_scale = args->cfg_scale.first;
        request->cfg_scale_low = args->cfg_scale.second;
        request->audio_cfg_scale = 0; /* equal to cfg_scale, unless --audio-cfg-scale follows */
    }
    if (args_has_flag(args, "--cfg-norm")) request->cfg_norm = args->cfg_norm;
    if (args_has_flag(args, "--cfg-until")) request->cfg_until = args->cfg_until;
    if (args_has_flag(args, "--guidance")) request->guidance = args->guidance;
    if (args_has_flag(args, "--audio-cfg-scale")) request->audio_cfg_scale = args->audio_cfg_scale;
    if (args_has_flag(args, "--cfg-rescale")) {
        request->cfg_rescale = args->cfg_rescale.first;
        request->audio_cfg_rescale = args->cfg_rescale.second;
    }
    if (args_has_flag(args, "--stg-scale")) {
        request->stg_scale = args->stg_scale.first;
        request->audio_stg_scale = args->stg_scale.second;
    }
    if (args_has_flag(args, "--stg-blocks")) {
        request->stg_blocks = args->stg_blocks.at;
        request->n_stg_blocks = args->stg_blocks.n;
    }
    if (args_has_flag(args, "--modality-scale")) {
        request->modality_scale = args->modality_scale.first;
        request->audio_modality_scale = args->modality_scale.second;
    }
    request->slg_layers = args->slg_layers.at;
    request->n_slg_layers = args->slg_layers.n;
    if (args_has_flag(args, "--slg-scale")) request->slg_scale = args->slg_scale;
    if (args_has_flag(args, "--slg-start")) request->slg_start = args->slg_start;
    if (args_has_flag(args, "--slg-end")) request->slg_end = args->slg_end;
}

void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const struct request_files *files) {
    sluice_request_defaults(model, request);
    fill_images(request, args, files);
    if (args->fps) request->fps = args->fps;
    if (args->steps) request->steps = args->steps;
    fill_guidance(request, args);
    request->hires_scale = args->hires;
    request->hires_strength = args->hires_strength;
    request->hires_steps = args->hires_steps;
    request->hires_upscaler = args->hires_upscaler;
    if (args_has_flag(args, "--flow-shift")) request->flow_shift = args->flow_shift;
    /* Inpainting repaints the masked region in full; img2img takes the model's default strength. */
    if (args->mask) request->strength = 1;
    if (args_has_flag(args, "--strength")) request->strength = args->strength;
    request->batch = args->batch ? args->batch : 1;
    request->max_ram_bytes = args->max_ram_bytes;
    request->max_vram_bytes = args->max_vram.bytes;
    request->max_vram_percent = args->max_vram.percent;
    request->prompt = args->prompt.text;
    request->negative_prompt = args->negative_prompt.text;
    request->seed = seed;
    request->no_decode = args->no_decode;
    request->upscale = args_has_flag(args, "--upscale-model");
    if (args->precision) request->precision = args->precision;
    request->type = args->type;
    request->converted =
        args->type && args->model.family; /* true plans with files that `sluice convert` has written */
    request->init_latent = args->init_latent;
    request->save_latent = args->save_latent;
    request->save_audio_latent = args->save_audio_latent;
    request->no_audio = args->no_audio;
    request->sigmas = args->sigmas.n ? args->sigmas.at : NULL;
    request->n_sigmas = args->sigmas.n;
    request->upscale_latent = args_has_flag(args, "--upscaler");
    request->upscale_sigmas = args->upscale_sigmas.n ? args->upscale_sigmas.at : NULL;
    request->n_upscale_sigmas = args->upscale_sigmas.n;
    request->dump = args->dump;
    request->plan = files->plan;
    request->plan_name = args->plan;
    request->rates = files->rates;
    request->rates_name = args->rates;
    request->direct_io = args->direct_io;
    request->vae_tiling = args->vae_tiling;
    request->fit = args->fit;
    request->sampler = args->sampler;
    request->scheduler = args->scheduler ? args->scheduler : args->sampler_schedule;
    request->prediction = args->prediction;
    request->prompt_weights = args->prompt_weights;
    request->clip_skip = args->clip_skip;
    /* proj and tae are stable-diffusion.cpp's names of these parts. */
    request->preview = !args->preview                   ? NULL
                       : !strcmp(args->preview, "proj") ? "latent"
                       : !strcmp(args->preview, "tae")  ? "taesd"
                                                        : args->preview;
    request->preview_every = args->preview_every;
    request->loras = args->loras.at;
    request->n_loras = args->loras.n;
    request->lora_partial = args->lora_partial;
    request->lora_dir = args->lora_dir;
}

void request_warn(const struct sluice_request *request, const struct args *args) {
    const char *text[] = {args->prompt.text, args->negative_prompt.text};
    for (int i = 0; i < 2 && !args->lora_dir; i++)
        if (text[i] && strstr(text[i], "<lora:"))
            message_note("warning: %s: <lora:...> loads no LoRA without --lora-dir; it is read as plain text",
                         i ? "--negative-prompt" : "--prompt");
    bool guides_low = request->cfg_scale_low != 0 && request->cfg_scale_low != 1;
    if (args->negative_prompt.bytes && request->cfg_scale == 1 && !guides_low)
        message_note("warning: --negative-prompt has no effect: --cfg-scale is 1 (no guidance)");
}
