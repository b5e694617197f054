/* The key of a conditioning: SHA-256 over all that its values follow from. */
#ifndef SLUICE_API_CONDITIONING_KEY_H
#define SLUICE_API_CONDITIONING_KEY_H

#include "engine/api/conditionings.h"
#include "engine/api/job.h"

/* Of the prompt of that number as the text encoder in that slot sees it. Templates and tokenizers are in it
 * by what they make, the ids and their weights; the encoder's weights by the identity of their files and by
 * what is where in them, for hashing gigabytes takes as long as reading them; the device by what its bits
 * depend on (device_arithmetic). Not for prompts with pictures among their tokens, nor where a session keeps
 * nothing. */
void conditioning_key(const struct job *job, int slot, int prompt, uint8_t key[CONDITIONING_KEY_BYTES]);

#endif
