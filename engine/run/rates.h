/* Rates: what turns work into seconds. Measured by `bench bus` and `bench ops` or stated defaults; the plan
 * is a pure function of them like of everything else. */
#ifndef SLUICE_RUN_RATES_H
#define SLUICE_RUN_RATES_H

#include "kernels/ops.h"

struct rates {
    struct op_rates ops; /* of the device that computes */
    double disk;         /* bytes a second from files to host memory, several readers at once */
    double host_copy;    /* bytes a second from host memory to host memory */
    double h2d; /* bytes a second from pinned host memory to device memory; unused where they are one */
};

#endif
