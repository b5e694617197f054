/* Tests the blocks of Qwen2.5-VL's language model one by one, each on the reference's input; see
 * blocks_flux.c. Image tokens come from the reference's vision encoder. */
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"

#include <stdio.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"text.embedding", 3.44e-8, 1e-7},
    {"text.rope", 1.8e-8, 5.4e-8},
    {"block.language", 2.03e-7, 6e-7},
    {"hidden", 5.76e-7, 1.7e-6},
    {0},
};

static int slot_of(const struct golden *g) {
    return recipe_slot(g->model->recipe, FAMILY_TEXT);
}

static const struct component *tower_of(const struct golden *g) {
    return model_component(g->model, FAMILY_VISION);
}

/* Returns image i of a case: the vision tokens, and the token grid for the image size. */
static struct vision_span picture_of(const struct golden *g, size_t one, int i) {
    char rows[64], pixels[64];
    struct vision_span span = {0};
    snprintf(rows, sizeof rows, "case%zu.seen.reference_%03d", one, i);
    snprintf(pixels, sizeof pixels, "case%zu.pixels.reference_%03d", one, i);
    if (!has_golden(g, rows)) return span;
    const struct component *c = tower_of(g);
    struct tensor picture = golden(g, pixels);
    struct vision_grid grid = c->family->lanes.vision_grid(c, picture.dim[1], picture.dim[0]);
    span.rows = golden(g, rows);
    span.height = grid.rows;
    span.width = grid.columns;
    assert_int_equal(span.height * span.width, span.rows.dim[0]);
    return span;
}

/* Opens a runner on token ids. The lane holds each image's vision tokens and their first position. */
static struct block_runner *open_case(const struct golden *g, size_t one, struct tensor ids) {
    int32_t columns = g->model->component[slot_of(g)].text_columns, n = ids.dim[0], at = 0;
    int32_t pad = tokenizer_special(g->model->tokenizer[slot_of(g)], "<|image_pad|>");
    struct lane lane = {.n_tokens = n, .text = test_tensor(DTYPE_F32, 2, (int32_t[]){n, columns})};
    const int32_t *id = ids.data;
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) {
        struct vision_span span = picture_of(g, one, i);
        if (!span.height) break;
        while (at < n && id[at] != pad) at++;
        span.first = at;
        at += span.rows.dim[0];
        assert_true(at < n && id[at - 1] == pad && id[at] != pad);
        lane.vision_spans[i] = span;
    }
    return runner_open(g, slot_of(g), lane);
}

static void test_embedding(const struct golden *g) {
    struct tensor ids = golden(g, "case0.ids.cond");
    struct block_runner *b = open_case(g, 0, ids);
    runner_gather(b, ids);
    expect_close(g, "text.embedding", b->lane.text, golden(g, "text.embedding").data);
    expect_close(g, "text.rope", runner_state(b, "rope"), golden(g, "text.rope").data);
    runner_close(b);
}

static void test_layer(const struct golden *g) {
    const json_t *blocks = json_object_get(g->expect, "blocks"),
                 *about = json_object_get(blocks, "block.language");
    struct tensor ids = golden(g, "case0.ids.cond");
    struct tensor in = golden_single(g, "block.language.in"), out = golden_single(g, "block.language.out");
    struct block_runner *b = open_case(g, 0, ids);
    char name[64];
    snprintf(name, sizeof name, "layers.%d", (int)json_integer_value(json_object_get(about, "layer")));
    runner_gather(b, ids);
    runner_put(b->lane.text, in);
    runner_run(b, runner_block(b, name), 0);
    expect_close(g, "block.language", b->lane.text, out.data);
    runner_close(b);
}

static void expect_hidden(const struct golden *g, size_t one, const char *branch) {
    char ids_name[64], hidden_name[64], detail[32];
    int dropped = g->model->recipe->slot[slot_of(g)].text.drop_idx;
    snprintf(detail, sizeof detail, "case %zu %s", one, branch);
    snprintf(ids_name, sizeof ids_name, "case%zu.ids.%s", one, branch);
    snprintf(hidden_name, sizeof hidden_name, "case%zu.hidden.%s", one, branch);
    if (!has_golden(g, hidden_name)) return;
    struct tensor ids = golden(g, ids_name), hidden = golden(g, hidden_name);
    struct block_runner *b = open_case(g, one, ids);
    if (b->lane.vision_spans[0].height)
        dropped = g->model->recipe->slot[slot_of(g)].text.image_prompt.drop_idx;
    runner_gather(b, ids);
    for (int k = 0; k < b->component->n_blocks; k++) runner_run(b, &b->component->blocks[k], 0);
    struct tensor ours = tensor_slice(b->lane.text, dropped, hidden.dim[0]);
    expect_values(g, "hidden", detail, ours.data, hidden.data, tensor_elements(&hidden));
    runner_close(b);
}

static void test_hidden(const struct golden *g) {
    size_t n = json_array_size(json_object_get(g->expect, "cases"));
    for (size_t i = 0; i < n; i++) {
        expect_hidden(g, i, "cond");
        expect_hidden(g, i, "uncond");
    }
}

static struct block_runner *open_first_case(const struct golden *g, struct tensor ids) {
    return open_case(g, 0, ids);
}

static void test_two_hidden_states(const struct golden *g) {
    expect_two_hidden_states(g, &g->model->component[slot_of(g)], golden(g, "case0.ids.cond"),
                             open_first_case);
}

static const struct golden_test tests[] = {
    {"embedding", test_embedding, PRECISION_F32, false, "block.language.in"},
    {"layer", test_layer, PRECISION_F32, false, "block.language.in"},
    {"hidden", test_hidden, PRECISION_F32, false, "case0.hidden.cond"},
    {"two hidden states", test_two_hidden_states, PRECISION_F32, false, "case0.hidden.cond"},
    {"embedding, bf16", test_embedding, PRECISION_BF16, true, "block.language.in"},
    {"layer, bf16", test_layer, PRECISION_BF16, true, "block.language.in"},
    {"hidden, bf16", test_hidden, PRECISION_BF16, true, "case0.hidden.cond"},
};

const struct suite blocks_qwen25vl = {"qwen25vl", tests, COUNT_OF(tests), tolerances, tolerances};
