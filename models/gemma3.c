/* Gemma 3 as a text encoder (transformers: Gemma3TextModel, in Gemma3ForConditionalGeneration). The vision
 * tower is ignored. LTX-2 reads the scaled token embeddings and the outputs of all layers.
 *
 * Differences from the other language models: norms multiply by 1 + weight, also those of the heads of q and
 * k; the outputs of attention and feed-forward are normed; the gate is tanh-GELU; token embeddings are
 * multiplied by sqrt(hidden); every sixth layer is global, with its own rope table. transformers rounds the
 * factor to the type of the embeddings (bf16: 62 instead of 61.97); it stays f32 here, as with f32 weights.
 *
 * The other layers have sliding-window attention over 1,024 tokens, the maximum of LTX-2's prompts. The
 * window is not implemented: longer prompts are refused.
 *
 * llama.cpp stores the weights of all norms plus 1 in GGUF files (convert_hf_to_gguf.py). Its tensor names
 * identify such files, also after `sluice convert`, which changes neither names nor values. */
#include "models/llm_layers.h"
#include "models/models.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GEMMA3_LAYER(X, S) LLM_LAYER_OF(X, S, LLM_OUTPUT_NORMS, LLM_NORMS)
WEIGHT_TABLE_NAMED(gemma3_layer_table, GEMMA3_LAYER, llm_layer_weights, LLM_NAMED, "layers.%d.", "blk.%d.");
BLOCK(gemma3_kind_layer, "layer", "layers.%d", gemma3_layer_table, llm_layer_weights, llm_forward_layer);

static bool gemma3_probe(const struct tensor_index *index) {
    return llm_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight") &&
           llm_has_output_norms(index);
}

static enum status gemma3_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {{"altup_projections.", "Gemma 3n"},
                                                            {"model.altup_projections.", "Gemma 3n"},
                                                            {"altup_proj", "Gemma 3n"},
                                                            {"layers.0.layer_scalar", "Gemma 4"},
                                                            {"model.layers.0.layer_scalar", "Gemma 4"},
                                                            {"blk.0.layer_output_scale", "Gemma 4"},
                                                            {0}};
    return component_refuse_similar(c, relatives, "Gemma 3", e);
}

/* Reads the type of rope scaling. "linear" keeps the divisor of positions; a configuration without scaling
 * sets it to 1. Without a configuration the published divisor applies. UNSUPPORTED: another type. */
static enum status read_rope_scaling(struct component *c, const struct config *config, struct error *e) {
    static const char *const keys[] = {"rope_scaling.type",
                                       "rope_scaling.rope_type",
                                       "text_config.rope_scaling.type",
                                       "text_config.rope_scaling.rope_type",
                                       "rope_parameters.full_attention.rope_type",
                                       "text_config.rope_parameters.full_attention.rope_type",
                                       "gemma3.rope.scaling.type"};
    const char *type = "";
    for (int i = 0; i < COUNT_OF(keys); i++) type = config_string(config, keys[i], type);
    if (!strcmp(type, "linear") || !config->n_values) return OK;
    if (*type && strcmp(type, "default") != 0 && strcmp(type, "none") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported rope scaling" WHERE "%s" FOUND "\"%s\"" EXPECTED "\"linear\"",
                         config->path, type);
    ((struct llm_settings *)c->settings)->position_divisor = 1;
    return OK;
}

/* Reads the list of layer types, which replaces global_period. */
static enum status read_layer_types(struct component *c, const struct config *config, struct error *e) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    static const char *const lists[] = {"layer_types", "text_config.layer_types"};
    for (int list = 0; list < 2; list++) {
        int n = config_list_length(config, lists[list]), layers = c->dims[LLM_LAYERS];
        if (!n || config_check_list(config, lists[list], layers, e) != OK) continue;
        s->global_period = 0;
        for (int i = 0; i < n; i++) {
            char key[64];
            snprintf(key, sizeof key, "%s.%d", lists[list], i);
            const char *type = config_string(config, key, "");
            bool global = !strcmp(type, "full_attention");
            if (!global && strcmp(type, "sliding_attention") != 0)
                return error_set(e, UNSUPPORTED,
                                 "unsupported '%s'" WHERE "%s" FOUND "\"%s\"" EXPECTED
                                 "\"full_attention\" or \"sliding_attention\"",
                                 key, config->path, type);
            if (global) s->global_layers[i / 8] |= (unsigned char)(1u << i % 8);
        }
    }
    return e->code;
}

static enum status gemma3_configure(struct component *c, const struct config *config, struct error *e) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    const char *model = config_string(config, "model_type", "");
    if (*model && strcmp(model, "gemma3") != 0 && strcmp(model, "gemma3_text") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"gemma3\" or \"gemma3_text\"",
                         config->path, model);
    if (index_find(&c->index, "blk.0.attn_q.weight")) s->query_scalar = 0; /* llama.cpp: the head size */
    if (llm_check_dims(c, config, e) != OK || read_rope_scaling(c, config, e) != OK) return e->code;
    return read_layer_types(c, config, e);
}

static void gemma3_derive(struct component *c) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    s->zero_centered = !index_find(&c->index, "blk.0.attn_q.weight");
    s->gated_by_gelu = true;
    s->embedding_factor = (float)sqrt(c->dims[LLM_HIDDEN]);
    for (int i = 0; i < c->dims[LLM_LAYERS] && s->global_period; i++)
        if ((i + 1) % s->global_period == 0) s->global_layers[i / 8] |= (unsigned char)(1u << i % 8);
    llm_derive(c);
}

static int gemma3_blocks(const struct component *c, struct block_ref *refs) {
    return llm_list_blocks(c, &gemma3_kind_layer, refs);
}

static enum status gemma3_check(const struct component *c, const struct lane *lanes, int n_lanes,
                                struct error *e) {
    int window = ((const struct llm_settings *)c->settings)->window;
    for (int i = 0; i < n_lanes; i++)
        if (lanes[i].text.dim[0] > window)
            return error_set(e, UNSUPPORTED,
                             "the prompt is longer than the text encoder's attention window" WHERE "%s" FOUND
                             "%d tokens" EXPECTED "at most %d",
                             c->index.n_sources ? c->index.sources[0].path : "gemma3", lanes[i].text.dim[0],
                             window);
    return OK;
}

static const char *const gemma3_architectures[] = {"gemma3", NULL};
static const char *const gemma3_model_types[] = {"gemma3_text", NULL};
static const char *const gemma3_ignorable[] = {"lm_head.",
                                               "output.weight",
                                               "vision_tower.",
                                               "vision_model.",
                                               "multi_modal_projector.",
                                               "model.vision_tower.",
                                               "model.multi_modal_projector.",
                                               "spiece_model",
                                               NULL};

/* Published sizes: Gemma 3 12B. */
static const struct dimension gemma3_dimensions[] = {
    {"vocabulary", 262208, 300, 1048576, .place = LLM_VOCABULARY, LLM_OF_TABLE(0),
     .key = "text_config.vocab_size"},
    {"hidden", 3840, 8, 65536, .place = LLM_HIDDEN, LLM_OF_TABLE(1), .key = "text_config.hidden_size"},
    {"text_heads", 16, 1, 1024, .place = LLM_HEADS, .key = "text_config.num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = LLM_KEY_HEADS, .key = "text_config.num_key_value_heads"},
    {"text_head_dim", 256, 2, 512, .place = LLM_HEAD, LLM_OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "text_config.head_dim"},
    {"text_ff", 15360, 8, 262144, .place = LLM_FEED_FORWARD, LLM_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "text_config.intermediate_size"},
    {"text_layers", 48, 1, LLM_LAYERS_MAX, .place = LLM_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "text_config.num_hidden_layers"},
    {.place = LLM_Q, LLM_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = LLM_KV, LLM_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings from config.json of the whole model or of the language model alone, written by transformers 4 or
 * 5, or from GGUF metadata. */
#define SETTING(member, type, published, least, most, ...)                                                   \
    { {__VA_ARGS__}, offsetof(struct llm_settings, member), type, published, least, most }
static const struct setting gemma3_settings[] = {
    SETTING(rope_theta, SETTING_DOUBLE, 1e6, 1, 1e12, "text_config.rope_theta",
            "text_config.rope_parameters.full_attention.rope_theta", "rope_theta",
            "rope_parameters.full_attention.rope_theta", "gemma3.rope.freq_base"),
    SETTING(local_rope_theta, SETTING_DOUBLE, 1e4, 1, 1e12, "text_config.rope_local_base_freq",
            "text_config.rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq",
            "rope_parameters.sliding_attention.rope_theta", "gemma3.rope.freq_base_swa"),
    SETTING(position_divisor, SETTING_DOUBLE, 8, 1, 1024, "text_config.rope_scaling.factor",
            "text_config.rope_parameters.full_attention.factor", "rope_scaling.factor",
            "rope_parameters.full_attention.factor", "gemma3.rope.scaling.factor"),
    SETTING(query_scalar, SETTING_DOUBLE, 256, 1, 65536, "text_config.query_pre_attn_scalar",
            "query_pre_attn_scalar"),
    SETTING(global_period, SETTING_INT, 6, 1, LLM_LAYERS_MAX, "text_config.sliding_window_pattern",
            "text_config._sliding_window_pattern", "sliding_window_pattern", "_sliding_window_pattern",
            "gemma3.attention.sliding_window_pattern"),
    SETTING(window, SETTING_INT, 1024, 1, 1 << 20, "text_config.sliding_window", "sliding_window",
            "gemma3.attention.sliding_window"),
    SETTING(norm_eps, SETTING_FLOAT, 1e-6, 0, 1, "text_config.rms_norm_eps", "rms_norm_eps",
            "gemma3.attention.layer_norm_rms_epsilon"),
};

/* Values of the language model, in its own configuration or in that of the whole model. */
#define EXPECT(key, value)                                                                                   \
    {key, value}, {                                                                                          \
        "text_config." key, value                                                                            \
    }
static const struct expectation gemma3_expects[] = {
    EXPECT("hidden_activation", "gelu_pytorch_tanh"),
    EXPECT("attention_bias", NULL),
    EXPECT("attn_logit_softcapping", NULL),
    EXPECT("use_bidirectional_attention", NULL),
    EXPECT("rope_parameters.sliding_attention.rope_type", "default"),
    {0},
};

const struct family family_gemma3 = {
    .name = "gemma3",
    .kind = FAMILY_TEXT,
    .display_name = "Gemma 3 text encoder",
    .files = {.architectures = gemma3_architectures,
              .config_key = "model_type",
              .config_value = "gemma3",
              .config_others = gemma3_model_types,
              .probe = gemma3_probe,
              .refuse = gemma3_refuse,
              .ignorable = gemma3_ignorable},
    .config = {.dimensions = gemma3_dimensions,
               .n_dimensions = COUNT_OF(gemma3_dimensions),
               .settings = gemma3_settings,
               .n_settings = COUNT_OF(gemma3_settings),
               .expects = gemma3_expects,
               .configure = gemma3_configure,
               .derive_dims = llm_derive_dims,
               .derive = gemma3_derive,
               .rest = "\"architectures\": [\"Gemma3ForConditionalGeneration\"]"},
    .reads = {.hidden = {.all = true}, .tokens = true},
    .blocks = {.list = gemma3_blocks, .rows = llm_rows},
    .state = LLM_STATE,
    .lanes = {.check = gemma3_check},
    .predicted =
        {{.kind = "layer", .alone = true, .tokens = 1024, .text_rows = 1024, .text_columns = 49 * 3840}},
};
