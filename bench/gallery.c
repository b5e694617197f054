/* The gallery of `make demo`: generates every prompt below in one session, under a memory budget smaller than
 * the model. Writes one labelled contact sheet, and shows it in the terminal if the terminal can display
 * images. Like any other user of the library, it includes only engine/sluice.h.
 *
 *     gallery MODEL_FOLDER OUT.png
 *
 * Every image is the first one generated for its prompt, with seeds 1, 2, 3, ...: none was selected. */
#include "engine/sluice.h"

#include "bench/contact_sheet.h"
#include "bench/terminal_picture.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct drawing {
    const char *prompt;
    int width, height;
};

/* Prompts and sizes of the gallery's images; the prompts cover the demo model's grammar. The last four
 * images make a row as wide as four square images. */
static const struct drawing drawings[] = {
    {"a large red circle on the left on a white background", 128, 128},
    {"a large yellow star in the centre on a black background", 128, 128},
    {"a small blue square on the right on a yellow background", 128, 128},
    {"a green triangle at the bottom on a white background", 128, 128},
    {"two blue squares at the top on a yellow background", 128, 128},
    {"two small orange stars on the left on a purple background", 128, 128},
    {"three red circles at the bottom on a white background", 128, 128},
    {"three white triangles on a blue background", 128, 128},
    {"a green star above an orange triangle on a black background", 128, 128},
    {"a red circle left of a blue square on a white background", 128, 128},
    {"two yellow circles right of a purple star on a green background", 128, 128},
    {"a white triangle below three red stars on a black background", 128, 128},
    {"a purple circle right of a yellow triangle on a white background", 160, 96},
    {"a black star above a white square on an orange background", 96, 160},
    {"two green circles at the bottom on a yellow background", 96, 160},
    {"three large blue squares on a red background", 160, 96},
};
enum { N_DRAWINGS = sizeof drawings / sizeof *drawings };

struct gallery {
    sluice_model *model;
    sluice_session *session;
    struct sheet_picture pictures[N_DRAWINGS];
    int n_done, live; /* live: stderr is a terminal, so the progress line is rewritten */
    /* From the plans of all images, in bytes: the largest minimum budget, and the smallest peak with all
     * weights resident. */
    json_int_t least_bytes, resident_bytes;
    /* From the run reports, in bytes. again_bytes: bytes streamed after the first step of an image, when
     * every weight has been read once. */
    json_int_t peak_bytes, streamed_bytes, again_bytes;
};

static double mib(json_int_t bytes) {
    return (double)bytes / (1 << 20);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int set_error(struct sluice_error *e, int code, const char *what) {
    *e = (struct sluice_error){.code = code, .exit_code = 1};
    snprintf(e->what, sizeof e->what, "%s", what);
    return code;
}

static void progress_line(const struct gallery *g, const char *prompt) {
    fprintf(stderr, "%s%2d/%d  %s%s", g->live ? "\r" : "", g->n_done + 1, N_DRAWINGS, prompt,
            g->live ? "\033[K" : "\n");
}

static void on_image(void *user, const struct sluice_image *image) {
    struct gallery *g = user;
    size_t bytes = 3 * (size_t)image->width * (size_t)image->height;
    uint8_t *rgb = malloc(bytes);
    if (!rgb) return;
    memcpy(rgb, image->rgb, bytes);
    g->pictures[g->n_done].width = image->width, g->pictures[g->n_done].height = image->height;
    g->pictures[g->n_done].rgb = rgb;
}

static struct sluice_request request_for(const struct gallery *g, int i) {
    struct sluice_request request = {.struct_size = sizeof request};
    sluice_request_defaults(g->model, &request);
    request.prompt = drawings[i].prompt;
    request.width = drawings[i].width, request.height = drawings[i].height;
    request.seed = (uint64_t)i + 1;
    for (int k = 0; k < N_DRAWINGS; k++) /* the gallery keeps the pixels of all images */
        request.caller_bytes += 3 * (int64_t)drawings[k].width * drawings[k].height;
    return request;
}

static int ask_plan(struct gallery *g, int i, struct sluice_error *e) {
    struct sluice_request request = request_for(g, i);
    request.max_ram_bytes = (int64_t)1 << 30; /* 1 GiB: enough to keep all weights resident */
    char *text = NULL;
    bool fits;
    json_int_t least = 0, peak = 0;
    int status = sluice_plan_query(g->session, &request, NULL, &text, &fits, e);
    if (status) return status;
    json_t *plan = json_loads(text, 0, NULL);
    if (json_unpack(plan, "{s{sI}s{sI}}", "least", "ram_bytes", &least, "peak", "ram_bytes", &peak)) {
        status = set_error(e, SLUICE_INTERNAL, "the plan lacks its peak memory");
    }
    if (least > g->least_bytes) g->least_bytes = least;
    if (!i || peak < g->resident_bytes) g->resident_bytes = peak;
    json_decref(plan);
    sluice_free(text);
    return status;
}

static json_int_t bytes_moved(const json_t *part) {
    return json_integer_value(json_object_get(part, "bytes_moved"));
}

static int read_report(struct gallery *g, struct sluice_error *e) {
    char *text = NULL;
    size_t i;
    json_t *part;
    json_int_t streamed = 0;
    int status = sluice_report(g->session, &text, e);
    if (status) return status;
    json_t *report = json_loads(text, 0, NULL);
    json_int_t peak = json_integer_value(json_object_get(json_object_get(report, "measured"), "ram_bytes"));
    if (peak > g->peak_bytes) g->peak_bytes = peak;
    json_array_foreach(json_object_get(report, "stages"), i, part) {
        const char *name = json_string_value(json_object_get(part, "name"));
        if (name && !strcmp(name, "denoise")) streamed += bytes_moved(part);
    }
    json_array_foreach(json_object_get(report, "steps"), i, part) {
        if (i) g->again_bytes += bytes_moved(part);
    }
    json_decref(report);
    sluice_free(text);
    g->streamed_bytes += streamed;
    return streamed > 0 ? SLUICE_OK
                        : set_error(e, SLUICE_INTERNAL, "no weights were streamed during denoising");
}

/* All images use the same budget: the minimum budget of the most demanding image. Halfway to everything
 * resident, the ring buffer would hold all remaining blocks, and nothing would be streamed after the first
 * step (measured at 128x128: 0 of 43 MiB; at this budget 24 of 69 MiB). */
static int generate_one(struct gallery *g, struct sluice_error *e) {
    struct sluice_request request = request_for(g, g->n_done);
    struct sheet_picture *picture = &g->pictures[g->n_done];
    request.max_ram_bytes = g->least_bytes;
    picture->prompt = request.prompt;
    progress_line(g, request.prompt);
    int status = sluice_run(g->session, &request, e);
    if (!status && !picture->rgb) status = set_error(e, SLUICE_MEMORY, "out of memory for an image");
    if (!status) status = read_report(g, e);
    if (!status) g->n_done++;
    return status;
}

static int generate_all(struct gallery *g, const char *folder, struct sluice_error *e) {
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = "cpu", .on_image = on_image, .user = g};
    int status = sluice_model_open(&from, &g->model, e);
    if (!status) status = sluice_session_open(g->model, &options, &g->session, e);
    for (int i = 0; !status && i < N_DRAWINGS; i++) status = ask_plan(g, i, e);
    if (!status && g->least_bytes >= g->resident_bytes) {
        status = set_error(e, SLUICE_INTERNAL,
                           "no single budget suits all images: one image's minimum exceeds another's peak "
                           "with all weights resident");
    }
    while (!status && g->n_done < N_DRAWINGS) status = generate_one(g, e);
    if (g->live) fprintf(stderr, "\r\033[K");
    return status;
}

static int write_sheet(struct gallery *g, const char *file, struct sluice_error *e) {
    char subtitle[200], footer[300];
    struct sluice_request defaults = request_for(g, 0);
    snprintf(
        subtitle, sizeof subtitle,
        "The demo model's images for %d prompts: %d steps, seeds 1 to %d, the first image of each prompt.",
        N_DRAWINGS, defaults.steps, N_DRAWINGS);
    snprintf(footer, sizeof footer,
             "Budget %.1f MiB (all weights resident: %.1f MiB). Measured peak: %.1f MiB. "
             "Weights streamed during denoising: %.0f MiB.",
             mib(g->least_bytes), mib(g->resident_bytes), mib(g->peak_bytes), mib(g->streamed_bytes));
    struct contact_sheet sheet = {.title = "Sluice", .subtitle = subtitle, .footer = footer};
    sheet.pictures = g->pictures, sheet.n_pictures = N_DRAWINGS;
    const char *failed = contact_sheet_write(&sheet, file);
    if (!failed) return SLUICE_OK;
    set_error(e, SLUICE_OUTPUT, failed);
    snprintf(e->where, sizeof e->where, "%s", file);
    e->exit_code = 6;
    return SLUICE_OUTPUT;
}

static void print_summary(const struct gallery *g, const char *file, double seconds) {
    printf("%d images in %.1f s with a budget of %.1f MiB (all weights resident: %.1f MiB): "
           "streamed %.0f MiB of weights during denoising (%.0f MiB of it after an image's first step), "
           "peak memory %.1f MiB\n",
           N_DRAWINGS, seconds, mib(g->least_bytes), mib(g->resident_bytes), mib(g->streamed_bytes),
           mib(g->again_bytes), mib(g->peak_bytes));
    printf("gallery: %s\n", file);
}

/* Half-block characters are too coarse for the labels, so the prompts follow as text. */
static void show(const char *file) {
    enum terminal_kind kind = terminal_kind();
    const char *failed = terminal_picture_show(file, kind);
    if (failed) fprintf(stderr, "gallery: cannot show the image in the terminal: %s\n", failed);
    if (kind != TERMINAL_TRUECOLOR && kind != TERMINAL_256) return;
    printf("prompts, left to right and top to bottom:\n");
    for (int i = 0; i < N_DRAWINGS; i++) printf("  %2d %s\n", i + 1, drawings[i].prompt);
}

int main(int argc, char **argv) {
    struct gallery g = {.live = isatty(2)};
    struct sluice_error error = {0};
    char line[1024];
    if (argc != 3) return fprintf(stderr, "usage: gallery MODEL_FOLDER OUT.png\n"), 2;
    double began = seconds_now();
    int status = generate_all(&g, argv[1], &error);
    if (!status) status = write_sheet(&g, argv[2], &error);
    double seconds = seconds_now() - began;
    if (status) {
        fprintf(stderr, "gallery: %s: %s\n", sluice_code_name(status),
                sluice_error_line(&error, line, sizeof line));
    } else {
        show(argv[2]);
        print_summary(&g, argv[2], seconds);
    }
    sluice_session_close(g.session), sluice_model_close(g.model);
    for (int i = 0; i < N_DRAWINGS; i++) free((void *)(uintptr_t)g.pictures[i].rgb);
    return status ? error.exit_code : 0;
}
