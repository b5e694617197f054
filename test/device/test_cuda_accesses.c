/* Memory access patterns of the hot kernels, counted by the emulator (test/emu/emu.h): sectors of global
 * memory per request, shared memory passes per phase (bank conflicts). The counts are equal on every machine.
 * Skipped on a GPU. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"

#include "test/lib/ops_cases.h"

struct op_error op_errors[N_OP_KINDS];

static int percent(uint64_t found, uint64_t least) {
    return least ? (int)((100 * found + least - 1) / least) : 0;
}

static void begin(void) {
    random_state = 1;
    emulated_count_accesses(true);
}

/* Limits in percent for the kernels whose name contains `kernel`, since begin(): sectors relative to the
 * fewest possible, passes relative to phases. */
static void end(const char *kernel, int sectors_most, int passes_most) {
    struct emu_accesses a = emulated_accesses(kernel);
    emulated_count_accesses(false);
    int sectors = percent(a.sectors, a.least_sectors), passes = percent(a.passes, a.phases);
    printf("  %-10s %8llu requests, sectors %3d %%, passes %3d %%\n", kernel, (unsigned long long)a.requests,
           sectors, passes);
    assert_true(a.requests > 0);
    if (sectors > sectors_most)
        fail_msg("%s: %d sectors per 100 needed, limit %d", kernel, sectors, sectors_most);
    if (passes > passes_most) fail_msg("%s: %d passes per 100 phases, limit %d", kernel, passes, passes_most);
}

/* Operators with f32 results. Known reasons for more than 100: heads of 80 columns have 11 pieces of 16 bytes
 * per row, so eight lanes write to two rows of keys; f32 rows converted to bf16 are read in two halves of 32
 * bytes, and the cache serves the second half. */
static void test_accesses(void **state) {
    static const struct {
        int32_t head;
        int passes;
    } heads[] = {{64, 100}, {80, 111}, {128, 100}, {512, 100}};
    for (int i = 0; i < 4; i++) {
        begin();
        case_attention((struct attention_case){66, 100, 1, 1, heads[i].head, 0, false, false, 0.1f}, false);
        if (heads[i].head == 128) {
            struct emu_accesses packed = emulated_accesses("pack");
            assert_true(packed.requests > 0 && percent(packed.sectors, packed.least_sectors) <= 170);
        }
        end("attend", 100, heads[i].passes);
    }
    begin();
    case_rms_norm((struct rms_case){5, 3840, 1, DTYPE_BF16, 0, true, false, ACTIVATION_NONE});
    end("rms", 100, 0);
    begin();
    case_rms_norm((struct rms_case){9, 128, 30, DTYPE_BF16, 0, false, false, ACTIVATION_NONE});
    end("rms", 100, 0);
    begin();
    case_affine(5, 3072, 0, WITH_SCALE, true);
    end("layer", 100, 0);
    begin();
    case_glu(5, 1024, 0, 0, ACTIVATION_SILU);
    end("glu", 100, 0);
    begin();
    case_linear((struct linear_case){9, 64, 3840, DTYPE_BF16, 0, false, .residual = RESIDUAL_NONE});
    end("round", 170, 0);
    begin();
    case_linear_few((struct linear_case){2, 512, 256, DTYPE_BF16, 0, true, .activation = ACTIVATION_SILU});
    end("few", 175, 0);
    begin();
    case_conv((struct conv_case){16, 16, 128, 128, 3, DTYPE_BF16, 1, 32, ACTIVATION_SILU, true, RESIDUAL_OUT},
              (struct conv_options){0});
    end("", 105, 0);
    begin();
    case_conv(
        (struct conv_case){6, 8, 96, 32, 3, DTYPE_BF16, 1, PIXEL_NORM, ACTIVATION_SILU, true, RESIDUAL_OUT},
        (struct conv_options){0});
    case_conv(
        (struct conv_case){3, 8, 384, 32, 1, DTYPE_F32, 1, PIXEL_NORM, ACTIVATION_NONE, true, RESIDUAL_OUT},
        (struct conv_options){0});
    end("gather_normed", 100, 0);
}

static struct tensor random_bf16(int rank, const int32_t *dim) {
    return tensor_random(DTYPE_BF16, rank, dim, 0, 1);
}

/* Results in bf16 for products, as in forward functions. The rope table of split-half heads is read in two
 * halves of 32 bytes. */
static void test_accesses_for_products(void **state) {
    begin();
    case_begin();
    struct tensor q = random_bf16(SHAPE(128, 256)), k = random_bf16(SHAPE(200, 256));
    op_attention(&x, q, q, k, k, (struct attention_options){.queries = 2, .keys = 2, .scale = 0.1f});
    end("attend", 100, 100);
    begin();
    case_begin();
    x.precision = PRECISION_INT8;
    struct tensor sums = tensor_random(DTYPE_F32, SHAPE(256, 512), 0, 1);
    op_linear(&x, sums, random_bf16(SHAPE(256, 320)), random_bf16(SHAPE(512, 320)),
              (struct epilogue){.activation = ACTIVATION_SILU, .residual = sums});
    x.precision = PRECISION_BF16;
    end("multiply_int8", 100, 100);
    begin();
    case_begin();
    x.precision = PRECISION_INT8;
    q = random_bf16(SHAPE(512, 128)), k = random_bf16(SHAPE(256, 128));
    op_attention(&x, q, q, k, k, (struct attention_options){.queries = 1, .keys = 1, .scale = 0.1f});
    x.precision = PRECISION_BF16;
    struct emu_accesses quantised = emulated_accesses("attention_quantise");
    assert_true(quantised.requests > 0 && percent(quantised.sectors, quantised.least_sectors) == 100);
    end("attend_int8", 100, 100);
    begin();
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(5, 3840), 0, 1);
    op_rms_norm(&x, random_bf16(2, in.dim), in, random_bf16(SHAPE(3840)), 1e-5f, (struct modulation){0});
    end("rms", 100, 0);
    begin();
    case_begin();
    in = tensor_random(DTYPE_F32, SHAPE(5, 1024), 0, 1);
    op_glu(&x, random_bf16(2, in.dim), in, in, ACTIVATION_SILU);
    end("glu", 100, 0);
    for (int halves = 0; halves < 2; halves++) {
        begin();
        case_begin();
        in = tensor_random(DTYPE_F32, SHAPE(9, 30 * 128), 0, 1);
        struct rotation rotation = {
            .heads = 30, .pairs = halves ? ROPE_HALVES : ROPE_INTERLEAVED, .eps = 1e-5f};
        rotation.norm = random_bf16(SHAPE(128));
        op_rope(&x, random_bf16(2, in.dim), in, tensor_random(DTYPE_F32, SHAPE(9, 64, 2), 0, 1), rotation);
        end("rope_runs", halves ? 150 : 100, halves ? 100 : 0);
        begin();
        case_begin();
        in = tensor_random(DTYPE_F32, SHAPE(12, 32 * 128), 0, 1);
        rotation.heads = 32, rotation.axes = (struct rope_axes){3, {2, 2, 3}, 2, 0};
        op_rope(&x, random_bf16(2, in.dim), in, tensor_random(DTYPE_F32, SHAPE(7, 682, 2), 0, 1), rotation);
        end("rope_by_axes", 100, halves ? 100 : 0);
    }
    begin();
    case_begin();
    op_group_range(&x, tensor_random(DTYPE_F32, SHAPE(5, 2), 0, 1),
                   tensor_random(DTYPE_F32, SHAPE(1, 40, 5 * 768), 0, 1), 5, 8, 1e-6f);
    end("range", 100, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accesses),
                                       cmocka_unit_test(test_accesses_for_products)};
    if (!emulated()) return 0;
    /* result errors are ignored, because other tests check results */
    for (int i = 0; i < N_OP_KINDS; i++) op_errors[i].known = 1e-2;
    return tests_run(tests, sizeof tests / sizeof *tests, set_up, tear_down);
}
