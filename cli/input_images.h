/* The input images of -i, --end-img, --mask, --ref-image and --control. Their headers are read before a
 * model is opened; the library reads the pixels later, and refuses images that the model does not take. */
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

/* Reads the sizes from the headers. Prints a note on transparency and animation, which are ignored. After
 * a failure too, the caller calls input_images_close. */
int input_images_open(const struct args *args, struct input_images *input_images, struct sluice_error *e);
void input_images_close(struct input_images *input_images);
/* Sets the images of the request, which borrows them and the arguments. */
void input_images_fill(const struct input_images *input_images, struct sluice_request *request);

#endif
