/* LoRA tags in prompts, <lora:NAME> and <lora:NAME:0.8>, as in stable-diffusion.cpp and AUTOMATIC1111's web
 * UI. Tags are removed before the prompt is encoded, together with the blanks on one side. A tag without
 * closing ">" is text. */
#ifndef SLUICE_OPEN_LORA_TAGS_H
#define SLUICE_OPEN_LORA_TAGS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/sluice.h"

struct lora_tag {
    const char *name;
    double strength; /* 1 by default */
};

struct lora_tags {
    char *text;  /* the prompt without tags; NULL: the prompt has no tags */
    char *names; /* storage of the tags' names */
    struct lora_tag tag[SLUICE_LORAS_MAX];
    int n;
};

/* Parses the tags of a text. what: the text in messages ("negative prompt"). USAGE: a tag without name, with
 * an invalid strength, or with a name outside the folder; too many tags. Fails with MEMORY. Destroy tags in
 * any case. */
enum status lora_tags_read(struct sys *sys, const char *what, const char *text, struct lora_tags *tags,
                           struct error *e);
void lora_tags_destroy(struct sys *sys, struct lora_tags *tags);

#endif
