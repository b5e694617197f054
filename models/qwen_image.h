/* Qwen-Image's transformer (qwen_image.c): state and blocks, which its control networks share. */
#ifndef SLUICE_MODELS_QWEN_IMAGE_H
#define SLUICE_MODELS_QWEN_IMAGE_H

#include "models/mmdit.h"

/* Indices into component.dims. */
enum {
    DIM,
    TWO_DIM,
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    AXES, /* sizes of the three rope axes: AXES, AXES + 1, AXES + 2 */
    IN = AXES + 3,
    PATCH, /* equal to IN */
    LATENT,
    TEXT,
    FREQUENCIES,
    LAYERS,
    QWEN_IMAGE_DIMS, /* first index of a control network's own dims */
};

struct qwen_image_settings {
    int axis_dim[3];
    int zero_cond_t; /* 1: reference tokens are modulated as at timestep 0 */
};

struct qwen_image_state {
    struct tensor tokens; /* hidden states of all tokens: [text + image + reference rows, DIM] */
    /* The rope table and the embedded prompt are shared by the lanes of a prompt. */
    struct tensor rope; /* rope's cosine and sine: [text + image + reference rows, HEAD/2, 2] */
    struct tensor text; /* embedded prompt: [text rows, DIM] */
    /* Conditioning by timestep, shared by all lanes: one row per evaluation if hoisted, else one row. */
    struct tensor condition;                         /* [rows, DIM] */
    struct tensor image_modulation, text_modulation; /* [LAYERS, rows, SIX_DIM] */
    struct tensor final_modulation;                  /* scale and shift of the final layer: [rows, TWO_DIM] */
    /* Conditioning and image modulation of reference tokens at timestep 0; rank 0 without zero_cond_t. */
    struct tensor clean_condition;  /* [1, DIM] */
    struct tensor clean_modulation; /* [LAYERS, 1, SIX_DIM] */
};

/* Blocks that a control network shares: their forwards read component.settings as struct qwen_image_settings
 * and lane.state as struct qwen_image_state. kind_last: last layer, which updates only the generated image's
 * tokens; kind_last_unused: its weights for text tokens, which are not used. */
extern const struct block_kind qwen_image_kind_text, qwen_image_kind_time, qwen_image_kind_embedder,
    qwen_image_kind_layer_modulation, qwen_image_kind_layer, qwen_image_kind_last,
    qwen_image_kind_last_unused;

/* Named rows of the dimension tables. layers: published number of layers. */
#define QWEN_IMAGE_DIMENSIONS(layers)                                                                        \
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads"},                                     \
        {"axis0", 16, 2, 256, .place = AXES}, {"axis1", 56, 2, 256, .place = AXES + 1},                      \
        {"axis2", 56, 2, 256, .place = AXES + 2},                                                            \
        {"layers", layers, 1, 500, .place = LAYERS, OF_BLOCKS("transformer_blocks."), .key = "num_layers"},  \
        {"hidden",                                                                                           \
         3584,                                                                                               \
         8,                                                                                                  \
         65536,                                                                                              \
         .place = TEXT,                                                                                      \
         OF_TENSOR(2, 1, "txt_in.weight"),                                                                   \
         .key = "joint_attention_dim"},                                                                      \
    {                                                                                                        \
        "latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"                               \
    }
/* Rows without a name, which follow a family's named rows. */
#define QWEN_IMAGE_TENSOR_DIMENSIONS                                                                         \
    {.place = DIM, OF_TENSOR(2, 0, "img_in.weight")},                                                        \
        {.place = IN, OF_TENSOR(2, 1, "img_in.weight"), .key = "in_channels"},                               \
        {.place = FREQUENCIES, OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight")},        \
        {.place = HEAD,                                                                                      \
         OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight"),                                         \
         .key = "attention_head_dim"},                                                                       \
    {                                                                                                        \
        .place = FEED_FORWARD, OF_TENSOR(2, 0, "transformer_blocks.0.img_mlp.net.0.proj.weight")             \
    }

#define QWEN_IMAGE_AXIS(i, published)                                                                        \
    {                                                                                                        \
        {"axes_dims_rope." #i}, offsetof(struct qwen_image_settings, axis_dim[i]), SETTING_INT, published,   \
            2, 512                                                                                           \
    }
/* Rows of the settings tables. */
#define QWEN_IMAGE_AXES QWEN_IMAGE_AXIS(0, 16), QWEN_IMAGE_AXIS(1, 56), QWEN_IMAGE_AXIS(2, 56)

/* Callbacks of struct family_config. qwen_image_derive sets dims, text_columns and latent_channels. */
void qwen_image_derive_dims(struct component *c);
void qwen_image_derive(struct component *c);
/* SHAPE if the sizes are not those of a transformer of this kind. n_blocks: number of blocks, unused ones
 * too. */
enum status qwen_image_check_dims(const struct component *c, int n_blocks, struct error *e);

/* Declare the tensors of qwen_image_state that all lanes share, and those of a prompt, in the state of the
 * first lane and the prompt's first lane. */
void qwen_image_declare_rows(const struct component *c, const struct lane *lane, struct arena *arena,
                             bool *ok);
void qwen_image_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena,
                               bool *ok);

#endif
