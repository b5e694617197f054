/* A prompt in windows, as AUTOMATIC1111's web UI makes them: an encoder that sees tokens_max tokens at a time
 * sees a long prompt in so many windows of them, each with the recipe's tokens around it and padding behind
 * it. A window ends where it is full, or behind a comma among the last of its tokens, or at a BREAK. Source:
 * stable-diffusion-webui 1.10, modules/sd_hijack_clip.py, tokenize_line, with its default of 20 for
 * comma_padding_backtrack. */
#ifndef SLUICE_OPEN_WINDOWS_H
#define SLUICE_OPEN_WINDOWS_H

#include "engine/open/prompt.h"

enum { WINDOW_BACKTRACK = 20 };

/* weighs: marks in the text weigh its words (emphasis.h); else they are text, and so is BREAK. Fills all of
 * tokens but pooled_row. What emphasis_read and tokenizer_encode fail with; MEMORY. */
enum status windows_encode(struct sys *sys, const struct text_recipe *recipe,
                           const struct tokenizer *tokenizer, const char *text, size_t bytes, bool weighs,
                           struct prompt_tokens *tokens, struct error *e);

#endif
