/* The LoRA files of a request, from --lora and <lora:NAME:STRENGTH> in prompts: each file is listed once,
 * with the sum of its strengths. */
#ifndef SLUICE_API_LORAS_H
#define SLUICE_API_LORAS_H

#include "engine/base/source.h"
#include "engine/open/prompt_syntax.h"

struct lora {
    char *path;
    struct file_identity identity;
    struct file_identity config; /* identity of the adapter_config.json in the file's folder; all 0: none */
    double strength;             /* sum of the strengths with which the request names the file; not 0 */
};

struct loras {
    struct sys *sys;
    struct lora at[SLUICE_LORAS_MAX]; /* LoRA files, in the order in which the request first names them */
    int n;
};

/* Lists the LoRA files that the request and the tags of n prompts name. Opens each file to identify it, then
 * closes it. Drops files whose strengths sum to 0. Fails with MISSING or IO for a file, USAGE for too many
 * files, or MEMORY. The caller destroys the list, also after failure. */
enum status loras_list(struct sys *sys, const struct sluice_request *request, const struct lora_tags *tags,
                       int n, struct loras *loras, struct error *e);
void loras_destroy(struct loras *loras);

/* Copies a file's name without folder and ".safetensors"; freed with sys->release. NULL: no memory. */
char *lora_name(struct sys *sys, const char *path);

#endif
