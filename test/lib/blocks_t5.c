/* Tests T5's and umT5's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "models/models.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"t5.embedding", 0, 0},
    {"t5.distance_bias", 0, 0},
    {"block.t5", 2.49e-7, 7.5e-7},
    {"hidden", 4.94e-6, 1.5e-5},
    {0},
};

/* A T5 encoder of a fixture: slot in the pipeline, names of its reference tensors. */
struct t5 {
    int slot;
    const char *embedding, *bias, *in, *out, *block, *ids;
    bool of_every_layer; /* umT5: each layer has its own table of relative positions */
};

static struct t5 t5_of(const struct golden *g) {
    static const struct t5 one = {
        1, "t5.embedding", "t5.distance_bias", "block.t5.in", "block.t5.out", "block.t5", "ids_2", false};
    static const struct t5 many = {
        0,   "umt5.embedding", "umt5.distance_bias", "block.umt5.in", "block.umt5.out", "block.umt5", "ids",
        true};
    const struct slot *slots = g->model->recipe->slot;
    struct t5 t5 = has_golden(g, one.embedding) ? one : many;
    if (t5.of_every_layer)
        while (slots[t5.slot].family != &family_umt5) t5.slot++;
    return t5;
}

static struct block_runner *open_rows(const struct golden *g, int32_t rows) {
    int slot = t5_of(g).slot;
    int32_t columns = g->model->component[slot].text_columns;
    struct lane lane = {.n_tokens = rows, .text = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, columns})};
    return runner_open(g, slot, lane);
}

static void test_embedding(const struct golden *g) {
    char name[64];
    struct t5 t5 = t5_of(g);
    snprintf(name, sizeof name, "case0.%s.cond", t5.ids);
    struct tensor ids = golden(g, name);
    struct block_runner *b = open_rows(g, ids.dim[0]);
    runner_gather(b, ids);
    expect_close(g, "t5.embedding", b->lane.text, golden(g, t5.embedding).data);
    runner_close(b);
}

static int layer_of(const struct golden *g, struct t5 t5) {
    const json_t *about = json_object_get(json_object_get(g->expect, "blocks"), t5.block);
    return (int)json_integer_value(json_object_get(about, "layer"));
}

/* Runs the block that makes a layer's position bias. In T5 all layers share one such block; in umT5 each
 * layer has one. */
static void visit_bias(const struct golden *g, struct block_runner *b) {
    char name[64];
    struct t5 t5 = t5_of(g);
    snprintf(name, sizeof name, "relative_attention_bias.%d", t5.of_every_layer ? layer_of(g, t5) : 0);
    runner_run(b, runner_block(b, name), 0);
}

/* The position bias consists of unmodified values of the table, so the bits must be equal. */
static void test_bias(const struct golden *g) {
    struct tensor bias = golden(g, t5_of(g).bias);
    struct block_runner *b = open_rows(g, (bias.dim[1] + 1) / 2);
    visit_bias(g, b);
    expect_close(g, "t5.distance_bias", runner_state(b, "bias"), bias.data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    struct t5 t5 = t5_of(g);
    struct tensor in = golden_single(g, t5.in), out = golden_single(g, t5.out);
    struct block_runner *b = open_rows(g, in.dim[0]);
    char name[64];
    snprintf(name, sizeof name, "block.%d", layer_of(g, t5));
    memcpy(b->lane.text.data, in.data, (size_t)tensor_bytes(&in));
    visit_bias(g, b);
    runner_run(b, runner_block(b, name), 0);
    expect_close(g, "block.t5", b->lane.text, out.data);
    runner_close(b);
}

static void test_hidden(const struct golden *g) {
    size_t n = json_array_size(json_object_get(g->expect, "cases"));
    struct t5 t5 = t5_of(g);
    for (size_t i = 0; i < n; i++) {
        char ids_name[64], hidden_name[64], detail[32];
        snprintf(detail, sizeof detail, "case %zu cond", i);
        snprintf(ids_name, sizeof ids_name, "case%zu.%s.cond", i, t5.ids);
        snprintf(hidden_name, sizeof hidden_name, "case%zu.hidden.cond", i);
        if (!has_golden(g, hidden_name)) continue;
        struct tensor ids = golden(g, ids_name), hidden = golden(g, hidden_name);
        struct block_runner *b = open_rows(g, ids.dim[0]);
        runner_gather(b, ids);
        for (int k = 0; k < b->component->n_blocks; k++) runner_run(b, &b->component->blocks[k], 0);
        expect_values(g, "hidden", detail, b->lane.text.data, hidden.data, tensor_elements(&hidden));
        runner_close(b);
    }
}

static struct block_runner *open_tokens(const struct golden *g, struct tensor ids) {
    return open_rows(g, ids.dim[0]);
}

static void test_two_hidden_states(const struct golden *g) {
    char name[64];
    snprintf(name, sizeof name, "case0.%s.cond", t5_of(g).ids);
    expect_two_hidden_states(g, &g->model->component[t5_of(g).slot], golden(g, name), open_tokens);
}

#define TESTS(in)                                                                                            \
    {"embedding", test_embedding, PRECISION_F32, false, in},                                                 \
        {"distance bias", test_bias, PRECISION_F32, false, in},                                              \
        {"layer", test_layer, PRECISION_F32, false, in}, {"hidden", test_hidden, PRECISION_F32, false, in},  \
        {"two hidden states", test_two_hidden_states, PRECISION_F32, false, in},                             \
        {"embedding, bf16", test_embedding, PRECISION_BF16, true, in},                                       \
        {"distance bias, bf16", test_bias, PRECISION_BF16, true, in},                                        \
        {"layer, bf16", test_layer, PRECISION_BF16, true, in}, {                                             \
        "hidden, bf16", test_hidden, PRECISION_BF16, true, in                                                \
    }
static const struct golden_test tests[] = {TESTS("block.t5.in")}, umt5_tests[] = {TESTS("block.umt5.in")};

const struct suite blocks_t5 = {"t5", tests, COUNT_OF(tests), tolerances, tolerances};
const struct suite blocks_umt5 = {"umt5", umt5_tests, COUNT_OF(umt5_tests), tolerances, tolerances};
