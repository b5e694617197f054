/* Qwen3 as a text encoder (transformers: Qwen3Model). Queries and keys are normed, projections have no bias;
 * the rest is in qwen_layers.h. Pipelines usually read hidden_states[-2], the input of the last layer; the
 * last layer and the final norm are then not loaded. */
#include "models/models.h"
#include "models/qwen_layers.h"

static const struct weight_spec qwen3_layer_table[] = {QWEN_LAYER_WEIGHTS(
    QWEN_LAYER_WEIGHT(q_norm, "self_attn.q_norm.weight", "attn_q_norm.weight", 1, QWEN_HEAD),
    QWEN_LAYER_WEIGHT(k_norm, "self_attn.k_norm.weight", "attn_k_norm.weight", 1, QWEN_HEAD))};

static const struct block_kind qwen3_kind_layer =
    BLOCK_KIND("layer", "layers.%d", qwen3_layer_table, qwen_layer_weights, qwen_forward_layer);

static bool qwen3_probe(const struct tensor_index *index) {
    return qwen_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight");
}

static int qwen3_blocks(const struct component *c, struct block_ref *refs) {
    return qwen_list_blocks(c, &qwen3_kind_layer, refs);
}

static const char *const qwen3_architectures[] = {"qwen3", NULL};

/* Published sizes: Qwen3-4B. */
static const struct dimension qwen3_dimensions[] = {
    {"vocabulary", 151936, 300, 1048576, .place = QWEN_VOCABULARY, QWEN_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 2560, 8, 65536, .place = QWEN_HIDDEN, QWEN_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = QWEN_HEADS, .key = "num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = QWEN_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = QWEN_HEAD, QWEN_OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "head_dim"},
    {"text_ff", 9728, 8, 262144, .place = QWEN_FEED_FORWARD, QWEN_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 36, 2, 400, .place = QWEN_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = QWEN_Q, QWEN_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = QWEN_KV, QWEN_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings from config.json (transformers 4 and 5) and GGUF metadata. */
static const struct setting qwen3_settings[] = {
    {{"rope_theta", "rope_parameters.rope_theta", "qwen3.rope.freq_base"},
     offsetof(struct qwen_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "qwen3.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
};

static const struct expectation qwen3_expects[] = {
    {"hidden_act", "silu"},
    {"rope_parameters.rope_type", "default"},
    {"rope_scaling", NULL},
    {"use_sliding_window", NULL},
    {"attention_bias", NULL},
    {"qwen3.rope.scaling.type", "none"},
    {0},
};

static void qwen3_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[QWEN_Q] = d[QWEN_HEADS] * d[QWEN_HEAD];
    d[QWEN_KV] = d[QWEN_KEY_HEADS] * d[QWEN_HEAD];
}

const struct family family_qwen3 = {
    .name = "qwen3",
    .kind = FAMILY_TEXT,
    .display_name = "text encoder",
    .architectures = qwen3_architectures,
    .config_key = "model_type",
    .config_value = "qwen3",
    .probe = qwen3_probe,
    .dimensions = qwen3_dimensions,
    .n_dimensions = COUNT_OF(qwen3_dimensions),
    .settings = qwen3_settings,
    .n_settings = COUNT_OF(qwen3_settings),
    .expects = qwen3_expects,
    .configure = qwen_configure,
    .derive_dims = qwen3_derive_dims,
    .derive = qwen_derive,
    .reads = {.hidden = {.from_end = {1}}, .tokens = true}, /* hidden_states[-2] */
    .config_rest = "\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, "
                   "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
                   "\"max_position_embeddings\": 40960",
    .blocks = qwen3_blocks,
    .ignorable = qwen_ignorable,
    .lane_state_bytes = sizeof(struct qwen_state),
    .state = qwen_state_tensors,
    .n_state = COUNT_OF(qwen_state_tensors),
    .declare = qwen_declare,
    .rows = qwen_rows,
    .predicted = {.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 2560},
};
