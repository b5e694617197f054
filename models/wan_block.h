/* One block of WAN's transformers: self-attention over a video's tokens, cross-attention to text and image
 * rows, feed-forward. Does not depend on tensor names. */
#ifndef SLUICE_MODELS_WAN_BLOCK_H
#define SLUICE_MODELS_WAN_BLOCK_H

#include "models/mmdit.h"

/* Projections to the keys and values of cross-attention. */
struct wan_cross_kv_weights {
    struct linear_weights k, v;
    struct tensor k_norm; /* [DIM]: weight of an RMS norm over all heads together */
};

struct wan_block_weights {
    struct tensor modulation;      /* [1, 6, DIM]: scale_shift_table, added to the timestep's modulation */
    struct linear_weights q, k, v; /* query, key and value projections of self-attention */
    struct tensor q_norm, k_norm;  /* [DIM]: weight of an RMS norm over all heads together */
    struct linear_weights out;
    struct linear_weights cross_norm, cross_q; /* layer norm and query projection of cross-attention */
    struct tensor cross_q_norm;
    struct linear_weights cross_out;
    struct linear_weights up, down;
    struct linear_weights hint; /* output projection of a hint block (VACE); else absent */
};

/* Keys and values of cross-attention, with equal numbers of rows; rank 0: absent. */
struct wan_cross_kv {
    struct tensor k, v; /* [rows, DIM] */
};

enum { WAN_RANGES = 2, WAN_CROSS_INPUTS = 2 };

/* Token rows that share a timestep. */
struct wan_range {
    int32_t first, rows;
    struct tensor condition;  /* [1, DIM]: time embedding */
    struct tensor modulation; /* [1, 6 DIM]: shift, scale and gate of attention, then shift, scale and gate of
                                 the feed-forward */
};

/* Arguments of wan_block apart from weights and tokens. */
struct wan_block_args {
    struct wan_range range[WAN_RANGES];
    int n_ranges;
    struct tensor rope;                          /* [T, head / 2, 2] */
    struct wan_cross_kv cross[WAN_CROSS_INPUTS]; /* keys and values of text, then of image rows */
    int32_t head;                                /* channels per head */
    float eps;                                   /* epsilon of all norms */
};

/* Computes kv from rows [T, DIM]. Keys and values may have the device's attention operand type. */
void wan_project_cross_kv(struct context *x, struct wan_cross_kv kv, struct tensor rows,
                          const struct wan_cross_kv_weights *w, float eps);
/* Runs the block: updates tokens [T, DIM] in place. */
void wan_block(struct context *x, const struct wan_block_weights *w, const struct wan_block_args *call,
               struct tensor tokens);
/* Final layer: norm, modulation by table [1, 2, DIM] (shift, scale) plus each range's time embedding,
 * linear layer, unpatchify into the prediction. */
void wan_predict(struct context *x, const struct linear_weights *w, struct tensor table,
                 const struct wan_block_args *call, struct tensor tokens, struct tensor prediction);

#endif
