/* What Linux offers this process, read from /proc and /sys: the limits of control groups (cgroup versions 1
 * and 2, alone or together), free memory, and NUMA nodes. Outside Linux there are no limits and one node.
 * Parameter `root`: prefix of system paths ("" on a real machine, other trees in tests). The functions
 * allocate nothing, because they run while memory may be short. */
#ifndef SLUICE_BASE_MACHINE_LIMITS_H
#define SLUICE_BASE_MACHINE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory limit of the process's Linux control groups (cgroups) in bytes; UINT64_MAX: no limit. A group's
 * limit applies to all groups below it, so the smallest limit of the process's group and its ancestors
 * counts. */
uint64_t control_groups_memory(const char *root);
/* Bytes left below the cgroup memory limits; the page cache counts as free. UINT64_MAX for no limit. */
uint64_t control_groups_memory_left(const char *root);
/* CPU quota of the cgroups in processors, such as 1.5; HUGE_VAL for no limit. */
double control_groups_processors(const char *root);

/* Reads a file below root, truncated to CONTROL_GROUPS_TEXT bytes with the NUL; "" if the file is missing. */
enum { CONTROL_GROUPS_TEXT = 8192 };
const char *control_groups_text(const char *root, const char *path, char text[CONTROL_GROUPS_TEXT]);
/* Returns the number after `name` in a cgroup file ("NAME NUMBER" lines); 0 if no line has the name. */
uint64_t control_groups_number(const char *text, const char *name);

/* Free memory of the machine in bytes without swapping, or the bytes that this process's control groups
 * leave, if fewer. The page cache counts as free. Returns 0 if unknown, otherwise at least 1. */
uint64_t free_memory_bytes(const char *root);

/* True on a virtual machine whose host takes free pages back: with a virtio balloon that reports free pages,
 * or Hyper-V's balloon driver. The first touch of such a page is then a page fault on the host too. */
bool host_takes_free_pages(const char *root);

/* NUMA node of a PCI device such as "0000:41:00.0" (any case); -1 if unknown or if there is only one node.
 * Host memory for copies to a GPU should lie on the GPU's node; otherwise every copy also crosses the link
 * between processors. */
int memory_nodes_of_device(const char *root, const char *bus);
/* Requests that whole pages lie on a NUMA node, and moves existing pages there. The system may refuse, as in
 * containers. node -1: no effect. */
void memory_nodes_prefer(int node, void *memory, size_t bytes);

#endif
