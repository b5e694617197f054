/* Invalid models that resemble Flux.1, CLIP or T5. */
#include "test/lib/layouts.h"

#define TRANSFORMER .component = "transformer"
#define CLIP        .component = "text_encoder"
#define T5          .component = "text_encoder_2"
#define INPUT       "x_embedder.weight"
#define BIAS        "layer.0.SelfAttention.relative_attention_bias.weight"

static void rename_gate(struct tensor_set *p) {
    rename_part(tensor_set_find(p, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"), "wi_0", "wi");
}

static void add_bias(struct tensor_set *p) {
    struct item *item = tensor_set_find(p, "encoder.block.0." BIAS);
    tensor_set_add(p, "", "encoder.block.1." BIAS, item->type, item->rank, item->dim, item->data,
                   item->bytes);
}

static const struct invalid_model rows[] = {
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
    result_free(&got);
    rig_close(&rig);
}

static void (*const extra_tests[])(void) = {test_positions, NULL};

const struct invalid_models invalid_models_flux = {&layouts_of_flux, rows, COUNT_OF(rows), extra_tests};
