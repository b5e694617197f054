/* Names of samplers and noise schedules: those of the flags, and their spellings in ComfyUI and in the
 * infotext of AUTOMATIC1111's web UI and Civitai ("DPM++ 2M Karras"). */
#ifndef SLUICE_CLI_SAMPLER_NAMES_H
#define SLUICE_CLI_SAMPLER_NAMES_H

#include <stddef.h>

/* The value of --sampler for a name as any of these programs writes it; case, spaces, _ and - are ignored.
 * Sets *schedule to the --scheduler value of a schedule at its end, or NULL. NULL for an unknown name. */
const char *sampler_parse(const char *text, const char **schedule);
/* The value of --scheduler for a schedule's name; NULL for an unknown one. */
const char *schedule_parse(const char *text);

/* All values of --sampler, or of --scheduler, separated by commas; returns out. */
char *sampler_list(char *out, size_t out_bytes);
char *schedule_list(char *out, size_t out_bytes);

/* The web UI's name of a sampler or schedule; name itself if it has none. */
const char *sampler_webui_name(const char *name);
const char *schedule_webui_name(const char *name);

#endif
