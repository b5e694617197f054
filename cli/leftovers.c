#include "cli/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char lock_name[] = ".sluice-unfinished";

enum { LOCK_PATH_BYTES = PATH_MAX + sizeof lock_name };

const char *leftovers_folder(const char *name, char out[PATH_MAX]) {
    const char *slash = strrchr(name, '/');
    int bytes = snprintf(out, PATH_MAX, "%.*s", slash ? (int)(slash - name + 1) : 2, slash ? name : "./");
    return bytes >= PATH_MAX ? NULL : slash ? slash + 1 : name;
}

/* Start of the suffix ".tmp.PID" of a name; NULL: none. */
static const char *temporary_suffix(const char *entry) {
    const char *at = NULL;
    for (const char *next = entry; (next = strstr(next, ".tmp.")); next++) at = next;
    return at && at[5] && !at[5 + strspn(at + 5, "0123456789")] ? at : NULL;
}

/* True for a regular file of this user that no process has locked. Locks it. */
static bool is_abandoned(int file) {
    struct stat info;
    bool ours = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    return ours && flock(file, LOCK_EX | LOCK_NB) == 0;
}

static void clear_file(int folder, const char *entry) {
    int file = openat(folder, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return;
    if (is_abandoned(file)) unlinkat(folder, entry, 0);
    close(file);
}

static void lock_path(const char *folder, char lock[LOCK_PATH_BYTES]) {
    snprintf(lock, LOCK_PATH_BYTES, "%s/%s", folder, lock_name);
}

static void clear_folder(const char *path) {
    char lock[LOCK_PATH_BYTES];
    lock_path(path, lock);
    int file = open(lock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return;
    if (is_abandoned(file)) leftovers_remove_tree(path);
    close(file);
}

void leftovers_clear(const char *name) {
    char folder[PATH_MAX], path[PATH_MAX];
    const char *base = leftovers_folder(name, folder);
    DIR *entries = base ? opendir(folder) : NULL;
    size_t length = base ? strlen(base) : 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *end = temporary_suffix(entry->d_name);
        if (!end) continue;
        bool of_name = length && end == entry->d_name + length && !strncmp(entry->d_name, base, length);
        if (of_name) clear_file(dirfd(entries), entry->d_name);
        if (snprintf(path, sizeof path, "%s%s", folder, entry->d_name) < PATH_MAX) clear_folder(path);
    }
    if (entries) closedir(entries);
}

int leftovers_lock(const char *folder) {
    char lock[LOCK_PATH_BYTES];
    lock_path(folder, lock);
    int file = open(lock, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 || !flock(file, LOCK_EX | LOCK_NB)) return file;
    close(file);
    return -1;
}

int leftovers_unlock(const char *folder) {
    char lock[LOCK_PATH_BYTES];
    lock_path(folder, lock);
    return unlink(lock);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void leftovers_remove_tree(const char *folder) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
