/* Models that are nearly Z-Image or Qwen 3. */
#include "test/lib/layouts.h"

#include "engine/sluice_bench.h"

static void test_shapes(void) {
    struct pile *p = layouts_original("transformer"), *q;
    struct item *t = pile_find(p, "layers.1.attention.qkv.weight");
    options from = {.model = at_hand.folder, .diffusion_model = under("shape.safetensors")};
    char expected[32];
    snprintf(expected, sizeof expected, "[%d, %d]", t->dim[0], t->dim[1]);
    t->dim[0] -= 1;
    t->bytes -= (size_t)t->dim[1] * 4;
    q = pile_copy(p, "diffusion_model.");
    write_pile(q, under("shape.safetensors"), q->config);
    is_refused(from, SHAPE, "a fused tensor's shape",
               WORDS("'diffusion_model.layers.1.attention.qkv.weight'", expected));
    pile_free(q);
    pile_drop(p, "layers.1.attention.qkv");
    write_pile(p, under("shape.safetensors"), p->config);
    is_refused(from, MISSING, "no fused tensor",
               WORDS("layers.1.attention.to_q.weight", "layers.1.attention.qkv.weight"));
    pile_free(p);
    /* Without a configuration a head of 12 is not the published one. */
    p = layouts_original("transformer");
    write_pile(p, under("shape.safetensors"), NULL);
    is_refused(from, SHAPE, "published sizes", WORDS("rope axes", "config.json"));
    /* Two of a kind in one file. */
    q = pile_copy(p, "model.diffusion_model.");
    pile_append(q, p, "");
    write_pile(q, under("shape.safetensors"), NULL);
    is_refused(from, UNSUPPORTED, "two in one file", WORDS("two parts", "'model.diffusion_model.'"));
    pile_free(p);
    pile_free(q);
}

/* More rows than padding explains. */
static void test_rows(void) {
    struct sluice_error e;
    check(!sluice_checkpoint_write(
              "zimage", under("rows"),
              "heads=1,axis0=16,axis1=24,axis2=24,layers=1,refiners=1,hidden=16,text_heads=1,"
              "text_key_heads=1,text_head_dim=16,text_ff=16,text_layers=2,vocabulary=1200,"
              "vae0=8,vae1=8,vae2=8,vae3=8,vae_groups=8",
              1, NULL, NULL, &e),
          "%s", e.what);
    is_refused((options){.model = under("rows"), .tokenizer = "test/golden/zimage_a/model/tokenizer"}, SHAPE,
               "another encoder's tokenizer", WORDS("token ids", "651 in the tokenizer", "text_encoder"));
}

static const struct misfit rows[] = {
    {.component = "text_encoder",
     .tensor = "embed_tokens.weight",
     .dimension = 0,
     .n = 100,
     .code = SHAPE,
     .what = "more ids than rows",
     .words = {"token ids", "100", "part.safetensors"}},
};
static void (*const own[])(void) = {test_shapes, test_rows, NULL};

const struct misfits misfits_zimage = {&layouts_of_zimage, rows, COUNT_OF(rows), own};
