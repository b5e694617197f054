/* Cards by name: what plans and predictions assume of a GPU that is not there. The one table of them. */
#ifndef SLUICE_CUDA_CARDS_H
#define SLUICE_CUDA_CARDS_H

#include "kernels/cuda/work.h"

#include <stddef.h>

struct cuda_card {
    const char *name, *words; /* "4090", "GeForce RTX 4090" */
    int multiprocessors;
    uint64_t memory_bytes;
    /* A second, by its data sheet: dense products of bf16 with f32 sums, memory. */
    double product_flops, memory_bytes_per_second;
    double bus_bytes_per_second; /* what its width of PCIe carries from pinned memory */
    /* What is reached of them, assumed and not measured: by a multiprocessor while it has a tile; by
     * attention and convolutions in TF32, of product_flops; by passes, of memory. */
    double products, attention, convolutions, passes;
};

/* NULL behind the last. */
const struct cuda_card *cuda_card_at(int i);
/* "4090"; NULL: there is none of that name. */
const struct cuda_card *cuda_card_named(const char *name);
/* "3060, 4060 or h100": all names, into out, which it returns. */
char *cuda_card_names(char *out, size_t bytes);

/* Calculated seconds of all launches of a row, each by the larger of computing and memory, and a gap behind
 * it. Products come in tiles of the library's usual sizes, whichever is fastest, a tile a multiprocessor and
 * wave after wave: what is not whole tiles and whole waves is lost. */
double cuda_card_seconds(const struct cuda_card *card, const struct work *work);
/* The same by class of operators, as plans want them: of products a few thousand rows long. */
struct op_rates cuda_card_rates(const struct cuda_card *card);

#endif
