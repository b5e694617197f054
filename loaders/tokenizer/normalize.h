/* Normalisation, before text is split: normalize.c, and what it is made of. */
#ifndef SLUICE_LOADERS_TOKENIZER_NORMALIZE_H
#define SLUICE_LOADERS_TOKENIZER_NORMALIZE_H

#include "loaders/tokenizer/tables.h"

/* ---- nfc.c ---- */

/* Normalises valid UTF-8 to NFC. *out is NULL when the text is NFC already, else freed with sys->release. */
enum status text_to_nfc(struct sys *sys, struct span text, char **out, uint64_t *out_bytes, struct error *e);
/* Unicode's White_Space and word characters (\s and \w of Rust's regex, which the reference asks about an
 * added token's neighbours). */
bool code_is_space(int32_t code);
bool code_is_word(int32_t code);

/* ---- normalize.c ---- */

/* Normalises as t says. *out is NULL when that changes nothing, else where text then points; freed with
 * sys->release. */
enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e);

/* ---- charsmap.c ---- */

/* A checked copy of a table; path is where it is from. BOUNDS, LIMIT (1 MB). */
enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e);
void charsmap_destroy(struct sys *sys, struct charsmap *map);
/* As text_normalize. LIMIT for a table that makes a text many times as long. */
enum status charsmap_apply(struct sys *sys, const struct charsmap *map, struct span *text, char **out,
                           struct error *e);

#endif
