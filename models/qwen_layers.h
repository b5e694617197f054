/* Shared code of Qwen's language models as text encoders: embeddings, decoder layers, final norm.
 *
 * A layer: x += out(attention(rope(q), rope(k), v)); x += down(silu(gate(n)) * up(n)), with RMS norms before
 * each half, grouped-query attention with a causal mask, rope on halves of a head. Families differ in their
 * weight tables: q, k and v have a bias, or heads of q and k have a norm; absent weights are skipped. Vision
 * tokens (lane.vision_spans) replace token embeddings in a prompt with images, and rope then has three axes
 * (M-RoPE). Source: transformers 5.23, models/qwen3/modeling_qwen3.py,
 * models/qwen2_5_vl/modeling_qwen2_5_vl.py. */
#ifndef SLUICE_MODELS_QWEN_LAYERS_H
#define SLUICE_MODELS_QWEN_LAYERS_H

#include "engine/run/family.h"

/* Indices into component.dims. */
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
    int heads;                         /* number of query heads; 0: absent in the configuration */
    int mrope_section[MROPE_SECTIONS]; /* rope pairs of a head for time, row, column; 0: rope has one axis */
    int layers;
    struct hidden_states hidden; /* hidden states that lane.text receives */
};

struct qwen_state {
    struct tensor rope;   /* [T, HEAD/2, 2] */
    struct tensor tokens; /* [T, HIDDEN]: hidden states; rank 0: in lane.text */
};

struct qwen_layer_weights {
    struct tensor norm1, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, out, norm2, gate, up, down;
};

/* Tensor names: released files have the prefix "model.", transformers 5 saves without this prefix; GGUF names
 * are those of llama.cpp (gguf-py/gguf/constants.py). */
#define QWEN_LAYER_WEIGHT(field, tail, gguf, r, ...)                                                         \
    {                                                                                                        \
        .offset = offsetof(struct qwen_layer_weights, field),                                                \
        .names = {"model.layers.%d." tail, "layers.%d." tail, "blk.%d." gguf}, .rank = r,                    \
        .dim = {__VA_ARGS__}, .init_scale = (r) > 1                                                          \
    }

/* Weight table of a decoder layer; the arguments are weights that only one family has. */
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

/* Initialisers of dimensions read from the shape of the embedding table or of a first-layer tensor. */
#define QWEN_OF_TABLE(axis)                                                                                  \
    OF_TENSOR(2, axis, "model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")
#define QWEN_OF_LAYER(rank, tail, gguf)                                                                      \
    OF_TENSOR(rank, 0, "model.layers.0." tail ".weight", "layers.0." tail ".weight", "blk.0." gguf ".weight")

/* True if the index has the embedding table and this first-layer tensor, under any naming scheme. */
bool qwen_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail);
void qwen_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope);
/* Lists the encoder's blocks; layer: the family's block kind of a decoder layer. */
int qwen_list_blocks(const struct component *c, const struct block_kind *layer, struct block_ref *refs);
/* Callback family.configure. Returns SHAPE if dims are inconsistent, META if the configured number of layers
 * differs from the tensors'. */
enum status qwen_configure(struct component *c, const struct config *config, struct error *e);
/* Callback family.derive; settings->heads must be set. */
void qwen_derive(struct component *c);
int qwen_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
void qwen_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                  struct arena *pictures, bool *ok);

extern const char *const qwen_ignorable[];
extern const struct state_tensor qwen_state_tensors[1];

#endif
