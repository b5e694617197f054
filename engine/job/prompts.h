/* Prompts of a job: LoRA tags, tokens, prompt cache lookup, and the embedding rows that the tokens read. */
#ifndef SLUICE_JOB_PROMPTS_H
#define SLUICE_JOB_PROMPTS_H

#include "engine/job/job.h"

/* Moves <lora:...> tags from the prompts to prompts.tags, if the request names a folder of LoRAs. */
enum status prompts_extract_lora_tags(struct job *job, struct error *e);
/* Encodes the prompts to tokens for every text encoder, looks each prompt up in the prompt cache, and
 * collects the embedding rows that the request reads. Evicts old cache entries to make room for the misses.
 */
enum status prompts_encode(struct job *job, struct error *e);
/* Closes cache files and frees tags, tokens and rows. */
void prompts_close(struct job *job);

/* Writes the position and token grid of each picture in a prompt of the text encoder in this slot; does not
 * set vision_span.rows. */
void prompts_list_vision_spans(const struct job *job, int slot, int prompt,
                               struct vision_span vision_spans[LANE_REFERENCES_MAX]);

/* Where each condition of the recipe is placed in prompt_embeds [rows, columns] or pooled_projections
 * [pooled_columns]: first row and column. rows is 0 if the denoiser reads no prompt_embeds, pooled_columns is
 * 0 if the denoiser reads no pooled_projections. Values that no condition fills are zero. */
struct text_places {
    int32_t row[CONDITIONS_MAX], column[CONDITIONS_MAX];
    int32_t rows, columns, pooled_columns;
};
struct text_places prompts_place_texts(const struct job *job, int prompt);

/* True if the prompt's embedding for the text encoder in this slot comes from the prompt cache. */
bool prompts_hit(const struct job *job, int slot, int prompt);
/* Number of hits over all prompts and encoders. */
int prompts_count_hits(const struct job *job);
/* Copies cached embeddings into the layout's tensors that the encoder would have written. Fails with IO or
 * CHANGED. */
enum status prompts_copy_cached(const struct job *job, int slot, int prompt, struct error *e);
/* Stores the embeddings that an encoder has just written, if cacheable. *e is set if the cache file could not
 * be written. */
void prompts_store(const struct job *job, int slot, int prompt, struct error *e);

#endif
