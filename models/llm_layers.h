/* Decoder layers shared by the language models that are text encoders: Qwen3, Mistral, Qwen2.5-VL, Qwen3-VL,
 * Gemma 3.
 *
 * A layer: x += out(attention(rope(q), rope(k), v)); x += down(silu(gate(n)) * up(n)), with RMS norms before
 * attention and feed-forward, grouped-query attention with a causal mask, rope on halves of a head. Families
 * differ in their weight tables: Qwen2.5-VL has biases of q, k and v, Qwen3 and Qwen3-VL norms of the heads
 * of q and k, Mistral neither; absent weights are skipped. Gemma 3 also norms the outputs of attention and
 * feed-forward, gates with GELU, and has two rope tables: one for global layers, one for local layers.
 *
 * Vision tokens (lane.vision_spans) replace token embeddings in a prompt with images, and rope then has three
 * axes (M-RoPE). A vision encoder's rows [T, (1 + n) HIDDEN] hold these tokens, then n deepstack features
 * (Qwen3-VL): feature k is added to the image's hidden states after layer k. */
#ifndef SLUICE_MODELS_LLM_LAYERS_H
#define SLUICE_MODELS_LLM_LAYERS_H

#include "engine/run/family.h"

/* Indices into component.dims. */
enum {
    LLM_VOCABULARY,
    LLM_HIDDEN,
    LLM_Q,
    LLM_KV,
    LLM_HEAD,
    LLM_HEADS,
    LLM_KEY_HEADS,
    LLM_FEED_FORWARD,
    LLM_LAYERS,
};

enum { MROPE_SECTIONS = 3, LLM_LAYERS_MAX = 400 };

struct llm_settings {
    double rope_theta;
    float norm_eps;
    int heads;        /* number of query heads; 0: absent in the configuration */
    bool interleaved; /* rope rotates pairs of adjacent dimensions; false: dimensions half a head apart */
    int mrope_section[MROPE_SECTIONS]; /* M-RoPE: rope pairs of a head for time, row, column; 0: rope has one
                                          axis */
    bool mrope_interleaved; /* the axes alternate between the pairs of a head; false: consecutive pairs have
                               one axis */
    struct encoder_output output; /* hidden states that the encoder writes to lane.text */
    bool zero_centered;           /* norms multiply by 1 + weight; false: by the weight */
    bool gated_by_gelu;           /* the gate's activation is tanh-GELU; false: SiLU */
    float embedding_factor;       /* factor of the token embeddings; 0 means 1 */
    double query_scalar;          /* attention scores are divided by its square root; 0 means the head size */
    double position_divisor;      /* positions of the rope table `rope` are divided by it; 0 means 1 */
    /* Gemma 3: theta of the rope table `local_rope` of local layers; 0: all layers use the table `rope`. */
    double local_rope_theta;
    unsigned char global_layers[(LLM_LAYERS_MAX + 7) / 8]; /* one bit per layer, 1: global; low bits first */
    int global_period; /* layers global_period - 1, 2 global_period - 1, ... are global; 0: see global_layers
                        */
    int window;        /* attention window of local layers, in tokens; longer prompts are refused */
};

struct llm_state {
    struct tensor rope;       /* [T, HEAD/2, 2] */
    struct tensor local_rope; /* [T, HEAD/2, 2]; rank 0: one table for all layers */
    struct tensor tokens;     /* hidden states: [T, HIDDEN]; rank 0: lane.text holds them */
};

/* Naming macro of rows with two names: transformers' (released files have the prefix "model.", transformers 5
 * saves without it) and llama.cpp's in GGUF files (gguf-py/gguf/constants.py). */
#define LLM_NAMED(P, C, end, name, gguf) .names = {"model." P name end, P name end, C gguf end}

/* Weights of a decoder layer. NORM2: list of the norm before the feed-forward and the norms of outputs; MORE:
 * list of norms and biases of q, k and v. */
/* clang-format off */
#define LLM_LAYER_OF(X, S, NORM2, MORE)                                                                      \
    X##VECTOR(S, norm1, LLM_HIDDEN, "input_layernorm", "attn_norm")                                          \
    X##MATRIX(S, q, LLM_Q, LLM_HIDDEN, "self_attn.q_proj", "attn_q")                                         \
    X##MATRIX(S, k, LLM_KV, LLM_HIDDEN, "self_attn.k_proj", "attn_k")                                        \
    X##MATRIX(S, v, LLM_KV, LLM_HIDDEN, "self_attn.v_proj", "attn_v")                                        \
    MORE(X, S)                                                                                               \
    X##MATRIX(S, out, LLM_HIDDEN, LLM_Q, "self_attn.o_proj", "attn_output")                                  \
    NORM2(X, S)                                                                                              \
    X##MATRIX(S, gate, LLM_FEED_FORWARD, LLM_HIDDEN, "mlp.gate_proj", "ffn_gate")                            \
    X##MATRIX(S, up, LLM_FEED_FORWARD, LLM_HIDDEN, "mlp.up_proj", "ffn_up")                                  \
    X##MATRIX(S, down, LLM_HIDDEN, LLM_FEED_FORWARD, "mlp.down_proj", "ffn_down")
#define LLM_NORM2(X, S) X##VECTOR(S, norm2, LLM_HIDDEN, "post_attention_layernorm", "ffn_norm")
#define LLM_LAYER(X, S, MORE) LLM_LAYER_OF(X, S, LLM_NORM2, MORE)
#define LLM_NORMS(X, S)                                                                                      \
    X##VECTOR(S, q_norm, LLM_HEAD, "self_attn.q_norm", "attn_q_norm")                                        \
    X##VECTOR(S, k_norm, LLM_HEAD, "self_attn.k_norm", "attn_k_norm")
#define LLM_BIASES(X, S)                                                                                     \
    X##BIAS(S, q_bias, LLM_Q, "self_attn.q_proj", "attn_q")                                                  \
    X##BIAS(S, k_bias, LLM_KV, "self_attn.k_proj", "attn_k")                                                 \
    X##BIAS(S, v_bias, LLM_KV, "self_attn.v_proj", "attn_v")
#define LLM_NORMS_AND_BIASES(X, S) LLM_NORMS(X, S) LLM_BIASES(X, S)
#define LLM_OUTPUT_NORMS(X, S)                                                                               \
    X##VECTOR(S, attention_norm, LLM_HIDDEN, "post_attention_layernorm", "post_attention_norm")              \
    X##VECTOR(S, norm2, LLM_HIDDEN, "pre_feedforward_layernorm", "ffn_norm")                                 \
    X##VECTOR(S, ff_norm, LLM_HIDDEN, "post_feedforward_layernorm", "post_ffw_norm")
struct llm_layer_weights { LLM_LAYER_OF(FIELD_, , LLM_OUTPUT_NORMS, LLM_NORMS_AND_BIASES) };
/* clang-format on */

/* Dimension table rows of dims that are axes of the embedding table or of a first-layer tensor. */
#define LLM_OF_TABLE(axis)                                                                                   \
    OF_TENSOR(2, axis, "model.embed_tokens.weight", "embed_tokens.weight", "token_embd.weight")
#define LLM_OF_LAYER(rank, tail, gguf)                                                                       \
    OF_TENSOR(rank, 0, "model.layers.0." tail ".weight", "layers.0." tail ".weight", "blk.0." gguf ".weight")

/* Forward function of a decoder layer; weights: struct llm_layer_weights. */
void llm_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope);

/* Lists the encoder's blocks; layer: the family's block kind of a decoder layer. Returns their number. */
int llm_list_blocks(const struct component *c, const struct block_kind *layer, struct block_ref *refs);

/* True if the index has the embedding table and this first-layer tensor, under any naming scheme. */
bool llm_has_tensors(const struct tensor_index *index, const char *tail, const char *gguf_tail);
/* True if the first layer has norms of its outputs (Gemma). */
bool llm_has_output_norms(const struct tensor_index *index);
/* True if a language model with Qwen3's tensors is that of Qwen3-VL. Signs: the prefix of the tensor names, a
 * Qwen3-VL vision encoder in the same file, or the file's metadata. */
bool llm_is_qwen3vl(const struct tensor_index *index);
/* Head size from the configured head count, or the published one without a count; 0: the count does not
 * divide the rows of q. For families whose tensor shapes do not determine the head size. */
int llm_head_size(const struct component *c);
/* Callback family_config.configure. SHAPE: inconsistent dims. */
enum status llm_check_dims(struct component *c, const struct config *config, struct error *e);
/* Sets mrope_section to the published proportion: rows and columns each get spatial_16ths sixteenths of the
 * rope pairs of a head, at least one pair. */
void llm_default_mrope(struct component *c, int spatial_16ths);
/* META: the sum of mrope_section is not half the head size, or a section is 0. */
enum status llm_check_mrope(const struct component *c, struct error *e);

/* Callbacks of families: family_blocks.rows (token ids of the text, without images),
 * family_config.derive_dims of synthetic components, family_config.derive (settings->heads is not needed),
 * family_state.declare. */
int llm_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);
void llm_derive_dims(struct component *c);
void llm_derive(struct component *c);
void llm_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                 struct arena *pictures, bool *ok);

extern const char *const llm_ignorable[]; /* family_files.ignorable: the output layer */

/* Initialiser of family.state. */
enum { LLM_STATE_TENSORS = 3 };
extern const struct state_tensor llm_state_tensors[LLM_STATE_TENSORS];
#define LLM_STATE                                                                                            \
    {                                                                                                        \
        .bytes = sizeof(struct llm_state), .tensors = llm_state_tensors, .n_tensors = LLM_STATE_TENSORS,     \
        .declare = llm_declare                                                                               \
    }

#endif
