/* The pictures that flags name, read before a model is opened: -i, --mask and --ref-image. Which of them a
 * model takes is the library's to say. */
#ifndef SLUICE_CLI_PICTURES_H
#define SLUICE_CLI_PICTURES_H

#include "cli/args.h"

struct pictures {
    struct sluice_picture init, mask, references[STRINGS_MAX]; /* without pixels where there is none */
    const struct sluice_picture *reference_list[STRINGS_MAX];
    int n_references;
};

/* Reads them; freed with pictures_free also after failure. Says what of them is not used. */
int pictures_read(const struct args *args, struct pictures *pictures, struct sluice_error *e);
void pictures_free(struct pictures *pictures);
/* Their part of the request, which borrows them. */
void pictures_fill(const struct pictures *pictures, struct sluice_request *request);

#endif
