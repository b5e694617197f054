/* Qwen-Image's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "test/lib/bench.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"block.temb", 1.51e-6, 4.5e-6},  {"rope", 1.1e-9, 1e-8},
    {"embed.text", 9.89e-8, 3e-7},    {"embed.image", 6e-8, 2e-7},
    {"block.dual", 2.25e-7, 7e-7},    {"block.last", 1.76e-7, 5.5e-7},
    {"block.final", 1.23e-7, 4e-7},   {"block.final_small", 1.28e-7, 4e-7},
    {"block.velocity", 7e-7, 2.1e-6}, {0},
};

static int about(const struct golden *g, const char *name) {
    const json_t *block = json_object_get(json_object_get(g->expect, "blocks"), "block");
    return (int)json_integer_value(json_object_get(block, name));
}

static struct lane lane_of(const struct golden *g) {
    char name[64];
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, about(g, "text_tokens")),
                        .latent = golden_single(g, "case0.latent_001")};
    lane.prediction = test_tensor(DTYPE_F32, 3, lane.latent.dim);
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) {
        snprintf(name, sizeof name, "case0.encoded.reference_%03d", i);
        if (has_golden(g, name)) lane.reference[i] = golden_single(g, name);
    }
    return lane;
}

static struct bench *open_lane(const struct golden *g, struct lane lane) {
    return bench_open(g, recipe_slot(g->model->recipe, FAMILY_DENOISER), lane);
}

static float timestep_of(const struct golden *g) {
    return *(float *)golden(g, "block.t").data;
}

/* The reference's conditioning: of its timestep and, where references are modulated apart, of 0. */
static void put_conditioning(const struct golden *g, struct bench *b) {
    struct tensor both = golden(g, "block.temb");
    bench_put(bench_state(b, "condition"), tensor_slice(both, 0, 1));
    if (both.dim[0] > 1 && b->lane.reference[0].rank)
        bench_put(bench_state(b, "still_condition"), tensor_slice(both, 1, 1));
}

/* Case 0 after its first step, the text embedded: rope tables are there. */
static struct bench *open_case(const struct golden *g) {
    struct bench *b = open_lane(g, lane_of(g));
    bench_visit(b, bench_block(b, "txt_in"), 0);
    put_conditioning(g, b);
    return b;
}

static void test_conditioning(const struct golden *g) {
    struct bench *b = open_lane(g, lane_of(g));
    struct tensor both = golden(g, "block.temb");
    bench_visit(b, bench_block(b, "time_text_embed"), timestep_of(g));
    expect_close(g, "block.temb", bench_state(b, "condition"), both.data);
    if (both.dim[0] > 1)
        expect_close(g, "block.temb", bench_state(b, "still_condition"), tensor_slice(both, 1, 1).data);
    bench_close(b);
}

static void test_embedders(const struct golden *g) {
    struct bench *b = open_case(g);
    struct tensor tokens = bench_state(b, "tokens");
    expect_close(g, "rope", bench_state(b, "rope"), golden(g, "rope").data);
    bench_visit(b, bench_block(b, "img_in"), timestep_of(g));
    expect_close(g, "embed.text", bench_text_rows(b, tokens), golden(g, "embed.text.out").data);
    expect_close(g, "embed.image", bench_picture_rows(b, tokens), golden(g, "embed.image.out").data);
    bench_close(b);
}

/* What a block makes of the state, from the tensor that goes in; its modulation too. */
static void visit_numbered(struct bench *b, int number) {
    char name[64], modulation[80];
    snprintf(name, sizeof name, "transformer_blocks.%d", number);
    snprintf(modulation, sizeof modulation, "%s.modulation", name);
    bench_visit(b, bench_block(b, modulation), 0);
    bench_visit(b, bench_block(b, name), 0);
}

static void test_dual(const struct golden *g) {
    struct bench *b = open_case(g);
    bench_put(bench_state(b, "tokens"), golden(g, "block.dual.in"));
    visit_numbered(b, about(g, "dual"));
    expect_close(g, "block.dual", bench_state(b, "tokens"), golden(g, "block.dual.out").data);
    bench_close(b);
}

/* Of the last block only the drawn rows are of use. */
static void test_last(const struct golden *g) {
    struct bench *b = open_case(g);
    struct tensor out = golden_single(g, "block.last.out");
    bench_put(bench_state(b, "tokens"), golden(g, "block.last.in"));
    visit_numbered(b, about(g, "last"));
    struct tensor drawn = tensor_slice(bench_picture_rows(b, bench_state(b, "tokens")), 0, out.dim[0]);
    expect_close(g, "block.last", drawn, out.data);
    bench_close(b);
}

/* The picture is as wide as there are rows. */
static void final_layer(const struct golden *g, const char *name) {
    char in_name[64], out_name[64];
    snprintf(in_name, sizeof in_name, "%s.in", name);
    snprintf(out_name, sizeof out_name, "%s.out", name);
    struct tensor in = golden_single(g, in_name), out = golden_single(g, out_name);
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, 1)};
    int32_t latent[] = {out.dim[1] / (BENCH_PATCH * BENCH_PATCH), BENCH_PATCH, BENCH_PATCH * in.dim[0]};
    lane.latent = lane.prediction = test_tensor(DTYPE_F32, 3, latent);
    struct bench *b = open_lane(g, lane);
    put_conditioning(g, b);
    bench_put(bench_picture_rows(b, bench_state(b, "tokens")), in);
    bench_visit(b, bench_block(b, "norm_out"), 0);
    bench_visit(b, bench_block(b, "proj_out"), 0);
    expect_close(g, name, bench_patches(b, b->lane.prediction), out.data);
    bench_close(b);
}

static void test_final(const struct golden *g) {
    final_layer(g, "block.final");
    final_layer(g, "block.final_small");
}

static void test_transformer(const struct golden *g) {
    struct bench *b = open_lane(g, lane_of(g));
    bench_all(b, timestep_of(g));
    expect_close(g, "block.velocity", bench_patches(b, b->lane.prediction), golden(g, "block.velocity").data);
    bench_close(b);
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, "block.dual.in"},
    {"embedders", test_embedders, PRECISION_F32, false, "block.dual.in"},
    {"dual", test_dual, PRECISION_F32, false, "block.dual.in"},
    {"last", test_last, PRECISION_F32, false, "block.dual.in"},
    {"final", test_final, PRECISION_F32, false, "block.dual.in"},
    {"transformer", test_transformer, PRECISION_F32, false, "block.dual.in"},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, "block.dual.in"},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, "block.dual.in"},
    {"dual, bf16", test_dual, PRECISION_BF16, true, "block.dual.in"},
    {"last, bf16", test_last, PRECISION_BF16, true, "block.dual.in"},
    {"final, bf16", test_final, PRECISION_BF16, true, "block.dual.in"},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, "block.dual.in"},
};

const struct suite blocks_qwen_image = {"qwen_image", tests, COUNT_OF(tests), tolerances, tolerances};
