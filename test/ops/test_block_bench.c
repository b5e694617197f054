/* `bench block` at tiny sizes: measured rows, FLOPs against formulas, cancellation. Speed differs between
 * machines and is not tested. */
#include "test/lib/seeded.h"

#include "engine/bench/block.h"
#include "kernels/cpu/cpu.h"
#include "models/models.h"

#include <math.h>
#include <string.h>

enum { HEADS = 2, HEAD = 32, DIM = HEADS * HEAD, TEXT = 64, SIDE = 8, TOKENS = SIDE * SIDE / 4 + 16 + 64 };

/* The number of image tokens is padded to a multiple of 32. */
static const int block_sizes[] = {HEADS, 8, 12, 12, 1, 1, 64, 16};
static const struct bench_block_case block_case = {.name = "block",
                                                   .shape = "small",
                                                   .rounds = 2,
                                                   .to = 1,
                                                   .sizes = {.family = &family_zimage,
                                                             .block = "layer",
                                                             .chosen = block_sizes,
                                                             .text_rows = TEXT,
                                                             .text_columns = 64,
                                                             .latent_channels = 16,
                                                             .latent_side = SIDE,
                                                             .picture_side = 1,
                                                             .type = DTYPE_BF16}};

static const int decoder_sizes[] = {4, 16, 16, 8, 8, 1, 4, 0};
static const struct bench_block_case decoder_case = {.name = "decoder",
                                                     .shape = "small",
                                                     .rounds = 2,
                                                     .to = 1,
                                                     .sizes = {.family = &family_vae_kl,
                                                               .chosen = decoder_sizes,
                                                               .text_rows = 1,
                                                               .text_columns = 1,
                                                               .latent_channels = 4,
                                                               .latent_side = SIDE,
                                                               .picture_side = 8 * SIDE,
                                                               .type = DTYPE_BF16}};

/* State of the progress callback, which cancels at a chosen round. */
struct listener {
    int calls, refuse_at;
    char last[64];
    int rounds;
};

static bool on_progress(void *user, double fraction, const char *what) {
    struct listener *l = user;
    assert_true(fraction >= 0 && fraction <= 1);
    if (strcmp(what, l->last) != 0) l->rounds++;
    strncpy(l->last, what, sizeof l->last - 1);
    return ++l->calls != l->refuse_at;
}

static enum status measure(const struct bench_block_case *c, struct listener *l, struct bench *bench) {
    struct error e = {0};
    struct sluice_bench_options options = {
        .struct_size = sizeof options, .threads = 2, .on_progress = on_progress, .user = l};
    bench_start(bench, &options, &e);
    struct device *device = cpu_open(&bench->sys, 2, &e);
    assert_non_null(device);
    bench_block_measure(bench, device, c, &e);
    device->destroy(device);
    struct memory_use use = sys_memory_use(&bench->sys);
    for (int i = 0; i < N_MEMORY_LINES; i++) assert_int_equal(use.live_bytes[i], 0);
    return e.code;
}

static double number(const json_t *row, const char *name) {
    const json_t *value = json_object_get(row, name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static const json_t *row_of(const struct bench *bench, const char *what) {
    size_t i;
    json_t *row;
    json_array_foreach(bench->rows, i, row) {
        if (!strcmp(json_string_value(json_object_get(row, "what")), what)) return row;
    }
    fail_msg("missing row %s", what);
    return NULL;
}

/* Runs the bench. Checks that the report has each of the given rows, with a time above 0 and a share of the
 * total time; returns the number of rounds. */
static int measure_rows(const struct bench_block_case *c, struct bench *bench, const char *const *whats,
                        int n) {
    struct listener l = {0};
    assert_int_equal(measure(c, &l, bench), OK);
    assert_int_equal(json_array_size(bench->rows), n);
    for (int i = 0; i < n; i++) {
        const json_t *row = row_of(bench, whats[i]);
        assert_true(number(row, "seconds") > 0);
        assert_int_equal((int)number(row, "rounds"), 2);
    }
    assert_true(number(row_of(bench, "all"), "product_rate_share") > 0);
    assert_true(number(row_of(bench, "attention"), "time_share") < 1);
    return l.rounds;
}

static void expect_flops(const struct bench *bench, const char *what, double flops) {
    assert_true(fabs(number(row_of(bench, what), "flops") / flops - 1) < 1e-12);
}

static const char *const block_rows[] = {"all", "library", "linear", "attention", "bytes"};

TEST(block_rows_match_formulas) {
    struct bench bench;
    /* the bench runs one warm-up round and two measured rounds */
    assert_int_equal(measure_rows(&block_case, &bench, block_rows, 5), 3);
    double T = TOKENS, F = (int)(DIM / 3.0 * 8);
    double products = 2 * T * DIM * (4 * DIM + 3 * F), attention = 4 * T * T * DIM;
    expect_flops(&bench, "linear", products);
    expect_flops(&bench, "library", products);
    expect_flops(&bench, "attention", attention);
    expect_flops(&bench, "all", products + attention);
    json_decref(bench.rows);
}

/* Measures weight types with blocks of 32 values and with separate scales, compared with bf16. */
TEST(weight_types_are_measured) {
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_F8_E4M3, DTYPE_NVFP4_TILED};
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        struct bench_block_case c = block_case;
        c.sizes.type = types[i];
        measure_rows(&c, &bench, block_rows, 5);
        assert_true(number(row_of(&bench, "all"), "of_bf16") > 0);
        assert_string_equal(json_string_value(json_object_get(row_of(&bench, "all"), "type")),
                            dtype_name(types[i]));
        json_decref(bench.rows);
    }
}

TEST(adapter_changes_result) {
    struct bench bench;
    struct error e = {0};
    struct bench_block_case c = block_case;
    c.sizes.adapter_rank = 3;
    measure_rows(&c, &bench, block_rows, 5);
    assert_true(number(row_of(&bench, "all"), "of_base") > 0);
    assert_int_equal((int)number(row_of(&bench, "all"), "adapter_rank"), 3);
    json_decref(bench.rows);
    struct device *device = cpu_open(&bench.sys, 1, &e);
    struct tensor tokens[2];
    struct random_component made[2];
    for (int i = 0; i < 2; i++) {
        c.sizes.adapter_rank = 3 * i;
        assert_int_equal(random_component_make(&made[i], &bench.sys, device, &c.sizes, &e), OK);
        assert_int_equal(random_component_run(&made[i], device, &e), OK);
        tokens[i] = component_state_tensor(&made[i].component, &made[i].lane, "tokens");
        assert_int_equal(made[i].adapters != NULL, i);
    }
    assert_memory_not_equal(tokens[0].data, tokens[1].data, (size_t)tensor_bytes(&tokens[0]));
    for (int i = 0; i < 2; i++) random_component_destroy(&made[i]);
    device->destroy(device);
}

/* Returns the FLOPs of a VAE decoder: conv_in, two convolutions per resnet and a shortcut where channels
 * grow, upsampling at the new size, conv_out, and the middle block's four projections and attention. */
static double decoder_convolutions(void) {
    double flops = 0, pixels = SIDE * SIDE;
    const double width[4] = {16, 16, 8, 8};
    flops += 2 * pixels * 4 * 16 * 9 + 4 * 2 * pixels * 16 * 16 * 9;
    for (int level = 0; level < 4; level++) {
        double out = width[level], in = level ? width[level - 1] : out;
        flops += 2 * pixels * 9 * (in * out + out * out) + (in == out ? 0 : 2 * pixels * in * out);
        if (level < 3) pixels *= 4, flops += 2 * pixels * 9 * out * out;
    }
    return flops + 2 * pixels * 9 * 8 * 3;
}

TEST(decoder_rows_match_formulas) {
    static const char *const rows[] = {"all", "library", "linear", "attention", "conv", "bytes"};
    struct bench bench;
    measure_rows(&decoder_case, &bench, rows, 6);
    double projections = 4 * 2.0 * SIDE * SIDE * 16 * 16, convolutions = decoder_convolutions();
    expect_flops(&bench, "conv", convolutions);
    expect_flops(&bench, "library", convolutions + projections);
    json_decref(bench.rows);
}

TEST(cancel_ends_measurement) {
    const struct bench_block_case *cases[] = {&block_case, &decoder_case};
    for (int i = 0; i < 2; i++)
        for (int refuse_at = 1; refuse_at <= 3; refuse_at++) {
            struct listener l = {.refuse_at = refuse_at};
            struct bench bench;
            assert_int_equal(measure(cases[i], &l, &bench), CANCELLED);
            assert_int_equal(json_array_size(bench.rows), 0);
            json_decref(bench.rows);
        }
}

int main(void) {
    return run_all_tests(NULL, NULL);
}
