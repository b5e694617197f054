/* Tests the VAE decoder's blocks one by one, each on the reference's input; the whole decoder; and the whole
 * decoder through the executor, with the full-frame buffer on the device or on the host.
 *
 * A block's input is an image in the family's full-frame buffer. */
#include "engine/base/random.h"
#include "models/vae_blocks.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"
#include "test/lib/vae_run.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"vae.resnet", 2.52e-7, 8e-7},
    {"vae.resnet_shortcut", 2.89e-7, 9e-7},
    {"vae.attention", 2.18e-7, 7e-7},
    {"vae.upsampler", 3.18e-7, 1e-6},
    {"vae.mid", 4.9e-7, 1.5e-6},
    {"decoder", 1.99e-6, 6e-6},
    {0},
};

/* Measured under emulation: a GPU rounds operands of convolutions to TF32, and operands of attention and of
 * its matrix products to bf16. */
static const struct tolerance gpu_tolerances[] = {
    {"vae.resnet", 1.73e-4, 5e-4},
    {"vae.resnet_shortcut", 3.01e-4, 9e-4},
    {"vae.attention", 3.93e-3, 8e-3},
    {"vae.upsampler", 3.71e-4, 1.1e-3},
    {"vae.mid", 2.63e-3, 8e-3},
    {"decoder", 4.71e-3, 1e-2},
    {0},
};

static struct block_runner *open_decoder(const struct golden *g) {
    struct tensor latent = golden_single(g, "decoder.in"), out = golden_single(g, "decoder.out");
    struct lane lane = {.latent = latent,
                        .picture =
                            test_tensor(DTYPE_F32, 3, (int32_t[]){out.dim[1], out.dim[2], out.dim[0]})};
    return runner_open(g, recipe_slot(g->model->recipe, FAMILY_DECODER), lane);
}

/* Returns the level in a name such as "up_blocks.2.resnets.0"; the mid block is at the deepest level. */
static int level_of(const struct block *block) {
    int level = 0;
    sscanf(block->name, "up_blocks.%d", &level);
    return level;
}

static void one_block(const struct golden *g, const char *name) {
    struct block_runner *b = open_decoder(g);
    const struct vae_state *s = b->lane.state;
    json_t *about = json_object_get(json_object_get(g->expect, "blocks"), name);
    const struct block *block = vae_block_of(b, json_string_value(json_object_get(about, "module")));
    vae_put_picture(b, vae_golden_picture(g, name, "in"), level_of(block));
    runner_run(b, block, 0);
    vae_expect_picture(g, name, s->full_frame.picture);
    runner_close(b);
}

static void test_blocks(const struct golden *g) {
    one_block(g, "vae.resnet");
    one_block(g, "vae.resnet_shortcut");
    one_block(g, "vae.attention");
    one_block(g, "vae.upsampler");
}

static void test_mid(const struct golden *g) {
    struct block_runner *b = open_decoder(g);
    const struct vae_state *s = b->lane.state;
    vae_put_picture(b, vae_golden_picture(g, "vae.mid", "in"), 0);
    runner_run(b, runner_block(b, "mid_block.resnets.0"), 0);
    runner_run(b, runner_block(b, "mid_block.attentions.0"), 0);
    runner_run(b, runner_block(b, "mid_block.resnets.1"), 0);
    vae_expect_picture(g, "vae.mid", s->full_frame.picture);
    runner_close(b);
}

/* Compares the whole decoder. The reference's latent is already scaled and shifted. */
static void test_decoder(const struct golden *g) {
    struct block_runner *b = open_decoder(g);
    const struct latent_format *format = &b->component->latent_format;
    struct tensor latent = b->lane.latent;
    int64_t pixels = tensor_elements(&latent) / latent.dim[0];
    for (int64_t i = 0; i < tensor_elements(&latent); i++) {
        int64_t c = format->n > 1 ? i / pixels : 0;
        float *value = (float *)latent.data + i;
        *value = (float)(((double)*value - (double)format->shift[c]) * (double)format->scale[c]);
    }
    runner_run_all(b, 0);
    vae_expect_picture(g, "decoder", lane_picture(&b->lane));
    runner_close(b);
}

/* Runs the decoder through the executor; expects the same bits as `want`, the result of running its blocks
 * one by one. */
static void decode_run(struct vae_run *r, struct block_runner *b, const void *want) {
    struct tensor picture = b->lane.picture;
    memset(picture.data, 0, (size_t)tensor_bytes(&picture));
    vae_run_execute(r);
    assert_memory_equal(picture.data, want, (size_t)tensor_bytes(&picture));
}

static void test_places(const struct golden *g) {
    static struct vae_run d;
    const uint64_t plenty = (uint64_t)1 << 40;
    uint64_t peak[2];
    struct block_runner *b = open_decoder(g);
    runner_run_all(b, 0);
    struct tensor want = test_copy(b->lane.picture);
    struct device *paced = paced_open(&golden_state.sys, b->eager.target, 0, &b->error);
    assert_ok(&b->error);
    vae_run_measure(&d, b->component, &b->lane, 1, paced);
    for (int host = 0; host < 2; host++) {
        plan_solve(&d.need, plenty, host ? d.plan.vram_least_bytes : plenty, &d.plan);
        assert_int_equal(d.plan.stage[0].pictures_on_host, host);
        decode_run(&d, b, want.data);
        peak[host] = d.plan.vram_peak_bytes;
    }
    printf("  %-10s decoder device memory: %llu with the full-frame buffer, %llu without it\n", g->name,
           (unsigned long long)peak[0], (unsigned long long)peak[1]);
    visit_list_destroy(&d.visits);
    paced->destroy(paced);
    vae_run_measure(&d, b->component, &b->lane, 1, b->eager.target);
    d.residents.device = NULL;
    plan_solve(&d.need, plenty, 0, &d.plan);
    decode_run(&d, b, want.data);
    visit_list_destroy(&d.visits);
    runner_close(b);
}

/* Decodes a random latent with a large or a small (tiled) full-frame buffer; *buffer_bytes gets the size of
 * the buffer. */
static struct tensor decode_in(const struct golden *g, int32_t Y, int32_t X, bool tiled,
                               uint64_t *buffer_bytes) {
    const struct component *c = model_component(g->model, FAMILY_DECODER);
    uint64_t random = 5;
    struct lane lane = {
        .latent = test_tensor(DTYPE_F32, 3, (int32_t[]){c->latent_channels, Y, X}),
        .picture = test_tensor(DTYPE_F32, 3, (int32_t[]){Y * c->pixel_factor, X * c->pixel_factor, 3}),
        .tiled = tiled};
    for (int64_t i = 0; i < tensor_elements(&lane.latent); i++)
        ((float *)lane.latent.data)[i] = (float)((double)random_below(&random, 4001) / 1000 - 2);
    struct block_runner *b = runner_open(g, recipe_slot(g->model->recipe, FAMILY_DECODER), lane);
    *buffer_bytes = b->state.bytes;
    memset(b->state.base, 0xff, b->state.bytes);
    runner_run_all(b, 0);
    assert_ok(&b->error);
    runner_close(b);
    return lane_picture(&b->lane);
}

/* Tiled decoding gives the same bits, and takes less memory if images are many times as high as a band. */
static void test_tiled(const struct golden *g) {
    static const int32_t sizes[][2] = {{2, 2}, {7, 3}, {1, 33}, {37, 50}, {70, 31}, {9, 130}, {66, 66}};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        uint64_t untiled_bytes, tiled_bytes;
        void *mark = golden_state.memory;
        int32_t Y = sizes[i][0], X = sizes[i][1];
        struct tensor kept = decode_in(g, Y, X, false, &untiled_bytes),
                      tiled = decode_in(g, Y, X, true, &tiled_bytes);
        assert_memory_equal(kept.data, tiled.data, (size_t)tensor_bytes(&kept));
        printf("  %-10s full-frame buffer of a latent of %dx%d: %llu bytes, tiled %llu\n", g->name, Y, X,
               (unsigned long long)untiled_bytes, (unsigned long long)tiled_bytes);
        assert_true(tiled_bytes <= untiled_bytes);
        if (Y * X >= 37 * 50) assert_true(tiled_bytes * 10 < untiled_bytes * 9);
        test_memory_free_to(mark);
    }
}

static const struct golden_test tests[] = {{"blocks", test_blocks, PRECISION_F32, true, "decoder.in"},
                                           {"mid", test_mid, PRECISION_F32, true, "decoder.in"},
                                           {"decoder", test_decoder, PRECISION_F32, true, "decoder.in"},
                                           {"places", test_places, PRECISION_F32, false, "decoder.in"},
                                           {"tiled", test_tiled, PRECISION_F32, false, "decoder.in"}};

const struct suite blocks_vae = {"vae", tests, COUNT_OF(tests), tolerances, gpu_tolerances};
