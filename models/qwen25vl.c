/* Language model of Qwen2.5-VL as a text encoder whose prompts may contain images. Projections to queries,
 * keys and values have a bias, no norms; the rest is in qwen_layers.h. The vision encoder is the family of
 * qwen25vl_vision.c, in the same file or another one. */
#include "models/models.h"
#include "models/qwen_layers.h"

#include <string.h>

static const struct weight_spec qwen25vl_layer_table[] = {
    QWEN_LAYER_WEIGHTS(QWEN_LAYER_WEIGHT(q_bias, "self_attn.q_proj.bias", "attn_q.bias", 1, QWEN_Q),
                       QWEN_LAYER_WEIGHT(k_bias, "self_attn.k_proj.bias", "attn_k.bias", 1, QWEN_KV),
                       QWEN_LAYER_WEIGHT(v_bias, "self_attn.v_proj.bias", "attn_v.bias", 1, QWEN_KV))};

static const struct block_kind qwen25vl_kind_layer =
    BLOCK_KIND("layer", "layers.%d", qwen25vl_layer_table, qwen_layer_weights, qwen_forward_layer);

/* Tensor that Qwen3 has and Qwen2.5 lacks. With the prefix "language_model.", which text models lack, the
 * file is Qwen3-VL. */
static const char qwen3_norm[] = "layers.0.self_attn.q_norm.";

static bool is_qwen3_vl(const struct tensor_index *index) {
    const char *prefix = index_prefix(index);
    return strstr(prefix, "language_model.") && index_find(index, "layers.0.self_attn.q_norm.weight");
}

/* Also matches Qwen3-VL, which qwen25vl_refuse rejects by name. */
static bool qwen25vl_probe(const struct tensor_index *index) {
    return qwen_has_tensors(index, "self_attn.q_proj.bias", "attn_q.bias") || is_qwen3_vl(index);
}

static enum status qwen25vl_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {{qwen3_norm, "the language model of Qwen3-VL"},
                                                            {0}};
    return component_refuse_similar(c, relatives, "the language model of Qwen2.5-VL", e);
}

/* Checks model_type, because Qwen2, Qwen2.5 and Qwen2-VL have the same tensor names and shapes. */
static enum status qwen25vl_check_model(const struct config *config, struct error *e) {
    const char *model = config_string(config, "model_type", "");
    if (!*model || !strcmp(model, "qwen2_5_vl") || !strcmp(model, "qwen2_5_vl_text")) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported text encoder" WHERE "%s" FOUND "model_type \"%s\"" EXPECTED
                     "\"qwen2_5_vl\"",
                     config->path, model);
}

/* Accepts the rope type "mrope" of older files and "default". */
static enum status qwen25vl_check_rope(const struct config *config, struct error *e) {
    static const char *const keys[] = {"rope_scaling.type", "text_config.rope_scaling.type"};
    for (int i = 0; i < COUNT_OF(keys); i++)
        if (strcmp(config_string(config, keys[i], ""), "mrope") != 0)
            config_expect(config, keys[i], "default", e);
    return e->code;
}

/* Default mrope_section: rope pairs of a head for time, row and column, in the published proportion. */
static void qwen25vl_default_sections(struct component *c) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int pairs = c->dims[QWEN_HEAD] / 2, spatial = pairs < 4 ? 1 : pairs * 3 / 8;
    s->mrope_section[0] = pairs - 2 * spatial;
    s->mrope_section[1] = s->mrope_section[2] = spatial;
}

static enum status qwen25vl_check_sections(const struct component *c, struct error *e) {
    const struct qwen_settings *s = (const struct qwen_settings *)c->settings;
    const int *n = s->mrope_section;
    if (n[0] > 0 && n[1] > 0 && n[2] > 0 && n[0] + n[1] + n[2] == c->dims[QWEN_HEAD] / 2) return OK;
    return error_set(e, META,
                     "'mrope_section' does not match the head size" WHERE "%s" FOUND "%d, %d, %d" EXPECTED
                     "three positive numbers with a sum of %d",
                     c->index.sources[0].path, n[0], n[1], n[2], c->dims[QWEN_HEAD] / 2);
}

/* Published head size, used if the configuration has no head count, because tensor shapes do not determine
 * the head size. */
enum { HEAD_PUBLISHED = 128 };

static enum status qwen25vl_configure(struct component *c, const struct config *config, struct error *e) {
    struct qwen_settings *s = (struct qwen_settings *)c->settings;
    int32_t *d = c->dims;
    if (qwen25vl_check_model(config, e) != OK || qwen25vl_check_rope(config, e) != OK) return e->code;
    d[QWEN_HEAD] = !s->heads ? HEAD_PUBLISHED : d[QWEN_Q] % s->heads ? 0 : d[QWEN_Q] / s->heads;
    if (!s->mrope_section[0] && !s->mrope_section[1] && !s->mrope_section[2]) qwen25vl_default_sections(c);
    return qwen_configure(c, config, e) == OK ? qwen25vl_check_sections(c, e) : e->code;
}

static int qwen25vl_blocks(const struct component *c, struct block_ref *refs) {
    return qwen_list_blocks(c, &qwen25vl_kind_layer, refs);
}

static const char *const qwen25vl_architectures[] = {"qwen2vl", NULL};

/* Published sizes: Qwen2.5-VL-7B. */
static const struct dimension qwen25vl_dimensions[] = {
    {"vocabulary", 152064, 300, 1048576, .place = QWEN_VOCABULARY, QWEN_OF_TABLE(0), .key = "vocab_size"},
    {"hidden", 3584, 8, 65536, .place = QWEN_HIDDEN, QWEN_OF_TABLE(1), .key = "hidden_size"},
    {"text_heads", 28, 1, 1024, .place = QWEN_HEADS},
    {"text_key_heads", 4, 1, 1024, .place = QWEN_KEY_HEADS, .key = "num_key_value_heads"},
    {"text_ff", 18944, 8, 262144, .place = QWEN_FEED_FORWARD, QWEN_OF_LAYER(2, "mlp.gate_proj", "ffn_gate"),
     .key = "intermediate_size"},
    {"text_layers", 28, 1, 400, .place = QWEN_LAYERS, OF_BLOCKS("model.layers.", "layers.", "blk."),
     .key = "num_hidden_layers"},
    {.place = QWEN_Q, QWEN_OF_LAYER(2, "self_attn.q_proj", "attn_q")},
    {.place = QWEN_KV, QWEN_OF_LAYER(2, "self_attn.k_proj", "attn_k")},
};

#define SECTION(i)                                                                                           \
    {                                                                                                        \
        {"rope_scaling.mrope_section." #i, "rope_parameters.mrope_section." #i,                              \
         "text_config.rope_scaling.mrope_section." #i, "text_config.rope_parameters.mrope_section." #i,      \
         "qwen2vl.rope.dimension_sections." #i},                                                             \
            offsetof(struct qwen_settings, mrope_section) + (i) * sizeof(int), SETTING_INT, 0, 0, 256        \
    }

/* Settings from GGUF metadata or config.json, whose keys transformers wrote at top level, in text_config, or
 * in both. */
static const struct setting qwen25vl_settings[] = {
    {{"num_attention_heads", "text_config.num_attention_heads", "qwen2vl.attention.head_count"},
     offsetof(struct qwen_settings, heads),
     SETTING_INT,
     0,
     1,
     1024},
    {{"rope_theta", "rope_parameters.rope_theta", "text_config.rope_theta",
      "text_config.rope_parameters.rope_theta", "qwen2vl.rope.freq_base"},
     offsetof(struct qwen_settings, rope_theta),
     SETTING_DOUBLE,
     1e6,
     1,
     1e12},
    {{"rms_norm_eps", "text_config.rms_norm_eps", "qwen2vl.attention.layer_norm_rms_epsilon"},
     offsetof(struct qwen_settings, norm_eps),
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
    d[QWEN_HEAD] = d[QWEN_HIDDEN] / d[QWEN_HEADS];
    d[QWEN_Q] = d[QWEN_HEADS] * d[QWEN_HEAD];
    d[QWEN_KV] = d[QWEN_KEY_HEADS] * d[QWEN_HEAD];
    ((struct qwen_settings *)c->settings)->heads = d[QWEN_HEADS];
    qwen25vl_default_sections(c);
}

const struct family family_qwen25vl = {
    .name = "qwen25vl",
    .kind = FAMILY_TEXT,
    .display_name = "Qwen2.5-VL text encoder",
    .architectures = qwen25vl_architectures,
    .config_key = "model_type",
    .config_value = "qwen2_5_vl",
    .probe = qwen25vl_probe,
    .refuse = qwen25vl_refuse,
    .dimensions = qwen25vl_dimensions,
    .n_dimensions = COUNT_OF(qwen25vl_dimensions),
    .settings = qwen25vl_settings,
    .n_settings = COUNT_OF(qwen25vl_settings),
    .expects = qwen25vl_expects,
    .configure = qwen25vl_configure,
    .derive_dims = qwen25vl_derive_dims,
    .derive = qwen_derive,
    .reads = {.tokens = true}, /* hidden_states[-1] */
    .config_rest = "\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"hidden_act\": \"silu\", "
                   "\"tie_word_embeddings\": false, \"max_position_embeddings\": 128000, "
                   "\"vision_start_token_id\": 151652, \"vision_end_token_id\": 151653, "
                   "\"image_token_id\": 151655, \"video_token_id\": 151656",
    .blocks = qwen25vl_blocks,
    .ignorable = qwen_ignorable,
    .lane_state_bytes = sizeof(struct qwen_state),
    .state = qwen_state_tensors,
    .n_state = COUNT_OF(qwen_state_tensors),
    .declare = qwen_declare,
    .rows = qwen_rows,
    .predicted = {.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 3584},
};
