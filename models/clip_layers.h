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

/* Activation functions that hidden_act in config.json selects: quick_gelu, gelu, gelu_pytorch_tanh. */
enum { CLIP_GELU_QUICK, CLIP_GELU_ERF, CLIP_GELU_TANH };

/* Weights of a layer. Names: transformers', clip.cpp's (models/convert_hf_to_gguf.py, where ffn_down is the
 * first MLP layer), the WAN authors', and OpenCLIP's. FUSED: name prefix of the tensors that hold q, k and v.
 */
/* clang-format off */
#define CLIP_OPEN "transformer.resblocks.%d."
#define FIELD_CLIP_QKV(S, field, ...) struct linear_weights field;
#define ROW_CLIP_QKV(S, field, part, name, gguf, wan, fused)                                                 \
    ROW_WEIGHT(S, field.weight, SHAPED(2, CLIP_WIDTH, CLIP_WIDTH),                                           \
               name ".weight", gguf ".weight", wan ".weight", fused "weight" part)                           \
    ROW_WEIGHT(S, field.bias, SHAPED(1, CLIP_WIDTH),                                                         \
               name ".bias", gguf ".bias", wan ".bias", fused "bias" part)
#define CLIP_LAYER(X, S, FUSED)                                                                              \
    X##NORM(S, norm1, CLIP_WIDTH, "layer_norm1", "blk.%d.ln1", "norm1", CLIP_OPEN "ln_1")                    \
    X##CLIP_QKV(S, q, "[0/3]", "self_attn.q_proj", "blk.%d.attn_q", "attn.q", FUSED)                         \
    X##CLIP_QKV(S, k, "[1/3]", "self_attn.k_proj", "blk.%d.attn_k", "attn.k", FUSED)                         \
    X##CLIP_QKV(S, v, "[2/3]", "self_attn.v_proj", "blk.%d.attn_v", "attn.v", FUSED)                         \
    X##LINEAR(S, out, CLIP_WIDTH, CLIP_WIDTH,                                                                \
              "self_attn.out_proj", "blk.%d.attn_out", "attn.proj", CLIP_OPEN "attn.out_proj")               \
    X##NORM(S, norm2, CLIP_WIDTH, "layer_norm2", "blk.%d.ln2", "norm2", CLIP_OPEN "ln_2")                    \
    X##LINEAR(S, up, CLIP_FEED_FORWARD, CLIP_WIDTH,                                                          \
              "mlp.fc1", "blk.%d.ffn_down", "mlp.0", CLIP_OPEN "mlp.c_fc")                                   \
    X##LINEAR(S, down, CLIP_WIDTH, CLIP_FEED_FORWARD,                                                        \
              "mlp.fc2", "blk.%d.ffn_up", "mlp.2", CLIP_OPEN "mlp.c_proj")
#define CLIP_OPEN_LAYER(X, S) CLIP_LAYER(X, S, CLIP_OPEN "attn.in_proj_")
struct clip_layer_weights { CLIP_OPEN_LAYER(FIELD_, ) };
/* clang-format on */

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
