/* Tests Flux.1's blocks one by one, each on the reference's input, so that two errors cannot cancel.
 *
 * A block's input is in the family's lane state, whose tensors the family publishes by name. */
#include "test/lib/block_runner_mmdit.h"
#include "test/lib/suites.h"

#include <stdio.h>

static const struct tolerance tolerances[] = {
    {"block.temb", 5.23e-6, 1.6e-5},
    {"block.temb.far", 3.84e-5, 1.2e-4},
    {"rope", 1.13e-8, 4e-8},
    {"embed.text", 2.92e-8, 1e-7},
    {"embed.image", 3.9e-8, 1.2e-7},
    {"block.double", 1.59e-7, 5e-7},
    {"block.single", 1.23e-7, 4e-7},
    {"block.final", 1.52e-7, 5e-7},
    {"block.final_small", 1.72e-7, 5e-7},
    {"block.velocity", 2.43e-6, 7.5e-6},
    {"block.velocity.far", 2.02e-5, 6e-5},
    {0},
};

static struct lane lane_of(const struct golden *g) {
    struct lane lane = mmdit_lane(g);
    struct tensor pooled = golden(g, "case0.pooled.cond");
    lane.pooled = tensor_reshape(pooled, 2, (int32_t[]){1, pooled.dim[0]});
    lane.guidance = (float)json_number_value(mmdit_expectation(g, "guidance"));
    if (has_golden(g, "case0.control")) lane.concat = golden(g, "case0.control");
    return lane;
}

/* Opens case 0 after its first step, with the text embedded and the RoPE tables computed. */
static struct block_runner *open_case(const struct golden *g) {
    struct block_runner *b = runner_open_mmdit(g, lane_of(g));
    runner_run(b, runner_block(b, "context_embedder"), 0);
    return b;
}

/* Returns the tolerance's name: guidance above 10 has its own, larger tolerance.
 *
 * The guidance embedding takes angles of guidance * 1000 * frequency: a factor of 3500 for guidance 3.5, of
 * 30000 for guidance 30. 3 of PyTorch's 128 frequencies are an ulp off (its exp is). With the engine's
 * frequencies, PyTorch's conditioning vector changes by as much as engine and reference differ, within 5 %.
 */
static const char *by_guidance(const struct lane *lane, const char *name, const char *far) {
    return lane->guidance > 10 ? far : name;
}

static void test_conditioning(const struct golden *g) {
    struct block_runner *b = open_case(g);
    runner_run(b, runner_block(b, "conditioning"), mmdit_timestep(g));
    const char *name = by_guidance(&b->lane, "block.temb", "block.temb.far");
    expect_close(g, name, runner_state(b, "condition"), golden(g, "block.temb").data);
    runner_close(b);
}

static void test_embedders(const struct golden *g) {
    mmdit_expect_embedders(g, open_case(g), "x_embedder");
}

static void expect_block(const struct golden *g, const char *kind, const char *format) {
    char name[64], in[80], out[80];
    struct block_runner *b = open_case(g);
    snprintf(name, sizeof name, "block.%s", kind);
    snprintf(in, sizeof in, "%s.in", name);
    snprintf(out, sizeof out, "%s.out", name);
    runner_put(runner_state(b, "condition"), golden(g, "block.temb"));
    runner_put(runner_state(b, "tokens"), golden(g, in));
    mmdit_run(b, format, (int)json_integer_value(mmdit_expectation(g, kind)));
    expect_close(g, name, runner_state(b, "tokens"), golden(g, out).data);
    runner_close(b);
}

static void test_double(const struct golden *g) {
    expect_block(g, "double", "transformer_blocks.%d");
}

static void test_single(const struct golden *g) {
    expect_block(g, "single", "single_transformer_blocks.%d");
}

/* The diffusers transformer also returns rows for reference images; the test ignores these rows. */
static void test_transformer(const struct golden *g) {
    struct lane lane = lane_of(g);
    mmdit_expect_velocity(g, lane, by_guidance(&lane, "block.velocity", "block.velocity.far"));
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, "block.double.in"},
    {"embedders", test_embedders, PRECISION_F32, false, "block.double.in"},
    {"double", test_double, PRECISION_F32, false, "block.double.in"},
    {"single", test_single, PRECISION_F32, false, "block.double.in"},
    {"final", mmdit_expect_final, PRECISION_F32, false, "block.double.in"},
    {"transformer", test_transformer, PRECISION_F32, false, "block.double.in"},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, "block.double.in"},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, "block.double.in"},
    {"double, bf16", test_double, PRECISION_BF16, true, "block.double.in"},
    {"single, bf16", test_single, PRECISION_BF16, true, "block.double.in"},
    {"final, bf16", mmdit_expect_final, PRECISION_BF16, true, "block.double.in"},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, "block.double.in"},
};

const struct suite blocks_flux = {"flux", tests, COUNT_OF(tests), tolerances, tolerances};
