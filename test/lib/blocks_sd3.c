/* Tests Stable Diffusion 3's blocks one by one, each on the reference's input; see blocks_flux.c. Whole
 * forward passes run at two timesteps, and once without the layers that skip-layer guidance skips. */
#include "test/lib/block_runner_mmdit.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

/* Tolerances, measured with AVX-512 and AVX2 on the committed reference data only. */
static const struct tolerance tolerances[] = {
    {"block.temb", 2.07e-6, 6.2e-6},      {"positions", 0, 0},
    {"embed.text", 6.84e-8, 2.1e-7},      {"embed.image", 6.92e-8, 2.1e-7},
    {"block.joint", 2.12e-7, 6.4e-7},     {"block.second", 1.19e-7, 6e-7},
    {"block.last", 1.35e-7, 5e-7},        {"block.final", 1.21e-7, 4e-7},
    {"block.final_small", 1.61e-7, 5e-7}, {"block.velocity", 9.98e-7, 3e-6},
    {"transformer", 3.86e-6, 1e-5},       {0},
};

static struct lane lane_of(const struct golden *g) {
    struct lane lane = mmdit_lane(g);
    struct tensor pooled = golden(g, "case0.pooled.cond");
    lane.pooled = tensor_reshape(pooled, 2, (int32_t[]){1, pooled.dim[0]});
    return lane;
}

/* Opens case 0 after its first step, with the reference's conditioning. */
static struct block_runner *open_case(const struct golden *g) {
    struct block_runner *b = runner_open_mmdit(g, lane_of(g));
    runner_put(runner_state(b, "condition"), golden(g, "block.temb"));
    return b;
}

static void test_conditioning(const struct golden *g) {
    struct block_runner *b = runner_open_mmdit(g, lane_of(g));
    runner_run(b, runner_block(b, "time_text_embed"), mmdit_timestep(g));
    expect_close(g, "block.temb", runner_state(b, "condition"), golden(g, "block.temb").data);
    runner_close(b);
}

/* Tests the embedders. Position embeddings must equal rows of the table bit for bit. */
static void test_embedders(const struct golden *g) {
    struct block_runner *b = open_case(g);
    struct tensor tokens = runner_state(b, "tokens");
    runner_run(b, runner_block(b, "context_embedder"), 0);
    runner_read_table(b, 0);
    expect_close(g, "positions", runner_state(b, "positions"), golden(g, "positions").data);
    runner_run(b, runner_block(b, "pos_embed.proj"), mmdit_timestep(g));
    expect_close(g, "embed.text", runner_text_rows(b, tokens), golden(g, "embed.text.out").data);
    expect_close(g, "embed.image", runner_image_rows(b, tokens), golden(g, "embed.image.out").data);
    runner_close(b);
}

/* Tests one transformer block. For the last block only the image rows are compared. */
static void expect_block(const struct golden *g, const char *kind, bool last) {
    char name[64], in[80], out[80];
    snprintf(name, sizeof name, "block.%s", kind);
    snprintf(in, sizeof in, "%s.in", name);
    snprintf(out, sizeof out, "%s.out", name);
    if (!has_golden(g, in)) return;
    struct block_runner *b = open_case(g);
    struct tensor tokens = runner_state(b, "tokens");
    runner_put(tokens, golden(g, in));
    mmdit_run(b, "transformer_blocks.%d", (int)json_integer_value(mmdit_expectation(g, kind)));
    expect_close(g, name, last ? runner_image_rows(b, tokens) : tokens, golden(g, out).data);
    runner_close(b);
}

static void test_layers(const struct golden *g) {
    expect_block(g, "joint", false);
    expect_block(g, "second", false);
    expect_block(g, "last", true);
}

/* Runs one forward pass of the whole transformer, over all text tokens, with the inputs that expect.json
 * lists. */
static void expect_call(const struct golden *g, const json_t *call) {
    const char *name = json_string_value(json_object_get(call, "name"));
    const json_t *skipped = json_object_get(call, "left_out");
    char latent[64], t[64], out[64];
    snprintf(latent, sizeof latent, "case0.%s", json_string_value(json_object_get(call, "latent")));
    snprintf(t, sizeof t, "%s.t", name);
    snprintf(out, sizeof out, "%s.out", name);
    struct lane lane = lane_of(g);
    int n = (int)json_array_size(skipped), *numbers = test_memory(sizeof *numbers * (size_t)(n + 1));
    for (int i = 0; i < n; i++) numbers[i] = (int)json_integer_value(json_array_get(skipped, (size_t)i));
    lane.text = golden(g, "case0.hidden.cond");
    lane.latent = golden_single(g, latent);
    lane.skip_layers = numbers;
    lane.n_skip_layers = n;
    struct block_runner *b = runner_open_mmdit(g, lane);
    runner_run_all(b, *(float *)golden(g, t).data);
    struct tensor truth = golden(g, out);
    assert_int_equal(tensor_elements(&truth), tensor_elements(&b->lane.prediction));
    expect_values(g, "transformer", strchr(name, '.') + 1, b->lane.prediction.data, truth.data,
                  tensor_elements(&truth));
    runner_close(b);
}

static void test_transformer(const struct golden *g) {
    json_t *call;
    size_t i;
    mmdit_expect_velocity(g, lane_of(g), "block.velocity");
    json_array_foreach(json_object_get(json_object_get(g->expect, "blocks"), "transformer"), i, call)
        expect_call(g, call);
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, NULL},
    {"embedders", test_embedders, PRECISION_F32, false, NULL},
    {"layers", test_layers, PRECISION_F32, false, NULL},
    {"final", mmdit_expect_final, PRECISION_F32, false, NULL},
    {"transformer", test_transformer, PRECISION_F32, false, NULL},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, NULL},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, NULL},
    {"layers, bf16", test_layers, PRECISION_BF16, true, NULL},
    {"final, bf16", mmdit_expect_final, PRECISION_BF16, true, NULL},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, NULL},
};

const struct suite blocks_sd3 = {"sd3", tests, COUNT_OF(tests), tolerances, tolerances};
