/* Tests the VAE encoder on data of test/golden/vae_encoder.py: its moments and the influence of every
 * weight. A large and a small full-frame buffer, on the device and on the host, and images of several sizes
 * in one stage give the same bits. Its blocks are also tested on the data of whole pipelines. */
#include "engine/base/random.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "models/vae_blocks.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"
#include "test/lib/vae_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"moments", 9.05e-7, 2.7e-6},   {"encoder", 3.49e-7, 1.1e-6},           {"encoder.resnet", 2.7e-7, 9e-7},
    {"encoder.mid", 1.73e-7, 6e-7}, {"encoder.downsampler", 1.36e-7, 5e-7}, {0}};
/* Measured under emulation: a GPU rounds operands of convolutions to TF32, and operands of attention and of
 * its matrix products to bf16. */
static const struct tolerance gpu_tolerances[] = {{"moments", 2.89e-3, 8e-3},
                                                  {"encoder", 1.19e-3, 4e-3},
                                                  {"encoder.resnet", 5.88e-4, 1.8e-3},
                                                  {"encoder.mid", 1.65e-3, 5e-3},
                                                  {"encoder.downsampler", 2.55e-4, 8e-4},
                                                  {0}};

static int encoder_slot(const struct golden *g) {
    return g->model->recipe ? recipe_slot(g->model->recipe, FAMILY_ENCODER) : ONLY_SLOT;
}

void vae_encoder_open(struct golden *g) {
    golden_open_component(g, (struct component){.family = &family_vae_kl_encoder}, true);
    assert_true(!family_vae_kl.files.probe(&g->model->component[ONLY_SLOT].index));
}

void vae_encoder_close(struct golden *g) {
    golden_close_component(g);
}

static const struct component *encoder_of(const struct golden *g) {
    return &g->model->component[encoder_slot(g)];
}

static struct lane lane_of(const struct golden *g, struct tensor picture, bool tiled) {
    const struct component *c = encoder_of(g);
    int32_t factor = c->pixel_factor;
    int32_t dim[3] = {picture.dim[0] / factor, picture.dim[1] / factor, 2 * c->latent_channels};
    return (struct lane){.picture = picture, .moments = test_tensor(DTYPE_F32, 3, dim), .tiled = tiled};
}

static struct lane golden_lane(const struct golden *g, int i) {
    char name[32];
    snprintf(name, sizeof name, "picture%d", i);
    return lane_of(g, golden(g, name), false);
}

/* Returns a lane with a random image of Y x X latent pixels. */
static struct lane random_lane(const struct golden *g, int32_t Y, int32_t X, bool tiled) {
    int32_t factor = encoder_of(g)->pixel_factor;
    uint64_t random = (uint64_t)Y + 1;
    struct tensor picture = test_tensor(DTYPE_F32, 3, (int32_t[]){Y * factor, X * factor, 3});
    for (int64_t i = 0; i < tensor_elements(&picture); i++)
        ((float *)picture.data)[i] = (float)((double)random_below(&random, 256) / 127.5 - 1);
    return lane_of(g, picture, tiled);
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&b));
}

static void test_moments(const struct golden *g) {
    const struct component *c = encoder_of(g);
    assert_true(c->latent_format.n == 1 && *c->latent_format.scale == 0.7f && *c->latent_format.shift > 0 &&
                *c->latent_format.shift < 0.2f);
    for (int i = 0; i < 2; i++) {
        char name[32];
        struct block_runner *b = runner_open(g, encoder_slot(g), golden_lane(g, i));
        runner_run_all(b, 0);
        snprintf(name, sizeof name, "moments%d", i);
        struct tensor truth = golden(g, name);
        assert_int_equal(tensor_elements(&b->lane.moments), tensor_elements(&truth));
        expect_close(g, "moments", b->lane.moments, truth.data);
        runner_close(b);
    }
}

static struct block_runner *open_parts(const struct golden *g) {
    struct tensor picture = vae_channels_last(golden_single(g, "encoder.in"));
    return runner_open(g, encoder_slot(g), lane_of(g, picture, false));
}

/* Returns a block's level. Block numbers run through all levels: a level's resnets, then its down-sampler. */
static int level_of(const struct block_runner *b, const struct block *block) {
    int number = 0;
    sscanf(block->name, "down_blocks.%d", &number);
    return number / (b->component->dims[RESNETS] + 1);
}

static void one_block(const struct golden *g, const char *name) {
    struct block_runner *b = open_parts(g);
    const struct vae_state *s = b->lane.state;
    json_t *about = json_object_get(json_object_get(g->expect, "blocks"), name);
    const struct block *block = vae_block_of(b, json_string_value(json_object_get(about, "module")));
    vae_put_picture(b, vae_golden_picture(g, name, "in"), level_of(b, block));
    runner_run(b, block, 0);
    vae_expect_picture(g, name, s->full_frame.picture);
    runner_close(b);
}

static void test_parts(const struct golden *g) {
    struct block_runner *b = open_parts(g);
    const struct vae_state *s = b->lane.state;
    one_block(g, "encoder.resnet");
    one_block(g, "encoder.downsampler");
    vae_put_picture(b, vae_golden_picture(g, "encoder.mid", "in"), b->component->dims[LEVELS] - 1);
    runner_run(b, runner_block(b, "mid_block.resnets.0"), 0);
    runner_run(b, runner_block(b, "mid_block.attentions.0"), 0);
    runner_run(b, runner_block(b, "mid_block.resnets.1"), 0);
    vae_expect_picture(g, "encoder.mid", s->full_frame.picture);
    runner_run_all(b, 0);
    vae_expect_picture(g, "encoder", b->lane.moments);
    runner_close(b);
}

/* False for attention's key bias, which cannot change the result: it adds the same to all scores of a query,
 * and softmax cancels the addend. */
static bool matters(const struct block *block, int weight) {
    return block->tensors[weight].offset != offsetof(struct attention_weights, k.bias) ||
           strcmp(block->kind->name, "attention");
}

static void test_influence(const struct golden *g) {
    const double LEAST = 1e-3, NOTHING = 1e-6;
    struct block_runner *b = runner_open(g, encoder_slot(g), golden_lane(g, 0));
    double least = INFINITY;
    int n = 0;
    runner_run_all(b, 0);
    struct tensor truth = test_copy(b->lane.moments);
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        assert_int_equal(block->n_segments, block->n_tensors);
        for (int k = 0; k < block->n_tensors; k++, n++) {
            runner_run_all_without(b, i, k);
            double moved = distance(b->lane.moments.data, truth.data, tensor_elements(&truth));
            bool right = matters(block, k) ? moved > LEAST : moved < NOTHING;
            if (!right) fail_msg("%s: zeroing tensor %d changes the moments by %.2e", block->name, k, moved);
            if (matters(block, k) && moved < least) least = moved;
        }
    }
    printf("  %-10s %d tensors zeroed in turn; the smallest change of the moments is %.2e\n", g->name, n,
           least);
    assert_int_equal(n, b->component->index.n_entries);
    runner_close(b);
}

/* Encodes a random image with a large or a small full-frame buffer. The full-frame buffer starts as NaN; its
 * size goes to *bytes. */
static struct tensor encode_in(const struct golden *g, int32_t Y, int32_t X, bool tiled, uint64_t *bytes) {
    struct block_runner *b = runner_open(g, encoder_slot(g), random_lane(g, Y, X, tiled));
    *bytes = b->state.bytes;
    memset(b->state.base, 0xff, b->state.bytes);
    runner_run_all(b, 0);
    runner_close(b);
    return b->lane.moments;
}

/* Tiled encoding gives the same bits, and takes less memory if images are many times as high as a band. */
static void test_tiled(const struct golden *g) {
    static const int32_t sizes[][2] = {{1, 1}, {7, 3}, {1, 33}, {37, 50}, {70, 31}, {9, 130}, {66, 66}};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        uint64_t untiled_bytes, tiled_bytes;
        void *mark = golden_state.memory;
        int32_t Y = sizes[i][0], X = sizes[i][1];
        struct tensor kept = encode_in(g, Y, X, false, &untiled_bytes),
                      tiled = encode_in(g, Y, X, true, &tiled_bytes);
        assert_same(kept, tiled);
        printf("  %-10s full-frame buffer for moments of %dx%d: %llu bytes, tiled %llu\n", g->name, Y, X,
               (unsigned long long)untiled_bytes, (unsigned long long)tiled_bytes);
        assert_true(tiled_bytes <= untiled_bytes);
        if (encoder_of(g)->pixel_factor == 8 && Y * X >= 37 * 50)
            assert_true(tiled_bytes * 10 < untiled_bytes * 9);
        test_memory_free_to(mark);
    }
}

enum { LANES = 3 };

/* Runs a stage with images of several sizes. Each result must be bit-identical to that of a stage with this
 * image alone. */
static void run_lanes(struct vae_run *r, struct device *device, const struct lane *alone, bool on_host) {
    const uint64_t plenty = (uint64_t)1 << 40;
    plan_solve(&r->need, plenty, plenty, &r->plan);
    if (on_host) plan_solve(&r->need, plenty, r->plan.vram_least_bytes, &r->plan);
    if (device->memory) assert_int_equal(r->plan.stage[0].pictures_on_host, on_host);
    for (int i = 0; i < LANES; i++)
        memset(r->stage.lanes[i].moments.data, 0, (size_t)tensor_bytes(&alone[i].moments));
    vae_run_execute(r);
    for (int i = 0; i < LANES; i++) assert_same(r->stage.lanes[i].moments, alone[i].moments);
}

static void test_lanes(const struct golden *g) {
    static const int32_t sizes[LANES][2] = {{3, 40}, {33, 47}, {8, 5}};
    static struct vae_run r;
    struct lane alone[LANES], lanes[LANES];
    struct error e = {0};
    struct device *paced = paced_open(&golden_state.sys, golden_state.device, 0, &e);
    assert_ok(&e);
    for (int tiled = 0; tiled < 2; tiled++) {
        for (int i = 0; i < LANES; i++) {
            struct block_runner *b =
                runner_open(g, encoder_slot(g), random_lane(g, sizes[i][0], sizes[i][1], tiled));
            runner_run_all(b, 0);
            runner_close(b);
            alone[i] = lanes[i] = b->lane;
            lanes[i].moments = test_copy(b->lane.moments);
        }
        for (int separate = 0; separate < 2; separate++) {
            struct device *device = separate ? paced : golden_state.device;
            vae_run_measure(&r, encoder_of(g), lanes, LANES, device);
            if (!separate) r.residents.device = NULL;
            for (int on_host = 0; on_host <= separate; on_host++) run_lanes(&r, device, alone, on_host);
            visit_list_destroy(&r.visits);
        }
    }
    paced->destroy(paced);
}

static const struct golden_test tests[] = {{"moments", test_moments, PRECISION_F32, true, "picture0"},
                                           {"influence", test_influence, PRECISION_F32, false, "picture0"},
                                           {"parts", test_parts, PRECISION_F32, true, "encoder.in"},
                                           {"tiled", test_tiled, PRECISION_F32, false, NULL},
                                           {"lanes", test_lanes, PRECISION_F32, false, NULL}};

const struct suite blocks_vae_encoder = {"vae_encoder", tests, COUNT_OF(tests), tolerances, gpu_tolerances};
