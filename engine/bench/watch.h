/* A device that computes with another one and writes down where time goes, by class of operators, and which
 * matrix products and convolutions a forward is made of. */
#ifndef SLUICE_BENCH_WATCH_H
#define SLUICE_BENCH_WATCH_H

#include "engine/base/sys.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops.h"

enum { BENCH_PRODUCTS_MAX = 64 };

/* A product or a convolution as one call to oneDNN: all rows, all columns, nothing cut. */
struct bench_product {
    struct onednn_key key;
    int calls;    /* in one pass */
    double flops; /* of one call, as the forward needs it */
};

struct bench_watch {
    struct device device;
    struct sys *sys;
    struct device *target;
    struct {
        double seconds, flops; /* flops: multiplications and additions; 0 where bytes are what counts */
    } class[N_OP_CLASSES];
    struct bench_product products[BENCH_PRODUCTS_MAX];
    int n_products;
};

/* In place; borrows both. */
void bench_watch_init(struct bench_watch *watch, struct sys *sys, struct device *target);
/* Forgets everything but the products' shapes. */
void bench_watch_reset(struct bench_watch *watch);

#endif
