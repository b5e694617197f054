/* Which adapters a request names, by its own list and in its prompts: each file once, with what counts of it
 * in all. */
#ifndef SLUICE_API_LORAS_H
#define SLUICE_API_LORAS_H

#include "engine/base/source.h"
#include "engine/open/lora_marks.h"

struct lora {
    char *path;
    struct file_identity identity;
    struct file_identity config; /* of adapter_config_path(); all 0: there is none */
    double strength;             /* of all that name it; not 0 */
};

struct loras {
    struct sys *sys;
    struct lora at[SLUICE_LORAS_MAX]; /* in the order in which they are named first */
    int n;
};

/* marks: of n texts. Opens each file to see which it is, and closes it. What counts nothing in all is left
 * out. MISSING, IO; USAGE for too many; MEMORY. To be destroyed also after failure. */
enum status loras_list(struct sys *sys, const struct sluice_request *request, const struct lora_marks *marks,
                       int n, struct loras *loras, struct error *e);
void loras_destroy(struct loras *loras);

/* A file's own name, without its folder and ".safetensors"; freed with sys->release. NULL: no memory. */
char *lora_name(struct sys *sys, const char *path);

#endif
