#include "engine/open/paths.h"

#include <ctype.h>
#include <errno.h>
#include <linux/magic.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/vfs.h>

char *path_join(struct sys *sys, const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    size_t slash = a && folder[a - 1] != '/';
    char *path = sys->alloc(sys, LINE_HOST, a + slash + b + 1);
    if (!path) return NULL;
    memcpy(path, folder, a);
    if (slash) path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}

bool path_exists(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool path_same(const char *a, const char *b) {
    struct stat one, other;
    if (stat(a, &one) || stat(b, &other)) return strcmp(a, b) == 0;
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool path_is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool path_is_on_kernel_files(const char *path) {
    static const unsigned long kinds[] = {PROC_SUPER_MAGIC,   SYSFS_MAGIC,      DEVPTS_SUPER_MAGIC,
                                          DEBUGFS_MAGIC,      TRACEFS_MAGIC,    CGROUP2_SUPER_MAGIC,
                                          CGROUP_SUPER_MAGIC, SECURITYFS_MAGIC, BPF_FS_MAGIC};
    struct statfs s;
    if (statfs(path, &s)) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((unsigned long)s.f_type == kinds[i]) return true;
    return false;
}

static char *no_memory(struct error *e) {
    error_set(e, MEMORY, "no memory for a path");
    return NULL;
}

char *path_copy(struct sys *sys, const char *path, struct error *e) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    char *copy = sys->alloc(sys, LINE_HOST, n + 1); /* zeroed memory, so the copy ends in a NUL */
    return copy ? memcpy(copy, path, n) : no_memory(e);
}

char *path_folder(struct sys *sys, const char *path, struct error *e) {
    char *folder = path_copy(sys, path, e);
    if (!folder) return NULL;
    size_t n = strlen(folder);
    while (n > 0 && folder[n - 1] != '/') n--;
    while (n > 1 && folder[n - 1] == '/') n--;
    if (!n) folder[n++] = '.'; /* a path without slash has at least one byte, which "." replaces */
    folder[n] = 0;
    return folder;
}

char *path_existing(struct sys *sys, const char *folder, const char *name, struct error *e) {
    char *path = path_join(sys, folder, name);
    if (!path) return no_memory(e);
    if (path_exists(path)) return path;
    sys->release(sys, path);
    return NULL;
}

const char *path_last_part(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    return path + n;
}

bool path_has_word(const char *name, const char *word) {
    size_t bytes = strlen(word);
    for (const char *at = name; *at; at++) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && !strncasecmp(at, word, bytes) && !isalnum((unsigned char)at[bytes])) return true;
    }
    return false;
}
