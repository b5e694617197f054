/* Shared code of T5 and umT5 encoders: embeddings, encoder layers, final norm.
 *
 * A layer: x += o(attention(q(n), k(n), v(n))); x += wo(gelu(wi_0(n)) * wi_1(n)), with RMS norms before each
 * half and no linear bias. Attention scores are not scaled. Positions enter as a relative position bias,
 * added to the scores by distance between query and key. T5 has one bias table, in the first layer, umT5 one
 * in every layer. Source: transformers 5, models/t5/modeling_t5.py, models/umt5/modeling_umt5.py. */
#ifndef SLUICE_MODELS_T5_LAYERS_H
#define SLUICE_MODELS_T5_LAYERS_H

#include "engine/run/family.h"

/* Indices into component.dims. */
enum {
    T5_VOCABULARY,
    T5_HIDDEN,
    T5_Q,
    T5_HEADS,
    T5_HEAD,
    T5_BUCKETS,
    T5_FEED_FORWARD,
    T5_LAYERS,
};

enum { T5_BUCKETS_MAX = 128 }; /* maximum number of position buckets, the limit of op_relative_bias */

struct t5_settings {
    float norm_eps;
    int max_distance;
    int last_layer; /* index of the layer whose output is read; -1: output of the final norm */
};

struct t5_state {
    struct tensor bias;   /* [HEADS, 2T-1]: position bias of distances 1-T to T-1, for the current layer */
    struct tensor tokens; /* [T, HIDDEN]: hidden states; rank 0: in lane.text, whose rows have no gaps */
};

/* Tensor names of transformers, llama.cpp (gguf-py/gguf/constants.py) and the WAN authors' umT5. */
#define T5_BIAS_OF(layer)   "encoder.block." layer ".layer.0.SelfAttention.relative_attention_bias.weight"
#define T5_GGUF_BIAS(layer) "enc.blk." layer ".attn_rel_b.weight"
#define T5_WAN_BIAS(layer)  "blocks." layer ".pos_embedding.embedding.weight"

#define T5_OF_TABLE(axis)                                                                                    \
    OF_TENSOR(2, axis, "shared.weight", "encoder.embed_tokens.weight", "token_embd.weight",                  \
              "token_embedding.weight")
#define T5_OF_BIAS(axis) OF_TENSOR(2, axis, T5_BIAS_OF("0"), T5_GGUF_BIAS("0"), T5_WAN_BIAS("0"))

/* Dimension table rows of T5 families. Published values: T5 1.1 XXL, except the vocabulary. */
#define T5_DIMENSIONS(vocabulary, least_layers)                                                              \
    {                                                                                                        \
        "t5_vocabulary", vocabulary,         300, 1048576, .place = T5_VOCABULARY,                           \
        T5_OF_TABLE(0),  .key = "vocab_size"},                                                               \
        {"hidden", 4096, 8, 65536, .place = T5_HIDDEN, T5_OF_TABLE(1), .key = "d_model"},                    \
        {"t5_heads", 64, 1, 1024, .place = T5_HEADS, T5_OF_BIAS(1), .key = "num_heads"},                     \
        {"t5_head_dim", 64, 1, 512, .place = T5_HEAD, .key = "d_kv"},                                        \
        {"t5_ff",                                                                                            \
         10240,                                                                                              \
         8,                                                                                                  \
         262144,                                                                                             \
         .place = T5_FEED_FORWARD,                                                                           \
         OF_TENSOR(2, 0, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", "enc.blk.0.ffn_gate.weight",  \
                   "blocks.0.ffn.gate.0.weight"),                                                            \
         .key = "d_ff"},                                                                                     \
        {"t5_layers",        24,                                                                             \
         least_layers,       400,                                                                            \
         .place = T5_LAYERS, OF_BLOCKS("encoder.block.", "enc.blk.", "blocks."),                             \
         .key = "num_layers"},                                                                               \
        {"t5_buckets",                                                                                       \
         32,                                                                                                 \
         4,                                                                                                  \
         T5_BUCKETS_MAX,                                                                                     \
         .place = T5_BUCKETS,                                                                                \
         T5_OF_BIAS(0),                                                                                      \
         .key = "relative_attention_num_buckets"},                                                           \
        {.place = T5_Q,                                                                                      \
         OF_TENSOR(2, 0, "encoder.block.0.layer.0.SelfAttention.q.weight", "enc.blk.0.attn_q.weight",        \
                   "blocks.0.attn.q.weight")},                                                               \
    {                                                                                                        \
        .place = T5_LAYERS, .key = "num_decoder_layers"                                                      \
    }

/* Keys of config.json with the same value in all models. class: transformers' model class. */
#define T5_CONFIG_REST(class)                                                                                \
    "\"architectures\": [\"" class "\"], \"relative_attention_max_distance\": 128, "                         \
                                   "\"feed_forward_proj\": \"gated-gelu\", \"is_gated_act\": true, "         \
                                   "\"dense_act_fn\": \"gelu_new\", \"is_encoder_decoder\": true, "          \
                                   "\"tie_word_embeddings\": false, \"pad_token_id\": 0, \"eos_token_id\": " \
                                   "1, "                                                                     \
                                   "\"decoder_start_token_id\": 0"

extern const struct setting t5_settings[1];
extern const struct expectation t5_expects[];
extern const char *const t5_ignorable[];
extern const char *const t5_architectures[];
extern const struct state_tensor t5_state_tensors[1];

/* True if the index has a relative position bias in this layer (0 or 1), under any naming scheme. */
bool t5_has_bias(const struct tensor_index *index, int layer);
/* True if the feed-forward of the first layer has a gate, which T5 1.0 lacks. */
bool t5_is_gated(const struct tensor_index *index);
/* Callback family.configure. Returns SHAPE if dims are inconsistent, META if the configured number of layers
 * differs from the tensors'. */
enum status t5_configure(struct component *c, const struct config *config, struct error *e);
void t5_derive_dims(struct component *c);
void t5_derive(struct component *c);
/* Lists the encoder's blocks. A relative position bias precedes every layer (of_every_layer) or only the
 * first layer. */
int t5_list_blocks(const struct component *c, bool of_every_layer, struct block_ref *refs);
void t5_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                struct arena *pictures, bool *ok);

#endif
