/* Memory and processor limits that Linux control groups impose on this process: cgroup versions 1 and 2,
 * alone or together. A group's limits apply to all groups below it, so the smallest limit of the process's
 * group and its ancestors counts. Outside Linux there are no limits. Parameter `root`: prefix of system paths
 * ("" on a real machine, other trees in tests). The functions allocate nothing, because they run while memory
 * may be short. */
#ifndef SLUICE_BASE_CONTROL_GROUPS_H
#define SLUICE_BASE_CONTROL_GROUPS_H

#include <stdint.h>

/* Memory limit in bytes; UINT64_MAX: no limit. */
uint64_t control_groups_memory(const char *root);
/* Bytes left below the memory limits; the page cache counts as free. UINT64_MAX for no limit. */
uint64_t control_groups_memory_left(const char *root);
/* Processor quota in processors, such as 1.5; HUGE_VAL for no limit. */
double control_groups_processors(const char *root);

/* Reads a file below root, truncated to CONTROL_GROUPS_TEXT bytes with the NUL; "" if the file is missing. */
enum { CONTROL_GROUPS_TEXT = 8192 };
const char *control_groups_text(const char *root, const char *path, char text[CONTROL_GROUPS_TEXT]);
/* Returns the number after `name` in a cgroup file ("NAME NUMBER" lines); 0 if no line has the name. */
uint64_t control_groups_number(const char *text, const char *name);

#endif
