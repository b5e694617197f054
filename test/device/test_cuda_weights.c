/* Weights of every stored type on the CUDA device, on a GPU or under the emulator: dequantised values equal
 * those of independent decoders at any alignment, and every operator gives the bits that it gives for the
 * dequantised f32 weights. ONLY and SKIP in the environment are patterns of test names. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"
#include "test/lib/quantised_ops.h"

#include "kernels/cpu/weights.h"
#include "test/lib/cmocka_tests.h"

#include <nettle/sha2.h>

/* Sanitizer builds are too slow for dequantising whole sweeps over all scales: such builds compare pieces of
 * each sweep with the CPU. */
#ifdef __SANITIZE_THREAD__
enum { SMALL = 1, WHOLE_SWEEPS = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL = 0, WHOLE_SWEEPS = 0 };
#else
enum { SMALL = 0, WHOLE_SWEEPS = 1 };
#endif

static void expect_bits(enum dtype dtype, const struct tensor *found, const float *expected) {
    int64_t columns = tensor_columns(found);
    assert_ok(&problem);
    for (int64_t i = 0; i < tensor_elements(found); i++) {
        float *at = (float *)((char *)found->data + i / columns * found->row_bytes) + i % columns;
        quantised_canonical_nan(at, 1);
        if (bits_of(*at) != bits_of(expected[i]))
            fail_msg("%s: value %lld is %08x, expected %08x", dtype_name(dtype), (long long)i,
                     (unsigned)bits_of(*at), (unsigned)bits_of(expected[i]));
    }
}

/* Returns a copy of the weights whose bytes (and tiled scales) start `shift` bytes after a multiple of 256,
 * with `gap` blocks between rows. */
static struct tensor moved(const struct tensor *w, int shift, int gap) {
    struct tensor t = *w;
    t.row_bytes += gap * dtype_block_bytes(w->dtype);
    size_t bytes = (size_t)(t.dim[0] * t.row_bytes);
    t.data = (char *)operand_memory(bytes + (size_t)shift) + shift;
    memset((char *)t.data - shift, 0xff, bytes + (size_t)shift);
    for (int32_t i = 0; i < t.dim[0]; i++)
        memcpy((char *)t.data + i * t.row_bytes, (char *)w->data + i * w->row_bytes, (size_t)w->row_bytes);
    return t;
}

/* Dequantises rows whose blocks have every alignment, with and without gaps between rows. */
TEST(rows) {
    static const struct {
        int shift, gap, out_gap;
    } places[] = {{0, 0, 0}, {1, 0, 3}, {2, 1, 4}, {3, 2, 0}, {4, 0, 1}, {6, 3, 0}, {8, 0, 0}, {12, 1, 2}};
    for (int i = 0; i < N_QUANTISED; i++)
        for (size_t j = 0; j < sizeof places / sizeof *places; j++) {
            case_begin();
            struct quantised q = quantised_read(quantised_types[i]);
            struct tensor w = moved(&q.weights, places[j].shift, places[j].gap);
            struct tensor out = tensor_random(DTYPE_F32, 2, w.dim, places[j].out_gap, 1);
            op_copy(&x, out, w);
            expect_bits(w.dtype, &out, q.values.data);
        }
}

/* Dequantises an odd number of rows from any row on; their scales are elsewhere in memory than the codes. */
TEST(slices) {
    for (int i = 0; i < N_QUANTISED; i++) {
        int32_t step = SMALL ? 13 : 3, rows = 2 * step + 1, end = 1;
        for (int32_t first = 0; first < end; first += step) {
            case_begin();
            struct quantised q = quantised_read(quantised_types[i]);
            const float *values = (float *)q.values.data + (int64_t)first * q.values.dim[1];
            end = q.values.dim[0] - rows;
            struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows, q.values.dim[1]), 0, 1);
            op_copy(&x, out, tensor_slice(q.weights, first, rows));
            expect_bits(q.weights.dtype, &out, values);
            op_broadcast_row(&x, out, tensor_slice(q.weights, first, 1));
            for (int32_t row = 0; row < rows; row++) {
                struct tensor one = tensor_slice(out, row, 1);
                expect_bits(q.weights.dtype, &one, values);
            }
        }
    }
}

/* Calls the device without cuda_checker.h, whose checks take longer than dequantising all scales. */
static void dequantise_unchecked(struct tensor out, struct tensor in) {
    struct op op = {.kind = OP_COPY, .out = out, .in = {in}};
    run_together(&op);
}

static void sweep_piece_as_on_cpu(enum dtype dtype, uint32_t piece) {
    case_begin();
    struct tensor t = sweep_piece(dtype, piece);
    if (!t.rank) return;
    float *expected = pool_alloc(sizeof *expected * (size_t)tensor_elements(&t));
    struct tensor out = tensor_random(DTYPE_F32, 2, t.dim, 0, 1);
    weights_widen(expected, &t, 0, t.dim[0]);
    quantised_canonical_nan(expected, tensor_elements(&t));
    dequantise_unchecked(out, t);
    expect_bits(dtype, &out, expected);
}

static void whole_sweep(enum dtype dtype) {
    unsigned char digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx sha;
    sha256_init(&sha);
    for (uint32_t piece = 0;; piece++) {
        case_begin();
        struct tensor t = sweep_piece(dtype, piece);
        if (!t.rank) break;
        struct tensor out = tensor_make(NULL, DTYPE_F32, 2, t.dim);
        out.data = operand_memory((size_t)tensor_bytes(&out));
        dequantise_unchecked(out, t);
        quantised_canonical_nan(out.data, tensor_elements(&out));
        sha256_update(&sha, (size_t)tensor_bytes(&out), out.data);
    }
    sha256_digest(&sha, sizeof digest, digest);
    case_begin();
    struct quantised q = quantised_read(dtype);
    if (memcmp(digest, q.sweep, sizeof digest) != 0) fail_msg("%s: wrong values", dtype_name(dtype));
}

/* Dequantises weights with every possible value of a scale. */
TEST(sweeps) {
    for (int i = 0; i < N_QUANTISED; i++) {
        if (WHOLE_SWEEPS)
            whole_sweep(quantised_types[i]);
        else
            sweep_piece_as_on_cpu(quantised_types[i], (uint32_t)i % 4);
    }
}

static const enum dtype plain_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

TEST(operators) {
    for (int i = 0; i < 3; i++) same_everywhere(plain_types[i]);
    for (int i = 0; i < N_QUANTISED; i++) same_everywhere(quantised_types[i]);
}

/* Convolutions are a separate test, so that systems without cuDNN can skip them. */
TEST(convolutions) {
    for (int i = 0; i < 3; i++) same_convolutions(plain_types[i]);
    for (int i = 0; i < N_QUANTISED; i++) same_convolutions(quantised_types[i]);
}

/* Tests products in two panels, of 2,112 and 1,988 weight rows: the second panel must use the right scales
 * and gates. */
TEST(panels) {
    if (!WHOLE_SWEEPS) return;
    same_linear(DTYPE_I8, 2100, 4100, 24);
    same_linear(DTYPE_Q8_0, 2100, 4096, 32);
    same_linear(DTYPE_NVFP4_TILED, 2100, 4096, 32);
}

int main(void) {
    quantised_alloc = operand_memory;
    small_operands = SMALL;
    return run_all_tests(set_up, tear_down);
}
