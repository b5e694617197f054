/* Each instruction of ptx.cuh against plain loops, with layouts after the PTX ISA (mma.m16n8k16,
 * mma.m16n8k32, ldmatrix): lane l has group g = l / 4 and place p = l % 4.
 *
 * The GPU run matters most: emulator and kernels were written from the same manual and could share a mistake.
 */
#include "test/device/cuda_checker.h"

#include "test/device/fragments.h"
#include "test/lib/cmocka_tests.h"

static struct device *cuda;

/* Bytes of mapped host memory shared by test and GPU. */
enum { SHARED_MAX = 4 << 20 };
static char *shared_memory;
static size_t shared_used;

static void *shared(size_t bytes) {
    void *at = shared_memory + shared_used;
    shared_used += (bytes + 255) / 256 * 256;
    assert_true(shared_used <= SHARED_MAX);
    return at;
}

/* Converts an integer up to 256, which bf16 represents exactly, to bf16 bits. */
static uint16_t bf16_of(int value) {
    return (uint16_t)(bits_of((float)value) >> 16);
}

static uint32_t pair(uint16_t low, uint16_t high) {
    return (uint32_t)high << 16 | low;
}

/* Element (row, k) of matrix a. All differ, so that no exchanged position gives the right sum. */
static int a_value(int row, int k) {
    return 1 + row * 16 + k;
}

static int b_value(int k, int column) {
    return 256 - (column * 16 + k) % 251;
}

/* Converts a float to f16 bits, nearest even. */
static uint16_t f16_of(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

/* Elements whose sums f16 represents exactly: the sum of 16 products is at most 1,920. */
static int small_a(int row, int k) {
    return (row * 5 + k * 3) % 13 - 4;
}

static int small_b(int k, int column) {
    return (column * 7 + k * 5) % 17 - 8;
}

/* Matrices of mma: A is 16 rows of k, B 8 columns of k, C 16 rows of 8 columns. */
enum matrix { A, B, C };

/* The place of a lane's value in a matrix: its row and column, or in B its column and k. */
struct place {
    int row, column;
};

/* The layouts of the PTX ISA. */
static struct place ptx_place(enum matrix matrix, int lane, int value) {
    int g = lane / 4, column = lane % 4 * 2 + value % 2, pair = value / 2;
    if (matrix == A) return (struct place){g + pair % 2 * 8, column + pair / 2 * 8};
    return matrix == B ? (struct place){g, column + pair * 8} : (struct place){g + pair * 8, column};
}

/* A layout as strides of CuTe (include/cute/atom/mma_traits_sm80.hpp), a source independent of the PTX ISA.
 * Lane and value are numbers of mixed base, first digit fastest. The sum of digits times strides is row +
 * rows
 * * column. */
enum { DIGITS = 3 };
struct digits {
    int base[DIGITS], stride[DIGITS];
};
struct cute_layout {
    struct digits lane, value;
    int rows;
};

static struct place cute_place_in(const struct cute_layout *layout, int lane, int value) {
    const struct digits *numbers[] = {&layout->lane, &layout->value};
    int number[] = {lane, value}, offset = 0;
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < DIGITS; number[n] /= numbers[n]->base[i++])
            offset += number[n] % numbers[n]->base[i] * numbers[n]->stride[i];
    return (struct place){offset % layout->rows, offset / layout->rows};
}

/* SM80_16x8x16_F32BF16BF16F32_TN */
static struct place cute_place(enum matrix matrix, int lane, int value) {
    static const struct cute_layout layouts[] = {
        [A] = {{{4, 8, 1}, {32, 1, 0}}, {{2, 2, 2}, {16, 8, 128}}, 16},
        [B] = {{{4, 8, 1}, {16, 1, 0}}, {{2, 2, 1}, {8, 64, 0}}, 8},
        [C] = {{{4, 8, 1}, {32, 1, 0}}, {{2, 2, 1}, {16, 8, 0}}, 16},
    };
    return cute_place_in(&layouts[matrix], lane, value);
}

/* Multiplies with fragments laid out by `place_of`. */
static void check_mma(struct place (*place_of)(enum matrix matrix, int lane, int value)) {
    shared_used = 0;
    uint16_t *a = shared(LANES * 8 * sizeof *a), *b = shared(LANES * MMA_TILES * 4 * sizeof *b);
    float *d = shared(LANES * MMA_TILES * 4 * sizeof *d);
    for (int l = 0; l < LANES; l++) {
        for (int v = 0; v < 8; v++) {
            struct place p = place_of(A, l, v);
            a[l * 8 + v] = bf16_of(a_value(p.row, p.column));
        }
        for (int i = 0; i < MMA_TILES * 4; i++) {
            struct place p = place_of(B, l, i % 4);
            b[l * MMA_TILES * 4 + i] = bf16_of(b_value(p.column, i / 4 * 8 + p.row));
            d[l * MMA_TILES * 4 + i] = (float)(l * 100 + i);
        }
    }
    fragments_mma(cuda, (uint32_t *)a, (uint32_t *)b, d);
    checker_wait();
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < MMA_TILES * 4; i++) {
            struct place p = place_of(C, l, i % 4);
            int sum = l * 100 + i;
            for (int k = 0; k < 16; k++) sum += a_value(p.row, k) * b_value(k, i / 4 * 8 + p.column);
            assert_int_equal((int)d[l * MMA_TILES * 4 + i], sum);
        }
}

TEST(mma) {
    check_mma(ptx_place);
}

TEST(strides) {
    check_mma(cute_place);
}

/* f16 represents the integers up to 2,048: small factors keep sums exact. */
TEST(mma_f16) {
    shared_used = 0;
    uint16_t *a = shared(LANES * 8 * sizeof *a), *b = shared(LANES * MMA_TILES * 4 * sizeof *b);
    uint16_t *d = shared(LANES * MMA_TILES * 4 * sizeof *d);
    for (int l = 0; l < LANES; l++) {
        for (int v = 0; v < 8; v++) {
            struct place p = ptx_place(A, l, v);
            a[l * 8 + v] = f16_of(small_a(p.row, p.column));
        }
        for (int i = 0; i < MMA_TILES * 4; i++) {
            struct place p = ptx_place(B, l, i % 4);
            b[l * MMA_TILES * 4 + i] = f16_of(small_b(p.column, i / 4 * 8 + p.row));
            d[l * MMA_TILES * 4 + i] = f16_of(l * 4 + i);
        }
    }
    fragments_mma_f16(cuda, (uint32_t *)a, (uint32_t *)b, (uint32_t *)d);
    checker_wait();
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < MMA_TILES * 4; i++) {
            struct place p = ptx_place(C, l, i % 4);
            int sum = l * 4 + i;
            for (int k = 0; k < 16; k++) sum += small_a(p.row, k) * small_b(k, i / 4 * 8 + p.column);
            assert_int_equal(d[l * MMA_TILES * 4 + i], f16_of(sum));
        }
}

/* The layouts of the PTX ISA for mma.m16n8k32 with 8-bit operands. */
static struct place ptx_place_s8(enum matrix matrix, int lane, int value) {
    int g = lane / 4, column = lane % 4 * 4 + value % 4, word = value / 4;
    if (matrix == A) return (struct place){g + word % 2 * 8, column + word / 2 * 16};
    return matrix == B ? (struct place){g, column + word * 16} : ptx_place(C, lane, value);
}

/* SM80_16x8x32_S32S8S8S32_TN */
static struct place cute_place_s8(enum matrix matrix, int lane, int value) {
    static const struct cute_layout layouts[] = {
        [A] = {{{4, 8, 1}, {64, 1, 0}}, {{4, 2, 2}, {16, 8, 256}}, 16},
        [B] = {{{4, 8, 1}, {32, 1, 0}}, {{4, 2, 1}, {8, 128, 0}}, 8},
        [C] = {{{4, 8, 1}, {32, 1, 0}}, {{2, 2, 1}, {16, 8, 0}}, 16},
    };
    return cute_place_in(&layouts[matrix], lane, value);
}

/* Signed bytes; products of the two patterns give different sums if any positions are exchanged. */
static int a_byte(int row, int k) {
    return (row * 37 + k * 11 + k * k) % 255 - 127;
}

static int b_byte(int k, int column) {
    return (column * 29 + k * 53 + k * k * 7 + 5) % 255 - 127;
}

/* starts: sums start from one value instead of d. */
static void check_mma_s8(struct place (*place_of)(enum matrix matrix, int lane, int value), bool starts) {
    shared_used = 0;
    int8_t *a = shared(LANES * 16), *b = shared(LANES * MMA_TILES * 8);
    int32_t *d = shared(LANES * MMA_TILES * 4 * sizeof *d), *start = shared(sizeof *start);
    *start = 0x4b400000;
    for (int l = 0; l < LANES; l++) {
        for (int v = 0; v < 16; v++) {
            struct place p = place_of(A, l, v);
            a[l * 16 + v] = (int8_t)a_byte(p.row, p.column);
        }
        for (int i = 0; i < MMA_TILES * 8; i++) {
            struct place p = place_of(B, l, i % 8);
            b[l * MMA_TILES * 8 + i] = (int8_t)b_byte(p.column, i / 8 * 8 + p.row);
        }
        for (int i = 0; i < MMA_TILES * 4; i++) d[l * MMA_TILES * 4 + i] = (l * 100 + i) * (1 << 18);
    }
    fragments_mma_s8(cuda, (uint32_t *)a, (uint32_t *)b, d, starts ? start : NULL);
    checker_wait();
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < MMA_TILES * 4; i++) {
            struct place p = place_of(C, l, i % 4);
            int sum = starts ? *start : (l * 100 + i) * (1 << 18);
            for (int k = 0; k < 32; k++) sum += a_byte(p.row, k) * b_byte(k, i / 4 * 8 + p.column);
            assert_int_equal(d[l * MMA_TILES * 4 + i], sum);
        }
}

TEST(mma_s8) {
    check_mma_s8(ptx_place_s8, false);
    check_mma_s8(ptx_place_s8, true);
    check_mma_s8(cute_place_s8, false);
}

TEST(ldmatrix) {
    for (int transposed = 0; transposed < 2; transposed++) {
        shared_used = 0;
        uint16_t *values = shared(LANES * TILE_STRIDE * sizeof *values);
        int32_t *row_of = shared(LANES * sizeof *row_of);
        uint32_t *got = shared(LANES * 4 * sizeof *got);
        for (int i = 0; i < LANES * TILE_STRIDE; i++) values[i] = (uint16_t)(7 + 13 * i);
        /* ldmatrix lanes point at rows in a scattered order */
        for (int l = 0; l < LANES; l++) row_of[l] = (l * 5 + 3) % LANES;
        fragments_ldmatrix(cuda, values, row_of, transposed, got);
        checker_wait();
        for (int l = 0; l < LANES; l++)
            for (int t = 0; t < 4; t++) {
                int g = l / 4, p = l % 4;
                const uint16_t *first = values + row_of[t * 8 + (transposed ? 2 * p : g)] * TILE_STRIDE;
                const uint16_t *second = values + row_of[t * 8 + (transposed ? 2 * p + 1 : g)] * TILE_STRIDE;
                uint32_t want =
                    transposed ? pair(first[g], second[g]) : pair(first[2 * p], second[2 * p + 1]);
                assert_int_equal(got[l * 4 + t], want);
            }
    }
}

TEST(product) {
    for (int transposed = 0; transposed < 2; transposed++) {
        shared_used = 0;
        uint16_t *a = shared(256 * sizeof *a), *b = shared(256 * sizeof *b);
        float *d = shared(256 * sizeof *d);
        for (int i = 0; i < 256; i++) {
            a[i] = bf16_of(a_value(i / 16, i % 16));
            b[i] = bf16_of(transposed ? b_value(i / 16, i % 16) : b_value(i % 16, i / 16));
        }
        fragments_product(cuda, a, b, transposed, d);
        checker_wait();
        for (int i = 0; i < 256; i++) {
            int sum = 0;
            for (int k = 0; k < 16; k++) sum += a_value(i / 16, k) * b_value(k, i % 16);
            assert_int_equal((int)d[i], sum);
        }
    }
}

TEST(copy) {
    shared_used = 0;
    uint32_t *from = shared(CHUNKS * 16), *to = shared(CHUNKS * 16);
    int32_t *valid = shared(CHUNKS * sizeof *valid);
    for (int i = 0; i < CHUNKS * 4; i++) from[i] = 0x10001u * (uint32_t)(i + 1), to[i] = 0xffffffff;
    for (int i = 0; i < CHUNKS; i++) valid[i] = i % 5 != 2;
    fragments_copy(cuda, from, valid, to);
    checker_wait();
    for (int i = 0; i < CHUNKS * 4; i++) assert_int_equal(to[i], valid[i / 4] ? from[i] : 0);
}

/* exp2_fast has a relative error of at most 2^-22 (ptx.cuh); subnormal results are flushed to 0. */
TEST(exp2) {
    enum { N = 20000 };
    shared_used = 0;
    float *from = shared(N * sizeof *from), *to = shared(N * sizeof *to);
    for (int i = 0; i < N; i++) from[i] = -125.9f + 253.8f * (float)i / N;
    from[0] = -INFINITY, from[1] = -200, from[2] = 0, from[3] = -1;
    fragments_exp2(cuda, from, to, N);
    checker_wait();
    double worst = 0;
    for (int i = 2; i < N; i++) worst = fmax(worst, fabs((double)to[i] / exp2((double)from[i]) - 1));
    printf("  exp2: 2^%.2f\n", log2(worst));
    assert_true(to[0] == 0 && to[1] == 0 && to[2] == 1 && to[3] == 0.5f);
    assert_true(worst <= 0x1p-22);
}

TEST(pack) {
    enum { N = 3000 };
    shared_used = 0;
    float *low = shared(N * sizeof *low), *high = shared(N * sizeof *high);
    uint32_t *to = shared(N * sizeof *to);
    random_state = 1;
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)random_bits();
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* a value halfway between two bf16 values */
        memcpy(&low[i], &bits, sizeof bits);
        if (!isfinite(low[i])) low[i] = 0;
        high[i] = -1.5f * (float)(i + 1);
    }
    low[0] = NAN, low[1] = INFINITY, low[2] = -0.0f;
    fragments_pack(cuda, low, high, to, N);
    checker_wait();
    for (int i = 1; i < N; i++) {
        float got[2];
        uint32_t bits[2] = {to[i] << 16, to[i] & 0xffff0000u};
        memcpy(got, bits, sizeof got);
        /* f32 values beyond the largest bf16 round to infinity. */
        if (!(fabsf(low[i]) > 0x1.fep127f)) assert_true((double)got[0] == nearest_bf16((double)low[i]));
        assert_true((double)got[1] == nearest_bf16((double)high[i]));
    }
    assert_true((to[0] & 0x7fff) > 0x7f80);
    assert_int_equal(to[1] & 0xffff, 0x7f80);
    assert_int_equal(to[2] & 0xffff, 0x8000);
}

/* Rounding to f16: every value halfway between two f16 values, its neighbours, subnormals, infinities, NaN.
 */
TEST(pack_f16) {
    enum { N = 3 * 0x7c00 };
    shared_used = 0;
    float *low = shared(N * sizeof *low), *high = shared(N * sizeof *high);
    uint32_t *to = shared(N * sizeof *to);
    uint16_t each[2];
    struct tensor t = tensor_make(each, DTYPE_F16, SHAPE(2));
    for (int i = 0; i < N; i++) {
        each[0] = (uint16_t)(i / 3), each[1] = (uint16_t)(i / 3 + 1);
        float from = (float)load(&t, 0, 0), next = i / 3 + 1 == 0x7c00 ? 65536 : (float)load(&t, 0, 1);
        low[i] = (from + next) / 2;
        if (i % 3) low[i] = nextafterf(low[i], i % 3 == 1 ? 0 : INFINITY);
        high[i] = -low[i];
    }
    float largest = low[N - 1];
    low[0] = NAN, high[0] = -INFINITY;
    fragments_pack_f16(cuda, low, high, to, N);
    checker_wait();
    assert_true(largest > 65520);
    for (int i = 1; i < N; i++) {
        each[0] = (uint16_t)to[i], each[1] = (uint16_t)(to[i] >> 16);
        for (int j = 0; j < 2; j++) {
            double expected = nearest_f16((double)(j ? high : low)[i]);
            double got = (each[j] & 0x7fff) == 0x7c00 ? copysign(INFINITY, expected) : load(&t, 0, j);
            if (got != expected) fail_msg("%a rounded to %a, expected %a", low[i], got, expected);
            assert_int_equal(each[j] >> 15, j);
        }
    }
    assert_true((to[0] & 0x7fff) > 0x7c00);
    assert_int_equal(to[0] >> 16, 0xfc00);
}

static void check_f16(void (*convert)(struct device *, const uint16_t *, float *, int32_t)) {
    enum { N = 1 << 16 };
    shared_used = 0;
    uint16_t *from = shared(N * sizeof *from);
    float *to = shared(N * sizeof *to);
    for (int i = 0; i < N; i++) from[i] = (uint16_t)i;
    convert(cuda, from, to, N);
    checker_wait();
    struct tensor t = tensor_make(from, DTYPE_F16, SHAPE(N));
    for (int i = 0; i < N; i++) {
        if ((i & 0x7c00) != 0x7c00)
            assert_true((double)to[i] == load(&t, 0, i) && !signbit(to[i]) == !(i & 0x8000));
        else
            assert_true(i & 0x3ff ? isnan(to[i]) : isinf(to[i]) && !signbit(to[i]) == !(i & 0x8000));
    }
}

TEST(f16) {
    check_f16(fragments_f16);
    check_f16(fragments_unpack_f16);
}

/* Opens the CUDA device without cuBLASLt and cuDNN, which these kernels do not need. */
static int open_device(void **state) {
    setenv("EMU_ABSENT", "cublaslt,cudnn", 1);
    int failed = set_up(state);
    cuda = checker.cuda;
    shared_memory = cuda->memory->alloc_mapped(cuda, SHARED_MAX);
    return failed || !shared_memory;
}

static int close_device(void **state) {
    if (checker.cuda) cuda->memory->free_mapped(cuda, shared_memory, SHARED_MAX);
    return tear_down(state);
}

int main(void) {
    return run_all_tests(open_device, close_device);
}
