/* VAE encoders: memory compared with the decoder's, and encoders that do not fit their decoder. */
#include "kernels/dry/dry.h"
#include "engine/run/component.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "models/vae_blocks.h"
#include "test/lib/golden.h"
#include "test/lib/model_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct vae_memory {
    uint64_t full_frame, scratch, workspace;
};

/* Sets the shapes of all weights in a block's weights structure, without data. */
static void shape_weights(const struct component *c, const struct block_ref *ref, char *structure) {
    int32_t dims[FAMILY_DIMS_MAX], dim[WEIGHT_RANK_MAX];
    component_block_dims(c, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        const struct weight_spec *spec = &ref->kind->weights[i];
        for (int k = 0; k < spec->rank; k++) dim[k] = dims[spec->dim[k]];
        struct tensor t = tensor_make(NULL, DTYPE_BF16, spec->rank, dim);
        if (!weight_is_optional(spec) && block_has_weight(spec, dims))
            memcpy(structure + spec->offset, &t, sizeof t);
    }
}

static struct vae_memory measure_memory(const struct component *c, struct lane lane) {
    static struct block_ref refs[FAMILY_BLOCKS_MAX];
    struct arena none = arena_counting(), pictures = arena_counting(), scratch = arena_counting();
    struct error e = {0};
    struct dry dry;
    bool ok = true;
    dry_init(&dry, &golden_state.sys, golden_state.device, false);
    struct context x = {.device = &dry.device, .scratch = &scratch, .error = &e};
    lane.state = calloc(1, c->family->state.bytes);
    assert_non_null(lane.state);
    c->family->state.declare(c, &lane, 1, &none, &pictures, &ok);
    assert_true(ok && !none.peak);
    for (int i = 0, n = c->family->blocks.list(c, refs); i < n; i++) {
        if (refs[i].unused) continue;
        void *weights = calloc(1, refs[i].kind->weights_bytes);
        struct visit_scope scope = {.settings = c->settings,
                                    .latent_format = &c->latent_format,
                                    .lane = &lane,
                                    .number = refs[i].number};
        shape_weights(c, &refs[i], weights);
        scratch.used = 0;
        refs[i].kind->forward(&x, weights, &scope);
        free(weights);
    }
    assert_ok(&e);
    dry_destroy(&dry);
    free(lane.state);
    return (struct vae_memory){pictures.peak, scratch.peak, dry.workspace_bytes};
}

static uint64_t total_bytes(struct vae_memory t) {
    return t.full_frame + t.scratch + t.workspace;
}

static void print_memory(const char *does, struct vae_memory t) {
    printf(" to %s %llu + %llu + %llu", does, (unsigned long long)t.full_frame, (unsigned long long)t.scratch,
           (unsigned long long)t.workspace);
}

/* The encoder's full-frame buffer holds little more than one activation with `channels` channels and, unless
 * tiled, its normalised copy. Its total is at most the decoder's plus `beyond` bytes of workspace. */
static void check_encoder_memory(const struct family *decoder, const struct family *encoder,
                                 uint64_t channels, uint64_t beyond) {
    static const int32_t sizes[][2] = {{1024, 1024}, {512, 512}, {2048, 1024}, {768, 1360}, {256, 4096}};
    static struct component half[2];
    for (int i = 0; i < 2; i++) {
        half[i] = (struct component){.family = i ? encoder : decoder};
        component_derive(&half[i], NULL);
    }
    printf("  %s\n", decoder->name);
    for (int i = 0; i < 2 * COUNT_OF(sizes); i++) {
        int32_t Y = sizes[i / 2][0], X = sizes[i / 2][1];
        bool tiled = i % 2;
        struct lane lane = {.latent = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){16, 1, Y / 8, X / 8}),
                            .picture = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){1, Y, X, 3}),
                            .moments = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){Y / 8, X / 8, 32}),
                            .tiled = tiled};
        struct vae_memory decodes = measure_memory(&half[0], lane), encodes = measure_memory(&half[1], lane);
        uint64_t least = sizeof(float) * channels * (uint64_t)Y * (uint64_t)X * (2 - tiled);
        printf("  %dx%d%s:", X, Y, tiled ? " tiled" : "");
        print_memory("decode", decodes);
        print_memory("encode", encodes);
        printf(", %.3f of the minimum\n", (double)encodes.full_frame / (double)least);
        assert_true(encodes.full_frame >= least && encodes.full_frame * 8 <= least * 9);
        assert_true(total_bytes(encodes) <= total_bytes(decodes) + beyond);
        assert_true(encodes.full_frame <= decodes.full_frame);
    }
}

static void test_encoder_needs_no_more_than_decoder(void **state) {
    check_encoder_memory(&family_vae_kl, &family_vae_kl_encoder, 128, 0); /* Flux's VAE */
    check_encoder_memory(&family_vae_wan, &family_vae_wan_encoder, 96, 12 << 20);
}

/* A tiny decoder's full-frame buffer holds little more than `pictures` images of half the width and height,
 * tiled or not. The large decoder needs at least `times` as much memory. */
static void check_tiny_memory(const struct family *tiny_one, const struct family *large_one,
                              uint64_t pictures, uint64_t times) {
    static const int32_t sizes[][2] = {{1024, 1024}, {512, 512}, {2048, 1024}, {768, 1360}, {256, 4096}};
    static struct component tiny, large;
    tiny = (struct component){.family = tiny_one};
    large = (struct component){.family = large_one};
    component_derive(&tiny, NULL);
    component_derive(&large, NULL);
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        int32_t Y = sizes[i][0], X = sizes[i][1];
        struct lane lane = {.latent = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){16, 1, Y / 8, X / 8}),
                            .picture = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){1, Y, X, 3})};
        struct vae_memory kept = measure_memory(&tiny, lane);
        lane.tiled = true;
        struct vae_memory least = measure_memory(&tiny, lane), most = measure_memory(&large, lane);
        uint64_t half = sizeof(float) * 64 * (uint64_t)(Y / 2) * (uint64_t)(X / 2) * pictures;
        printf("  %s, %dx%d:", tiny_one->name, X, Y);
        print_memory("decode", least);
        printf(", full VAE: %llu\n", (unsigned long long)total_bytes(most));
        assert_true(kept.full_frame == least.full_frame && total_bytes(kept) == total_bytes(least));
        assert_true(least.full_frame >= half && least.full_frame * 4 <= half * 5);
        assert_true(total_bytes(least) * times <= total_bytes(most));
    }
}

static void test_tiny_decoder_memory(void **state) {
    check_tiny_memory(&family_taesd, &family_vae_kl, 1, 6);
    check_tiny_memory(&family_taehv, &family_vae_wan, 2, 2);
}

/* Expects that an encoder is refused if one dimension of a tensor is changed in the index. */
static void expect_shape_refused(const char *tensor, int place, int32_t dim, const char *what) {
    struct sys *sys = &golden_state.sys;
    struct component c = {.family = &family_vae_kl_encoder, .sys = sys};
    struct config config = {0};
    struct error e = {0};
    safetensors_open(sys, "test/golden/vae_encoder/f32/diffusion_pytorch_model.safetensors", &c.index, &e);
    config_read(sys, "test/golden/vae_encoder/f32/config.json", &config, &e);
    assert_ok(&e);
    index_find(&c.index, tensor)->dim[place] = dim;
    assert_int_equal(component_bind(&c, &config, &e), SHAPE);
    if (!strstr(e.what, what)) fail_msg("%s, not %s", e.what, what);
    component_destroy(&c);
    config_destroy(&config);
}

static void test_wrong_tensor_shapes_refused(void **state) {
    expect_shape_refused("encoder.conv_out.weight", 0, 9,
                         "tensor 'encoder.conv_out.weight' has the wrong shape");
    expect_shape_refused("encoder.conv_out.weight", 0, 1,
                         "tensor 'encoder.conv_out.weight' has the wrong shape");
    expect_shape_refused("encoder.conv_in.weight", 1, 4,
                         "tensor 'encoder.conv_in.weight' has the wrong shape");
    expect_shape_refused("encoder.down_blocks.1.resnets.0.conv1.weight", 0, 7,
                         "unsupported VAE encoder: channels");
    expect_shape_refused("encoder.down_blocks.3.resnets.0.conv1.weight", 0, 514,
                         "unsupported VAE encoder: channels");
    expect_shape_refused("encoder.down_blocks.0.downsamplers.0.conv.weight", 2, 4,
                         "tensor 'encoder.down_blocks.0.downsamplers.0.conv.weight' has the wrong shape");
}

enum { GRAFTED_MAX = 256 };

static int read_tensors(const struct tensor_index *index, const char *prefix, struct named_tensor *to) {
    int n = 0;
    for (int i = 0; i < index->n_entries; i++) {
        if (strncmp(index->entries[i].name, prefix, strlen(prefix)) != 0) continue;
        assert_true(n < GRAFTED_MAX);
        to[n++] = (struct named_tensor){index->entries[i].name, read_tensor(index, index->entries[i].name)};
    }
    return n;
}

/* Combines one model's decoder with another VAE's encoder. Opening must fail with `what`. */
static void expect_graft_refused(const char *model, const char *encoder, const char *what) {
    static struct named_tensor tensors[3 * GRAFTED_MAX];
    struct sys *sys = &golden_state.sys;
    struct tensor_index halves[2];
    struct sluice_model *opened = NULL;
    struct error e = {0};
    char path[512], folder[] = "/tmp/sluice-halves-XXXXXX", command[1536];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/vae/diffusion_pytorch_model.safetensors", model);
    safetensors_open(sys, path, &halves[0], &e);
    snprintf(path, sizeof path, "test/golden/vae_encoder/%s/diffusion_pytorch_model.safetensors", encoder);
    safetensors_open(sys, path, &halves[1], &e);
    assert_ok(&e);
    int n = read_tensors(&halves[0], "decoder.", tensors);
    n += read_tensors(&halves[0], "post_quant_conv.", tensors + n);
    n += read_tensors(&halves[1], "", tensors + n);
    snprintf(path, sizeof path, "%s/ae.safetensors", folder);
    snprintf(command, sizeof command, "cp %s/vae/config.json %s", model, folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(safetensors_write(sys, path, tensors, n, &e), OK);
    struct model_paths from = {.model = model, .vae = path};
    assert_int_equal(model_open(sys, model_options(&from), &opened, &e), SHAPE);
    if (!strstr(e.what, what)) fail_msg("%s, not %s", e.what, what);
    for (int i = 0; i < 2; i++) index_destroy(&halves[i]);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_encoder_of_another_vae_refused(void **state) {
    expect_graft_refused("test/golden/zimage_a/model", "f32", "do not fit together: latent channels");
    expect_graft_refused("test/golden/zimage_b/model", "authors",
                         "do not fit together: pixels per latent pixel and axis");
}

static int free_memory(void **state) {
    test_memory_free_to(NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder_needs_no_more_than_decoder), cmocka_unit_test(test_tiny_decoder_memory),
        cmocka_unit_test(test_wrong_tensor_shapes_refused),
        cmocka_unit_test_teardown(test_encoder_of_another_vae_refused, free_memory)};
    if (!golden_begin()) return 1;
    int n = COUNT_OF(tests), failed = cmocka_run_group_tests_name("autoencoder", tests, NULL, NULL);
    printf("%d passed, %d failed\n", n - failed, failed);
    golden_end();
    return failed != 0;
}
