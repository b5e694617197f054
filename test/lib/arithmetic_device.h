/* A small CPU device in plain C that has only the operators of the synthetic family.
 *
 * With it, store and executor run under the thread sanitizer, which reports false races in oneDNN's OpenMP. A
 * test can predict its memory costs by hand: a matrix product needs one weight row as f32 as workspace,
 * ARITHMETIC_HIDDEN internal bytes, and one primitive per shape. */
#ifndef SLUICE_TEST_ARITHMETIC_DEVICE_H
#define SLUICE_TEST_ARITHMETIC_DEVICE_H

#include "kernels/ops.h"

enum { ARITHMETIC_HIDDEN = 1000, ARITHMETIC_PRIMITIVE = 640 };

struct arithmetic {
    struct device device;
    int prepared, runs;
};

struct arithmetic arithmetic_make(void);

/* The device's run function. A test that replaces the run function for one operator calls arithmetic_run for
 * all other operators. */
enum status arithmetic_run(struct device *device, const struct op *op, void *workspace, struct error *e);

#endif
