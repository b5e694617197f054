/* The timed dry device with asynchronous launches, like CUDA: run() queues an operator and returns, which
 * takes host time but no device time. Reader threads are virtual threads; each piece costs a reader a fixed
 * time besides the read. The real store runs on this device with all reader threads and pauses; every run
 * takes the same virtual time to the picosecond. Operators, copies and reads are three queues in order of
 * request. */
#ifndef SLUICE_DRY_ASYNC_TIMED_H
#define SLUICE_DRY_ASYNC_TIMED_H

#include "kernels/dry/virtual_threads.h"
#include "kernels/dry/timed.h"

struct host_rates {
    double launch_seconds; /* host seconds per operator launch */
    double piece_seconds;  /* reader seconds per piece: claim, queue the copy, wake other threads */
    double pin_seconds;    /* reader seconds per pinned byte */
};

struct async_timed {
    struct timed timed; /* the device and sys that callers use; first member */
    struct timed below; /* timed device without asynchronous launches, whose functions are called */
    struct device_memory memory;
    struct virtual_threads threads; /* virtual threads; the first is the host */
    struct host_rates rates;
    uint64_t disk; /* time when the disk is free, in picoseconds */
};

/* Initialises in place; the calling thread is the host. Other arguments as for timed_init. */
void async_timed_init(struct async_timed *ahead, const struct op_rates *rates, double bus, double disk,
                      const struct host_rates *host);

#endif
