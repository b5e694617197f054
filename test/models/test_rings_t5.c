/* T5's blocks one by one, each on the reference's input; see test_rings_flux.c. */
#define family_t5 family_t5_copy
#include "models/t5.c"

#include "test/lib/rings.h"

static const struct gate gates[] = {
    {"t5.embedding", 0, 0},
    {"t5.distance_bias", 0, 0},
    {"block.t5", 2.01e-7, 6e-7},
    {"hidden", 4.94e-6, 1.5e-5},
    {0},
};

static struct bench *open_rows(const struct fixture *f, int32_t rows) {
    int32_t columns = f->model->component[1].text_columns;
    struct lane lane = {.n_tokens = rows, .text = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, columns})};
    return bench_open(f, 1, lane);
}

static void test_embedding(const struct fixture *f) {
    struct tensor ids = ring(f, "case0.ids_2.cond");
    struct bench *b = open_rows(f, ids.dim[0]);
    bench_gather(b, ids);
    expect_close(f, "t5.embedding", b->lane.text, ring(f, "t5.embedding").data);
    bench_close(b);
}

/* Copies of numbers of the table: equal bits. */
static void test_bias(const struct fixture *f) {
    struct tensor bias = ring(f, "t5.distance_bias");
    struct bench *b = open_rows(f, (bias.dim[1] + 1) / 2);
    bench_visit(b, bench_block(b, "relative_attention_bias"), 0);
    expect_close(f, "t5.distance_bias", ((struct t5_state *)b->lane.state)->bias, bias.data);
    bench_close(b);
}

static void test_layer(const struct fixture *f) {
    const json_t *blocks = json_object_get(f->expect, "blocks"), *about = json_object_get(blocks, "block.t5");
    struct tensor in = ring_single(f, "block.t5.in"), out = ring_single(f, "block.t5.out");
    struct bench *b = open_rows(f, in.dim[0]);
    char name[64];
    snprintf(name, sizeof name, "block.%d", (int)json_integer_value(json_object_get(about, "layer")));
    memcpy(b->lane.text.data, in.data, (size_t)tensor_bytes(&in));
    bench_visit(b, bench_block(b, "relative_attention_bias"), 0);
    bench_visit(b, bench_block(b, name), 0);
    expect_close(f, "block.t5", b->lane.text, out.data);
    bench_close(b);
}

/* Every prompt that the reference encoded and whose states are in the fixture. */
static void test_hidden(const struct fixture *f) {
    size_t n = json_array_size(json_object_get(f->expect, "cases"));
    for (size_t i = 0; i < n; i++) {
        char ids_name[64], hidden_name[64], detail[32];
        snprintf(detail, sizeof detail, "case %zu cond", i);
        snprintf(ids_name, sizeof ids_name, "case%zu.ids_2.cond", i);
        snprintf(hidden_name, sizeof hidden_name, "case%zu.hidden.cond", i);
        if (!has_ring(f, hidden_name)) continue;
        struct tensor ids = ring(f, ids_name), hidden = ring(f, hidden_name);
        struct bench *b = open_rows(f, ids.dim[0]);
        bench_gather(b, ids);
        for (int k = 0; k < b->component->n_blocks; k++) bench_visit(b, &b->component->blocks[k], 0);
        expect_values(f, "hidden", detail, b->lane.text.data, hidden.data, tensor_elements(&hidden));
        bench_close(b);
    }
}

int main(void) {
    static const struct ring_test tests[] = {
        {"embedding", test_embedding, PRECISION_F32, false, "block.t5.in"},
        {"distance bias", test_bias, PRECISION_F32, false, "block.t5.in"},
        {"layer", test_layer, PRECISION_F32, false, "block.t5.in"},
        {"hidden", test_hidden, PRECISION_F32, false, "block.t5.in"},
        {"embedding, bf16", test_embedding, PRECISION_BF16, true, "block.t5.in"},
        {"distance bias, bf16", test_bias, PRECISION_BF16, true, "block.t5.in"},
        {"layer, bf16", test_layer, PRECISION_BF16, true, "block.t5.in"},
        {"hidden, bf16", test_hidden, PRECISION_BF16, true, "block.t5.in"},
    };
    return rings_main("t5 rings", tests, COUNT_OF(tests), gates, gates);
}
