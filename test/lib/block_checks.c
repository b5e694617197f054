/* Checks of block tests that are not comparisons with reference tensors: the influence of each weight, and
 * equal bits wherever a VAE's full-frame buffer lies and however small it is. */
#include "test/lib/block_tests.h"
#include "test/lib/golden_run.h"
#include "test/lib/vae_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Compares op_timestep with the reference's frequencies, for all timesteps of a reference tensor. */
static void check_timestep_embedding(struct block_test *t, const json_t *step) {
    struct tensor times = golden(t->golden, text_of(step, "timestep_embedding"));
    struct tensor truth = golden(t->golden, text_of(step, "equals"));
    struct tensor ours = test_tensor(DTYPE_F32, 2, truth.dim);
    for (int32_t i = 0; i < times.dim[0]; i++)
        op_timestep(&t->runner->context, tensor_slice(ours, i, 1), ((float *)times.data)[i], TIMESTEP_USUAL);
    expect_close(t->golden, text_of(step, "as"), ours, truth.data);
}

/* Changes the lane's latent, which is an input of the VAE, to the denoiser's scale. */
static void unscale_latent(struct block_test *t, const json_t *step) {
    const struct latent_format *format = &t->runner->component->latent_format;
    struct tensor latent = t->runner->lane.latent;
    int64_t pixels = tensor_elements(&latent) / latent.dim[0];
    (void)step;
    for (int64_t i = 0; i < tensor_elements(&latent); i++) {
        int64_t c = format->n > 1 ? i / pixels : 0;
        float *value = (float *)latent.data + i;
        *value = (float)(((double)*value - (double)format->shift[c]) * (double)format->scale[c]);
    }
}

/* The sum of the outputs' relative distances from `truth`, their values with all weights. */
static double distance_of_outputs(const struct block_test *t, const json_t *outputs,
                                  const struct tensor *truth) {
    const json_t *output;
    double moved = 0;
    size_t i;
    json_array_foreach(outputs, i, output) {
        struct tensor now = block_test_tensor(t, output);
        moved += distance(now.data, truth[i].data, tensor_elements(&now));
    }
    return moved;
}

static bool has_effect(const char *weight, const json_t *without_effect) {
    const json_t *part;
    size_t i;
    json_array_foreach(without_effect, i, part) if (strstr(weight, json_string_value(part))) return false;
    return true;
}

/* Zeroes each weight in turn. Each must change the outputs, except attention's key bias: it adds the same to
 * all scores of a query, and softmax cancels the addend. */
static void check_influence(struct block_test *t, const json_t *step) {
    const double LEAST = 1e-3, NOTHING = 1e-6;
    enum { OUTPUTS_MAX = 2 };
    const json_t *outputs = json_object_get(step, "influence"), *output;
    struct block_runner *b = t->runner;
    struct tensor truth[OUTPUTS_MAX];
    double least = INFINITY;
    int n = 0;
    size_t o;
    assert_true(json_array_size(outputs) <= OUTPUTS_MAX);
    runner_run_all(b);
    json_array_foreach(outputs, o, output) truth[o] = block_test_tensor(t, output);
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        assert_int_equal(block->n_segments, block->n_tensors);
        for (int k = 0; k < block->n_tensors; k++, n++) {
            void *mark = golden_state.memory;
            const char *weight = block->tensors[k].entry->name;
            bool matters = has_effect(weight, json_object_get(step, "without_effect"));
            b->zeroed = &block->segments[k];
            runner_run_all(b);
            double moved = distance_of_outputs(t, outputs, truth);
            if (matters ? !(moved > LEAST) : !(moved < NOTHING))
                fail_msg("%s: zeroing %s changes the output by %.2e", block->name, weight, moved);
            if (matters) least = fmin(least, moved);
            test_memory_free_to(mark);
        }
    }
    b->zeroed = NULL;
    printf("  %-13s %d weights zeroed in turn; the smallest change of the output is %.2e\n", t->golden->name,
           n, least);
    assert_int_equal(n, number_of(step, "weights"));
}

static struct tensor output_of(const struct lane *lane) {
    return lane->moments.rank ? lane->moments : lane->picture;
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_int_equal(tensor_bytes(&a), tensor_bytes(&b));
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&b));
}

/* Runs a VAE through the executor over lanes that have been computed alone; each gets the same bits again,
 * with the full-frame buffer on another device, on the host, and on the only device. */
static void expect_same_in_places(const struct component *c, struct lane *lanes, int n) {
    enum { ELSEWHERE, ON_HOST, ON_ONLY_DEVICE, PLACES, LANES_MAX = 4 };
    static struct vae_run r;
    const uint64_t plenty = (uint64_t)1 << 40;
    struct tensor want[LANES_MAX];
    struct error e = {0};
    struct device *paced = paced_open(&golden_state.sys, golden_state.device, 0, &e);
    assert_ok(&e);
    assert_true(n <= LANES_MAX);
    for (int i = 0; i < n; i++) want[i] = test_copy(output_of(&lanes[i]));
    for (int place = 0; place < PLACES; place++) {
        vae_run_measure(&r, c, lanes, n, place == ON_ONLY_DEVICE ? golden_state.device : paced, 0);
        if (place == ON_ONLY_DEVICE) r.residents.device = NULL;
        plan_solve(&r.need, plenty, plenty, &r.plan);
        if (place == ON_HOST) plan_solve(&r.need, plenty, r.plan.vram_least_bytes, &r.plan);
        if (place != ON_ONLY_DEVICE) assert_int_equal(r.plan.stage[0].pictures_on_host, place == ON_HOST);
        for (int i = 0; i < n; i++) memset(output_of(&lanes[i]).data, 0, (size_t)tensor_bytes(&want[i]));
        vae_run_execute(&r);
        for (int i = 0; i < n; i++) assert_same(output_of(&lanes[i]), want[i]);
        visit_list_destroy(&r.visits);
    }
    paced->destroy(paced);
}

static void check_places(struct block_test *t, const json_t *step) {
    (void)step;
    runner_run_all(t->runner);
    expect_same_in_places(t->runner->component, &t->runner->lane, 1);
}

/* Returns a lane with a random image of a decoder or an encoder. Y, X: size in latent pixels. */
static struct lane random_lane(const struct component *c, int32_t Y, int32_t X, bool tiled) {
    int32_t C = c->latent_channels, factor = c->pixel_factor;
    int32_t picture[3] = {Y * factor, X * factor, c->picture_channels ? c->picture_channels : 3};
    uint64_t seed = (uint64_t)Y + 1;
    if (c->family->kind == FAMILY_ENCODER)
        return (struct lane){.picture = random_tensor(3, picture, 1, seed),
                             .moments = test_tensor(DTYPE_F32, 3, (int32_t[]){Y, X, 2 * C}),
                             .tiled = tiled};
    return (struct lane){.latent = random_tensor(3, (int32_t[]){C, Y, X}, 2, seed),
                         .picture = test_tensor(DTYPE_F32, 3, picture),
                         .tiled = tiled};
}

/* Decodes or encodes a random image of Y x X latent pixels; state memory starts as NaN. *bytes gets the size
 * of the full-frame buffer. */
static struct lane run_random(const struct golden *g, int slot, int32_t Y, int32_t X, bool tiled,
                              uint64_t *bytes) {
    struct block_runner *b = runner_open(g, slot, random_lane(&g->model->component[slot], Y, X, tiled));
    *bytes = b->state.bytes;
    memset(b->state.base, 0xff, b->state.bytes);
    runner_run_all(b);
    assert_ok(&b->error);
    runner_close(b);
    return b->lane;
}

/* VAE tiling gives the same bits, and takes less memory if images are many times as high as a band (and
 * `saves`). least: side of the smallest image, in latent pixels. */
static void check_tiled(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][2] = {{0, 0}, {7, 3}, {1, 33}, {37, 50}, {70, 31}, {9, 130}, {66, 66}};
    int slot = block_test_slot(t->golden, text_of(step, "tiled"), NULL, 0);
    int32_t least = number_of(step, "least");
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        uint64_t untiled_bytes, tiled_bytes;
        void *mark = golden_state.memory;
        int32_t Y = i ? sizes[i][0] : least, X = i ? sizes[i][1] : least;
        struct lane kept = run_random(t->golden, slot, Y, X, false, &untiled_bytes),
                    tiled = run_random(t->golden, slot, Y, X, true, &tiled_bytes);
        assert_same(output_of(&kept), output_of(&tiled));
        printf("  %-10s full-frame buffer of %dx%d latent pixels: %llu bytes, tiled %llu\n", t->golden->name,
               Y, X, (unsigned long long)untiled_bytes, (unsigned long long)tiled_bytes);
        assert_true(tiled_bytes <= untiled_bytes);
        if (json_is_true(json_object_get(step, "saves")) && Y * X >= 37 * 50)
            assert_true(tiled_bytes * 10 < untiled_bytes * 9);
        test_memory_free_to(mark);
    }
}

/* A stage with images of several sizes gives each the bits of a run of this image alone. */
static void check_lanes(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][2] = {{3, 40}, {33, 47}, {8, 5}};
    int slot = block_test_slot(t->golden, text_of(step, "lanes_in_one_stage"), NULL, 0);
    for (int tiled = 0; tiled < 2; tiled++) {
        struct lane lanes[COUNT_OF(sizes)];
        uint64_t bytes;
        for (int i = 0; i < COUNT_OF(sizes); i++)
            lanes[i] = run_random(t->golden, slot, sizes[i][0], sizes[i][1], tiled, &bytes);
        expect_same_in_places(&t->golden->model->component[slot], lanes, COUNT_OF(sizes));
    }
}

const struct block_check block_checks[] = {{"timestep_embedding", check_timestep_embedding},
                                           {"unscale_latent", unscale_latent},
                                           {"influence", check_influence},
                                           {"places", check_places},
                                           {"tiled", check_tiled},
                                           {"lanes_in_one_stage", check_lanes},
                                           {"token_rows_in_wider_tensor", check_clip_rows_in_wider_tensor},
                                           {"visits_of_clip_skip", check_clip_skip_visits},
                                           {"two_hidden_states", check_two_hidden_states},
                                           {"resized_pixels", check_resized_pixels},
                                           {"whole_picture", check_whole_picture},
                                           {"whole_video", check_whole_video},
                                           {"bands", check_bands},
                                           {NULL, NULL}};
