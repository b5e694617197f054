/* Which videos can be written: see video.h. */
#include "cli/video.h"

#include "cli/video_formats.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Worst and best are so that quality 90, the default, is about what their makers call visually lossless: crf
 * 18 of H.264. */
static const struct video_format formats[] = {
    {".mp4",
     "mp4",
     "",
     1000,
     {{"libx264", "preset=medium rc-lookahead=20", 51, 14, false, false, 0},
      {"mpeg4", "", 31, 1, true, false, 0}}},
    {".webm",
     "webm",
     "",
     1000,
     {{"libvpx-vp9", "deadline=good cpu-used=4 row-mt=1 lag-in-frames=16 b=0", 63, 20, false, false, 0},
      {"libsvtav1", "preset=8", 63, 20, false, false, 0},
      {"libaom-av1", "cpu-used=6 row-mt=1 lag-in-frames=16 b=0", 63, 20, false, false, 0}}},
    /* Readers show what is faster than 50 a second at 10. */
    {".gif", "gif", "loop=0", 50, {{"gif", "", 0, 0, false, true, 0}}},
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

int64_t video_library_bytes(const char *name) {
    return video_format_find(name) ? 0 : 0;
}

int video_bytes_a_pixel(const char *name) {
    const struct video_format *format = video_format_find(name);
    return format ? format->codecs[0].bytes_a_pixel : 0;
}
