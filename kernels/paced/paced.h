/* The paced device: another device's operators behind a bus of a set rate.
 *
 * It has memory of its own (more of the host's) and a copy queue on its own thread, which moves bytes no
 * faster than it is told. What operators reach in the host's memory themselves is not slowed down: that can
 * be computed with here, not measured. Overlap of copies and computing is real and can be measured without a
 * GPU; nothing above this room can tell it from one. */
#ifndef SLUICE_PACED_PACED_H
#define SLUICE_PACED_PACED_H

#include "kernels/device.h"

/* Operators are compute's, which is borrowed and must outlive it; NULL: there are none. bytes_per_second: 0
 * is as fast as memory. Memory is taken under LINE_DEVICE. MEMORY or DEVICE; then NULL is returned. Ends with
 * device->destroy. */
struct device *paced_open(struct sys *sys, struct device *compute, double bytes_per_second, struct error *e);

#endif
