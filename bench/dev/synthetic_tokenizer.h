/* Synthetic tokenizers for checkpoints of random weights. */
#ifndef SLUICE_DEV_SYNTHETIC_TOKENIZER_H
#define SLUICE_DEV_SYNTHETIC_TOKENIZER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Creates the files of a synthetic tokenizer. Format and size are as published, but n_ids may limit the
 * size. The contents are generated and equal at every call. kind: one of
 *   "BPE"       Qwen2's pattern, added tokens and template; Qwen3's 151,669 ids, at least 282
 *   "CLIP BPE"  49,408 ids, at least 514; no tokenizer.json, as released
 *   "OpenCLIP BPE"  the same as "CLIP BPE", padded with "!", which is id 0 and therefore an added token
 *   "unigram"   T5's 32,100 ids (its embedding has 32,128 rows), at least 256; no normalisation table
 *   "SentencePiece BPE"  Gemma's 262,144 ids (its embedding has 262,208 rows), at least 260
 * Never more ids than n_ids. Fails with USAGE (n_ids too small or kind unknown) or MEMORY. */
struct synthetic_file {
    const char *name;
    char *text; /* text of the file, allocated with malloc */
    uint64_t bytes;
};
enum { SYNTHETIC_FILES_MAX = 5 };
struct synthetic_tokenizer {
    struct synthetic_file files[SYNTHETIC_FILES_MAX];
    int n_files;
};
enum status synthetic_tokenizer_make(struct sys *sys, const char *kind, int n_ids,
                                     struct synthetic_tokenizer *made, struct error *e);
void synthetic_tokenizer_destroy(struct synthetic_tokenizer *made);

/* Adds a file to the tokenizer and takes ownership of its malloc'ed text. Does nothing if text is NULL. */
void synthetic_tokenizer_add_file(struct synthetic_tokenizer *made, const char *name, char *text);
/* Sets the error USAGE: n_ids is too small for the tokenizer, which needs `least` ids. */
enum status vocabulary_too_small(int n_ids, int least, struct error *e);
/* Writes the character that represents a byte in byte-level BPE, as UTF-8. Returns 1 or 2 bytes. */
int symbol_write(int byte, char *out);

enum status make_clip(struct sys *sys, int n_ids, bool pad_with_id_0, struct synthetic_tokenizer *made,
                      struct error *e);
enum status make_gemma(struct sys *sys, int n_ids, struct synthetic_tokenizer *made, struct error *e);
enum status make_unigram(int n_ids, struct synthetic_tokenizer *made, struct error *e);

#endif
