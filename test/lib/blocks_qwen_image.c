/* Qwen-Image's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "test/lib/bench_streams.h"
#include "test/lib/suites.h"

static const struct tolerance tolerances[] = {
    {"block.temb", 1.51e-6, 4.5e-6},  {"rope", 1.1e-9, 1e-8},
    {"embed.text", 9.89e-8, 3e-7},    {"embed.image", 6e-8, 2e-7},
    {"block.dual", 2.25e-7, 7e-7},    {"block.last", 1.76e-7, 5.5e-7},
    {"block.final", 1.23e-7, 4e-7},   {"block.final_small", 1.28e-7, 4e-7},
    {"block.velocity", 7e-7, 2.1e-6}, {0},
};

/* The reference's conditioning: of its timestep and, where references are modulated apart, of 0. */
static void put_conditioning(const struct golden *g, struct bench *b) {
    struct tensor both = golden(g, "block.temb");
    bench_put(bench_state(b, "condition"), tensor_slice(both, 0, 1));
    if (both.dim[0] > 1 && b->lane.reference[0].rank)
        bench_put(bench_state(b, "still_condition"), tensor_slice(both, 1, 1));
}

/* Case 0 after its first step, the text embedded: rope tables are there. */
static struct bench *open_case(const struct golden *g) {
    struct bench *b = bench_streams_open(g, streams_lane(g));
    bench_visit(b, bench_block(b, "txt_in"), 0);
    put_conditioning(g, b);
    return b;
}

static void test_conditioning(const struct golden *g) {
    struct bench *b = bench_streams_open(g, streams_lane(g));
    struct tensor both = golden(g, "block.temb");
    bench_visit(b, bench_block(b, "time_text_embed"), streams_timestep(g));
    expect_close(g, "block.temb", bench_state(b, "condition"), both.data);
    if (both.dim[0] > 1)
        expect_close(g, "block.temb", bench_state(b, "still_condition"), tensor_slice(both, 1, 1).data);
    bench_close(b);
}

static void test_embedders(const struct golden *g) {
    streams_expect_embedders(g, open_case(g), "img_in");
}

static void visit_layer(const struct golden *g, struct bench *b, const char *name) {
    streams_visit(b, "transformer_blocks.%d", (int)json_integer_value(streams_about(g, name)));
}

static void test_dual(const struct golden *g) {
    struct bench *b = open_case(g);
    bench_put(bench_state(b, "tokens"), golden(g, "block.dual.in"));
    visit_layer(g, b, "dual");
    expect_close(g, "block.dual", bench_state(b, "tokens"), golden(g, "block.dual.out").data);
    bench_close(b);
}

/* Of the last block only the drawn rows are of use. */
static void test_last(const struct golden *g) {
    struct bench *b = open_case(g);
    struct tensor out = golden_single(g, "block.last.out");
    bench_put(bench_state(b, "tokens"), golden(g, "block.last.in"));
    visit_layer(g, b, "last");
    struct tensor drawn = tensor_slice(bench_picture_rows(b, bench_state(b, "tokens")), 0, out.dim[0]);
    expect_close(g, "block.last", drawn, out.data);
    bench_close(b);
}

static void test_transformer(const struct golden *g) {
    streams_expect_velocity(g, streams_lane(g), "block.velocity");
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, "block.dual.in"},
    {"embedders", test_embedders, PRECISION_F32, false, "block.dual.in"},
    {"dual", test_dual, PRECISION_F32, false, "block.dual.in"},
    {"last", test_last, PRECISION_F32, false, "block.dual.in"},
    {"final", streams_expect_final, PRECISION_F32, false, "block.dual.in"},
    {"transformer", test_transformer, PRECISION_F32, false, "block.dual.in"},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, "block.dual.in"},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, "block.dual.in"},
    {"dual, bf16", test_dual, PRECISION_BF16, true, "block.dual.in"},
    {"last, bf16", test_last, PRECISION_BF16, true, "block.dual.in"},
    {"final, bf16", streams_expect_final, PRECISION_BF16, true, "block.dual.in"},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, "block.dual.in"},
};

const struct suite blocks_qwen_image = {"qwen_image", tests, COUNT_OF(tests), tolerances, tolerances};
