/* Tests Z-Image's blocks one by one, each on the reference's input, so that two errors cannot cancel.
 *
 * A block's input is in the family's lane state, whose tensors the family publishes by name. */
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"t_embedder.freq", 1.94e-6, 6e-6},       {"t_embedder.out", 1.77e-6, 6e-6},
    {"block.adaln_input", 4.69e-7, 1.5e-6},   {"rope.image", 2.5e-9, 2e-8},
    {"rope.caption", 3.73e-9, 2e-8},          {"embed.image.in", 0, 0},
    {"embed.image.out", 8.2e-8, 2.5e-7},      {"embed.caption.out", 1.21e-7, 4e-7},
    {"context_refiner.in", 8.4e-8, 3e-7},     {"block.context_refiner", 7.4e-7, 2.2e-6},
    {"block.noise_refiner", 4.84e-7, 1.5e-6}, {"block.layers", 1.68e-7, 5e-7},
    {"block.final", 2.96e-7, 9e-7},           {"block.final_small", 2.9e-7, 9e-7},
    {"transformer", 2.52e-6, 7.5e-6},         {0},
};

enum { PATCH_SIDE = 2 };

static int32_t n_caption_rows(const struct block_runner *b) {
    return runner_state(b, "caption").dim[0];
}

/* Returns the image rows, with their padding, of a state tensor that ends with the caption's rows. */
static struct tensor image_rows(const struct block_runner *b, const char *name) {
    struct tensor all = runner_state(b, name);
    return tensor_slice(all, 0, all.dim[0] - n_caption_rows(b));
}

static struct tensor caption_rows(const struct block_runner *b, const char *name) {
    struct tensor all = runner_state(b, name);
    return tensor_slice(all, all.dim[0] - n_caption_rows(b), n_caption_rows(b));
}

/* Sets a float in the settings, selected by the key of config.json. */
static void set_float(struct component *c, const char *key, float value) {
    const struct setting *s = c->family->config.settings;
    while (strcmp(s->keys[0], key)) s++;
    memcpy(c->settings + s->offset, &value, sizeof value);
}

static struct block_runner *open_lane(const struct golden *g, struct tensor text, struct tensor latent) {
    struct lane lane = {.text = text, .latent = latent, .prediction = test_tensor(DTYPE_F32, 3, latent.dim)};
    return runner_open(g, recipe_slot(g->model->recipe, FAMILY_DENOISER), lane);
}

/* Opens case 0 at step 1, with the caption embedded and the RoPE tables computed. */
static struct block_runner *open_case(const struct golden *g) {
    struct block_runner *b =
        open_lane(g, golden(g, "case0.hidden.cond"), golden_single(g, "case0.latent_001"));
    runner_run(b, runner_block(b, "cap_embedder"), 0);
    return b;
}

static float scalar(const struct golden *g, const char *name) {
    return *(float *)golden(g, name).data;
}

static void test_timestep(const struct golden *g) {
    struct block_runner *b = open_case(g);
    struct tensor in = golden(g, "t_embedder.in"), freq = golden(g, "t_embedder.freq"),
                  out = golden(g, "t_embedder.out");
    struct tensor ours = test_tensor(DTYPE_F32, 2, freq.dim), time = test_tensor(DTYPE_F32, 2, out.dim);
    struct component unscaled = *b->component;
    set_float(&unscaled, "t_scale", 1); /* the reference data has timesteps that are already scaled */
    runner_run(b, runner_block(b, "time"), scalar(g, "block.t"));
    expect_close(g, "block.adaln_input", runner_state(b, "time"), golden(g, "block.adaln_input").data);
    b->settings = unscaled.settings;
    for (int i = 0; i < in.dim[0]; i++) {
        float t = ((float *)in.data)[i];
        op_timestep(&b->context, tensor_slice(ours, i, 1), t, TIMESTEP_USUAL);
        runner_run(b, runner_block(b, "time"), t);
        runner_put(tensor_slice(time, i, 1), runner_state(b, "time"));
    }
    expect_close(g, "t_embedder.freq", ours, freq.data);
    expect_close(g, "t_embedder.out", time, out.data);
    runner_close(b);
}

static void test_caption(const struct golden *g) {
    struct block_runner *b = open_case(g);
    expect_close(g, "rope.image", image_rows(b, "rope"), golden(g, "rope.image").data);
    expect_close(g, "rope.caption", caption_rows(b, "rope"), golden(g, "rope.caption").data);
    /* Padding is compared only at the refiner's input: the reference's linear layer pads differently. */
    struct tensor text = tensor_slice(runner_state(b, "caption"), 0, b->lane.text.dim[0]);
    expect_close(g, "embed.caption.out", text, golden(g, "embed.caption.out").data);
    expect_close(g, "context_refiner.in", runner_state(b, "caption"),
                 golden(g, "block.context_refiner.0.in").data);
    runner_close(b);
}

static void test_patches(const struct golden *g) {
    struct block_runner *b = open_case(g);
    struct tensor latent = latent_planes(b->lane.latent), in = golden(g, "embed.image.in"),
                  out = golden(g, "embed.image.out");
    int32_t rows = latent.dim[1] / PATCH_SIDE * (latent.dim[2] / PATCH_SIDE);
    struct tensor patches = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, in.dim[1]});
    op_patchify(&b->context, patches, latent, (struct patches){.side = PATCH_SIDE});
    runner_run(b, runner_block(b, "embedder"), scalar(g, "block.t"));
    expect_close(g, "embed.image.in", patches, in.data);
    expect_close(g, "embed.image.out", tensor_slice(runner_state(b, "tokens"), 0, rows), out.data);
    runner_close(b);
}

static void test_refiners(const struct golden *g) {
    struct block_runner *b = open_case(g);
    runner_put(runner_state(b, "caption"), golden(g, "block.context_refiner.0.in"));
    runner_run(b, runner_block(b, "context_refiner.0"), 0);
    expect_close(g, "block.context_refiner", runner_state(b, "caption"),
                 golden(g, "block.context_refiner.0.out").data);
    runner_put(runner_state(b, "time"), golden(g, "block.adaln_input"));
    runner_put(image_rows(b, "tokens"), golden(g, "block.noise_refiner.1.in"));
    runner_run(b, runner_block(b, "noise_refiner.1.modulation"), 0);
    runner_run(b, runner_block(b, "noise_refiner.1"), 0);
    expect_close(g, "block.noise_refiner", image_rows(b, "tokens"),
                 golden(g, "block.noise_refiner.1.out").data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    struct block_runner *b = open_case(g);
    runner_put(runner_state(b, "time"), golden(g, "block.adaln_input"));
    runner_put(runner_state(b, "tokens"), golden(g, "block.layers.1.in"));
    runner_run(b, runner_block(b, "layers.1.modulation"), 0);
    runner_run(b, runner_block(b, "layers.1"), 0);
    expect_close(g, "block.layers", runner_state(b, "tokens"), golden(g, "block.layers.1.out").data);
    runner_close(b);
}

/* Returns a velocity as patch rows, like the reference's final layer, without the engine's change of sign. */
static struct tensor to_patches(struct tensor latent) {
    int32_t C = latent.dim[0], Y = latent.dim[1], X = latent.dim[2], P = PATCH_SIDE;
    struct tensor rows = test_tensor(DTYPE_F32, 2, (int32_t[]){Y / P * (X / P), P * P * C});
    float *to = rows.data;
    for (int32_t row = 0; row < rows.dim[0]; row++)
        for (int32_t i = 0; i < P * P; i++)
            for (int32_t c = 0; c < C; c++) {
                int32_t y = row / (X / P) * P + i / P, x = row % (X / P) * P + i % P;
                *to++ = -((float *)latent.data)[((int64_t)c * Y + y) * X + x];
            }
    return rows;
}

/* Tests the final layer. The test image has as many tokens as the reference tensor has rows. */
static void final_layer(const struct golden *g, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "%s.in", name);
    struct tensor in = golden_single(g, path);
    snprintf(path, sizeof path, "%s.out", name);
    struct tensor out = golden_single(g, path);
    int32_t latent[3] = {out.dim[1] / (PATCH_SIDE * PATCH_SIDE), PATCH_SIDE, PATCH_SIDE * in.dim[0]};
    struct block_runner *b =
        open_lane(g, tensor_slice(golden(g, "case0.hidden.cond"), 0, 1), test_tensor(DTYPE_F32, 3, latent));
    runner_put(runner_state(b, "time"), golden(g, "block.adaln_input"));
    runner_put(tensor_slice(runner_state(b, "tokens"), 0, in.dim[0]), in);
    runner_run(b, runner_block(b, "final_layer.modulation"), 0);
    runner_run(b, runner_block(b, "final_layer"), 0);
    expect_close(g, name, to_patches(latent_planes(b->lane.prediction)), out.data);
    runner_close(b);
}

static void test_final(const struct golden *g) {
    final_layer(g, "block.final");
    final_layer(g, "block.final_small");
}

static void negate(struct tensor t) {
    for (int64_t i = 0; i < tensor_elements(&t); i++) ((float *)t.data)[i] *= -1;
}

/* Compares whole forward passes at two timesteps and two sizes. */
static void test_transformer(const struct golden *g) {
    json_t *calls = json_object_get(g->expect, "transformer"), *call;
    size_t i;
    assert_true(json_array_size(calls) >= 4);
    json_array_foreach(calls, i, call) {
        const char *name = json_string_value(json_object_get(call, "name"));
        char in[64], t[64], out[64];
        snprintf(in, sizeof in, "%s.in", name);
        snprintf(t, sizeof t, "%s.t", name);
        snprintf(out, sizeof out, "%s.out", name);
        struct tensor text = golden(g, json_string_value(json_object_get(call, "caption")));
        struct block_runner *b = open_lane(g, text, golden(g, in));
        runner_run_all(b, scalar(g, t));
        struct tensor velocity = latent_planes(b->lane.prediction);
        /* The family returns the sampler's velocity, whose sign is opposite to that of the transformer's
         * output. */
        negate(velocity);
        expect_values(g, "transformer", strrchr(name, '.') + 1, velocity.data, golden(g, out).data,
                      tensor_elements(&velocity));
        runner_close(b);
    }
}

static const struct golden_test tests[] = {
    {"timestep", test_timestep, PRECISION_F32, false, "block.layers.1.in"},
    {"caption", test_caption, PRECISION_F32, false, "block.layers.1.in"},
    {"patches", test_patches, PRECISION_F32, false, "block.layers.1.in"},
    {"refiners", test_refiners, PRECISION_F32, false, "block.layers.1.in"},
    {"layer", test_layer, PRECISION_F32, false, "block.layers.1.in"},
    {"final", test_final, PRECISION_F32, false, "block.layers.1.in"},
    {"transformer", test_transformer, PRECISION_F32, false, "block.layers.1.in"},
    {"timestep, bf16", test_timestep, PRECISION_BF16, true, "block.layers.1.in"},
    {"caption, bf16", test_caption, PRECISION_BF16, true, "block.layers.1.in"},
    {"patches, bf16", test_patches, PRECISION_BF16, true, "block.layers.1.in"},
    {"refiners, bf16", test_refiners, PRECISION_BF16, true, "block.layers.1.in"},
    {"layer, bf16", test_layer, PRECISION_BF16, true, "block.layers.1.in"},
    {"final, bf16", test_final, PRECISION_BF16, true, "block.layers.1.in"},
    {"transformer, bf16", test_transformer, PRECISION_BF16, true, "block.layers.1.in"},
};

const struct suite blocks_zimage = {"zimage", tests, COUNT_OF(tests), tolerances, tolerances};
