/* Pictures as PNG: RGB, 8 bit, with a text chunk `parameters`. Needs memory for a few rows, not for the
 * picture. */
#ifndef SLUICE_CLI_PNG_H
#define SLUICE_CLI_PNG_H

#include "engine/sluice.h"

/* Writes the picture under name, or to stdout if name is "-"; exit 6 and no file on failure. parameters is
 * UTF-8: tEXt where Latin-1 can hold it, which more tools read, else iTXt. */
int png_write(const char *name, const struct sluice_image *image, const char *parameters,
              struct sluice_error *e);

#endif
