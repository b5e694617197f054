/* Prompt cache lookup of a job: which prompts are in the session's memory or in a file, and which have to be
 * encoded. Misses become the lanes of their encoder's stage. An encoder without misses has no stage: its
 * weights are neither planned for nor read. */
#ifndef SLUICE_API_PROMPT_CACHE_HITS_H
#define SLUICE_API_PROMPT_CACHE_HITS_H

#include "engine/api/prompt_cache.h"
#include "engine/api/layout.h"

struct prompt_cache_hits {
    /* By slot and prompt: the cached entry in memory, or the open cache file. A prompt without entry and file
     * is a miss. */
    const struct prompt_cache_entry *entry[SLOTS_MAX][PROMPTS_MAX];
    struct tensor_index file[SLOTS_MAX][PROMPTS_MAX];
    uint8_t key[SLOTS_MAX][PROMPTS_MAX][PROMPT_CACHE_KEY_BYTES];
    bool cacheable[SLOTS_MAX]; /* prompts of the encoder in this slot can be cached */
    int n_misses[SLOTS_MAX], misses[SLOTS_MAX][PROMPTS_MAX]; /* prompts to encode, in prompt order */
    bool misses_fit; /* entries for all misses fit the cache's memory limit, together with the job's hits */
    uint64_t peak_bytes; /* planned size of the session's prompt cache after the last text stage */
};

/* Looks up every prompt and evicts old entries to make room for the misses. */
void prompt_cache_find_hits(struct job *job);
/* Bytes of the prompt cache while the job runs, for the plan. */
uint64_t prompt_cache_peak_bytes(const struct job *job);
bool prompt_cache_hit(const struct job *job, int slot, int prompt);
/* Number of hits over all prompts and encoders. */
int prompt_cache_count_hits(const struct job *job);
/* Copies cached embeddings into the layout's tensors that the encoder would have written. Fails with IO or
 * CHANGED. */
enum status prompt_cache_copy(const struct job *job, int slot, int prompt, struct error *e);
/* Stores the embeddings that an encoder has just written, if cacheable. *e is set if the cache file
 * could not be written. */
void prompt_cache_store(const struct job *job, int slot, int prompt, struct error *e);
void prompt_cache_close_hits(struct job *job);

#endif
