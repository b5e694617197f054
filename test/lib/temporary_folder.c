#include "test/lib/temporary_folder.h"

#include "test/lib/check.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char temporary[64];

static void temporary_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temporary);
    if (temporary[0] && system(command)) puts("cannot remove the temporary folder");
}

void temporary_make_in(const char *parent) {
    snprintf(temporary, sizeof temporary, "%s/sluice_test_XXXXXX", parent);
    if (!mkdtemp(temporary)) abort();
    atexit(temporary_remove);
}

void temporary_make(void) {
    temporary_make_in("/tmp");
}

const char *temporary_path(const char *name) {
    static char paths[16][256];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof *paths, "%s/%s", temporary, name);
    return path;
}

const char *copy_model_folder(const char *folder, const char *name) {
    static char to[160];
    snprintf(to, sizeof to, "%s/%s", temporary, name);
    shell("rm -rf '%s' && cp -r '%s' '%s'", to, folder, to);
    return to;
}

int count_files(const char *folder) {
    int n = -2; /* . and .. */
    DIR *entries = opendir(folder);
    while (entries && readdir(entries)) n++;
    if (entries) closedir(entries);
    return n;
}

void shell(const char *format, ...) {
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    check(system(command) == 0, "%s", command);
}

char *read_file(const char *path, size_t *bytes) {
    struct stat s;
    FILE *file = fopen(path, "rb");
    char *text = file && !fstat(fileno(file), &s) ? malloc((size_t)s.st_size + 1) : NULL;
    *bytes = text ? fread(text, 1, (size_t)s.st_size, file) : 0;
    if (text) text[*bytes] = 0;
    if (file) fclose(file);
    return text;
}

void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(bytes, 1, n, file) == n;
    check(file && !fclose(file) && written, "cannot write %s", path);
}

void write_text_below(const char *folder, const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s/%s", folder, path);
    shell("mkdir -p \"$(dirname '%s')\"", name);
    write_file(name, text, strlen(text));
}
