/* Prompts: text from the command line, a file or stdin. */
#ifndef SLUICE_CLI_PROMPT_H
#define SLUICE_CLI_PROMPT_H

#include "cli/args.h"

/* FILE of a prompt "@FILE" ("-": stdin); NULL for text. Text that begins with @ is typed as "@@...". */
const char *prompt_file(const char *typed);
/* Fills prompt->text from prompt->typed and checks that it is UTF-8. Of files, removes a byte order mark,
 * CR before LF and one final newline, and refuses NUL; as_bytes (tokenize) keeps all bytes. Exit code 3 if
 * the file cannot be read, else 2. */
int prompt_read(struct prompt_text *prompt, const char *flag, bool as_bytes, struct sluice_error *e);
/* Warns about <lora:...> in a prompt; called if there is no --lora-dir. */
void prompt_warn(const struct prompt_text *prompt, const char *flag);

#endif
