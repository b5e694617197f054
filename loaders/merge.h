/* One index over those of several files: shards that an index names, the parts of a GGUF file, and what
 * `convert` is given together. */
#ifndef SLUICE_LOADERS_MERGE_H
#define SLUICE_LOADERS_MERGE_H

#include "loaders/loaders.h"

/* What the parts opened so far hold together; begins as zeros. */
struct index_size {
    int n_entries;
    uint64_t name_bytes;
};

/* Adds a part. LIMIT where all together are beyond what one file may have: asked after each file, many cost
 * no more than one. path: of the whole, for messages. */
enum status index_add_size(struct index_size *size, const struct tensor_index *part, const char *path,
                           struct error *e);
/* Moves the parts' sources and entries into one index, with the first configuration among them; the parts
 * are empty afterwards. DUP: a tensor in two of them. After a failure index_destroy all of them. */
enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e);

#endif
