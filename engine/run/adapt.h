/* Components with adapters: blocks whose packed bytes have in front what adapters bring, their side.
 *
 * The base's weights stay as they are, in whatever type they are stored; factors lie in the side in the type
 * that their file has. Operators add their product (struct low_rank), so forwards, executor and store know
 * nothing of adapters but that blocks are larger. What is no product, vectors, is replaced: the side has the
 * whole of it.
 *
 * The side comes first, because who computes waits for a block's bytes in their order: behind the base's
 * bytes a block's first product would wait for all of them. */
#ifndef SLUICE_RUN_ADAPT_H
#define SLUICE_RUN_ADAPT_H

#include "engine/run/family.h"

enum { ADAPT_PARTS_MAX = WEIGHT_SLICES_MAX };

/* A tensor of an adapter's file, or of memory, of which all rows are taken, or parts of them. */
struct factor {
    const char *name;                 /* in its file, for errors; borrowed for the call */
    const struct byte_source *source; /* borrowed: must outlive the component */
    uint64_t offset;
    enum dtype dtype; /* a weight's */
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX]; /* of all its rows */
    int n_parts;                       /* 0: all rows */
    struct {
        int32_t first, rows;
    } part[ADAPT_PARTS_MAX]; /* the rows taken, in this order */
};

/* Rows that are taken, and values of each. */
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

/* What is added to rows of a weight: scale up . down, to as many from `row` on as `up` has. down is [r, ...]
 * with the weight's own dimensions behind, or a matrix of as many columns; up [n, r]. Axes of 1 may follow
 * either. */
struct adapted_weight {
    int block;  /* place in component.blocks */
    int weight; /* place in its kind's table */
    struct factor down, up;
    int32_t row;
    float scale; /* strength alpha / r */
};

/* A weight that is read from elsewhere instead: a norm's or a bias, which no product has in it. */
struct replaced_vector {
    int block, weight;
    struct factor values; /* of as many values as the weight has */
};

struct adaptation {
    const struct adapted_weight *weights;
    const struct replaced_vector *vectors;
    int n_weights, n_vectors;
};

/* A component that borrows everything from another but its blocks, which have sides where something concerns
 * them: in any order, several of one weight add up. The other must outlive it. Freed with component_destroy.
 * SHAPE where factors do not fit the weight, UNSUPPORTED where their type is no weight's, MISSING where a
 * block has no such weight; MEMORY. Reads factors that lie in memory. */
enum status component_adapt(const struct component *from, const struct adaptation *adaptation,
                            struct component *adapted, struct error *e);
/* Scales of converted weights that were found since (see requantise_set_scale) are taken over. */
void component_adapt_scales(const struct component *from, struct component *adapted);

#endif
