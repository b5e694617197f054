/* Measures the machine's current matrix product rate, for the time estimate that is logged before step 1. */
#ifndef SLUICE_API_RATE_H
#define SLUICE_API_RATE_H

#include "engine/base/sys.h"
#include "kernels/device.h"

/* Temporary memory of rate_measure in bytes. The plan counts rate_measure as part of opening a model. */
enum { RATE_BYTES = 5 << 19 };

/* FLOP/s of a matrix product of 67 MFLOP, the best of a few tries; 0 on failure. Call before a run. */
double rate_measure(struct sys *sys, struct device *device, enum precision precision);

#endif
