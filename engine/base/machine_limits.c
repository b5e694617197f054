/* Reads limits, free memory and NUMA nodes from /proc and /sys: implements machine_limits.h. Direct system
 * calls avoid a dependency on libnuma. */
#include "engine/base/machine_limits.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *control_groups_text(const char *root, const char *path, char text[CONTROL_GROUPS_TEXT]) {
    char name[PATH_MAX];
    bool fits = snprintf(name, sizeof name, "%s%s", root, path) < (int)sizeof name;
    int file = fits ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = file < 0 ? 0 : read(file, text, CONTROL_GROUPS_TEXT - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = 0;
    return text;
}

uint64_t control_groups_number(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, n)) return strtoull(line + n, NULL, 10);
    }
    return 0;
}

/* A Linux control group, by the path of its folder below root. */
struct group {
    const char *root;
    char folder[PATH_MAX];
};

static const char *group_text(const struct group *g, const char *file, char text[CONTROL_GROUPS_TEXT]) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", g->folder, file);
    return control_groups_text(g->root, path, text);
}

/* Reads a number from a file of the Linux control group; 0 for "max" and for a missing file. */
static uint64_t group_number(const struct group *g, const char *file) {
    char text[CONTROL_GROUPS_TEXT];
    const char *first = group_text(g, file, text);
    return *first == '-' ? 0 : strtoull(first, NULL, 10);
}

/* Names of the limit files of Linux control groups, for both cgroup versions. */
static const struct version {
    const char *controller; /* controller name in /proc/self/cgroup; "" for cgroup version 2 */
    const char *mounts[2];
    const char *limit, *usage, *cached[2];
} memory_versions[] = {{"",
                        {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
                        "memory.max",
                        "memory.current",
                        {"inactive_file ", "active_file "}},
                       {"memory",
                        {"/sys/fs/cgroup/memory"},
                        "memory.limit_in_bytes",
                        "memory.usage_in_bytes",
                        {"total_inactive_file ", "total_active_file "}}},
  processor_versions[] = {{"", {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, .limit = "cpu.max"},
                          {"cpu",
                           {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"},
                           .limit = "cpu.cfs_quota_us",
                           .usage = "cpu.cfs_period_us"}};

static double group_memory(const struct group *g, const struct version *v) {
    uint64_t limit = group_number(g, v->limit);
    return limit ? (double)limit : HUGE_VAL;
}

/* The page cache is subtracted from the memory use of a Linux control group: cached file pages fill a group
 * up to its limit, and every run would seem short of memory. */
static double group_memory_left(const struct group *g, const struct version *v) {
    char text[CONTROL_GROUPS_TEXT];
    uint64_t limit = group_number(g, v->limit), usage = group_number(g, v->usage), cached = 0;
    if (!limit || !usage) return HUGE_VAL;
    group_text(g, "memory.stat", text);
    for (int i = 0; i < 2; i++) cached += control_groups_number(text, v->cached[i]);
    uint64_t used = usage > cached ? usage - cached : 0;
    return limit > used ? (double)(limit - used) : 0;
}

/* Reads a control group's CPU quota and period from one file ("150000 100000") or from two files. A quota of
 * -1 or "max" means no limit. */
static double group_processors(const struct group *g, const struct version *v) {
    char text[CONTROL_GROUPS_TEXT], *after;
    double quota = strtod(group_text(g, v->limit, text), &after);
    double period = v->usage ? (double)group_number(g, v->usage) : strtod(after, NULL);
    return quota > 0 && period > 0 ? quota / period : HUGE_VAL;
}

typedef double group_limit(const struct group *group, const struct version *version);

static double least(double a, double b) {
    return a < b ? a : b;
}

/* Returns the smallest limit of a Linux control group and its ancestors. Folders that a container does not
 * mount are skipped. */
static double least_of_ancestors(const char *root, const char *mount, const char *path,
                                 const struct version *v, group_limit *limit_of) {
    struct group group = {.root = root};
    double found = HUGE_VAL;
    size_t mounted = strlen(mount);
    if (snprintf(group.folder, sizeof group.folder, "%s%s", mount, path) >= (int)sizeof group.folder)
        group.folder[mounted] = 0;
    for (;;) {
        found = least(found, limit_of(&group, v));
        char *slash = strrchr(group.folder, '/');
        if (!group.folder[mounted] || !slash) return found;
        *slash = 0;
    }
}

/* True if a control group's controller list, such as "cpu,cpuacct", contains the controller. For cgroup
 * version 2 the list must be empty. */
static bool has_controller(const char *names, size_t bytes, const char *controller) {
    size_t n = strlen(controller);
    if (!n) return bytes == 0;
    for (size_t at = 0; at + n <= bytes; at++) {
        bool begins = !at || names[at - 1] == ',', ends = at + n == bytes || names[at + n] == ',';
        if (begins && ends && !memcmp(names + at, controller, n)) return true;
    }
    return false;
}

/* Returns the smallest limit over both cgroup versions and their mounts. */
static double least_of(const char *root, const struct version versions[2], group_limit *limit_of) {
    char lines[CONTROL_GROUPS_TEXT], path[PATH_MAX];
    double found = HUGE_VAL;
    control_groups_text(root, "/proc/self/cgroup", lines);
    for (int i = 0; i < 2; i++) {
        /* In /proc/self/cgroup a line such as "4:cpu,cpuacct:/a/b" gives the group of a controller. Without
         * such a line it is the root group. */
        path[0] = 0;
        for (const char *line = lines; line && *line; line = strchr(line, '\n')) {
            line += *line == '\n';
            const char *names = strchr(line, ':'), *end = names ? strchr(names + 1, ':') : NULL;
            if (!end || !has_controller(names + 1, (size_t)(end - names - 1), versions[i].controller))
                continue;
            snprintf(path, sizeof path, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
            break;
        }
        for (int m = 0; m < 2 && versions[i].mounts[m]; m++)
            found =
                least(found, least_of_ancestors(root, versions[i].mounts[m], path, &versions[i], limit_of));
    }
    return found;
}

static uint64_t bytes_of(double bytes) {
    return bytes < 1e18 ? (uint64_t)bytes : UINT64_MAX;
}

uint64_t control_groups_memory(const char *root) {
    return bytes_of(least_of(root, memory_versions, group_memory));
}

uint64_t control_groups_memory_left(const char *root) {
    return bytes_of(least_of(root, memory_versions, group_memory_left));
}

double control_groups_processors(const char *root) {
    return least_of(root, processor_versions, group_processors);
}

uint64_t free_memory_bytes(const char *root) {
    char text[CONTROL_GROUPS_TEXT];
    uint64_t bytes = control_groups_number(control_groups_text(root, "/proc/meminfo", text), "MemAvailable:")
                     << 10;
    if (!bytes) return 0;
    uint64_t left = control_groups_memory_left(root);
    if (left < bytes) bytes = left;
    return bytes ? bytes : 1;
}

bool host_takes_free_pages(const char *root) {
    /* Bit VIRTIO_BALLOON_F_REPORTING of the virtio specification. `features` has one digit per bit, bit 0
     * first. Device type 5 is a balloon. */
    enum { DEVICES_MAX = 32, FEATURE_REPORTING = 5 };
    char path[PATH_MAX], text[CONTROL_GROUPS_TEXT];
    for (int i = 0; i < DEVICES_MAX; i++) {
        snprintf(path, sizeof path, "/sys/bus/virtio/devices/virtio%d/device", i);
        if (strcmp(control_groups_text(root, path, text), "0x0005\n")) continue;
        snprintf(path, sizeof path, "/sys/bus/virtio/devices/virtio%d/features", i);
        control_groups_text(root, path, text);
        if (strlen(text) > FEATURE_REPORTING && text[FEATURE_REPORTING] == '1') return true;
    }
    bool fits = snprintf(path, sizeof path, "%s/sys/bus/vmbus/drivers/hv_balloon", root) < (int)sizeof path;
    return fits && !access(path, F_OK);
}

/* Constants of linux/mempolicy.h; the header is missing on some systems. */
enum { PREFERRED = 1, MOVE = 2, NODES_MAX = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

int memory_nodes_of_device(const char *root, const char *bus) {
    char path[128], text[CONTROL_GROUPS_TEXT];
    control_groups_text(root, "/sys/devices/system/node/online", text);
    /* A machine with one NUMA node: the list is a number, not "0-1" or "0,2". */
    if (!strpbrk(text, "-,")) return -1;
    int n = snprintf(path, sizeof path, "/sys/bus/pci/devices/%.32s/numa_node", bus);
    /* Sysfs has lower-case PCI addresses. */
    for (int i = 0; i < n; i++) path[i] = (char)tolower((unsigned char)path[i]);
    control_groups_text(root, path, text);
    int node = isdigit((unsigned char)text[0]) ? atoi(text) : -1;
    return node < NODES_MAX ? node : -1;
}

void memory_nodes_prefer(int node, void *memory, size_t bytes) {
    unsigned long mask[NODES_MAX / WORD_BITS] = {0};
    if (node < 0 || node >= NODES_MAX) return;
    mask[(size_t)node / WORD_BITS] = 1ul << (size_t)node % WORD_BITS;
    /* mbind uses one bit less than the bit count passed to it, hence + 1. */
    (void)syscall(SYS_mbind, memory, bytes, PREFERRED, mask, (unsigned long)NODES_MAX + 1, (unsigned)MOVE);
}
