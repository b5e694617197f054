/* Free memory: see free_memory.h. Linux. */
#include "engine/base/free_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 8192 };

/* A file of the system, cut at TEXT_BYTES; empty where there is none. */
static const char *free_memory_read_text(const char *path, char *text) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, text, TEXT_BYTES - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* The number behind a line's name; 0 if there is no such line. */
static uint64_t free_memory_number_of(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, n)) return strtoull(line + n, NULL, 10);
    }
    return 0;
}

/* Both versions of control groups, as the process sees its own. */
static const struct group {
    const char *limit, *usage, *stat, *cached[2];
} groups[] = {
    {"/sys/fs/cgroup/memory.max",
     "/sys/fs/cgroup/memory.current",
     "/sys/fs/cgroup/memory.stat",
     {"inactive_file ", "active_file "}},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
     "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat",
     {"total_inactive_file ", "total_active_file "}},
};

/* What a group's limit leaves; UINT64_MAX without a limit. Files that are read fill the group up to its limit
 * with cached pages, which nobody misses: without them every run would seem to be under pressure. */
static uint64_t group_rest(const struct group *group) {
    char text[TEXT_BYTES];
    uint64_t limit = strtoull(free_memory_read_text(group->limit, text), NULL, 10); /* "max" is 0 */
    uint64_t usage = strtoull(free_memory_read_text(group->usage, text), NULL, 10);
    if (!limit || !usage) return UINT64_MAX;
    free_memory_read_text(group->stat, text);
    uint64_t cached =
        free_memory_number_of(text, group->cached[0]) + free_memory_number_of(text, group->cached[1]);
    uint64_t used = usage > cached ? usage - cached : 0;
    return limit > used ? limit - used : 0;
}

uint64_t free_memory_bytes(void) {
    char text[TEXT_BYTES];
    uint64_t bytes = free_memory_number_of(free_memory_read_text("/proc/meminfo", text), "MemAvailable:")
                     << 10;
    if (!bytes) return 0;
    for (int i = 0; i < 2; i++) {
        uint64_t rest = group_rest(&groups[i]);
        if (rest < bytes) bytes = rest;
    }
    return bytes ? bytes : 1;
}
