/* Steady step times of layouts from an independent simulator (timing_table.c), for test_plan.c. */
#ifndef SLUICE_TEST_TIMING_TABLE_H
#define SLUICE_TEST_TIMING_TABLE_H

#include <stdint.h>

/* Flux.1: 19 double and 38 single blocks; Qwen-Image: 60 equal blocks; ODD: 24 blocks of different sizes. */
enum shape { FLUX, QWEN, ODD };

enum { N_TIMING_ROWS = 150 };

struct timing_row {
    enum shape shape;
    uint64_t resident;
    double rings; /* ring size divided by the size of the largest block */
    int depth, no_wrap;
    double seconds; /* per evaluation */
};

extern const struct timing_row timing_table[N_TIMING_ROWS];

#endif
