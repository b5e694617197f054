/* Unigram tokenizer model (T5), which replaces the split pattern and the BPE merges. */
#ifndef SLUICE_LOADERS_TOKENIZER_UNIGRAM_H
#define SLUICE_LOADERS_TOKENIZER_UNIGRAM_H

#include "loaders/tokenizer/tables.h"

/* Builds the model from t->words, whose texts have text_bytes in total. Takes ownership of scores. */
enum status unigram_make(struct tokenizer *t, double *scores, uint64_t text_bytes, struct error *e);
void unigram_destroy(struct sys *sys, struct unigram *unigram);
/* Encodes normalised text without added tokens: appends its ids to the list. */
enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e);

#endif
