/* Messages on stderr: notes, one live progress line on a terminal, and the final error line "sluice: ...".
 *
 * Invariants: every note is one write(2) of one whole line. At most one "sluice: " line is written, either by
 * the end of the program or by the signal handler. */
#ifndef SLUICE_CLI_MESSAGES_H
#define SLUICE_CLI_MESSAGES_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stddef.h>

/* True if stderr is a terminal that can rewrite a line. */
bool message_on_terminal(void);
/* Width of the live line in columns. */
int message_columns(void);
/* Prints a line. Control characters are replaced (sanitize.h), so that file names cannot begin a line. */
void message_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Replaces the live line, cut to the width of the terminal. Only if message_on_terminal. */
void message_live(const char *text);
void message_live_end(void);
void message_live_clear(void);
/* Writes the escape sequence of an image in place of the live line. */
void message_picture(const char *codes, size_t bytes);
/* Number of lines printed by message_note. */
unsigned message_count(void);
/* Prints the final error line. */
void message_failure(const struct sluice_error *error);
/* For signal handlers that exit next: prints "sluice: cancelled"; false if the final line is printed
 * already. */
bool message_cancelled_in_handler(void);

#endif
