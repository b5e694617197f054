/* Invalid models: each row changes one component of a fixture and names the error that refuses it. Some
 * families have further tests of their own. test_invalid_models.c loops over the rows. */
#include "test/lib/layouts.h"

#include "bench/dev/checkpoint.h"

#include <stdio.h>

#define TRANSFORMER .component = "transformer"
#define VAE         .component = "vae"

/* ---- Invalid models that resemble Z-Image or Qwen3 ---- */

static void test_shapes(void) {
    struct tensor_set *p = layouts_checkpoint_part("transformer"), *q;
    struct item *t = tensor_set_find(p, "layers.1.attention.qkv.weight");
    options from = {.model = current_model.folder, .diffusion_model = temporary_path("shape.safetensors")};
    char expected[32];
    snprintf(expected, sizeof expected, "[%d, %d]", t->dim[0], t->dim[1]);
    t->dim[0] -= 1;
    t->bytes -= (size_t)t->dim[1] * 4;
    q = tensor_set_copy(p, "diffusion_model.");
    write_tensor_set(q, temporary_path("shape.safetensors"), q->config);
    expect_refused(from, SHAPE, "a fused tensor's shape",
                   WORDS("'diffusion_model.layers.1.attention.qkv.weight'", expected));
    tensor_set_free(q);
    tensor_set_drop(p, "layers.1.attention.qkv");
    write_tensor_set(p, temporary_path("shape.safetensors"), p->config);
    expect_refused(from, MISSING, "no fused tensor",
                   WORDS("layers.1.attention.to_q.weight", "layers.1.attention.qkv.weight"));
    tensor_set_free(p);
    /* Without a configuration the head size must be the published one; 12 is not. */
    p = layouts_checkpoint_part("transformer");
    write_tensor_set(p, temporary_path("shape.safetensors"), NULL);
    expect_refused(from, SHAPE, "published sizes", WORDS("rope axes", "config.json"));
    /* Writes a file with two transformers. */
    q = tensor_set_copy(p, "model.diffusion_model.");
    tensor_set_append(q, p, "");
    write_tensor_set(q, temporary_path("shape.safetensors"), NULL);
    expect_refused(from, UNSUPPORTED, "two in one file", WORDS("two components", "'model.diffusion_model.'"));
    tensor_set_free(p);
    tensor_set_free(q);
}

/* Refuses a tokenizer with so few ids that padding does not explain the embedding table's further rows. */
static void test_rows(void) {
    struct error e = {0};
    struct checkpoint_options made = {
        .family = "zimage",
        .dimensions = "heads=1,axis0=16,axis1=24,axis2=24,layers=1,refiners=1,hidden=16,text_heads=1,"
                      "text_key_heads=1,text_head_dim=16,text_ff=16,text_layers=2,vocabulary=1200,"
                      "vae0=8,vae1=8,vae2=8,vae3=8,vae_groups=8",
        .seed = 1};
    check(!checkpoint_write(&made, temporary_path("rows"), &e), "%s", e.what);
    expect_refused(
        (options){.model = temporary_path("rows"), .tokenizer = "test/golden/zimage_a/model/tokenizer"},
        SHAPE, "another encoder's tokenizer", WORDS("token ids", "651 in the tokenizer", "text_encoder"));
}

static const struct invalid_model rows_zimage[] = {
    {.component = "text_encoder",
     .tensor = "embed_tokens.weight",
     .dimension = 0,
     .n = 100,
     .code = SHAPE,
     .what = "more ids than rows",
     .words = {"token ids", "100", "part.safetensors"}},
};
static void (*const extra_tests_zimage[])(void) = {test_shapes, test_rows, NULL};

const struct invalid_models invalid_models_zimage = {&layouts_of_zimage, rows_zimage, COUNT_OF(rows_zimage),
                                                     extra_tests_zimage};

/* ---- Invalid models that resemble Flux.1, CLIP or T5 ---- */

#define CLIP  .component = "text_encoder"
#define T5    .component = "text_encoder_2"
#define INPUT "x_embedder.weight"
#define BIAS  "layer.0.SelfAttention.relative_attention_bias.weight"

static void rename_gate(struct tensor_set *p) {
    rename_part(tensor_set_find(p, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"), "wi_0", "wi");
}

static void add_bias(struct tensor_set *p) {
    struct item *item = tensor_set_find(p, "encoder.block.0." BIAS);
    tensor_set_add(p, "", "encoder.block.1." BIAS, item->type, item->rank, item->dim, item->data,
                   item->bytes);
}

static const struct invalid_model rows_flux[] = {
    /* A VAE of 5 latent channels gives 20 input channels, or 20 + 20 + 256 with a mask of 64 pixels per
       latent pixel. */
    {TRANSFORMER, SHAPED(INPUT, 1, 40),
     REFUSED(UNSUPPORTED, "x_embedder with 40 input channels", "20 (dev, schnell, Kontext) or 296 (Fill)",
             "Canny")},
    {TRANSFORMER, SHAPED(INPUT, 1, 40 + 4 * 7), REFUSED(UNSUPPORTED, "68 input channels")},
    {TRANSFORMER, SHAPED(INPUT, 1, 22), REFUSED(UNSUPPORTED, "22 input channels")},
    {TRANSFORMER, SHAPED(INPUT, 1, 16), REFUSED(UNSUPPORTED, "16 input channels")},

    {TRANSFORMER, CONFIG("axes_dims_rope", "[4, 6, 4]"), REFUSED(SHAPE, "head 12", "rope axes 4+6+4")},
    {TRANSFORMER, CONFIG("axes_dims_rope", "[3, 5, 4]"), REFUSED(SHAPE, "rope axes 3+5+4")},
    {TRANSFORMER, CONFIG("patch_size", "2"), REFUSED(META, "'patch_size'")},
    {TRANSFORMER, CONFIG("guidance_embeds", "7"), REFUSED(META, "'guidance_embeds'")},
    {TRANSFORMER, .tensor = "time_text_embed.guidance", .what = "no guidance embedder",
     REFUSED(MISSING, "'time_text_embed.guidance_embedder.linear_1.weight'", "guidance_in.in_layer.weight")},
    {TRANSFORMER, .tensor = "single_transformer_blocks.1.proj_mlp", .what = "a part of a block",
     REFUSED(MISSING, "single_transformer_blocks.1.proj_mlp.weight", "single_blocks.1.linear1.weight")},

    {T5, CONFIG("feed_forward_proj", "\"relu\""),
     REFUSED(UNSUPPORTED, "'feed_forward_proj'", "\"relu\"", "\"gated-gelu\"")},
    {T5, CONFIG("dense_act_fn", "\"silu\""), REFUSED(UNSUPPORTED, "'dense_act_fn'", "\"silu\"")},
    {T5, CONFIG("relative_attention_max_distance", "2"), REFUSED(META, "'relative_attention_max_distance'")},
    {T5, SHAPED("encoder.block.0." BIAS, 0, 30), REFUSED(SHAPE, "position buckets 30", "a multiple of 4")},
    {T5, SHAPED("encoder.block.0." BIAS, 0, 132),
     REFUSED(SHAPE, "position buckets 132", "at most 128 buckets")},
    {T5, SHAPED("encoder.block.0." BIAS, 1, 7), REFUSED(SHAPE, "heads 7", "a multiple of heads")},
    {T5, .change = rename_gate, .what = "no gate", REFUSED(UNSUPPORTED, "not T5 1.1", "T5 1.0")},
    {T5, .change = add_bias, .what = "a bias in every layer",
     REFUSED(UNSUPPORTED, "holds another component", "found umT5", "expected T5 text encoder")},

    {CLIP, CONFIG("hidden_act", "\"gelu_new\""),
     REFUSED(UNSUPPORTED, "'hidden_act'", "\"quick_gelu\" or \"gelu\"")},
    {CLIP, CONFIG("num_attention_heads", "3"), REFUSED(SHAPE, "width 20, 3 heads")},
};

/* Refuses a CLIP with 75 positions: the pipeline pads prompts to 77 tokens. */
static void test_positions(void) {
    struct rig rig;
    struct tensor_set *p = tensor_set_copy(layouts_part("text_encoder"), "");
    const char *prefixed = "text_model.embeddings.position_embedding.weight";
    layouts_resize(p, tensor_set_find(p, prefixed) ? prefixed : "embeddings.position_embedding.weight", 0,
                   75);
    if (!rig_open_paths(&rig, layouts_replace_part("text_encoder", p), "75 positions")) return;
    struct sluice_request r = request_fox(48, 32, 2, 1, 1);
    r.guidance = 3.5;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_SHAPE &&
              strstr(got.error.what, "longer than the CLIP text encoder's position table") &&
              !strcmp(got.error.found, "75 positions") && strstr(got.error.expected, "77"),
          "75 positions: %s %s, %s, %s", sluice_code_name(got.code), got.error.what, got.error.found,
          got.error.expected);
    rig_close(&rig);
}

static void (*const extra_tests_flux[])(void) = {test_positions, NULL};

const struct invalid_models invalid_models_flux = {&layouts_of_flux, rows_flux, COUNT_OF(rows_flux),
                                                   extra_tests_flux};

#undef CLIP
#undef T5
#undef INPUT
#undef BIAS

/* Invalid models that resemble the UNets of Stable Diffusion, and a VAE without a configuration. */

#define UNET .component = "unet"

static const struct invalid_model rows_unet[] = {
    {UNET, SHAPED("conv_in.weight", 1, 8),
     REFUSED(UNSUPPORTED, "8 channels", "4, or 9 (inpainting)", "pix2pix")},
    {UNET, SHAPED("conv_in.weight", 1, 5), REFUSED(UNSUPPORTED, "5 channels")},
    {UNET, SHAPED("conv_in.weight", 1, 3), REFUSED(UNSUPPORTED, "3 channels")},
    {UNET, .marker = "controlnet_cond_embedding.conv_in.weight", .what = "a ControlNet",
     REFUSED(UNSUPPORTED, "a ControlNet")},
    {UNET, .marker = "class_embedding.linear_1.weight", .what = "a class-conditional UNet",
     REFUSED(UNSUPPORTED, "class-conditional")},
    {UNET, .marker = "down_blocks.0.motion_modules.0.transformer_blocks.0.norm1.weight",
     .what = "a video UNet", REFUSED(UNSUPPORTED, "a video UNet")},
    {UNET, .marker = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k_ip.0.weight",
     .what = "an IP-Adapter", REFUSED(UNSUPPORTED, "with an IP-Adapter")},
    {UNET, .marker = "encoder_hid_proj.weight", .what = "another text encoder",
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

static void (*const extra_tests_unet[])(void) = {test_decoder_alone, NULL};

const struct invalid_models invalid_models_unet = {&layouts_of_sd1, rows_unet, COUNT_OF(rows_unet),
                                                   extra_tests_unet};

#undef UNET

/* ---- Invalid models that resemble Qwen-Image ---- */

/* A ControlNet has the transformer's blocks without an output layer. */
static void drop_output(struct tensor_set *p) {
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

static const struct invalid_model rows_qwen[] = {
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

    {TRANSFORMER, .marker = "time_text_embed.addition_t_embedding.weight", .what = "layers",
     REFUSED(UNSUPPORTED, "Qwen-Image-Layered", "'time_text_embed.addition_t_embedding.weight'",
             "Qwen-Image-Edit")},
    {TRANSFORMER, .marker = "txt_in.text_norm.weight", .what = "Qwen-Image 2.1",
     REFUSED(UNSUPPORTED, "Qwen-Image 2.1")},
    {TRANSFORMER, .marker = "controlnet_blocks.0.weight", .change = drop_output, .what = "a ControlNet",
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

const struct invalid_models invalid_models_qwen = {&layouts_of_qwen, rows_qwen, COUNT_OF(rows_qwen), NULL};

/* ---- Invalid models whose text or vision encoder resembles Qwen2.5-VL ---- */

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

/* Renames tensors to the names that transformers 5 uses in memory for Qwen3-VL's language model. */
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

static const struct invalid_model rows_qwen25vl[] = {
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

static void (*const extra_tests_qwen25vl[])(void) = {test_qwen2, NULL};

const struct invalid_models invalid_models_qwen25vl = {&layouts_of_qwen, rows_qwen25vl,
                                                       COUNT_OF(rows_qwen25vl), extra_tests_qwen25vl};

#undef TEXT
#undef VISION

/* ---- Invalid models that resemble WAN ---- */

/* Reduces the VAE to two levels: too few for its temporal resampling. */
static void make_two_levels(struct tensor_set *p) {
    tensor_set_drop(p, "decoder.up_blocks.2.");
    tensor_set_drop(p, "decoder.up_blocks.3.");
}

/* Adds a third temporal upsampling layer to the VAE decoder, nearest to the image. */
static const struct invalid_model rows_wan[] = {
    {VAE, .marker = "decoder.up_blocks.2.upsamplers.0.time_conv.weight",
     .what = "time resampled at other levels",
     REFUSED(UNSUPPORTED, "wrong number of temporal resampling layers", "3 tensors 'time_conv.weight'",
             "2 tensors, one per resampling")},
    {VAE, .change = make_two_levels, .what = "two levels",
     REFUSED(SHAPE, "VAE decoder: 2 levels", "3 to 8 levels")},
    {VAE, .tensor = "decoder.up_blocks.1.upsamplers.0.time_conv.", .what = "no time resampling",
     REFUSED(UNSUPPORTED, "wrong number of temporal resampling layers", "1 tensors 'time_conv.weight'")},
    {VAE, SHAPED("decoder.up_blocks.0.upsamplers.0.time_conv.weight", 2, 2),
     REFUSED(SHAPE, "'decoder.up_blocks.0.upsamplers.0.time_conv.weight'")},
    {VAE, SHAPED("encoder.down_blocks.0.conv1.weight", 2, 2),
     REFUSED(SHAPE, "'encoder.down_blocks.0.conv1.weight'")},
    {VAE, CONFIG("attn_scales", "[0.5]"), REFUSED(UNSUPPORTED, "'attn_scales.0'")},
    {VAE, CONFIG("latents_std", "[1, 1, 1]"), REFUSED(META, "'latents_std'", "3", "5")},
    {TRANSFORMER, .marker = "casual_audio_encoder.encoder.final_linear.weight", .what = "S2V",
     REFUSED(UNSUPPORTED, "S2V", "'casual_audio_encoder.")},
    {TRANSFORMER, .marker = "audio_proj.audio_proj_glob_1.layer.bias", .what = "HuMo",
     REFUSED(UNSUPPORTED, "HuMo", "'audio_proj.")},
    {TRANSFORMER, .marker = "face_adapter.fuser_blocks.0.k_norm.weight", .what = "Animate",
     REFUSED(UNSUPPORTED, "Animate", "'face_adapter.")},
    {TRANSFORMER, .marker = "control_adapter.conv.weight", .what = "Fun-Camera",
     REFUSED(UNSUPPORTED, "Fun-Camera", "'control_adapter.")},
    {TRANSFORMER, .marker = "ref_conv.weight", .what = "Fun-Control",
     REFUSED(UNSUPPORTED, "Fun-Control", "'ref_conv.", "T2V, I2V, FLF2V, TI2V or VACE")},
    {TRANSFORMER, .marker = "fps_embedding.weight", .what = "SkyReels",
     REFUSED(UNSUPPORTED, "SkyReels", "'fps_embedding.")},
    /* 15 input channels: noise, a control latent and an image latent of 5 channels each */
    {TRANSFORMER, SHAPED("patch_embedding.weight", 1, 15),
     REFUSED(UNSUPPORTED, "Fun-Control", "15 input channels, 5 output channels", "5 (T2V), or 14 (I2V)")},
    {TRANSFORMER, CONFIG("attention_head_dim", "7"),
     REFUSED(SHAPE, "unsupported WAN transformer", "head size 7", "attention_head_dim in config.json")},
    {TRANSFORMER, CONFIG("attention_head_dim", "4"),
     REFUSED(SHAPE, "unsupported WAN transformer", "head size 4")},
    {TRANSFORMER, CONFIG("attention_head_dim", "16"),
     REFUSED(SHAPE, "unsupported WAN transformer", "head size 16")},
    {TRANSFORMER, CONFIG("num_layers", "5"), .what = "missing blocks",
     REFUSED(META, "'num_layers'", "5", "expected 3")},
    {TRANSFORMER, .tensor = "blocks.1.attn2.to_k.", .what = "no cross-attention keys",
     REFUSED(MISSING, "'blocks.1.attn2.to_k.", "or 'blocks.1.cross_attn.k.")},
    {TRANSFORMER, SHAPED("blocks.2.scale_shift_table", 1, 5),
     REFUSED(SHAPE, "'blocks.2.scale_shift_table'", "[1, 5, 40]", "[1, 6, 40]")},
    {TRANSFORMER, SHAPED("blocks.0.attn1.norm_q.weight", 0, 20),
     REFUSED(SHAPE, "'blocks.0.attn1.norm_q.weight'", "[20]", "[40]")},
    {TRANSFORMER, SHAPED("patch_embedding.weight", 2, 2),
     REFUSED(SHAPE, "'patch_embedding.weight'", "[40, 5, 2, 2, 2]", "[40, 5, 1, 2, 2]")},
};

const struct invalid_models invalid_models_wan = {&layouts_of_wan, rows_wan, COUNT_OF(rows_wan), NULL};

/* Invalid WAN models whose encoders resemble umT5 or CLIP's vision encoder, or belong to another model. */

#define TEXT        .component = "text_encoder"
#define VISION      .component = "image_encoder"
#define BIAS(layer) "encoder.block." layer ".layer.0.SelfAttention.relative_attention_bias.weight"

static void rename_gate_wan_encoders(struct tensor_set *p) {
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

static const struct invalid_model rows_wan_encoders[] = {
    {TEXT, .change = rename_gate_wan_encoders, .what = "no gate",
     REFUSED(UNSUPPORTED, "not umT5", "without a gate")},
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

const struct invalid_models invalid_models_wan_encoders = {&encoders, rows_wan_encoders,
                                                           COUNT_OF(rows_wan_encoders), NULL};

#undef TEXT
#undef VISION
#undef BIAS

/* Invalid models like Stable Diffusion 3.5 medium. Blocks 0 and 2 of the fixture have a second attention. */

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

static const struct invalid_model rows_sd3[] = {
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

    {TRANSFORMER, .marker = "controlnet_blocks.0.weight", .what = "a ControlNet",
     REFUSED(UNSUPPORTED, "ControlNet", "'controlnet_blocks.0.weight'", "3.5 medium or large")},
    {TRANSFORMER, .marker = "pos_embed_input.proj.weight", .what = "another ControlNet",
     REFUSED(UNSUPPORTED, "ControlNet", "'pos_embed_input.proj.weight'")},
    {TRANSFORMER, .marker = "image_proj.proj_in.weight", .what = "an IP-Adapter",
     REFUSED(UNSUPPORTED, "IP-Adapter")},
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

const struct invalid_models invalid_models_sd3 = {&layouts_of_sd35, rows_sd3, COUNT_OF(rows_sd3), NULL};

#undef CONFIG_MISMATCH
#undef WITHOUT
