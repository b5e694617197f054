/* Components with adapters (LoRA, LoHa, LoKr, weight differences): their packed blocks start with adapter
 * bytes. Base weights keep their stored type; adapter factors keep their file's type. Operators add the
 * low-rank products (struct low_rank), so forward functions, executor and store only see larger blocks.
 * Vectors (norms, biases) enter no matrix product, so the adapter bytes hold a new vector instead. Adapter
 * bytes come first because computation awaits a block's bytes in order. If adapter bytes followed the base
 * weights, a block's first product would wait for the whole block. */
#ifndef SLUICE_RUN_ADAPT_H
#define SLUICE_RUN_ADAPT_H

#include "engine/run/family.h"

enum { ADAPT_PARTS_MAX = WEIGHT_SLICES_MAX };

/* One adapter tensor in a file or in memory: `down`, `up`, or new values of a vector. All rows are used, or
 * some ranges of rows. */
struct factor {
    const char *name;                 /* name in the adapter file, for errors; borrowed during the call */
    const struct byte_source *source; /* borrowed: must outlive the component */
    uint64_t offset;
    enum dtype dtype; /* a weight type */
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX]; /* shape of the whole tensor, unused rows included */
    int n_parts;                       /* number of row ranges; 0: all rows are used */
    struct {
        int32_t first, rows;
    } part[ADAPT_PARTS_MAX]; /* used ranges of rows, in order of use */
};

/* factor_rows: number of used rows. factor_columns: number of values in one row. */
static inline int32_t factor_rows(const struct factor *f) {
    int32_t rows = f->n_parts ? 0 : f->dim[0];
    for (int i = 0; i < f->n_parts; i++) rows += f->part[i].rows;
    return rows;
}

static inline int64_t factor_columns(const struct factor *f) {
    int64_t columns = 1;
    for (int i = 1; i < f->rank; i++) columns *= f->dim[i];
    return columns;
}

/* Adds scale * up . down to the rows of a weight from `row` on. down: [r, ...] with the weight's inner dims,
 * or a matrix with as many columns; up: [n, r]. r: rank; n: rows. Trailing axes of size 1 are allowed. */
struct adapted_weight {
    int block;  /* index in component.blocks */
    int weight; /* index of the adapted weight in the weight table of the block's kind */
    struct factor down, up;
    int32_t row;
    float scale; /* adapter strength * alpha / r */
};

/* Replaces a vector weight (norm or bias). */
struct replaced_vector {
    int block, weight;
    struct factor values; /* new values of the vector, as many as the weight has */
};

struct adaptation {
    const struct adapted_weight *weights;
    const struct replaced_vector *vectors;
    int n_weights, n_vectors;
};

/* Makes a component that borrows everything from `from` except the blocks, which get adapter bytes where
 * adapters apply. Several adapters of one weight add up. Reads factors that lie in memory. `from` must
 * outlive the result; free it with component_destroy.
 * SHAPE: factors do not fit the weight. UNSUPPORTED: the type of the factors is not a weight type. MISSING: a
 * block lacks the weight. Fails with MEMORY. */
enum status component_adapt(const struct component *from, const struct adaptation *adaptation,
                            struct component *adapted, struct error *e);
/* Updates an adapted component: copies the per-tensor scales that requantise_set_scale set after
 * component_adapt. */
void component_adapt_scales(const struct component *from, struct component *adapted);

#endif
