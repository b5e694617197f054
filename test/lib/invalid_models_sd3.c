/* Invalid models like Stable Diffusion 3.5 medium. Blocks 0 and 2 of the fixture have a second attention. */
#include "test/lib/layouts.h"

#include <stdio.h>

#define TRANSFORMER .component = "transformer"

static void make_controlnet(struct tensor_set *p) {
    invalid_models_add_marker(p, "controlnet_blocks.0.weight");
}

static void make_other_controlnet(struct tensor_set *p) {
    invalid_models_add_marker(p, "pos_embed_input.proj.weight");
}

static void make_ip_adapter(struct tensor_set *p) {
    invalid_models_add_marker(p, "image_proj.proj_in.weight");
}

static void drop_norms(struct tensor_set *p) {
    char name[80];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "transformer_blocks.%d.attn.norm_", i);
        tensor_set_drop(p, name);
        snprintf(name, sizeof name, "transformer_blocks.%d.attn2.norm_", i);
        tensor_set_drop(p, name);
    }
}

static void drop_last(struct tensor_set *p) {
    tensor_set_drop(p, "transformer_blocks.3.");
}

#define CONFIG_MISMATCH(k, v, ...)                                                                           \
    { TRANSFORMER, CONFIG(k, v), REFUSED(META, "'" k "'", __VA_ARGS__) }
#define WITHOUT(name, missing)                                                                               \
    { TRANSFORMER, .tensor = name, .what = "no " name, REFUSED(MISSING, "'" missing) }

static const struct invalid_model rows[] = {
    CONFIG_MISMATCH("dual_attention_layers", "[0, 1]", "found 1", "expected 2"),
    CONFIG_MISMATCH("dual_attention_layers", "[0.5, 2]", "found 0.5", "expected 0"),
    CONFIG_MISMATCH("dual_attention_layers", "[0]", "found 1", "expected 2"),
    CONFIG_MISMATCH("dual_attention_layers", "[]", "found 0", "expected 2"),
    CONFIG_MISMATCH("dual_attention_layers", "[0, 2, 3]", "expected 2"),
    CONFIG_MISMATCH("qk_norm", "null", "found null", "\"rms_norm\""),
    {TRANSFORMER, CONFIG("qk_norm", "\"layer_norm\""),
     REFUSED(UNSUPPORTED, "'qk_norm'", "\"layer_norm\"", "\"rms_norm\"")},
    CONFIG_MISMATCH("attention_head_dim", "9", "found 9"),
    CONFIG_MISMATCH("num_attention_heads", "7", "found 7"),
    CONFIG_MISMATCH("num_layers", "5", "found 5", "expected 4"),
    CONFIG_MISMATCH("caption_projection_dim", "1536", "found 1536"),
    CONFIG_MISMATCH("joint_attention_dim", "4096", "found 4096"),
    CONFIG_MISMATCH("pooled_projection_dim", "2048", "found 2048"),
    CONFIG_MISMATCH("pos_embed_max_size", "192", "found 192"),
    CONFIG_MISMATCH("in_channels", "33", "found 33"),
    CONFIG_MISMATCH("out_channels", "8", "found 8"),
    CONFIG_MISMATCH("patch_size", "4", "found 4"),
    CONFIG_MISMATCH("sample_size", "0", "found 0"),

    {TRANSFORMER, .change = make_controlnet, .what = "a ControlNet",
     REFUSED(UNSUPPORTED, "ControlNet", "'controlnet_blocks.0.weight'", "3.5 medium or large")},
    {TRANSFORMER, .change = make_other_controlnet, .what = "another ControlNet",
     REFUSED(UNSUPPORTED, "ControlNet", "'pos_embed_input.proj.weight'")},
    {TRANSFORMER, .change = make_ip_adapter, .what = "an IP-Adapter", REFUSED(UNSUPPORTED, "IP-Adapter")},
    {TRANSFORMER, SHAPED("pos_embed.proj.weight", 1, 33),
     REFUSED(UNSUPPORTED, "pos_embed.proj with 33 input channels, 16 output", "inpainting models (33)")},

    WITHOUT("pos_embed.pos_embed", "pos_embed.pos_embed'"),
    WITHOUT("transformer_blocks.0.attn.norm_q", "transformer_blocks.0.attn.norm_q.weight'"),
    WITHOUT("transformer_blocks.1.attn.norm_added_k", "transformer_blocks.1.attn.norm_added_k.weight'"),
    WITHOUT("transformer_blocks.2.attn2.norm_k", "transformer_blocks.2.attn2.norm_k.weight'"),
    WITHOUT("transformer_blocks.2.attn2.to_q", "transformer_blocks.2.attn2.to_q.weight'"),
    WITHOUT("transformer_blocks.0.attn2.to_out", "transformer_blocks.0.attn2.to_out.0.weight'"),
    {TRANSFORMER, .tensor = "transformer_blocks.3.norm1_context",
     .what = "no text modulation in the last block",
     REFUSED(MISSING, "'joint_blocks.3.context_block.adaLN_modulation.1.weight'",
             "'transformer_blocks.3.norm1_context.linear.weight'")},
    {TRANSFORMER, .change = drop_norms, .what = "norms in the configuration only",
     REFUSED(META, "'qk_norm'", "no norm tensors", "null, or attn.norm_q")},
    {TRANSFORMER, .change = drop_last, .what = "no last block",
     REFUSED(META, "'num_layers'", "found 4", "3")},
    {TRANSFORMER, SHAPED("pos_embed.pos_embed", 1, 15 * 15 - 1),
     REFUSED(SHAPE, "the position table is not square", "224 rows")},
    {TRANSFORMER, SHAPED("transformer_blocks.2.norm1.linear.weight", 0, 6),
     REFUSED(SHAPE, "'transformer_blocks.2.norm1.linear.weight'")},
};

static void (*const extra_tests[])(void) = {NULL};

const struct invalid_models invalid_models_sd3 = {&layouts_of_sd35, rows, COUNT_OF(rows), extra_tests};
