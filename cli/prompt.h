/* Prompts: text as typed, or a file's bytes as they are. */
#ifndef SLUICE_CLI_PROMPT_H
#define SLUICE_CLI_PROMPT_H

#include "cli/args.h"

/* Fills prompt->text from prompt->typed, which may be "@FILE", and checks that it is UTF-8. may_hold_nul: a
 * text that is passed with its length. A file that cannot be read is exit 3, everything else exit 2. */
int prompt_read(struct prompt_text *prompt, const char *flag, bool may_hold_nul, struct sluice_error *e);

#endif
