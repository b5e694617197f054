/* Text on stderr: notes, one live progress line on a terminal, the summary of a run, and the final error line
 * "sluice: ...". Also removes control characters from text that files contain, and formats bytes and times.
 *
 * Invariants: every note is one write(2) of one whole line. At most one "sluice: " line is written, either by
 * the end of the program or by the signal handler. */
#ifndef SLUICE_CLI_MESSAGES_H
#define SLUICE_CLI_MESSAGES_H

#include "engine/sluice.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* True if stderr is a terminal that can rewrite a line. */
bool message_on_terminal(void);
/* Width of the live progress line in columns. */
int message_columns(void);
/* Prints a line. Control characters are replaced (sanitize_text), so that file names cannot begin a line. */
void message_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Replaces the live progress line, cut to the width of the terminal. Only if message_on_terminal. */
void message_live(const char *text);
void message_live_end(void);
void message_live_clear(void);
/* Writes the escape sequence of an image in place of the live progress line. */
void message_picture(const char *codes, size_t bytes);
/* Number of lines that message_note has printed so far. */
unsigned message_count(void);
/* Prints the final error line. */
void message_failure(const struct sluice_error *error);
/* For signal handlers that exit next: prints "sluice: cancelled", or returns false if main has already
 * printed an error line. */
bool message_cancelled_in_handler(void);

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

/* The progress of a run: one live line on a terminal, occasional lines in a log. */
struct progress {
    bool silent, live; /* both set by progress_start; live: stderr is a terminal */
    int n_pictures;    /* images or videos of the run */
    bool are_videos;
    char stage[32]; /* stage and step of the last progress line */
    int step;
    double shown_seconds; /* run time at the last progress line */
    double checked_seconds,
        checked_stall; /* run time and waiting time, in seconds, at the last update of is_waiting */
    bool is_waiting;   /* more than a quarter of the previous second was spent waiting for weights */
};

/* Seconds of a monotonic clock. */
double progress_clock(void);
void progress_start(struct progress *progress, bool silent, int n_pictures);
/* Prints a progress line if one is due. Cheap enough to be called in every callback. */
void progress_show(struct progress *progress, const struct sluice_progress *now);
/* Removes the live progress line; progress_show then prints nothing more. */
void progress_finish(struct progress *progress);
/* Formats "12 s", "3 min 20 s" or "2 h 5 min" into out (at least 32 bytes); returns out. */
char *progress_duration(double seconds, char *out);
/* Formats "3.42 GiB" or "419 MiB" into out (at least 32 bytes); returns out. */
char *progress_bytes(double bytes, char *out);

/* Prints the summary of a run: its duration, and advice if the run waited for weights. */
struct summary {
    sluice_session *session; /* session whose run has just succeeded */
    int n_pictures;          /* number of images or videos written */
    bool are_videos;
    double seconds; /* duration of the program in seconds */
    bool verbose;   /* true: the summary has one more line per stage */
};
void summary_print(const struct summary *summary);

#endif
