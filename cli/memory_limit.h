/* How much memory a process can have here: what budgets are compared with. */
#ifndef SLUICE_CLI_MEMORY_LIMIT_H
#define SLUICE_CLI_MEMORY_LIMIT_H

#include <stdint.h>

/* The least of MemTotal and the limits of the control groups this process is in; INT64_MAX where nothing
 * tells. */
int64_t memory_limit_bytes(void);

#endif
