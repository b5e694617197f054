/* Invalid models that resemble WAN. */
#include "test/lib/layouts.h"

#define TRANSFORMER .component = "transformer"
#define VAE         .component = "vae"

static void make_s2v(struct tensor_set *p) {
    invalid_models_add_marker(p, "casual_audio_encoder.encoder.final_linear.weight");
}

static void make_humo(struct tensor_set *p) {
    invalid_models_add_marker(p, "audio_proj.audio_proj_glob_1.layer.bias");
}

static void make_animate(struct tensor_set *p) {
    invalid_models_add_marker(p, "face_adapter.fuser_blocks.0.k_norm.weight");
}

static void make_fun_camera(struct tensor_set *p) {
    invalid_models_add_marker(p, "control_adapter.conv.weight");
}

static void make_fun_control(struct tensor_set *p) {
    invalid_models_add_marker(p, "ref_conv.weight");
}

static void make_fps_embedding(struct tensor_set *p) {
    invalid_models_add_marker(p, "fps_embedding.weight");
}

/* Reduces the VAE to two levels: too few for its temporal resampling. */
static void make_two_levels(struct tensor_set *p) {
    tensor_set_drop(p, "decoder.up_blocks.2.");
    tensor_set_drop(p, "decoder.up_blocks.3.");
}

/* Adds a third temporal upsampling layer to the VAE decoder, nearest to the image. */
static void make_third_time_conv(struct tensor_set *p) {
    invalid_models_add_marker(p, "decoder.up_blocks.2.upsamplers.0.time_conv.weight");
}

static const struct invalid_model rows[] = {
    {VAE, .change = make_third_time_conv, .what = "time resampled at other levels",
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
    {TRANSFORMER, .change = make_s2v, .what = "S2V", REFUSED(UNSUPPORTED, "S2V", "'casual_audio_encoder.")},
    {TRANSFORMER, .change = make_humo, .what = "HuMo", REFUSED(UNSUPPORTED, "HuMo", "'audio_proj.")},
    {TRANSFORMER, .change = make_animate, .what = "Animate",
     REFUSED(UNSUPPORTED, "Animate", "'face_adapter.")},
    {TRANSFORMER, .change = make_fun_camera, .what = "Fun-Camera",
     REFUSED(UNSUPPORTED, "Fun-Camera", "'control_adapter.")},
    {TRANSFORMER, .change = make_fun_control, .what = "Fun-Control",
     REFUSED(UNSUPPORTED, "Fun-Control", "'ref_conv.", "T2V, I2V, FLF2V, TI2V or VACE")},
    {TRANSFORMER, .change = make_fps_embedding, .what = "SkyReels",
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

static void (*const extra_tests[])(void) = {NULL};

const struct invalid_models invalid_models_wan = {&layouts_of_wan, rows, COUNT_OF(rows), extra_tests};
