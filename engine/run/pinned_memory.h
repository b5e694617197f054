/* Host memory for use by a device: shared memory, which operators read and write over the bus, and pinned
 * memory, from which copies run concurrently with computation.
 *
 * Pinning takes 0.2 seconds per GiB or more, so a pool is pinned in chunks while the device computes. Each
 * chunk is pinned by a reader thread that copies from it and has no copy under way; other readers continue
 * with pinned chunks. Systems limit pinned memory, some to almost nothing: a refused chunk is not tried
 * again, the other chunks are. */
#ifndef SLUICE_RUN_PINNED_MEMORY_H
#define SLUICE_RUN_PINNED_MEMORY_H

#include "kernels/device.h"

/* Maps whole zeroed pages; plain host memory if the device has no memory of its own or accepts any host
 * memory. NULL: out of memory. */
void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes);
void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes);

/* Memory above 32 GiB uses larger chunks. */
enum { PINS_CHUNK = 64 << 20, PINS_MAX = 512 };

enum pin_state { PIN_NOT_YET, PIN_UNDER_WAY, PIN_DONE, PIN_REFUSED };

/* Pinned chunks of a memory range. Zero-initialised: nothing is pinned and nothing needs to be. */
struct pins {
    struct device *device;
    char *memory;
    uint64_t bytes, chunk;
    uint8_t state[PINS_MAX]; /* enum pin_state of each chunk */
    bool refused;            /* some chunk could not be pinned */
};

/* Starts tracking `bytes` bytes of memory (whole pages), which must stay until pins_end. Memory beyond the
 * range is not pinned. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes);
/* State of the chunk that holds byte `from`; *end: the end of the chunk, which one copy must not cross. Any
 * thread, without a lock. PIN_DONE if nothing needs pinning; PIN_REFUSED beyond the range. */
enum pin_state pins_state(const struct pins *pins, uint64_t from, uint64_t *end);
/* True if some chunk could not be pinned. Any thread. */
bool pins_refuse(const struct pins *pins);
/* Returns true if the chunk is unpinned and now claimed (PIN_UNDER_WAY) by the caller, who must call
 * pins_pin. One thread at a time. */
bool pins_claim(struct pins *pins, uint64_t from);
/* Pins a chunk that the caller has claimed. Other threads may pin other chunks. */
void pins_pin(struct pins *pins, uint64_t from);
/* Unpins all chunks. No copy may be using them. */
void pins_end(struct pins *pins);

#endif
