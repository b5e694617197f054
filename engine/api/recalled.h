/* What of a job's texts need not be encoded: the session keeps it. The others are the lanes of their
 * encoder's stage; an encoder without lanes has no stage, is not planned for, and is not read. */
#ifndef SLUICE_API_RECALLED_H
#define SLUICE_API_RECALLED_H

#include "engine/api/conditionings.h"
#include "engine/api/layout.h"

struct recalled {
    /* By slot and prompt; found: NULL where it is to be computed. */
    const struct conditioning *found[SLOTS_MAX][PROMPTS_MAX];
    uint8_t key[SLOTS_MAX][PROMPTS_MAX][CONDITIONING_KEY_BYTES]; /* of those that the session may keep */
    int n_lacking[SLOTS_MAX], lacking[SLOTS_MAX][PROMPTS_MAX];   /* prompts to be computed, in their order */
    bool keeps[SLOTS_MAX];                                       /* what is computed there is kept */
    uint64_t kept_bytes; /* of the session's memory once the last text has been computed */
};

/* Looks every prompt's tokens up, and makes room for what is to be kept. */
void recalled_find(struct job *job);
/* Of our allocator while the job runs. */
uint64_t recalled_bytes(const struct job *job);
/* Once the layout has memory: writes what was found as its encoder would have. False: nothing was. */
bool recalled_copy(const struct job *job, int slot, int prompt);
/* Keeps what an encoder has just written, if it is to be kept. */
void recalled_keep(const struct job *job, int slot, int prompt);

#endif
