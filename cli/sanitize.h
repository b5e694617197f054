/* Makes text from files safe to print on a terminal: removes control characters, characters that reorder
 * text, and invalid UTF-8. */
#ifndef SLUICE_CLI_SANITIZE_H
#define SLUICE_CLI_SANITIZE_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* Length in bytes of the well-formed UTF-8 character at text, 0 if there is none (RFC 3629: no surrogates, no
 * overlong forms). */
size_t sanitize_utf8_length(const char *text, size_t bytes);
/* Replaces in place by '?': control characters (C0, DEL, C1), bidirectional controls, line and paragraph
 * separators, and bytes that are not UTF-8. Returns text. */
char *sanitize_text(char *text);
/* Applies sanitize_text to every string value. Keys stay unchanged. */
void sanitize_json(json_t *value);
/* Prints JSON and a newline. Escapes in strings the characters that sanitize_text replaces. */
void sanitize_print_json(FILE *to, const char *json);

#endif
