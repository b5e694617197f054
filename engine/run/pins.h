/* Host memory as a device reaches it: shared memory, which its operators read and write over the bus, and
 * pinned memory, out of which copies run beside computing.
 *
 * Pinning takes a fifth of a second a GiB and more, so a pool is pinned in chunks, by whoever is first to
 * copy out of one, while the device computes. */
#ifndef SLUICE_RUN_PINS_H
#define SLUICE_RUN_PINS_H

#include "kernels/device.h"

/* Whole pages, zeroed; of the host's own where the device has no memory of its own or takes any. NULL when
 * there are none. */
void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes);
void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes);

enum { PINS_CHUNK = 64 << 20, PINS_MAX = 4096 };

/* What of a range is pinned. Zero: nothing, and nothing will be. One thread uses it at a time. */
struct pins {
    struct device *device;
    char *memory;
    uint64_t bytes, chunk;
    uint64_t pinned[PINS_MAX / 64];
    bool refused; /* a chunk could not be pinned: no more are tried */
};

/* For memory (whole pages) that stays until pins_end. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes);
/* Pins the chunk that holds this byte, unless it is or cannot be. Returns where the chunk ends: one copy may
 * not go beyond. *pinned: it is now, or nobody need. */
uint64_t pins_cover(struct pins *pins, uint64_t from, bool *pinned);
/* Unpins. Nothing is being copied out of it any more. */
void pins_end(struct pins *pins);

#endif
