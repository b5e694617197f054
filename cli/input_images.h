/* The input images of the flags -i, --end-img, --mask, --ref-image and --control. Their headers are read
 * before a model is opened; the library reads the pixels when it needs them, and refuses images that the
 * model does not take. */
#ifndef SLUICE_CLI_INPUT_IMAGES_H
#define SLUICE_CLI_INPUT_IMAGES_H

#include "cli/args.h"
#include "cli/control.h"

struct input_images {
    struct sluice_picture init, end, mask, references[STRINGS_MAX]; /* width 0: no such flag */
    const struct sluice_picture *reference_list[STRINGS_MAX];
    int n_references;
    struct control control;
};

/* Reads the headers for sizes. Prints a note on transparency and animation, which are ignored. Close also
 * after failure. */
int input_images_open(const struct args *args, struct input_images *input_images, struct sluice_error *e);
void input_images_close(struct input_images *input_images);
/* Sets the images of the request, which borrows them and the arguments. */
void input_images_fill(const struct input_images *input_images, struct sluice_request *request);

#endif
