/* Control groups: what the system lets this process have of memory and processors, where that is less than
 * the machine. Both versions, alone or beside each other; a group's limits hold for all below it, so the
 * least of the process's group and of those around it counts.
 *
 * root: where the system's files are: "" on the machine itself; tests give trees of their own. Allocates
 * nothing: it is asked in mid-run, when there may be nothing left. Linux; elsewhere nothing is limited. */
#ifndef SLUICE_BASE_CONTROL_GROUPS_H
#define SLUICE_BASE_CONTROL_GROUPS_H

#include <stdint.h>

/* The limit in bytes; UINT64_MAX for none. */
uint64_t control_groups_memory(const char *root);
/* What the limits leave, where pages that only cache files count as free; UINT64_MAX for no limit. */
uint64_t control_groups_memory_left(const char *root);
/* Processors' time in a second of the clock, as 1.5; HUGE_VAL for no limit. */
double control_groups_processors(const char *root);

/* A file below root, cut at CONTROL_GROUPS_TEXT bytes with their NUL; empty where there is none. */
enum { CONTROL_GROUPS_TEXT = 8192 };
const char *control_groups_text(const char *root, const char *path, char text[CONTROL_GROUPS_TEXT]);
/* The number behind a line's name in such a text; 0 if there is no such line. */
uint64_t control_groups_number(const char *text, const char *name);

#endif
