/* `sluice generate` and `sluice decode`, from checks to report: see drawing.h. Every failure leaves through
 * drawing_run, so that one place writes the report and one error decides the exit code. */
#include "cli/drawing.h"

#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/interrupt.h"
#include "cli/outfile.h"
#include "cli/output.h"
#include "cli/parameters.h"
#include "cli/plan_table.h"
#include "cli/picture_write.h"
#include "cli/report.h"
#include "cli/request.h"
#include "cli/say.h"
#include "cli/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int drawing_quality(const struct drawing *drawing) {
    return drawing->args->quality ? drawing->args->quality : PICTURE_QUALITY;
}

static struct output_of all_of(const struct drawing *drawing) {
    return (struct output_of){1, drawing->n_images, drawing->seed, drawing->n_frames, 0};
}

/* ---- callbacks ---- */

static void on_log(void *user, int level, const char *line) {
    struct drawing *drawing = user;
    if (level == SLUICE_WARNING) say_note("warning: %s", line);
    if (level != SLUICE_WARNING && !drawing->args->quiet) say_note("%s", line);
    interrupt_pending();
}

static void on_progress(void *user, const struct sluice_progress *now) {
    struct drawing *drawing = user;
    progress_show(&drawing->progress, now);
    interrupt_pending();
}

/* A decoded latent has no seed that anybody knows. */
static int note_written(const struct drawing *drawing, struct output_of of, const struct sluice_image *image,
                        struct sluice_error *e) {
    const char *pattern = output_pattern(drawing->args, image->frames);
    char seed[32] = "", frames[48] = "", name[PATH_MAX];
    if (output_name(pattern, &of, name, e)) return e->code;
    if (!drawing->latent) snprintf(seed, sizeof seed, "seed %llu, ", (unsigned long long)image->seed);
    if (of.frame) snprintf(frames, sizeof frames, "the first of %d frames, ", image->frames);
    if (output_is_video(name))
        snprintf(frames, sizeof frames, "%d frame%s at %d a second, ", image->frames,
                 image->frames == 1 ? "" : "s", drawing->request.fps);
    say_note("wrote %s (%s%dx%d, %ssha256 %s)", strcmp(name, "-") ? name : "the picture to stdout", frames,
             image->width, image->height, seed, image->video_sha256);
    return SLUICE_OK;
}

static int put_video(struct drawing *drawing, const char *name, const struct sluice_image *image,
                     const struct picture_content *content, struct sluice_error *e) {
    struct video_settings settings = {.width = image->width,
                                      .height = image->height,
                                      .fps = drawing->request.fps,
                                      .quality = content->quality,
                                      .parameters = content->parameters};
    struct video *video = drawing->video;
    int status = video ? SLUICE_OK : video_open(name, &settings, &video, e);
    if (!status) status = video_put(video, image->rgb, e);
    drawing->video = video;
    if (status || image->frame + 1 < image->frames) return status;
    drawing->video = NULL;
    return video_close(video, e);
}

/* Or a frame of a video. */
static int save_image(struct drawing *drawing, const struct sluice_image *image, struct sluice_error *e) {
    char name[PATH_MAX];
    const char *pattern = output_pattern(drawing->args, image->frames);
    bool is_frames = output_is_frames(pattern, image->frames), silent = drawing->args->no_metadata;
    /* A latent file may hold more pictures than its plan said: those still get names of their own. */
    int n = image->index < drawing->n_images ? drawing->n_images : image->index + 1;
    struct output_of of = {image->index + 1, n, drawing->seed, image->frames,
                           is_frames ? image->frame + 1 : 0};
    int status = output_name(pattern, &of, name, e);
    if (status) return status;
    char *text = silent ? NULL : parameters_text(drawing->args, &drawing->request, image);
    if (!text && !silent) return fail(e, SLUICE_MEMORY, "no memory for the picture's text");
    const struct picture_content content = {image, text, drawing_quality(drawing)};
    status = is_frames                  ? frames_put(&drawing->frames, pattern, of, &content, e)
             : output_is_video(pattern) ? put_video(drawing, name, image, &content, e)
                                        : picture_write(name, &content, e);
    free(text);
    if (status || image->frame + 1 < image->frames) return status;
    drawing->n_written++;
    of.frame = is_frames;
    return drawing->args->quiet ? SLUICE_OK : note_written(drawing, of, image, e);
}

/* The callback cannot fail the run, so the first failure is kept and the run cancelled. */
static void on_image(void *user, const struct sluice_image *image) {
    struct drawing *drawing = user;
    if (!drawing->failure.code && save_image(drawing, image, &drawing->failure))
        sluice_cancel(drawing->session);
}

/* What is written while pictures come, and what they are shown with on the way. */
static int check_files(const struct drawing *drawing, struct sluice_error *e) {
    const struct args *args = drawing->args;
    int status = output_check(args, all_of(drawing), e);
    return status || !args->preview ? status : previews_check(args, all_of(drawing), e);
}

static void fill_bytes(struct drawing *drawing) {
    output_fill_bytes(drawing->args, drawing->n_frames, &drawing->request);
    drawing->request.caller_bytes += previews_bytes(drawing->args);
}

static void on_preview(void *user, const struct sluice_preview *preview) {
    struct drawing *drawing = user;
    previews_show(&drawing->previews, drawing->args, all_of(drawing), preview);
}

/* ---- one run ---- */

int drawing_open(struct drawing *drawing, struct sluice_error *e) {
    const struct args *args = drawing->args;
    struct sluice_session_options options = {.struct_size = sizeof options,
                                             .device = args->device,
                                             .threads = args->threads,
                                             .on_log = on_log,
                                             .on_progress = on_progress,
                                             .on_image = on_image,
                                             .on_preview = on_preview,
                                             .user = drawing,
                                             .prompt_cache = args->prompt_cache,
                                             .plans_only = args->command->bit == PLAN};
    struct sluice_model_options from = args->model;
    from.decodes_only = drawing->latent != NULL;
    from.latent = drawing->latent;
    from.dimensions = args->dimensions;
    from.max_ram_bytes = args->max_ram_bytes;
    int status = request_read_files(args, &drawing->files, e);
    if (!status) status = sluice_model_open(&from, &drawing->model, e);
    if (!status) status = sluice_session_open(drawing->model, &options, &drawing->session, e);
    if (status) return status;
    drawing->request.struct_size = sizeof drawing->request;
    request_fill(&drawing->request, drawing->model, args, drawing->seed, &drawing->files);
    drawing->n_frames = drawing->request.frames > 1 ? drawing->request.frames : 1;
    fill_bytes(drawing);
    if (output_check_side(args, &drawing->request, e)) return e->code;
    request_warn(&drawing->request, args);
    outfile_of_library(args->save_latent);
    interrupt_watch(drawing->session);
    return SLUICE_OK;
}

void drawing_close(struct drawing *drawing) {
    video_abandon(drawing->video);
    frames_abandon(&drawing->frames);
    interrupt_watch(NULL);
    outfile_of_library(NULL);
    sluice_session_close(drawing->session);
    sluice_model_close(drawing->model);
    request_free_files(&drawing->files);
}

/* How many pictures a latent holds, and how large a video is, stands in its plan; -v shows the plan. */
static int look_at_plan(struct drawing *drawing, struct sluice_error *e) {
    const struct args *args = drawing->args;
    struct plan_table_size size = {0};
    char *json = NULL;
    bool fits, is_video = !args->no_decode && output_is_video(output_pattern(args, drawing->n_frames));
    drawing->progress.videos = drawing->n_frames > 1;
    if (!drawing->latent && !args->verbose && !is_video) return SLUICE_OK;
    int status = sluice_plan_query(drawing->session, &drawing->request, drawing->latent, &json, &fits, e);
    if (status) return status;
    plan_table_size(json, &size);
    drawing->n_frames = size.frames;
    drawing->width = size.width;
    drawing->height = size.height;
    drawing->progress.videos = drawing->n_frames > 1;
    if (drawing->latent) drawing->n_images = drawing->progress.n_pictures = size.batch;
    fill_bytes(drawing);
    if (args->verbose) status = plan_table_print(stderr, json, true, e);
    sluice_free(json);
    return status;
}

/* Once more, now that it is known how many frames there are. */
static int check_outputs(const struct drawing *drawing, struct sluice_error *e) {
    const struct args *args = drawing->args;
    const char *pattern = output_pattern(args, drawing->n_frames);
    struct video_settings settings = {.width = drawing->width,
                                      .height = drawing->height,
                                      .fps = drawing->request.fps,
                                      .quality = drawing_quality(drawing)};
    int status = check_files(drawing, e);
    if (status || args->no_decode) return status;
    bool is_video = output_is_video(pattern), second_best;
    if (is_video && !settings.fps)
        return fail_value(e, "--output", pattern, "pictures, or --fps N beside it: this model has no rate");
    if (is_video) status = video_check_settings(pattern, &settings, e);
    if (args->quality && !picture_takes_quality(pattern) && !video_takes_quality(pattern))
        say_note("warning: --quality is not used: %s", is_video ? "GIF has none" : "PNG loses nothing");
    if (args->fps && !is_video && drawing->n_frames == 1)
        return fail_value(e, "--fps", "a picture", "a video: --frames, of a model that makes them");
    if (args->fps && !is_video) say_note("warning: --fps is not used: frames are written one by one");
    const char *encoder = is_video && !status ? video_encoder(pattern, &second_best) : NULL;
    if (encoder && second_best)
        say_note("warning: %s is written by %s: FFmpeg has nothing better here", pattern, encoder);
    return status;
}

static int cli_drawing_run(struct drawing *drawing, struct sluice_error *e) {
    if (interrupt_pending()) return interrupt_error(e);
    drawing->ran = true;
    int status = drawing->latent ? sluice_decode(drawing->session, &drawing->request, drawing->latent, e)
                                 : sluice_run(drawing->session, &drawing->request, e);
    say_live_end();
    if (!drawing->failure.code) return status;
    *e = drawing->failure;
    return e->code;
}

static void summarise(const struct drawing *drawing) {
    struct summary summary = {.session = drawing->session,
                              .n_pictures = drawing->n_written,
                              .videos = drawing->n_frames > 1,
                              .seconds = progress_clock() - drawing->started,
                              .verbose = drawing->args->verbose};
    if (!drawing->args->quiet) summary_say(&summary);
}

static int drawing_prepare(struct drawing *drawing, struct sluice_error *e) {
    const struct args *args = drawing->args;
    int status = request_check(args, e);
    if (!status) status = request_seed(args, &drawing->seed, e);
    if (!status) status = check_files(drawing, e);
    if (status) return status;
    if (!args->device && !args->quiet) devices_note_cpu();
    if (args->seed.random || !(args->quiet || drawing->latent))
        say_note("seed %llu", (unsigned long long)drawing->seed);
    if (args->no_decode && args->output && !args->quiet) say_note("no picture is written: --no-decode");
    return SLUICE_OK;
}

/* All of generate or decode, report and closing included. latent: decode's file; NULL: generate. */
static int drawing_run(const struct args *args, const char *latent, struct sluice_error *e) {
    struct drawing drawing = {.args = args, .latent = latent, .started = progress_clock()};
    drawing.n_images = args->batch ? args->batch : 1;
    drawing.n_frames = args->frames;
    /* Before everything that could end in a report. */
    drawing.seed = args->seed.value;
    if (output_check_report(args, all_of(&drawing), e)) return e->code;
    interrupt_gracefully();
    progress_start(&drawing.progress, args->quiet || args->no_progress, drawing.n_images);
    int status = drawing_prepare(&drawing, e);
    if (!status) status = drawing_open(&drawing, e);
    if (!status) status = look_at_plan(&drawing, e);
    if (!status) status = check_outputs(&drawing, e);
    if (!status) status = cli_drawing_run(&drawing, e);
    if (!status) summarise(&drawing);
    struct report report = {
        .name = args->report, .session = drawing.ran ? drawing.session : NULL, .seed = drawing.seed};
    report.seconds = progress_clock() - drawing.started;
    status = report_write(&report, e);
    drawing_close(&drawing);
    return status;
}

int generate_command(const struct args *args, struct sluice_error *e) {
    return drawing_run(args, NULL, e);
}

int decode_command(const struct args *args, struct sluice_error *e) {
    return drawing_run(args, args->operands[0], e);
}
