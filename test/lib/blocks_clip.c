/* Tests CLIP's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"clip.embedding", 0, 0},
    {"block.clip", 1.91e-7, 6e-7},
    {"pooled", 3.42e-7, 1.1e-6},
    {0},
};

static struct block_runner *open_ids(const struct golden *g, struct tensor ids, int pooled_row) {
    int32_t columns = model_component(g->model, FAMILY_TEXT)->pooled_columns;
    struct lane lane = {.n_tokens = ids.dim[0],
                        .pooled_row = pooled_row,
                        .pooled = test_tensor(DTYPE_F32, 2, (int32_t[]){1, columns})};
    return runner_open(g, 0, lane);
}

static struct tensor tokens_of(const struct block_runner *b) {
    return runner_state(b, "tokens");
}

static void embed(struct block_runner *b, struct tensor ids) {
    runner_gather(b, ids);
    runner_run(b, runner_block(b, "position_embedding"), 0);
}

static void test_embedding(const struct golden *g) {
    struct tensor ids = golden(g, "case0.ids.cond");
    struct block_runner *b = open_ids(g, ids, 0);
    embed(b, ids);
    expect_close(g, "clip.embedding", tokens_of(b), golden(g, "clip.embedding").data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    const json_t *blocks = json_object_get(g->expect, "blocks");
    const json_t *about = json_object_get(blocks, "block.clip");
    struct tensor in = golden_single(g, "block.clip.in"), out = golden_single(g, "block.clip.out");
    struct block_runner *b = open_ids(g, in, 0);
    char name[64];
    snprintf(name, sizeof name, "layers.%d", (int)json_integer_value(json_object_get(about, "layer")));
    memcpy(tokens_of(b).data, in.data, (size_t)tensor_bytes(&in));
    runner_run(b, runner_block(b, name), 0);
    expect_close(g, "block.clip", tokens_of(b), out.data);
    runner_close(b);
}

/* Returns the position of the first end-of-text token of a prompt. */
static int end_of(struct tensor ids, const json_t *one) {
    const int32_t *id = ids.data;
    int n = (int)json_integer_value(json_object_get(one, "ids_cond")), i = 0;
    int32_t end = id[(n < ids.dim[0] ? n : ids.dim[0]) - 1];
    while (id[i] != end) i++;
    return i;
}

/* Compares CLIP's token rows with the reference. The rows are written to a slice of a wider tensor, whose
 * other columns must stay 0. The last row is the pooled row. */
static void test_tokens(const struct golden *g) {
    struct tensor ids = golden(g, "case0.ids.cond"), pooled;
    int last = ids.dim[0] - 1;
    int32_t columns = model_component(g->model, FAMILY_TEXT)->pooled_columns;
    struct tensor wide = test_tensor(DTYPE_F32, 2, (int32_t[]){ids.dim[0], columns + 24});
    struct tensor text = wide;
    text.data = (float *)wide.data + 8;
    text.dim[1] = columns;
    struct block_runner *b = open_ids(g, ids, last);
    b->lane.text = text;
    runner_gather(b, ids);
    for (int k = 0; k < b->component->n_blocks; k++) runner_run(b, &b->component->blocks[k], 0);
    pooled = b->lane.pooled;
    const float *rows = wide.data;
    assert_memory_equal(rows + (int64_t)last * wide.dim[1] + 8, pooled.data, (size_t)tensor_bytes(&pooled));
    for (int32_t i = 0; i < ids.dim[0]; i++)
        for (int32_t k = 0; k < wide.dim[1]; k++)
            if (k < 8 || k >= columns + 8) assert_true(rows[(int64_t)i * wide.dim[1] + k] == 0);
    runner_close(b);
}

static void test_pooled(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *one;
    size_t i;
    json_array_foreach(cases, i, one) {
        char ids_name[64], pooled_name[64], detail[32];
        snprintf(detail, sizeof detail, "case %zu cond", i);
        snprintf(ids_name, sizeof ids_name, "case%zu.ids.cond", i);
        snprintf(pooled_name, sizeof pooled_name, "case%zu.pooled.cond", i);
        struct tensor ids = golden(g, ids_name), pooled = golden(g, pooled_name);
        struct block_runner *b = open_ids(g, ids, end_of(ids, one));
        runner_gather(b, ids);
        for (int k = 0; k < b->component->n_blocks; k++) runner_run(b, &b->component->blocks[k], 0);
        expect_values(g, "pooled", detail, b->lane.pooled.data, pooled.data, tensor_elements(&pooled));
        runner_close(b);
    }
}

static const struct golden_test tests[] = {
    {"embedding", test_embedding, PRECISION_F32, false, "block.clip.in"},
    {"layer", test_layer, PRECISION_F32, false, "block.clip.in"},
    {"pooled", test_pooled, PRECISION_F32, false, "block.clip.in"},
    {"tokens", test_tokens, PRECISION_F32, false, "block.clip.in"},
    {"embedding, bf16", test_embedding, PRECISION_BF16, true, "block.clip.in"},
    {"layer, bf16", test_layer, PRECISION_BF16, true, "block.clip.in"},
    {"pooled, bf16", test_pooled, PRECISION_BF16, true, "block.clip.in"},
};

const struct suite blocks_clip = {"clip", tests, COUNT_OF(tests), tolerances, tolerances};
