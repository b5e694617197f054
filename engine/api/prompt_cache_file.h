/* Prompt cache on disk (--prompt-cache DIR): FOLDER/KEY.safetensors holds the tensors "text" and "pooled" (if
 * they exist) in f32, and a hash of key and bytes in its metadata. Writing a file either completes or leaves
 * no file. A damaged file counts as a miss and is rewritten. */
#ifndef SLUICE_API_PROMPT_CACHE_FILE_H
#define SLUICE_API_PROMPT_CACHE_FILE_H

#include "engine/api/prompt_cache.h"
#include "loaders/loaders.h"

struct prompt_cache_location {
    struct sys *sys;
    const char *folder;
    const uint8_t *key; /* PROMPT_CACHE_KEY_BYTES bytes */
};

/* Output of one text encoder for one prompt: token rows [T, C], pooled row [1, C]; rank 0: none. */
struct prompt_embeds {
    struct tensor text, pooled;
};

/* Opens the cache file if valid for tensors of the given shapes, after reading and hashing every byte. True:
 * index is open and the caller destroys the index. False: index is empty. */
bool prompt_cache_file_open(const struct prompt_cache_location *place, const struct prompt_embeds *shapes,
                            struct tensor_index *index);
/* Reads the tensors. IO; CHANGED if the file was written to after prompt_cache_file_open. */
enum status prompt_cache_file_read(const struct tensor_index *index, const struct prompt_embeds *to,
                                   struct error *e);
/* Writes the tensors, replacing an existing file. Fails with OUTPUT or MEMORY. */
enum status prompt_cache_file_write(const struct prompt_cache_location *place,
                                    const struct prompt_embeds *tensors, struct error *e);

#endif
