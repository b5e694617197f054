/* Shared by merge.c and merge_values.c: which rows of which tensor an adapter changes, and the factors of the
 * tensor in work. */
#ifndef SLUICE_CONVERT_MERGE_VALUES_H
#define SLUICE_CONVERT_MERGE_VALUES_H

#include "engine/convert/merge.h"
#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

enum { MERGED_RUNS_MAX = 2 * WEIGHT_SLICES_MAX };

/* Rows [from, from + rows) of one tensor belong to rows [to, to + rows) of another. */
struct merged_run {
    int32_t from, to, rows;
};

struct merged_adapter {
    struct adapter *adapter;
    double strength;
    struct changes changes;
};

struct merged_piece {
    const struct index_entry *entry; /* tensor of the base */
    const struct merged_adapter *adapter;
    const struct change *change;
    int order;       /* order of addition */
    int64_t columns; /* values per row of the entry */
    double scale;
    int n_runs;
    struct merged_run runs[MERGED_RUNS_MAX]; /* from: rows of the adapter's tensor; to: rows of the entry */
};

/* Factors of a piece in f32. Vector: values in half[0].down. LoRA: up and down in half[0]. LoHa: up and down
 * of both halves. LoKr: the two matrices in `down` of each half. */
struct merged_values {
    const struct merged_piece *piece;
    struct derived_half half[2];
};

struct merge {
    struct sys *sys;
    struct merged_adapter *adapters;
    int n_adapters;
    struct merged_piece *pieces; /* sorted by entry, then order */
    int n_pieces;
    struct merged_values *loaded; /* factors of the loaded entry */
    int n_loaded;
    int64_t columns; /* values per row of that entry */
};

/* Number of the first piece of that entry; n_pieces: none. */
int merge_first(const struct merge *merge, const struct index_entry *entry);
void merge_unload(struct merge *merge);

#endif
