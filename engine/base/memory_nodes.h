/* Memory nodes (NUMA): on machines of several, memory that is copied to a GPU belongs to the node that the
 * GPU hangs on, or every copy crosses the bus between processors as well. Linux; elsewhere, and where there
 * is one node, nothing happens. root: as in control_groups.h. */
#ifndef SLUICE_BASE_MEMORY_NODES_H
#define SLUICE_BASE_MEMORY_NODES_H

#include <stddef.h>

/* The node of a PCI device, "0000:41:00.0" in either case; -1 where the machine has one node, or does not
 * say. */
int memory_nodes_of_device(const char *root, const char *bus);
/* From here on these whole pages come from the node where it has some left, and those that are there already
 * go there. A system that refuses (containers do) leaves them where they are. node -1: does nothing. */
void memory_nodes_prefer(int node, void *memory, size_t bytes);

#endif
