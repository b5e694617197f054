/* NUMA memory nodes. Host memory for copies to a GPU should lie on the GPU's node; otherwise every copy also
 * crosses the link between processors. Linux only; no effect on machines with one node. root: as in
 * control_groups.h. */
#ifndef SLUICE_BASE_MEMORY_NODES_H
#define SLUICE_BASE_MEMORY_NODES_H

#include <stddef.h>

/* NUMA node of a PCI device such as "0000:41:00.0" (any case); -1 if unknown or if there is only one node. */
int memory_nodes_of_device(const char *root, const char *bus);
/* Requests that whole pages lie on a NUMA node, and moves existing pages there. The system may refuse, as in
 * containers. node -1: no effect. */
void memory_nodes_prefer(int node, void *memory, size_t bytes);

#endif
