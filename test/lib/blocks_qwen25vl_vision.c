/* Tests the blocks of Qwen2.5-VL's vision encoder, each on the reference's input; see blocks_flux.c. */
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"tower.patches", 7.03e-7, 2.1e-6},
    {"tower.rope", 1.69e-8, 5e-8},
    {"block.tower", 1.56e-7, 4.7e-7},
    {"block.tower_full", 1.41e-7, 4.2e-7},
    {"tower.merger", 1.88e-7, 5.6e-7},
    {"seen", 8.48e-7, 2.5e-6},
    {0},
};

static int slot_of(const struct golden *g) {
    return recipe_slot(g->model->recipe, FAMILY_VISION);
}

/* Returns the image normalised as the family expects, at the encoder's input size. */
static struct tensor show(const struct component *c, struct tensor pixels) {
    struct tensor picture = test_tensor(DTYPE_F32, 3, pixels.dim);
    const struct picture_format *format = &c->picture_format;
    const uint8_t *from = pixels.data;
    float *to = picture.data;
    for (int64_t i = 0; i < tensor_elements(&pixels); i++)
        to[i] = ((float)from[i] - format->mean[i % 3] * 255) / (format->deviation[i % 3] * 255);
    return picture;
}

/* Opens a runner on reference image i of a case; NULL if there is none. */
static struct block_runner *open_picture(const struct golden *g, size_t one, int i) {
    const struct component *c = &g->model->component[slot_of(g)];
    char name[64];
    snprintf(name, sizeof name, "case%zu.pixels.reference_%03d", one, i);
    if (!has_golden(g, name)) return NULL;
    struct tensor pixels = golden(g, name);
    struct vision_grid grid = c->family->lanes.vision_grid(c, pixels.dim[1], pixels.dim[0]);
    assert_int_equal(grid.width, pixels.dim[1]);
    assert_int_equal(grid.height, pixels.dim[0]);
    int32_t rows[] = {grid.columns * grid.rows, c->text_columns};
    struct lane lane = {.picture = show(c, pixels), .text = test_tensor(DTYPE_F32, 2, rows)};
    return runner_open(g, slot_of(g), lane);
}

static void test_patches(const struct golden *g) {
    struct block_runner *b = open_picture(g, 0, 0);
    runner_run(b, runner_block(b, "patch_embed"), 0);
    expect_close(g, "tower.patches", runner_state(b, "tokens"), golden(g, "tower.patches.out").data);
    expect_close(g, "tower.rope", runner_state(b, "rope"), golden(g, "tower.rope").data);
    runner_close(b);
}

/* Tests one layer with window attention and one with full attention. */
static void test_layers(const struct golden *g) {
    static const char *const names[] = {"block.tower", "block.tower_full"};
    for (int i = 0; i < 2; i++) {
        const json_t *about = json_object_get(json_object_get(g->expect, "blocks"), names[i]);
        char in[64], out[64], block[64];
        snprintf(in, sizeof in, "%s.in", names[i]);
        snprintf(out, sizeof out, "%s.out", names[i]);
        snprintf(block, sizeof block, "blocks.%d", (int)json_integer_value(json_object_get(about, "layer")));
        struct block_runner *b = open_picture(g, 0, 0);
        runner_run(b, runner_block(b, "patch_embed"), 0);
        runner_put(runner_state(b, "tokens"), golden(g, in));
        runner_run(b, runner_block(b, block), 0);
        expect_close(g, names[i], runner_state(b, "tokens"), golden(g, out).data);
        runner_close(b);
    }
}

/* Compares the merger's rows in the reference's window order (in raster order: test_vision_tokens). */
static void test_merger(const struct golden *g) {
    struct block_runner *b = open_picture(g, 0, 0);
    struct tensor out = golden_single(g, "tower.merger.out");
    struct tensor merged = test_tensor(DTYPE_F32, 2, out.dim), rows = b->lane.text;
    const struct component *c = b->component;
    struct tensor pixels = golden(g, "case0.pixels.reference_000");
    struct vision_grid grid = c->family->lanes.vision_grid(c, pixels.dim[1], pixels.dim[0]);
    int32_t window =
        (int32_t)json_integer_value(json_object_get(json_object_get(g->expect, "model"), "tower_window")) /
        28;
    runner_put(runner_state(b, "tokens"), golden(g, "tower.merger.in"));
    runner_run(b, runner_block(b, "merger"), 0);
    op_patchify(&b->context, merged,
                tensor_reshape(rows, 3, (int32_t[]){grid.rows, grid.columns, rows.dim[1]}),
                (struct patches){.side = 1, .pixels = true, .token_order = {window, 0}});
    expect_close(g, "tower.merger", merged, out.data);
    runner_close(b);
}

static void test_vision_tokens(const struct golden *g) {
    size_t n = json_array_size(json_object_get(g->expect, "cases"));
    for (size_t one = 0; one < n; one++)
        for (int i = 0; i < LANE_REFERENCES_MAX; i++) {
            struct block_runner *b = open_picture(g, one, i);
            char name[64], detail[64];
            if (!b) break;
            snprintf(name, sizeof name, "case%zu.seen.reference_%03d", one, i);
            snprintf(detail, sizeof detail, "case %zu reference_%03d", one, i);
            for (int k = 0; k < b->component->n_blocks; k++) runner_run(b, &b->component->blocks[k], 0);
            struct tensor truth = golden(g, name);
            assert_int_equal(tensor_elements(&truth), tensor_elements(&b->lane.text));
            expect_values(g, "seen", detail, b->lane.text.data, truth.data, tensor_elements(&truth));
            runner_close(b);
        }
}

static const struct golden_test tests[] = {
    {"patches", test_patches, PRECISION_F32, false, "tower.patches.out"},
    {"layers", test_layers, PRECISION_F32, false, "block.tower.in"},
    {"merger", test_merger, PRECISION_F32, false, "tower.merger.in"},
    {"vision tokens", test_vision_tokens, PRECISION_F32, false, "case0.seen.reference_000"},
    {"patches, bf16", test_patches, PRECISION_BF16, true, "tower.patches.out"},
    {"layers, bf16", test_layers, PRECISION_BF16, true, "block.tower.in"},
    {"merger, bf16", test_merger, PRECISION_BF16, true, "tower.merger.in"},
    {"vision tokens, bf16", test_vision_tokens, PRECISION_BF16, true, "case0.seen.reference_000"},
};

const struct suite blocks_qwen25vl_vision = {"qwen25vl_vision", tests, COUNT_OF(tests), tolerances,
                                             tolerances};
