/* Calculated time of an operator on a GPU model of kernels/cuda/cards.h, to compare with measured time. */
#ifndef SLUICE_BENCH_GPU_CALCULATED_H
#define SLUICE_BENCH_GPU_CALCULATED_H

#include "kernels/cuda/cards.h"

enum { CALCULATED_CONSTANTS = 6 };

/* Device that adds up the calculated time of operators instead of running them. */
struct calculated {
    struct device device; /* first member */
    const struct cuda_card *card;
    double seconds; /* of all operators so far */
    /* By efficiency constant of the card: the part of `seconds` that is in inverse proportion to it. */
    double bound_seconds[CALCULATED_CONSTANTS];
};

/* Returns the model of cards.c with this CUDA device name, number of multiprocessors and memory in bytes;
 * NULL if cards.c lacks it. */
const struct cuda_card *calculated_card(const char *gpu, int multiprocessors, uint64_t bytes);
/* Initialises the device with the chunks and types of `like`. */
void calculated_init(struct calculated *c, const struct device *like, const struct cuda_card *card);
/* Returns the name of the efficiency constant that bounds at least 70 % of the calculated time, or NULL, and
 * sets *value to the constant with which the calculated time would be measured_seconds. */
const char *calculated_constant(const struct calculated *c, double measured_seconds, double *value);

#endif
