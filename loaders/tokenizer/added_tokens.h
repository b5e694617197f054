#ifndef SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H
#define SLUICE_LOADERS_TOKENIZER_ADDED_TOKENS_H

#include "loaders/tokenizer/tables.h"

/* Builds the sorted sets t->raw and t->normalized from t->added. DUP: equal contents. */
enum status added_sets_build(struct tokenizer *t, struct error *e);
struct added_search {
    const struct added_set *set;
    struct span text;
    uint64_t from;                 /* next position to search */
    uint64_t taken;                /* end of the last match, including the white space that rstrip took */
    uint64_t white_from, white_to; /* range of white space after a match, to scan it only once */
    uint64_t start, end;           /* current match, including the white space that lstrip and rstrip take */
    int32_t id;
};
/* Finds the next match; false if there is none. If the last match's rstrip took white space with which the
 * new match begins, start lies before the last match's end. Hugging Face tokenizers fail on most such
 * texts. */
bool added_next(struct added_search *search);

#endif
