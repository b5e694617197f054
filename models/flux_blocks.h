/* Blocks of the Flux.1 transformer, which Flux.1, LongCat-Image, Chroma and Ovis-Image share. Token order:
 * text, the generated image, reference images.
 *
 * Double blocks have separate weights for text and image tokens, with joint attention; single blocks treat
 * all tokens alike (mmdit.h). Each block has its own modulation (AdaLN: shift, scale, gate), which a linear
 * layer computes from the conditioning, one row. These layers are separate blocks here: they depend only on
 * timestep and prompt and can be hoisted. A family adds its own conditioning block. It has its own context,
 * double and single blocks if their weights differ (struct flux_details).
 *
 * Source: diffusers 0.42, models/transformers/transformer_flux.py; checkpoint names of the authors:
 * loaders/single_file_utils.py, convert_flux_transformer_checkpoint_to_diffusers. */
#ifndef SLUICE_MODELS_FLUX_BLOCKS_H
#define SLUICE_MODELS_FLUX_BLOCKS_H

#include "models/mmdit.h"
#include "models/slots.h"

/* Indices into component.dims. */
enum {
    DIM,
    TWO_DIM,
    THREE_DIM,
    SIX_DIM,
    FEED_FORWARD,
    FUSED_IN, /* input width of proj_out in a single block: DIM + FEED_FORWARD */
    HEAD,
    HEADS,
    AXES, /* sizes of the three rope axes: AXES, AXES + 1, AXES + 2 */
    IN = AXES + 3,
    OUT,   /* out_channels in config.json: PATCH for Fill, Canny and Depth; 0: null, for all others */
    PATCH, /* channels of a token's 2x2 latent pixels */
    LATENT,
    FILL,    /* 1: inpainting model (Fill); its input also has the masked image's latent and the mask */
    CONTROL, /* 1: Canny or Depth; the input also has the control image's latent */
    CAPTION,
    POOLED,
    FREQUENCIES,
    DOUBLE_LAYERS,
    SINGLE_LAYERS,
    GUIDED,
    FLUX_DIMS, /* first index of a family's own dims */
};

/* Rope positions (image, row, column). Text token i has (0, 0, 0), or (0, i, i) if text_diagonal. Reference k
 * from 0 has first_image + 1 + k on the first axis; the generated image has first_image. Rows and columns of
 * images count from 0, or from the number of text tokens if after_text. */
struct flux_positions {
    bool text_diagonal, after_text;
    int first_image;
};

struct flux_settings {
    int axis_dim[3];
    struct flux_positions positions; /* copy of flux_details.positions, for the forward functions */
};

/* Block kinds of modulation layers: of each double block, of each single block, of the final layer (NULL in
 * control networks, which have none). */
struct flux_modulations {
    const struct block_kind *double_block, *single_block, *final;
};
/* Modulations by timestep and prompt; by timestep alone, which all lanes share; of control networks, by
 * timestep and prompt without a final layer. */
extern const struct flux_modulations flux_modulations_of_prompt, flux_modulations_of_timestep,
    flux_modulations_of_control;

/* Differences between the families (family.details). */
struct flux_details {
    const struct block_kind *context;      /* embeds the prompt; usually flux_kind_context */
    const struct block_kind *conditioning; /* computes flux_state.condition, or all modulations */
    const struct block_kind *double_block, *single_block;
    /* Modulation layers, with the update rate of `conditioning`; NULL: there are none. */
    const struct flux_modulations *modulations;
    bool fills; /* models with the input channels of Fill, and of Canny and Depth, exist */
    struct flux_positions positions;
};

struct flux_state {
    struct tensor tokens; /* hidden states of all tokens: [text + image + reference rows, DIM] */
    /* The rope table and the embedded prompt are shared by the lanes of a prompt. */
    struct tensor rope; /* rope's cosine and sine: [text + image + reference rows, HEAD/2, 2] */
    struct tensor text; /* embedded prompt: [text rows, DIM] */
    /* Conditioning, computed from timestep and prompt: one row per evaluation if hoisted, else one row. */
    struct tensor condition;                         /* [rows, DIM] */
    struct tensor image_modulation, text_modulation; /* modulation, double blocks: [blocks, rows, SIX_DIM] */
    struct tensor single_modulation; /* modulation, single blocks: [blocks, rows, THREE_DIM] */
    struct tensor final_modulation;  /* scale and shift of the final layer: [rows, TWO_DIM] */
};

/* Norm weights of queries and keys. The endings of their names differ, so the rows have complete names. */
#define HEAD_NORM (.rank = 1, .dim = {HEAD})

/* clang-format off */
/* Rows of a double block; MLP: list of the rows of both feed-forwards. */
#define FLUX_DOUBLE_BLOCK(X, S, MLP)                                                                         \
    X##LINEAR(S, image.attention.q, DIM, DIM, "attn.to_q", "img_attn.qkv[0/3]")                              \
    X##LINEAR(S, image.attention.k, DIM, DIM, "attn.to_k", "img_attn.qkv[1/3]")                              \
    X##LINEAR(S, image.attention.v, DIM, DIM, "attn.to_v", "img_attn.qkv[2/3]")                              \
    X##WEIGHT(S, image.attention.q_norm, HEAD_NORM, "attn.norm_q.weight", "img_attn.norm.query_norm.scale")  \
    X##WEIGHT(S, image.attention.k_norm, HEAD_NORM, "attn.norm_k.weight", "img_attn.norm.key_norm.scale")    \
    X##LINEAR(S, text.attention.q, DIM, DIM, "attn.add_q_proj", "txt_attn.qkv[0/3]")                         \
    X##LINEAR(S, text.attention.k, DIM, DIM, "attn.add_k_proj", "txt_attn.qkv[1/3]")                         \
    X##LINEAR(S, text.attention.v, DIM, DIM, "attn.add_v_proj", "txt_attn.qkv[2/3]")                         \
    X##WEIGHT(S, text.attention.q_norm, HEAD_NORM,                                                           \
              "attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale")                                  \
    X##WEIGHT(S, text.attention.k_norm, HEAD_NORM,                                                           \
              "attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale")                                    \
    X##LINEAR(S, image.attention.out, DIM, DIM, "attn.to_out.0", "img_attn.proj")                            \
    X##LINEAR(S, text.attention.out, DIM, DIM, "attn.to_add_out", "txt_attn.proj")                           \
    MLP(X, S)

/* Rows of a single block. S1: rows of linear1, with the row counts of its parts; MLP: list of the rows of the
 * feed-forward's first layers; parts: text such as "/4]", the number of parts of linear1. */
#define FLUX_SINGLE_BLOCK(X, S, S1, MLP, parts)                                                              \
    X##LINEAR(S1, q, DIM, DIM, "attn.to_q", "linear1[0" parts)                                               \
    X##LINEAR(S1, k, DIM, DIM, "attn.to_k", "linear1[1" parts)                                               \
    X##LINEAR(S1, v, DIM, DIM, "attn.to_v", "linear1[2" parts)                                               \
    X##WEIGHT(S, q_norm, HEAD_NORM, "attn.norm_q.weight", "norm.query_norm.scale")                           \
    X##WEIGHT(S, k_norm, HEAD_NORM, "attn.norm_k.weight", "norm.key_norm.scale")                             \
    MLP(X, S1)                                                                                               \
    X##LINEAR(S, out, DIM, FUSED_IN, "proj_out", "linear2")
/* clang-format on */

/* flux_kind_conditioning: timestep, guidance scale and pooled prompt, as in Flux.1. */
extern const struct block_kind flux_kind_context, flux_kind_conditioning, flux_kind_double, flux_kind_single;

/* Computes the rope table in the lane's state, for the prompt, the generated image and n_images - 1
 * references. */
void flux_fill_rope(struct context *x, const struct visit_scope *scope, int n_images);
/* Forward functions, for families with their own weight tables. weights: mmdit_block_weights,
 * mmdit_single_weights, mmdit_time_text_embed_weights. */
void flux_forward_double(struct context *x, const void *weights, const struct visit_scope *scope);
void flux_forward_single(struct context *x, const void *weights, const struct visit_scope *scope);
void flux_forward_conditioning(struct context *x, const void *weights, const struct visit_scope *scope);

/* Declares the state of lanes[i], a struct flux_state at lanes[i].state, for this many text and image tokens.
 * Lanes of one prompt share all but the tokens. */
void flux_declare_lane(const struct component *c, struct lane *lanes, int i, int32_t text, int32_t images,
                       struct arena *arena, bool *ok);

/* Callbacks of struct family. flux_configure fails with META, SHAPE or UNSUPPORTED. */
enum status flux_configure(struct component *c, const struct config *config, struct error *e);
void flux_derive_dims(struct component *c);
void flux_derive(struct component *c);
int flux_list_blocks(const struct component *c, struct block_ref *refs);
void flux_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                  struct arena *pictures, bool *ok);

/* True if the index holds the double and single blocks of Flux.1's layout, under diffusers' or the authors'
 * names. */
bool flux_has_blocks(const struct tensor_index *index);

/* Named rows of the families' dimension tables. Published values: the number of double and single blocks, and
 * the text columns. */
#define FLUX_DIMENSIONS(doubles, singles, columns)                                                           \
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads"},                                     \
        {"axis0", 16, 2, 256, .place = AXES}, {"axis1", 56, 2, 256, .place = AXES + 1},                      \
        {"axis2", 56, 2, 256, .place = AXES + 2},                                                            \
        {"double_layers",                                                                                    \
         doubles,                                                                                            \
         1,                                                                                                  \
         250,                                                                                                \
         .place = DOUBLE_LAYERS,                                                                             \
         OF_BLOCKS("transformer_blocks.", "double_blocks."),                                                 \
         .key = "num_layers"},                                                                               \
        {"single_layers",                                                                                    \
         singles,                                                                                            \
         1,                                                                                                  \
         250,                                                                                                \
         .place = SINGLE_LAYERS,                                                                             \
         OF_BLOCKS("single_transformer_blocks.", "single_blocks."),                                          \
         .key = "num_single_layers"},                                                                        \
        {"hidden",                                                                                           \
         columns,                                                                                            \
         8,                                                                                                  \
         65536,                                                                                              \
         .place = CAPTION,                                                                                   \
         OF_TENSOR(2, 1, "context_embedder.weight", "txt_in.weight"),                                        \
         .key = "joint_attention_dim"},                                                                      \
    {                                                                                                        \
        "latent_channels", 16, 1, 1024, .place = LATENT                                                      \
    }
/* Rows without a name, which follow a family's named rows. */
#define FLUX_TENSOR_DIMENSIONS                                                                               \
    {.place = DIM, OF_TENSOR(2, 0, "x_embedder.weight", "img_in.weight")},                                   \
        {.place = IN, OF_TENSOR(2, 1, "x_embedder.weight", "img_in.weight"), .key = "in_channels"},          \
        {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "final_layer.linear.weight")},                   \
        {.place = OUT, .key = "out_channels", .form = FORM_NULL_IF_0}, {                                     \
        .place = HEAD, .key = "attention_head_dim",                                                          \
        OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight",                                           \
                  "double_blocks.0.img_attn.norm.query_norm.scale")                                          \
    }
/* Row of the feed-forward's width, for families without a gate. */
#define FLUX_FEED_FORWARD                                                                                    \
    {                                                                                                        \
        .place = FEED_FORWARD,                                                                               \
        OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "double_blocks.0.img_mlp.0.weight")     \
    }

#define FLUX_AXIS(i, published)                                                                              \
    { {"axes_dims_rope." #i}, offsetof(struct flux_settings, axis_dim[i]), SETTING_INT, published, 2, 512 }
/* Rows of the families' settings tables. */
#define FLUX_AXES FLUX_AXIS(0, 16), FLUX_AXIS(1, 56), FLUX_AXIS(2, 56)

enum { N_FLUX_STATE_TENSORS = 7 };
extern const struct state_tensor flux_state_tensors[N_FLUX_STATE_TENSORS];

/* Initialisers of struct family that the families share. of: prefix of the family's tables of_dimensions and
 * of_settings. Further arguments: initialisers of .config. */
#define FLUX_FAMILY(of, ...)                                                                                 \
    .kind = FAMILY_DENOISER, .display_name = "transformer",                                                  \
    .config = {.dimensions = of##_dimensions,                                                                \
               .n_dimensions = COUNT_OF(of##_dimensions),                                                    \
               .settings = of##_settings,                                                                    \
               .n_settings = COUNT_OF(of##_settings),                                                        \
               .derive_dims = flux_derive_dims,                                                              \
               .rest = "\"patch_size\": 1",                                                                  \
               __VA_ARGS__},                                                                                 \
    .blocks = {.list = flux_list_blocks},                                                                    \
    .state = {.bytes = sizeof(struct flux_state),                                                            \
              .tensors = flux_state_tensors,                                                                 \
              .n_tensors = N_FLUX_STATE_TENSORS,                                                             \
              .declare = flux_declare}

#endif
