/* Host memory as a device reaches it: shared memory, which its operators read and write over the bus, and
 * pinned memory, out of which copies run beside computing.
 *
 * Pinning takes a fifth of a second a GiB and more, so a pool is pinned in chunks, while the device computes:
 * each by one of those who copy out of it, when he has nothing else under way. Others go on with the chunks
 * that are pinned already. Systems let only so much be pinned, some next to nothing: a chunk that is refused
 * is not asked for again, and the others are. */
#ifndef SLUICE_RUN_PINS_H
#define SLUICE_RUN_PINS_H

#include "kernels/device.h"

/* Whole pages, zeroed; of the host's own where the device has no memory of its own or takes any. NULL when
 * there are none. */
void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes);
void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes);

/* Chunks are larger where memory is more than 32 GiB. */
enum { PINS_CHUNK = 64 << 20, PINS_MAX = 512 };

enum pin_state { PIN_NOT_YET, PIN_UNDER_WAY, PIN_DONE, PIN_REFUSED };

/* What of a range is pinned. Zero: nothing, and nothing will be nor need be. */
struct pins {
    struct device *device;
    char *memory;
    uint64_t bytes, chunk;
    uint8_t state[PINS_MAX]; /* enum pin_state, of each chunk */
    bool refused;            /* some chunk could not be pinned */
};

/* For memory (whole pages) that stays until pins_end; what lies behind it is not to be pinned. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes);
/* Of the chunk that holds this byte; *end: where it ends: one copy may not go beyond. Any thread, without a
 * lock. PIN_DONE where nothing need be pinned, PIN_REFUSED behind what is to be. */
enum pin_state pins_state(const struct pins *pins, uint64_t from, uint64_t *end);
/* Whether some chunk could not be. Any thread. */
bool pins_refuse(const struct pins *pins);
/* True if the chunk is not pinned yet and the caller is to do it: then it is UNDER_WAY. One thread at a time.
 */
bool pins_claim(struct pins *pins, uint64_t from);
/* Pins the chunk that the caller has claimed. Other threads may pin others. */
void pins_pin(struct pins *pins, uint64_t from);
/* Unpins. Nothing is being copied out of it any more. */
void pins_end(struct pins *pins);

#endif
