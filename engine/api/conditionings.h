/* Conditionings that a session keeps: what a text encoder made of a prompt, in f32, so that the next picture
 * of that prompt begins without the encoder.
 *
 * Invariants: 1. What is kept never takes more than the limit. 2. The list goes from what was used last to
 * what was used longest ago, which makes room first. 3. A key tells all that values follow from
 * (conditioning_key.h), so that values found are to the bit those that would be computed. */
#ifndef SLUICE_API_CONDITIONINGS_H
#define SLUICE_API_CONDITIONINGS_H

#include "engine/base/sys.h"

#include <stdint.h>

enum { CONDITIONING_KEY_BYTES = 32, CONDITIONING_ARITHMETIC_BYTES = 320 };

/* Of one encoder and one prompt. */
struct conditioning {
    struct conditioning *next;
    uint8_t key[CONDITIONING_KEY_BYTES];
    int64_t n_values;
    float values[]; /* its rows of tokens, then its pooled row */
};

struct conditionings {
    struct sys *sys;
    uint64_t limit_bytes, bytes; /* of all that is kept, descriptors too */
    struct conditioning *first;
    /* For other sessions: where they look, and what computes, which is part of the key. folder NULL: nothing
     * is for them; owned, of sys. */
    char *folder;
    char arithmetic[CONDITIONING_ARITHMETIC_BYTES];
};

/* What one takes. */
uint64_t conditioning_bytes(int64_t n_values);
/* The one of that key, which is now the one used last; NULL: it is not kept. It stays until
 * conditionings_keep or conditionings_limit makes room. */
const struct conditioning *conditionings_find(struct conditionings *c,
                                              const uint8_t key[CONDITIONING_KEY_BYTES]);
/* Room for values of that key, which the caller fills, made of what was used longest ago; NULL where it is
 * kept already, is larger than the limit, or there is no memory: that costs time later, and nothing else. */
float *conditionings_keep(struct conditionings *c, const uint8_t key[CONDITIONING_KEY_BYTES],
                          int64_t n_values);
/* Lets go of what was used longest ago until no more than so many bytes are kept; 0: of all. */
void conditionings_shrink(struct conditionings *c, uint64_t bytes);

#endif
