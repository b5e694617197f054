/* Tests CLIP-L, OpenCLIP-H and OpenCLIP-G without a pipeline, on data of test/golden/clip.py: the hidden
 * states of every usable layer, window by window, and the pooled row. Files with transformers' names and with
 * OpenCLIP's must give the same bits, and every weight must influence the result. */
#include "engine/run/visit.h"
#include "engine/run/component.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tolerances[] = {{"rows.1", 4.27e-7, 1.3e-6},
                                              {"rows.2", 3.86e-7, 1.2e-6},
                                              {"rows.3", 3.11e-7, 1e-6},
                                              {"pooled", 5.56e-7, 1.7e-6},
                                              {0}};

/* EVERY: the reference data contain only every 7th token row of a window. */
enum { WINDOW = 77, EVERY = 7 };

/* Each fixture has two weight files: one with transformers' tensor names, one with OpenCLIP's. */
enum { FILES = 2 };

/* Returns which hidden states and pooled row SD1, SD2 or SDXL reads from this CLIP encoder. */
static struct text_reads reads_of(const struct golden *g) {
    if (!strcmp(g->name, "clip/l"))
        return (struct text_reads){
            .hidden = {.final_norm = FINAL_NORM_OF_ALL}, .tokens = true, .pooled = true};
    if (!strcmp(g->name, "clip/h"))
        return (struct text_reads){.hidden = {.layers = {-2}, .final_norm = FINAL_NORM_OF_ALL},
                                   .tokens = true};
    return (struct text_reads){.hidden = {.layers = {-2}}, .tokens = true, .pooled = true, .projected = true};
}

/* Reads the encoder's configuration. For the file with OpenCLIP's tensor names the test passes only the
 * number of heads. Single files have no configuration, and the fixture's heads do not have the usual width
 * of 64. */
static void read_config(const struct golden *g, bool open, struct config *config, struct error *e) {
    char path[GOLDEN_PATH + 64], json[64];
    int heads = 0;
    snprintf(path, sizeof path, "%s/config.json", g->path);
    config_read(&golden_state.sys, path, config, e);
    if (!open) return;
    config_int(config, "num_attention_heads", 1, 99, &heads, e);
    config_destroy(config);
    snprintf(json, sizeof json, "{\"num_attention_heads\": %d}", heads);
    config_parse(&golden_state.sys, path, json, NULL, config, e);
}

static void open_file(struct golden *g, bool open) {
    static const struct published_setting erf_gelu[] = {{"hidden_act", 1}, {0}};
    struct component *c = &g->model->component[open];
    struct config config = {0};
    struct error e = {0};
    char path[GOLDEN_PATH + 64];
    *c = (struct component){.family = &family_clip, .sys = &golden_state.sys, .reads = reads_of(g)};
    if (open) c->published = erf_gelu;
    snprintf(path, sizeof path, "%s/%s.safetensors", g->path, open ? "open" : "model");
    safetensors_open(&golden_state.sys, path, &c->index, &e);
    read_config(g, open, &config, &e);
    assert_ok(&e);
    assert_true(c->family->files.probe(&c->index));
    component_bind(c, &config, &e);
    assert_ok(&e);
    assert_int_equal(c->n_unknown, 0);
    config_destroy(&config);
}

void clip_kinds_open(struct golden *g) {
    g->model = calloc(1, sizeof *g->model);
    assert_non_null(g->model);
    open_file(g, false);
    if (strcmp(g->name, "clip/l") != 0) open_file(g, true);
}

void clip_kinds_close(struct golden *g) {
    for (int i = 0; i < FILES; i++) component_destroy(&g->model->component[i]);
    free(g->model);
}

static const struct component *file_of(const struct golden *g, int file) {
    const struct component *c = &g->model->component[file];
    return c->family ? c : NULL;
}

static struct block_runner *encode_open(const struct golden *g, int file, int clip_skip, bool pools) {
    const struct component *c = file_of(g, file);
    struct tensor ids = golden(g, "ids");
    struct lane lane = {.n_tokens = ids.dim[0],
                        .window = WINDOW,
                        .clip_skip = clip_skip,
                        .pooled_row = WINDOW - 1,
                        .text = test_tensor(DTYPE_F32, 2, (int32_t[]){ids.dim[0], c->text_columns})};
    if (pools) lane.pooled = test_tensor(DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns});
    return runner_open(g, file, lane);
}

/* Runs the encoder with one weight of one block set to zero. `weight` -1: all weights are unchanged. */
static void encode(const struct golden *g, struct block_runner *b, int block, int weight) {
    struct visit_list list = {.sys = &golden_state.sys};
    runner_gather(b, golden(g, "ids"));
    component_visits(b->component, 0, &b->lane, 1, 1, &list, &b->error);
    for (int i = 0; i < list.n_visits; i++) {
        struct packed_segment segments[BLOCK_WEIGHTS_MAX];
        if (list.visits[i].block >= b->component->n_blocks) continue; /* the embedding table */
        struct block copy = b->component->blocks[list.visits[i].block];
        const struct block *whole = &b->component->blocks[list.visits[i].block];
        for (int k = copy.n_segments = 0; k < whole->n_segments; k++)
            if (list.visits[i].block != block || k != weight)
                segments[copy.n_segments++] = whole->segments[k];
        copy.segments = segments;
        runner_run(b, &copy, 0);
    }
    visit_list_destroy(&list);
}

static struct block_runner *encoded(const struct golden *g, int file, int clip_skip, bool pools) {
    struct block_runner *b = encode_open(g, file, clip_skip, pools);
    encode(g, b, -1, -1);
    return b;
}

static void expect_rows(const struct golden *g, struct tensor text, int clip_skip) {
    char name[32];
    snprintf(name, sizeof name, "rows.%d", clip_skip);
    struct tensor truth = golden(g, name), some = test_tensor(DTYPE_F32, 2, truth.dim);
    assert_int_equal(truth.dim[0] * EVERY, text.dim[0]);
    for (int32_t i = 0; i < truth.dim[0]; i++)
        memcpy((float *)some.data + i * text.dim[1], (float *)text.data + i * EVERY * text.dim[1],
               (size_t)text.dim[1] * sizeof(float));
    expect_close(g, name, some, truth.data);
}

/* Tests every supported clip_skip; only the layers that a clip_skip needs are visited. */
static void test_rows(const struct golden *g) {
    for (int file = 0; file < FILES; file++) {
        const struct component *c = file_of(g, file);
        if (!c) continue;
        assert_int_equal(c->skip_least, !strcmp(g->name, "clip/h") && !file ? 2 : 1);
        assert_int_equal(c->skip_most, 3);
        for (int skip = c->skip_least; skip <= c->skip_most; skip++) {
            struct block_runner *b = encoded(g, file, skip, false);
            expect_rows(g, b->lane.text, skip);
            runner_close(b);
        }
        struct block_runner *b = encoded(g, file, 0, c->reads.pooled);
        expect_rows(g, b->lane.text, hidden_states_min_layers(&c->reads.hidden));
        runner_close(b);
    }
}

static void test_pooled(const struct golden *g) {
    for (int file = 0; file < FILES; file++) {
        if (!file_of(g, file) || !file_of(g, file)->reads.pooled) continue;
        struct block_runner *b = encoded(g, file, 0, true);
        expect_close(g, "pooled", b->lane.pooled, golden(g, "pooled").data);
        runner_close(b);
    }
}

static struct block_runner *open_rows(const struct golden *g, struct tensor ids) {
    (void)ids;
    return encode_open(g, 0, 0, false);
}

/* Only CLIP-L's last blocks are the last layer and the final norm. */
static void test_two_hidden_states(const struct golden *g) {
    if (file_of(g, 0)->reads.projected || hidden_states_min_layers(&file_of(g, 0)->reads.hidden) > 1) return;
    expect_two_hidden_states(g, &g->model->component[0], golden(g, "ids"), open_rows);
}

static void assert_same(struct tensor a, struct tensor b) {
    assert_int_equal(tensor_bytes(&a), tensor_bytes(&b));
    assert_memory_equal(a.data, b.data, (size_t)tensor_bytes(&b));
}

static void test_names(const struct golden *g) {
    if (!file_of(g, 1)) return;
    bool pools = file_of(g, 0)->reads.pooled;
    for (int skip = file_of(g, 0)->skip_least; skip <= 3; skip++) {
        struct block_runner *b = encoded(g, 0, skip, pools), *open = encoded(g, 1, skip, pools);
        assert_same(open->lane.text, b->lane.text);
        if (pools) assert_same(open->lane.pooled, b->lane.pooled);
        runner_close(b);
        runner_close(open);
    }
}

static int count_visits(const struct golden *g, int skip, bool pools) {
    struct visit_list list = {.sys = &golden_state.sys};
    struct block_runner *b = encode_open(g, 0, skip, pools);
    component_visits(b->component, 0, &b->lane, 1, 1, &list, &b->error);
    assert_ok(&b->error);
    int n = list.n_visits;
    visit_list_destroy(&list);
    runner_close(b);
    return n;
}

/* Layers whose output is unused are not run. A pooled row needs all layers. */
static void test_visits(const struct golden *g) {
    const struct component *c = file_of(g, 0);
    for (int skip = c->skip_least; skip < c->skip_most; skip++) {
        assert_int_equal(count_visits(g, skip, false) - count_visits(g, skip + 1, false), 1);
        if (c->reads.pooled) assert_int_equal(count_visits(g, skip, true), c->n_tables + c->n_blocks);
    }
}

/* False for attention's key bias, which cannot change the result: it adds the same to all scores of a query,
 * and softmax cancels the addend. */
static bool matters(const struct block *block, int weight) {
    return !strstr(block->tensors[weight].entry->name, "k_proj.bias");
}

static void test_influence(const struct golden *g) {
    const double LEAST = 1e-3, NOTHING = 1e-6;
    const struct component *c = file_of(g, 0);
    bool pools = c->reads.pooled;
    struct block_runner *whole = encoded(g, 0, hidden_states_min_layers(&c->reads.hidden), pools);
    double least = INFINITY;
    for (int i = 0; i < c->n_blocks; i++)
        for (int w = 0; w < c->blocks[i].n_tensors; w++) {
            struct block_runner *b = encode_open(g, 0, hidden_states_min_layers(&c->reads.hidden), pools);
            encode(g, b, i, w);
            double moved = distance(b->lane.text.data, whole->lane.text.data, tensor_elements(&b->lane.text));
            if (pools)
                moved +=
                    distance(b->lane.pooled.data, whole->lane.pooled.data, tensor_elements(&b->lane.pooled));
            if (matters(&c->blocks[i], w) ? moved < LEAST : moved > NOTHING)
                fail_msg("zeroing %s changes the output by only %g", c->blocks[i].tensors[w].entry->name,
                         moved);
            if (matters(&c->blocks[i], w) && moved < least) least = moved;
            runner_close(b);
        }
    printf("  %-12s zeroing any weight changes the output by at least %.2e\n", g->name, least);
    runner_close(whole);
}

static const struct golden_test tests[] = {
    {"rows", test_rows, PRECISION_F32, false, NULL},
    {"two hidden states", test_two_hidden_states, PRECISION_F32, false, NULL},
    {"pooled", test_pooled, PRECISION_F32, false, "pooled"},
    {"names", test_names, PRECISION_F32, false, NULL},
    {"visits", test_visits, PRECISION_F32, false, NULL},
    {"influence", test_influence, PRECISION_F32, false, NULL},
    {"rows, bf16", test_rows, PRECISION_BF16, true, NULL},
    {"pooled, bf16", test_pooled, PRECISION_BF16, true, "pooled"},
    {"names, bf16", test_names, PRECISION_BF16, true, NULL}};

const struct suite blocks_clip_kinds = {"clip_kinds", tests, COUNT_OF(tests), tolerances, tolerances};
