/* Tests the tiny image decoder (TAESD) on data of test/golden/taesd.py: its images and the influence
 * of every weight. Its blocks give the same bits as its operators run one after another over whole images.
 * This holds for many bands too, and for the full-frame buffer on the device or on the host. */
#include "engine/base/random.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"
#include "test/lib/vae_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tolerances[] = {{"picture", 2.28e-7, 7e-7}, {0}};
/* Measured under emulation: GPU convolutions round their operands to TF32. */
static const struct tolerance gpu_tolerances[] = {{"picture", 2.19e-4, 7e-4}, {0}};

void taesd_open(struct golden *g) {
    golden_open_component(g, (struct component){.family = &family_taesd},
                          strcmp(g->name, "taesd/authors") != 0);
    for (const struct family *const *f = families; *f; f++)
        assert_int_equal((*f)->files.probe(&g->model->component[ONLY_SLOT].index), *f == &family_taesd);
}

void taesd_close(struct golden *g) {
    golden_close_component(g);
}

static const struct component *taesd_of(const struct golden *g) {
    return &g->model->component[ONLY_SLOT];
}

static struct lane lane_of(struct tensor latent) {
    int32_t Y = 8 * latent.dim[1], X = 8 * latent.dim[2];
    return (struct lane){.latent = latent, .picture = test_tensor(DTYPE_F32, 3, (int32_t[]){Y, X, 3})};
}

static struct lane golden_lane(const struct golden *g, int i) {
    char name[32];
    snprintf(name, sizeof name, "latent%d", i);
    return lane_of(golden(g, name));
}

static struct lane random_lane(const struct golden *g, int32_t Y, int32_t X) {
    uint64_t random = (uint64_t)Y + 1;
    struct tensor latent = test_tensor(DTYPE_F32, 3, (int32_t[]){taesd_of(g)->latent_channels, Y, X});
    for (int64_t i = 0; i < tensor_elements(&latent); i++)
        ((float *)latent.data)[i] = (float)((double)random_below(&random, 8001) / 1000 - 4);
    return lane_of(latent);
}

static void test_picture(const struct golden *g) {
    const struct component *c = taesd_of(g);
    bool scaled = !strcmp(g->name, "taesd/bf16");
    assert_true(*c->latent_format.scale == (scaled ? 0.7f : 1) &&
                *c->latent_format.shift == (scaled ? 0.1f : 0));
    for (int i = 0; i < 2; i++) {
        char name[32];
        struct block_runner *b = runner_open(g, ONLY_SLOT, golden_lane(g, i));
        runner_run_all(b, 0);
        snprintf(name, sizeof name, "picture%d", i);
        struct tensor truth = golden(g, name), ours = lane_picture(&b->lane);
        for (int k = 0; k < 3; k++) assert_int_equal(ours.dim[k], truth.dim[k]);
        expect_close(g, "picture", ours, truth.data);
        runner_close(b);
    }
}

static void test_influence(const struct golden *g) {
    const double LEAST = 1e-3;
    struct block_runner *b = runner_open(g, ONLY_SLOT, golden_lane(g, 0));
    double least = INFINITY;
    int n = 0;
    runner_run_all(b, 0);
    struct tensor truth = test_copy(b->lane.picture);
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        assert_int_equal(block->n_segments, block->n_tensors);
        for (int k = 0; k < block->n_tensors; k++, n++) {
            runner_run_all_without(b, i, k);
            double moved = distance(b->lane.picture.data, truth.data, tensor_elements(&truth));
            if (!(moved > LEAST))
                fail_msg("%s: zeroing tensor %d changes the image by only %.2e", block->name, k, moved);
            least = fmin(least, moved);
        }
    }
    printf("  %-10s %d tensors zeroed in turn; the smallest change of the image is %.2e\n", g->name, n,
           least);
    assert_int_equal(n, b->component->index.n_entries);
    runner_close(b);
}

/* Reads a weight of layer `layer`, in diffusers' numbering, from the fixture's file. */
static struct tensor weight_of(const struct golden *g, int layer, const char *rest) {
    bool authors = !strcmp(g->name, "taesd/authors");
    char name[64];
    snprintf(name, sizeof name, "%s%d.%s", authors ? "" : "decoder.layers.", layer + authors, rest);
    return read_tensor(&taesd_of(g)->index, name);
}

static struct tensor whole_block(struct block_runner *b, const struct golden *g, int layer,
                                 struct tensor in) {
    static const char *const weights[] = {"conv.0.weight", "conv.2.weight", "conv.4.weight"};
    static const char *const biases[] = {"conv.0.bias", "conv.2.bias", "conv.4.bias"};
    struct tensor out = in;
    for (int i = 0; i < 3; i++)
        out = runner_convolve(b, out, weight_of(g, layer, weights[i]), weight_of(g, layer, biases[i]),
                              i == 2 ? in : (struct tensor){0}, 1, FINISH_RELU);
    return out;
}

/* Decodes layer by layer, each over the whole image. */
static struct tensor whole_decode(struct block_runner *b, const struct golden *g) {
    const struct tensor none = {0}, latent = b->lane.latent;
    const int32_t *dim = latent.dim;
    struct latent_format format = taesd_of(g)->latent_format;
    struct tensor planes = tensor_reshape(latent, 3, (int32_t[]){dim[0], dim[2], dim[3]});
    struct tensor at = test_tensor(DTYPE_F32, 3, (int32_t[]){dim[2], dim[3], dim[0]});
    format.limit = 3;
    op_latent_to_image(&b->context, at, planes, format);
    at = runner_convolve(b, at, weight_of(g, 0, "weight"), weight_of(g, 0, "bias"), none, 1, FINISH_RELU);
    for (int layer = 2; layer < 17; layer += 5) {
        for (int i = 0; i < 3; i++) at = whole_block(b, g, layer + i, at);
        at = runner_convolve(b, at, weight_of(g, layer + 4, "weight"), none, none, 2, FINISH_NONE);
    }
    at = whole_block(b, g, 17, at);
    return runner_convolve(b, at, weight_of(g, 18, "weight"), weight_of(g, 18, "bias"), none, 1,
                           FINISH_TO_SIGNED);
}

/* Blocks and whole-image operators give the same bits, although the full-frame buffer starts as NaN.
 * Depending on the image size there is one band, two or three bands in the last level (the last band is
 * short), or several bands in all levels. */
static void test_whole(const struct golden *g) {
    static const int32_t sizes[][2] = {{1, 1}, {2, 9}, {5, 120}, {8, 130}, {33, 31}, {4, 700}};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        void *mark = golden_state.memory;
        struct block_runner *b = runner_open(g, ONLY_SLOT, random_lane(g, sizes[i][0], sizes[i][1]));
        struct tensor whole = whole_decode(b, g);
        memset(b->state.base, 0xff, b->state.bytes);
        runner_run_all(b, 0);
        assert_ok(&b->error);
        assert_memory_equal(b->lane.picture.data, whole.data, (size_t)tensor_bytes(&whole));
        runner_close(b);
        test_memory_free_to(mark);
    }
}

static void test_places(const struct golden *g) {
    static struct vae_run r;
    const uint64_t plenty = (uint64_t)1 << 40;
    struct block_runner *b = runner_open(g, ONLY_SLOT, random_lane(g, 9, 40));
    runner_run_all(b, 0);
    struct tensor want = test_copy(b->lane.picture), picture = b->lane.picture;
    struct device *paced = paced_open(&golden_state.sys, b->eager.target, 0, &b->error);
    assert_ok(&b->error);
    vae_run_measure(&r, b->component, &b->lane, 1, paced);
    for (int host = 0; host < 2; host++) {
        plan_solve(&r.need, plenty, host ? r.plan.vram_least_bytes : plenty, &r.plan);
        assert_int_equal(r.plan.stage[0].pictures_on_host, host);
        memset(picture.data, 0, (size_t)tensor_bytes(&picture));
        vae_run_execute(&r);
        assert_memory_equal(picture.data, want.data, (size_t)tensor_bytes(&picture));
    }
    visit_list_destroy(&r.visits);
    paced->destroy(paced);
    runner_close(b);
}

static const struct golden_test tests[] = {{"picture", test_picture, PRECISION_F32, true, "latent0"},
                                           {"influence", test_influence, PRECISION_F32, false, "latent0"},
                                           {"whole", test_whole, PRECISION_F32, false, NULL},
                                           {"places", test_places, PRECISION_F32, false, NULL}};

const struct suite blocks_taesd = {"taesd", tests, COUNT_OF(tests), tolerances, gpu_tolerances};
