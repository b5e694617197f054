/* Memory access patterns of the hot kernels, counted by the emulator (test/emu/emu.h): sectors of global
 * memory per request, shared memory passes per phase (bank conflicts). The counts are equal on every machine.
 * Skipped on a GPU. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"

#include "test/lib/ops_cases.h"

struct op_error op_errors[N_OP_KINDS];

/* Attention with f32 rows and model head sizes. */
static void attention_of(int32_t head) {
    case_attention((struct attention_case){66, 100, 1, 1, head, 0, false, false, 0.1f}, false);
}
static void attention_64(void) {
    attention_of(64);
}
static void attention_80(void) {
    attention_of(80);
}
static void attention_128(void) {
    attention_of(128);
}
static void attention_512(void) {
    attention_of(512);
}
static void rms_of_rows(void) {
    case_rms_norm((struct rms_case){5, 3840, 1, DTYPE_BF16, 0, true, false, ACTIVATION_NONE});
}
static void rms_of_heads(void) {
    case_rms_norm((struct rms_case){9, 128, 30, DTYPE_BF16, 0, false, false, ACTIVATION_NONE});
}
static void layer_norm(void) {
    case_affine(5, 3072, 0, WITH_SCALE, true);
}
static void glu(void) {
    case_glu(5, 1024, 0, 0, ACTIVATION_SILU);
}
static void rounding(void) {
    case_linear((struct linear_case){9, 64, 3840, DTYPE_BF16, 0, false, .residual = RESIDUAL_NONE});
}
static void few(void) {
    case_linear_few((struct linear_case){2, 512, 256, DTYPE_BF16, 0, true, .activation = ACTIVATION_SILU});
}

/* Attention in bf16 as in forward functions: heads are adjacent, and products read the result. */
static void attention_of_operands(void) {
    case_begin();
    struct tensor q = tensor_random(DTYPE_BF16, SHAPE(128, 256), 0, 1);
    struct tensor k = tensor_random(DTYPE_BF16, SHAPE(200, 256), 0, 1), v = k;
    op_attention(&x, q, q, k, v, (struct attention_options){.queries = 2, .keys = 2, .scale = 0.1f});
}
static void rms_for_products(void) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(5, 3840), 0, 1);
    op_rms_norm(&x, tensor_random(DTYPE_BF16, 2, in.dim, 0, 1), in,
                tensor_random(DTYPE_BF16, SHAPE(3840), 0, 1), 1e-5f, (struct modulation){0});
}
static void glu_for_products(void) {
    case_begin();
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(5, 1024), 0, 1);
    op_glu(&x, tensor_random(DTYPE_BF16, 2, a.dim, 0, 1), a, a, ACTIVATION_SILU);
}
static void heads_rope(enum rope_pairs pairs) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(9, 30 * 128), 0, 1);
    struct rotation rotation = {.heads = 30, .pairs = pairs, .eps = 1e-5f};
    rotation.norm = tensor_random(DTYPE_BF16, SHAPE(128), 0, 1);
    op_rope(&x, tensor_random(DTYPE_BF16, 2, in.dim, 0, 1), in,
            tensor_random(DTYPE_F32, SHAPE(9, 64, 2), 0, 1), rotation);
}
static void heads_interleaved(void) {
    heads_rope(ROPE_INTERLEAVED);
}
static void heads_in_halves(void) {
    heads_rope(ROPE_HALVES);
}
static void conv(void) {
    case_conv((struct conv_case){16, 16, 128, 128, 3, DTYPE_BF16, 1, 32, true, true, RESIDUAL_OUT},
              (struct conv_options){0});
}
static void conv_of_pixels(void) {
    case_conv(
        (struct conv_case){6, 8, 96, 32, 3, DTYPE_BF16, 1, PIXEL_NORM, ACTIVATION_SILU, true, RESIDUAL_OUT},
        (struct conv_options){0});
    case_conv(
        (struct conv_case){3, 8, 384, 32, 1, DTYPE_F32, 1, PIXEL_NORM, ACTIVATION_NONE, true, RESIDUAL_OUT},
        (struct conv_options){0});
}

/* Limits in percent: sectors relative to the fewest possible, passes relative to phases.
 *
 * Known reasons for more than 100: heads of 80 columns have 11 pieces of 16 bytes per row, so eight lanes
 * write to two rows of keys. f32 rows converted to bf16, and the rope table of split-half heads, are read in
 * two halves of 32 bytes; the cache serves the second half. */
static const struct accesses_case {
    const char *kernel;
    void (*run)(void);
    int sectors, passes;
} cases[] = {
    {"attend", attention_64, 100, 100},
    {"attend", attention_80, 100, 111},
    {"attend", attention_128, 100, 100},
    {"attend", attention_512, 100, 100},
    {"attend", attention_of_operands, 100, 100},
    {"pack", attention_128, 170, 0},
    {"rms", rms_of_rows, 100, 0},
    {"rms", rms_of_heads, 100, 0},
    {"layer", layer_norm, 100, 0},
    {"glu", glu, 100, 0},
    {"rms", rms_for_products, 100, 0},
    {"glu", glu_for_products, 100, 0},
    {"rope_runs", heads_interleaved, 100, 0},
    {"rope_runs", heads_in_halves, 150, 100},
    {"round", rounding, 170, 0},
    {"few", few, 175, 0},
    {"", conv, 105, 0},
    {"gather_normed", conv_of_pixels, 100, 0},
};

static int percent(uint64_t found, uint64_t least) {
    return least ? (int)((100 * found + least - 1) / least) : 0;
}

static void test_accesses(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct accesses_case *c = &cases[i];
        random_state = 1;
        emulated_count_accesses(true);
        c->run();
        struct emu_accesses a = emulated_accesses(c->kernel);
        emulated_count_accesses(false);
        int sectors = percent(a.sectors, a.least_sectors), passes = percent(a.passes, a.phases);
        printf("  %-10s %8llu requests, sectors %3d %%, passes %3d %%\n", c->kernel,
               (unsigned long long)a.requests, sectors, passes);
        assert_true(a.requests > 0);
        if (sectors > c->sectors)
            fail_msg("%s: %d sectors per 100 needed, limit %d", c->kernel, sectors, c->sectors);
        if (passes > c->passes)
            fail_msg("%s: %d passes per 100 phases, limit %d", c->kernel, passes, c->passes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accesses)};
    if (!emulated()) return 0;
    /* result errors are ignored, because other tests check results */
    for (int i = 0; i < N_OP_KINDS; i++) op_errors[i].known = 1e-2;
    int n = 1, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
