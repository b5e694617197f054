#include "cli/textfile.h"

#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *textfile_problem(int problem) {
    return problem == EPIPE ? "no process writes to this pipe" : strerror(problem);
}

static int textfile_unreadable(const char *path, const char *what, int problem, struct sluice_error *e) {
    if (problem == EINTR) return interrupt_error(e);
    return fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "%s cannot be read: %s" WHERE "%s", what,
                textfile_problem(problem), path);
}

static bool is_pipe(int file) {
    struct stat s;
    return fstat(file, &s) == 0 && S_ISFIFO(s.st_mode);
}

/* Reads the next bytes; 0 at the end. begun: earlier reads returned bytes, so an empty read means a closed
 * pipe. */
static ssize_t read_some(int file, char *to, size_t bytes, bool begun) {
    enum { WRITER_MS = 1000, LOOK_MS = 100 };
    struct pollfd wait = {.fd = file, .events = POLLIN};
    for (int waited = 0; waited <= WRITER_MS;) {
        int ready = poll(&wait, 1, LOOK_MS);
        if (interrupt_pending()) return errno = EINTR, -1;
        if (ready <= 0 && file == STDIN_FILENO) continue; /* a read of stdin blocks */
        ssize_t n = read(file, to, bytes);
        if (n > 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return n;
        if (n == 0 && (begun || !is_pipe(file))) return 0;
        if (n == 0) waited += LOOK_MS;
    }
    errno = EPIPE;
    return -1;
}

static int read_all(int file, size_t bytes_max, char **text, size_t *bytes) {
    bool awaited = file != STDIN_FILENO; /* stdin always has a writer, even if it sends nothing */
    size_t capacity = 0;
    for (ssize_t n = 1; n > 0 && *bytes <= bytes_max; *bytes += (size_t)n) {
        if (*bytes == capacity) {
            capacity = capacity ? 2 * capacity : 8192;
            if (capacity > bytes_max + 1) capacity = bytes_max + 1;
            char *larger = realloc(*text, capacity + 1);
            if (!larger) return ENOMEM;
            *text = larger;
        }
        n = read_some(file, *text + *bytes, capacity - *bytes, !awaited || *bytes > 0);
        if (n < 0) return errno;
    }
    (*text)[*bytes] = 0;
    return 0;
}

int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    bool is_stdin = strcmp(path, "-") == 0;
    int file = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return errno;
    int problem = read_all(file, bytes_max, text, bytes);
    if (!is_stdin) close(file);
    if (!problem) return 0;
    free(*text);
    *text = NULL;
    return problem;
}

/* Error for a file that is too large for its kind and thus probably the wrong file. */
static int textfile_too_large(const char *path, const struct textfile_kind *kind, struct sluice_error *e) {
    struct stat s;
    fail(e, kind->too_large, "%s is too large" WHERE "%s", kind->what, path);
    char size[32];
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode))
        fail_found(e, "%s", progress_bytes((double)s.st_size, size));
    return fail_expected(e, "at most %s", progress_bytes((double)kind->bytes_max, size));
}

static bool is_larger(const char *path, size_t bytes_max) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) && (uint64_t)s.st_size > bytes_max;
}

int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e) {
    size_t bytes = 0;
    *text = NULL;
    if (is_larger(path, kind->bytes_max)) return textfile_too_large(path, kind, e);
    int problem = textfile_read_bytes(path, kind->bytes_max, text, &bytes);
    bool larger = bytes > kind->bytes_max;
    if (!problem && !larger && memchr(*text, 0, bytes)) problem = EILSEQ;
    if (!problem && !larger) return SLUICE_OK;
    free(*text);
    *text = NULL;
    return larger ? textfile_too_large(path, kind, e) : textfile_unreadable(path, kind->what, problem, e);
}
