/* Stable Diffusion 3's transformer (sd3.c): state and blocks, which its control networks share. */
#ifndef SLUICE_MODELS_SD3_H
#define SLUICE_MODELS_SD3_H

#include "models/mmdit.h"

/* Block name prefixes in diffusers' files and in the authors' checkpoints. */
#define SD3_BLOCK            "transformer_blocks.%d."
#define SD3_CHECKPOINT_BLOCK "joint_blocks.%d."

/* Indices into component.dims. */
enum sd3_dim {
    DIM,
    TWO_DIM,
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    LATENT,
    IN,
    SIDE,
    PATCH,
    TABLE_SIDE,
    POSITIONS,
    TEXT,
    POOLED,
    FREQUENCIES,
    LAYERS,
    NORMED,      /* 1: the model has query and key norms (qk_norm) */
    DUAL_LAYERS, /* number of blocks with a second attention (attn2) */
    /* Dims that sd3_block_dims sets for each block and for its modulation; flags are 0 or 1. */
    DUAL, /* 1: the block has a second attention (attn2) */
    DUAL_NORMED,
    TEXT_UPDATED, /* 1: the block updates text tokens (not context_pre_only) */
    TEXT_UPDATED_NORMED,
    CONTEXT_PRE_ONLY, /* 1 in the last block, where text only gives keys and values */
    IMAGE_PARTS_DIM,  /* number of values in the block's image modulation */
    SD3_DIMS,         /* first index of a control network's own dims */
};

enum { SD3_DUAL_LAYERS_MAX = 64, SD3_LAYERS_MAX = 400 };

struct sd3_settings {
    int head, layers, table_side;
    int latent_side; /* width and height of the training images in latent pixels (sample_size) */
    int n_dual_layers;
    float dual_layer[SD3_DUAL_LAYERS_MAX]; /* blocks with attn2, ascending (dual_attention_layers) */
};

/* Numbers of modulation parts, DIM values each: 6 per stream; 9 with attn2; 2 for the last block's text. */
enum { SIX_PARTS = 6, NINE_PARTS = 9, TWO_PARTS = 2 };

struct sd3_state {
    struct tensor tokens;    /* hidden states of all tokens: [text + image rows, DIM] */
    struct tensor positions; /* learned position embeddings: [image rows, DIM], shared by all lanes */
    /* Embedded prompt, shared by the lanes of a prompt: [text rows, DIM]. */
    struct tensor text;
    /* Conditioning, computed from timestep and prompt: one row per evaluation if hoisted, else one row. */
    struct tensor condition; /* [rows, DIM] */
    /* Modulation of all blocks, [parts, rows * DIM]: for each block the image's parts, then the text's. A
     * block's slice is read as [rows, parts * DIM]. */
    struct tensor modulation;
    struct tensor final_modulation; /* scale and shift of the final layer: [rows, TWO_DIM] */
};

/* clang-format off */
#define SD3_CONDITIONING(X, S)                                                                               \
    X##LINEAR(S, time_in, DIM, FREQUENCIES, "timestep_embedder.linear_1", "t_embedder.mlp.0")                \
    X##LINEAR(S, time_out, DIM, DIM, "timestep_embedder.linear_2", "t_embedder.mlp.2")                       \
    X##LINEAR(S, pooled_in, DIM, POOLED, "text_embedder.linear_1", "y_embedder.mlp.0")                       \
    X##LINEAR(S, pooled_out, DIM, DIM, "text_embedder.linear_2", "y_embedder.mlp.2")
/* clang-format on */

/* Blocks that a control network shares: their forwards read component.settings as struct sd3_settings and
 * lane.state as struct sd3_state. */
extern const struct block_kind sd3_kind_position, sd3_kind_context, sd3_kind_embedder, sd3_kind_layer;

/* Weights of a block's modulation. */
struct sd3_modulation_weights {
    struct linear_weights image, text;
};
/* Forward function: weights is struct sd3_modulation_weights. */
void sd3_forward_modulation(struct context *x, const void *weights, const struct visit_scope *scope);

/* Callbacks of struct family. sd3_derive sets dims, settings and the component's public fields. */
void sd3_derive_dims(struct component *c);
void sd3_derive(struct component *c);
void sd3_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);
int sd3_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
enum status sd3_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                            struct error *e);

/* Reads the side of the position table, whose tensor may have a leading axis of 1. SHAPE: it is not square.
 */
enum status sd3_read_positions(struct component *c, struct error *e);
/* Reads head size, norms and blocks with attn2 from tensors and configuration. n_blocks: number of blocks.
 * Fails with META, SHAPE or UNSUPPORTED. */
enum status sd3_read_layers(struct component *c, const struct config *config, int n_blocks, struct error *e);
/* Declares the tensors of sd3_state that the lanes of a prompt share, in the state of its first lane. */
void sd3_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena, bool *ok);

/* Index of the control network's residual that is added after layer `layer` of n; -1 after the last layer.
 * Rounds as diffusers does. */
int sd3_residual_of(int layer, int n, int n_residuals);

/* Rows and lists of the configuration tables. */
extern const char *const sd3_norm_names[], *const sd3_dual_names[], *const sd3_norm_words[];
extern const struct expectation sd3_expects[];

#endif
