/* Merges the indexes of several files into one: shards, parts of a GGUF file, several inputs of `convert`. */
#ifndef SLUICE_LOADERS_INDEX_MERGE_H
#define SLUICE_LOADERS_INDEX_MERGE_H

#include "loaders/loaders.h"

/* Total number of entries, and of bytes of their names, in the indexes to be merged. Start with zeros;
 * index_add_size adds an index. */
struct index_size {
    int n_entries;
    uint64_t name_bytes;
};

/* Adds the size of one file's index. LIMIT if the total exceeds the limits for one file. Call after opening
 * each file, so that many files cannot use more memory than one. path: the shard index, file or folder that
 * names all files, for messages. */
enum status index_add_size(struct index_size *size, const struct tensor_index *part, const char *path,
                           struct error *e);
/* Moves sources and entries of the parts into one index, and keeps the first configuration among the parts.
 * The parts are empty afterwards. DUP: a tensor in two parts. After a failure call index_destroy on the parts
 * and on the result. */
enum status index_merge(struct sys *sys, const char *path, struct tensor_index *parts, int n_parts,
                        struct tensor_index *index, struct error *e);

#endif
