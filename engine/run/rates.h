/* Throughput rates, which convert work to seconds: measured by `bench bus` and `bench ops`, or defaults. */
#ifndef SLUICE_RUN_RATES_H
#define SLUICE_RUN_RATES_H

#include "kernels/ops.h"

struct rates {
    struct op_rates ops; /* rates of operators on the computing device */
    double disk;         /* bytes per second from files to host memory, with several readers */
    double host_copy;    /* bytes per second from host memory to host memory */
    double h2d; /* bytes per second from pinned host memory to device memory; unused if device and host share
                   one memory */
};

#endif
