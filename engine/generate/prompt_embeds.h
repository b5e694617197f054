/* Prompt embeddings: checks, weights and stores text encoder outputs, or takes them from the prompt cache. */
#ifndef SLUICE_GENERATE_PROMPT_EMBEDS_H
#define SLUICE_GENERATE_PROMPT_EMBEDS_H

#include "engine/generate/running.h"

/* Before the first visit: copies prompt embeddings from the prompt cache to the tensors that the denoiser
 * reads. */
enum status prompt_embeds_from_cache(struct running *r, struct error *e);
/* After a text or vision encoder stage: checks the encoder's output for NaN, applies prompt weights, and
 * stores the output in the prompt cache. Then copies it to the tensors that the denoiser reads. */
enum status prompt_embeds_stage_ended(struct running *r, int stage, struct error *e);

#endif
