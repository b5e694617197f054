/* Limits of memory and processors that Linux control groups impose on this process. Supports cgroup versions
 * 1 and 2, alone or together. A group's limits apply to all groups below it, so the smallest limit of the
 * process's group and its ancestors counts.
 *
 * root: prefix of system paths; "" on a real machine, other trees in tests. Allocates nothing, because it is
 * called during runs when memory may be short. Systems other than Linux have no limits. */
#ifndef SLUICE_BASE_CONTROL_GROUPS_H
#define SLUICE_BASE_CONTROL_GROUPS_H

#include <stdint.h>

/* The limit in bytes; UINT64_MAX for none. */
uint64_t control_groups_memory(const char *root);
/* Bytes left below the limits; the page cache counts as free. UINT64_MAX for no limit. */
uint64_t control_groups_memory_left(const char *root);
/* Number of processors' worth of time, such as 1.5; HUGE_VAL for no limit. */
double control_groups_processors(const char *root);

/* Reads a file below root, truncated to CONTROL_GROUPS_TEXT bytes with the NUL; empty if there is none. */
enum { CONTROL_GROUPS_TEXT = 8192 };
const char *control_groups_text(const char *root, const char *path, char text[CONTROL_GROUPS_TEXT]);
/* The number after a name at the start of a line; 0 if there is no such line. */
uint64_t control_groups_number(const char *text, const char *name);

#endif
