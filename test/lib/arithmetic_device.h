/* A small device that computes for real, in plain C: the operators of the synthetic family and no others.
 *
 * It is here so that store and executor can be proven without oneDNN, whose OpenMP the thread sanitizer does
 * not understand. Its cost table is simple enough to add up by hand: the products take a workspace of one
 * widened row of weights, hide ARITHMETIC_HIDDEN bytes, and need one primitive for each shape. */
#ifndef SLUICE_TEST_ARITHMETIC_DEVICE_H
#define SLUICE_TEST_ARITHMETIC_DEVICE_H

#include "kernels/ops.h"

enum { ARITHMETIC_HIDDEN = 1000, ARITHMETIC_PRIMITIVE = 640 };

struct arithmetic {
    struct device device;
    int prepared, runs;
};

struct arithmetic arithmetic_make(void);

/* What the device runs, for those who run something else now and then. */
enum status arithmetic_run(struct device *device, const struct op *op, void *workspace, struct error *e);

#endif
