/* --control: the control video of VACE, a folder with one image per frame. Frames are sorted by name, with
 * numbers compared as numbers (f-2.png before f-10.png). Files without an image extension are ignored. */
#ifndef SLUICE_CLI_CONTROL_H
#define SLUICE_CLI_CONTROL_H

#include "engine/sluice.h"

/* Maximum frames of a control video; no model generates more. */
enum { CONTROL_FRAMES_MAX = 4096 };

struct control {
    int n;
    struct sluice_picture *frames; /* frames with their sizes; input_images.c adds the read callbacks */
    const struct sluice_picture **list;
    char **names;
};

/* Reads the image headers of all frames. Adds the ignored properties of the images to *notes. Call
 * control_destroy in any case. */
int control_open(const char *folder, struct control *control, unsigned *notes, struct sluice_error *e);
void control_destroy(struct control *control);

#endif
