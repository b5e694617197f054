/* Made-up tokenizers for checkpoints of random weights. */
#ifndef SLUICE_BENCH_SYNTHETIC_TOKENIZER_H
#define SLUICE_BENCH_SYNTHETIC_TOKENIZER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* The files of a made-up tokenizer, for checkpoints of random weights: of the real form and, where n_ids
 * allows, of the real size; what they hold is made up, the same at every call. kind as tokenizer_kind says:
 *   "BPE"       Qwen2's pattern, added tokens and template; Qwen3's 151,669 ids, at least 282
 *   "CLIP BPE"  49,408 ids, at least 514; no tokenizer.json, as released
 *   "OpenCLIP BPE"  the same, padded with "!", which is id 0 and thereby an added token
 *   "unigram"   T5's 32,100 ids (its embedding has 32,128 rows), at least 256; no table of normalisation
 * Never more ids than n_ids (USAGE where that is too few or the kind is unknown; MEMORY). */
struct synthetic_file {
    const char *name;
    char *text; /* the C library's */
    uint64_t bytes;
};
enum { SYNTHETIC_FILES_MAX = 5 };
struct synthetic_tokenizer {
    struct synthetic_file files[SYNTHETIC_FILES_MAX];
    int n_files;
};
enum status synthetic_tokenizer_make(struct sys *sys, const char *kind, int n_ids, struct synthetic_tokenizer *made,
                           struct error *e);
void synthetic_tokenizer_destroy(struct synthetic_tokenizer *made);

/* ---- what its makers share ---- */

/* The next file; its text is the C library's. Nothing for NULL. */
void synthetic_tokenizer_add_file(struct synthetic_tokenizer *made, const char *name, char *text);
/* USAGE: n_ids is less than least. */
enum status vocabulary_too_small(int n_ids, int least, struct error *e);
/* A byte's place in the byte-level alphabet as UTF-8, one or two bytes; returns how many. */
int symbol_write(int byte, char *out);

enum status make_clip(struct sys *sys, int n_ids, bool pad_with_id_0, struct synthetic_tokenizer *made,
                      struct error *e);
enum status make_unigram(int n_ids, struct synthetic_tokenizer *made, struct error *e);

#endif
