/* A block of WAN's transformers: tokens of a video attend to each other, then to what is seen beside them
 * (text, pictures), then each goes through a feed-forward. Knows no names of tensors, and no family. */
#ifndef SLUICE_MODELS_WAN_BLOCK_H
#define SLUICE_MODELS_WAN_BLOCK_H

#include "models/streams.h"

/* Keys and values of what tokens attend to beside themselves. */
struct wan_seen_weights {
    struct linear_weights k, v;
    struct tensor k_norm; /* [DIM]: over all heads together */
};

struct wan_block_weights {
    struct tensor modulation;      /* [1, 6, DIM], added to that of the timestep */
    struct linear_weights q, k, v; /* of attention to each other */
    struct tensor q_norm, k_norm;  /* [DIM]: over all heads together */
    struct linear_weights out;
    struct linear_weights seen_norm, seen_q; /* of attention to what is beside; the first is a norm's */
    struct tensor seen_q_norm;
    struct linear_weights seen_out;
    struct linear_weights up, down;
    struct linear_weights hint; /* of a block that leads another (VACE), else absent */
};

/* As many of each; absent ones have rank 0. */
struct wan_seen {
    struct tensor k, v; /* [rows, DIM] */
};

enum { WAN_RANGES = 2, WAN_SEEN = 2 };

/* Rows of one timestep. */
struct wan_range {
    int32_t first, rows;
    struct tensor condition;  /* [1, DIM]: the timestep, embedded */
    struct tensor modulation; /* [1, 6 DIM]: shift, scale, gate of attention, then of the feed-forward */
};

/* What a block computes with beside its weights. */
struct wan_call {
    struct wan_range range[WAN_RANGES];
    int n_ranges;
    struct tensor rope;             /* [T, head / 2, 2] */
    struct wan_seen seen[WAN_SEEN]; /* text, then pictures */
    int32_t head;                   /* columns of one */
    float eps;                      /* of all norms */
};

/* Keys and values of rows [T, DIM], which may be what attention reads. */
void wan_see(struct context *x, struct wan_seen seen, struct tensor rows, const struct wan_seen_weights *w,
             float eps);
/* tokens [T, DIM] change. */
void wan_block(struct context *x, const struct wan_block_weights *w, const struct wan_call *call,
               struct tensor tokens);
/* The lane's prediction of tokens that are normed, modulated by table [1, 2, DIM] (shift, then scale) with
 * each range's timestep added, and multiplied. */
void wan_predict(struct context *x, const struct linear_weights *w, struct tensor table,
                 const struct wan_call *call, struct tensor tokens, struct tensor prediction);

#endif
