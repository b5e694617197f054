/* Models that are nearly Flux.1, CLIP or T5: relatives with the same names that compute something else, and
 * sizes that do not fit together. Each is refused by name when it is opened, or planned. */
#include "test/lib/layout_checks.h"

static const char golden[] = "test/golden/flux_a/model";
static struct pile *transformer, *clip, *t5; /* one at a time is changed in a copy */

/* A copy of a pile in which the configuration says something else under this key; NULL: as it is. */
static struct pile *changed(const struct pile *of, const char *key, const char *value) {
    struct pile *p = pile_copy(of, "");
    if (!key) return p;
    json_t *root = json_loads(p->config, 0, NULL);
    json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    free(p->config);
    p->config = json_dumps(root, 0);
    json_decref(root);
    return p;
}

/* The tensor has another shape; what is new of it is zeros. */
static void resize(struct pile *p, const char *name, int place, int32_t n) {
    struct item *item = pile_find(p, name);
    if (!check(item != NULL, "no tensor %s", name)) return;
    size_t bytes = item->bytes / (size_t)item->dim[place] * (size_t)n;
    unsigned char *data = calloc(1, bytes);
    if (!data) abort();
    memcpy(data, item->data, bytes < item->bytes ? bytes : item->bytes);
    free(item->data);
    item->data = data;
    item->bytes = bytes;
    item->dim[place] = n;
}

/* Frees the pile. */
static options with_part(struct pile *p, const struct pile *of) {
    options from = {.model = golden};
    const char *path = under("part.safetensors");
    write_pile(p, path, p->config);
    pile_free(p);
    if (of == transformer) from.diffusion_model = path;
    if (of == clip) from.clip_l = path;
    if (of == t5) from.t5xxl = path;
    return from;
}

static void config_is_refused(const struct pile *of, const char *key, const char *value, enum status code,
                              const char *const *words) {
    is_refused(with_part(changed(of, key, value), of), code, key, words);
}

static void shape_is_refused(const struct pile *of, const char *name, int place, int32_t n, enum status code,
                             const char *const *words) {
    struct pile *p = changed(of, NULL, NULL);
    resize(p, name, place, n);
    is_refused(with_part(p, of), code, name, words);
}

/* Of 5 latent channels: 20 columns a token, and 80 + 256 with a mask of 64 pixels a latent pixel. */
static void test_inputs(void) {
    const char *in = "x_embedder.weight";
    shape_is_refused(transformer, in, 1, 40, UNSUPPORTED,
                     WORDS("40 columns a token", "expected 20, or 296 (Fill)", "Canny"));
    shape_is_refused(transformer, in, 1, 40 + 4 * 7, UNSUPPORTED, WORDS("68 columns a token"));
    shape_is_refused(transformer, in, 1, 22, UNSUPPORTED, WORDS("22 columns a token"));
    shape_is_refused(transformer, in, 1, 16, UNSUPPORTED, WORDS("16 columns a token"));
}

static void test_transformer(void) {
    config_is_refused(transformer, "axes_dims_rope", "[4, 6, 4]", SHAPE, WORDS("head 12", "rope axes 4+6+4"));
    config_is_refused(transformer, "axes_dims_rope", "[3, 5, 4]", SHAPE, WORDS("rope axes 3+5+4"));
    config_is_refused(transformer, "patch_size", "2", META, WORDS("'patch_size'"));
    config_is_refused(transformer, "guidance_embeds", "7", META, WORDS("'guidance_embeds'"));
    struct pile *p = changed(transformer, NULL, NULL);
    pile_drop(p, "time_text_embed.guidance");
    is_refused(with_part(p, transformer), MISSING, "no guidance embedder",
               WORDS("'time_text_embed.guidance_embedder.linear_1.weight'", "guidance_in.in_layer.weight"));
    p = changed(transformer, NULL, NULL);
    pile_drop(p, "single_transformer_blocks.1.proj_mlp");
    is_refused(with_part(p, transformer), MISSING, "a part of a block",
               WORDS("single_transformer_blocks.1.proj_mlp.weight", "single_blocks.1.linear1.weight"));
}

static void test_t5(void) {
    const char *bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    config_is_refused(t5, "feed_forward_proj", "\"relu\"", UNSUPPORTED,
                      WORDS("'feed_forward_proj'", "\"relu\"", "\"gated-gelu\""));
    config_is_refused(t5, "dense_act_fn", "\"silu\"", UNSUPPORTED, WORDS("'dense_act_fn'", "\"silu\""));
    config_is_refused(t5, "relative_attention_max_distance", "2", META,
                      WORDS("'relative_attention_max_distance'"));
    shape_is_refused(t5, bias, 0, 30, SHAPE, WORDS("buckets of distances 30", "a multiple of 4"));
    shape_is_refused(t5, bias, 0, 132, SHAPE, WORDS("buckets of distances 132", "128 buckets at most"));
    shape_is_refused(t5, bias, 1, 7, SHAPE, WORDS("heads 7", "whole heads"));
    struct pile *p = changed(t5, NULL, NULL);
    rename_part(pile_find(p, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"), "wi_0", "wi");
    is_refused(with_part(p, t5), UNSUPPORTED, "no gate", WORDS("no T5 1.1", "T5 1.0"));
    p = changed(t5, NULL, NULL);
    struct item *item = pile_find(p, bias);
    pile_add(p, "", "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight", item->type,
             item->rank, item->dim, item->data, item->bytes);
    is_refused(with_part(p, t5), UNSUPPORTED, "a bias in every layer", WORDS("no T5 1.1", "UMT5"));
}

static void test_clip(void) {
    config_is_refused(clip, "hidden_act", "\"gelu\"", UNSUPPORTED, WORDS("'hidden_act'", "\"quick_gelu\""));
    config_is_refused(clip, "num_attention_heads", "3", SHAPE, WORDS("width 20, 3 heads"));
}

/* Two positions are missing for the 77 tokens that the pipeline pads to. */
static void test_positions(void) {
    struct rig rig;
    struct pile *p = changed(clip, NULL, NULL);
    const char *prefixed = "text_model.embeddings.position_embedding.weight";
    resize(p, pile_find(p, prefixed) ? prefixed : "embeddings.position_embedding.weight", 0, 75);
    if (!open_rig(&rig, with_part(p, clip), "75 positions")) return;
    struct sluice_request r = request_fox(48, 32, 2, 1, 1);
    r.guidance = 3.5;
    struct result got = run(&rig, &r);
    check(got.code == SLUICE_SHAPE && strstr(got.error.what, "fewer positions") &&
              !strcmp(got.error.found, "75") && !strcmp(got.error.expected, "77"),
          "75 positions: %s %s, %s, %s", sluice_code_name(got.code), got.error.what, got.error.found,
          got.error.expected);
    result_free(&got);
    rig_close(&rig);
}

int main(void) {
    temporary_make();
    transformer = pile_read(golden, "transformer");
    clip = pile_read(golden, "text_encoder");
    t5 = pile_read(golden, "text_encoder_2");
    test_inputs();
    test_transformer();
    test_t5();
    test_clip();
    test_positions();
    pile_free(transformer);
    pile_free(clip);
    pile_free(t5);
    return finish();
}
