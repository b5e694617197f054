/* The timed dry device: a virtual clock for computing, bus and disk.
 *
 * It touches no weights and takes as long as rates say. The real store, executor and plan run on it
 * unchanged, without reader threads, so that the same input gives the same time to the picosecond: claims
 * about scheduling are tested here. Three queues run beside each other: operators; copies; reads, which are
 * the work of one reader that also waits for staging buffers. */
#ifndef SLUICE_DRY_TIMED_H
#define SLUICE_DRY_TIMED_H

#include "kernels/ops.h"

struct timed {
    struct device device;
    struct sys
        sys; /* clock() is the time of the operators so far; files need not exist and read as nothing */
    struct op_rates rates;
    double bus, disk;                 /* bytes a second, above 0 */
    uint64_t compute, copies, reader; /* when each queue is free, in picoseconds */
};

/* Makes it in place; memory for descriptors and address space comes from the machine. */
void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk);

#endif
