/* The report file and the generation parameters of a run: see report.h. */
#include "cli/report.h"

#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/args.h"

#include <ctype.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the report file ---- */

/* Makes a JSON string. If text (a path) is not UTF-8, each byte above 127 becomes '?'. */
static json_t *string_json(const char *text) {
    char ascii[512];
    json_t *string = json_string(text);
    if (string) return string;
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++) {
        if (*c & 0x80) *c = '?';
    }
    return json_string(ascii);
}

static json_t *error_json(const struct sluice_error *error) {
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "code", sluice_code_name(error->code), "what",
                     string_json(error->what), "where", string_json(error->where), "found",
                     string_json(error->found), "expected", string_json(error->expected));
}

/* A report with the keys of the library's report, for a run that did not take place. */
static char *minimal_report(const struct report *report, const struct sluice_error *error) {
    json_t *plan = report->plan_json ? json_loads(report->plan_json, 0, NULL) : NULL;
    json_t *json = json_pack(
        "{s:i, s:i, s:o, s:I, s:f, s:[], s:[], s:{s:n, s:n, s:n, s:n}, s:[], s:[], s:[]}", "version", 1,
        "exit", error->exit_code, "plan", plan ? plan : json_null(), "seed", (json_int_t)report->seed,
        "seconds", report->seconds, "latent_sha256", "image_sha256", "measured", "vram_bytes", "ram_bytes",
        "base_bytes", "library_bytes", "stages", "steps", "replanned");
    if (error->code) json_object_set_new(json, "error", error_json(error));
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    return text;
}

/* Returns the library's report with the program's exit code and error; NULL: no report. The library does not
 * know failures of the program itself, such as an image that could not be written. If both errors agree, the
 * text is unchanged, so that numbers keep their formatting. */
static char *session_report(const struct report *report, const struct sluice_error *error) {
    struct sluice_error ignored;
    char *text = NULL;
    if (!report->session || sluice_report(report->session, &text, &ignored) || !text) return NULL;
    json_t *json = json_loads(text, 0, NULL);
    json_int_t code = json_integer_value(json_object_get(json, "exit"));
    char *out = NULL;
    bool has_error = json_object_get(json, "error") || !error->code;
    if (json && code == error->exit_code && has_error) {
        out = strdup(text);
    } else if (json) {
        json_object_set_new(json, "exit", json_integer(error->exit_code));
        if (error->code) json_object_set_new(json, "error", error_json(error));
        out = json_dumps(json, JSON_INDENT(1));
    }
    json_decref(json);
    sluice_free(text);
    return out;
}

int report_write(const struct report *report, struct sluice_error *error) {
    struct sluice_error problem = {0};
    if (!report->name) return error->code;
    char *text = session_report(report, error);
    if (!text) text = minimal_report(report, error);
    if (text) {
        outfile_write_text(report->name, text, &problem);
    } else {
        fail(&problem, SLUICE_MEMORY, "no memory for the report");
    }
    free(text);
    if (problem.code && !error->code) *error = problem;
    return error->code;
}

/* ---- generation parameters in images and videos ---- */

/* Prints a value of the generation parameters. A value with a comma or colon becomes a JSON string, because
 * readers split the text at commas and colons. */
static void print_quoted(FILE *to, const char *value) {
    char *quoted = NULL;
    json_t *string = strpbrk(value, ",:\n\"") ? json_string(value) : NULL;
    if (string) quoted = json_dumps(string, JSON_ENCODE_ANY);
    fputs(quoted ? quoted : value, to);
    free(quoted);
    json_decref(string);
}

/* Prints control images in the format of the ControlNet extension of AUTOMATIC1111's web UI, such as
 * ControlNet 0: "Module: canny, Model: NAME, Weight: 1". lines: sluice_image.controls. */
static void print_controls(FILE *to, const char *lines) {
    for (int i = 0; lines && *lines; i++) {
        char line[512];
        size_t bytes = strcspn(lines, "\n");
        snprintf(line, sizeof line, "%.*s", (int)bytes, lines);
        fprintf(to, "ControlNet %d: ", i);
        print_quoted(to, line);
        fputs(", ", to);
        lines += bytes + (lines[bytes] == '\n');
    }
}

static void print_settings(FILE *to, const struct args *args, const struct sluice_request *request,
                           const struct sluice_image *image) {
    const char *schedule = image->scheduler ? image->scheduler : "leading";
    if (!strcmp(schedule, "leading") || !strcmp(schedule, "trailing"))
        schedule = "Automatic"; /* the web UI has no name for these default schedules */
    else if (!strcmp(schedule, "linspace"))
        schedule = image->prediction && !strcmp(image->prediction, "flow") ? "Simple" : "Uniform";
    else
        schedule = schedule_webui_name(schedule);
    fprintf(to, "Steps: %d, Sampler: %s, Schedule type: %s, CFG scale: %.9g, ", request->steps,
            image->sampler ? sampler_webui_name(image->sampler) : "unknown", schedule, image->cfg_scale);
    if (image->loras) {
        fputs("Lora: ", to);
        print_quoted(to, image->loras);
        fputs(", ", to);
    }
    print_controls(to, image->controls);
    if (request->n_redux_images)
        fprintf(to, "Redux images: %d, Redux strength: %.9g, ", request->n_redux_images,
                request->redux_strength != 0 ? request->redux_strength : 1);
    if (image->cfg_scale_low != 0) fprintf(to, "CFG scale low: %.9g, ", image->cfg_scale_low);
    if (image->cfg_norm > 0) fprintf(to, "CFG norm: %.9g, ", image->cfg_norm);
    if (image->cfg_until < 1) fprintf(to, "CFG until: %.9g, ", image->cfg_until);
    if (image->slg_scale != 0) { /* with stable-diffusion.cpp's keys */
        fprintf(to, "SLG scale: %.9g, Skip layers: \"[", request->slg_scale);
        for (int i = 0; i < request->n_slg_layers; i++)
            fprintf(to, i ? ", %d" : "%d", request->slg_layers[i]);
        fprintf(to, "]\", Skip layer start: %.9g, Skip layer end: %.9g, ", request->slg_start,
                request->slg_end);
    }
    if (request->guidance != 0) fprintf(to, "Distilled CFG Scale: %.9g, ", request->guidance);
    if (request->clip_skip) fprintf(to, "Clip skip: %d, ", request->clip_skip);
    if (args->prompt_weights && !strcmp(args->prompt_weights, "off")) fputs("Emphasis: None, ", to);
    if (args_has_flag(args, "--flow-shift")) fprintf(to, "Shift: %.9g, ", args->flow_shift);
    if (args->precision) fprintf(to, "Precision: %s, ", args->precision);
    if (args->type) fprintf(to, "Weight type: %s, ", args->type);
}

/* The path given by a flag of a model part; NULL: none. */
static const char *part_path(const struct args *args, const char *flag) {
    for (int i = 0; i < args->model.n_parts; i++)
        if (!strcmp(args->parts[i].flag, flag)) return args->parts[i].path;
    return NULL;
}

/* Prints the last component of a path, with links and "." resolved. */
static void print_file_name(FILE *to, const char *path) {
    char resolved[PATH_MAX];
    if (!path) path = "unknown";
    if (realpath(path, resolved)) path = resolved;
    const char *slash = strrchr(path, '/');
    print_quoted(to, slash && slash[1] ? slash + 1 : path);
}

/* Prints what enlarged the image, with the keys of AUTOMATIC1111's web UI. */
static void print_enlargements(FILE *to, const struct args *args, const struct sluice_request *request,
                               const struct sluice_image *image) {
    const char *hires = request->hires_upscaler ? request->hires_upscaler : "latent";
    const char *network = part_path(args, request->upscale_latent ? "--upscaler" : "--hires-upscaler");
    double scale = request->hires_scale;
    if (request->upscale_latent && image->first_width) /* the factor is the upscaler's */
        scale = (double)image->width / image->first_width;
    if (image->first_width) {
        fprintf(to, ", Denoising strength: %.9g, Hires upscale: %.9g, Hires steps: %d, Hires upscaler: ",
                image->hires_strength, scale, image->hires_steps);
        if (network)
            print_file_name(to, network);
        else
            fputs(hires, to);
    }
    if (!image->enlarged) return;
    fprintf(to, ", Postprocess upscale by: %d, Postprocess upscaler: ", image->enlarged);
    print_file_name(to, part_path(args, "--upscale-model"));
}

char *parameters_text(const struct args *args, const struct sluice_request *request,
                      const struct sluice_image *image) {
    char *text = NULL;
    size_t bytes = 0;
    int factor = image->enlarged ? image->enlarged : 1;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    bool drawn = args->command->bit == GENERATE;
    if (drawn) fprintf(to, "%s\n", request->prompt ? request->prompt : ""); /* NULL: only Redux images */
    const char *negative = request->negative_prompt ? request->negative_prompt : image->negative_prompt;
    if (drawn && negative && *negative) fprintf(to, "Negative prompt: %s\n", negative);
    if (drawn) print_settings(to, args, request, image);
    if (drawn) fprintf(to, "Seed: %llu, ", (unsigned long long)image->seed);
    bool twice = image->first_width; /* with a second pass, as in the web UI, the size of the first */
    fprintf(to, "Size: %dx%d, ", twice ? image->first_width : image->width / factor,
            twice ? image->first_height : image->height / factor);
    if (image->frames > 1) fprintf(to, "Frames: %d, ", image->frames);
    if (image->decoder) {
        fputs("VAE Decoder: ", to);
        for (const char *letter = image->decoder; *letter; letter++)
            fputc(toupper((unsigned char)*letter), to);
        fputs(", ", to);
    }
    fputs("Model: ", to);
    print_file_name(to, args->model.model ? args->model.model : part_path(args, "--diffusion-model"));
    if (drawn && request->init_image) fprintf(to, ", Denoising strength: %.9g", request->strength);
    print_enlargements(to, args, request, image);
    fprintf(to, ", Version: sluice %s", sluice_version());
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}
