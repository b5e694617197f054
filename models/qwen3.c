/* Qwen3 as a text encoder (transformers: Qwen3Model). Queries and keys are normed, projections have no bias;
 * the rest is in llm_layers.c. Pipelines usually read hidden_states[-2], the input of the last layer; the
 * last layer and the final norm are then not loaded. */
#include "models/llm_layers.h"
#include "models/models.h"

#define QWEN3_LAYER(X, S) LLM_LAYER(X, S, LLM_NORMS)
WEIGHT_TABLE_NAMED(qwen3_layer_table, QWEN3_LAYER, llm_layer_weights, LLM_NAMED, "layers.%d.", "blk.%d.");
BLOCK(qwen3_kind_layer, "layer", "layers.%d", qwen3_layer_table, llm_layer_weights, llm_forward_layer);

static bool qwen3_probe(const struct tensor_index *index) {
    return llm_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight") &&
           !llm_is_qwen3vl(index) && !llm_has_output_norms(index);
}

static int qwen3_blocks(const struct component *c, struct block_ref *refs) {
    return llm_list_blocks(c, &qwen3_kind_layer, refs);
}

static const char *const qwen3_architectures[] = {"qwen3", NULL};

/* Published sizes: Qwen3-4B. */
static const struct dimension qwen3_dimensions[] = {
    {"vocabulary", 151936, 300, 1048576, .place = LLM_VOCABULARY, LLM_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 2560, 8, 65536, .place = LLM_HIDDEN, LLM_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = LLM_HEADS, .key = "num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = LLM_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = LLM_HEAD, LLM_OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "head_dim"},
    {"text_ff", 9728, 8, 262144, .place = LLM_FEED_FORWARD, LLM_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 36, 2, 400, .place = LLM_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = LLM_Q, LLM_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = LLM_KV, LLM_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings of Qwen3 from config.json (transformers 4 and 5) or GGUF metadata. */
static const struct setting qwen3_settings[] = {
    {{"rope_theta", "rope_parameters.rope_theta", "qwen3.rope.freq_base"},
     offsetof(struct llm_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "qwen3.attention.layer_norm_rms_epsilon"},
     offsetof(struct llm_settings, norm_eps),
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

const struct family family_qwen3 = {
    .name = "qwen3",
    .kind = FAMILY_TEXT,
    .display_name = "text encoder",
    .files = {.architectures = qwen3_architectures,
              .config_key = "model_type",
              .config_value = "qwen3",
              .probe = qwen3_probe,
              .ignorable = llm_ignorable},
    .config = {.dimensions = qwen3_dimensions,
               .n_dimensions = COUNT_OF(qwen3_dimensions),
               .settings = qwen3_settings,
               .n_settings = COUNT_OF(qwen3_settings),
               .expects = qwen3_expects,
               .configure = llm_check_dims,
               .derive_dims = llm_derive_dims,
               .derive = llm_derive,
               .rest = "\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, "
                       "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
                       "\"max_position_embeddings\": 40960"},
    .reads = {.hidden = {.layers = {-2}}, .tokens = true},
    .blocks = {.list = qwen3_blocks, .rows = llm_rows},
    .state = LLM_STATE,
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 2560}},
};
