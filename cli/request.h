/* Converts flags to a request of the library. Combinations that cannot work are errors. */
#ifndef SLUICE_CLI_REQUEST_H
#define SLUICE_CLI_REQUEST_H

#include "cli/args.h"
#include "cli/input_images.h"

/* Refuses combinations of flags that no model supports: USAGE. */
int request_check(const struct args *args, struct sluice_error *e);
int request_seed(const struct args *args, uint64_t *seed, struct sluice_error *e);
/* Contents of the files of --plan and --rates (NULL without the flag), and the opened input images. */
struct request_files {
    char *plan, *rates;
    struct input_images input_images;
};

/* Reads the files. Free with request_free_files, also after failure. */
int request_read_files(const struct args *args, struct request_files *files, struct sluice_error *e);
void request_free_files(struct request_files *files);
/* Fills the request with the model's defaults, then with the flags. Borrows files. */
void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const struct request_files *files);
/* Warns about parts of the prompts that have no effect in this request. */
void request_warn(const struct sluice_request *request, const struct args *args);

#endif
