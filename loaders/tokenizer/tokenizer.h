/* Tokenizers: byte-level BPE (GPT-2, Qwen2, Qwen3), CLIP's, and unigram models (T5), from the files that they
 * are released as. */
#ifndef SLUICE_LOADERS_TOKENIZER_TOKENIZER_H
#define SLUICE_LOADERS_TOKENIZER_TOKENIZER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct tokenizer;

/* Opens a folder or one of its files by name: tokenizer.json wins; else vocab.json + merges.txt (told apart
 * as Qwen's or CLIP's by tokenizer_class, else by CLIP's ends of words) or spiece.model (tokenizer.model),
 * with added tokens from tokenizer_config.json's added_tokens_decoder, added_tokens.json,
 * special_tokens_map.json. A GGUF file, known by how it begins: what its metadata have under tokenizer.ggml
 * (BPE of Qwen's kind, and T5's unigram model). Immutable afterwards: usable from several threads. The
 * tokenizer's memory is ours (LINE_HOST); what the JSON parser needed is given back before return. */
enum status tokenizer_open(struct sys *sys, const char *path, struct tokenizer **tokenizer, struct error *e);
/* From the n bytes of a spiece.model, the caller's, which lie in the file of that path. */
enum status tokenizer_open_spiece(struct sys *sys, const char *path, const void *bytes, uint64_t n,
                                  struct tokenizer **tokenizer, struct error *e);
void tokenizer_close(struct tokenizer *tokenizer);

/* UTF8 for invalid text, with its first byte that is wrong; LIMIT for more bytes than that (exit class 2:
 * text is what a user typed). name: what messages call it. */
enum status tokenizer_check_text(const char *name, const char *text, uint64_t bytes, uint64_t most,
                                 struct error *e);

/* Ids of UTF-8 text exactly as the reference tokenizer gives them with add_special_tokens=False: added tokens
 * are recognised in the text, normalisation, split, merges or the best pieces. The reference is transformers
 * 5.23 on tokenizers 0.23; for a unigram model its T5Tokenizer, whose words are the same whatever
 * tokenizer.json says of them ("legacy" or not). *ids is freed with sys->release. Errors as those of
 * tokenizer_check_text, with 1.25 MiB. Linear in the text's length up to a logarithm. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint64_t bytes,
                             int32_t **ids, int *n_ids, struct error *e);

/* One more than the highest id. */
int tokenizer_size(const struct tokenizer *tokenizer);
/* "BPE" (byte-level: GPT-2, Qwen), "CLIP BPE" or "unigram" (T5). */
const char *tokenizer_kind(const struct tokenizer *tokenizer);
/* The id of an added token's exact text, of a unigram model also of a control or unknown piece; or -1. */
int tokenizer_special(const struct tokenizer *tokenizer, const char *text);
/* The id that shorter texts are padded with, as whoever opened it has set it; -1: nothing says it. */
int tokenizer_pad(const struct tokenizer *tokenizer);
/* Before others see the tokenizer. */
void tokenizer_set_pad(struct tokenizer *tokenizer, int id);
enum { TOKENIZER_HEAP_BYTES = 4 << 20 }; /* that opening any needs beyond what its files' sizes say */
/* Peak bytes of heap that opening this path needs beyond what it keeps, an upper bound for real tokenizers
 * from file sizes alone (16 per byte and 4 MB; measured 6 to 12 per byte, see tokenizer.c). A Qwen3-sized
 * tokenizer keeps 3.9 MB (9.5 MB with ignore_merges), CLIP's 1.1 MB, a unigram model of 32,100 pieces 3 to 6
 * MB. 0 when the path is too long to open. */
uint64_t tokenizer_open_bytes(struct sys *sys, const char *path);

#endif
