/* Invalid models whose text or vision encoder resembles Qwen2.5-VL. */
#include "test/lib/layouts.h"

#define TEXT      .component = "text_encoder"
#define VISION(v) CONFIG("vision_config", "{\"num_heads\": 2" v "}"), .what = "a vision encoder with" v

static void rename_all(struct tensor_set *p, const char *begins, const char *from, const char *to) {
    for (int i = 0; i < p->n; i++)
        if (!strncmp(p->item[i].name, begins, strlen(begins))) rename_part(&p->item[i], from, to);
}

static void sees_as_qwen2(struct tensor_set *p) {
    rename_all(p, "visual.", "mlp.gate_proj", "mlp.fc1");
}

static void sees_as_qwen3(struct tensor_set *p) {
    rename_all(p, "visual.", "mlp.gate_proj", "mlp.linear_fc1");
    rename_all(p, "visual.", "merger.ln_q", "merger.norm");
}

/* Renames tensors as transformers 5 names those of Qwen3-VL's language model in memory. */
static void make_qwen3_names(struct tensor_set *p) {
    rename_all(p, "model.", "model.", "model.language_model.");
    rename_all(p, "model.", "q_proj.bias", "q_norm.weight");
}

static void make_fewer_columns(struct tensor_set *p) {
    layouts_resize(p, "visual.merger.mlp.2.weight", 0, 40);
    layouts_resize(p, "visual.merger.mlp.2.bias", 0, 40);
}

static void make_three_frames(struct tensor_set *p) {
    layouts_resize(p, "visual.patch_embed.proj.weight", 2, 3);
}

static const struct invalid_model rows[] = {
    {TEXT, .change = sees_as_qwen2, .what = "Qwen2-VL's eyes",
     REFUSED(UNSUPPORTED, "the vision encoder of Qwen2-VL", "'visual.blocks.0.mlp.fc1.",
             "the vision encoder of Qwen2.5-VL")},
    {TEXT, .change = sees_as_qwen3, .what = "Qwen3-VL's eyes",
     REFUSED(UNSUPPORTED, "the vision encoder of Qwen3-VL", "'visual.blocks.0.mlp.linear_fc1.")},
    {TEXT, .change = make_qwen3_names, .what = "Qwen3-VL's tensor names",
     REFUSED(UNSUPPORTED, "the language model of Qwen3-VL", "q_norm.weight'",
             "the language model of Qwen2.5-VL")},

    {TEXT, CONFIG("rope_scaling", "{\"type\": \"yarn\", \"mrope_section\": [2, 3, 3]}"),
     REFUSED(UNSUPPORTED, "'rope_scaling.type'", "\"yarn\"")},
    {TEXT, CONFIG("rope_scaling", "{\"mrope_section\": [2, 3, 4]}"),
     .what = "mrope sections larger than a head", REFUSED(META, "'mrope_section'", "2, 3, 4", "a sum of 8")},
    {TEXT, CONFIG("rope_scaling", "{\"mrope_section\": [0, 4, 4]}"), .what = "empty mrope section",
     REFUSED(META, "'mrope_section'", "0, 4, 4")},
    {TEXT, CONFIG("num_attention_heads", "5"), REFUSED(SHAPE, "queries 48, keys 16, head 0")},
    {TEXT, CONFIG("num_hidden_layers", "9"), .what = "missing layers",
     REFUSED(META, "'num_hidden_layers'", "9", "expected 3")},
    {TEXT, CONFIG("use_sliding_window", "true"), REFUSED(UNSUPPORTED, "'use_sliding_window'")},
    {TEXT, CONFIG("hidden_act", "\"gelu\""), REFUSED(UNSUPPORTED, "'hidden_act'", "\"gelu\"", "\"silu\"")},
    {TEXT, .tensor = "model.layers.1.self_attn.k_proj.bias", .what = "a bias",
     REFUSED(MISSING, "'model.layers.1.self_attn.k_proj.bias'")},

    {TEXT, VISION(", \"num_hidden_layers\": 3, \"hidden_act\": \"gelu\""),
     REFUSED(UNSUPPORTED, "'vision_config.hidden_act'", "\"gelu\"")},
    {TEXT, VISION(", \"window_size\": 27"), REFUSED(SHAPE, "windows 27")},
    {TEXT, VISION(", \"spatial_merge_size\": 3"), REFUSED(SHAPE, "3 merged to 128")},
    {TEXT, VISION(", \"fullatt_block_indexes\": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]"),
     REFUSED(UNSUPPORTED, "'vision_config.fullatt_block_indexes.16'")},
    {TEXT, CONFIG("vision_config", "{\"num_heads\": 5}"), REFUSED(SHAPE, "width 32, heads 5")},
    {TEXT, .change = make_three_frames, .what = "patches of three frames",
     REFUSED(SHAPE, "patches [3, 3, 14, 14]", "patches [3, 2, n, n]")},
    {TEXT, .change = make_fewer_columns, .what = "fewer columns than the text rows",
     REFUSED(SHAPE, "do not fit together", "40 in the", "48 as in the")},
    {TEXT, SHAPED("visual.merger.mlp.0.weight", 0, 120),
     REFUSED(SHAPE, "'visual.merger.mlp.0.weight'", "[120, 128]", "[128, 128]")},
    {TEXT, .tensor = "visual.blocks.1.attn.qkv.bias", .what = "a fused bias",
     REFUSED(MISSING, "'visual.v.blk.1.attn_q.bias'", "'visual.blocks.1.attn.qkv.bias'")},
    {TEXT, .tensor = "visual.merger.mlp.2", .what = "no merger output",
     REFUSED(MISSING, "'visual.merger.mlp.2.weight'")},
};

/* Qwen2 has the same tensors as this language model; only model_type in the configuration differs. */
static void test_qwen2(void) {
    static const char *const words[] = {"unsupported text encoder", "\"qwen2\"", "\"qwen2_5_vl\"", NULL};
    static const char config[] = "{\"model_type\": \"qwen2\"}";
    struct tensor_set *p = tensor_set_copy(layouts_part("text_encoder"), "");
    options from = {.model = current_model.folder, .llm = temporary_path("qwen2")};
    tensor_set_drop(p, "visual.");
    write_sharded(p, from.llm, NULL);
    write_file(temporary_path("qwen2/config.json"), config, strlen(config));
    tensor_set_free(p);
    expect_refused(from, UNSUPPORTED, "Qwen2", words);
}

static void (*const extra_tests[])(void) = {test_qwen2, NULL};

const struct invalid_models invalid_models_qwen25vl = {&layouts_of_qwen, rows, COUNT_OF(rows), extra_tests};
