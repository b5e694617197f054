/* Memory pressure: how many bytes of residents a run evicts when other programs take memory. */
#ifndef SLUICE_API_PRESSURE_H
#define SLUICE_API_PRESSURE_H

#include <stdint.h>

enum { PRESSURE_RESERVE_MOST = 512 << 20, PRESSURE_RESERVE_LEAST = 32 << 20 };

/* Bytes of free memory below which a run evicts residents: half of the memory that stays free at the run's
 * planned peak, within PRESSURE_RESERVE_LEAST and PRESSURE_RESERVE_MOST. Only half of that memory, so that a
 * run does not mistake its own growth for another program's. free_bytes: free memory before the run; if 0
 * (unknown) the function returns 0. has_bytes: the process's memory before the run. peak_bytes: the process's
 * planned peak. Pure. */
uint64_t pressure_reserve(uint64_t free_bytes, uint64_t has_bytes, uint64_t peak_bytes);

/* Bytes of residents to evict now; 0: none. Pure. */
uint64_t pressure_bytes(uint64_t reserve, uint64_t free_bytes);

#endif
