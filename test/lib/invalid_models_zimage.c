/* Invalid models that resemble Z-Image or Qwen3. */
#include "test/lib/layouts.h"

#include "bench/dev/checkpoint.h"

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

static const struct invalid_model rows[] = {
    {.component = "text_encoder",
     .tensor = "embed_tokens.weight",
     .dimension = 0,
     .n = 100,
     .code = SHAPE,
     .what = "more ids than rows",
     .words = {"token ids", "100", "part.safetensors"}},
};
static void (*const extra_tests[])(void) = {test_shapes, test_rows, NULL};

const struct invalid_models invalid_models_zimage = {&layouts_of_zimage, rows, COUNT_OF(rows), extra_tests};
