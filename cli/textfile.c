/* Text files: see textfile.h. */
#include "cli/textfile.h"

#include "cli/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *textfile_problem(int problem) {
    return problem == EPIPE ? "a pipe that nobody writes to" : strerror(problem);
}

static int textfile_unreadable(const char *path, const char *what, int problem, struct sluice_error *e) {
    fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "%s cannot be read", what);
    fail_where(e, "%s", path);
    return fail_found(e, "%s", textfile_problem(problem));
}

/* The next bytes, 0 at the end. begun: some have come already, so whoever wrote them has closed the pipe. */
static ssize_t read_some(int file, char *to, size_t bytes, bool begun) {
    enum { WRITER_MS = 1000 };
    struct pollfd wait = {.fd = file, .events = POLLIN};
    struct stat s;
    for (bool asked = false;; asked = true) {
        ssize_t n = read(file, to, bytes);
        if (n > 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return n;
        if (n < 0) { /* a writer that has nothing yet */
            poll(&wait, 1, -1);
            continue;
        }
        if (begun || fstat(file, &s) || !S_ISFIFO(s.st_mode)) return 0;
        if (asked) {
            errno = EPIPE;
            return -1;
        }
        poll(&wait, 1, WRITER_MS);
    }
}

static int read_all(int file, size_t bytes_max, char **text, size_t *bytes) {
    size_t room = 0;
    for (ssize_t n = 1; n > 0 && *bytes <= bytes_max; *bytes += (size_t)n) {
        if (*bytes == room) {
            room = room ? 2 * room : 8192;
            if (room > bytes_max + 1) room = bytes_max + 1;
            char *larger = realloc(*text, room + 1);
            if (!larger) return ENOMEM;
            *text = larger;
        }
        n = read_some(file, *text + *bytes, room - *bytes, *bytes > 0);
        if (n < 0) return errno;
    }
    (*text)[*bytes] = 0;
    return 0;
}

int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return errno;
    int problem = read_all(file, bytes_max, text, bytes);
    close(file);
    if (!problem) return 0;
    free(*text);
    *text = NULL;
    return problem;
}

int textfile_read(const char *path, const char *what, size_t bytes_max, char **text, struct sluice_error *e) {
    size_t bytes;
    int problem = textfile_read_bytes(path, bytes_max, text, &bytes);
    if (!problem && bytes > bytes_max) problem = EFBIG;
    if (!problem && memchr(*text, 0, bytes)) problem = EILSEQ;
    if (!problem) return SLUICE_OK;
    free(*text);
    *text = NULL;
    return textfile_unreadable(path, what, problem, e);
}
