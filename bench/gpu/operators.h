/* Benchmarks every operator at the sizes of Z-Image at 1024 x 1024, of its text encoder and of its VAE
 * decoder. Also benchmarks operators at the sizes of Flux.1, T5 and other models. */
#ifndef SLUICE_BENCH_GPU_OPERATORS_H
#define SLUICE_BENCH_GPU_OPERATORS_H

#include "bench/gpu/rig.h"
#include "kernels/cuda/cards.h"

#include <jansson.h>

struct operators_options {
    bool small;                   /* use tiny sizes, to test the program rather than the GPU */
    const char *group;            /* group of operators to run (operators_groups); NULL: all groups */
    const struct cuda_card *card; /* GPU model for calculated times; NULL: none */
};

/* Names of the operator groups, NULL-terminated: "products", "attention", "bytes", "decoder" and "unet"
 * (which need cuDNN), ... */
extern const char *const operators_groups[];

/* Returns {"roofs":{"products_flops_per_second","copy_bytes_per_second"}, "rows":[{"op","shape","seconds",
 * "flops_per_second" or "bytes_per_second","roof":"products|products/2|copy","share"} or {"op","shape",
 * "error"}], "rates":{...}}. With a GPU model rows also have "calculated_seconds". If one of the model's
 * efficiency constants bounds the time, they have its name "constant", and the value "measured_constant" that
 * makes both times equal. roofs: measured peak rates; share: fraction of the peak rate; rates: member "cuda"
 * of a rates file. A failed case has an error in its row and the rest continues. NULL only without memory.
 * Calls on_row after each row. */
json_t *operators_measure(struct rig *rig, const struct operators_options *options,
                          void (*on_row)(const json_t *row));

#endif
