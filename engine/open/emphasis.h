/* Weights that a prompt's own marks give its words, as AUTOMATIC1111's web UI reads them: (word) counts 1.1
 * times as much, [word] 1/1.1 times, (word:1.3) 1.3 times, marks within marks multiply, a backslash before a
 * bracket or another backslash makes it a character, what stays open lasts to the end. BREAK, a word of its
 * own, ends a window. Source: stable-diffusion-webui 1.10, modules/prompt_parser.py, parse_prompt_attention;
 * other than there BREAK breaks within brackets too, and a weight that is no number is text. */
#ifndef SLUICE_OPEN_EMPHASIS_H
#define SLUICE_OPEN_EMPHASIS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Neighbours of one weight are one piece: a tokenizer sees each by itself. */
struct emphasis_piece {
    size_t first, bytes; /* in emphasis.text */
    double weight;
    bool breaks; /* it is a BREAK, without text */
};

struct emphasis {
    char *text; /* without the marks */
    struct emphasis_piece *piece;
    int n_pieces;
};

/* More marks, and weights beyond this, are refused. */
enum { EMPHASIS_MARKS_MAX = 1000, EMPHASIS_WEIGHT_MAX = 1000 };

/* USAGE for too many marks and weights out of range, MEMORY. To be destroyed also after failure. */
enum status emphasis_read(struct sys *sys, const char *text, size_t bytes, struct emphasis *emphasis,
                          struct error *e);
/* Does whoever wrote this text expect that words are weighed: is there a "(word:1.3)"? */
bool emphasis_is_in(const char *text);
void emphasis_destroy(struct sys *sys, struct emphasis *emphasis);

#endif
