/* Invalid models that resemble the UNets of Stable Diffusion, and a VAE without a configuration. */
#include "test/lib/layouts.h"

#define UNET .component = "unet"

static void make_controlnet(struct tensor_set *p) {
    invalid_models_add_marker(p, "controlnet_cond_embedding.conv_in.weight");
}
static void make_class_conditional(struct tensor_set *p) {
    invalid_models_add_marker(p, "class_embedding.linear_1.weight");
}
static void make_video_unet(struct tensor_set *p) {
    invalid_models_add_marker(p, "down_blocks.0.motion_modules.0.transformer_blocks.0.norm1.weight");
}
static void make_ip_adapter(struct tensor_set *p) {
    invalid_models_add_marker(
        p, "down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k_ip.0.weight");
}
static void make_other_text_encoder(struct tensor_set *p) {
    invalid_models_add_marker(p, "encoder_hid_proj.weight");
}

static const struct invalid_model rows[] = {
    {UNET, SHAPED("conv_in.weight", 1, 8),
     REFUSED(UNSUPPORTED, "8 channels", "4, or 9 (inpainting)", "pix2pix")},
    {UNET, SHAPED("conv_in.weight", 1, 5), REFUSED(UNSUPPORTED, "5 channels")},
    {UNET, SHAPED("conv_in.weight", 1, 3), REFUSED(UNSUPPORTED, "3 channels")},
    {UNET, .change = make_controlnet, .what = "a ControlNet", REFUSED(UNSUPPORTED, "a ControlNet")},
    {UNET, .change = make_class_conditional, .what = "a class-conditional UNet",
     REFUSED(UNSUPPORTED, "class-conditional")},
    {UNET, .change = make_video_unet, .what = "a video UNet", REFUSED(UNSUPPORTED, "a video UNet")},
    {UNET, .change = make_ip_adapter, .what = "an IP-Adapter", REFUSED(UNSUPPORTED, "with an IP-Adapter")},
    {UNET, .change = make_other_text_encoder, .what = "another text encoder",
     REFUSED(UNSUPPORTED, "another text encoder")},

    {UNET, CONFIG("attention_head_dim", "5"), REFUSED(SHAPE, "16 channels", "whole heads")},
    {UNET, CONFIG("attention_head_dim", "[2, 2, 2, 3]"), REFUSED(SHAPE, "16 channels")},
    {UNET, CONFIG("attention_head_dim", "0"), REFUSED(META, "'attention_head_dim'")},
    {UNET, CONFIG("norm_num_groups", "7"), REFUSED(SHAPE, "in 7 groups")},
    {UNET, CONFIG("flip_sin_to_cos", "false"), REFUSED(UNSUPPORTED, "\"flip_sin_to_cos\": false")},
    {UNET, CONFIG("freq_shift", "1"), REFUSED(META, "'freq_shift'")},
    {UNET, CONFIG("downsample_padding", "0"), REFUSED(META, "'downsample_padding'")},
    {UNET, CONFIG("act_fn", "\"gelu\""), REFUSED(UNSUPPORTED, "'act_fn'", "\"gelu\"", "\"silu\"")},
    {UNET, CONFIG("dual_cross_attention", "true"), REFUSED(UNSUPPORTED, "'dual_cross_attention'")},
    {UNET, CONFIG("only_cross_attention", "[true, false]"), REFUSED(UNSUPPORTED, "'only_cross_attention.0'")},
    {UNET, CONFIG("class_embed_type", "\"timestep\""), REFUSED(UNSUPPORTED, "'class_embed_type'")},
    {UNET, CONFIG("encoder_hid_dim_type", "\"text_proj\""), REFUSED(UNSUPPORTED, "'encoder_hid_dim_type'")},
    {UNET, CONFIG("resnet_time_scale_shift", "\"scale_shift\""),
     REFUSED(UNSUPPORTED, "'resnet_time_scale_shift'")},
    {UNET, CONFIG("time_embedding_type", "\"fourier\""), REFUSED(UNSUPPORTED, "'time_embedding_type'")},
    {UNET, CONFIG("mid_block_type", "\"UNetMidBlock2DSimpleCrossAttn\""),
     REFUSED(UNSUPPORTED, "'mid_block_type'")},
    {UNET,
     CONFIG("down_block_types", "[\"SimpleCrossAttnDownBlock2D\", \"CrossAttnDownBlock2D\", "
                                "\"CrossAttnDownBlock2D\", \"DownBlock2D\"]"),
     REFUSED(UNSUPPORTED, "'down_block_types.0'", "\"CrossAttnDownBlock2D\"")},

    {.component = "vae", CONFIG("latents_mean", "[0.5, 0, 0, 0]"), REFUSED(UNSUPPORTED, "'latents_mean.0'")},
    {.component = "vae", CONFIG("latents_mean", "[0, 0, 0.5, 0]"), REFUSED(UNSUPPORTED, "'latents_mean.2'")},
    {UNET, CONFIG("only_cross_attention", "[false, true]"), REFUSED(UNSUPPORTED, "'only_cross_attention.1'")},
    {.component = "vae", CONFIG("latents_std", "[1, 2, 3, 4]"), REFUSED(UNSUPPORTED, "'latents_std.0'")},

    {UNET, .tensor = "down_blocks.1.resnets.0.conv_shortcut", .what = "no shortcut",
     REFUSED(MISSING, "down_blocks.1.resnets.0.conv_shortcut.weight",
             "input_blocks.4.0.skip_connection.weight")},
    {UNET, .tensor = "up_blocks.3.attentions.2.transformer_blocks.0.attn2.to_v",
     .what = "no attention values of the prompt",
     REFUSED(MISSING, "up_blocks.3.attentions.2.transformer_blocks.0.attn2.to_v.weight",
             "output_blocks.11.1.transformer_blocks.0.attn2.to_v.weight")},
    {UNET, SHAPED("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1, 48),
     REFUSED(SHAPE, "attn2.to_k")},
    {UNET, SHAPED("up_blocks.0.resnets.2.conv1.weight", 1, 100),
     REFUSED(SHAPE, "up_blocks.0.resnets.2.conv1.weight")},
};

/* A VAE whose configuration has no latent scale gets the scale of the published VAE with as many latent
 * channels. */
static void test_decoder_alone(void) {
    sluice_model *m = NULL;
    struct sluice_error e;
    options from = {.vae = temporary_path("bare_vae.safetensors")};
    struct sluice_model_options open = *model_options(&from);
    open.decodes_only = true;
    write_tensor_set(layouts_part("vae"), from.vae,
                     "{\"_class_name\": \"AutoencoderKL\", \"norm_num_groups\": 2}");
    if (!check(!sluice_model_open(&open, &m, &e), "%s (%s)", e.what, e.where)) return;
    const struct component *decoder = model_component(m, FAMILY_DECODER);
    check(decoder->latent_format.scale[0] == 0.18215f && decoder->latent_format.shift[0] == 0,
          "latents are scaled by %g and shifted by %g", (double)decoder->latent_format.scale[0],
          (double)decoder->latent_format.shift[0]);
    sluice_model_close(m);
}

static void (*const extra_tests[])(void) = {test_decoder_alone, NULL};

const struct invalid_models invalid_models_unet = {&layouts_of_sd1, rows, COUNT_OF(rows), extra_tests};
