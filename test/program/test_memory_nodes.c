/* NUMA node of a PCI device, read from a simulated /sys; moving pages to a node keeps their contents. */
#include "engine/base/machine_limits.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct machine {
    const char *label, *nodes, *device, *text;
    int node;
} machines[] = {
    {"two nodes", "0-1\n", "0000:c1:00.0", "1\n", 1},
    {"the first of two", "0-1\n", "0000:41:00.0", "0\n", 0},
    {"nodes with a gap", "0,8\n", "0000:c1:00.0", "8\n", 8},
    {"one node", "0\n", "0000:c1:00.0", "0\n", -1},
    {"a device without one", "0-1\n", "0000:c1:00.0", "-1\n", -1},
    {"an empty numa_node file", "0-1\n", "0000:c1:00.0", "", -1},
    {"no nodes", "", "0000:c1:00.0", "1\n", -1},
    {"a node number above the maximum", "0-1\n", "0000:c1:00.0", "1024\n", -1},
};

/* The PCI bus id is in upper case, as CUDA reports it. */
static void test_device_node(const struct machine *m, int i) {
    char root[256], path[128], bus[32];
    snprintf(root, sizeof root, "%s/%d", temporary, i);
    write_text_below(root, "sys/devices/system/node/online", m->nodes);
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/numa_node", m->device);
    write_text_below(root, path, m->text);
    snprintf(bus, sizeof bus, "%s", m->device);
    if (bus[5] == 'c') bus[5] = 'C';
    int node = memory_nodes_of_device(root, bus);
    check(node == m->node, "%s: node %d, expected %d", m->label, node, m->node);
    check(memory_nodes_of_device(root, "0000:99:00.0") == -1, "%s: an unknown device has a node", m->label);
}

static void test_move_keeps_contents(void) {
    enum { BYTES = 1 << 20 };
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "no memory");
    memset(memory, 7, BYTES / 2);
    for (int node = -1; node < 3; node++) memory_nodes_prefer(node, memory, BYTES);
    memory_nodes_prefer(1 << 20, memory, BYTES);
    for (int i = 0; i < BYTES; i++)
        if (memory[i] != (i < BYTES / 2 ? 7 : 0)) {
            check(false, "a page lost its contents");
            break;
        }
    munmap(memory, BYTES);
}

int main(void) {
    temporary_make();
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) test_device_node(&machines[i], (int)i);
    test_move_keeps_contents();
    return finish();
}
