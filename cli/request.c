#include "cli/request.h"

#include "cli/fail.h"
#include "cli/prompt.h"
#include "cli/messages.h"
#include "cli/textfile.h"
#include "cli/values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int cli_request_refuse(const char *flag, const char *why, const char *found, const char *expected,
                              struct sluice_error *e) {
    return fail(e, SLUICE_USAGE, "%s" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s", why, flag, found, expected);
}

static int cli_request_check_parts(const struct args *args, struct sluice_error *e) {
    const struct sluice_model_options *m = &args->model;
    bool decodes = args->operands[0] != NULL;
    /* A model, or for `decode` a decoder, must be given. The library checks all other parts of a run. */
    if (m->model || m->family || args_has_flag(args, "--vae") || args_has_flag(args, "--taesd"))
        return SLUICE_OK;
    if (!decodes && (m->n_parts || m->tokenizer)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE, "no model is given" WHERE "sluice %s" EXPECTED "%s", args->command->name,
                decodes ? "-m PATH, --vae PATH or --taesd PATH" : "-m PATH, or a flag for every part");
}

static int check_dimensions(const struct args *args, struct sluice_error *e) {
    if (!args->dimensions || args->model.family) return SLUICE_OK;
    return cli_request_refuse("--dims", "only a model without files can have other sizes", args->dimensions,
                              "--family NAME, or no --dims", e);
}

static int cli_request_check_prompt(const struct args *args, struct sluice_error *e) {
    if (args->command->bit != GENERATE || args->prompt.text) return SLUICE_OK;
    return fail(e, SLUICE_USAGE, "no prompt is given" WHERE "sluice generate" EXPECTED "-p TEXT or -p @FILE");
}

static int check_seeds(const struct args *args, struct sluice_error *e) {
    if (args->batch < 2 || args->seed.value <= INT64_MAX - (uint64_t)(args->batch - 1)) return SLUICE_OK;
    return cli_request_refuse("--seed", "the last seed of the batch is above 9223372036854775807",
                              args->typed[flag_find("--seed") - flags], "a smaller seed", e);
}

static int check_fit(const struct args *args, struct sluice_error *e) {
    if (!args->fit || args->init_image || args->mask || args->control) return SLUICE_OK;
    return cli_request_refuse("--fit", "there is no input image to fit", args->fit,
                              "--init-img FILE, --mask FILE or --control DIR too", e);
}

static int check_strength(const struct args *args, struct sluice_error *e) {
    if (!args_has_flag(args, "--strength") || args->init_image) return SLUICE_OK;
    return cli_request_refuse("--strength", "there is no input image to change",
                              args->typed[flag_find("--strength") - flags], "--init-img FILE too", e);
}

static int check_slg(const struct args *args, struct sluice_error *e) {
    static const char *const about[] = {"--slg-scale", "--slg-start", "--slg-end"};
    for (int i = 0; i < 3 && !args->slg_layers.n; i++)
        if (args_has_flag(args, about[i]))
            return cli_request_refuse(about[i], "there are no layers to skip",
                                      args->typed[flag_find(about[i]) - flags], "--slg-layers A,B too", e);
    return SLUICE_OK;
}

static int check_preview(const struct args *args, struct sluice_error *e) {
    static const char *const about[] = {"--preview-every", "--preview-path"};
    for (int i = 0; i < 2 && !args->preview; i++)
        if (args_has_flag(args, about[i]))
            return cli_request_refuse(about[i], "previews are off", args->typed[flag_find(about[i]) - flags],
                                      "--preview HOW too", e);
    return SLUICE_OK;
}

/* Refuses --max-ram above this machine's memory, except in plans for other machines: `plan` with --family or
 * with a card's name ("cuda:4060", longer than any "cuda:N"). */
static int check_memory(const struct args *args, struct sluice_error *e) {
    const char *device = args->device ? args->device : "";
    bool card = strncmp(device, "cuda:", 5) == 0 && strlen(device) > strlen("cuda:99");
    const struct flag *flag = flag_find("--max-ram");
    if (args->command->bit == PLAN && (args->model.family || card)) return SLUICE_OK;
    if (args->max_ram_bytes <= sluice_memory_bytes()) return SLUICE_OK;
    return value_above_memory(flag, args->typed[flag - flags], e);
}

int request_check(const struct args *args, struct sluice_error *e) {
    int status = check_memory(args, e);
    if (!status) status = cli_request_check_parts(args, e);
    if (!status) status = check_dimensions(args, e);
    if (!status) status = cli_request_check_prompt(args, e);
    if (!status) status = check_seeds(args, e);
    if (!status) status = check_strength(args, e);
    if (!status) status = check_fit(args, e);
    if (!status) status = check_slg(args, e);
    if (!status) status = check_preview(args, e);
    return status;
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

int request_read_files(const struct args *args, struct request_files *files, struct sluice_error *e) {
    static const struct textfile_kind plan = {"the plan", 4 << 20, SLUICE_USAGE},
                                      rates = {"the rates file", 1 << 20, SLUICE_IO};
    int status = SLUICE_OK;
    if (args->plan) status = textfile_read(args->plan, &plan, &files->plan, e);
    if (!status && args->rates) status = textfile_read(args->rates, &rates, &files->rates, e);
    if (!status) status = input_images_open(args, &files->input_images, e);
    return status;
}

void request_free_files(struct request_files *files) {
    input_images_close(&files->input_images);
    free(files->plan);
    free(files->rates);
}

/* With an input image and without -W or -H, width and height stay 0: the library derives them. */
static void fill_size(struct sluice_request *request, const struct args *args) {
    if (request->init_image || request->n_references || request->n_control)
        request->width = request->height = 0;
    /* As many frames as the control video, rounded down to 4 k + 1, as WAN's VAE requires. */
    if (request->n_control && !args->frames) request->frames = (request->n_control - 1) / 4 * 4 + 1;
    if (args->width) request->width = args->width;
    if (args->height) request->height = args->height;
}

static void fill_values(struct sluice_request *request, const struct args *args) {
    if (args->frames) request->frames = args->frames;
    if (args->fps) request->fps = args->fps;
    if (args->steps) request->steps = args->steps;
    if (args_has_flag(args, "--cfg-scale")) request->cfg_scale = args->cfg_scale.high;
    if (args_has_flag(args, "--cfg-scale")) request->cfg_scale_low = args->cfg_scale.low;
    if (args_has_flag(args, "--guidance")) request->guidance = args->guidance;
    if (args_has_flag(args, "--flow-shift")) request->flow_shift = args->flow_shift;
    request->slg_layers = args->slg_layers.at;
    request->n_slg_layers = args->slg_layers.n;
    if (args_has_flag(args, "--slg-scale")) request->slg_scale = args->slg_scale;
    if (args_has_flag(args, "--slg-start")) request->slg_start = args->slg_start;
    if (args_has_flag(args, "--slg-end")) request->slg_end = args->slg_end;
    /* Inpainting repaints the masked region in full; img2img takes the model's default strength. */
    if (args->mask) request->strength = 1;
    if (args_has_flag(args, "--strength")) request->strength = args->strength;
    request->batch = args->batch ? args->batch : 1;
    request->max_ram_bytes = args->max_ram_bytes;
    request->max_vram_bytes = args->max_vram.bytes;
    request->max_vram_percent = args->max_vram.percent;
}

/* Maps stable-diffusion.cpp's preview methods to ours. */
static const char *preview_name(const char *name) {
    if (!name) return NULL;
    return !strcmp(name, "proj") ? "latent" : !strcmp(name, "tae") ? "taesd" : name;
}

void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const struct request_files *files) {
    sluice_request_defaults(model, request);
    input_images_fill(&files->input_images, request);
    fill_size(request, args);
    fill_values(request, args);
    request->prompt = args->prompt.text;
    request->negative_prompt = args->negative_prompt.text;
    request->seed = seed;
    request->no_decode = args->no_decode;
    if (args->precision) request->precision = args->precision;
    request->type = args->type;
    request->converted = args->type && args->model.family; /* plan for converted files */
    request->init_latent = args->init_latent;
    request->save_latent = args->save_latent;
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
    request->preview = preview_name(args->preview);
    request->preview_every = args->preview_every;
    request->loras = args->loras.at;
    request->n_loras = args->loras.n;
    request->lora_partial = args->lora_partial;
    request->lora_dir = args->lora_dir;
}

void request_warn(const struct sluice_request *request, const struct args *args) {
    if (!args->lora_dir) {
        prompt_warn(&args->prompt, "--prompt");
        prompt_warn(&args->negative_prompt, "--negative-prompt");
    }
    bool guides_low = request->cfg_scale_low != 0 && request->cfg_scale_low != 1;
    if (args->negative_prompt.bytes && request->cfg_scale == 1 && !guides_low)
        message_note("warning: --negative-prompt has no effect: --cfg-scale is 1 (no guidance)");
}
