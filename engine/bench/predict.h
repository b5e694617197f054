/* What one block launches on a GPU, and how long a card is calculated to take: `bench block --predict`. */
#ifndef SLUICE_BENCH_PREDICT_H
#define SLUICE_BENCH_PREDICT_H

#include "engine/bench/bench.h"
#include "engine/bench/random_component.h"
#include "kernels/cuda/cards.h"

/* A block of a family at a size: the last that runs; those before it do not count. */
struct predict_case {
    struct random_component_sizes sizes;
    int32_t tokens; /* that it works on; pixels, of autoencoders */
};

/* The block that is predicted of each published family. n: their number. */
const struct predict_case *predict_cases(int *n);

/* One kernel's launches within one operator, over the whole block. */
struct predict_row {
    enum op_kind op;
    const char *kernel;
    enum work_class class;
    int calls;
    double flops, bytes, seconds;
};

enum { PREDICT_ROWS_MAX = 48 };

struct predict_rows {
    struct predict_row rows[PREDICT_ROWS_MAX];
    int n;
};

/* On a CUDA device, of which only what forwards ask for counts. MEMORY, INTERNAL. */
enum status predict_block(struct sys *sys, const struct device *cuda, const struct cuda_card *card,
                          const struct predict_case *c, struct predict_rows *rows, struct error *e);

/* Adds all families' rows to the bench's. USAGE where no card is called so. */
enum status predict_bench(struct bench *bench, const char *card, enum dtype type, struct error *e);

#endif
