/* Prompt embeddings: checks, weights, stores and places what the text encoders compute, or copies it from the
 * prompt cache. */
#ifndef SLUICE_GENERATE_PROMPT_EMBEDS_H
#define SLUICE_GENERATE_PROMPT_EMBEDS_H

#include "engine/generate/running.h"

/* Before the first visit: copies the prompt embeddings found in the prompt cache into place. */
enum status prompt_embeds_from_cache(struct running *r, struct error *e);
/* After a text or vision encoder stage: checks the encoder's output for NaN, applies prompt weights, stores
 * the output in the prompt cache and copies it into place. */
enum status prompt_embeds_stage_ended(struct running *r, int stage, struct error *e);

#endif
