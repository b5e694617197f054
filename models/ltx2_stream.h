/* One stream of tokens of LTX-2's transformer, video or sound: attention and feed-forward in chunks of rows.
 * Wide intermediates exist for one chunk at a time, because a video has many tokens; keys and values exist
 * for all tokens. Shapes and chunks do not depend on the plan. The text connectors have the same attention
 * and use ltx2_project and ltx2_attend. Source: diffusers 0.42, models/transformers/transformer_ltx2.py. */
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
    struct tensor modulation; /* shifts, scales and gates, before or after the layer's table is added: [1,
                                 TABLE C] */
};

enum { LTX2_RANGES = 2 };

/* Parts of a modulation row: index of the shift's vector; scale and gate follow. */
enum { PART_SELF = 0, PART_FEED_FORWARD = 3, PART_TEXT = 6 };
/* Parts of the modulation of attention between the streams: index of the scale's vector; the shift follows.
 * Both directions share the gate's vector. */
enum { CROSS_TO_VIDEO = 0, CROSS_TO_SOUND = 2, CROSS_GATE = 4 };

/* Arguments of op_rope for queries or keys. */
struct ltx2_rope {
    struct tensor table;
    struct rotation rotation;
};

/* Tokens of one stream in one visit. */
struct ltx2_stream {
    struct tensor tokens; /* [T, C] */
    struct ltx2_range range[LTX2_RANGES];
    int n_ranges;
    int heads; /* of self-attention and attention to the prompt */
    float eps;
    struct ltx2_rope rope, cross_rope; /* of self-attention; of attention between the streams */
};

/* Keys and values of an attention, and its number of heads. */
struct ltx2_kv {
    struct tensor k, v; /* [rows, inner]; rank 0: the attention returns each token's own values */
    int heads;
};

/* Rows that attend. */
struct ltx2_queries {
    struct tensor tokens; /* rows to which the result is added: [n, C] */
    struct tensor normed; /* rows from which q was computed: [n, C] */
    struct tensor q;      /* queries: [n, inner]; ltx2_attend overwrites them */
    struct tensor gate;   /* factors of the result: [C]; rank 0: 1 */
};

/* Computes queries or keys `out` [n, inner] of `in` [n, C]: linear layer, RMS norm over all heads together
 * with weight `norm`, rope (NULL: none). */
void ltx2_project(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w,
                  struct tensor norm, const struct ltx2_rope *rope);
/* Adds an attention's result: tokens += gate * out(attention(q, k, v)). LTX-2.3 multiplies each head's output
 * by 2 sigmoid of a gate that is computed from `normed`. */
void ltx2_attend(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_kv *kv,
                 struct ltx2_queries queries);

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

/* Allocates keys and values [rows, columns] in the visit's scratch memory. */
struct ltx2_kv ltx2_kv_alloc(struct context *x, int32_t rows, int32_t columns, int heads);
/* Computes keys and values of stream s for the other stream's queries. modulation: scales, shifts and gate
 * [1, 5 C]; part: CROSS_TO_VIDEO or CROSS_TO_SOUND. */
void ltx2_project_cross(struct context *x, const struct ltx2_attention_weights *w,
                        const struct ltx2_stream *s, struct tensor modulation, int part,
                        const struct ltx2_kv *kv);
/* Attention of stream s to keys and values of the other stream; arguments as in ltx2_project_cross. */
void ltx2_attend_cross(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                       struct tensor modulation, int part, const struct ltx2_kv *kv);

/* Final layer: layer norm, shift and scale (the table [2, C] plus each range's time embedding), linear layer.
 * Returns the prediction [T, values of a token] in scratch memory. */
struct tensor ltx2_predict(struct context *x, const struct ltx2_stream *s, struct tensor table,
                           const struct linear_weights *w);

#endif
