/* One stream of tokens of LTX-2's transformer, video or sound: attention and feed-forward in chunks of rows.
 * Wide intermediates exist for one chunk at a time, because a video has many tokens; keys and values exist
 * for all. Shapes and chunks do not depend on the plan. Source: diffusers 0.42,
 * models/transformers/transformer_ltx2.py. */
#ifndef SLUICE_MODELS_LTX2_STREAM_H
#define SLUICE_MODELS_LTX2_STREAM_H

#include "models/mmdit.h"

struct ltx2_attention_weights {
    struct linear_weights q, k, v, out;
    struct tensor q_norm, k_norm; /* weights of RMS norms over all heads together */
    struct linear_weights gates;  /* LTX-2.3: one gate for each head; else absent */
};

/* Token rows that have the same timestep. */
struct ltx2_range {
    int32_t first, rows;
    struct tensor condition;  /* time embedding: [1, C] */
    struct tensor modulation; /* rows of all blocks, or of the current layer with its table: [1, TABLE C] */
};

enum { LTX2_RANGES = 2 };

/* Indices of vectors in a modulation row: shift; scale and gate follow. */
enum { PART_SELF = 0, PART_FEED_FORWARD = 3, PART_TEXT = 6 };
/* Indices of vectors in the rows of attention between the streams: scale; the shift follows. */
enum { CROSS_TO_VIDEO = 0, CROSS_TO_SOUND = 2, CROSS_GATE = 4 };

/* Tokens of one stream in one visit. */
struct ltx2_stream {
    struct tensor tokens; /* [T, C] */
    struct ltx2_range range[LTX2_RANGES];
    int n_ranges;
    int heads;
    float eps;
    /* Rope tables of self-attention and of attention between the streams. */
    struct tensor rope, cross_rope;
    struct rope_axes axes, cross_axes;
};

/* Keys and values of an attention, with equal numbers of rows; rank 0: absent. */
struct ltx2_kv {
    struct tensor k, v; /* [rows, inner] */
};

/* Self-attention, from the modulation's PART_SELF on. Keys and values of all tokens are computed first, from
 * tokens that no chunk has changed. values_only (spatio-temporal guidance): the attention returns each
 * token's own values. */
void ltx2_attend_self(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                      bool values_only);
/* Attention to the prompt's rows [n, C]. A modulation with PART_TEXT (LTX-2.3) modulates the queries' input
 * and gates the result. */
void ltx2_attend_text(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                      struct tensor text);
/* Feed-forward down(gelu(up(n))), from the modulation's PART_FEED_FORWARD on. */
void ltx2_feed_forward(struct context *x, const struct linear_weights *up, const struct linear_weights *down,
                       const struct ltx2_stream *s);

/* Keys and values [rows, columns] in the visit's scratch memory. */
struct ltx2_kv ltx2_kv_alloc(struct context *x, int32_t rows, int32_t columns);
/* Computes keys and values of stream s for the other stream's queries. modulation: rows [1, 5 C]; part:
 * CROSS_TO_VIDEO or CROSS_TO_SOUND. */
void ltx2_project_cross(struct context *x, const struct ltx2_attention_weights *w,
                        const struct ltx2_stream *s, struct tensor modulation, int part,
                        const struct ltx2_kv *kv);
/* Attention of stream s to keys and values of the other stream; arguments as in ltx2_project_cross. heads: of
 * the attention, which may differ from those of the stream's rope. */
void ltx2_attend_cross(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                       struct tensor modulation, int part, const struct ltx2_kv *kv, int heads);

/* Final layer: layer norm, shift and scale by the table [2, C] plus each range's time embedding, linear
 * layer. Returns rows [T, values of a token]. */
struct tensor ltx2_predict(struct context *x, const struct ltx2_stream *s, struct tensor table,
                           const struct linear_weights *w);

#endif
