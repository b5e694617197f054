/* Language model of Qwen3-VL as a text encoder whose prompts may contain images (transformers:
 * Qwen3VLTextModel). Weights are those of Qwen3; rope has three axes that alternate between the pairs of a
 * head (interleaved M-RoPE). Deepstack features of images are added after the first layers. The vision
 * encoder is the family of qwen3vl_vision.c, in the same file or another one. */
#include "models/llm_layers.h"
#include "models/models.h"

#include <string.h>

#define QWEN3VL_LAYER(X, S) LLM_LAYER(X, S, LLM_NORMS)
WEIGHT_TABLE_NAMED(qwen3vl_layer_table, QWEN3VL_LAYER, llm_layer_weights, LLM_NAMED, "layers.%d.", "blk.%d.");
BLOCK(qwen3vl_kind_layer, "layer", "layers.%d", qwen3vl_layer_table, llm_layer_weights, llm_forward_layer);

static bool qwen3vl_probe(const struct tensor_index *index) {
    return llm_has_tensors(index, "self_attn.q_norm.weight", "attn_q_norm.weight") && llm_is_qwen3vl(index) &&
           !llm_has_output_norms(index);
}

enum { SPATIAL_16THS = 5 }; /* rope pairs of rows, and of columns, in sixteenths of a head */

/* Qwen3 has the same tensor names and shapes. Only a configuration, if the file has one, reveals a Qwen3. */
static enum status qwen3vl_configure(struct component *c, const struct config *config, struct error *e) {
    struct llm_settings *s = (struct llm_settings *)c->settings;
    const char *model = config_string(config, "model_type", "");
    if (c->index.config && strstr(c->index.config, "\"qwen3\"")) model = "qwen3";
    if (*model && strcmp(model, "qwen3_vl") != 0 && strcmp(model, "qwen3_vl_text") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"qwen3_vl\"",
                         c->index.sources[0].path, model);
    s->mrope_interleaved = true;
    if (!s->mrope_section[0] && !s->mrope_section[1] && !s->mrope_section[2])
        llm_default_mrope(c, SPATIAL_16THS);
    return llm_check_dims(c, config, e) == OK ? llm_check_mrope(c, e) : e->code;
}

static int qwen3vl_blocks(const struct component *c, struct block_ref *refs) {
    return llm_list_blocks(c, &qwen3vl_kind_layer, refs);
}

static const char *const qwen3vl_architectures[] = {"qwen3vl", NULL};
static const char *const qwen3vl_model_types[] = {"qwen3_vl_text", NULL};

/* Published sizes: Qwen3-VL-8B. */
static const struct dimension qwen3vl_dimensions[] = {
    {"vocabulary", 151936, 300, 1048576, .place = LLM_VOCABULARY, LLM_OF_TABLE(0),
     .key = "text_config.vocab_size"},
    {"hidden", 4096, 8, 65536, .place = LLM_HIDDEN, LLM_OF_TABLE(1), .key = "text_config.hidden_size"},
    {"text_heads", 32, 1, 1024, .place = LLM_HEADS, .key = "text_config.num_attention_heads"},
    {"text_key_heads", 8, 1, 1024, .place = LLM_KEY_HEADS, .key = "text_config.num_key_value_heads"},
    {"text_head_dim", 128, 4, 512, .place = LLM_HEAD, LLM_OF_LAYER(1, "self_attn.q_norm", "attn_q_norm"),
     .key = "text_config.head_dim"},
    {"text_ff", 12288, 8, 262144, .place = LLM_FEED_FORWARD, LLM_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "text_config.intermediate_size"},
    {"text_layers", 36, 1, 400, .place = LLM_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "text_config.num_hidden_layers"},
    {.place = LLM_Q, LLM_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = LLM_KV, LLM_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

/* Settings from GGUF metadata, config.json of the whole model, or config.json of the language model alone. */
#define SECTION(i)                                                                                           \
    {                                                                                                        \
        {"text_config.rope_scaling.mrope_section." #i, "text_config.rope_parameters.mrope_section." #i,      \
         "rope_scaling.mrope_section." #i, "rope_parameters.mrope_section." #i,                              \
         "qwen3vl.rope.dimension_sections." #i},                                                             \
            offsetof(struct llm_settings, mrope_section) + (i) * sizeof(int), SETTING_INT, 0, 0, 256         \
    }
static const struct setting qwen3vl_settings[] = {
    {{"text_config.rope_theta", "text_config.rope_parameters.rope_theta", "rope_theta",
      "rope_parameters.rope_theta", "qwen3vl.rope.freq_base"},
     offsetof(struct llm_settings, rope_theta),
     SETTING_DOUBLE,
     5e6,
     1,
     1e12},
    {{"text_config.rms_norm_eps", "rms_norm_eps", "qwen3vl.attention.layer_norm_rms_epsilon"},
     offsetof(struct llm_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
    SECTION(0),
    SECTION(1),
    SECTION(2),
};

static const struct expectation qwen3vl_expects[] = {
    {"hidden_act", "silu"},
    {"text_config.hidden_act", "silu"},
    {"rope_scaling.rope_type", "default"},
    {"rope_parameters.rope_type", "default"},
    {"text_config.rope_scaling.rope_type", "default"},
    {"text_config.rope_parameters.rope_type", "default"},
    {"attention_bias", NULL},
    {"text_config.attention_bias", NULL},
    {"qwen3vl.rope.scaling.type", "none"},
    {0},
};

static void qwen3vl_derive_dims(struct component *c) {
    llm_derive_dims(c);
    llm_default_mrope(c, SPATIAL_16THS);
}

/* Pipelines without images in prompts do not use the vision encoder, which may be in the same file. */
static const char *const qwen3vl_ignorable[] = {"lm_head.", "output.weight", "visual.", "model.visual.",
                                                NULL};

const struct family family_qwen3vl = {
    .name = "qwen3vl",
    .kind = FAMILY_TEXT,
    .display_name = "Qwen3-VL text encoder",
    .files = {.architectures = qwen3vl_architectures,
              .config_key = "model_type",
              .config_value = "qwen3_vl",
              .config_others = qwen3vl_model_types,
              .probe = qwen3vl_probe,
              .same_tensors = &family_qwen3,
              .ignorable = qwen3vl_ignorable},
    .config = {.dimensions = qwen3vl_dimensions,
               .n_dimensions = COUNT_OF(qwen3vl_dimensions),
               .settings = qwen3vl_settings,
               .n_settings = COUNT_OF(qwen3vl_settings),
               .expects = qwen3vl_expects,
               .configure = qwen3vl_configure,
               .derive_dims = qwen3vl_derive_dims,
               .derive = llm_derive,
               .rest = "\"architectures\": [\"Qwen3VLForConditionalGeneration\"], "
                       "\"tie_word_embeddings\": false, \"vision_start_token_id\": 151652, "
                       "\"vision_end_token_id\": 151653, \"image_token_id\": 151655, "
                       "\"video_token_id\": 151656"},
    .reads = {.tokens = true},
    .blocks = {.list = qwen3vl_blocks, .rows = llm_rows},
    .state = LLM_STATE,
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 4096}},
};
