/* A prompt as WAN's pipelines clean it before their tokenizer sees it: characters' names and numbers of HTML
 * become the characters, twice over; white space becomes one blank, and none at the ends.
 *
 * Source: diffusers 0.42, pipelines/wan/pipeline_wan.py, prompt_clean. Where ftfy is installed it mends a
 * text first. Of what it does to text that is not broken only its straight quotes are done here: the rest
 * (ligatures, wide letters, composed accents, control characters) the tokenizer's normalisation does too.
 * Text that was decoded wrongly ("cafÃ©") stays as it is. */
#ifndef SLUICE_OPEN_PROMPT_CLEAN_H
#define SLUICE_OPEN_PROMPT_CLEAN_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* *cleaned: its *cleaned_bytes, to be freed with sys->release; NULL after failure. MEMORY; what
 * tokenizer_check_text says of text that is none. */
enum status prompt_clean(struct sys *sys, const char *text, size_t bytes, char **cleaned,
                         size_t *cleaned_bytes, struct error *e);

#endif
