/* Splits long prompts into windows (chunks of 75 tokens for CLIP), as AUTOMATIC1111's web UI does. Each
 * window has tokens_max tokens: first token, content, last token, padding. A window ends when it is full,
 * after a comma among its last 20 tokens, or at BREAK. Source: stable-diffusion-webui 1.10,
 * modules/sd_hijack_clip.py, tokenize_line, with the default comma_padding_backtrack of 20. */
#ifndef SLUICE_OPEN_PROMPT_PROMPT_WINDOWS_H
#define SLUICE_OPEN_PROMPT_PROMPT_WINDOWS_H

#include "engine/open/prompt.h"

enum { WINDOW_BACKTRACK = 20 };

/* Encodes a prompt in windows. use_emphasis: parse emphasis and BREAK (emphasis.h), else treat them as text.
 * Fills all fields of tokens except pooled_row. Fails with MEMORY, or like emphasis_read and
 * tokenizer_encode. */
enum status windows_encode(struct sys *sys, const struct text_recipe *recipe,
                           const struct tokenizer *tokenizer, const char *text, size_t bytes,
                           bool use_emphasis, struct prompt_tokens *tokens, struct error *e);

#endif
