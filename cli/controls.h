/* Control images (ControlNet) on the command line. `--control-net PATH` opens a network, and each following
 * --control-image is a control of it. The other --control flags and --canny change the latest control, or
 * start the first control of a network. Images in front of the first network belong to it. */
#ifndef SLUICE_CLI_CONTROLS_H
#define SLUICE_CLI_CONTROLS_H

#include "cli/args.h"

/* Stores a flag of kind FLAG_CONTROL_*. Fails with USAGE. */
int controls_store(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e);
/* Value i of such a flag as typed, counted from 0; NULL after the last. */
const char *controls_value(const struct args *args, const struct flag *flag, int i);
/* Refuses networks without a control; `plan` without prompt assumes one. Call when all flags are read. */
int controls_check(const struct args *args, struct sluice_error *e);

#endif
