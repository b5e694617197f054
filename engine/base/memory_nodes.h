/* Memory nodes (NUMA). On machines with several nodes, host memory for copies to a GPU should lie on the
 * GPU's node; otherwise every copy also crosses the link between processors. Linux only; no effect on
 * machines with one node. root: as in control_groups.h. */
#ifndef SLUICE_BASE_MEMORY_NODES_H
#define SLUICE_BASE_MEMORY_NODES_H

#include <stddef.h>

/* Node of a PCI device such as "0000:41:00.0", in either case; -1 if the machine has one node or the node is
 * unknown. */
int memory_nodes_of_device(const char *root, const char *bus);
/* Prefers a node for these whole pages and moves pages that exist. A system may refuse (containers do); pages
 * then stay. node -1: no effect. */
void memory_nodes_prefer(int node, void *memory, size_t bytes);

#endif
