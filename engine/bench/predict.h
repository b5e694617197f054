/* `sluice bench block --predict`: kernel launches of one block on a GPU, and the launches' calculated time
 * on a graphics card. */
#ifndef SLUICE_BENCH_PREDICT_H
#define SLUICE_BENCH_PREDICT_H

#include "engine/bench/bench.h"
#include "engine/bench/random_component.h"
#include "kernels/cuda/cards.h"

/* What to predict: the last block that runs, without earlier blocks; or all blocks that run, if
 * sizes.last.kind is NULL. */
struct predict_case {
    const char *name; /* name of the block or component; NULL: there is nothing to predict */
    struct random_component_sizes sizes;
    int32_t tokens; /* number of tokens (VAEs: pixels) that the block processes */
};

/* Returns entry i of family.predicted, with weights in bf16. After the last entry the name is NULL. */
struct predict_case predict_case_of(const struct family *family, int i);

/* Kernel launches of one kernel within one operator, summed over the block. */
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

/* Predicts the kernel launches of a block. cuda provides only the properties that forwards read. Fails with
 * MEMORY or INTERNAL. */
enum status predict_block(struct sys *sys, const struct device *cuda, const struct cuda_card *card,
                          const struct predict_case *c, struct predict_rows *rows, struct error *e);

/* Adds the predictions of all families to the report. One card: a row per kernel. Card "all": a row per block
 * and card, with the block's seconds. USAGE if the card is unknown. */
enum status predict_bench(struct bench *bench, const struct device *cuda, const char *card,
                          enum precision precision, enum dtype type, struct error *e);

#endif
