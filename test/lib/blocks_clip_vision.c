/* Tests the blocks of CLIP's vision encoder one by one, each on the reference's input; see blocks_flux.c. */
#include "engine/pictures/resample.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct tolerance tolerances[] = {
    {"vision.norm", 4.7e-7, 1.4e-6}, {"block.vision", 7.81e-8, 2.4e-7}, {"seen", 5.05e-7, 1.5e-6}, {0}};

/* Opens a runner on the reference's normalised input image [3, Y, X]; NULL if the fixture has none. */
static struct block_runner *open_picture(const struct golden *g, size_t one, const char *which) {
    int slot = recipe_slot(g->model->recipe, FAMILY_VISION);
    const struct component *c = &g->model->component[slot];
    char name[64];
    snprintf(name, sizeof name, "case%zu.pixels.%s", one, which);
    if (!has_golden(g, name)) return NULL;
    struct tensor planes = golden(g, name);
    int32_t pixels = planes.dim[1] * planes.dim[2];
    struct tensor picture = test_tensor(DTYPE_F32, 3, (int32_t[]){planes.dim[1], planes.dim[2], 3});
    for (int32_t i = 0; i < 3 * pixels; i++)
        ((float *)picture.data)[i] = ((float *)planes.data)[i % 3 * pixels + i / 3];
    struct vision_grid grid = c->family->lanes.vision_grid(c, planes.dim[2], planes.dim[1]);
    assert_int_equal(grid.width, planes.dim[2]);
    assert_int_equal(grid.height, planes.dim[1]);
    int32_t rows[] = {grid.columns * grid.rows, c->text_columns};
    return runner_open(g, slot, (struct lane){.picture = picture, .text = test_tensor(DTYPE_F32, 2, rows)});
}

static void test_patches(const struct golden *g) {
    struct block_runner *b = open_picture(g, 0, "init");
    runner_run(b, runner_block(b, "embeddings"), 0);
    expect_close(g, "vision.norm", runner_state(b, "tokens"), golden(g, "vision.norm.out").data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    const json_t *about = json_object_get(json_object_get(g->expect, "blocks"), "block.vision");
    struct block_runner *b = open_picture(g, 0, "init");
    char name[64];
    snprintf(name, sizeof name, "layers.%d", (int)json_integer_value(json_object_get(about, "layer")));
    runner_put(runner_state(b, "tokens"), golden(g, "block.vision.in"));
    runner_run(b, runner_block(b, name), 0);
    expect_close(g, "block.vision", runner_state(b, "tokens"), golden(g, "block.vision.out").data);
    runner_close(b);
}

static void cut_out(const struct component *c, struct tensor picture, struct vision_grid *grid,
                    uint8_t **made) {
    struct picture_size from = {picture.dim[1], picture.dim[0]};
    *grid = c->family->lanes.vision_grid(c, from.width, from.height);
    struct picture_part part = {.by = TORCH_BICUBIC,
                                .whole = {grid->whole.width, grid->whole.height},
                                .x = grid->whole.left,
                                .y = grid->whole.top,
                                .size = {grid->width, grid->height}};
    size_t pitch = 3 * (size_t)part.size.width;
    void *memory = malloc(resample_bytes(from, &part));
    struct resampling r;
    *made = malloc(pitch * (size_t)part.size.height);
    assert_true(memory && *made);
    resample_begin(&r, from, &part, memory, *made, pitch);
    for (int32_t y = 0; y < from.height; y++)
        resample_push_row(&r, (const uint8_t *)picture.data + 3 * y * from.width);
    assert_true(resample_done(&r));
    free(memory);
}

/* Compares the pixels with the reference's image processor before normalisation; bits must be equal. */
static void test_pixels(const struct golden *g) {
    const struct component *c = &g->model->component[recipe_slot(g->model->recipe, FAMILY_VISION)];
    struct tensor planes = golden(g, "case0.pixels.init");
    struct vision_grid grid;
    uint8_t *made;
    int differing = 0, n = planes.dim[1] * planes.dim[2];
    cut_out(c, golden(g, "case0.picture.init"), &grid, &made);
    assert_int_equal(grid.width * grid.height, n);
    for (int i = 0; i < 3 * n; i++) {
        int colour = i % 3;
        float value = ((const float *)planes.data)[colour * n + i / 3];
        value = value * c->picture_format.deviation[colour] + c->picture_format.mean[colour];
        differing += made[i] != (int)lrintf(value * 255);
    }
    free(made);
    assert_int_equal(differing, 0);
}

static void test_vision_tokens(const struct golden *g) {
    static const char *const pictures[] = {"init", "last"};
    size_t n = json_array_size(json_object_get(g->expect, "cases"));
    for (size_t k = 0; k < 2 * n; k++) {
        struct block_runner *b = open_picture(g, k / 2, pictures[k % 2]);
        char name[64], detail[64];
        if (!b) continue;
        snprintf(name, sizeof name, "case%zu.seen.%s", k / 2, pictures[k % 2]);
        snprintf(detail, sizeof detail, "case %zu %s", k / 2, pictures[k % 2]);
        runner_run_all(b, 0);
        struct tensor truth = golden(g, name);
        assert_int_equal(tensor_elements(&truth), tensor_elements(&b->lane.text));
        expect_values(g, "seen", detail, b->lane.text.data, truth.data, tensor_elements(&truth));
        runner_close(b);
    }
}

static const struct golden_test tests[] = {
    {"pixels", test_pixels, PRECISION_F32, false, "case0.pixels.init"},
    {"patches", test_patches, PRECISION_F32, false, "block.vision.in"},
    {"layer", test_layer, PRECISION_F32, false, "block.vision.in"},
    {"vision tokens", test_vision_tokens, PRECISION_F32, false, "case0.seen.init"},
    {"patches, bf16", test_patches, PRECISION_BF16, true, "block.vision.in"},
    {"layer, bf16", test_layer, PRECISION_BF16, true, "block.vision.in"},
    {"vision tokens, bf16", test_vision_tokens, PRECISION_BF16, true, "case0.seen.init"},
};

const struct suite blocks_clip_vision = {"clip_vision", tests, COUNT_OF(tests), tolerances, tolerances};
