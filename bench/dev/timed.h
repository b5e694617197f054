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
#ifndef SLUICE_DEV_TIMED_H
#define SLUICE_DEV_TIMED_H

#include "bench/dev/virtual_threads.h"
#include "kernels/ops.h"

/* Simulated events, one kind per queue. TIMED_STALL: operators wait for a copy. */
enum timed_event { TIMED_OPERATOR, TIMED_STALL, TIMED_COPY, TIMED_READ };

struct timed {
    struct device device;
    struct sys sys; /* simulated system: clock() returns the operators' time; files need not exist, reads
                       return at once */
    struct op_rates rates;
    double bus, disk;                 /* simulated rates of bus and disk, bytes per second, above 0 */
    uint64_t compute, copies, reader; /* virtual time at which each queue becomes free, in picoseconds */
    /* Optional callback for every event at the time of queueing, so events are in order only within one
     * queue. start, end: picoseconds; bytes: size of a copy or read. */
    void (*trace)(void *user, enum timed_event event, uint64_t start, uint64_t end, uint64_t bytes);
    void *trace_user;
};

/* Initialises a plain timed device in place. Memory for descriptors and address space is real. */
void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk);

struct host_rates {
    double launch_seconds; /* simulated host seconds per operator launch */
    double piece_seconds;  /* simulated reader seconds per piece: claim, queue the copy, wake other threads */
    double pin_seconds;    /* simulated reader seconds per byte to pin */
};

struct async_timed {
    struct timed timed; /* device and sys for the caller; must be the first member */
    struct timed below; /* plain timed device, which computes the times of the queues */
    struct device_memory memory;
    struct virtual_threads threads; /* virtual threads: the host (thread 0) and the readers */
    struct host_rates rates;
    uint64_t disk; /* virtual time at which the disk becomes free, in picoseconds */
};

/* Initialises an asynchronous timed device in place; the calling thread is the host. Other arguments as for
 * timed_init. */
void async_timed_init(struct async_timed *ahead, const struct op_rates *rates, double bus, double disk,
                      const struct host_rates *host);

#endif
