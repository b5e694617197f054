/* Values of flags, from text. Each takes the whole text or refuses it, naming flag, found and expected (exit
 * 2). */
#ifndef SLUICE_CLI_VALUES_H
#define SLUICE_CLI_VALUES_H

#include "cli/args.h"

int value_whole(const struct flag *flag, const char *text, int *out, struct sluice_error *e);
int value_real(const struct flag *flag, const char *text, double *out, struct sluice_error *e);
/* "3.5" or "4,3"; the second above 0. */
int value_scales(const struct flag *flag, const char *text, struct scales *out, struct sluice_error *e);
/* "7,8,9", also with blanks, and in brackets as stable-diffusion.cpp has it; at most LAYERS_MAX of them. */
int value_layers(const struct flag *flag, const char *text, struct layers *out, struct sluice_error *e);
/* "FILE" or "FILE:0.8"; a path may have colons of its own: the last one counts, where a number is behind it.
 * The path is allocated. */
int value_lora(const struct flag *flag, const char *text, struct sluice_lora *out, struct sluice_error *e);
int value_seed(const struct flag *flag, const char *text, struct seed *out, struct sluice_error *e);
/* 3G 2.5G 512M 64K (binary units), 123456B, 80% of the machine's memory, a bare number in GiB. Not above the
 * machine. */
int value_size(const struct flag *flag, const char *text, int64_t *out, struct sluice_error *e);
/* The same without an upper bound; a percent stays one, at most 100. */
int value_device_size(const struct flag *flag, const char *text, struct device_size *out,
                      struct sluice_error *e);
int value_choice(const struct flag *flag, const char *text, struct sluice_error *e);

#endif
