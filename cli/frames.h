/* A video as a picture a frame: written in a folder beside their names, and brought under these when all are
 * there, so that who ends a run half-way leaves none. What killed processes leave of it, leftovers.h clears.
 */
#ifndef SLUICE_CLI_FRAMES_H
#define SLUICE_CLI_FRAMES_H

#include "cli/output.h"
#include "cli/picture_write.h"

struct frames {
    const char *pattern; /* as output_name reads it; NULL: none are being written */
    struct output_of of; /* the clip; its frame is the last that was put */
    int mark;            /* the temporary folder's */
    bool made;           /* the folder that they go to */
    char target[PATH_MAX], temporary[PATH_MAX];
};

/* Puts the next one, of the clip that of says; makes the folder with the first, and all names with the last.
 * Exit 6 and nothing left on failure. */
int frames_put(struct frames *frames, const char *pattern, struct output_of of,
               const struct picture_content *content, struct sluice_error *e);
/* Removes what there is of an unfinished clip. */
void frames_abandon(struct frames *frames);

#endif
