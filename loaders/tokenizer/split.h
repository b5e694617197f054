#ifndef SLUICE_LOADERS_TOKENIZER_SPLIT_H
#define SLUICE_LOADERS_TOKENIZER_SPLIT_H

#include "loaders/tokenizer/tables.h"

/* Compiles a split pattern into *code (t->split or t->resplit); path and member: its origin, for messages.
 * UNSUPPORTED names constructs that cannot be translated exactly. */
enum status split_compile(struct tokenizer *t, pcre2_code **code, struct span pattern, const char *member,
                          struct error *e);

struct split {
    const struct tokenizer *t;
    const pcre2_code *code;
    bool drop_gaps;
    pcre2_match_data *data;
    pcre2_match_context *context;
    struct span text;
    uint64_t returned;   /* position in the text after the last returned piece */
    uint64_t from;       /* next position to search */
    uint64_t start, end; /* range of the last match; its piece has not been returned yet if returned < end */
    bool matched;        /* the pattern has matched at least once in this text */
};
/* Returns the next piece, never empty; false after the last or on error. Without drop_gaps the pieces cover
 * the whole text. */
bool split_next(struct split *split, struct span *piece, struct error *e);

#endif
