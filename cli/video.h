/* Videos out: MP4, WebM or GIF by the name's extension, written while its frames come, with the libraries of
 * FFmpeg. They are loaded when a video is to be written and never before: they and the hundred libraries
 * behind them take 25 MiB and 20 to 30 ms (measured: Debian 12, FFmpeg 5.1), which nothing else should. */
#ifndef SLUICE_CLI_VIDEO_H
#define SLUICE_CLI_VIDEO_H

#include "engine/sluice.h"

#include <stdbool.h>

struct video_settings {
    int width, height;
    int fps;                /* frames a second */
    int quality;            /* 1 to 100; a GIF has none */
    const char *parameters; /* UTF-8, to be stored as the comment; NULL: none */
};

/* Does the name end as videos do that any build writes? */
bool video_has_extension(const char *name);
bool video_takes_quality(const char *name);
/* USAGE where no such video can be written here: the program was built without FFmpeg, it is not there, or
 * has no encoder. Loads it. */
int video_check_name(const char *name, struct sluice_error *e);
/* USAGE where the encoder or the format takes no such video; encodes nothing. For a checked name. */
int video_check_settings(const char *name, const struct video_settings *settings, struct sluice_error *e);
/* What the name's encoder is called, and whether players want another first. */
const char *video_encoder(const char *name, bool *second_best);
/* What is taken while such a video is written, to be counted: by the libraries from when they are loaded, and
 * by the encoder a pixel, of so many frames. */
int64_t video_library_bytes(const char *name);
int video_bytes_a_pixel(const char *name, int frames);

/* One that is being written, one at a time. */
struct video;

/* Exit 6 where it cannot be written. */
int video_open(const char *name, const struct video_settings *settings, struct video **video,
               struct sluice_error *e);
/* The next frame: rows of RGB triples, packed. After a failure only video_abandon may follow. */
int video_put(struct video *video, const uint8_t *rgb, struct sluice_error *e);
/* Ends it and brings it under its name; there whole or not at all. Frees it also on failure. */
int video_close(struct video *video, struct sluice_error *e);
/* NULL is fine. */
void video_abandon(struct video *video);

#endif
