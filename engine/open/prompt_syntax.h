/* Syntax inside prompts: emphasis, "(word:1.3)", LoRA tags, "<lora:NAME:0.8>", and quoted parts. */
#ifndef SLUICE_OPEN_PROMPT_SYNTAX_H
#define SLUICE_OPEN_PROMPT_SYNTAX_H

#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/sluice.h"

#include <stdbool.h>

/* Emphasis: (word) weighs 1.1, [word] 1/1.1, (word:1.3) 1.3; nested brackets multiply; a backslash escapes a
 * bracket or a backslash; an unclosed bracket lasts to the end. BREAK as a separate word ends a window.
 * Source: stable-diffusion-webui 1.10, modules/prompt_parser.py, parse_prompt_attention. Differences: BREAK
 * works inside brackets; a weight that is no number is text. */

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
/* True if the text has emphasis with a number, "(word:1.3)", which suggests that the user expects
 * emphasis. */
bool emphasis_detect(const char *text);
void emphasis_destroy(struct sys *sys, struct emphasis *emphasis);

/* LoRA tags in prompts, <lora:NAME> and <lora:NAME:0.8>, as in stable-diffusion.cpp and AUTOMATIC1111's web
 * UI. Tags are removed before the prompt is encoded, together with the blanks on one side. A tag without
 * closing ">" is text. */
struct lora_tag {
    const char *name;
    double strength; /* 1 by default */
};

struct lora_tags {
    char *text;  /* the prompt without tags; NULL: the prompt has no tags */
    char *names; /* memory of the names in `tag` */
    struct lora_tag tag[SLUICE_LORAS_MAX];
    int n;
};

/* Parses the tags of a text. what: the text in messages ("negative prompt"). USAGE: a tag without name, with
 * an invalid strength, or with a path outside the LoRA folder; too many tags. Fails with MEMORY. Destroy
 * tags in any case. */
enum status lora_tags_read(struct sys *sys, const char *what, const char *text, struct lora_tags *tags,
                           struct error *e);
void lora_tags_destroy(struct sys *sys, struct lora_tags *tags);

/* Quoted parts of a prompt: text in '', "", ‘’ or “”, quotes included, without a quote of the
 * same kind inside. An apostrophe between letters ("fox's") is not a quote. Source: diffusers 0.42,
 * pipelines/longcat_image/pipeline_longcat_image.py, split_quotation. diffusers replaces words with an
 * apostrophe by placeholders, and confuses the words if a prompt has two of them; here each word keeps its
 * text.
 *
 * quotes_mask copies UTF-8 text and replaces each apostrophe between letters by a letter. masked: [bytes]. */
void quotes_mask(const char *text, size_t bytes, char *masked);
/* Returns the length in bytes of the piece that begins at byte `at` < bytes: a quoted part, or the text up to
 * the next one. *quoted: true for a quoted part. Also true, as in diffusers, for text that begins with an
 * unclosed ' and has an apostrophe between letters after it. */
size_t quotes_piece(const char *text, const char *masked, size_t at, size_t bytes, bool *quoted);

#endif
