/* The text that tools read from a picture: prompt, negative prompt, settings. */
#ifndef SLUICE_CLI_PARAMETERS_H
#define SLUICE_CLI_PARAMETERS_H

#include "cli/args.h"

/* Text in the layout of AUTOMATIC1111's webui (modules/infotext_utils.py reads it), UTF-8, to be freed; NULL
 * without memory. A decoded latent has no prompt and steps: only what is known is written. */
char *parameters_text(const struct args *args, const struct sluice_request *request,
                      const struct sluice_image *image);

#endif
