#ifndef SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H
#define SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H

#include "loaders/tokenizer/tables.h"

/* Sorts t->added into its two sets. DUP for duplicate content. */
enum status added_sets_build(struct tokenizer *t, struct error *e);
struct added_search {
    const struct added_set *set;
    struct span text;
    uint64_t from;                 /* next position to search */
    uint64_t taken;                /* end of the last match, including white space that it took */
    uint64_t white_from, white_to; /* white space already scanned to the right of a match */
    uint64_t start, end;           /* the match, including white space that it takes */
    int32_t id;
};
/* Finds the next match; false if there is none. If the last match took white space with which this match
 * (without lstrip) begins, start lies before the last match's end; the reference fails on most such texts. */
bool added_next(struct added_search *search);

#endif
