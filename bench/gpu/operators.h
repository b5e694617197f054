/* Every operator at the sizes that Z-Image at 1024 x 1024, its text encoder and its decoder call it with, and
 * what Flux.1 and T5 ask of operators besides, at theirs. */
#ifndef SLUICE_BENCH_GPU_OPERATORS_H
#define SLUICE_BENCH_GPU_OPERATORS_H

#include "bench/gpu/rig.h"

#include <jansson.h>

struct operators_options {
    bool small;        /* tiny sizes: to try the programs, not the GPU */
    const char *group; /* one of operators_groups; NULL: all */
};

/* "products", "attention", "bytes", "decoder" and "unet" (which need cuDNN), "quantised", NULL last. */
extern const char *const operators_groups[];

/* {"roofs":{"products_flops_per_second","copy_bytes_per_second"}, "rows":[{"op","shape","seconds",
 * "flops_per_second" or "bytes_per_second","roof":"products|products/2|copy","share"} or {"op","shape",
 * "error"}], "rates":{...}}: rates as "cuda" of a rates file. A case that fails has its error in its row and
 * the rest goes on; NULL only without memory. on_row is called after each. */
json_t *operators_measure(struct rig *rig, const struct operators_options *options,
                          void (*on_row)(const json_t *row));

#endif
