#ifndef SLUICE_LOADERS_TOKENIZER_BYTE_LEVEL_H
#define SLUICE_LOADERS_TOKENIZER_BYTE_LEVEL_H

/* GPT-2's bytes_to_unicode: maps a byte to the code point that represents the byte in token texts.
 * alphabet_to_byte is the inverse, -1 for other code points. */
int byte_to_alphabet(int byte);
int alphabet_to_byte(int code);

/* Split patterns of GPT-2's ByteLevel pre-tokenizer, of Qwen2 and of CLIP. */
extern const char gpt2_pattern[], qwen2_pattern[], clip_pattern[];

#endif
