/* What the makers of made-up tokenizers share. */
#ifndef SLUICE_LOADERS_TOKENIZER_MAKING_H
#define SLUICE_LOADERS_TOKENIZER_MAKING_H

#include "loaders/json.h"
#include "loaders/tokenizer/internal.h"

/* The next file; its text is the C library's. Nothing for NULL. */
void made_add(struct made_tokenizer *made, const char *name, char *text);
/* USAGE: n_ids is less than least. */
enum status made_too_few(int n_ids, int least, struct error *e);
/* A byte's place in the byte-level alphabet as UTF-8, one or two bytes; returns how many. */
int symbol_write(int byte, char *out);

enum status make_clip(struct sys *sys, int n_ids, struct made_tokenizer *made, struct error *e);
enum status make_unigram(int n_ids, struct made_tokenizer *made, struct error *e);

#endif
