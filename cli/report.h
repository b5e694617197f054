/* Records of a run: the report file (--report), and the generation parameters in images and videos. */
#ifndef SLUICE_CLI_REPORT_H
#define SLUICE_CLI_REPORT_H

#include "cli/args.h"

struct report {
    const char *name;        /* path of the report file (--report); NULL: no report */
    sluice_session *session; /* session whose most recent run is reported; NULL: no run took place */
    const char *plan_json;   /* JSON of the plan, for a report without a run; or NULL */
    uint64_t seed;
    double seconds;
};

/* Writes the report of a program that ends with *error (code 0: success). If the report cannot be written and
 * *error is empty, *error becomes that failure. Returns error->code. */
int report_write(const struct report *report, struct sluice_error *error);

/* The prompts and settings in the format of AUTOMATIC1111's web UI (read by its modules/infotext_utils.py),
 * as UTF-8. The caller frees the text; NULL: out of memory. `decode` writes no prompt and sampler settings.
 */
char *parameters_text(const struct args *args, const struct sluice_request *request,
                      const struct sluice_image *image);

#endif
