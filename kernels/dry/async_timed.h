/* The timed dry device with asynchronous launches, like CUDA: run() queues an operator and returns, which
 * takes host time but no device time. Reader threads are virtual threads; each piece costs a reader a fixed
 * time besides the read. The real store runs on it with its threads and pauses, and every run takes the same
 * virtual time to the picosecond. Operators, copies and reads are three queues in order of request. */
#ifndef SLUICE_DRY_ASYNC_TIMED_H
#define SLUICE_DRY_ASYNC_TIMED_H

#include "kernels/dry/virtual_threads.h"
#include "kernels/dry/timed.h"

struct host_rates {
    double launch_seconds; /* host time per operator launch */
    double piece_seconds;  /* reader time per piece: claiming it, queueing its copy, waking others */
    double pin_seconds;    /* reader time per pinned byte */
};

struct async_timed {
    struct timed timed; /* first member: its device and sys are passed to others */
    struct timed below; /* a copy as timed_init leaves it */
    struct device_memory memory;
    struct virtual_threads threads; /* the first is the host */
    struct host_rates rates;
    uint64_t disk; /* time when the disk is free */
};

/* Initialises in place; the calling thread is the host. Other arguments as timed_init. */
void async_timed_init(struct async_timed *ahead, const struct op_rates *rates, double bus, double disk,
                      const struct host_rates *host);

#endif
