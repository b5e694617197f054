/* Adapters that a prompt names: <lora:NAME> and <lora:NAME:0.8>, as stable-diffusion.cpp and AUTOMATIC1111's
 * web UI have them. They are no text: encoders see the prompt without them. Where a mark stood between blanks
 * one is left, at an end none. What has no end (>) is text. */
#ifndef SLUICE_OPEN_LORA_MARKS_H
#define SLUICE_OPEN_LORA_MARKS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/sluice.h"

struct lora_mark {
    const char *name;
    double strength; /* 1 where none is said */
};

struct lora_marks {
    char *text;  /* without the marks; NULL: there are none, and the prompt is as it was */
    char *names; /* storage of the marks' names */
    struct lora_mark mark[SLUICE_LORAS_MAX];
    int n;
};

/* what: how messages call the text. USAGE for a mark without a name, with a strength that is no number or out
 * of range, with a name that leads out of a folder, and for too many; MEMORY. To be destroyed also after
 * failure. */
enum status lora_marks_read(struct sys *sys, const char *what, const char *text, struct lora_marks *marks,
                            struct error *e);
void lora_marks_destroy(struct sys *sys, struct lora_marks *marks);

#endif
