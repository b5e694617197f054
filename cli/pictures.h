/* The pictures that flags name: -i, --end-img, --mask, --ref-image and --control. Looked at before a model is
 * opened, read by the library when it needs them. Which of them a model takes is the library's to say. */
#ifndef SLUICE_CLI_PICTURES_H
#define SLUICE_CLI_PICTURES_H

#include "cli/args.h"
#include "cli/control.h"

struct pictures {
    struct sluice_picture init, end, mask, references[STRINGS_MAX]; /* without size where there is none */
    const struct sluice_picture *reference_list[STRINGS_MAX];
    int n_references;
    struct control control;
};

/* Looks at their heads, for their sizes. Says what of them is not used. Closed also after failure. */
int pictures_open(const struct args *args, struct pictures *pictures, struct sluice_error *e);
void pictures_close(struct pictures *pictures);
/* Their part of the request, which borrows them and the arguments. */
void pictures_fill(const struct pictures *pictures, struct sluice_request *request);

#endif
