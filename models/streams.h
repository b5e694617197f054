/* Transformers over two streams of tokens, text and pictures, which keep weights of their own and meet in
 * attention alone (Flux.1's double blocks, Qwen-Image, Stable Diffusion 3): what a block of theirs computes,
 * and where whose rows lie. Text comes first, then what is drawn, then pictures that it is to refer to. Knows
 * no family. */
#ifndef SLUICE_MODELS_STREAMS_H
#define SLUICE_MODELS_STREAMS_H

#include "kernels/ops.h"
#include "models/models.h"

enum { STREAM_PATCH = 2 }; /* latent pixels on a token's side; a token's values are (channel, y, x) */

/* Of all norms. */
static const float stream_norm_eps = 1e-6f;

struct linear_weights {
    struct tensor weight, bias;
};

/* Of blocks that are one product. */
struct product_weights {
    struct linear_weights linear;
};

struct stream_attention_weights {
    struct linear_weights q, k, v;
    struct tensor q_norm, k_norm; /* [D]; absent: heads are not normed */
    struct linear_weights out;
};

/* Of the row that all modulations come from: two layers each. */
struct stream_conditioning_weights {
    struct linear_weights time_in, time_out;
    struct linear_weights guidance_in, guidance_out; /* absent: none is distilled into the model */
    struct linear_weights pooled_in, pooled_out;
};

/* A stream's in a block. Where nothing but keys and values is of use the others are absent. */
struct stream_weights {
    struct stream_attention_weights attention;
    struct stream_attention_weights
        second; /* of the stream to itself, beside the first; absent: there is none */
    struct linear_weights up, down;
};

/* ---- sizes ---- */

/* Those of weights; axis: of rope, from a configuration. */
struct stream_sizes {
    int32_t dim, feed_forward, head, frequencies, patch; /* patch: values of a token */
    const int *axis;                                     /* three; NULL: heads are not turned */
    int layers, n_blocks;
};

/* SHAPE, unless the width is whole heads of even axes and all is small enough to compute with. */
enum status stream_check_sizes(const struct component *c, const struct stream_sizes *sizes, struct error *e);

/* ---- rows ---- */

/* Rows of a latent's tokens. */
int32_t stream_tokens_of(struct tensor latent);
int stream_n_references(const struct lane *lane);
/* What is drawn is number 0, references follow. */
struct tensor stream_picture(const struct lane *lane, int i);
/* Of what is drawn and what it refers to. */
int32_t stream_picture_tokens(const struct lane *lane);
/* Of rows of all tokens those of text, and the others. */
struct tensor stream_text_rows(struct tensor all, const struct lane *lane);
struct tensor stream_picture_rows(struct tensor all, const struct lane *lane);
/* Part number i of a row [1, C] of parts of that length. */
struct tensor stream_part(struct tensor row, int i, int32_t length);

/* ---- products ---- */

void stream_product(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w);
/* Rows of a modulation from as many of the conditioning. */
void stream_modulate(struct context *x, struct tensor out, struct tensor condition,
                     const struct linear_weights *w);
/* Two layers with SiLU between them: rows of in to as many of out. */
void stream_condition(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                      const struct linear_weights *w2);
/* Rows of the visit's timesteps, of guidance and of the pooled prompt, added in the reference's order: (time
 * + guidance) + prompt. scale: of timesteps and guidance on their way to sinusoids. */
void stream_condition_rows(struct context *x, struct tensor rows, const struct stream_conditioning_weights *w,
                           const struct visit_scope *scope, float scale);
/* All pictures' values into the first columns of patches [picture tokens, C]. */
void stream_patchify(struct context *x, struct tensor patches, const struct lane *lane);
/* The lane's prediction from the drawn rows of all tokens: normed, modulated (scale, then shift), multiplied.
 * order: of a token's values. */
void stream_predict(struct context *x, const struct linear_weights *w, const struct lane *lane,
                    struct tensor tokens, struct tensor modulation, enum patch_order order);

/* ---- attention ---- */

/* Of all rows; those of a stream are slices. */
struct attended {
    struct tensor n, q, k, v;
    uint64_t mark; /* of the scratch memory that k and v begin at: free once they have been attended to */
};

struct attended stream_attended_tensors(struct context *x, const struct tensor *tokens);
/* Queries or keys: heads normed and turned, where there is a norm and a table. */
void stream_project_heads(struct context *x, struct tensor out, struct tensor n,
                          const struct linear_weights *w, struct tensor norm, struct tensor rope);
/* Rows `first` to first + rows of q attend to all keys and become what they saw. head: D. */
void stream_attend(struct context *x, const struct attended *a, int32_t first, int32_t rows, int32_t head);

/* ---- a block of two streams ---- */

enum { STREAM_RANGES = 2 };

/* Rows of a stream that are modulated alike. */
struct stream_range {
    int32_t rows;
    /* [1, 6 C]: shift, scale, gate of attention, then of the feed-forward; [1, 9 C]: then of the second
     * attention. [1, 2 C] where no row is kept. */
    struct tensor modulation;
};

/* Of all heads. */
struct stream_heads {
    int32_t size;
    struct tensor rope; /* [all rows, size / 2, 2]; absent: they are not turned */
};

/* Text or pictures. */
struct stream {
    const struct stream_weights *w;
    int32_t first, rows;
    int32_t kept; /* the first so many are of use behind the block; the others only give keys and values */
    struct stream_range range[STREAM_RANGES]; /* one behind the other; of no rows: none */
};

/* Both streams through a block: tokens [all rows, C] change. Kept rows of both lie side by side. */
void streams_forward(struct context *x, const struct stream *picture, const struct stream *text,
                     struct tensor tokens, struct stream_heads heads);

#endif
