/* Text for people's terminals: names come out of files and from other machines. What would move a cursor,
 * reorder a line or is no UTF-8 never reaches one. */
#ifndef SLUICE_CLI_PLAIN_H
#define SLUICE_CLI_PLAIN_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* Bytes of the well-formed UTF-8 character at text, 0 if there is none (RFC 3629: no surrogates, no overlong
 * forms). */
size_t plain_character(const char *text, size_t bytes);
/* Replaces each control character (C0, DEL, C1), each that sets directions or ends lines, and each byte that
 * is no UTF-8 by '?', in place. Returns text. */
char *plain_make(char *text);
/* The same in each string of it, but in keys. */
void plain_make_json(json_t *value);
/* JSON and a newline; in its strings what plain_make replaces is escaped. */
void plain_put_json(FILE *to, const char *json);

#endif
