/* The paced device: another device's operators behind a bus of a fixed rate, to measure streaming without a
 * GPU.
 *
 * Its memory is host memory; a thread of its own copies no faster than the given rate, so copies overlap with
 * computing as on a GPU. Operators that read host memory in place are not slowed down, so such reads are
 * faster than over a real bus. */
#ifndef SLUICE_DEV_PACED_H
#define SLUICE_DEV_PACED_H

#include "kernels/device.h"

/* Opens a device that runs compute's operators. compute is borrowed; NULL: no operators. bytes_per_second 0:
 * memory speed. Its memory is counted as device memory (LINE_DEVICE). NULL with MEMORY or DEVICE. End with
 * device->destroy. */
struct device *paced_open(struct sys *sys, struct device *compute, double bytes_per_second, struct error *e);

#endif
