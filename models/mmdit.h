/* Building blocks of MMDiT transformers (Flux.1, Flux.2, Qwen-Image, Stable Diffusion 3): a joint block over
 * two streams of tokens, text and image, and the embedders around the blocks. Each stream has its own
 * weights; attention is joint. Flux also has single blocks. diffusers: FluxTransformerBlock,
 * FluxSingleTransformerBlock, QwenImageTransformerBlock, JointTransformerBlock.
 * Token order: text, the image that is generated, reference images. Code here depends on no family. */
#ifndef SLUICE_MODELS_MMDIT_H
#define SLUICE_MODELS_MMDIT_H

#include "kernels/ops.h"
#include "models/models.h"

/* Patch size in latent pixels, except in Flux.2: its patches are single pixels, because its VAE packs 2x2
 * pixels into one. The values of a token are ordered (channel, y, x). */
enum { MMDIT_PATCH = 2 };

static const float mmdit_norm_eps = 1e-6f;

struct mmdit_attention_weights {
    struct linear_weights q, k, v;
    struct tensor q_norm, k_norm; /* norm weights of queries and keys: [head size]; absent: no norm */
    struct linear_weights out;
};

/* Weights of CombinedTimestep(Guidance)TextProjEmbeddings: two linear layers each for timestep, guidance
 * scale and pooled prompt. The sum of the three is the input of every modulation. */
struct mmdit_time_text_embed_weights {
    struct linear_weights time_in, time_out;
    struct linear_weights guidance_in, guidance_out; /* layers that embed the guidance scale; absent unless
                                                        the model is guidance-distilled */
    struct linear_weights pooled_in, pooled_out;
};

/* Weights of one stream (text or image) in a joint block. If the block's text output is unused
 * (context_pre_only), the text stream has only keys and values; the other tensors are absent. */
struct mmdit_stream_weights {
    struct mmdit_attention_weights attention;
    struct mmdit_attention_weights attention2; /* self-attention within this stream (diffusers: attn2), added
                                                  to the joint attention; absent in blocks without attn2 */
    /* Feed-forward: down(silu(gate(n)) up(n)), or down(gelu(up(n))) if gate is absent. */
    struct linear_weights gate, up, down;
};

struct mmdit_block_weights {
    struct mmdit_stream_weights image, text;
};

/* Weights of a single block: attention and feed-forward read the same normed tokens. `out` is the last layer
 * of both; its input columns are the attention's output, then the feed-forward's activations. */
struct mmdit_single_weights {
    struct linear_weights q, k, v;
    struct tensor q_norm, k_norm;
    struct linear_weights gate, up, out; /* gate, up: as in mmdit_stream_weights */
};

/* Sizes of an MMDiT transformer, read from its weights. */
struct mmdit_sizes {
    int32_t dim, feed_forward, head, frequencies, patch; /* patch: values per token */
    const int *axis; /* sizes of the rope axes (axes_dims_rope in config.json) */
    int n_axes;      /* number of rope axes; 0: no rope */
    int layers, n_blocks;
};

/* Returns SHAPE unless the width is a multiple of the head size, the rope axes are even and sum to the head
 * size, and all sizes are within the limits of the kernels. */
enum status mmdit_check_sizes(const struct component *c, const struct mmdit_sizes *sizes, struct error *e);

/* Number of tokens of one latent. In all functions here `patch` is the patch size in latent pixels. */
int32_t mmdit_token_count(struct tensor latent, int patch);
/* Number of tokens of the generated image and all references. */
int32_t mmdit_image_token_count(const struct lane *lane, int patch);
int mmdit_n_references(const struct lane *lane);
/* Latent of image i. Image 0 is the generated image; images from 1 are the references. */
struct tensor mmdit_latent(const struct lane *lane, int i);
/* Rows of the text tokens (mmdit_text_rows) or image tokens (mmdit_image_rows) in tensor `all`. */
struct tensor mmdit_text_rows(struct tensor all, const struct lane *lane);
struct tensor mmdit_image_rows(struct tensor all, const struct lane *lane);
/* Part i of a row [1, C] that is split into parts of `length` columns (torch.chunk). */
struct tensor mmdit_chunk(struct tensor row, int i, int32_t length);

void mmdit_linear(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w);
/* Computes the shifts, scales and gates of a modulation: out = linear(silu(condition)), row by row. */
void mmdit_modulation(struct context *x, struct tensor out, struct tensor condition,
                      const struct linear_weights *w);
/* Computes an embedder of two linear layers: out = w2(silu(w1(in))), row by row. */
void mmdit_embed(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                 const struct linear_weights *w2);
/* Writes one embedding row for each timestep of the visit: (time + guidance) + pooled prompt, added in
 * diffusers' order. If the weights of guidance or pooled prompt are absent, so is the term. scale multiplies
 * timesteps and guidance before the sinusoidal embedding. */
void mmdit_time_text_embed(struct context *x, struct tensor rows,
                           const struct mmdit_time_text_embed_weights *w, const struct visit_scope *scope,
                           float scale);
/* Writes the patches of all images to the first columns of patches [image tokens, C]. */
void mmdit_patchify(struct context *x, struct tensor patches, const struct lane *lane, int patch);
/* Final layer: layer norm of the generated image's tokens, modulation [scale, shift], linear, unpatchify
 * to lane->prediction. patches: size of a patch and order of a token's values. */
void mmdit_proj_out(struct context *x, const struct linear_weights *w, const struct lane *lane,
                    struct tensor tokens, struct tensor modulation, struct patches patches);

/* Scratch tensors of joint attention, for the rows of both streams: normed input, queries, keys, values. */
struct mmdit_qkv {
    struct tensor n, q, k, v;
    uint64_t mark; /* scratch memory position before k and v; resetting to `mark` frees k and v */
};

struct mmdit_qkv mmdit_qkv_alloc(struct context *x, const struct tensor *tokens);
/* Computes queries or keys: linear layer, then norm and rope of each head. An absent norm or rope is skipped.
 */
void mmdit_project_heads(struct context *x, struct tensor out, struct tensor n,
                         const struct linear_weights *w, struct tensor norm, struct tensor rope);
/* Attention of query rows [first, first + rows) to all keys. The output overwrites q. head: head size.
 */
void mmdit_attention(struct context *x, const struct mmdit_qkv *a, int32_t first, int32_t rows, int32_t head);

/* Computes the input of a feed-forward's last layer: out [rows, F] = silu(gate(n)) up(n), or gelu(up(n)) if
 * there is no gate. out may be columns of wider rows. */
void mmdit_activations(struct context *x, struct tensor out, struct tensor n,
                       const struct linear_weights *gate, const struct linear_weights *up);

enum { MMDIT_RANGES = 2 };

/* Token rows of a stream that share one modulation. */
struct mmdit_range {
    int32_t rows;
    /* Row of modulation parts of C values each. 6 parts: shift, scale, gate of attention, then of the
     * feed-forward. 9 parts: then of attn2. 2 parts: shift and scale, in a stream without updated rows. */
    struct tensor modulation;
};

struct mmdit_heads {
    int32_t size;
    struct tensor rope; /* rope's cosine and sine: [all rows, size / 2, 2]; absent: no rope */
};

/* Token rows of one stream, text or image, in one block. */
struct mmdit_stream {
    const struct mmdit_stream_weights *w;
    int32_t first, rows;
    int32_t n_updated; /* the block updates the first n_updated rows; later rows give keys and values only */
    struct mmdit_range range[MMDIT_RANGES]; /* consecutive ranges of token rows, each with one modulation;
                                               unused entries have 0 rows */
};

/* Runs a joint block: updates tokens [all rows, C] in place. Updated rows of both streams are contiguous. */
void mmdit_joint_block(struct context *x, const struct mmdit_stream *image, const struct mmdit_stream *text,
                       struct tensor tokens, struct mmdit_heads heads);
/* Runs a block of one stream: self-attention and feed-forward. Updates the stream's rows of tokens in place.
 */
void mmdit_stream_block(struct context *x, const struct mmdit_stream *s, struct tensor tokens,
                        struct mmdit_heads heads);
/* A double block of Flux: a joint block over all tokens, where each stream has one row of modulations. */
struct mmdit_double {
    const struct mmdit_block_weights *w;
    int32_t text_rows;                               /* text tokens; image tokens follow */
    struct tensor image_modulation, text_modulation; /* [1, 6 C], as in mmdit_range */
    struct tensor rope;                              /* rope's cosine and sine: [T, head size / 2, 2] */
};

/* Runs a double block over tokens [T, C], in place. */
void mmdit_double_block(struct context *x, const struct mmdit_double *block, struct tensor tokens);
/* Runs a single block over tokens [T, C], in place: tokens += gate * out([attention, activations]).
 * modulation: [1, 3 C], shift, scale and gate. rope: as in mmdit_heads, but required. */
void mmdit_single_block(struct context *x, const struct mmdit_single_weights *w, struct tensor tokens,
                        struct tensor modulation, struct tensor rope);

#endif
