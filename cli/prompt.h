/* Prompts: text as typed, or of a file. */
#ifndef SLUICE_CLI_PROMPT_H
#define SLUICE_CLI_PROMPT_H

#include "cli/args.h"

/* The file that a prompt as typed names: "@FILE", and "-" for stdin; NULL for a text, which "@@" begins if it
 * begins with an @. */
const char *prompt_file(const char *typed);
/* Fills prompt->text from prompt->typed and checks that it is UTF-8. Of a file a byte order mark, CR before
 * LF and one final newline are dropped, and NULs are refused, unless as_bytes: for who asks what a file's
 * bytes are. A file that cannot be read is exit 3, everything else exit 2. */
int prompt_read(struct prompt_text *prompt, const char *flag, bool as_bytes, struct sluice_error *e);
/* Says which adapters it names, where there is no folder to find them in. */
void prompt_warn(const struct prompt_text *prompt, const char *flag);

#endif
