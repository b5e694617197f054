#include "test/lib/block_runner_mmdit.h"

#include <stdio.h>

const json_t *mmdit_expectation(const struct golden *g, const char *name) {
    return json_object_get(json_object_get(json_object_get(g->expect, "blocks"), "block"), name);
}

struct lane mmdit_lane(const struct golden *g) {
    char name[64];
    int32_t text = (int32_t)json_integer_value(mmdit_expectation(g, "text_tokens"));
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, text),
                        .latent = golden_single(g, "case0.latent_001")};
    lane.prediction = test_tensor(DTYPE_F32, 3, lane.latent.dim);
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) {
        snprintf(name, sizeof name, "case0.encoded.reference_%03d", i);
        if (has_golden(g, name)) lane.reference[i] = golden_single(g, name);
    }
    return lane;
}

float mmdit_timestep(const struct golden *g) {
    return *(float *)golden(g, "block.t").data;
}

struct block_runner *runner_open_mmdit(const struct golden *g, struct lane lane) {
    return runner_open(g, recipe_slot(g->model->recipe, FAMILY_DENOISER), lane);
}

void mmdit_run(struct block_runner *b, const char *format, int number) {
    char name[64], modulation[80];
    snprintf(name, sizeof name, format, number);
    snprintf(modulation, sizeof modulation, "%s.modulation", name);
    runner_run(b, runner_block(b, modulation), 0);
    runner_run(b, runner_block(b, name), 0);
}

void mmdit_expect_embedders(const struct golden *g, struct block_runner *b, const char *embedder) {
    struct tensor tokens = runner_state(b, "tokens");
    expect_close(g, "rope", runner_state(b, "rope"), golden(g, "rope").data);
    runner_run(b, runner_block(b, embedder), mmdit_timestep(g));
    expect_close(g, "embed.text", runner_text_rows(b, tokens), golden(g, "embed.text.out").data);
    expect_close(g, "embed.image", runner_image_rows(b, tokens), golden(g, "embed.image.out").data);
    runner_close(b);
}

/* Tests the final layers. The test image has as many tokens as the reference tensor has rows. */
static void expect_final(const struct golden *g, const char *name) {
    char in_name[64], out_name[64];
    snprintf(in_name, sizeof in_name, "%s.in", name);
    snprintf(out_name, sizeof out_name, "%s.out", name);
    struct tensor in = golden_single(g, in_name), out = golden_single(g, out_name);
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, 1)};
    int32_t latent[] = {out.dim[1] / (RUNNER_PATCH * RUNNER_PATCH), RUNNER_PATCH, RUNNER_PATCH * in.dim[0]};
    lane.latent = lane.prediction = test_tensor(DTYPE_F32, 3, latent);
    struct block_runner *b = runner_open_mmdit(g, lane);
    runner_put(runner_state(b, "condition"), tensor_slice(golden(g, "block.temb"), 0, 1));
    runner_put(runner_image_rows(b, runner_state(b, "tokens")), in);
    runner_run(b, runner_block(b, "norm_out"), 0);
    runner_run(b, runner_block(b, "proj_out"), 0);
    expect_close(g, name, runner_patches(b, b->lane.prediction), out.data);
    runner_close(b);
}

void mmdit_expect_final(const struct golden *g) {
    expect_final(g, "block.final");
    expect_final(g, "block.final_small");
}

void mmdit_expect_velocity(const struct golden *g, struct lane lane, const char *tolerance) {
    struct block_runner *b = runner_open_mmdit(g, lane);
    runner_run_all(b, mmdit_timestep(g));
    expect_close(g, tolerance, runner_patches(b, b->lane.prediction), golden(g, "block.velocity").data);
    runner_close(b);
}
