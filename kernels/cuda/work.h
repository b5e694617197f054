/* What operators make a GPU do: which kernels and library calls they launch, how often, and the FLOPs and
 * bytes of each. Pure functions of the call, the same with and without a GPU; operands are taken to begin at
 * multiples of 16, as those of plans do.
 *
 * How a call is cut into launches is in the operators' headers (linear.h and so on), which run() reads too;
 * test/device compares these rows with what is launched, under the emulator. */
#ifndef SLUICE_CUDA_WORK_H
#define SLUICE_CUDA_WORK_H

#include "kernels/ops.h"

/* Products, attention and convolutions multiply; passes are all other kernels, which memory binds. */
enum work_class { WORK_PRODUCT, WORK_ATTENTION, WORK_CONV, WORK_PASS, N_WORK_CLASSES };

/* "product", "attention", "conv", "pass". */
const char *work_class_name(enum work_class of);

/* Launches of one kernel that are alike. Sums are over all of them; each launch reads an operand once,
 * whatever the caches have to give it again. */
struct work {
    const char *kernel; /* as the source calls it; a library's calls: "product", "convolution" */
    enum work_class class;
    int launches;
    double flops;
    double read_bytes, written_bytes;
    /* Of a product: rows, columns and depth of one launch, the most of any where adapters' differ. Of
     * attention: n columns of q, and as k those that are multiplied, zeros that fill a head to its tile among
     * them. */
    int32_t m, n, k;
};

enum { WORK_ROWS_MAX = 10 };

struct work_list {
    struct work rows[WORK_ROWS_MAX]; /* in the order in which they are first launched */
    int n;
};

void cuda_work(const struct op *op, struct work_list *list);

#endif
