/* GPU models by name: the properties that plans and predictions assume for a GPU that is not installed. */
#ifndef SLUICE_CUDA_CARDS_H
#define SLUICE_CUDA_CARDS_H

#include "kernels/cuda/work.h"

#include <stddef.h>

struct cuda_card {
    const char *name, *words; /* short name "4090" and full name "GeForce RTX 4090" */
    int multiprocessors;
    uint64_t memory_bytes;
    /* Data sheet rates per second: dense bf16 FLOPs with f32 accumulation; memory bandwidth in bytes. */
    double product_flops, memory_bytes_per_second;
    double bus_bytes_per_second; /* achievable PCIe rate from pinned memory */
    /* Assumed efficiencies, not measured. products: share of product_flops of a multiprocessor while it has a
     * tile; attention: share of product_flops; convolutions (TF32; f16 has twice the rate): the same for
     * a multiprocessor while it has a tile; passes (memory-bound kernels): share
     * of memory bandwidth. */
    double products, attention, convolutions, passes;
};

const struct cuda_card *cuda_card_at(int i);
/* Returns the GPU model with a name such as "4090", case ignored; NULL if unknown. */
const struct cuda_card *cuda_card_named(const char *name);
/* Writes the names of all GPU models ("3060, 4060 or h100") to out and returns out. */
char *cuda_card_names(char *out, size_t bytes);

/* Returns the calculated seconds of all launches in one struct work: per launch the larger of compute time
 * and memory time, plus a gap between kernels. Products use the library's usual tile sizes, whichever is
 * fastest, one tile per multiprocessor in waves; the unused part of the last tile and wave counts as lost
 * time. */
double cuda_card_seconds(const struct cuda_card *card, const struct work *work);
/* Returns calculated rates per operator class, for plans. Products have a few thousand rows. */
struct op_rates cuda_card_rates(const struct cuda_card *card);

#endif
