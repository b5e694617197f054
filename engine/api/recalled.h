/* What of a job's texts need not be encoded: the session keeps it, or a file has it. The others are the lanes
 * of their encoder's stage; an encoder without lanes has no stage, is not planned for, and is not read. */
#ifndef SLUICE_API_RECALLED_H
#define SLUICE_API_RECALLED_H

#include "engine/api/conditionings.h"
#include "engine/api/layout.h"

struct recalled {
    /* By slot and prompt: what the session keeps, or an open file; where both are empty it is to be computed.
     */
    const struct conditioning *found[SLOTS_MAX][PROMPTS_MAX];
    struct tensor_index file[SLOTS_MAX][PROMPTS_MAX];
    uint8_t key[SLOTS_MAX][PROMPTS_MAX][CONDITIONING_KEY_BYTES];
    bool has_key[SLOTS_MAX];                                   /* of its prompts */
    int n_lacking[SLOTS_MAX], lacking[SLOTS_MAX][PROMPTS_MAX]; /* prompts to be computed, in their order */
    bool keeps;                                                /* the session has room for what is computed */
    uint64_t kept_bytes; /* of the session's memory once the last text has been computed */
};

/* Looks every prompt's tokens up, and makes room for what is to be kept. */
void recalled_find(struct job *job);
/* Of our allocator while the job runs. */
uint64_t recalled_bytes(const struct job *job);
/* Is it there, so that it need not be computed? */
bool recalled_has(const struct job *job, int slot, int prompt);
/* How many are, of all prompts for all encoders. */
int recalled_count(const struct job *job);
/* Once the layout has memory: writes what was found as its encoder would have. IO, CHANGED. */
enum status recalled_copy(const struct job *job, int slot, int prompt, struct error *e);
/* What an encoder has just written is kept, if it is to be. *e: why no file of it could be written. */
void recalled_keep(const struct job *job, int slot, int prompt, struct error *e);
void recalled_close(struct job *job);

#endif
