/* Pressure: when another program takes memory during a run, how much of it should go back. */
#ifndef SLUICE_API_PRESSURE_H
#define SLUICE_API_PRESSURE_H

#include <stdint.h>

enum { PRESSURE_RESERVE_MOST = 512 << 20, PRESSURE_RESERVE_LEAST = 32 << 20 };

/* Free memory under which a run gives residents up. From what is free before it begins, what the process has
 * then, and what it will have at its planned peak: half of what that leaves, so that a run never takes its
 * own plan for another program; at most a desktop's comfort, at least what keeps a machine alive. 0 where it
 * is not known what is free. Pure. */
uint64_t pressure_reserve(uint64_t free_bytes, uint64_t has_bytes, uint64_t peak_bytes);

/* Bytes to give up now; 0: none. Pure. */
uint64_t pressure_bytes(uint64_t reserve, uint64_t free_bytes);

#endif
