#include "test/lib/bench_streams.h"

#include <stdio.h>

const json_t *streams_about(const struct golden *g, const char *name) {
    return json_object_get(json_object_get(json_object_get(g->expect, "blocks"), "block"), name);
}

struct lane streams_lane(const struct golden *g) {
    char name[64];
    int32_t text = (int32_t)json_integer_value(streams_about(g, "text_tokens"));
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, text),
                        .latent = golden_single(g, "case0.latent_001")};
    lane.prediction = test_tensor(DTYPE_F32, 3, lane.latent.dim);
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) {
        snprintf(name, sizeof name, "case0.encoded.reference_%03d", i);
        if (has_golden(g, name)) lane.reference[i] = golden_single(g, name);
    }
    return lane;
}

float streams_timestep(const struct golden *g) {
    return *(float *)golden(g, "block.t").data;
}

struct bench *bench_streams_open(const struct golden *g, struct lane lane) {
    return bench_open(g, recipe_slot(g->model->recipe, FAMILY_DENOISER), lane);
}

void streams_visit(struct bench *b, const char *format, int number) {
    char name[64], modulation[80];
    snprintf(name, sizeof name, format, number);
    snprintf(modulation, sizeof modulation, "%s.modulation", name);
    bench_visit(b, bench_block(b, modulation), 0);
    bench_visit(b, bench_block(b, name), 0);
}

void streams_expect_embedders(const struct golden *g, struct bench *b, const char *embedder) {
    struct tensor tokens = bench_state(b, "tokens");
    expect_close(g, "rope", bench_state(b, "rope"), golden(g, "rope").data);
    bench_visit(b, bench_block(b, embedder), streams_timestep(g));
    expect_close(g, "embed.text", bench_text_rows(b, tokens), golden(g, "embed.text.out").data);
    expect_close(g, "embed.image", bench_picture_rows(b, tokens), golden(g, "embed.image.out").data);
    bench_close(b);
}

/* The last layer writes the drawn rows only, so here all rows of the tensor are drawn: the picture is as wide
 * as there are rows. */
static void expect_final(const struct golden *g, const char *name) {
    char in_name[64], out_name[64];
    snprintf(in_name, sizeof in_name, "%s.in", name);
    snprintf(out_name, sizeof out_name, "%s.out", name);
    struct tensor in = golden_single(g, in_name), out = golden_single(g, out_name);
    struct lane lane = {.text = tensor_slice(golden(g, "case0.hidden.cond"), 0, 1)};
    int32_t latent[] = {out.dim[1] / (BENCH_PATCH * BENCH_PATCH), BENCH_PATCH, BENCH_PATCH * in.dim[0]};
    lane.latent = lane.prediction = test_tensor(DTYPE_F32, 3, latent);
    struct bench *b = bench_streams_open(g, lane);
    bench_put(bench_state(b, "condition"), tensor_slice(golden(g, "block.temb"), 0, 1));
    bench_put(bench_picture_rows(b, bench_state(b, "tokens")), in);
    bench_visit(b, bench_block(b, "norm_out"), 0);
    bench_visit(b, bench_block(b, "proj_out"), 0);
    expect_close(g, name, bench_patches(b, b->lane.prediction), out.data);
    bench_close(b);
}

void streams_expect_final(const struct golden *g) {
    expect_final(g, "block.final");
    expect_final(g, "block.final_small");
}

void streams_expect_velocity(const struct golden *g, struct lane lane, const char *tolerance) {
    struct bench *b = bench_streams_open(g, lane);
    bench_all(b, streams_timestep(g));
    expect_close(g, tolerance, bench_patches(b, b->lane.prediction), golden(g, "block.velocity").data);
    bench_close(b);
}
