/* Tests the UNets' blocks one by one, each on the reference's input, then whole forward passes; see
 * blocks_flux.c.
 *
 * The images of the reference are [C, Y, X]; those of the engine are [Y, X, C]. The two resnets of a down
 * level make three skip connections: the level's input and the output of each resnet. */
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

/* Tolerances, measured on the committed reference data only. */
static const struct tolerance tolerances[] = {
    {"block.temb", 1.23e-7, 4e-7},
    {"block.conv_in", 1.98e-7, 6e-7},
    {"block.resnet", 1.48e-7, 4.5e-7},
    {"block.resnet_plain", 5.65e-8, 1.7e-7},
    {"block.resnet_joined", 1.28e-7, 4e-7},
    {"block.transformer", 2.46e-7, 7.5e-7},
    {"block.transformer_mid", 2.25e-7, 7e-7},
    {"block.down", 2e-7, 6e-7},
    {"block.up", 2.61e-7, 8e-7},
    {"block.out", 2.84e-7, 8.5e-7},
    {"unet", 1.66e-6, 5e-6},
    {0},
};

enum { SKIPS = 3, CALLS = 4 };

/* Reads a reference image as [Y, X, C]. */
static struct tensor picture(const struct golden *g, const char *name, const char *end) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, end);
    struct tensor from = golden_single(g, full);
    int32_t C = from.dim[0], pixels = from.dim[1] * from.dim[2];
    struct tensor to = test_tensor(DTYPE_F32, 3, (int32_t[]){from.dim[1], from.dim[2], C});
    for (int32_t c = 0; c < C; c++)
        for (int32_t i = 0; i < pixels; i++)
            ((float *)to.data)[i * C + c] = ((float *)from.data)[c * pixels + i];
    return to;
}

static struct tensor put(struct tensor to, struct tensor from) {
    assert_true(tensor_elements(&to) >= tensor_elements(&from));
    memcpy(to.data, from.data, (size_t)tensor_bytes(&from));
    return tensor_make(to.data, DTYPE_F32, from.rank, from.dim);
}

static struct tensor skip_of(const struct block_runner *b, int i) {
    char name[16];
    snprintf(name, sizeof name, "skip%d", i);
    return runner_state(b, name);
}

/* Compares the image [Y, X, C] at the start of a full-frame buffer with the reference's. */
static void expect_picture(const struct golden *g, const char *name, struct tensor buffer) {
    struct tensor truth = picture(g, name, "out");
    expect_close(g, name, tensor_make(buffer.data, DTYPE_F32, 3, truth.dim), truth.data);
}

/* Returns channels [first, first + n) of all pixels. */
static struct tensor channels(struct tensor all, int32_t first, int32_t n) {
    int32_t C = all.dim[2], pixels = all.dim[0] * all.dim[1];
    struct tensor some = test_tensor(DTYPE_F32, 3, (int32_t[]){all.dim[0], all.dim[1], n});
    for (int32_t i = 0; i < pixels; i++)
        memcpy((float *)some.data + i * n, (float *)all.data + i * C + first, (size_t)n * sizeof(float));
    return some;
}

static json_t *call_of(const struct golden *g, int call) {
    return json_array_get(json_object_get(g->expect, "unet"), (size_t)call);
}

/* Opens a runner on a call of the reference. The lane's latent has the first channels of the UNet's input;
 * the remaining channels are the lane's concatenated input. */
static struct block_runner *open_call(const struct golden *g, int call) {
    char name[32];
    snprintf(name, sizeof name, "unet.%d.in", call);
    struct tensor in = golden_single(g, name);
    int32_t latent = model_component(g->model, FAMILY_DECODER)->latent_channels;
    int32_t dim[4] = {latent, 1, in.dim[1], in.dim[2]}, concat[4] = {in.dim[0] - latent, 1, dim[2], dim[3]};
    json_t *numbers = json_object_get(call_of(g, call), "numbers");
    struct lane lane = {.text = golden(g, "case0.hidden.cond"),
                        .latent = tensor_make(in.data, DTYPE_F32, 4, dim),
                        .prediction = test_tensor(DTYPE_F32, 4, dim),
                        .n_add_time_ids = (int)json_array_size(numbers)};
    for (int i = 0; i < lane.n_add_time_ids; i++)
        lane.add_time_ids[i] = (float)json_number_value(json_array_get(numbers, (size_t)i));
    if (concat[0]) lane.concat = tensor_make(tensor_slice(in, latent, concat[0]).data, DTYPE_F32, 4, concat);
    if (has_golden(g, "case0.pooled.cond")) {
        struct tensor pooled = golden(g, "case0.pooled.cond");
        lane.pooled = tensor_reshape(pooled, 2, (int32_t[]){1, pooled.dim[0]});
    }
    return runner_open(g, recipe_slot(g->model->recipe, FAMILY_DENOISER), lane);
}

static float timestep_of(const struct golden *g, int call) {
    return (float)json_number_value(json_object_get(call_of(g, call), "t"));
}

enum {
    BLOCKS_OF = 2
}; /* BLOCKS_OF: index of the UNet call for which the fixture holds input and output of each block */

static const char *module_of(const struct golden *g, const char *name) {
    json_t *about = json_object_get(json_object_get(g->expect, "blocks"), name);
    return json_string_value(json_object_get(about, "module"));
}

/* Opens a runner on UNet call BLOCKS_OF, with the reference's conditioning. */
static struct block_runner *open_blocks(const struct golden *g) {
    struct block_runner *b = open_call(g, BLOCKS_OF);
    put(runner_state(b, "condition"), golden(g, "block.temb"));
    return b;
}

static void visit_all(struct block_runner *b, const char *prefix) {
    size_t n = strlen(prefix);
    for (int i = 0; i < b->component->n_blocks; i++) {
        const char *name = b->component->blocks[i].name;
        if (!strncmp(name, prefix, n) && (!name[n] || name[n] == '.'))
            runner_run(b, &b->component->blocks[i], 0);
    }
}

static void test_conditioning(const struct golden *g) {
    struct block_runner *b = open_call(g, BLOCKS_OF);
    runner_run(b, &b->component->blocks[0], timestep_of(g, BLOCKS_OF));
    expect_close(g, "block.temb", runner_state(b, "condition"), golden(g, "block.temb").data);
    runner_close(b);
}

static void test_resnets(const struct golden *g) {
    struct block_runner *b = open_blocks(g);
    put(skip_of(b, SKIPS), picture(g, "block.resnet", "in"));
    visit_all(b, module_of(g, "block.resnet"));
    expect_picture(g, "block.resnet", skip_of(b, SKIPS + 1));
    put(runner_state(b, "stream"), picture(g, "block.resnet_plain", "in"));
    visit_all(b, module_of(g, "block.resnet_plain"));
    expect_picture(g, "block.resnet_plain", runner_state(b, "stream"));
    struct tensor joined = picture(g, "block.resnet_joined", "in");
    int32_t n_skip = skip_of(b, 1).dim[2], n_stream = joined.dim[2] - n_skip;
    put(runner_state(b, "stream"), channels(joined, 0, n_stream));
    put(skip_of(b, 1), channels(joined, n_stream, n_skip));
    visit_all(b, module_of(g, "block.resnet_joined"));
    expect_picture(g, "block.resnet_joined", runner_state(b, "stream"));
    runner_close(b);
}

static void test_transformers(const struct golden *g) {
    struct block_runner *b = open_blocks(g);
    int level = 0;
    assert_int_equal(sscanf(module_of(g, "block.transformer"), "down_blocks.%d.attentions.1", &level), 1);
    struct tensor there = skip_of(b, SKIPS * level + 2);
    put(there, picture(g, "block.transformer", "in"));
    visit_all(b, module_of(g, "block.transformer"));
    expect_picture(g, "block.transformer", there);
    put(runner_state(b, "stream"), picture(g, "block.transformer_mid", "in"));
    visit_all(b, module_of(g, "block.transformer_mid"));
    expect_picture(g, "block.transformer_mid", runner_state(b, "stream"));
    runner_close(b);
}

static void test_sizes(const struct golden *g) {
    struct block_runner *b = open_blocks(g);
    char name[64];
    int level = 0;
    put(skip_of(b, SKIPS - 1), picture(g, "block.down", "in"));
    visit_all(b, "down_blocks.0.downsample");
    expect_picture(g, "block.down", skip_of(b, SKIPS));
    assert_int_equal(sscanf(module_of(g, "block.up"), "up_blocks.%d.", &level), 1);
    snprintf(name, sizeof name, "up_blocks.%d.upsample", level);
    put(runner_state(b, "stream"), picture(g, "block.up", "in"));
    visit_all(b, name);
    expect_picture(g, "block.up", runner_state(b, "stream"));
    runner_close(b);
}

static void test_ends(const struct golden *g) {
    struct block_runner *b = open_blocks(g);
    visit_all(b, "conv_in");
    expect_picture(g, "block.conv_in", skip_of(b, 0));
    put(runner_state(b, "stream"), picture(g, "block.out", "in"));
    visit_all(b, "conv_out");
    expect_close(g, "block.out", b->lane.prediction, golden(g, "block.out.out").data);
    runner_close(b);
}

/* Compares whole forward passes at two timesteps and two image sizes, of which some level has an odd size. */
static void test_whole(const struct golden *g) {
    for (int i = 0; i < CALLS; i++) {
        char name[32], key[32];
        struct block_runner *b = open_call(g, i);
        snprintf(name, sizeof name, "unet.%d.out", i);
        snprintf(key, sizeof key, "unet.%d", i);
        runner_run_all(b, timestep_of(g, i));
        struct tensor truth = golden(g, name);
        bool known = golden_state.precision == PRECISION_BF16 && json_object_get(g->bf16, key);
        expect_values(g, known ? key : "unet", "", b->lane.prediction.data, truth.data,
                      tensor_elements(&truth));
        runner_close(b);
    }
}

#define IN(precision, gpu, tail)                                                                             \
    {"conditioning" tail, test_conditioning, precision, gpu, "block.resnet.in"},                             \
        {"resnets" tail, test_resnets, precision, gpu, "block.resnet.in"},                                   \
        {"transformers" tail, test_transformers, precision, gpu, "block.resnet.in"},                         \
        {"sizes" tail, test_sizes, precision, gpu, "block.resnet.in"},                                       \
        {"ends" tail, test_ends, precision, gpu, "block.resnet.in"}, {                                       \
        "whole" tail, test_whole, precision, gpu, "unet.0.in"                                                \
    }
static const struct golden_test tests[] = {IN(PRECISION_F32, false, ""), IN(PRECISION_BF16, true, ", bf16")};

const struct suite blocks_unet = {"unet", tests, COUNT_OF(tests), tolerances, tolerances};
