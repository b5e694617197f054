/* Bytes as the characters that stand for them, and the patterns by which byte-level tokenizers split. */
#ifndef SLUICE_LOADERS_TOKENIZER_BYTE_LEVEL_H
#define SLUICE_LOADERS_TOKENIZER_BYTE_LEVEL_H

/* The places of the byte-level alphabet (GPT-2's bytes_to_unicode): the code point that stands for a byte,
 * and the byte that a code point stands for, or -1. */
int byte_to_alphabet(int byte);
int alphabet_to_byte(int code);

/* The split patterns of GPT-2's ByteLevel pre-tokenizer, of Qwen2 and of CLIP. */
extern const char gpt2_pattern[], qwen2_pattern[], clip_pattern[];

#endif
