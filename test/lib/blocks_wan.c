/* Tests WAN's blocks one by one, each on the reference's input; see blocks_flux.c. Whole forward passes run
 * at two timesteps, and with a second expert. */
#include "models/models.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

/* The tolerance of blocks is larger: about 480 of the 512 key and value rows of the padded text are equal,
 * and sums of equal numbers are all rounded in one direction. */
static const struct tolerance tolerances[] = {
    {"block.e", 4.75e-6, 1.5e-5},
    {"block.e6", 5.18e-8, 1.6e-7},
    {"rope", 0, 5e-8},
    {"embed.text", 1.19e-7, 3.6e-7},
    {"embed.seen", 1.68e-7, 5e-7},
    {"embed.image", 4.68e-8, 1.4e-7},
    {"block.layer", 3.13e-6, 9e-6},
    {"block.final", 1.39e-7, 4.2e-7},
    {"block.final_small", 1.58e-7, 4.8e-7},
    {"block.velocity", 3.7e-6, 1.1e-5},
    {"transformer", 4.01e-6, 1.2e-5},
    {0},
};

enum { TEXT_ROWS = 512 };

static const json_t *about(const struct golden *g, const char *name) {
    return json_object_get(json_object_get(g->expect, "blocks"), name);
}

static int number_in(const json_t *object, const char *key) {
    return (int)json_integer_value(json_object_get(object, key));
}

/* Returns the prompt's rows, padded with zeros to TEXT_ROWS. */
static struct tensor padded_text(const struct golden *g) {
    struct tensor hidden = golden(g, "case0.hidden.cond");
    struct tensor text = test_tensor(DTYPE_F32, 2, (int32_t[]){TEXT_ROWS, hidden.dim[1]});
    memcpy(text.data, hidden.data, (size_t)tensor_bytes(&hidden));
    return text;
}

/* Returns the vision encoder's rows of the first and the last frame; rank 0 if the case has none. */
static struct tensor vision_rows(const struct golden *g) {
    if (!has_golden(g, "case0.seen.init")) return (struct tensor){0};
    struct tensor first = golden(g, "case0.seen.init"), last = {0};
    if (has_golden(g, "case0.seen.last")) last = golden(g, "case0.seen.last");
    int32_t rows = first.dim[0];
    struct tensor all = test_tensor(DTYPE_F32, 2, (int32_t[]){last.rank ? 2 * rows : rows, first.dim[1]});
    runner_put(tensor_slice(all, 0, rows), first);
    if (last.rank) runner_put(tensor_slice(all, rows, rows), last);
    return all;
}

/* Replaces the first frame of a latent [C, F, Y, X]. */
static void put_frame(struct tensor latent, struct tensor frame) {
    int32_t pixels = latent.dim[2] * latent.dim[3];
    for (int32_t c = 0; c < latent.dim[0]; c++)
        memcpy((float *)latent.data + (int64_t)c * latent.dim[1] * pixels, (float *)frame.data + c * pixels,
               sizeof(float) * (size_t)pixels);
}

/* Returns the lane of case 0 with the given latent, text and image rows, and the case's concat channels. */
static struct lane lane_at(const struct golden *g, const char *latent) {
    struct lane lane = {
        .text = padded_text(g), .image = vision_rows(g), .latent = test_copy(golden_single(g, latent))};
    lane.n_clean_frames = number_in(about(g, "block"), "given");
    if (lane.n_clean_frames) put_frame(lane.latent, golden(g, "case0.encoded.init"));
    if (has_golden(g, "case0.concat")) lane.concat = golden(g, "case0.concat");
    lane.prediction = test_tensor(DTYPE_F32, 4, lane.latent.dim);
    return lane;
}

static int slot_of(const struct golden *g, const char *folder) {
    const struct slot *slots = g->model->recipe->slot;
    int slot = 0;
    while (slots[slot].family != &family_wan || (folder && strcmp(slots[slot].folder, folder))) slot++;
    return slot;
}

static struct block_runner *open_lane(const struct golden *g, struct lane lane) {
    return runner_open(g, slot_of(g, NULL), lane);
}

static struct block_runner *open_case(const struct golden *g) {
    return open_lane(g, lane_at(g, "case0.latent_001"));
}

static float timestep_of(const struct golden *g, const char *name) {
    return *(float *)golden(g, name).data;
}

/* Sets the conditioning rows to the reference's: the row of timestep 0 if there are clean frames, then the
 * row of the timestep. */
static void put_conditioning(const struct golden *g, struct block_runner *b) {
    struct tensor e = golden(g, "block.e"), e6 = golden(g, "block.e6");
    int32_t last = e.dim[0] - 1;
    runner_put(runner_state(b, "condition"), tensor_slice(e, last, 1));
    runner_put(runner_state(b, "modulation"), tensor_slice(e6, last, 1));
    if (!b->lane.n_clean_frames) return;
    runner_put(runner_state(b, "clean_condition"), tensor_slice(e, 0, 1));
    runner_put(runner_state(b, "clean_modulation"), tensor_slice(e6, 0, 1));
}

static void expect_rows(const struct golden *g, const char *name, struct tensor rows, const char *truth) {
    struct tensor all = golden(g, truth);
    expect_close(g, name, rows, tensor_slice(all, all.dim[0] - 1, 1).data);
}

static void test_conditioning(const struct golden *g) {
    struct block_runner *b = open_case(g);
    float t = timestep_of(g, "block.t");
    runner_run(b, runner_block(b, "condition_embedder.time_embedder"), t);
    expect_rows(g, "block.e", runner_state(b, "condition"), "block.e");
    if (b->lane.n_clean_frames)
        expect_close(g, "block.e", runner_state(b, "clean_condition"), golden(g, "block.e").data);
    put_conditioning(g, b);
    runner_run(b, runner_block(b, "condition_embedder.time_proj"), t);
    expect_rows(g, "block.e6", runner_state(b, "modulation"), "block.e6");
    if (b->lane.n_clean_frames)
        expect_close(g, "block.e6", runner_state(b, "clean_modulation"), golden(g, "block.e6").data);
    runner_close(b);
}

/* Runs the text embedder on padded text and, if the lane has image rows, the image embedder. */
static void run_embedders(struct block_runner *b) {
    runner_run(b, runner_block(b, "condition_embedder.text_embedder"), 0);
    if (b->lane.image.rank) runner_run(b, runner_block(b, "condition_embedder.image_embedder"), 0);
}

static void test_embedders(const struct golden *g) {
    struct block_runner *b = open_case(g);
    struct tensor text = golden(g, "embed.text.out");
    int32_t last = text.dim[0] - 1;
    run_embedders(b);
    struct tensor ours = runner_state(b, "text");
    expect_close(g, "rope", runner_state(b, "rope"), golden(g, "rope").data);
    expect_close(g, "embed.text", tensor_slice(ours, 0, last + 1), text.data);
    expect_close(g, "embed.text", tensor_slice(ours, TEXT_ROWS - 1, 1), tensor_slice(text, last, 1).data);
    if (b->lane.image.rank)
        expect_close(g, "embed.seen", runner_state(b, "image"), golden(g, "embed.seen.out").data);
    runner_run(b, runner_block(b, "patch_embedding"), 0);
    expect_close(g, "embed.image", runner_state(b, "tokens"), golden(g, "embed.image.out").data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    char name[64], cross[80];
    struct block_runner *b = open_case(g);
    snprintf(name, sizeof name, "blocks.%d", number_in(about(g, "block"), "layer"));
    snprintf(cross, sizeof cross, "%s.seen", name);
    run_embedders(b);
    put_conditioning(g, b);
    runner_run(b, runner_block(b, cross), 0);
    runner_put(runner_state(b, "tokens"), golden(g, "block.layer.in"));
    runner_run(b, runner_block(b, name), 0);
    expect_close(g, "block.layer", runner_state(b, "tokens"), golden(g, "block.layer.out").data);
    runner_close(b);
}

/* Returns the patches of the prediction (row, column, channel), the layout of the last linear layer. */
static struct tensor patches_of(struct block_runner *b) {
    struct tensor planes = latent_planes(b->lane.prediction);
    int32_t rows = planes.dim[1] / RUNNER_PATCH * (planes.dim[2] / RUNNER_PATCH);
    struct tensor patches =
        test_tensor(DTYPE_F32, 2, (int32_t[]){rows, RUNNER_PATCH * RUNNER_PATCH * planes.dim[0]});
    op_patchify(&b->context, patches, planes,
                (struct patches){.side = RUNNER_PATCH, .order = PATCH_CHANNELS_LAST});
    assert_ok(&b->error);
    return patches;
}

static void expect_final(const struct golden *g, struct block_runner *b, const char *name) {
    char in[64], out[64];
    snprintf(in, sizeof in, "%s.in", name);
    snprintf(out, sizeof out, "%s.out", name);
    put_conditioning(g, b);
    runner_put(runner_state(b, "tokens"), golden(g, in));
    runner_run(b, runner_block(b, "proj_out"), 0);
    expect_close(g, name, patches_of(b), golden(g, out).data);
    runner_close(b);
}

/* Compares the final layers on usual inputs and on inputs times 0.01. The small inputs form a video
 * of one frame and one row of patches. */
static void test_final(const struct golden *g) {
    struct tensor small = golden_single(g, "block.final_small.in");
    struct lane lane = lane_at(g, "case0.latent_001");
    int32_t dim[] = {lane.latent.dim[0], 1, RUNNER_PATCH, RUNNER_PATCH * small.dim[0]};
    lane.latent = test_tensor(DTYPE_F32, 4, dim);
    lane.prediction = test_tensor(DTYPE_F32, 4, dim);
    lane.n_clean_frames = 0;
    expect_final(g, open_case(g), "block.final");
    expect_final(g, open_lane(g, lane), "block.final_small");
}

static void expect_velocity(const struct golden *g, struct block_runner *b, float timestep, const char *name,
                            const char *detail, const char *truth) {
    runner_run_all(b, timestep);
    struct tensor out = golden(g, truth);
    assert_int_equal(tensor_elements(&out), tensor_elements(&b->lane.prediction));
    expect_values(g, name, detail, b->lane.prediction.data, out.data, tensor_elements(&out));
    runner_close(b);
}

static void test_transformer(const struct golden *g) {
    json_t *call;
    size_t i;
    expect_velocity(g, open_case(g), timestep_of(g, "block.t"), "block.velocity", "", "block.velocity");
    json_array_foreach(about(g, "transformer"), i, call) {
        const char *name = json_string_value(json_object_get(call, "name"));
        const char *model = json_string_value(json_object_get(call, "model"));
        char latent[64], t[64], out[64];
        snprintf(latent, sizeof latent, "case0.%s", json_string_value(json_object_get(call, "latent")));
        snprintf(t, sizeof t, "%s.t", name);
        snprintf(out, sizeof out, "%s.out", name);
        struct block_runner *b = runner_open(g, slot_of(g, model), lane_at(g, latent));
        expect_velocity(g, b, timestep_of(g, t), "transformer", strchr(name, '.') + 1, out);
    }
}

static const struct golden_test tests[] = {
    {"conditioning", test_conditioning, PRECISION_F32, false, NULL},
    {"embedders", test_embedders, PRECISION_F32, false, NULL},
    {"layer", test_layer, PRECISION_F32, false, NULL},
    {"final", test_final, PRECISION_F32, false, NULL},
    {"transformer", test_transformer, PRECISION_F32, false, NULL},
    {"conditioning, bf16", test_conditioning, PRECISION_BF16, true, NULL},
    {"embedders, bf16", test_embedders, PRECISION_BF16, true, NULL},
    {"layer, bf16", test_layer, PRECISION_BF16, true, NULL},
    {"final, bf16", test_final, PRECISION_BF16, true, NULL},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, NULL},
};

const struct suite blocks_wan = {"wan", tests, COUNT_OF(tests), tolerances, tolerances};
