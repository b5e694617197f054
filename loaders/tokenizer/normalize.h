#ifndef SLUICE_LOADERS_TOKENIZER_NORMALIZE_H
#define SLUICE_LOADERS_TOKENIZER_NORMALIZE_H

#include "loaders/tokenizer/tables.h"

/* Normalises valid UTF-8 to NFC. *out: NULL if the text is NFC already; else free it with sys->release. */
enum status text_to_nfc(struct sys *sys, struct span text, char **out, uint64_t *out_bytes, struct error *e);
/* code_is_space: Unicode's White_Space. code_is_word: letters, marks, decimal digits, connectors, joiners,
 * circled or squared Latin capitals. As \s and \w in Rust, which Hugging Face tokenizers apply next to added
 * tokens. */
bool code_is_space(int32_t code);
bool code_is_word(int32_t code);

/* Applies the tokenizer's normalisation steps. *out is NULL if nothing changes; otherwise *text points into
 * it, and it is freed with sys->release. */
enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e);

/* Copies and checks a normalisation table (precompiled_charsmap). path: its file, for messages. BOUNDS, LIMIT
 * (1 MB). */
enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e);
void charsmap_destroy(struct sys *sys, struct charsmap *map);
/* Applies a normalisation table; output as in text_normalize. LIMIT if the text grows many times. */
enum status charsmap_apply(struct sys *sys, const struct charsmap *map, struct span *text, char **out,
                           struct error *e);

#endif
