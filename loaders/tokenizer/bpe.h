/* Byte-pair encoding, and the hash tables of words and merges. */
#ifndef SLUICE_LOADERS_TOKENIZER_BPE_H
#define SLUICE_LOADERS_TOKENIZER_BPE_H

#include "loaders/tokenizer/tables.h"

struct bpe_symbol {
    int32_t id, next, previous; /* list links; id -1: the symbol was merged into its left neighbour */
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap; /* priority queue of merges: rank << 32 | index of the left symbol */
    uint64_t n_heap, capacity;
};

/* Allocates a table for n merges, to be added in rank order. A repeated pair gets its last rank. */
enum status merge_table_make(struct sys *sys, struct merge_table *table, uint64_t n, struct error *e);
void merge_table_add(struct merge_table *table, struct merge merge);
/* Allocates a table for n words of blob_bytes bytes in total. */
enum status word_table_make(struct sys *sys, struct word_table *table, uint64_t n, uint64_t blob_bytes,
                            struct error *e);
void word_table_destroy(struct sys *sys, struct word_table *table);
/* The id of a word, or -1. */
int32_t word_table_find(const struct word_table *table, struct span text);
/* Adds a word whose bytes the caller has written at its offset in the blob. */
void word_table_add(struct word_table *table, struct word word);

enum status id_list_push(struct sys *sys, struct id_list *list, int32_t id, struct error *e);
enum status bpe_piece(const struct tokenizer *t, struct bpe_scratch *scratch, struct span piece,
                      struct id_list *out, struct error *e);

#endif
