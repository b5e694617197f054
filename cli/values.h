/* Parse the values of flags: the whole text, or fail with USAGE naming flag, text and accepted values. */
#ifndef SLUICE_CLI_VALUES_H
#define SLUICE_CLI_VALUES_H

#include "cli/args.h"

int value_whole(const struct flag *flag, const char *text, int *out, struct sluice_error *e);
int value_real(const struct flag *flag, const char *text, double *out, struct sluice_error *e);
/* One or two numbers, "3.5" or "4,3"; the second is above 0. */
int value_scales(const struct flag *flag, const char *text, struct scales *out, struct sluice_error *e);
/* A list of at most LAYERS_MAX layers: "7,8,9", also with spaces or, as in stable-diffusion.cpp, brackets. */
int value_layers(const struct flag *flag, const char *text, struct layers *out, struct sluice_error *e);
/* "FILE" or "FILE:0.8". A number after the last colon is the strength, unless a file has the whole text as
 * its name. Allocates the path. */
int value_lora(const struct flag *flag, const char *text, struct sluice_lora *out, struct sluice_error *e);
int value_seed(const struct flag *flag, const char *text, struct seed *out, struct sluice_error *e);
/* A size in bytes: 3G 2.5G 512M 64K (binary units), 123456B, 80% of this machine's memory, a bare number in
 * GiB. At most 2^60 bytes. */
int value_size(const struct flag *flag, const char *text, int64_t *out, struct sluice_error *e);
/* Fails with USAGE: the size is above this machine's memory. */
int value_above_memory(const struct flag *flag, const char *text, struct sluice_error *e);
/* A size of device memory. A percentage (at most 100) is kept, since the device is not open yet. */
int value_device_size(const struct flag *flag, const char *text, struct device_size *out,
                      struct sluice_error *e);
/* A sampler under any name of sampler_names.h. *schedule: schedule in the name, or NULL. */
int value_sampler(const struct flag *flag, const char *text, const char **sampler, const char **schedule,
                  struct sluice_error *e);
int value_schedule(const struct flag *flag, const char *text, const char **out, struct sluice_error *e);
int value_choice(const struct flag *flag, const char *text, struct sluice_error *e);

#endif
