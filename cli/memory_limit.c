/* The machine's memory: see memory_limit.h. Linux: /proc/meminfo and control groups, versions 1 and 2. */
#include "cli/memory_limit.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The number in a file that holds one; "max" and no file are no limit. */
static int64_t read_limit(const char *path) {
    long long bytes = 0;
    FILE *file = fopen(path, "r");
    if (!file) return INT64_MAX;
    int n = fscanf(file, "%lld", &bytes);
    fclose(file);
    return n == 1 && bytes > 0 ? bytes : INT64_MAX;
}

static int64_t memory_limit_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* A group's limit holds for everything below it, so every ancestor counts. Inside a container the path may
 * name folders that are not mounted; the root is asked as well. */
static int64_t walk_groups(const char *root, const char *file, char *path) {
    char name[PATH_MAX];
    int64_t limit = INT64_MAX;
    for (;;) {
        snprintf(name, sizeof name, "%s%s/%s", root, path, file);
        limit = memory_limit_least(limit, read_limit(name));
        char *slash = strrchr(path, '/');
        if (!slash) return limit;
        *slash = 0;
    }
}

static int64_t group_limit(void) {
    char line[PATH_MAX];
    int64_t limit = INT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file) return limit;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (!controllers[1])
            limit = memory_limit_least(limit, walk_groups("/sys/fs/cgroup", "memory.max", path));
        if (strstr(controllers, "memory"))
            limit = memory_limit_least(limit,
                                       walk_groups("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path));
    }
    fclose(file);
    return limit;
}

static int64_t total_memory(void) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return INT64_MAX;
    while (fgets(line, sizeof line, file) && sscanf(line, "MemTotal: %lld kB", &kib) != 1) {
    }
    fclose(file);
    return kib > 0 ? kib * 1024 : INT64_MAX;
}

int64_t memory_limit_bytes(void) {
    return memory_limit_least(total_memory(), group_limit());
}
