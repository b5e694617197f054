/* Checks of text and vision encoders for block tests: CLIP's token rows in a slice of a wider tensor, the
 * visits of each clip_skip, two hidden states side by side, and CLIP's resized images. */
#include "engine/pictures/resample.h"
#include "engine/run/component.h"
#include "engine/run/visit.h"
#include "models/models.h"
#include "test/lib/block_tests.h"
#include "test/lib/golden_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CLIP writes its token rows to a slice of a wider tensor, whose other columns stay 0. The last row is the
 * pooled row. */
void check_clip_rows_in_wider_tensor(struct block_test *t, const json_t *step) {
    enum { LEFT = 8, MORE = 24 };
    struct block_runner *b = t->runner;
    int32_t rows = b->lane.n_tokens, columns = b->lane.pooled.dim[1];
    struct tensor wide = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, columns + MORE});
    (void)step;
    b->lane.text = tensor_slice_columns(wide, LEFT, columns);
    b->lane.pooled_row = rows - 1;
    runner_run_all(b);
    const float *values = wide.data;
    assert_memory_equal(values + (int64_t)(rows - 1) * wide.dim[1] + LEFT, b->lane.pooled.data,
                        (size_t)tensor_bytes(&b->lane.pooled));
    for (int32_t i = 0; i < rows; i++)
        for (int32_t k = 0; k < wide.dim[1]; k++)
            if (k < LEFT || k >= columns + LEFT) assert_true(values[(int64_t)i * wide.dim[1] + k] == 0);
}

/* Counts the visits of the lane "file 0 skip SKIP" or "file 0 skip SKIP pooled" of blocks.json. */
static int count_visits(const struct block_test *t, int skip, bool pools) {
    struct visit_list list = {.sys = &golden_state.sys};
    char name[64];
    snprintf(name, sizeof name, "file 0 skip %d%s", skip, pools ? " pooled" : "");
    struct block_runner *b = block_test_open(t, name);
    runner_list_visits(b, &list);
    assert_ok(&b->error);
    int n = list.n_visits;
    visit_list_destroy(&list);
    runner_close(b);
    return n;
}

/* Checks each file's range of clip_skip. Layers whose output is unused are not visited; a pooled row needs
 * all layers. */
void check_clip_skip_visits(struct block_test *t, const json_t *step) {
    const json_t *least = json_object_get(step, "least"), *number;
    const struct component *files = t->golden->model->component;
    size_t i;
    json_array_foreach(least, i, number) {
        assert_int_equal(files[i].skip_least, (int)json_integer_value(number));
        assert_int_equal(files[i].skip_most, number_of(step, "most"));
    }
    for (int skip = files->skip_least; skip < files->skip_most; skip++) {
        assert_int_equal(count_visits(t, skip, false) - count_visits(t, skip + 1, false), 1);
        if (files->reads.pooled)
            assert_int_equal(count_visits(t, skip, true), files->n_tables + files->n_blocks);
    }
}

/* Runs a text encoder with the settings of `c`. skipped: index of a block that does not run; -1: none. */
static struct tensor encode(const struct block_test *t, const char *lane, const struct component *c,
                            int skipped) {
    struct block_runner *b = block_test_open(t, lane);
    b->lane.text = test_tensor(DTYPE_F32, 2, (int32_t[]){b->lane.n_tokens, c->text_columns});
    runner_read_table(b, 0);
    for (int k = 0; k < c->n_blocks; k++)
        if (k != skipped) runner_run(b, &c->blocks[k], 0);
    runner_close(b);
    return b->lane.text;
}

static void read_hidden_states(struct component *c, struct hidden_states hidden) {
    c->reads.hidden = hidden;
    c->family->config.derive(c);
}

/* A text encoder, whose last blocks are the last layer and the final norm, writes two hidden states side by
 * side: the one before the last layer, with or without the final norm, and the last one. */
void check_two_hidden_states(struct block_test *t, const json_t *step) {
    const char *lane = text_of(step, "two_hidden_states"), *family = text_of(step, "family");
    struct component *c = &t->golden->model->component[block_test_slot(t->golden, family, NULL, 0)];
    const struct text_reads reads = c->reads;
    const int i_last = c->n_blocks - 2;
    const size_t bytes = (size_t)c->text_columns * sizeof(float);
    struct tensor last = encode(t, lane, c, -1);
    read_hidden_states(
        c, (struct hidden_states){.layers = {c->blocks[i_last].number}, .final_norm = FINAL_NORM_OF_ALL});
    struct tensor normed = encode(t, lane, c, i_last);
    for (int all = 0; all < 2; all++) {
        read_hidden_states(
            c, (struct hidden_states){.layers = {-2, -1},
                                      .final_norm = all ? FINAL_NORM_OF_ALL : FINAL_NORM_OF_LAST});
        assert_int_equal((size_t)c->text_columns * sizeof(float), 2 * bytes);
        struct tensor both = encode(t, lane, c, -1);
        bool equal = true;
        for (int32_t i = 0; i < both.dim[0]; i++) {
            const char *row = (const char *)both.data + 2 * bytes * (size_t)i;
            assert_memory_equal(row + bytes, (const char *)last.data + bytes * (size_t)i, bytes);
            equal = equal && !memcmp(row, (const char *)normed.data + bytes * (size_t)i, bytes);
        }
        assert_true(equal == (all == 1));
    }
    read_hidden_states(c, reads.hidden);
}

/* Resizes and crops an image as the vision encoder's image processor does; the caller frees the pixels. */
static uint8_t *resize(struct tensor picture, struct vision_grid grid) {
    struct picture_size from = {picture.dim[1], picture.dim[0]};
    struct picture_part part = {.by = TORCH_BICUBIC,
                                .whole = {grid.whole.width, grid.whole.height},
                                .x = grid.whole.left,
                                .y = grid.whole.top,
                                .size = {grid.width, grid.height}};
    size_t pitch = 3 * (size_t)part.size.width;
    void *memory = malloc(resample_bytes(from, &part));
    uint8_t *made = malloc(pitch * (size_t)part.size.height);
    struct resampling r;
    assert_true(memory && made);
    resample_begin(&r, from, &part, memory, made, pitch);
    for (int32_t y = 0; y < from.height; y++)
        resample_push_row(&r, (const uint8_t *)picture.data + 3 * y * from.width);
    assert_true(resample_done(&r));
    free(memory);
    return made;
}

/* Compares the pixels with the reference's image processor before normalisation; bits must be equal. */
void check_resized_pixels(struct block_test *t, const json_t *step) {
    const char *family = text_of(step, "resized_pixels");
    const struct component *c = &t->golden->model->component[block_test_slot(t->golden, family, NULL, 0)];
    bool init = has_golden(t->golden, "case0.picture.init");
    struct tensor picture = golden(t->golden, init ? "case0.picture.init" : "case0.picture.redux_000"),
                  planes = golden(t->golden, init ? "case0.pixels.init" : "case0.pixels.redux_000");
    struct vision_grid grid = c->family->lanes.vision_grid(c, picture.dim[1], picture.dim[0]);
    int differing = 0, n = planes.dim[1] * planes.dim[2];
    uint8_t *made = resize(picture, grid);
    assert_int_equal(grid.width * grid.height, n);
    for (int i = 0; i < 3 * n; i++) {
        int colour = i % 3;
        float value = ((const float *)planes.data)[colour * n + i / 3];
        value = value * c->picture_format.deviation[colour] + c->picture_format.mean[colour];
        differing += made[i] != (int)lrintf(value * 255);
    }
    free(made);
    assert_int_equal(differing, 0);
}
