/* Messages on stderr: see messages.h. Uses write(2), not stdio, because a signal handler calls it. */
#include "cli/messages.h"

#include "cli/sanitize.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static atomic_flag last_line_taken = ATOMIC_FLAG_INIT;
static atomic_bool live; /* the live line is on the screen, without a newline */
static atomic_bool in_picture;
static atomic_uint notes;

static void message_put(const char *text, size_t bytes) {
    while (bytes) {
        ssize_t done = write(STDERR_FILENO, text, bytes);
        if (done <= 0) return; /* stderr is closed */
        text += done;
        bytes -= (size_t)done;
    }
}

bool message_on_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* Clears the live line and writes prefix, text and newline with one write(2). */
static void put_line(const char *prefix, const char *text) {
    char *line = NULL;
    const char *clear = atomic_exchange(&live, false) ? "\r\033[K" : "";
    int bytes = asprintf(&line, "%s%s%s\n", clear, prefix, text);
    if (bytes < 0) return;
    line[bytes - 1] = 0;
    sanitize_text(line + strlen(clear));
    bytes = (int)strlen(line);
    line[bytes] = '\n';
    atomic_fetch_add(&notes, 1);
    message_put(line, (size_t)bytes + 1);
    free(line);
}

void message_note(const char *format, ...) {
    char *text = NULL;
    va_list list;
    va_start(list, format);
    int bytes = vasprintf(&text, format, list);
    va_end(list);
    if (bytes < 0) return;
    put_line(strncmp(text, "sluice: ", 8) ? "" : " ",
             text); /* only the final error line may begin with "sluice: " */
    free(text);
}

int message_columns(void) {
    struct winsize size = {0};
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return !known ? 79 : size.ws_col < 480 ? size.ws_col - 1 : 479;
}

void message_live(const char *text) {
    char line[512];
    enum { CLEAR_BYTES = 4 };
    snprintf(line, sizeof line, "\r\033[K%.*s", message_columns(), text);
    sanitize_text(line + CLEAR_BYTES);
    atomic_store(&live, true);
    message_put(line, strlen(line));
}

void message_live_end(void) {
    if (atomic_exchange(&live, false)) message_put("\n", 1);
}

void message_live_clear(void) {
    if (atomic_exchange(&live, false)) message_put("\r\033[K", 4);
}

void message_picture(const char *codes, size_t bytes) {
    message_live_clear();
    atomic_store(&in_picture, true);
    message_put(codes, bytes);
    atomic_store(&in_picture, false);
}

unsigned message_count(void) {
    return atomic_load(&notes);
}

void message_failure(const struct sluice_error *error) {
    char line[1024];
    if (atomic_flag_test_and_set(&last_line_taken)) return;
    put_line("sluice: ", sluice_error_line(error, line, sizeof line));
}

bool message_cancelled_in_handler(void) {
    if (atomic_flag_test_and_set(&last_line_taken)) return false;
    if (atomic_load(&in_picture))
        message_put("\033\\\n", 3); /* ends the escape sequence that draws an image */
    if (atomic_exchange(&live, false)) message_put("\n", 1);
    message_put("sluice: cancelled\n", 18);
    return true;
}
