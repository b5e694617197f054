/* What Qwen's language models have in common as text encoders: embeddings, decoder layers, a norm.
 *
 * A layer: x += out(attention(rope(q), rope(k), v)); x += down(silu(gate(n)) * up(n)), with RMS norms before
 * each half, grouped key heads, causal attention, rope on halves. Families differ in what their tables say:
 * q, k and v with a bias, or heads of q and k with a norm; what is absent is not computed. Pictures stand
 * among the tokens as rows that a vision encoder made (lane.vision_spans): no embeddings are read for them, and they
 * are counted along three axes (M-RoPE).
 * Reference: transformers 5.23, models/qwen3/modeling_qwen3.py, models/qwen2_5_vl/modeling_qwen2_5_vl.py. */
#ifndef SLUICE_MODELS_QWEN_LAYERS_H
#define SLUICE_MODELS_QWEN_LAYERS_H

#include "engine/run/family.h"

/* Places in dims. */
enum {
    QWEN_VOCABULARY,
    QWEN_HIDDEN,
    QWEN_Q,
    QWEN_KV,
    QWEN_HEAD,
    QWEN_HEADS,
    QWEN_KEY_HEADS,
    QWEN_FEED_FORWARD,
    QWEN_LAYERS,
};

enum { MROPE_SECTIONS = 3 };

struct qwen_settings {
    double rope_theta;
    float norm_eps;
    int heads;                   /* of queries; 0: nothing says it */
    int mrope_section[MROPE_SECTIONS]; /* pairs of a head that turn with time, row and column; 0: all with one */
    int last_layer;              /* whose output is read, without the norm; -1: all, with it */
};

struct qwen_state {
    struct tensor rope;   /* [T, HEAD/2, 2] */
    struct tensor tokens; /* [T, HIDDEN], where the lane's text is no packed tensor; else it is that */
};

struct qwen_layer_weights {
    struct tensor norm1, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, out, norm2, gate, up, down;
};

/* Released files have the prefix "model."; transformers 5 drops it when it saves; GGUF files have names of
 * their own (llama.cpp's gguf-py/gguf/constants.py). */
#define QWEN_LAYER_WEIGHT(field, tail, gguf, r, ...)                                                         \
    {                                                                                                        \
        .offset = offsetof(struct qwen_layer_weights, field),                                                \
        .names = {"model.layers.%d." tail, "layers.%d." tail, "blk.%d." gguf}, .rank = r,                    \
        .dim = {__VA_ARGS__}, .init_scale = (r) > 1                                                              \
    }

/* Rows of a layer's table, around those of a family's own. */
#define QWEN_LAYER_WEIGHTS(...)                                                                              \
    QWEN_LAYER_WEIGHT(norm1, "input_layernorm.weight", "attn_norm.weight", 1, QWEN_HIDDEN),                  \
        QWEN_LAYER_WEIGHT(q, "self_attn.q_proj.weight", "attn_q.weight", 2, QWEN_Q, QWEN_HIDDEN),            \
        QWEN_LAYER_WEIGHT(k, "self_attn.k_proj.weight", "attn_k.weight", 2, QWEN_KV, QWEN_HIDDEN),           \
        QWEN_LAYER_WEIGHT(v, "self_attn.v_proj.weight", "attn_v.weight", 2, QWEN_KV, QWEN_HIDDEN),           \
        __VA_ARGS__,                                                                                         \
        QWEN_LAYER_WEIGHT(out, "self_attn.o_proj.weight", "attn_output.weight", 2, QWEN_HIDDEN, QWEN_Q),     \
        QWEN_LAYER_WEIGHT(norm2, "post_attention_layernorm.weight", "ffn_norm.weight", 1, QWEN_HIDDEN),      \
        QWEN_LAYER_WEIGHT(gate, "mlp.gate_proj.weight", "ffn_gate.weight", 2, QWEN_FEED_FORWARD,             \
                          QWEN_HIDDEN),                                                                      \
        QWEN_LAYER_WEIGHT(up, "mlp.up_proj.weight", "ffn_up.weight", 2, QWEN_FEED_FORWARD, QWEN_HIDDEN),     \
        QWEN_LAYER_WEIGHT(down, "mlp.down_proj.weight", "ffn_down.weight", 2, QWEN_HIDDEN,                   \
                          QWEN_FEED_FORWARD)

/* Of rows of dimensions: where files tell them. */
#define QWEN_OF_TABLE(axis)                                                                                  \
    OF_TENSOR(2, axis, "model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")
#define QWEN_OF_LAYER(rank, tail, gguf)                                                                      \
    OF_TENSOR(rank, 0, "model.layers.0." tail ".weight", "layers.0." tail ".weight", "blk.0." gguf ".weight")

/* Has the index embeddings and, in its first layer, this tensor, under the names of any of the files? */
bool qwen_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail);
void qwen_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope);
/* All blocks, with the family's own kind of layer. */
int qwen_list_blocks(const struct component *c, const struct block_kind *layer, struct block_ref *refs);
/* SHAPE unless the dims fit together, META if a file says another number of layers. As family.configure. */
enum status qwen_configure(struct component *c, const struct config *config, struct error *e);
/* Those that follow from others; settings->heads is known. */
void qwen_derive(struct component *c);
int qwen_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
void qwen_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                  struct arena *pictures, bool *ok);

extern const char *const qwen_ignorable[];
extern const struct state_tensor qwen_state_tensors[1];

#endif
