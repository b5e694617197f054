/* Table of video formats and encoders: defined in video.c, read by video_encode.c. */
#ifndef SLUICE_CLI_VIDEO_FORMATS_H
#define SLUICE_CLI_VIDEO_FORMATS_H

#include "cli/video.h"

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
    const char *options; /* muxer options, "key=value ..." */
    int fps_most;
    /* Memory: library_mib for the loaded libraries, and bytes per pixel of a frame while encoding. A video of
     * fewer than frames_held frames needs bytes_a_frame less per pixel for each missing frame. */
    int library_mib, bytes_a_pixel;
    int frames_held, bytes_a_frame;
    struct video_codec codecs[VIDEO_CODECS_MAX]; /* encoders by preference; the first available one is used */
};

/* The format of a file name, or NULL. */
const struct video_format *video_format_find(const char *name);

#endif
