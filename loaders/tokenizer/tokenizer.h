/* Tokenizers: byte-level BPE (GPT-2, Qwen2, Qwen3, Mistral), CLIP, SentencePiece BPE (Gemma), and unigram
 * models (T5), from released files. */
#ifndef SLUICE_LOADERS_TOKENIZER_TOKENIZER_H
#define SLUICE_LOADERS_TOKENIZER_TOKENIZER_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct tokenizer;

/* Opens a folder or one of its files. tokenizer.json has priority, then tekken.json; else vocab.json and
 * merges.txt (Qwen or CLIP by tokenizer_class, else by CLIP's end-of-word tokens) or spiece.model
 * (tokenizer.model), with added tokens from tokenizer_config.json's added_tokens_decoder, added_tokens.json
 * and special_tokens_map.json. A GGUF file is detected by its first bytes and read from the metadata under
 * tokenizer.ggml (Qwen's, Mistral's and Gemma's BPE, T5's unigram model). The tokenizer is immutable and
 * usable from several threads. Its memory counts as host memory (LINE_HOST); the JSON parser's memory is
 * returned before the function returns. */
enum status tokenizer_open(struct sys *sys, const char *path, struct tokenizer **tokenizer, struct error *e);
/* Opens a tokenizer from n bytes inside the file at path: the content of a spiece.model, or of a tekken.json
 * or tokenizer.json, which begin with a brace. The caller owns the bytes. */
enum status tokenizer_open_stored(struct sys *sys, const char *path, const void *bytes, uint64_t n,
                                  struct tokenizer **tokenizer, struct error *e);
void tokenizer_close(struct tokenizer *tokenizer);

/* Checks a text to encode. UTF8 for invalid text, naming the first invalid byte; LIMIT for more than `most`
 * bytes (exit class 2, because users type the text). name: used in messages. */
enum status tokenizer_check_text(const char *name, const char *text, uint64_t bytes, uint64_t most,
                                 struct error *e);

/* Encodes UTF-8 text to ids, exactly like the reference tokenizer with add_special_tokens=False: added tokens
 * are recognised, then normalisation, split, and merges or best pieces. The reference is transformers 5.23
 * with tokenizers 0.23; for unigram models its T5Tokenizer, whose words do not depend on tokenizer.json
 * ("legacy" or not). *ids is freed with sys->release. Errors as in tokenizer_check_text, with 1.25 MiB. Cost:
 * linear in the text's length up to a logarithm. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint64_t bytes,
                             int32_t **ids, int *n_ids, struct error *e);

/* The vocabulary's highest id plus one. */
int tokenizer_size(const struct tokenizer *tokenizer);
/* The kind of tokenizer: "BPE" (byte-level: GPT-2, Qwen), "CLIP BPE", "SentencePiece BPE" (Gemma) or
 * "unigram" (T5). */
const char *tokenizer_kind(const struct tokenizer *tokenizer);
/* The id of an added token by its exact text, in unigram models also of control and unknown pieces; or -1. */
int tokenizer_special(const struct tokenizer *tokenizer, const char *text);
/* The padding id set by tokenizer_set_pad; -1: unknown. */
int tokenizer_pad(const struct tokenizer *tokenizer);
/* Sets the padding id; call before sharing the tokenizer. */
void tokenizer_set_pad(struct tokenizer *tokenizer, int id);
/* heap bytes for opening any tokenizer, in addition to bytes that grow with the file */
enum { TOKENIZER_HEAP_BYTES = 4 << 20 };
/* Upper bound of the temporary heap bytes needed to open a published tokenizer, from file sizes alone: 4 MB
 * plus 16 bytes per byte of file (measured: 6 to 12, see reading.c). Kept afterwards: 3.9 MB for a
 * Qwen3-sized tokenizer (9.5 MB with ignore_merges), 11.4 MB for Mistral's, 26.5 MB for a SentencePiece BPE
 * of Gemma's size, 1.1 MB for CLIP, 3 to 6 MB for a unigram model of 32,100 pieces. 0 if the path is too long
 * to open. */
uint64_t tokenizer_open_bytes(struct sys *sys, const char *path);

#endif
