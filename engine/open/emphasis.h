/* Prompt emphasis as in AUTOMATIC1111's web UI: (word) weighs 1.1, [word] 1/1.1, (word:1.3) 1.3; nested
 * brackets multiply; a backslash escapes a bracket or a backslash; an unclosed bracket lasts to the end.
 * BREAK as a separate word ends a window. Source: stable-diffusion-webui 1.10, modules/prompt_parser.py,
 * parse_prompt_attention. Differences: BREAK works inside brackets; a weight that is no number is text. */
#ifndef SLUICE_OPEN_EMPHASIS_H
#define SLUICE_OPEN_EMPHASIS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* A part of the prompt with one weight, tokenized separately. Adjacent parts of equal weight are merged. */
struct emphasis_piece {
    size_t first, bytes; /* position and length of the piece in emphasis.text, in bytes */
    double weight;
    bool breaks; /* the piece is a BREAK keyword and has no text */
};

struct emphasis {
    char *text; /* the prompt without brackets, weights and escapes */
    struct emphasis_piece *piece;
    int n_pieces;
};

/* Limits: number of opening brackets in a prompt, and magnitude of a weight. */
enum { EMPHASIS_BRACKETS_MAX = 1000, EMPHASIS_WEIGHT_MAX = 1000 };

/* Parses the emphasis in a prompt. Fails with USAGE (too many brackets, or a weight out of range) or MEMORY.
 * Destroy also after failure. */
enum status emphasis_read(struct sys *sys, const char *text, size_t bytes, struct emphasis *emphasis,
                          struct error *e);
/* True if the text has emphasis with a number, "(word:1.3)", and so probably expects emphasis to work. */
bool emphasis_detect(const char *text);
void emphasis_destroy(struct sys *sys, struct emphasis *emphasis);

#endif
