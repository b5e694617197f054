/* Shared by the files of the UNets: unet.c (mathematics and layout), unet_recipes.c (sizes, recipes), and the
 * control networks unet_control.c and unet_control_union.c, which are a UNet's down side and middle again.
 * Layout: numbers of levels, resnets and transformer layers; block numbers and names; skip connections.
 *
 * A position is a resnet and the transformer that may follow it. Each side (down, up) counts its levels
 * separately: down from the latent's resolution, up from the smallest resolution. The authors' checkpoints
 * number the positions of a side consecutively and count each downsampling as one more position. */
#ifndef SLUICE_MODELS_UNET_H
#define SLUICE_MODELS_UNET_H

#include "models/models.h"

/* Variants of the UNet that tensor shapes distinguish. GUIDED: with a guidance scale embedding (LCM). */
enum {
    UNET_SD1,
    UNET_SD1_INPAINT,
    UNET_SD2,
    UNET_SD2_INPAINT,
    UNET_SDXL,
    UNET_SDXL_INPAINT,
    UNET_SDXL_REFINER,
    UNET_SD1_GUIDED,
    UNET_SDXL_GUIDED,
};

enum {
    UNET_LEVELS_MAX = 4,
    UNET_RESNETS_MAX = 3, /* maximum number of resnets per down level; up levels have one resnet more */
    UNET_LAYERS_MAX = 64,
    UNET_SKIPS_MAX = UNET_LEVELS_MAX * (UNET_RESNETS_MAX + 1),
    UNET_POSITIONS_MAX = UNET_LEVELS_MAX * (2 * UNET_RESNETS_MAX + 1) + 2,
};

enum unet_side { UNET_DOWN, UNET_MID, UNET_UP, UNET_SIDES };

struct unet_settings {
    float norm_eps;
    int groups;
    int time_id_columns; /* number of sinusoid columns per add_time_ids value (SDXL) */
    int side;            /* height and width of the training latents in latent pixels (sample_size) */
    int levels, resnets, mid_resnets;
    int heads[UNET_LEVELS_MAX];
    bool attends[UNET_POSITIONS_MAX]; /* a transformer follows the position's resnet */
    /* Layers of the transformers. 0: no transformer, or its projections alone (control networks). */
    unsigned char layers[UNET_POSITIONS_MAX];
};

struct unet_position {
    enum unet_side side;
    int level, resnet; /* resolution level and resnet number within the side; the mid block has level 0 */
    int layer; /* index of the layer within its transformer, for blocks that are one transformer layer */
};

#define UNET_DOWN_RESNET               "down_blocks.%d.resnets.%d"
#define UNET_CHECKPOINT_DOWN_RESNET    "input_blocks.%d.0"
#define UNET_DOWN_ATTENTION            "down_blocks.%d.attentions.%d"
#define UNET_CHECKPOINT_DOWN_ATTENTION "input_blocks.%d.1"
#define UNET_MID_RESNET                "mid_block.resnets.%d"
#define UNET_CHECKPOINT_MID_RESNET     "middle_block.%d"
#define UNET_MID_ATTENTION             "mid_block.attentions.0"
#define UNET_CHECKPOINT_MID_ATTENTION  "middle_block.1"
#define UNET_UP_RESNET                 "up_blocks.%d.resnets.%d"
#define UNET_CHECKPOINT_UP_RESNET      "output_blocks.%d.0"
#define UNET_UP_ATTENTION              "up_blocks.%d.attentions.%d"
#define UNET_CHECKPOINT_UP_ATTENTION   "output_blocks.%d.1"

/* Block references without kind. unet_ref: to a resnet or a timestep projection; unet_layer_ref: to a
 * transformer layer. */
struct block_ref unet_ref(const struct unet_settings *s, struct unet_position position);
struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_position position);
/* Position of a block, from its number in the reference of unet_ref or unet_layer_ref. */
struct unet_position unet_position_of(int number);
struct unet_position unet_layer_position_of(int number);

/* Positions are numbered in execution order. unet_index: number of a position; unet_n_positions: count;
 * unet_position_at: position number i. */
int unet_index(const struct unet_settings *s, struct unet_position position);
int unet_n_positions(const struct unet_settings *s);
struct unet_position unet_position_at(const struct unet_settings *s, int i);
/* Resolution level of a position: level 0 has the latent's size, each level halves the size. */
int unet_depth(const struct unet_settings *s, struct unet_position position);

/* Index of the skip connection that a down position writes or an up position reads. Index 0 is the output of
 * conv_in. */
int unet_skip(const struct unet_settings *s, struct unet_position position);

/* Lane state. The down side reads and writes skip connections alone; each position's input is the skip before
 * its output. The mid block reads the last skip. */
enum { MEMORY_ROW = 64 };
struct unet_state {
    struct tensor skip[UNET_SKIPS_MAX]; /* skip connections, the outputs of down positions: [Y, X, C] */
    struct tensor stream; /* buffer of the current feature map, from the mid block on: [rows, MEMORY_ROW] */
    struct tensor tokens; /* buffer of the current transformer's tokens: [rows, MEMORY_ROW] */
    /* Keys and values of the prompt's text rows for each transformer, shared by all lanes of a prompt. */
    struct tensor text[UNET_POSITIONS_MAX]; /* [layers, text rows, 2 C]: keys, then values */
    /* Conditioning, computed from timestep and prompt: one row per evaluation if hoisted, else one row. */
    struct tensor condition;                /* [rows, TIME] */
    struct tensor time[UNET_POSITIONS_MAX]; /* [rows, C] */
};

/* Number of skip connections. */
static inline int unet_n_skips(const struct unet_settings *s) {
    return s->levels * (s->resnets + 1);
}
/* Channel count of a skip connection. */
int32_t unet_skip_channels(const struct component *c, int skip);
/* Writes the shape [Y, X, C] of a skip connection of a lane. */
void unet_skip_shape(const struct component *c, const struct lane *lane, int skip, int32_t dim[3]);
/* Number of rows of the feature map buffer (or, if of_tokens, of the token buffer), for the largest content.
 * Reads the shapes of the state's skips. */
int32_t unet_buffer_rows(const struct component *c, const struct unet_state *state, bool of_tokens);
/* Takes the tensors of a prompt from the arena (text, condition, time), for the first n positions. */
void unet_declare_prompt(const struct component *c, const struct lane *lane, int n, struct arena *arena,
                         bool *ok);

/* Block kinds of one side of the UNet (down, mid, up), and of the other blocks that control networks share.
 * unet_conditioning: timestep embedders without and with pooled text and add_time_ids. */
struct unet_kinds {
    struct block_kind time, resnet, wider_resnet, proj_in, text, layer, proj_out;
};
extern const struct unet_kinds unet_kinds[UNET_SIDES];
extern const struct block_kind unet_conditioning[2], unet_kind_downsample;

/* The list of a component's blocks that family_blocks.list writes; n: number of blocks so far. */
struct unet_list {
    const struct component *c;
    struct block_ref *refs;
    int n;
};
void unet_add(struct unet_list *list, const struct block_kind *kind, struct block_ref ref);
/* Lists the blocks of a position; the resnet's timestep projection precedes the resnet. */
void unet_add_position(struct unet_list *list, struct unet_position position);
/* Adds the downsampling or upsampling convolution after the last position of a level. */
void unet_add_resample(struct unet_list *list, struct unet_position position);
/* Callback family_blocks.dims. */
void unet_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);
/* Index of the last block before the up side, among a UNet's bound blocks. */
int unet_last_middle_block(const struct component *c);

/* Views the pixels of a feature map as token rows [Y X, C]. */
static inline struct tensor unet_rows(struct tensor picture) {
    return tensor_reshape(picture, 2, (int32_t[]){picture.dim[0] * picture.dim[1], picture.dim[2]});
}
/* The mid block's output [Y, X, C], in the state's stream. */
struct tensor unet_middle(const struct unet_settings *s, const struct unet_state *state);
/* Computes conv_in of the lane's latent and concat channels, plus `residual` (rank 0: none), into skip 0. */
void unet_conv_in(struct context *x, const struct linear_weights *w, const struct visit_scope *scope,
                  struct tensor residual);
/* Computes an embedder of two linear layers: out = w2(silu(w1(in))), row by row. */
void unet_embed(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                const struct linear_weights *w2);

enum { UNET_CONV_AXES = 2 }; /* trailing 1s in the shape of a matrix that files store as a 1x1 convolution */

/* Indices into component.dims. */
enum unet_dim {
    IN_CHANNELS, /* input channels of conv_in: latent and concatenated conditioning (inpainting) */
    LATENT,
    FREQUENCIES,
    TIME,
    ADDED, /* input columns of add_embedding (pooled text and add_time_ids sinusoids); 0: no add_embedding */
    POOLED,
    GUIDANCE, /* width of the guidance embedding (LCM); 0: none */
    TIME_IDS, /* number of add_time_ids values (SDXL) */
    CONTEXT,
    CONV_AXES, /* number of trailing axes of size 1 in the shape of projections: 0 linear, 2 convolution */
    K1,
    K3, /* kernel sizes 1 and 3 of convolutions, as dims */
    IN,
    OUT, /* input and output channels of one block, set by unet_block_dims */
    FEED_FORWARD,
    TWO_FEED_FORWARD,
    LEVELS,
    RESNETS,
    MID_LAYERS,  /* number of transformer layers of the mid block, if the smallest level has none */
    EQUAL_HEADS, /* number of attention heads, if equal in all levels; 0: heads are 64 wide */
    GROUPS,
    INPAINTS, /* 1: inpainting model, which also reads the mask and the masked image's latent */
    CHANNELS, /* CHANNELS + i: width of level i */
    LAYERS = CHANNELS + UNET_LEVELS_MAX,     /* LAYERS + i: number of layers of each transformer at level i */
    CONFIG_HEADS = LAYERS + UNET_LEVELS_MAX, /* CONFIG_HEADS + i: heads of level i; this and later dims are
                                                used for config.json only */
    CONFIG_LAYERS = CONFIG_HEADS + UNET_LEVELS_MAX, /* CONFIG_LAYERS + i: transformer layers of level i, never
                                                       0; the last entry may be the mid block's */
    DOWN_TYPE = CONFIG_LAYERS + UNET_LEVELS_MAX,
    UP_TYPE = DOWN_TYPE + UNET_LEVELS_MAX,
    CONFIG_LINEAR = UP_TYPE + UNET_LEVELS_MAX,
    CONFIG_ADDITION,
    UNET_DIMS
};

enum { N_UNET_DIMENSIONS = 48, N_UNET_SETTINGS = 4 };
extern const struct dimension unet_dimensions[N_UNET_DIMENSIONS];
extern const struct setting unet_settings_rows[N_UNET_SETTINGS];
extern const struct expectation unet_expects[];

/* Initialisers of dimension rows. CHANNELS_OF, LAYERS_OF: level i. CONFIG_LEVELS: the entries of a
 * config.json array with one entry per level. UNET_SIZES, UNET_CONFIG: rows of UNets and of their control
 * networks. */
#define CONFIG_LEVEL(i, place_, key_, ...)                                                                   \
    { .place = (place_) + (i), .key = key_ "." #i, __VA_ARGS__ }
#define CONFIG_LEVELS(place, key, ...)                                                                       \
    CONFIG_LEVEL(0, place, key, __VA_ARGS__), CONFIG_LEVEL(1, place, key, __VA_ARGS__),                      \
        CONFIG_LEVEL(2, place, key, __VA_ARGS__), CONFIG_LEVEL(3, place, key, __VA_ARGS__)
#define CHANNELS_OF(i, published)                                                                            \
    { "unet" #i, published, (i) ? 0 : 8, 8192, .place = CHANNELS + (i) }
#define LAYERS_OF(i, published)                                                                              \
    { "unet_layers" #i, published, 0, UNET_LAYERS_MAX, .place = LAYERS + (i) }
/* Named rows: the sizes of the published Stable Diffusion 1. */
#define UNET_SIZES                                                                                           \
    CHANNELS_OF(0, 320), CHANNELS_OF(1, 640), CHANNELS_OF(2, 1280), CHANNELS_OF(3, 1280), LAYERS_OF(0, 1),   \
        LAYERS_OF(1, 1), LAYERS_OF(2, 1), LAYERS_OF(3, 0),                                                   \
        {"unet_middle_layers", 1, 0, UNET_LAYERS_MAX, .place = MID_LAYERS},                                  \
        {"unet_resnets", 2, 1, UNET_RESNETS_MAX, .place = RESNETS},                                          \
        {"unet_heads", 8, 0, 512, .place = EQUAL_HEADS}, {"unet_groups", 32, 1, 4096, .place = GROUPS},      \
        {"unet_convolved", UNET_CONV_AXES, 0, UNET_CONV_AXES, .place = CONV_AXES},                           \
        {"unet_text", 768, 8, 65536, .place = CONTEXT}, {"unet_pooled", 0, 0, 65536, .place = POOLED}, {     \
        "unet_numbers", 0, 0, ADD_TIME_IDS_MAX, .place = TIME_IDS                                            \
    }
#define UNET_CONFIG                                                                                          \
    {.place = IN_CHANNELS,                                                                                   \
     OF_TENSOR(4, 1, "conv_in.weight", "input_blocks.0.0.weight"),                                           \
     .key = "in_channels"},                                                                                  \
        {.place = TIME, OF_TENSOR(2, 0, "time_embedding.linear_1.weight", "time_embed.0.weight")},           \
        {.place = FREQUENCIES, OF_TENSOR(2, 1, "time_embedding.linear_1.weight", "time_embed.0.weight")},    \
        {.place = RESNETS, .key = "layers_per_block"}, {.place = CONTEXT, .key = "cross_attention_dim"},     \
        {.place = CONFIG_LINEAR, .key = "use_linear_projection", .form = FORM_BOOL},                         \
        {.place = CONFIG_ADDITION, .key = "addition_embed_type", .words = unet_addition_types},              \
        {.place = ADDED, .key = "projection_class_embeddings_input_dim", .form = FORM_NULL_IF_0},            \
        CONFIG_LEVELS(CHANNELS, "block_out_channels", .form = FORM_ABSENT_IF_0),                             \
        CONFIG_LEVELS(CONFIG_HEADS, "attention_head_dim", .form = FORM_ABSENT_IF_0),                         \
        CONFIG_LEVELS(CONFIG_LAYERS, "transformer_layers_per_block", .form = FORM_ABSENT_IF_0),              \
        CONFIG_LEVELS(DOWN_TYPE, "down_block_types", .words = unet_down_types)
enum { N_UNET_SIZES = 16, N_UNET_CONFIG = 24 };
extern const char *const unet_down_types[], *const unet_addition_types[];

/* Settings that UNets and their control networks have in common, of a structure that begins with struct
 * unet_settings. */
#define UNET_SETTING(key, field, type_, published, least, most)                                              \
    { {key}, offsetof(struct unet_settings, field), type_, published, least, most }
#define UNET_COMMON_SETTINGS                                                                                 \
    UNET_SETTING("norm_num_groups", groups, SETTING_INT, 32, 1, 4096),                                       \
        UNET_SETTING("norm_eps", norm_eps, SETTING_FLOAT, 1e-5, 1e-12, 1),                                   \
        UNET_SETTING("addition_time_embed_dim", time_id_columns, SETTING_INT, 256, 2, 8192)

/* Reads the sizes of the down side and the middle, and of other sides that the files have; checks the
 * configuration's constants and block types. */
enum status unet_read(struct component *c, const struct config *config, struct error *e);
/* SHAPE if channels, heads or embedding widths are not supported. reads_text: false: no transformer has
 * layers. */
enum status unet_check_dims(const struct component *c, bool reads_text, struct error *e);
/* Sets the positions of a synthetic component from its dims. */
void unet_derive_positions(struct component *c);
/* Sets the dims that only config.json needs. */
void unet_set_config_dims(struct component *c);

/* Callbacks of family_unet; struct family documents each. */
enum status unet_refuse(const struct component *c, struct error *e);
enum status unet_configure(struct component *c, const struct config *config, struct error *e);
void unet_derive_dims(struct component *c);
void unet_derive(struct component *c);

#endif
