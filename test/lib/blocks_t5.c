/* T5's blocks one by one, each on the reference's input; see blocks_flux.c. */
#include "test/lib/bench.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"t5.embedding", 0, 0},
    {"t5.distance_bias", 0, 0},
    {"block.t5", 2.01e-7, 6e-7},
    {"hidden", 4.94e-6, 1.5e-5},
    {0},
};

static struct bench *open_rows(const struct golden *g, int32_t rows) {
    int32_t columns = g->model->component[1].text_columns;
    struct lane lane = {.n_tokens = rows, .text = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, columns})};
    return bench_open(g, 1, lane);
}

static void test_embedding(const struct golden *g) {
    struct tensor ids = golden(g, "case0.ids_2.cond");
    struct bench *b = open_rows(g, ids.dim[0]);
    bench_gather(b, ids);
    expect_close(g, "t5.embedding", b->lane.text, golden(g, "t5.embedding").data);
    bench_close(b);
}

/* Copies of numbers of the table: equal bits. */
static void test_bias(const struct golden *g) {
    struct tensor bias = golden(g, "t5.distance_bias");
    struct bench *b = open_rows(g, (bias.dim[1] + 1) / 2);
    bench_visit(b, bench_block(b, "relative_attention_bias.0"), 0);
    expect_close(g, "t5.distance_bias", bench_state(b, "bias"), bias.data);
    bench_close(b);
}

static void test_layer(const struct golden *g) {
    const json_t *blocks = json_object_get(g->expect, "blocks"), *about = json_object_get(blocks, "block.t5");
    struct tensor in = golden_single(g, "block.t5.in"), out = golden_single(g, "block.t5.out");
    struct bench *b = open_rows(g, in.dim[0]);
    char name[64];
    snprintf(name, sizeof name, "block.%d", (int)json_integer_value(json_object_get(about, "layer")));
    memcpy(b->lane.text.data, in.data, (size_t)tensor_bytes(&in));
    bench_visit(b, bench_block(b, "relative_attention_bias.0"), 0);
    bench_visit(b, bench_block(b, name), 0);
    expect_close(g, "block.t5", b->lane.text, out.data);
    bench_close(b);
}

/* Every prompt that the reference encoded and whose states are in the data. */
static void test_hidden(const struct golden *g) {
    size_t n = json_array_size(json_object_get(g->expect, "cases"));
    for (size_t i = 0; i < n; i++) {
        char ids_name[64], hidden_name[64], detail[32];
        snprintf(detail, sizeof detail, "case %zu cond", i);
        snprintf(ids_name, sizeof ids_name, "case%zu.ids_2.cond", i);
        snprintf(hidden_name, sizeof hidden_name, "case%zu.hidden.cond", i);
        if (!has_golden(g, hidden_name)) continue;
        struct tensor ids = golden(g, ids_name), hidden = golden(g, hidden_name);
        struct bench *b = open_rows(g, ids.dim[0]);
        bench_gather(b, ids);
        for (int k = 0; k < b->component->n_blocks; k++) bench_visit(b, &b->component->blocks[k], 0);
        expect_values(g, "hidden", detail, b->lane.text.data, hidden.data, tensor_elements(&hidden));
        bench_close(b);
    }
}

static const struct golden_test tests[] = {
    {"embedding", test_embedding, PRECISION_F32, false, "block.t5.in"},
    {"distance bias", test_bias, PRECISION_F32, false, "block.t5.in"},
    {"layer", test_layer, PRECISION_F32, false, "block.t5.in"},
    {"hidden", test_hidden, PRECISION_F32, false, "block.t5.in"},
    {"embedding, bf16", test_embedding, PRECISION_BF16, true, "block.t5.in"},
    {"distance bias, bf16", test_bias, PRECISION_BF16, true, "block.t5.in"},
    {"layer, bf16", test_layer, PRECISION_BF16, true, "block.t5.in"},
    {"hidden, bf16", test_hidden, PRECISION_BF16, true, "block.t5.in"},
};

const struct suite blocks_t5 = {"t5", tests, COUNT_OF(tests), tolerances, tolerances};
