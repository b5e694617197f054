/* Kinds of videos and what encodes them: the table of video.c, which video_encode.c reads. */
#ifndef SLUICE_CLI_VIDEO_FORMATS_H
#define SLUICE_CLI_VIDEO_FORMATS_H

#include "cli/video.h"

/* An encoder as FFmpeg calls it. */
struct video_codec {
    const char *name;
    const char *options; /* "key=value ...", of its own */
    int worst, best;     /* of quality 0 and 100, on its own scale */
    bool quantiser;      /* that scale is of global_quality; else of the option crf */
    bool palette;        /* it takes 256 colours of each frame's own, instead of 4:2:0 */
};

enum { VIDEO_CODECS_MAX = 2 };

struct video_format {
    const char *extension, *muxer;
    const char *options; /* of the muxer */
    int fps_most;
    /* What writing one takes: from when libraries are loaded, and of a frame's pixels while it is encoded. */
    int library_mib, bytes_a_pixel;
    int frames_held,
        bytes_a_frame; /* of the latter so much less for each frame that there is less than these */
    struct video_codec codecs[VIDEO_CODECS_MAX]; /* the first that is there writes it */
};

/* Of a name that ends as one; NULL: none does. */
const struct video_format *video_format_find(const char *name);

#endif
