/* What merge.c and merge_values.c share: which rows of which tensor what of an adapter is added to, and its
 * factors while that tensor is converted. */
#ifndef SLUICE_CONVERT_MERGE_VALUES_H
#define SLUICE_CONVERT_MERGE_VALUES_H

#include "engine/convert/merge.h"
#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

enum { MERGED_RUNS_MAX = 2 * WEIGHT_SLICES_MAX };

/* Rows [from, from + rows) of one go to rows [to, to + rows) of the other. */
struct merged_run {
    int32_t from, to, rows;
};

struct merged_adapter {
    struct adapter *adapter;
    double strength;
    struct changes changes;
};

struct merged_piece {
    const struct index_entry *entry; /* of the base */
    const struct merged_adapter *adapter;
    const struct change *change;
    int order;       /* in which they are added */
    int64_t columns; /* of the entry, as the weight has it */
    double scale;
    int n_runs;
    struct merged_run runs[MERGED_RUNS_MAX]; /* from: rows of the adapter's, to: of the entry */
};

/* The factors of a piece as f32: of a vector the values, of a product up and down, of a product of products
 * two of each; of Kronecker's the two matrices themselves, in `down`. */
struct merged_values {
    const struct merged_piece *piece;
    struct derived_half half[2];
};

struct merge {
    struct sys *sys;
    struct merged_adapter *adapters;
    int n_adapters;
    struct merged_piece *pieces; /* sorted by entry */
    int n_pieces;
    struct merged_values *loaded; /* of one entry */
    int n_loaded;
    int64_t columns; /* of that entry */
};

/* The first piece of that entry; n_pieces: there is none. */
int merge_first(const struct merge *merge, const struct index_entry *entry);
void merge_unload(struct merge *merge);

#endif
