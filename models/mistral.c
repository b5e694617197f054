/* Mistral Small 3 as a text encoder (transformers: MistralModel, in Mistral3ForConditionalGeneration).
 * Projections have neither norms nor biases. The vision tower is ignored.
 *
 * llama.cpp orders the rows of q and k so that rope rotates adjacent pairs (convert_hf_to_gguf.py, permute).
 * Files whose tensors have llama.cpp's names have this order, also after `sluice convert`, which changes
 * neither names nor order. Adapters have transformers' row order and are refused for these files. */
#include "models/llm_layers.h"
#include "models/models.h"

#include <string.h>

#define MISTRAL_LAYER(X, S) LLM_LAYER(X, S, NONE)
#define NONE(X, S)
WEIGHT_TABLE_NAMED(mistral_layer_table, MISTRAL_LAYER, llm_layer_weights, LLM_NAMED, "layers.%d.", "blk.%d.");
BLOCK(mistral_kind_layer, "layer", "layers.%d", mistral_layer_table, llm_layer_weights, llm_forward_layer);

/* Detects Mistral by its tensors and excludes architectures that have more: Qwen3 (norms of heads), Qwen2
 * (biases), Gemma (norms before or after the feed-forward). */
static bool mistral_probe(const struct tensor_index *index) {
    return llm_has_tensors(index, "mlp.gate_proj.weight", "ffn_gate.weight") &&
           llm_has_tensors(index, "self_attn.q_proj.weight", "attn_q.weight") &&
           !llm_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight") &&
           !llm_has_tensors(index, "self_attn.q_proj.bias", "attn_q.bias") && !llm_has_output_norms(index);
}

static enum status mistral_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"rope_freqs.", "Llama 3.1 or later, whose rope frequencies are scaled"}, {0}};
    return component_refuse_similar(c, relatives, "Mistral Small 3", e);
}

static enum status mistral_configure(struct component *c, const struct config *config, struct error *e) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    const char *model = config_string(config, "model_type", "");
    if (*model && strcmp(model, "mistral") != 0 && strcmp(model, "mistral3") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"mistral3\" or \"mistral\"",
                         config->path, model);
    c->dims[LLM_HEAD] = llm_head_size(c);
    s->interleaved = index_find(&c->index, "blk.0.attn_q.weight");
    if (s->interleaved) c->adapters_refused = "rows of q and k in llama.cpp's order";
    return llm_check_dims(c, config, e);
}

static int mistral_blocks(const struct component *c, struct block_ref *refs) {
    return llm_list_blocks(c, &mistral_kind_layer, refs);
}

static const char *const mistral_architectures[] = {"llama", "mistral3", NULL};
static const char *const mistral_model_types[] = {"mistral3", NULL};
static const char *const mistral_ignorable[] = {"lm_head.",
                                                "output.weight",
                                                "vision_tower.",
                                                "multi_modal_projector.",
                                                "model.vision_tower.",
                                                "model.multi_modal_projector.",
                                                "tekken_model",
                                                NULL};

/* Published sizes: Mistral Small 3.2 24B. */
static const struct dimension mistral_dimensions[] = {
    {"vocabulary", 131072, 300, 1048576, .place = LLM_VOCABULARY, LLM_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 5120, 8, 65536, .place = LLM_HIDDEN, LLM_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 32, 1, 1024, .place = LLM_HEADS},
    {"text_key_heads", 8, 1, 1024, .place = LLM_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_head_dim", 128, 2, 512, .place = LLM_HEAD, .key = "head_dim"},
    {"text_ff", 32768, 8, 262144, .place = LLM_FEED_FORWARD, LLM_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 40, 1, 400, .place = LLM_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = LLM_Q, LLM_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = LLM_KV, LLM_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings from config.json (of the language model alone or with a vision tower) or GGUF metadata. */
static const struct setting mistral_settings[] = {
    {{"num_attention_heads", "text_config.num_attention_heads", "llama.attention.head_count",
      "mistral3.attention.head_count"},
     offsetof(struct llm_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"rope_theta", "rope_parameters.rope_theta", "text_config.rope_theta",
      "text_config.rope_parameters.rope_theta", "llama.rope.freq_base", "mistral3.rope.freq_base"},
     offsetof(struct llm_settings, rope_theta),
     SETTING_DOUBLE,
     1e9,
     1,
     1e12},
    {{"rms_norm_eps", "text_config.rms_norm_eps", "llama.attention.layer_norm_rms_epsilon",
      "mistral3.attention.layer_norm_rms_epsilon"},
     offsetof(struct llm_settings, norm_eps),
     SETTING_FLOAT,
     1e-5,
     0,
     1},
};

static const struct expectation mistral_expects[] = {
    {"text_config.model_type", "mistral"},
    {"hidden_act", "silu"},
    {"text_config.hidden_act", "silu"},
    {"rope_parameters.rope_type", "default"},
    {"text_config.rope_parameters.rope_type", "default"},
    {"rope_scaling", NULL},
    {"text_config.rope_scaling", NULL},
    {"llama.rope.scaling.type", "none"},
    {"mistral3.rope.scaling.type", "none"},
    {0},
};

static void mistral_derive_dims(struct component *c) {
    llm_derive_dims(c);
    ((struct llm_settings *)c->settings)->heads = c->dims[LLM_HEADS];
}

const struct family family_mistral = {
    .name = "mistral",
    .kind = FAMILY_TEXT,
    .display_name = "Mistral text encoder",
    .files = {.architectures = mistral_architectures,
              .config_key = "model_type",
              .config_value = "mistral",
              .config_others = mistral_model_types,
              .probe = mistral_probe,
              .refuse = mistral_refuse,
              .ignorable = mistral_ignorable},
    .config = {.dimensions = mistral_dimensions,
               .n_dimensions = COUNT_OF(mistral_dimensions),
               .settings = mistral_settings,
               .n_settings = COUNT_OF(mistral_settings),
               .expects = mistral_expects,
               .configure = mistral_configure,
               .derive_dims = mistral_derive_dims,
               .derive = llm_derive,
               .rest = "\"architectures\": [\"MistralForCausalLM\"], \"tie_word_embeddings\": false, "
                       "\"hidden_act\": \"silu\", \"max_position_embeddings\": 131072, "
                       "\"sliding_window\": null"},
    .reads = {.tokens = true},
    .blocks = {.list = mistral_blocks},
    .state = LLM_STATE,
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 5120}},
};
