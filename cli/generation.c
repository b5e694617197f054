/* The commands generate, decode and upscale. Every failure returns through generation_run, which writes the
 * report. */
#include "cli/generation.h"

#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/report.h"
#include "cli/picture.h"
#include "cli/plan_table.h"
#include "cli/video.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- videos as one image per frame ---- */

/* Makes the final and the temporary file name of a video frame. */
static int name_both(const struct frames *frames, int frame, char name[PATH_MAX], char temporary[PATH_MAX],
                     struct sluice_error *e) {
    struct output_item item = frames->item;
    item.frame = frame;
    if (output_name(frames->pattern, &item, name, e)) return e->code;
    const char *slash = strrchr(name, '/');
    int bytes = snprintf(temporary, PATH_MAX, "%s/%s", frames->temporary, slash ? slash + 1 : name);
    return bytes < PATH_MAX ? SLUICE_OK : fail_output(e, name, ENAMETOOLONG);
}

/* Renames all frames of the video to their final names; on failure removes those already renamed. */
static int rename_all(struct frames *frames, struct sluice_error *e) {
    char name[PATH_MAX], temporary[PATH_MAX];
    struct sluice_error ignored;
    int n = 0, status = SLUICE_OK;
    for (; n < frames->item.frames && !status; n++) {
        status = name_both(frames, n + 1, name, temporary, e);
        if (!status && rename(temporary, name)) status = fail_output(e, name, errno);
    }
    for (; status && n > 1; n--)
        if (!name_both(frames, n - 1, name, temporary, &ignored)) unlink(name);
    if (status) return status;
    int problem = leftovers_unlock(frames->temporary) || rmdir(frames->temporary) ? errno : 0;
    close(frames->lock_file);
    frames->pattern = NULL;
    return problem ? fail_output(e, name, problem) : SLUICE_OK;
}

/* Removes the frames of an unfinished video. */
static void frames_abandon(struct frames *frames) {
    if (!frames->pattern) return;
    leftovers_remove_tree(frames->temporary);
    if (frames->lock_file >= 0) close(frames->lock_file);
    if (frames->made) rmdir(frames->target);
    frames->pattern = NULL;
}

/* Writes the next frame of a video as an image file. The first call creates the target folder, and the
 * temporary folder next to the first frame; the last call renames all frames. Failure removes all frames. */
static int frames_put(struct frames *frames, const char *pattern, struct output_item item,
                      const struct picture_content *content, struct sluice_error *e) {
    char name[PATH_MAX], temporary[PATH_MAX];
    int status = SLUICE_OK;
    if (!frames->pattern) {
        *frames = (struct frames){.pattern = pattern, .item = item, .lock_file = -1};
        status = output_name(pattern, &item, name, e);
        const char *base = status ? NULL : leftovers_folder(name, frames->target);
        int bytes = status ? 0 : snprintf(frames->temporary, PATH_MAX, "%s.tmp.%ld", name, (long)getpid());
        if (!status && (!base || bytes >= PATH_MAX)) status = fail_output(e, name, ENAMETOOLONG);
        if (!status) {
            frames->made = mkdir(frames->target, 0777) == 0;
            leftovers_clear(frames->temporary);
            if (!mkdir(frames->temporary, 0777)) frames->lock_file = leftovers_lock(frames->temporary);
            if (frames->lock_file < 0) status = fail_output(e, frames->target, errno);
        }
    }
    frames->item.frame = item.frame;
    if (!status) status = name_both(frames, item.frame, name, temporary, e);
    if (!status && (status = picture_write(temporary, content, e))) fail_where(e, name);
    if (!status && item.frame == item.frames) status = rename_all(frames, e);
    if (status) frames_abandon(frames);
    return status;
}

/* ---- previews ---- */

static bool uses_terminal(const struct args *args) {
    return !args->quiet && !args->no_progress && terminal_shows_pictures();
}

static bool uses_file(const struct args *args) {
    return args->preview_path || !uses_terminal(args);
}

static const char *previews_pattern(const struct args *args) {
    return args->preview_path ? args->preview_path : "preview.png";
}

/* Checks that the preview files of all images can be written, and are neither an input nor another output.
 * Exit code 2 or 6. item: first image of the run, with the image count. */
static int previews_check(const struct args *args, struct output_item item, struct sluice_error *e) {
    const char *pattern = previews_pattern(args);
    struct output_item preview = {1, item.n, item.first_seed, 1, 0};
    char name[PATH_MAX];
    /* No WebP previews: the encoder needs memory per pixel, which plans do not count for previews. */
    if (strcmp(pattern, "-") == 0 || !picture_has_extension(pattern) ||
        picture_write_bytes_a_pixel(pattern, false))
        return fail_value(e, "--preview-path", pattern, "a file name ending in .png, .jpg or .jpeg");
    if (picture_check_name(pattern, e)) return fail_where(e, "--preview-path");
    int status = SLUICE_OK;
    if (!uses_file(args)) return SLUICE_OK;
    do {
        status = output_name(pattern, &preview, name, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--report", args->report, e);
        if (!status)
            status = output_check_distinct("--preview-path", name, "--save-latent", args->save_latent, e);
        if (!status) status = output_check_distinct("--preview-path", name, "--dump", args->dump, e);
        if (!status && !args->no_decode && item.frames)
            status = output_check_no_image(args, item, "--preview-path", name, e);
        if (!status) status = output_check_inputs(args, "--preview-path", name, e);
        if (!status) status = outfile_probe(name, e);
    } while (!status && output_next(&preview));
    return status;
}

/* ---- callbacks of the library ---- */

static int output_quality(const struct generation *generation) {
    return generation->args->quality ? generation->args->quality : PICTURE_QUALITY;
}

static struct output_item all_images(const struct generation *generation) {
    return (struct output_item){1, generation->n_images, generation->seed, generation->n_frames, 0};
}

static void on_log(void *user, int level, const char *line) {
    struct generation *generation = user;
    if (generation->unlogged) return;
    if (level == SLUICE_WARNING) message_note("warning: %s", line);
    if (level != SLUICE_WARNING && !generation->args->quiet) message_note("%s", line);
    interrupt_pending();
}

static void on_progress(void *user, const struct sluice_progress *now) {
    struct generation *generation = user;
    const struct args *args = generation->args;
    /* Prints the seed when the run begins to compute, so that a run refused earlier prints only its error. */
    if (!generation->seed_printed &&
        (args->seed.random || !(args->quiet || generation->latent || generation->upscales)))
        message_note("seed %llu", (unsigned long long)generation->seed);
    generation->seed_printed = true;
    progress_show(&generation->progress, now);
    interrupt_pending();
}

/* Prints the "wrote FILE" line. The command decode prints no seed, because a latent file has none. */
static int print_written(const struct generation *generation, struct output_item item,
                         const struct sluice_image *image, struct sluice_error *e) {
    const char *pattern = output_pattern(generation->args, image->frames);
    char seed[32] = "", frames[48] = "", name[PATH_MAX];
    if (output_name(pattern, &item, name, e)) return e->code;
    if (!generation->latent && !generation->upscales)
        snprintf(seed, sizeof seed, "seed %llu, ", (unsigned long long)image->seed);
    if (item.frame) snprintf(frames, sizeof frames, "first of %d frames, ", image->frames);
    if (video_has_extension(name))
        snprintf(frames, sizeof frames, "%d frame%s at %d fps, ", image->frames,
                 image->frames == 1 ? "" : "s", generation->request.fps);
    message_note("wrote %s (%s%dx%d, %spixels sha256 %s)", strcmp(name, "-") ? name : "the image to stdout",
                 frames, image->width, image->height, seed, image->video_sha256);
    return SLUICE_OK;
}

static int put_video(struct generation *generation, const char *name, const struct sluice_image *image,
                     const struct picture_content *content, struct sluice_error *e) {
    struct video_settings settings = {.width = image->width,
                                      .height = image->height,
                                      .fps = generation->request.fps,
                                      .quality = content->quality,
                                      .parameters = content->parameters};
    const struct sound *sound = &generation->sounds[image->index];
    if (sound->pcm) settings.sound = sound;
    struct video *video = generation->video;
    int status = video ? SLUICE_OK : video_open(name, &settings, &video, e);
    if (!status) status = video_put(video, image->rgb, e);
    generation->video = video;
    if (status || image->frame + 1 < image->frames) return status;
    generation->video = NULL;
    return video_close(video, e);
}

/* After a video's last frame: writes the sound to a WAV file if the video's format has no sound track, and
 * frees it. */
static int finish_sound(struct generation *generation, int index, const char *pattern,
                        struct output_item item, struct sluice_error *e) {
    struct sound *sound = &generation->sounds[index];
    char name[PATH_MAX];
    int status = SLUICE_OK;
    if (sound->pcm && !video_takes_sound(pattern)) {
        status = output_sound_name(pattern, item, name, e);
        if (!status) status = sound_write_wav(sound, name, e);
        if (!status && !generation->args->quiet) message_note("sound: %s", name);
    }
    sound_free(sound);
    return status;
}

static int save_image(struct generation *generation, const struct sluice_image *image,
                      struct sluice_error *e) {
    char name[PATH_MAX];
    const char *pattern = output_pattern(generation->args, image->frames);
    bool is_frames = output_is_frames(pattern, image->frames), silent = generation->args->no_metadata;
    /* A latent file may hold more images than planned; further numbers give these images distinct names. */
    int n = image->index < generation->n_images ? generation->n_images : image->index + 1;
    struct output_item item = {image->index + 1, n, generation->seed, image->frames,
                               is_frames ? image->frame + 1 : 0};
    int status = output_name(pattern, &item, name, e);
    if (status) return status;
    char *text = silent ? NULL : parameters_text(generation->args, &generation->request, image);
    if (!text && !silent) return fail(e, SLUICE_MEMORY, "no memory for the image's metadata");
    const struct picture_content content = {image, text, output_quality(generation)};
    status = is_frames                      ? frames_put(&generation->frames, pattern, item, &content, e)
             : video_has_extension(pattern) ? put_video(generation, name, image, &content, e)
                                            : picture_write(name, &content, e);
    free(text);
    if (status || image->frame + 1 < image->frames) return status;
    status = finish_sound(generation, image->index, pattern, item, e);
    if (status) return status;
    generation->n_written++;
    item.frame = is_frames;
    if (!generation->args->quiet && print_written(generation, item, image, e)) return e->code;
    if (generation->n_written >= generation->n_images) progress_finish(&generation->progress);
    return SLUICE_OK;
}

/* Callback of the library for a finished image. Stores the first error and cancels the run. */
static void on_image(void *user, const struct sluice_image *image) {
    struct generation *generation = user;
    if (!generation->failure.code && save_image(generation, image, &generation->failure))
        sluice_cancel(generation->session);
}

/* Callback of the library for the sound of a video, which comes before the video's frames. */
static void on_sound(void *user, const struct sluice_sound *sound) {
    struct generation *generation = user;
    struct sluice_error *failure = &generation->failure;
    if (!failure->code && sound_copy(&generation->sounds[sound->index], sound, failure))
        sluice_cancel(generation->session);
}

/* Callback of the library for a preview image. A failure prints one warning and does not end the run. */
static void on_preview(void *user, const struct sluice_preview *preview) {
    struct generation *generation = user;
    struct previews *previews = &generation->previews;
    const struct args *args = generation->args;
    struct sluice_image image = {.struct_size = sizeof image,
                                 .width = preview->width,
                                 .height = preview->height,
                                 .rgb = preview->rgb,
                                 .frames = 1,
                                 .alpha = preview->alpha};
    struct output_item item = {preview->index + 1, generation->n_images, generation->seed, 1, 0};
    struct sluice_error e = {0};
    char line[1024], name[PATH_MAX];
    if (!preview->index && uses_terminal(args)) terminal_show(&previews->terminal, preview);
    if (!uses_file(args) || previews->failed) return;
    int status = output_name(previews_pattern(args), &item, name, &e);
    if (!status) status = picture_write(name, &(struct picture_content){&image, NULL, PICTURE_QUALITY}, &e);
    if (!status && !previews->announced && !args->quiet) message_note("preview file: %s", name);
    previews->announced = previews->announced || !status;
    previews->failed = status;
    if (status) message_note("warning: cannot write previews: %s", sluice_error_line(&e, line, sizeof line));
}

/* ---- a run ---- */

/* True if the library will pass a sound for each video (on_sound). */
static bool makes_sound(const struct generation *generation) {
    return sluice_model_has_sound(generation->model) && !generation->args->no_audio && !generation->latent &&
           !generation->upscales;
}

/* Counts the memory of encoding the output and of showing previews, equal on all terminals. */
static void count_memory(struct generation *generation) {
    const struct args *args = generation->args;
    bool alpha = generation->upscales ? generation->files.init.read_rgba_rows != NULL
                                      : sluice_model_has_alpha(generation->model);
    output_count_memory(args, generation->n_frames, alpha, makes_sound(generation), &generation->request);
    if (args->preview) generation->request.caller_bytes += TERMINAL_BYTES;
}

static int check_names(const struct generation *generation, struct sluice_error *e) {
    const struct args *args = generation->args;
    int status = output_check(args, all_images(generation), e);
    return status || !args->preview ? status : previews_check(args, all_images(generation), e);
}

int generation_open(struct generation *generation, struct sluice_error *e) {
    const struct args *args = generation->args;
    struct sluice_session_options options = {.struct_size = sizeof options,
                                             .device = args->device,
                                             .threads = args->threads,
                                             .on_log = on_log,
                                             .on_progress = on_progress,
                                             .on_image = on_image,
                                             .on_preview = on_preview,
                                             .on_sound = on_sound,
                                             .user = generation,
                                             .prompt_cache = args->prompt_cache,
                                             .plans_only = args->command->bit == PLAN};
    struct sluice_model_options from = args->model;
    from.decodes_only = generation->latent != NULL;
    from.latent = generation->latent;
    from.dimensions = args->dimensions;
    from.max_ram_bytes = args->max_ram_bytes;
    int status = request_read_files(args, &generation->files, e);
    if (!status) status = sluice_model_open(&from, &generation->model, e);
    if (!status) status = sluice_session_open(generation->model, &options, &generation->session, e);
    if (status) return status;
    /* `upscale` keeps the alpha of transparent images. Opaque images are read as RGB. */
    if (generation->upscales && !(generation->files.init_notes & PICTURE_TRANSPARENT))
        generation->files.init.read_rgba_rows = NULL;
    if (!generation->upscales) request_note_images(args, &generation->files, generation->model);
    generation->request.struct_size = sizeof generation->request;
    request_fill(&generation->request, generation->model, args, generation->seed, &generation->files);
    generation->n_frames = generation->request.frames > 1 ? generation->request.frames : 1;
    count_memory(generation);
    if (output_check_size(args, &generation->request, e)) return e->code;
    request_warn(&generation->request, args);
    outfile_set_library_path(args->save_latent);
    interrupt_watch(generation->session);
    return SLUICE_OK;
}

void generation_close(struct generation *generation) {
    video_abandon(generation->video);
    frames_abandon(&generation->frames);
    for (int i = 0; i < SLUICE_BATCH_MAX; i++) sound_free(&generation->sounds[i]);
    interrupt_watch(NULL);
    outfile_set_library_path(NULL);
    sluice_session_close(generation->session);
    sluice_model_close(generation->model);
    request_free_files(&generation->files);
}

/* Reads from the plan the number of images of a latent and the size of a video; prints the plan with -v. */
static int query_plan(struct generation *generation, struct sluice_error *e) {
    const struct args *args = generation->args;
    struct sluice_plan plan = {.struct_size = sizeof plan};
    char *json = NULL;
    bool fits, is_video = !args->no_decode && video_has_extension(output_pattern(args, generation->n_frames));
    generation->progress.are_videos = generation->n_frames > 1;
    bool enlarges = generation->upscales || generation->request.upscale;
    if (!generation->latent && !args->verbose && !is_video && !enlarges) return SLUICE_OK;
    generation->unlogged = true; /* the run logs the same */
    int status =
        sluice_plan_query(generation->session, &generation->request, generation->latent, &json, &fits, e);
    generation->unlogged = false;
    if (!status) status = sluice_plan_summary(generation->session, &plan, e);
    if (status) return status;
    generation->n_frames = plan.frames;
    generation->width = plan.width;
    generation->height = plan.height;
    if (enlarges && output_check_enlarged(args, plan.width, plan.height, e)) return e->code;
    generation->progress.are_videos = generation->n_frames > 1;
    if (generation->latent) generation->n_images = generation->progress.n_pictures = plan.batch;
    count_memory(generation);
    if (args->verbose) status = plan_table_print(stderr, json, true, e);
    sluice_free(json);
    return status;
}

/* Checks the output names again, once the plan has given the number of frames. */
static int check_outputs(const struct generation *generation, struct sluice_error *e) {
    const struct args *args = generation->args;
    const char *pattern = output_pattern(args, generation->n_frames);
    struct video_settings settings = {.width = generation->width,
                                      .height = generation->height,
                                      .fps = generation->request.fps,
                                      .quality = output_quality(generation),
                                      .has_sound = makes_sound(generation)};
    int status = check_names(generation, e);
    if (status || args->no_decode) return status;
    bool is_video = video_has_extension(pattern), is_fallback;
    if (is_video && !settings.fps)
        return fail_value(e, "--output", pattern,
                          "--fps N too (this model has no default frame rate), or image files");
    if (is_video) status = video_check_settings(pattern, &settings, e);
    if (args->quality && !picture_takes_quality(pattern) && !video_takes_quality(pattern))
        message_note("warning: --quality is ignored: %s",
                     is_video ? "GIF has no quality setting" : "PNG is lossless");
    if (!is_video && sluice_model_has_alpha(generation->model) && !picture_keeps_alpha(pattern))
        message_note("warning: %s: JPEG has no transparency, so the image is laid over white", pattern);
    if (args->fps && !is_video && generation->n_frames == 1)
        return fail_value(e, "--fps", "an image", "a video output: a video model and --frames above 1");
    if (args->fps && !is_video && !sluice_model_reads_fps(generation->model))
        message_note("warning: --fps is ignored: the frames are written as images");
    const char *encoder = is_video && !status ? video_encoder(pattern, &is_fallback) : NULL;
    if (encoder && is_fallback)
        message_note("warning: %s is written with the encoder %s: this FFmpeg lacks the preferred one",
                     pattern, encoder);
    return status;
}

static int run_session(struct generation *generation, struct sluice_error *e) {
    if (interrupt_pending()) return interrupt_error(e);
    generation->has_run = true;
    int status =
        generation->upscales
            ? sluice_upscale(generation->session, generation->request.init_image, &generation->request, e)
        : generation->latent ? sluice_decode(generation->session, &generation->request, generation->latent, e)
                             : sluice_run(generation->session, &generation->request, e);
    if (status || generation->failure.code) message_live_end();
    if (!status) progress_finish(&generation->progress);
    if (!generation->failure.code) return status;
    *e = generation->failure;
    return e->code;
}

/* Runs generate, decode or upscale, with report and cleanup. latent: file for decode; NULL for the others. */
static int generation_run(const struct args *args, const char *latent, struct sluice_error *e) {
    struct generation generation = {.args = args,
                                    .latent = latent,
                                    .upscales = args->command->bit == UPSCALE,
                                    .started = progress_clock()};
    generation.n_images = args->batch ? args->batch : 1;
    generation.n_frames = args->frames;
    generation.seed = args->seed.value;
    /* The name of --report is checked first, because every later failure writes the report. */
    if (output_check_report(args, all_images(&generation), e)) return e->code;
    interrupt_gracefully();
    progress_start(&generation.progress, args->quiet || args->no_progress, generation.n_images);
    int status = request_check(args, e);
    if (!status && args->no_decode && !args->save_latent && !args->save_audio_latent && !args->dump &&
        !args->report && !args->preview)
        status = fail(e, SLUICE_USAGE,
                      "--no-decode alone has no result" WHERE "--no-decode" EXPECTED
                      "--save-latent FILE too (or --dump, --report or --preview)");
    if (!status) status = request_seed(args, &generation.seed, e);
    if (!status) status = check_names(&generation, e);
    if (!status && !args->quiet) devices_note(args->device);
    if (!status && args->no_decode && args->output && !args->quiet)
        message_note("no image is written: --no-decode");
    if (!status) status = generation_open(&generation, e);
    if (!status) status = query_plan(&generation, e);
    if (!status) status = check_outputs(&generation, e);
    if (!status) output_check_pipes(args, all_images(&generation));
    if (!status) status = run_session(&generation, e);
    double seconds = progress_clock() - generation.started;
    if (!status && !args->quiet)
        summary_print(&(struct summary){.session = generation.session,
                                        .n_pictures = generation.n_written,
                                        .are_videos = generation.n_frames > 1,
                                        .seconds = seconds,
                                        .verbose = args->verbose});
    struct report report = {.name = args->report,
                            .session = generation.has_run ? generation.session : NULL,
                            .seed = generation.seed,
                            .seconds = progress_clock() - generation.started};
    status = report_write(&report, e);
    generation_close(&generation);
    return status;
}

int generate_command(const struct args *args, struct sluice_error *e) {
    return generation_run(args, NULL, e);
}

int decode_command(const struct args *args, struct sluice_error *e) {
    return generation_run(args, args->operands[0], e);
}

int upscale_command(const struct args *args, struct sluice_error *e) {
    struct args with_image = *args;
    with_image.init_image = args->operands[0];
    return generation_run(&with_image, NULL, e);
}
