/* Tests Qwen-Image's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "test/lib/block_runner_mmdit.h"
#include "test/lib/suites.h"

static const struct tolerance tolerances[] = {
    {"block.temb", 1.51e-6, 4.5e-6},  {"rope", 1.1e-9, 1e-8},
    {"embed.text", 9.89e-8, 3e-7},    {"embed.image", 6e-8, 2e-7},
    {"block.dual", 2.25e-7, 7e-7},    {"block.last", 1.76e-7, 5.5e-7},
    {"block.final", 1.23e-7, 4e-7},   {"block.final_small", 1.28e-7, 4e-7},
    {"block.velocity", 7e-7, 2.1e-6}, {0},
};

/* Sets the conditioning rows to the reference's: the row of the timestep, and the row of timestep 0 if
 * reference images use it. */
static void put_conditioning(const struct golden *g, struct block_runner *b) {
    struct tensor both = golden(g, "block.temb");
    runner_put(runner_state(b, "condition"), tensor_slice(both, 0, 1));
    if (both.dim[0] > 1 && b->lane.reference[0].rank)
        runner_put(runner_state(b, "clean_condition"), tensor_slice(both, 1, 1));
}

/* Opens case 0 after its first step, with the text embedded and the RoPE tables computed. */
static struct block_runner *open_case(const struct golden *g) {
    struct block_runner *b = runner_open_mmdit(g, mmdit_lane(g));
    runner_run(b, runner_block(b, "txt_in"), 0);
    put_conditioning(g, b);
    return b;
}

static void test_conditioning(const struct golden *g) {
    struct block_runner *b = runner_open_mmdit(g, mmdit_lane(g));
    struct tensor both = golden(g, "block.temb");
    runner_run(b, runner_block(b, "time_text_embed"), mmdit_timestep(g));
    expect_close(g, "block.temb", runner_state(b, "condition"), both.data);
    if (both.dim[0] > 1)
        expect_close(g, "block.temb", runner_state(b, "clean_condition"), tensor_slice(both, 1, 1).data);
    runner_close(b);
}

static void test_embedders(const struct golden *g) {
    mmdit_expect_embedders(g, open_case(g), "img_in");
}

static void visit_layer(const struct golden *g, struct block_runner *b, const char *name) {
    mmdit_run(b, "transformer_blocks.%d", (int)json_integer_value(mmdit_expectation(g, name)));
}

static void test_dual(const struct golden *g) {
    struct block_runner *b = open_case(g);
    runner_put(runner_state(b, "tokens"), golden(g, "block.dual.in"));
    visit_layer(g, b, "dual");
    expect_close(g, "block.dual", runner_state(b, "tokens"), golden(g, "block.dual.out").data);
    runner_close(b);
}

/* Tests the last block, of which only the rows of the generated image are used. */
static void test_last(const struct golden *g) {
    struct block_runner *b = open_case(g);
    struct tensor out = golden_single(g, "block.last.out");
    runner_put(runner_state(b, "tokens"), golden(g, "block.last.in"));
    visit_layer(g, b, "last");
    struct tensor drawn = tensor_slice(runner_image_rows(b, runner_state(b, "tokens")), 0, out.dim[0]);
    expect_close(g, "block.last", drawn, out.data);
    runner_close(b);
}

static void test_transformer(const struct golden *g) {
    mmdit_expect_velocity(g, mmdit_lane(g), "block.velocity");
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, "block.dual.in"},
    {"embedders", test_embedders, PRECISION_F32, false, "block.dual.in"},
    {"dual", test_dual, PRECISION_F32, false, "block.dual.in"},
    {"last", test_last, PRECISION_F32, false, "block.dual.in"},
    {"final", mmdit_expect_final, PRECISION_F32, false, "block.dual.in"},
    {"transformer", test_transformer, PRECISION_F32, false, "block.dual.in"},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, "block.dual.in"},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, "block.dual.in"},
    {"dual, bf16", test_dual, PRECISION_BF16, true, "block.dual.in"},
    {"last, bf16", test_last, PRECISION_BF16, true, "block.dual.in"},
    {"final, bf16", mmdit_expect_final, PRECISION_BF16, true, "block.dual.in"},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, "block.dual.in"},
};

const struct suite blocks_qwen_image = {"qwen_image", tests, COUNT_OF(tests), tolerances, tolerances};
