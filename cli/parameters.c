#include "cli/parameters.h"

#include "cli/sampler_names.h"

#include <ctype.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Last component of the model's path with links and "." resolved. */
static void model_name(const struct args *args, char out[PATH_MAX]) {
    char resolved[PATH_MAX];
    const char *path = args->model.model;
    for (int i = 0; i < args->model.n_parts && !path; i++)
        if (!strcmp(args->parts[i].flag, "--diffusion-model")) path = args->parts[i].path;
    if (!path) path = "unknown";
    if (realpath(path, resolved)) path = resolved;
    const char *slash = strrchr(path, '/');
    snprintf(out, PATH_MAX, "%s", slash && slash[1] ? slash + 1 : path);
}

/* Prints a value, as a JSON string if it has a comma or colon: readers of the text split it at commas and
 * colons. */
static void print_quoted(FILE *to, const char *value) {
    char *quoted = NULL;
    json_t *string = strpbrk(value, ",:\n\"") ? json_string(value) : NULL;
    if (string) quoted = json_dumps(string, JSON_ENCODE_ANY);
    fputs(quoted ? quoted : value, to);
    free(quoted);
    json_decref(string);
}

static const char *sampler_name(const struct sluice_image *image) {
    return image->sampler ? sampler_webui_name(image->sampler) : "unknown";
}

/* Returns the web UI's name of the schedule; "Automatic" for a default schedule that the web UI lacks. */
static const char *schedule_name(const struct sluice_image *image) {
    bool mixes = image->prediction && !strcmp(image->prediction, "flow");
    if (!image->scheduler || !strcmp(image->scheduler, "leading") || !strcmp(image->scheduler, "trailing"))
        return "Automatic";
    if (!strcmp(image->scheduler, "linspace")) return mixes ? "Simple" : "Uniform";
    return schedule_webui_name(image->scheduler);
}

/* Prints skip-layer guidance with stable-diffusion.cpp's keys. */
static void print_skipped(FILE *to, const struct sluice_request *request) {
    fprintf(to, "SLG scale: %.9g, Skip layers: \"[", request->slg_scale);
    for (int i = 0; i < request->n_slg_layers; i++) fprintf(to, i ? ", %d" : "%d", request->slg_layers[i]);
    fprintf(to, "]\", Skip layer start: %.9g, Skip layer end: %.9g, ", request->slg_start, request->slg_end);
}

static void print_settings(FILE *to, const struct args *args, const struct sluice_request *request,
                           const struct sluice_image *image) {
    fprintf(to, "Steps: %d, Sampler: %s, Schedule type: %s, CFG scale: %.9g, ", request->steps,
            sampler_name(image), schedule_name(image), image->cfg_scale);
    if (image->loras) {
        fputs("Lora: ", to);
        print_quoted(to, image->loras);
        fputs(", ", to);
    }
    if (image->cfg_scale_low != 0) fprintf(to, "CFG scale low: %.9g, ", image->cfg_scale_low);
    if (image->slg_scale != 0) print_skipped(to, request);
    if (request->guidance != 0) fprintf(to, "Distilled CFG Scale: %.9g, ", request->guidance);
    if (request->clip_skip) fprintf(to, "Clip skip: %d, ", request->clip_skip);
    if (args->prompt_weights && !strcmp(args->prompt_weights, "off")) fputs("Emphasis: None, ", to);
    if (args_has_flag(args, "--flow-shift")) fprintf(to, "Shift: %.9g, ", args->flow_shift);
}

static void print_decoder(FILE *to, const char *decoder) {
    fputs("VAE Decoder: ", to);
    for (const char *letter = decoder; *letter; letter++) fputc(toupper((unsigned char)*letter), to);
    fputs(", ", to);
}

char *parameters_text(const struct args *args, const struct sluice_request *request,
                      const struct sluice_image *image) {
    char *text = NULL, name[PATH_MAX];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    bool drawn = args->command->bit == GENERATE;
    if (drawn) fprintf(to, "%s\n", request->prompt);
    const char *negative = request->negative_prompt ? request->negative_prompt : image->negative_prompt;
    if (drawn && negative && *negative) fprintf(to, "Negative prompt: %s\n", negative);
    if (drawn) print_settings(to, args, request, image);
    if (drawn) fprintf(to, "Seed: %llu, ", (unsigned long long)image->seed);
    fprintf(to, "Size: %dx%d, ", image->width, image->height);
    if (image->frames > 1) fprintf(to, "Frames: %d, ", image->frames);
    if (image->decoder) print_decoder(to, image->decoder);
    fputs("Model: ", to);
    model_name(args, name);
    print_quoted(to, name);
    if (request->init_image) fprintf(to, ", Denoising strength: %.9g", request->strength);
    fprintf(to, ", Version: sluice %s", sluice_version());
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}
