/* Language model of Qwen2.5-VL as a text encoder whose prompts may contain images. Projections to queries,
 * keys and values have a bias, no norms; the rest is in llm_layers.c. The vision encoder is the family of
 * qwen25vl_vision.c, in the same file or another one. */
#include "models/llm_layers.h"
#include "models/models.h"

#include <string.h>

#define QWEN25VL_LAYER(X, S) LLM_LAYER(X, S, LLM_BIASES)
WEIGHT_TABLE_NAMED(qwen25vl_layer_table, QWEN25VL_LAYER, llm_layer_weights, LLM_NAMED, "layers.%d.",
                   "blk.%d.");
BLOCK(qwen25vl_kind_layer, "layer", "layers.%d", qwen25vl_layer_table, llm_layer_weights, llm_forward_layer);

static bool qwen25vl_probe(const struct tensor_index *index) {
    return llm_has_tensors(index, "self_attn.q_proj.bias", "attn_q.bias");
}

enum { SPATIAL_16THS = 6 }; /* rope pairs of rows, and of columns, in sixteenths of a head */

static enum status qwen25vl_configure(struct component *c, const struct config *config, struct error *e) {
    static const char *const rope_types[] = {"rope_scaling.type", "text_config.rope_scaling.type"};
    struct llm_settings *s = (struct llm_settings *)c->settings;
    int32_t *d = c->dims;
    /* Qwen2, Qwen2.5 and Qwen2-VL have the same tensor names and shapes. */
    const char *model = config_string(config, "model_type", "");
    if (*model && strcmp(model, "qwen2_5_vl") != 0 && strcmp(model, "qwen2_5_vl_text") != 0)
        return error_set(e, UNSUPPORTED,
                         "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                         "\"qwen2_5_vl\"",
                         config->path, model);
    /* Older configurations of Qwen2.5-VL have the rope type "mrope". */
    for (int i = 0; i < COUNT_OF(rope_types); i++)
        if (strcmp(config_string(config, rope_types[i], ""), "mrope") != 0)
            config_expect(config, rope_types[i], "default", e);
    if (e->code != OK) return e->code;
    d[LLM_HEAD] = llm_head_size(c);
    if (!s->mrope_section[0] && !s->mrope_section[1] && !s->mrope_section[2])
        llm_default_mrope(c, SPATIAL_16THS);
    return llm_check_dims(c, config, e) == OK ? llm_check_mrope(c, e) : e->code;
}

static int qwen25vl_blocks(const struct component *c, struct block_ref *refs) {
    return llm_list_blocks(c, &qwen25vl_kind_layer, refs);
}

static const char *const qwen25vl_architectures[] = {"qwen2vl", NULL};

/* Published sizes: Qwen2.5-VL-7B. */
static const struct dimension qwen25vl_dimensions[] = {
    {"vocabulary", 152064, 300, 1048576, .place = LLM_VOCABULARY, LLM_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 3584, 8, 65536, .place = LLM_HIDDEN, LLM_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 28, 1, 1024, .place = LLM_HEADS},
    {"text_key_heads", 4, 1, 1024, .place = LLM_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_ff", 18944, 8, 262144, .place = LLM_FEED_FORWARD, LLM_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 28, 1, 400, .place = LLM_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = LLM_Q, LLM_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = LLM_KV, LLM_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

#define SECTION(i)                                                                                           \
    {                                                                                                        \
        {"rope_scaling.mrope_section." #i, "rope_parameters.mrope_section." #i,                              \
         "text_config.rope_scaling.mrope_section." #i, "text_config.rope_parameters.mrope_section." #i,      \
         "qwen2vl.rope.dimension_sections." #i},                                                             \
            offsetof(struct llm_settings, mrope_section) + (i) * sizeof(int), SETTING_INT, 0, 0, 256         \
    }

/* Settings from GGUF metadata or config.json, whose keys transformers wrote at top level, in text_config, or
 * in both. */
static const struct setting qwen25vl_settings[] = {
    {{"num_attention_heads", "text_config.num_attention_heads", "qwen2vl.attention.head_count"},
     offsetof(struct llm_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"rope_theta", "rope_parameters.rope_theta", "text_config.rope_theta",
      "text_config.rope_parameters.rope_theta", "qwen2vl.rope.freq_base"},
     offsetof(struct llm_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "text_config.rms_norm_eps", "qwen2vl.attention.layer_norm_rms_epsilon"},
     offsetof(struct llm_settings, norm_eps),
     SETTING_FLOAT,
     1e-6,
     0,
     1},
    SECTION(0),
    SECTION(1),
    SECTION(2),
};

static const struct expectation qwen25vl_expects[] = {
    {"hidden_act", "silu"},
    {"text_config.hidden_act", "silu"},
    {"rope_scaling.rope_type", "default"},
    {"rope_parameters.rope_type", "default"},
    {"text_config.rope_scaling.rope_type", "default"},
    {"text_config.rope_parameters.rope_type", "default"},
    {"use_sliding_window", NULL},
    {"text_config.use_sliding_window", NULL},
    {"qwen2vl.rope.scaling.type", "none"},
    {0},
};

static void qwen25vl_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[LLM_HEAD] = d[LLM_HIDDEN] / d[LLM_HEADS];
    d[LLM_Q] = d[LLM_HEADS] * d[LLM_HEAD];
    d[LLM_KV] = d[LLM_KEY_HEADS] * d[LLM_HEAD];
    ((struct llm_settings *)c->settings)->heads = d[LLM_HEADS];
    llm_default_mrope(c, SPATIAL_16THS);
}

const struct family family_qwen25vl = {
    .name = "qwen25vl",
    .kind = FAMILY_TEXT,
    .display_name = "Qwen2.5-VL text encoder",
    .files = {.architectures = qwen25vl_architectures,
              .config_key = "model_type",
              .config_value = "qwen2_5_vl",
              .probe = qwen25vl_probe,
              .ignorable = llm_ignorable},
    .config = {.dimensions = qwen25vl_dimensions,
               .n_dimensions = COUNT_OF(qwen25vl_dimensions),
               .settings = qwen25vl_settings,
               .n_settings = COUNT_OF(qwen25vl_settings),
               .expects = qwen25vl_expects,
               .configure = qwen25vl_configure,
               .derive_dims = qwen25vl_derive_dims,
               .derive = llm_derive,
               .rest =
                   "\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"hidden_act\": \"silu\", "
                   "\"tie_word_embeddings\": false, \"max_position_embeddings\": 128000, "
                   "\"vision_start_token_id\": 151652, \"vision_end_token_id\": 151653, "
                   "\"image_token_id\": 151655, \"video_token_id\": 151656"},
    .reads = {.tokens = true},
    .blocks = {.list = qwen25vl_blocks, .rows = llm_rows},
    .state = LLM_STATE,
    .predicted = {{.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 3584}},
};
