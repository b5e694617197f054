/* Invalid WAN models whose encoders resemble umT5 or CLIP's vision encoder, or belong to another model. */
#include "test/lib/layouts.h"

#define TEXT        .component = "text_encoder"
#define VISION      .component = "image_encoder"
#define TRANSFORMER .component = "transformer"
#define BIAS(layer) "encoder.block." layer ".layer.0.SelfAttention.relative_attention_bias.weight"

static void rename_gate(struct tensor_set *p) {
    rename_part(tensor_set_find(p, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"), "wi_0", "wi");
}

/* Gives umT5 the position bias of T5: one table shared by all layers. */
static void share_bias(struct tensor_set *p) {
    tensor_set_drop(p, BIAS("1"));
    tensor_set_drop(p, BIAS("2"));
}

/* Removes position embeddings until their number fits no square image. */
static void drop_position_row(struct tensor_set *p) {
    layouts_resize(p, "vision_model.embeddings.position_embedding.weight", 0, 13);
}

/* Resizes the position table to 20 image tokens, which fit neither one nor two images of 17 tokens. */
static void set_other_image_positions(struct tensor_set *p) {
    enum { ROWS = 20, COLUMNS = 24 };
    static const float places[ROWS * COLUMNS];
    tensor_set_add(p, "", "condition_embedder.image_embedder.pos_embed", "F32", 3,
                   (int32_t[]){1, ROWS, COLUMNS}, places, sizeof places);
}

static const struct invalid_model rows[] = {
    {TEXT, .change = rename_gate, .what = "no gate", REFUSED(UNSUPPORTED, "not umT5", "without a gate")},
    {TEXT, .change = share_bias, .what = "one bias for all layers",
     REFUSED(UNSUPPORTED, "holds another component", "found T5 text encoder", "umT5 text encoder")},
    {TEXT, .tensor = BIAS("2"), .what = "a layer without a bias",
     REFUSED(MISSING, "'" BIAS("2") "'", "blocks.2.pos_embedding.embedding.weight")},
    {TEXT, CONFIG("feed_forward_proj", "\"relu\""),
     REFUSED(UNSUPPORTED, "'feed_forward_proj'", "\"relu\"", "\"gated-gelu\"")},
    {TEXT, CONFIG("relative_attention_max_distance", "3"),
     REFUSED(META, "'relative_attention_max_distance'")},
    {TEXT, SHAPED(BIAS("0"), 1, 7),
     REFUSED(SHAPE, "umT5 text encoder sizes", "heads 7", "a multiple of heads")},

    {VISION, CONFIG("num_attention_heads", "5"), REFUSED(SHAPE, "CLIP vision encoder sizes", "5 heads")},
    {VISION, CONFIG("image_size", "28"), REFUSED(META, "'image_size'", "28")},
    {VISION, CONFIG("patch_size", "7"), REFUSED(META, "'patch_size'", "7")},
    {VISION, CONFIG("num_hidden_layers", "5"), .what = "a missing layer",
     REFUSED(META, "'num_hidden_layers'", "5", "4")},
    {VISION, CONFIG("hidden_act", "\"relu\""),
     REFUSED(UNSUPPORTED, "'hidden_act'", "\"relu\"", "\"quick_gelu\" or \"gelu\"")},
    {VISION, .change = drop_position_row, .what = "no square", REFUSED(SHAPE, "13 positions", "a square")},
    {VISION, SHAPED("vision_model.pre_layrnorm.weight", 0, 20),
     REFUSED(SHAPE, "class_embedding'", "[24]", "[20]")},
    {VISION, .tensor = "vision_model.encoder.layers.2.mlp.fc1.weight", .what = "half a layer",
     REFUSED(MISSING, "encoder.layers.2.mlp.fc1.weight'", "transformer.resblocks.2.mlp.c_fc.weight")},

    {TRANSFORMER, .change = set_other_image_positions, .what = "positions for another number of tokens",
     REFUSED(SHAPE, "image token positions", "20 in the transformer", "17 ")},
};

static const struct layout_part parts[] = {
    {.component = "image_encoder", .flag = offsetof(options, clip_vision)},
    {.component = "text_encoder", .flag = offsetof(options, t5xxl)},
    {.component = "transformer", .flag = offsetof(options, diffusion_model)},
};

static const struct layout_family encoders = {parts, COUNT_OF(parts), NULL, 0};

static void (*const extra_tests[])(void) = {NULL};

const struct invalid_models invalid_models_wan_encoders = {&encoders, rows, COUNT_OF(rows), extra_tests};
