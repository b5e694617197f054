/* Work that operators cause on a GPU: kernels and library calls launched, their number, FLOPs and bytes. Pure
 * functions of the call, the same with and without a GPU. Operands are assumed to start at multiples of 16
 * bytes, as in plans.
 *
 * The operators' headers (linear.h and so on) define how a call is split into launches; run() uses the same
 * headers. test/device compares these rows with the launches under the emulator. */
#ifndef SLUICE_CUDA_WORK_H
#define SLUICE_CUDA_WORK_H

#include "kernels/ops.h"

/* Kinds of work: products, attention and convolutions are bound by FLOPs; passes are all other kernels, bound
 * by memory. PRODUCT: library products of bf16 or f16. PRODUCT_INT8: the kernel of int8 mode (ops.h), with
 * its epilogue. ATTENTION_INT8: attention with Q K^T in int8 and P V in f16. */
enum work_class {
    WORK_PRODUCT,
    WORK_PRODUCT_INT8,
    WORK_ATTENTION,
    WORK_ATTENTION_INT8,
    WORK_CONV,
    WORK_PASS,
    N_WORK_CLASSES
};

const char *work_class_name(enum work_class of);

/* Equal launches of one kernel. FLOPs and bytes are sums over all launches; each launch counts each operand
 * once, whether or not a cache holds it. */
struct work {
    const char *kernel; /* kernel function name; library calls: "product", "convolution" */
    enum work_class class;
    int launches;
    double flops;
    double read_bytes, written_bytes;
    bool f16; /* WORK_CONV: operands are f16; false: TF32, at half the rate */
    /* Product: rows, columns and depth of one launch (the largest, if adapters differ). WORK_CONV: sizes
     * of the equivalent product: pixels, output channels, taps times input channels. Attention: n is the
     * number of columns of q, k the number of columns multiplied, including the zeros that pad a head to its
     * tile. */
    int32_t m, n, k;
};

enum { WORK_ROWS_MAX = 12 };

struct work_list {
    struct work rows[WORK_ROWS_MAX]; /* list of launches, one row per kernel, in order of first launch */
    int n;
};

void cuda_work(const struct op *op, struct work_list *list);

#endif
