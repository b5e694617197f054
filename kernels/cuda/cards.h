/* GPU models by name: the properties that plans and predictions assume for a GPU that is not installed. */
#ifndef SLUICE_CUDA_CARDS_H
#define SLUICE_CUDA_CARDS_H

#include "kernels/cuda/work.h"

#include <stddef.h>

struct cuda_card {
    const char *name, *words; /* short name "4090" and full name "GeForce RTX 4090" */
    uint64_t memory_bytes;
    double memory_bytes_per_second; /* data sheet's memory bandwidth */
    double bus_bytes_per_second;    /* achievable PCIe rate from pinned memory */
    int multiprocessors;
    /* Dense data sheet rates per second, two operations per multiply-add: bf16 with f32 sums; f16 with f16
     * sums; int8 with s32 sums. */
    double product_flops, half_sum_flops, int8_ops;
    /* Assumed efficiencies, not measured. products and convolutions (in TF32; f16 has twice the rate): share
     * of product_flops while a multiprocessor computes a tile; int8_products: the same share of int8_ops.
     * attention: share of product_flops. int8_attention: share of the rates of its two products, int8_ops and
     * half_sum_flops. passes (memory-bound kernels): share of memory bandwidth. */
    double products, attention, convolutions, passes, int8_products, int8_attention;
};

/* Returns GPU model number i from 0, or NULL after the last one. */
const struct cuda_card *cuda_card_at(int i);
/* Returns the GPU model with a name such as "4090", case ignored; NULL if unknown. */
const struct cuda_card *cuda_card_named(const char *name);

/* Returns the calculated seconds of all launches in one struct work: per launch the larger of compute time
 * and memory time, plus a gap between kernels. Products use the library's usual tile sizes, whichever is
 * fastest, one tile per multiprocessor in waves; the unused part of the last tile and wave counts as lost
 * time. */
double cuda_card_seconds(const struct cuda_card *card, const struct work *work);
/* Returns calculated rates per operator class, for plans. Products have a few thousand rows. */
struct op_rates cuda_card_rates(const struct cuda_card *card);

#endif
