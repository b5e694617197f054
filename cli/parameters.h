/* Generation parameters stored in image and video files: prompt, negative prompt, settings. */
#ifndef SLUICE_CLI_PARAMETERS_H
#define SLUICE_CLI_PARAMETERS_H

#include "cli/args.h"

/* The parameters in the format of AUTOMATIC1111's web UI (read by its modules/infotext_utils.py), as
 * UTF-8. The caller frees the text; NULL: out of memory. `decode` writes no prompt and sampler settings. */
char *parameters_text(const struct args *args, const struct sluice_request *request,
                      const struct sluice_image *image);

#endif
