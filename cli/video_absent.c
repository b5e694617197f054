/* Implementation of video.h for builds without FFmpeg: every video is refused by its name. */
#include "cli/video.h"

#include "cli/fail.h"

#include <stddef.h>

static int refuse(const char *name, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "this program was built without FFmpeg and cannot write videos" WHERE "--output" FOUND
                "\"%s\"" EXPECTED "one image per frame: a .png file name or a folder",
                name);
}

int video_check_name(const char *name, struct sluice_error *e) {
    return refuse(name, e);
}

int video_check_settings(const char *name, const struct video_settings *settings, struct sluice_error *e) {
    (void)settings;
    return refuse(name, e);
}

const char *video_encoder(const char *name, bool *is_fallback) {
    (void)name;
    *is_fallback = false;
    return "none";
}

int video_open(const char *name, const struct video_settings *settings, struct video **video,
               struct sluice_error *e) {
    (void)settings;
    *video = NULL;
    return refuse(name, e);
}

int video_put(struct video *video, const uint8_t *rgb, struct sluice_error *e) {
    (void)video;
    (void)rgb;
    return refuse("", e);
}

int video_close(struct video *video, struct sluice_error *e) {
    (void)video;
    return refuse("", e);
}

void video_abandon(struct video *video) {
    (void)video;
}
