/* Cleans a prompt as WAN's pipelines do before tokenizing: decodes HTML character references twice, collapses
 * white space, and strips it at the ends.
 *
 * References: all numbers ("&#38;", "&#x26;"), and the names amp, lt, gt, quot, apos and nbsp. Other names
 * ("&eacute;", "&clubs;") stay as they are; html.unescape and ftfy decode all 2,231 names of HTML 5.
 *
 * Source: diffusers 0.42, pipelines/wan/pipeline_wan.py, prompt_clean. With ftfy installed, diffusers repairs
 * the text first. Of ftfy's changes to valid text only straight quotes are done here: the tokenizer's
 * normalisation does the rest (ligatures, wide letters, composed accents, control characters). Wrongly
 * decoded text ("cafÃ©") stays as it is. */
#ifndef SLUICE_OPEN_PROMPT_CLEAN_H
#define SLUICE_OPEN_PROMPT_CLEAN_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Returns the cleaned prompt in *cleaned, *cleaned_bytes bytes, freed with sys->release; NULL after failure.
 * MEMORY; errors of tokenizer_check_text (invalid UTF-8). */
enum status prompt_clean(struct sys *sys, const char *text, size_t bytes, char **cleaned,
                         size_t *cleaned_bytes, struct error *e);

#endif
