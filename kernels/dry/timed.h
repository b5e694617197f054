/* The timed dry device: a virtual clock for computing, bus and disk, to test scheduling.
 *
 * The timed device reads no weights and takes the time that the given rates imply. The real store, executor
 * and plan run unchanged on the timed device, without reader threads, so equal input gives equal time to the
 * picosecond. Three queues run in parallel: operators, copies, and reads by one reader that also waits for
 * staging buffers. The host takes no time; async_timed.h adds host time and several readers. */
#ifndef SLUICE_DRY_TIMED_H
#define SLUICE_DRY_TIMED_H

#include "kernels/ops.h"

/* Events of the queues. TIMED_STALL: operators wait for a copy. */
enum timed_event { TIMED_OPERATOR, TIMED_STALL, TIMED_COPY, TIMED_READ };

struct timed {
    struct device device;
    struct sys sys; /* clock() returns the operators' time; files need not exist, reads return at once */
    struct op_rates rates;
    double bus, disk;                 /* rates of bus and disk, bytes per second, above 0 */
    uint64_t compute, copies, reader; /* time when each queue is free, in picoseconds */
    /* Optional callback for every event at the time of queueing, so events are in order only within one
     * queue. start, end: picoseconds; bytes: size of a copy or read. */
    void (*trace)(void *user, enum timed_event event, uint64_t start, uint64_t end, uint64_t bytes);
    void *trace_user;
};

static inline uint64_t timed_picoseconds(double seconds) {
    return (uint64_t)(seconds * 1e12 + 0.5);
}

/* Initialises in place. Memory for descriptors and address space is real. */
void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk);

#endif
