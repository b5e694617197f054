/* Text files: see textfile.h. */
#include "cli/textfile.h"

#include "cli/fail.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unreadable(const char *path, const char *what, int problem, struct sluice_error *e) {
    fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "%s cannot be read", what);
    fail_where(e, "%s", path);
    return fail_found(e, "%s", strerror(problem));
}

/* Everything up to the limit; *bytes is above it where there is more. */
static int read_all(FILE *file, size_t bytes_max, char **text, size_t *bytes) {
    size_t room = 4096;
    do {
        room = 2 * room < bytes_max + 1 ? 2 * room : bytes_max + 1;
        char *larger = realloc(*text, room + 1);
        if (!larger) return ENOMEM;
        *text = larger;
        *bytes += fread(larger + *bytes, 1, room - *bytes, file);
    } while (*bytes == room && room <= bytes_max);
    (*text)[*bytes] = 0;
    return ferror(file) ? EIO : 0;
}

int textfile_read(const char *path, const char *what, size_t bytes_max, char **text, struct sluice_error *e) {
    size_t bytes = 0;
    *text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return unreadable(path, what, errno, e);
    int problem = read_all(file, bytes_max, text, &bytes);
    fclose(file);
    if (!problem && bytes > bytes_max) problem = EFBIG;
    if (!problem && memchr(*text, 0, bytes)) problem = EILSEQ;
    if (!problem) return SLUICE_OK;
    free(*text);
    *text = NULL;
    return unreadable(path, what, problem, e);
}
