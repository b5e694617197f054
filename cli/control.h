/* --control: a folder of pictures that are the frames of a leading video, in the order of their names,
 * numbers in them as numbers (f-2.png before f-10.png). Other files there are passed over. */
#ifndef SLUICE_CLI_CONTROL_H
#define SLUICE_CLI_CONTROL_H

#include "engine/sluice.h"

/* More are not looked for: no model draws as many. */
enum { CONTROL_FRAMES_MAX = 4096 };

struct control {
    int n;
    struct sluice_picture *frames; /* without readers */
    const struct sluice_picture **list;
    char **names;
};

/* Looks at their heads, for their sizes. Destroyed also after failure. */
int control_open(const char *folder, struct control *control, unsigned *notes, struct sluice_error *e);
void control_destroy(struct control *control);

#endif
