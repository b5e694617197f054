/* Prompt cache: the outputs of text encoders for recent prompts, in f32, in memory and in files. A repeated
 * prompt skips its text encoder.
 *
 * Files (--prompt-cache DIR): DIR/KEY.safetensors holds the tensors "text" and "pooled" (if they exist),
 * and a hash of key and bytes in its metadata. Writing a file either completes or leaves no file. A damaged
 * file counts as a miss and is rewritten.
 *
 * Invariants of the entries in memory: 1. Entries never take more than limit_bytes. 2. The list is ordered by
 * last use; the least recently used entry is evicted first. 3. The key covers everything that the values
 * depend on (prompt_cache_key.h), so cached values equal computed ones bit for bit. */
#ifndef SLUICE_CACHE_PROMPT_CACHE_H
#define SLUICE_CACHE_PROMPT_CACHE_H

#include "loaders/loaders.h"

enum { PROMPT_CACHE_KEY_BYTES = 32, PROMPT_CACHE_DEVICE_BYTES = 320 };

/* The output of one encoder for one prompt. */
struct prompt_cache_entry {
    struct prompt_cache_entry *next;
    uint8_t key[PROMPT_CACHE_KEY_BYTES];
    int64_t n_values;
    float values[]; /* token rows of the encoder's output, then the pooled row */
};

struct prompt_cache {
    struct sys *sys;
    uint64_t limit_bytes;
    uint64_t bytes; /* host memory of all entries in bytes, including entry structs */
    struct prompt_cache_entry *first;
    /* For prompt cache files. folder: owned, allocated by sys; NULL: no files. fingerprint: text that
     * identifies the device (device_fingerprint), part of each key. */
    char *folder;
    char fingerprint[PROMPT_CACHE_DEVICE_BYTES];
};

/* Output of one text encoder for one prompt: token rows [T, C], pooled row [1, C]; rank 0: none. */
struct prompt_embeds {
    struct tensor text, pooled;
};

uint64_t prompt_cache_entry_bytes(int64_t n_values);
/* Returns the entry with the key and marks it as most recently used; NULL: a miss. Valid until
 * prompt_cache_insert or prompt_cache_evict. */
const struct prompt_cache_entry *prompt_cache_get(struct prompt_cache *c,
                                                  const uint8_t key[PROMPT_CACHE_KEY_BYTES]);
/* Adds a prompt cache entry, evicting older entries as needed; the caller fills the returned values. NULL:
 * the entry already exists, is larger than the limit, or memory is short; the caller then continues without a
 * cache entry. */
float *prompt_cache_insert(struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                           int64_t n_values);
/* Evicts least recently used entries until the rest take at most `bytes` bytes; 0 evicts all entries. */
void prompt_cache_evict(struct prompt_cache *c, uint64_t bytes);

/* Opens the prompt cache file of this key if it is valid for tensors of the given shapes, after reading and
 * hashing every byte. True: index is open and the caller destroys the index. False: index is empty. */
bool prompt_cache_file_open(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                            const struct prompt_embeds *shapes, struct tensor_index *index);
/* Reads a prompt's embeddings from an open prompt cache file. Fails with IO, or with CHANGED if the file was
 * written to after prompt_cache_file_open. */
enum status prompt_cache_file_read(const struct tensor_index *index, const struct prompt_embeds *to,
                                   struct error *e);
/* Writes a prompt's embeddings to its prompt cache file, replacing an existing file. Fails with OUTPUT or
 * MEMORY. */
enum status prompt_cache_file_write(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                                    const struct prompt_embeds *tensors, struct error *e);

#endif
