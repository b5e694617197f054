/* Shared by the control networks of UNets: unet_control.c (one kind of control image) and
 * unet_control_union.c (several kinds, several images at once). */
#ifndef SLUICE_MODELS_UNET_CONTROL_H
#define SLUICE_MODELS_UNET_CONTROL_H

#include "models/unet.h"

struct unet_control_settings {
    struct unet_settings unet; /* the network's down side and middle; its up side has no blocks */
    int bgr;                   /* 1: the channels of control images are in the order blue, green, red */
    int pools; /* 1: a residual is its mean over the pixels (global_pool_conditions of "shuffle") */
};

/* State of a lane. skip[i] uses one of two buffers in turn, because only the next block reads it; the mid
 * block's stream is the buffer that does not hold the last skip. */
struct unet_control_state {
    struct unet_state unet;
    /* Results of the hint convolutions [Y, X, C], shared by all lanes of a prompt; union networks: sum over
     * the control images, see unet_control_union.c. */
    struct tensor hint;
    struct tensor tokens; /* union networks: a token of each control image [images, TOKEN], like hint */
};

/* Indices into component.dims after those of enum unet_dim. */
enum unet_control_dim {
    IMAGE = UNET_DIMS, /* channels of a control image: 3 */
    HINT0,
    HINT1,
    HINT2,
    HINT3,        /* channels of the hint convolutions, from the image's size down to the latent's */
    ZERO_AXES,    /* trailing axes of size 1 of the residuals' convolutions */
    MODES,        /* union networks: kinds of control images; 0: other networks */
    MODE_COLUMNS, /* input columns of control_add_embedding: sinusoids of each mode */
    TOKEN,        /* width of the token transformer */
    TOKEN_FEED_FORWARD,
    TOKEN_LAYERS,
};

/* clang-format off */
/* Weights of the hint convolutions. MEMBER: their place in the block's weights structure, such as "hint.". */
#define UNET_HINT_OF(X, S, MEMBER)                                                                           \
    X##CONV(S, MEMBER in, HINT0, IMAGE, K3, "controlnet_cond_embedding.conv_in", "input_hint_block.0")       \
    X##CONV(S, MEMBER block[0], HINT0, HINT0, K3, "controlnet_cond_embedding.blocks.0", "input_hint_block.2") \
    X##CONV(S, MEMBER block[1], HINT1, HINT0, K3, "controlnet_cond_embedding.blocks.1", "input_hint_block.4") \
    X##CONV(S, MEMBER block[2], HINT1, HINT1, K3, "controlnet_cond_embedding.blocks.2", "input_hint_block.6") \
    X##CONV(S, MEMBER block[3], HINT2, HINT1, K3, "controlnet_cond_embedding.blocks.3", "input_hint_block.8") \
    X##CONV(S, MEMBER block[4], HINT2, HINT2, K3, "controlnet_cond_embedding.blocks.4", "input_hint_block.10") \
    X##CONV(S, MEMBER block[5], HINT3, HINT2, K3, "controlnet_cond_embedding.blocks.5", "input_hint_block.12") \
    X##CONV(S, MEMBER out, OUT, HINT3, K3, "controlnet_cond_embedding.conv_out", "input_hint_block.14")
/* clang-format on */
enum { UNET_HINT_BLOCKS = 6 };
struct unet_hint_weights {
    struct linear_weights in, block[UNET_HINT_BLOCKS], out;
};

/* Computes the hint convolutions of a control image [8 Y, 8 X, 3] into out [Y, X, C]. */
void unet_hint(struct context *x, struct tensor out, const struct unet_hint_weights *w, struct tensor image,
               bool bgr);
/* Writes the mean over the pixels of picture [Y, X, C] to row [1, C]. */
void unet_mean(struct context *x, struct tensor row, struct tensor picture);

/* Rows of the dimension and setting tables of both families. */
#define UNET_CONTROL_DIMENSIONS                                                                              \
    UNET_SIZES, {"latent_channels", 4, 1, 1024, .place = IN_CHANNELS},                                       \
        {"control_hint0", 16, 1, 4096, .place = HINT0, HINT_OF("conv_in.weight", "0.weight", 0)},            \
        {"control_hint1", 32, 1, 4096, .place = HINT1, HINT_OF("blocks.1.weight", "4.weight", 1)},           \
        {"control_hint2", 96, 1, 4096, .place = HINT2, HINT_OF("blocks.3.weight", "8.weight", 2)},           \
        {"control_hint3", 256, 1, 4096, .place = HINT3, HINT_OF("blocks.5.weight", "12.weight", 3)},         \
        UNET_CONFIG
#define HINT_OF(name, number, i)                                                                             \
    OF_TENSOR(4, 0, "controlnet_cond_embedding." name, "input_hint_block." number),                          \
        .key = "conditioning_embedding_out_channels." #i
enum { N_UNET_CONTROL_DIMENSIONS = N_UNET_SIZES + 5 + N_UNET_CONFIG };
#define UNET_CONTROL_SETTINGS                                                                                \
    UNET_COMMON_SETTINGS,                                                                                    \
        {{"controlnet_conditioning_channel_order", "rgb", "bgr"},                                            \
         offsetof(struct unet_control_settings, bgr),                                                        \
         SETTING_WORD,                                                                                       \
         0,                                                                                                  \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        {"global_pool_conditions"}, offsetof(struct unet_control_settings, pools), SETTING_BOOL, 0, 0, 1     \
    }

/* Lists the blocks that follow `hint` in the state: the input, the down side, the middle, the residuals. */
void unet_control_add_encoder(struct unet_list *list);

/* True for the files of both families: diffusers' names, or those of the authors' checkpoints. */
static inline bool unet_is_control(const struct tensor_index *index) {
    return index_find(index, "controlnet_cond_embedding.conv_in.weight") ||
           (index_find(index, "input_hint_block.0.weight") && index_find(index, "zero_convs.0.0.weight"));
}

/* Callbacks of both families; struct family and struct family_control document each. */
enum status unet_control_refuse(const struct component *c, struct error *e);
enum status unet_control_configure(struct component *c, const struct config *config, struct error *e);
void unet_control_derive_dims(struct component *c);
void unet_control_derive(struct component *c);
void unet_control_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);
void unet_control_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok);
enum status unet_control_check(const struct component *c, const struct component *denoiser, struct error *e);
int unet_control_visits(const struct component *c, const struct component *denoiser,
                        struct control_visit *visits);

#endif
