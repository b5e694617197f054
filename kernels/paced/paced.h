/* The paced device: another device's operators behind a bus of a fixed rate.
 *
 * It has its own memory (host memory) and a copy queue on its own thread that moves bytes no faster than the
 * given rate. Operators' direct access to host memory is not slowed down, so that access works but cannot be
 * measured. Overlap of copies and computing is real and can be measured without a GPU; code above the device
 * interface cannot tell the difference. */
#ifndef SLUICE_PACED_PACED_H
#define SLUICE_PACED_PACED_H

#include "kernels/device.h"

/* compute: device that runs the operators, borrowed; NULL: no operators. bytes_per_second 0: memory speed.
 * Memory is counted as LINE_DEVICE. NULL with MEMORY or DEVICE. End with device->destroy. */
struct device *paced_open(struct sys *sys, struct device *compute, double bytes_per_second, struct error *e);

#endif
