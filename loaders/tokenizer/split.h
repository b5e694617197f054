/* The split patterns: split.c. */
#ifndef SLUICE_LOADERS_TOKENIZER_SPLIT_H
#define SLUICE_LOADERS_TOKENIZER_SPLIT_H

#include "loaders/tokenizer/tables.h"

/* Compiles pattern, which path names in member, into *code (t->split or t->resplit). UNSUPPORTED names what
 * this cannot do exactly. */
enum status split_compile(struct tokenizer *t, pcre2_code **code, struct span pattern, const char *member,
                          struct error *e);

/* A walk over one text's pieces. */
struct split {
    const struct tokenizer *t;
    const pcre2_code *code;
    bool drop_gaps;
    pcre2_match_data *data;
    pcre2_match_context *context;
    struct span text;
    uint64_t given;      /* pieces given out end here */
    uint64_t from;       /* search here next */
    uint64_t start, end; /* the last match; its piece is still to be given out if given < end */
    bool matched;        /* there was one */
};
/* The next piece, or false after the last one or after an error. Pieces are never empty and, without
 * drop_gaps, cover the text. */
bool split_next(struct split *split, struct span *piece, struct error *e);

#endif
