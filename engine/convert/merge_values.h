/* Shared by merge.c and merge_values.c: which tensor rows an adapter changes, and the loaded adapter factors.
 */
#ifndef SLUICE_CONVERT_MERGE_VALUES_H
#define SLUICE_CONVERT_MERGE_VALUES_H

#include "engine/convert/merge.h"
#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

enum { MERGED_RUNS_MAX = 2 * WEIGHT_SLICES_MAX };

/* Rows [from, from + rows) of one tensor map to rows [to, to + rows) of another. */
struct merged_run {
    int32_t from, to, rows;
};

struct merged_adapter {
    struct adapter *adapter;
    double strength;
    struct changes changes;
};

struct merged_piece {
    const struct index_entry *entry; /* base tensor that the adapter changes */
    const struct merged_adapter *adapter;
    const struct change *change;
    int order;       /* position among all changes to the base tensor: changes are added in ascending order */
    int64_t columns; /* values per row of the base tensor */
    double scale;
    int n_runs;
    struct merged_run runs[MERGED_RUNS_MAX]; /* from adapter rows to base tensor rows */
};

/* Factors of one change in f32. A vector's values are in half[0].down. LoRA uses half[0].up and half[0].down,
 * LoHa `up` and `down` of both halves. LoKr's two matrices are half[0].down and half[1].down. */
struct merged_values {
    const struct merged_piece *piece;
    struct derived_half half[2];
};

struct merge {
    struct sys *sys;
    struct merged_adapter *adapters;
    int n_adapters;
    struct merged_piece *pieces; /* sorted by base tensor, then order */
    int n_pieces;
    struct merged_values *loaded; /* factors of all changes to the tensor given to the last merge_load */
    int n_loaded;
    int64_t columns; /* values per row of the loaded tensor */
};

/* Index of the first piece that changes the tensor; n_pieces if none does. */
int merge_first(const struct merge *merge, const struct index_entry *entry);
void merge_unload(struct merge *merge);

#endif
