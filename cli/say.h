/* What goes to stderr: notes, one live line on a terminal, and the one line that begins "sluice: ".
 *
 * Invariants: every note is one write(2) of one whole line; at most one "sluice: " line is ever written, by
 * whoever comes first, the program's end or a signal handler. */
#ifndef SLUICE_CLI_SAY_H
#define SLUICE_CLI_SAY_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stddef.h>

/* True if stderr can rewrite a line. */
bool say_on_terminal(void);
/* Columns of the live line. */
int say_columns(void);
/* A line of its own. Made plain (plain.h), so that no text from outside can begin a line. */
void say_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Replaces the live line, cut to the terminal's width. Only where say_on_terminal. */
void say_live(const char *text);
/* Ends the live line, if there is one, and keeps it in view. */
void say_live_end(void);
/* What a terminal makes a picture of, in place of the live line. */
void say_picture(const char *codes, size_t bytes);
/* How many lines of their own there have been. */
unsigned say_notes(void);
/* The last line of a failed program. */
void say_failure(const struct sluice_error *error);
/* The same from a signal handler, which exits next. False if the program's end was already saying it. */
bool say_cancelled_in_handler(void);

#endif
