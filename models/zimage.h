/* Shared by Z-Image's transformer (zimage.c) and its control networks (zimage_control.c): dims, the lane
 * state that a control network reads and adds to, and the layer, which is the same in both. */
#ifndef SLUICE_MODELS_ZIMAGE_H
#define SLUICE_MODELS_ZIMAGE_H

#include "models/models.h"

/* Indices into component.dims. Control networks have no captions, time embedder and rope axes. */
enum zimage_dim {
    DIM,
    CAPTION,
    PATCH,
    ADALN_DIM,
    TIME_HIDDEN,
    FREQUENCIES,
    FOUR_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    AXES, /* sizes of the three rope axes: AXES, AXES + 1, AXES + 2 */
    LATENT = AXES + 3,
    LAYERS,
    REFINERS, /* number of noise refiner layers; a transformer has as many context refiner layers */
    ONE,
    REFINER_HINTS, /* control networks: 1 if the noise refiner's layers add residuals too */
    REFINER,       /* control networks: enum zimage_refiner */
};

enum { ZIMAGE_PATCH_SIDE = 2 };

/* Weights of a layer, and names in files after the prefix, such as "layers.%d.". AT: empty, or the member
 * that holds the layer in a larger weights structure, as in "layer.". */
/* clang-format off */
#define ZIMAGE_LAYER(X, S, AT)                                                                               \
    X##VECTOR(S, AT norm1, DIM, "attention_norm1")                                                           \
    X##MATRIX(S, AT q, DIM, DIM, "attention.to_q", "attention.qkv[0/3]")                                     \
    X##MATRIX(S, AT k, DIM, DIM, "attention.to_k", "attention.qkv[1/3]")                                     \
    X##MATRIX(S, AT v, DIM, DIM, "attention.to_v", "attention.qkv[2/3]")                                     \
    X##VECTOR(S, AT q_norm, HEAD, "attention.norm_q", "attention.q_norm")                                    \
    X##VECTOR(S, AT k_norm, HEAD, "attention.norm_k", "attention.k_norm")                                    \
    X##MATRIX(S, AT out, DIM, DIM, "attention.to_out.0", "attention.out")                                    \
    X##VECTOR(S, AT norm2, DIM, "attention_norm2")                                                           \
    X##VECTOR(S, AT ffn_norm1, DIM, "ffn_norm1")                                                             \
    X##MATRIX(S, AT w1, FEED_FORWARD, DIM, "feed_forward.w1")                                                \
    X##MATRIX(S, AT w3, FEED_FORWARD, DIM, "feed_forward.w3")                                                \
    X##MATRIX(S, AT w2, DIM, FEED_FORWARD, "feed_forward.w2")                                                \
    X##VECTOR(S, AT ffn_norm2, DIM, "ffn_norm2")
/* clang-format on */
struct zimage_layer_weights {
    ZIMAGE_LAYER(FIELD_, , )
};

struct zimage_state {
    struct tensor tokens;  /* hidden states of all tokens, with padding: [image + caption rows, DIM] */
    struct tensor rope;    /* rope's cosine and sine: [image + caption rows, HEAD/2, 2] */
    struct tensor caption; /* refined caption tokens: [caption rows, DIM]; shared by the lanes of a prompt */
    int32_t image_rows;    /* number of image token rows, with padding */
    /* Conditioning by timestep, shared by all lanes: one row per evaluation if hoisted, else one row. */
    struct tensor time;                              /* [rows, ADALN_DIM] */
    struct tensor noise_modulation, main_modulation; /* [blocks, rows, FOUR_DIM] */
    struct tensor final_scale;                       /* [rows, DIM] */
};

/* Numbers of token rows of a lane, padding included. */
int32_t zimage_image_row_count(const struct lane *lane);
int32_t zimage_caption_row_count(const struct lane *lane);
/* The image's or the caption's rows of tokens or of a rope table. */
struct tensor zimage_image_rows(struct tensor all, const struct zimage_state *state);
struct tensor zimage_caption_rows(struct tensor all, const struct zimage_state *state);

/* Embeds a latent [C, 1, Y, X]: writes the patches' rows of `rows` and returns their number, Y/2 X/2. */
int32_t zimage_embed(struct context *x, struct tensor rows, struct tensor latent,
                     const struct linear_weights *patch);
/* Computes modulations of the visit's timesteps from their embedding: rows [n_timesteps, N] = linear(time).
 */
void zimage_modulate(struct context *x, const struct linear_weights *w, struct tensor rows,
                     const struct zimage_state *state, const struct visit_scope *scope,
                     enum activation activation);
/* Runs a layer in place. tokens [T, DIM]; rope [T, HEAD/2, 2]; modulation [1, FOUR_DIM]: scale, gate of
 * attention, scale, gate of the feed-forward; rank 0 in the context refiner, which has none. */
void zimage_layer(struct context *x, const struct zimage_layer_weights *w, float norm_eps,
                  struct tensor tokens, struct tensor rope, struct tensor modulation);

/* Blocks of the transformer after which a control network runs: image embedder, noise refiner, main layers.
 */
extern const struct block_kind zimage_kind_embedder, zimage_kind_noise, zimage_kind_layer;

#endif
