/* The key of a prompt cache entry: SHA-256 over everything that its values depend on. */
#ifndef SLUICE_CACHE_PROMPT_CACHE_KEY_H
#define SLUICE_CACHE_PROMPT_CACHE_KEY_H

#include "engine/cache/prompt_cache.h"
#include "engine/cache/session_adapters.h"
#include "engine/open/prompt.h"

/* What the output of a text encoder for one prompt depends on. */
struct prompt_cache_input {
    const char *fingerprint; /* text that identifies the device (device_fingerprint) */
    const struct component *component;
    const struct session_adapters *adapters; /* NULL: none */
    int slot;
    const struct prompt_tokens *tokens;
    int clip_skip;
    enum precision precision;
    enum dtype weights; /* weight type requested by --type; N_DTYPES: the types in the files */
    /* Input of the text encoder whose output this one reads (slot.reads); NULL: none. */
    const struct prompt_cache_input *source;
};

/* Computes the key of one prompt for one text encoder. The key covers: token ids and weights (hence template
 * and tokenizer); the encoder's weights by file identity and tensor positions, because hashing gigabytes
 * takes as long as reading them; adapters; types; the device fingerprint. Not for prompts with image tokens.
 */
void prompt_cache_key(const struct prompt_cache_input *input, uint8_t key[PROMPT_CACHE_KEY_BYTES]);

#endif
