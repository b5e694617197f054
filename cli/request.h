/* From flags to a request: what this build cannot honour is refused here, never ignored. */
#ifndef SLUICE_CLI_REQUEST_H
#define SLUICE_CLI_REQUEST_H

#include "cli/args.h"
#include "cli/pictures.h"

/* Flags and combinations that no model of this build can honour: exit 2. */
int request_check(const struct args *args, struct sluice_error *e);
/* The seed as given, or drawn. */
int request_seed(const struct args *args, uint64_t *seed, struct sluice_error *e);
/* What files the flags name hold; NULL without the flag. */
struct request_files {
    char *plan, *rates;
    struct pictures pictures;
};

/* Reads them; freed with request_free_files also after failure. */
int request_read_files(const struct args *args, struct request_files *files, struct sluice_error *e);
void request_free_files(struct request_files *files);
/* The model's defaults, then what was given. Borrows files. */
void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const struct request_files *files);
/* Says what of the texts means nothing to this request. */
void request_warn(const struct sluice_request *request, const struct args *args);

#endif
