/* NUMA memory nodes: see memory_nodes.h. Direct system calls avoid a dependency on libnuma. */
#include "engine/base/memory_nodes.h"

#include "engine/base/control_groups.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Constants of linux/mempolicy.h; the header is missing on some systems. */
enum { PREFERRED = 1, MOVE = 2, NODES_MAX = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

/* True if a sysfs list of nodes, such as "0-1" or "0,2", has more than one node. */
static int several(const char *list) {
    return strpbrk(list, "-,") != NULL;
}

int memory_nodes_of_device(const char *root, const char *bus) {
    char path[128], text[CONTROL_GROUPS_TEXT];
    if (!several(control_groups_text(root, "/sys/devices/system/node/online", text))) return -1;
    int n = snprintf(path, sizeof path, "/sys/bus/pci/devices/%.32s/numa_node", bus);
    for (int i = 0; i < n; i++) path[i] = (char)tolower((unsigned char)path[i]); /* sysfs uses lower case */
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
