/* Invalid models that resemble Qwen-Image. */
#include "test/lib/layouts.h"

#define TRANSFORMER .component = "transformer"
#define VAE         .component = "vae"

static void make_layered(struct tensor_set *p) {
    invalid_models_add_marker(p, "time_text_embed.addition_t_embedding.weight");
}

static void make_qwen_image_2_1(struct tensor_set *p) {
    invalid_models_add_marker(p, "txt_in.text_norm.weight");
}

/* Makes a ControlNet: the transformer's blocks without an output layer. */
static void make_controlnet(struct tensor_set *p) {
    invalid_models_add_marker(p, "controlnet_blocks.0.weight");
    tensor_set_drop(p, "proj_out.");
    tensor_set_drop(p, "norm_out.");
}

static void make_128_channels(struct tensor_set *p) {
    layouts_resize(p, "img_in.weight", 1, 128);
    layouts_resize(p, "proj_out.weight", 0, 128);
}

/* Gives the VAE another number of colour channels, as Qwen-Image-Layered's has. */
static void make_image_channels(struct tensor_set *p, int32_t colours) {
    layouts_resize(p, "decoder.conv_out.weight", 0, colours);
    layouts_resize(p, "decoder.conv_out.bias", 0, colours);
    layouts_resize(p, "encoder.conv_in.weight", 1, colours);
}

static void make_four_channels(struct tensor_set *p) {
    make_image_channels(p, 4);
}

static void make_twelve_channels(struct tensor_set *p) {
    make_image_channels(p, 12);
}

static void make_two_slices(struct tensor_set *p) {
    layouts_resize(p, "decoder.up_blocks.1.resnets.0.conv1.weight", 2, 2);
}

static const struct invalid_model rows[] = {
    {TRANSFORMER, CONFIG("axes_dims_rope", "[2, 6, 8, 8]"), REFUSED(META, "'axes_dims_rope'", "4", "3")},
    {TRANSFORMER, CONFIG("num_layers", "5"), .what = "missing blocks",
     REFUSED(META, "'num_layers'", "5", "expected 3")},
    {VAE, .change = make_four_channels, .what = "the VAE of Qwen-Image-Layered",
     REFUSED(UNSUPPORTED, "Qwen-Image-Layered's", "4 image channels",
             "3 image channels, as in Qwen-Image's")},
    {VAE, .change = make_twelve_channels, .what = "a VAE of 12 image channels",
     REFUSED(UNSUPPORTED, "not RGB", "12 image channels")},
    {VAE, .change = make_two_slices, .what = "kernels of two slices",
     REFUSED(SHAPE, "'decoder.up_blocks.1.resnets.0.conv1.weight'", "[12, 6, 2, 3, 3]", "[12, 6, 3, 3, 3]")},
    {VAE, CONFIG("attn_scales", "[0.5]"), REFUSED(UNSUPPORTED, "'attn_scales.0'")},
    {VAE, CONFIG("is_residual", "true"), REFUSED(UNSUPPORTED, "'is_residual'")},
    {VAE, CONFIG("latents_mean", "[1, 2, 3, 4]"), REFUSED(META, "'latents_mean'", "4", "5")},
    {VAE, CONFIG("latents_mean", "[1, 2, 3, 4, 5, 6]"), REFUSED(META, "'latents_mean'", "more than 5", "5")},
    {VAE, CONFIG("latents_mean", "7"), REFUSED(META, "'latents_mean'", "0", "5")},
    {VAE, CONFIG("latents_std", "[1, 1, 1, 0, 1]"), REFUSED(META, "'latents_std.3'")},
    {VAE, CONFIG("latents_std", "[1, 1, \"2\", 1, 1]"), REFUSED(META, "'latents_std.2'")},
    {VAE, SHAPED("post_quant_conv.bias", 0, 4), REFUSED(META, "'latents_mean'")},
    {VAE, SHAPED("post_quant_conv.bias", 0, 49), REFUSED(SHAPE, "'latents_mean'", "49", "at most 48")},
    {VAE, SHAPED("decoder.mid_block.attentions.0.to_qkv.weight", 0, 24),
     REFUSED(SHAPE, "'decoder.mid_block.attentions.0.to_qkv.weight'", "[36, 12]")},
    {VAE, SHAPED("decoder.up_blocks.0.resnets.0.conv1.bias", 0, 1025),
     REFUSED(SHAPE, "unsupported VAE decoder", "attention over 1025 channels")},
    {VAE, SHAPED("decoder.up_blocks.3.resnets.0.conv1.bias", 0, 65537), REFUSED(SHAPE, "widest level 65537")},
    {VAE, .tensor = "decoder.up_blocks.2.upsamplers.0.resample", .what = "no upsampler",
     REFUSED(MISSING, "'decoder.up_blocks.2.upsamplers.0.resample.1.weight'")},
    {VAE, .tensor = "post_quant_conv.", .what = "no post_quant_conv",
     REFUSED(MISSING, "'post_quant_conv.bias'")},

    {TRANSFORMER, .change = make_layered, .what = "layers",
     REFUSED(UNSUPPORTED, "Qwen-Image-Layered", "'time_text_embed.addition_t_embedding.weight'",
             "Qwen-Image-Edit")},
    {TRANSFORMER, .change = make_qwen_image_2_1, .what = "Qwen-Image 2.1",
     REFUSED(UNSUPPORTED, "Qwen-Image 2.1")},
    {TRANSFORMER, .change = make_controlnet, .what = "a ControlNet",
     REFUSED(UNSUPPORTED, "a Qwen-Image ControlNet")},
    {TRANSFORMER, .change = make_128_channels, .what = "128 latent channels per patch",
     REFUSED(UNSUPPORTED, "Mage-Flow", "128 input channels")},
    /* This fixture has 5 latent channels, so 20 channels per patch of four pixels. */
    {TRANSFORMER, SHAPED("img_in.weight", 1, 24),
     REFUSED(UNSUPPORTED, "24 input channels, proj_out with 20 output")},
    {TRANSFORMER, SHAPED("proj_out.weight", 0, 22),
     REFUSED(UNSUPPORTED, "20 input channels, proj_out with 22 output")},

    {TRANSFORMER, CONFIG("use_additional_t_cond", "true"), REFUSED(UNSUPPORTED, "'use_additional_t_cond'")},
    {TRANSFORMER, CONFIG("use_layer3d_rope", "true"), REFUSED(UNSUPPORTED, "'use_layer3d_rope'")},
    {TRANSFORMER, CONFIG("guidance_embeds", "true"), REFUSED(UNSUPPORTED, "'guidance_embeds'")},
    {TRANSFORMER, CONFIG("zero_cond_t", "7"), REFUSED(META, "'zero_cond_t'")},
    {TRANSFORMER, CONFIG("patch_size", "1"), REFUSED(META, "'patch_size'")},
    {TRANSFORMER, CONFIG("axes_dims_rope", "[4, 6, 4]"), REFUSED(SHAPE, "head 12", "rope axes 4+6+4")},
    {TRANSFORMER, CONFIG("axes_dims_rope", "[3, 5, 4]"), REFUSED(SHAPE, "rope axes 3+5+4")},
    {TRANSFORMER, .tensor = "transformer_blocks.1.txt_mlp.net.2", .what = "no feed-forward output",
     REFUSED(MISSING, "'transformer_blocks.1.txt_mlp.net.2.weight'")},
    {TRANSFORMER, .tensor = "transformer_blocks.2.attn.add_k_proj", .what = "no text keys in the last block",
     REFUSED(MISSING, "'transformer_blocks.2.attn.add_k_proj.weight'")},
    {TRANSFORMER, SHAPED("txt_norm.weight", 0, 40), REFUSED(SHAPE, "'txt_norm.weight'", "[48]")},
};

static void (*const extra_tests[])(void) = {NULL};

const struct invalid_models invalid_models_qwen = {&layouts_of_qwen, rows, COUNT_OF(rows), extra_tests};
