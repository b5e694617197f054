/* Added tokens in a text: added_tokens.c. */
#ifndef SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H
#define SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H

#include "loaders/tokenizer/tables.h"

/* Sorts t->added into its two sets. DUP for a content that occurs twice. */
enum status added_sets_build(struct tokenizer *t, struct error *e);
/* A walk over one text's added tokens. */
struct added_search {
    const struct added_set *set;
    struct span text;
    uint64_t from;  /* look here next */
    uint64_t taken; /* end of the last match with the white space it took */
    uint64_t white_from,
        white_to;        /* white space found so far to the right of a match: it is not looked at twice */
    uint64_t start, end; /* the match, with the white space that it takes */
    int32_t id;
};
/* The next match, or false. start lies before the last match's end if that took white space with which this
 * one, without lstrip, begins; the reference fails on most such texts. */
bool added_next(struct added_search *search);

#endif
