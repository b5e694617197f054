/* Writes a video as one image per frame. The frames are written to a temporary folder and renamed when all
 * exist, so that a cancelled run leaves none. leftovers.h removes the folders of killed processes. */
#ifndef SLUICE_CLI_FRAMES_H
#define SLUICE_CLI_FRAMES_H

#include "cli/output.h"
#include "cli/picture.h"

struct frames {
    const char *pattern;     /* file name pattern, as in output_name; NULL: no video is being written */
    struct output_item item; /* the video; item.frame is the last frame written */
    int lock_file;           /* lock file of the temporary folder */
    bool made;               /* this run created the target folder */
    char target[PATH_MAX], temporary[PATH_MAX];
};

/* Writes the next frame of a video. The first call creates the folder, the last one renames all frames. On
 * failure removes all frames and returns exit code 6. */
int frames_put(struct frames *frames, const char *pattern, struct output_item item,
               const struct picture_content *content, struct sluice_error *e);
/* Removes the frames of an unfinished video. */
void frames_abandon(struct frames *frames);

#endif
