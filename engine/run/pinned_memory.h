/* Host memory for a device: shared memory, which operators access over the bus, and pinned memory, from which
 * copies run concurrently with computation. Pinning takes 0.2 seconds per GiB or more, so the host memory
 * that holds weights is pinned in chunks while the device computes. A reader pins the chunk that it copies
 * from; other readers continue with pinned chunks. Systems limit pinned memory, some to almost nothing: a
 * refused chunk is not tried again, but later chunks are tried. */
#ifndef SLUICE_RUN_PINNED_MEMORY_H
#define SLUICE_RUN_PINNED_MEMORY_H

#include "kernels/device.h"

/* Maps whole zeroed pages that device operators can access; plain host memory if the device has no memory of
 * its own or accepts any host memory. NULL if memory is short. */
void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes);
void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes);

/* Memory is pinned in chunks of PINS_CHUNK bytes, at most PINS_MAX chunks; ranges above 32 GiB use larger
 * chunks. */
enum { PINS_CHUNK = 64 << 20, PINS_MAX = 512 };

enum pin_state { PIN_NOT_YET, PIN_UNDER_WAY, PIN_DONE, PIN_REFUSED };

/* Pinning state of a memory range. All zero: nothing is pinned and nothing needs pinning. */
struct pins {
    struct device *device;
    char *memory;
    uint64_t bytes, chunk;
    uint8_t state[PINS_MAX]; /* enum pin_state of each chunk */
    bool refused;            /* at least one chunk could not be pinned */
};

/* Starts tracking a range of whole pages, which must stay allocated until pins_end. Pins nothing yet. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes);
/* State of the chunk that holds byte `from`; *end: end of the chunk, which one copy must not cross. PIN_DONE
 * if nothing needs pinning; PIN_REFUSED beyond the range. Thread-safe without a lock. */
enum pin_state pins_state(const struct pins *pins, uint64_t from, uint64_t *end);
/* True if at least one chunk could not be pinned. Thread-safe. */
bool pins_refuse(const struct pins *pins);
/* Sets the state of an unpinned chunk to PIN_UNDER_WAY and returns true; the caller must then call pins_pin.
 * Returns false in other states. One thread at a time. */
bool pins_claim(struct pins *pins, uint64_t from);
/* Pins a chunk whose state the caller has set to PIN_UNDER_WAY (pins_claim). Threads may pin different chunks
 * concurrently. */
void pins_pin(struct pins *pins, uint64_t from);
/* Unpins all chunks. No copy may be using them. */
void pins_end(struct pins *pins);

#endif
