/* How fast this machine multiplies matrices right now: for the line that predicts minutes before step 1. */
#ifndef SLUICE_API_RATE_H
#define SLUICE_API_RATE_H

#include "engine/base/sys.h"
#include "kernels/device.h"

/* The most memory that rate_measure takes for a moment: planned with what opening a model takes. */
enum { RATE_BYTES = 6 << 20 };

/* FLOPs a second of a middling product, the best of a few; 0 if it cannot be measured. Before a run, not
 * during it. */
double rate_measure(struct sys *sys, struct device *device, enum precision precision);

#endif
