/* The timed dry device behind a host that runs ahead of it, as CUDA's does: run() queues and returns, which
 * takes the host's time and not the device's; readers are actors, each of which takes a time for every piece
 * besides reading it. The real store runs on it with its threads, pauses and all, and takes the same time to
 * the picosecond whenever it is run again. Operators, copies and reads are three queues, in the order in
 * which they are asked for. */
#ifndef SLUICE_DRY_AHEAD_H
#define SLUICE_DRY_AHEAD_H

#include "kernels/dry/actors.h"
#include "kernels/dry/timed.h"

struct ahead_rates {
    double launch_seconds; /* of the host's, an operator */
    double piece_seconds;  /* of a reader's, a piece: claiming, queueing its copy, waking others */
    double pin_seconds;    /* of a reader's, a byte that it pins */
};

struct ahead {
    struct timed timed; /* first: its device and its sys are what others are given */
    struct timed below; /* the same as timed_init leaves it */
    struct device_memory memory;
    struct actors actors; /* the host is the first */
    struct ahead_rates rates;
    uint64_t disk; /* when the disk is free */
};

/* Makes it in place; what is in progress when it is called on is the host. As timed_init. */
void ahead_init(struct ahead *ahead, const struct op_rates *rates, double bus, double disk,
                const struct ahead_rates *host);

#endif
