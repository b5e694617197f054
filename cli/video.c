/* Video formats, and the functions of video.h for builds without FFmpeg (else: video_encode.c). */
#include "cli/video.h"

#include "cli/fail.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Video formats. worst and best are chosen so that quality 90, the default, is about visually lossless: crf
 * 18 of H.264. libsvtav1 is not used: it prints to stderr, and closing it without a frame blocks forever
 * (SVT-AV1 1.4). The memory was measured with noise at quality 90 (FFmpeg 5.1, Debian 12), as the peak RAM
 * (VmHWM) of the process minus that of the bare process, in MiB, for 64x48, 256x256, 480x832, 1280x704 and
 * 1024x1024: MP4 32, 44, 89, 155, 175; WebM 48, 61, 109, 166, 181; GIF 25, 26, 30, 35, 37. MP4 of 832x480
 * with 1, 5, 13, 21 and 33 frames: 34, 51, 65, 77, 86. The fallback encoders need less. */
static const struct video_format formats[] = {
    {.extension = ".mp4",
     .muxer = "mp4",
     .options = "",
     .fps_most = 1000,
     .sound = {"aac", 192000, true},
     .library_mib = 39,
     .bytes_a_pixel = 142,
     .frames_held = 27,
     .bytes_a_frame = 4,
     .codecs = {{.name = "libx264", .options = "preset=medium rc-lookahead=20", .worst = 51, .best = 14},
                {.name = "mpeg4", .options = "", .worst = 31, .best = 1, .quantiser = true}}},
    {.extension = ".webm",
     .muxer = "webm",
     .options = "",
     .fps_most = 1000,
     .sound = {"libopus", 128000, false},
     .library_mib = 66,
     .bytes_a_pixel = 121,
     .codecs = {{.name = "libvpx-vp9",
                 .options = "deadline=good cpu-used=4 row-mt=1 lag-in-frames=16 b=0",
                 .worst = 63,
                 .best = 20},
                {.name = "libaom-av1",
                 .options = "cpu-used=6 row-mt=1 lag-in-frames=16 b=0",
                 .worst = 63,
                 .best = 20}}},
    /* Viewers show a GIF of more than 50 fps at 10 fps. */
    {.extension = ".gif",
     .muxer = "gif",
     .options = "loop=0",
     .fps_most = 50,
     .library_mib = 27,
     .bytes_a_pixel = 12,
     .codecs = {{.name = "gif", .options = "", .palette = true}}},
};

const struct video_format *video_format_find(const char *name) {
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');
    for (size_t i = 0; dot && dot > base && i < sizeof formats / sizeof *formats; i++)
        if (strcasecmp(dot, formats[i].extension) == 0) return &formats[i];
    return NULL;
}

bool video_has_extension(const char *name) {
    return video_format_find(name) != NULL;
}

bool video_takes_quality(const char *name) {
    const struct video_format *format = video_format_find(name);
    return format && format->codecs[0].worst != format->codecs[0].best;
}

bool video_takes_sound(const char *name) {
    const struct video_format *format = video_format_find(name);
    return format && format->sound.codec;
}

#ifndef VIDEO_FFMPEG

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

#endif
