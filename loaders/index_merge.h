/* Merges the indexes of several files into one: shards, parts of a GGUF file, several inputs of `convert`. */
#ifndef SLUICE_LOADERS_INDEX_MERGE_H
#define SLUICE_LOADERS_INDEX_MERGE_H

#include "loaders/loaders.h"

/* Number of entries, and bytes of their names, of all parts added so far; initially zeros. */
struct index_size {
    int n_entries;
    uint64_t name_bytes;
};

/* Adds a part. LIMIT if the total exceeds the limits of one file; call after opening each file, so that many
 * files cost no more than one. path: file or folder of the whole, for messages. */
enum status index_add_size(struct index_size *size, const struct tensor_index *part, const char *path,
                           struct error *e);
/* Moves sources and entries of the parts into one index, with the first configuration among them; the parts
 * are empty afterwards. DUP: a tensor in two parts. After a failure call index_destroy on all of them. */
enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e);

#endif
