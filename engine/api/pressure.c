#include "engine/api/pressure.h"

uint64_t pressure_reserve(uint64_t free_bytes, uint64_t has_bytes, uint64_t peak_bytes) {
    if (!free_bytes) return 0;
    uint64_t all = free_bytes + has_bytes, left = all > peak_bytes ? all - peak_bytes : 0;
    if (left / 2 > PRESSURE_RESERVE_MOST) return PRESSURE_RESERVE_MOST;
    return left / 2 < PRESSURE_RESERVE_LEAST ? PRESSURE_RESERVE_LEAST : left / 2;
}

uint64_t pressure_bytes(uint64_t reserve, uint64_t free_bytes) {
    return free_bytes && free_bytes < reserve ? reserve - free_bytes : 0;
}
