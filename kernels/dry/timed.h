/* The timed dry devices: a virtual clock for computing, bus and disk, to test scheduling.
 *
 * A timed device reads no weights and takes the time that the given rates imply. The real store, executor and
 * plan run unchanged on it, so equal input gives equal time to the picosecond. Three queues run in parallel:
 * operators, copies, and reads.
 *
 * Plain: no reader threads; one reader also waits for staging buffers, and the host takes no time.
 * Asynchronous, like CUDA: run() queues an operator and returns, which takes host time but no device time.
 * Reader threads are virtual threads; each piece costs a reader a fixed time besides the read. The real store
 * runs with all its reader threads and pauses. */
#ifndef SLUICE_DRY_TIMED_H
#define SLUICE_DRY_TIMED_H

#include "kernels/dry/virtual_threads.h"
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

/* Initialises a plain timed device in place. Memory for descriptors and address space is real. */
void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk);

struct host_rates {
    double launch_seconds; /* host seconds per operator launch */
    double piece_seconds;  /* reader seconds per piece: claim, queue the copy, wake other threads */
    double pin_seconds;    /* reader seconds per pinned byte */
};

struct async_timed {
    struct timed timed; /* the device and sys that callers use; first member */
    struct timed below; /* plain timed device: computes the times of the queues */
    struct device_memory memory;
    struct virtual_threads threads; /* the host (first thread) and the readers */
    struct host_rates rates;
    uint64_t disk; /* time when the disk is free, in picoseconds */
};

/* Initialises an asynchronous timed device in place; the calling thread is the host. Other arguments as for
 * timed_init. */
void async_timed_init(struct async_timed *ahead, const struct op_rates *rates, double bus, double disk,
                      const struct host_rates *host);

#endif
