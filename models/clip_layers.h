/* Transformer layers shared by CLIP's text and vision encoders.
 *
 * A layer: x += out(attention(n)); x += fc2(gelu(fc1(n))), with a layer norm before attention and before the
 * feed-forward, and biases everywhere; the text encoder's attention is causal. Source: transformers 5,
 * models/clip/modeling_clip.py (CLIPEncoderLayer). */
#ifndef SLUICE_MODELS_CLIP_LAYERS_H
#define SLUICE_MODELS_CLIP_LAYERS_H

#include "engine/run/family.h"

/* Indices into component.dims of both CLIP encoders. An encoder's own indices begin at CLIP_DIMS. */
enum { CLIP_WIDTH, CLIP_HEADS, CLIP_FEED_FORWARD, CLIP_LAYERS, CLIP_DIMS };

/* Activation functions that hidden_act in config.json selects: quick_gelu, gelu. */
enum { CLIP_GELU_QUICK, CLIP_GELU_ERF };

struct clip_layer_weights {
    struct linear_weights norm1, q, k, v, out, norm2, up, down;
};

/* Weight table of a CLIP layer. Macro NAMES(name, gguf, wan) lists a family's tensor names in files of
 * transformers, clip.cpp and WAN's authors. In clip.cpp (models/convert_hf_to_gguf.py), ffn_down is the first
 * MLP layer. checkpoint_name is OpenCLIP's name. FUSED: name prefix of the tensor that holds q, k and v. */
#define CLIP_RESBLOCK "transformer.resblocks.%d."
#define CLIP_ROW(NAMES, field, init_scale_, end, name, gguf, wan, rank_, ...)                                \
    .offset = offsetof(struct clip_layer_weights, field),                                                    \
    .names = NAMES("encoder.layers.%d." name end, "blk.%d." gguf end, "transformer.%d." wan end),            \
    .rank = rank_, .init_scale = init_scale_, .dim = {__VA_ARGS__}
#define CLIP_LINEAR(NAMES, field, name, gguf, wan, open, rows, columns)                                      \
    {CLIP_ROW(NAMES, field.weight, 1, ".weight", name, gguf, wan, 2, rows, columns),                         \
     .checkpoint_name = CLIP_RESBLOCK open ".weight"},                                                       \
    {                                                                                                        \
        CLIP_ROW(NAMES, field.bias, 1, ".bias", name, gguf, wan, 1, rows),                                   \
            .checkpoint_name = CLIP_RESBLOCK open ".bias"                                                    \
    }
#define CLIP_NORM(NAMES, field, name, gguf, wan, open)                                                       \
    {CLIP_ROW(NAMES, field.weight, 0, ".weight", name, gguf, wan, 1, CLIP_WIDTH),                            \
     .checkpoint_name = CLIP_RESBLOCK open ".weight"},                                                       \
    {                                                                                                        \
        CLIP_ROW(NAMES, field.bias, 1, ".bias", name, gguf, wan, 1, CLIP_WIDTH),                             \
            .checkpoint_name = CLIP_RESBLOCK open ".bias"                                                    \
    }
#define CLIP_QKV(NAMES, FUSED, field, i, name, gguf)                                                         \
    {CLIP_ROW(NAMES, field.weight, 1, ".weight", name, gguf, "attn." #field, 2, CLIP_WIDTH, CLIP_WIDTH),     \
     .checkpoint_name = FUSED "weight[" #i "/3]"},                                                           \
    {                                                                                                        \
        CLIP_ROW(NAMES, field.bias, 1, ".bias", name, gguf, "attn." #field, 1, CLIP_WIDTH),                  \
            .checkpoint_name = FUSED "bias[" #i "/3]"                                                        \
    }
#define CLIP_LAYER_WEIGHTS(NAMES, FUSED)                                                                     \
    CLIP_NORM(NAMES, norm1, "layer_norm1", "ln1", "norm1", "ln_1"),                                          \
        CLIP_QKV(NAMES, FUSED, q, 0, "self_attn.q_proj", "attn_q"),                                          \
        CLIP_QKV(NAMES, FUSED, k, 1, "self_attn.k_proj", "attn_k"),                                          \
        CLIP_QKV(NAMES, FUSED, v, 2, "self_attn.v_proj", "attn_v"),                                          \
        CLIP_LINEAR(NAMES, out, "self_attn.out_proj", "attn_out", "attn.proj", "attn.out_proj", CLIP_WIDTH,  \
                    CLIP_WIDTH),                                                                             \
        CLIP_NORM(NAMES, norm2, "layer_norm2", "ln2", "norm2", "ln_2"),                                      \
        CLIP_LINEAR(NAMES, up, "mlp.fc1", "ffn_down", "mlp.0", "mlp.c_fc", CLIP_FEED_FORWARD, CLIP_WIDTH),   \
        CLIP_LINEAR(NAMES, down, "mlp.fc2", "ffn_up", "mlp.2", "mlp.c_proj", CLIP_WIDTH, CLIP_FEED_FORWARD)

struct clip_layer_settings {
    float norm_eps;
    int heads, gelu;
    bool causal;
};

/* Scratch tensors of a CLIP layer, for T token rows. */
struct clip_scratch {
    struct tensor n, q, k, v; /* [T, WIDTH] */
    struct tensor up;         /* [T, FEED_FORWARD] */
};

struct clip_scratch clip_layer_scratch(struct context *x, const struct clip_layer_weights *w,
                                       struct tensor rows);
/* Runs a CLIP layer in place on rows [T, WIDTH], which attend to each other (causally if s->causal). */
void clip_layer(struct context *x, const struct clip_layer_weights *w, const struct clip_layer_settings *s,
                struct tensor rows, const struct clip_scratch *scratch);
/* Layer norm of each row; `out` may equal `in`. */
void clip_norm(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *norm,
               float eps);

#endif
