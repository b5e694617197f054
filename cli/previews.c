#include "cli/previews.h"

#include "cli/fail.h"
#include "cli/output.h"
#include "cli/outfile.h"
#include "cli/picture.h"
#include "cli/messages.h"

#include <string.h>

static bool uses_terminal(const struct args *args) {
    return !args->quiet && !args->no_progress && terminal_shows_pictures();
}

static bool uses_file(const struct args *args) {
    return args->preview_path || !uses_terminal(args);
}

int64_t previews_bytes(const struct args *args) {
    return args->preview ? TERMINAL_BYTES : 0;
}

static const char *previews_pattern(const struct args *args) {
    return args->preview_path ? args->preview_path : "preview.png";
}

/* Refuses "-" and formats that need memory per pixel (WebP), which plans do not count for previews. */
static int check_name(const char *pattern, struct sluice_error *e) {
    bool is_file = strcmp(pattern, "-") != 0, known = picture_has_extension(pattern);
    if (!is_file || !known || picture_write_bytes_a_pixel(pattern))
        return fail_value(e, "--preview-path", pattern, "a file name ending in .png, .jpg or .jpeg");
    return picture_check_name(pattern, e) ? fail_where(e, "--preview-path") : SLUICE_OK;
}

static int check_outputs(const struct args *args, struct output_item item, const char *name,
                         struct sluice_error *e) {
    char output[PATH_MAX];
    const char *pattern = output_pattern(args, item.frames);
    int status = SLUICE_OK;
    if (args->no_decode || !item.frames) return SLUICE_OK;
    item = output_first(item, pattern);
    do {
        status = output_name(pattern, &item, output, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--output", output, e);
    } while (!status && output_next(&item));
    return status;
}

int previews_check(const struct args *args, struct output_item item, struct sluice_error *e) {
    const char *pattern = previews_pattern(args);
    struct output_item preview = {1, item.n, item.first_seed, 1, 0};
    char name[PATH_MAX];
    int status = check_name(pattern, e);
    if (status || !uses_file(args)) return status;
    do {
        status = output_name(pattern, &preview, name, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--report", args->report, e);
        if (!status)
            status = output_check_distinct("--preview-path", name, "--save-latent", args->save_latent, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--dump", args->dump, e);
        if (!status) status = check_outputs(args, item, name, e);
        if (!status) status = output_check_inputs(args, "--preview-path", name, e);
        if (!status) status = outfile_probe(name, e);
    } while (!status && output_next(&preview));
    return status;
}

/* Prints the file name once, after the first file is written. */
static void announce(struct previews *previews, const struct args *args, const char *name) {
    if (!previews->announced && !args->quiet) message_note("preview file: %s", name);
    previews->announced = true;
}

static int write_preview(struct previews *previews, const struct args *args, struct output_item item,
                         const struct sluice_preview *preview, struct sluice_error *e) {
    struct sluice_image image = {.struct_size = sizeof image,
                                 .width = preview->width,
                                 .height = preview->height,
                                 .rgb = preview->rgb,
                                 .frames = 1};
    struct picture_content content = {&image, NULL, PICTURE_QUALITY};
    char name[PATH_MAX];
    item = (struct output_item){preview->index + 1, item.n, item.first_seed, 1, 0};
    int status = output_name(previews_pattern(args), &item, name, e);
    if (!status) status = picture_write(name, &content, e);
    if (!status) announce(previews, args, name);
    return status;
}

void previews_show(struct previews *previews, const struct args *args, struct output_item item,
                   const struct sluice_preview *preview) {
    struct sluice_error e = {0};
    char line[1024];
    if (!preview->index && uses_terminal(args)) terminal_show(&previews->terminal, preview);
    if (!uses_file(args) || previews->failed || !write_preview(previews, args, item, preview, &e)) return;
    previews->failed = true;
    message_note("warning: cannot write previews: %s", sluice_error_line(&e, line, sizeof line));
}
