/* Previews: see previews.h. */
#include "cli/previews.h"

#include "cli/fail.h"
#include "cli/inputs.h"
#include "cli/outfile.h"
#include "cli/picture_write.h"
#include "cli/say.h"

#include <string.h>

static bool on_terminal(const struct args *args) {
    return !args->quiet && !args->no_progress && terminal_shows_pictures();
}

static bool in_file(const struct args *args) {
    return args->preview_path || !on_terminal(args);
}

int64_t previews_bytes(const struct args *args) {
    return args->preview ? TERMINAL_BYTES : 0;
}

static const char *previews_pattern(const struct args *args) {
    return args->preview_path ? args->preview_path : "preview.png";
}

/* Which formats take memory that nobody counted is not asked for. */
static int check_name(const char *pattern, struct sluice_error *e) {
    bool is_file = strcmp(pattern, "-") != 0, known = picture_has_extension(pattern);
    if (!is_file || !known || picture_write_bytes_a_pixel(pattern))
        return fail_value(e, "--preview-path", pattern, "a name that ends in .png, .jpg or .jpeg");
    return picture_check_name(pattern, e) ? fail_where(e, "--preview-path") : SLUICE_OK;
}

static int check_outputs(const struct args *args, struct output_of of, const char *name,
                         struct sluice_error *e) {
    char output[PATH_MAX];
    const char *pattern = output_pattern(args, of.frames);
    int status = SLUICE_OK;
    if (args->no_decode || !of.frames) return SLUICE_OK;
    of = output_first(of, pattern);
    do {
        status = output_name(pattern, &of, output, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--output", output, e);
    } while (!status && output_next(&of));
    return status;
}

int previews_check(const struct args *args, struct output_of of, struct sluice_error *e) {
    const char *pattern = previews_pattern(args);
    struct output_of preview = {1, of.n, of.first_seed, 1, 0};
    char name[PATH_MAX];
    int status = check_name(pattern, e);
    if (status || !in_file(args)) return status;
    do {
        status = output_name(pattern, &preview, name, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--report", args->report, e);
        if (!status)
            status = output_check_distinct("--preview-path", name, "--save-latent", args->save_latent, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--dump", args->dump, e);
        if (!status) status = check_outputs(args, of, name, e);
        if (!status) status = inputs_spared(args, "--preview-path", name, e);
        if (!status) status = outfile_probe(name, e);
    } while (!status && output_next(&preview));
    return status;
}

/* Once, when there is something to be opened. */
static void say_where(struct previews *previews, const struct args *args, const char *name) {
    if (!previews->said && !args->quiet) say_note("previews are in %s", name);
    previews->said = true;
}

static int write_preview(struct previews *previews, const struct args *args, struct output_of of,
                         const struct sluice_preview *preview, struct sluice_error *e) {
    struct sluice_image image = {.struct_size = sizeof image,
                                 .width = preview->width,
                                 .height = preview->height,
                                 .rgb = preview->rgb,
                                 .frames = 1};
    struct picture_content content = {&image, NULL, PICTURE_QUALITY};
    char name[PATH_MAX];
    of = (struct output_of){preview->index + 1, of.n, of.first_seed, 1, 0};
    int status = output_name(previews_pattern(args), &of, name, e);
    if (!status) status = picture_write(name, &content, e);
    if (!status) say_where(previews, args, name);
    return status;
}

void previews_show(struct previews *previews, const struct args *args, struct output_of of,
                   const struct sluice_preview *preview) {
    struct sluice_error e = {0};
    char line[1024];
    if (!preview->index && on_terminal(args)) terminal_show(&previews->terminal, preview);
    if (!in_file(args) || previews->failed || !write_preview(previews, args, of, preview, &e)) return;
    previews->failed = true;
    say_note("warning: no previews: %s", sluice_error_line(&e, line, sizeof line));
}
