/* Writes videos: MP4, WebM or GIF by extension, frame by frame, with FFmpeg's libraries. The libraries are
 * loaded only when a video is written: with their hundred dependencies they take 25 MiB and 20 to 30 ms
 * (measured on Debian 12, FFmpeg 5.1). */
#ifndef SLUICE_CLI_VIDEO_H
#define SLUICE_CLI_VIDEO_H

#include "cli/sound.h"
#include "engine/sluice.h"

#include <stdbool.h>

struct video_settings {
    int width, height;
    int fps;                   /* frames per second */
    int quality;               /* video quality, 1 to 100; GIF ignores it */
    const char *parameters;    /* UTF-8 text for the file's comment; NULL: none */
    const struct sound *sound; /* video_open: the sound to write as a track, read at once; NULL: none */
    bool has_sound;            /* video_check_settings: the video will have a sound track */
};

/* True if the name has the extension of a video format, even if this build cannot write it. */
bool video_has_extension(const char *name);
bool video_takes_quality(const char *name);
/* True if files of this name can have a sound track. */
bool video_takes_sound(const char *name);
/* USAGE if no video with the extension of the given name can be written: the program was built without
 * FFmpeg, or FFmpeg is not installed or lacks the encoder. Loads FFmpeg. */
int video_check_name(const char *name, struct sluice_error *e);
/* USAGE if the encoder or the format refuses the settings. Encodes nothing. The name must have passed
 * video_check_name. */
int video_check_settings(const char *name, const struct video_settings *settings, struct sluice_error *e);
/* FFmpeg's name of the encoder for the given file name. *is_fallback: the preferred encoder is not available.
 */
const char *video_encoder(const char *name, bool *is_fallback);
/* A video file that is being written; one at a time. */
struct video;

/* Creates the video file. Exit code 6 if it cannot be written. */
int video_open(const char *name, const struct video_settings *settings, struct video **video,
               struct sluice_error *e);
/* Adds the next frame: packed rows of RGB triples. After failure only video_abandon may follow. */
int video_put(struct video *video, const uint8_t *rgb, struct sluice_error *e);
/* Completes the file under its name, or removes it on failure. Frees the video in both cases. */
int video_close(struct video *video, struct sluice_error *e);
/* Removes the file and frees the video. NULL is allowed. */
void video_abandon(struct video *video);

/* ---- formats ---- */

struct video_codec {
    const char *name;    /* FFmpeg's name of the encoder */
    const char *options; /* encoder options, "key=value ..." */
    int worst, best;     /* encoder's own setting (crf or quantiser) for --quality 0 and 100 */
    bool quantiser;      /* true: `worst` and `best` are values of global_quality, not of crf */
    bool palette;        /* true: 256 colours per frame, not YUV 4:2:0 */
};

enum { VIDEO_CODECS_MAX = 2 };

struct video_format {
    const char *extension, *muxer;
    const char *options; /* options of FFmpeg's muxer, "key=value ..." */
    int fps_most;
    /* FFmpeg's audio encoder and its bits per second; codec NULL: the format has no sound track. planar: the
     * encoder reads one array per channel, else interleaved samples. */
    struct {
        const char *codec;
        int bits;
        bool planar;
    } sound;
    /* Memory that plans count for writing a video: library_mib for the loaded libraries, and bytes per pixel
     * of a frame while encoding. A video of fewer than frames_held frames needs bytes_a_frame less per pixel
     * for each missing frame. */
    int library_mib, bytes_a_pixel;
    int frames_held, bytes_a_frame;
    struct video_codec codecs[VIDEO_CODECS_MAX]; /* encoders by preference; the first available one is used */
};

/* Returns the video format of a file name, or NULL. */
const struct video_format *video_format_find(const char *name);

#endif
