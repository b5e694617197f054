/* The key of a prompt cache entry: SHA-256 over everything that its values depend on. */
#ifndef SLUICE_API_PROMPT_CACHE_KEY_H
#define SLUICE_API_PROMPT_CACHE_KEY_H

#include "engine/api/prompt_cache.h"
#include "engine/api/job.h"

/* Computes the key of one prompt for the text encoder in one slot. The key covers: token ids and weights
 * (hence template and tokenizer); the encoder's weights by file identity and tensor positions, because
 * hashing gigabytes takes as long as reading them; adapters; types; the device fingerprint. Not to be called
 * for prompts with pictures among their tokens, nor for sessions without a prompt cache. */
void prompt_cache_key(const struct job *job, int slot, int prompt, uint8_t key[PROMPT_CACHE_KEY_BYTES]);

#endif
