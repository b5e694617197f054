/* The timed dry device: a virtual clock for computing, bus and disk.
 *
 * It touches no weights and takes as long as rates say. The real store, executor and plan run on it
 * unchanged, without reader threads, so that the same input gives the same time to the picosecond: claims
 * about scheduling are tested here. Three queues run beside each other: operators; copies; reads, which are
 * the work of one reader that also waits for staging buffers. The host takes no time; one that does, and more
 * readers, are ahead.h's. */
#ifndef SLUICE_DRY_TIMED_H
#define SLUICE_DRY_TIMED_H

#include "kernels/ops.h"

/* What a queue did. A stall is computing that waits for a copy. */
enum timed_event { TIMED_OPERATOR, TIMED_STALL, TIMED_COPY, TIMED_READ };

struct timed {
    struct device device;
    struct sys
        sys; /* clock() is the time of the operators so far; files need not exist and read as nothing */
    struct op_rates rates;
    double bus, disk;                 /* bytes a second, above 0 */
    uint64_t compute, copies, reader; /* when each queue is free, in picoseconds */
    /* Told of every event as it is queued, so in order within a queue only; bytes: of copies and reads. */
    void (*trace)(void *user, enum timed_event event, uint64_t start, uint64_t end, uint64_t bytes);
    void *trace_user;
};

static inline uint64_t timed_picoseconds(double seconds) {
    return (uint64_t)(seconds * 1e12 + 0.5);
}

/* Makes it in place; memory for descriptors and address space comes from the machine. */
void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk);

#endif
