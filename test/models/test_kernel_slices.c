/* Convolutions whose weight is the last temporal slice of a 3D kernel (the Wan VAE on single frames): the
 * packed block equals the file's values bit for bit, for any part of the block, with and without direct I/O,
 * and after conversion. Packed blocks hold only the last slices. gates/test_store.c tests the streaming of
 * sliced blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/cache/requantised.h"
#include "engine/base/random.h"
#include "engine/run/reader.h"
#include "engine/run/requantise.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"
#include "test/lib/assert_ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTER, INNER, SIDE, SLICES, FIRST, SECOND, N_DIMS };
enum {
    O = 5,
    I = 197,
    K = 3,
    T = 3,
    PART = 2,
    FILE_VALUES = O * I * T * K * K,
    VALUES = O * I * K * K,
    PACKED_MAX = 1 << 17
};

static const int32_t dims[N_DIMS] = {O, I, K, T, PART, O - PART};

struct weights {
    struct tensor bias, kernel, first, second;
};

static const int part_rows[] = {FIRST, SECOND};
/* Weight table row of a weight that is some rows of a fused convolution kernel. */
#define PART_OF_ROWS(field_, part_, rows_)                                                                   \
    {                                                                                                        \
        .offset = offsetof(struct weights, field_), .names = {#field_ ".weight"},                            \
        .checkpoint_name = "both[" #part_ "/2].weight", .part_rows = part_rows, .rank = 4,                   \
        .dim = {rows_, INNER, SIDE, SIDE}, .slices = SLICES                                                  \
    }
static const struct weight_spec table[] = {
    ROW_WEIGHT(WEIGHTS_OF(weights), bias, SHAPED(1, OUTER),
               "bias"){.offset = offsetof(struct weights, kernel),
                       .names = {"kernel.weight"},
                       .rank = 4,
                       .dim = {OUTER, INNER, SIDE, SIDE},
                       .slices = SLICES,
                       .init_scale = 1},
    PART_OF_ROWS(second, 1, SECOND),
    PART_OF_ROWS(first, 0, FIRST),
};
static const struct block_kind kind =
    BLOCK_KIND("kernels", "kernels", table, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);

static struct sys sys;
static char folder[64], path[96];

static unsigned char bias[O * 4], kernel[FILE_VALUES * 4], both[FILE_VALUES * 4];

static void fill(unsigned char *to, enum dtype dtype, int values) {
    static uint64_t random = 1;
    size_t n = (size_t)dtype_bits(dtype) / 8;
    for (int i = 0; i < values; i++) { /* values of two-byte types are the upper half of an f32 */
        float value = (float)(int64_t)random_next(&random) * 0x1p-63f;
        memcpy(to + (size_t)i * n, (char *)&value + 4 - n, n);
    }
}

enum layout { SAFETENSORS, GGUF_OF_FIVE, GGUF_MERGED, GGUF_FLATTENED, N_LAYOUTS };

static void write_file(enum layout layout, enum dtype dtype) {
    static const int32_t shapes[N_LAYOUTS][5] = {
        {O, I, T, K, K}, {O, I, T, K, K}, {O * I, T, K, K}, {FILE_VALUES}};
    static const int ranks[N_LAYOUTS] = {5, 5, 4, 1};
    static const int32_t whole[] = {O, I, T, K, K};
    struct error e = {0};
    fill(bias, dtype, O);
    fill(kernel, dtype, FILE_VALUES);
    fill(both, dtype, FILE_VALUES);
    struct named_tensor tensors[] = {
        {"bias", tensor_make(bias, dtype, 1, (int32_t[]){O})},
        {"both.weight", tensor_make(both, dtype, ranks[layout], shapes[layout])},
        {"kernel.weight", tensor_make(kernel, dtype, ranks[layout], shapes[layout])},
    };
    struct gguf_metadata metadata[] = {
        {.key = "general.architecture", .kind = GGUF_STRING, .text = "made"},
        {.key = "comfy.gguf.orig_shape.both.weight", .kind = GGUF_I32, .array = whole, .n = 5},
        {.key = "comfy.gguf.orig_shape.kernel.weight", .kind = GGUF_I32, .array = whole, .n = 5}};
    snprintf(path, sizeof path, "%s/model.%s", folder, layout == SAFETENSORS ? "safetensors" : "gguf");
    if (layout == SAFETENSORS)
        safetensors_write(&sys, path, tensors, 3, &e);
    else
        gguf_write_made(&sys, path, metadata, layout == GGUF_FLATTENED ? 3 : 1, tensors, 3, NULL, &e);
    assert_ok(&e);
}

/* Copies the last temporal slice of n kernels, ordered by output, input, row and column. */
static void slice_of(const unsigned char *from, size_t element, int first, int n, unsigned char *to) {
    for (int at = first * I; at < (first + n) * I; at++)
        for (int i = 0; i < K * K; i++, to += element)
            memcpy(to, from + ((size_t)at * T * K * K + (T - 1) * K * K + (size_t)i) * element, element);
}

static void expect(const struct block *block, size_t element, unsigned char *packed) {
    struct weights w;
    memset(packed, 0, block->bytes);
    block_point(block, packed_contiguous(block, packed), &w);
    memcpy(w.bias.data, bias, O * element);
    slice_of(kernel, element, 0, O, w.kernel.data);
    slice_of(both, element, 0, PART, w.first.data);
    slice_of(both, element, PART, O - PART, w.second.data);
}

/* True if a segment covers byte `at` of the packed block; other bytes are padding. */
static bool is_read(const struct block *block, uint64_t at) {
    for (int i = 0; i < block->n_segments; i++)
        if (at >= block->segments[i].packed_offset &&
            at < block->segments[i].packed_offset + block->segments[i].bytes)
            return true;
    return false;
}

/* Reads bytes [from, to) of a packed block. The bytes must have the expected values, and all other bytes stay
 * untouched. */
static void check_part(struct reader *reader, const struct block *block, const unsigned char *expected,
                       uint64_t from, uint64_t to) {
    enum { UNTOUCHED = 0xa5 };
    static unsigned char got[PACKED_MAX];
    struct error e = {0};
    assert_true(block->bytes <= sizeof got);
    memset(got, UNTOUCHED, sizeof got);
    reader_read(reader, block, from, to, (char *)got, &e);
    assert_ok(&e);
    for (uint64_t at = 0; at < block->bytes; at++) {
        bool wanted = at >= from && at < to && is_read(block, at);
        if (got[at] != (wanted ? expected[at] : UNTOUCHED))
            fail_msg("wrong byte %llu after reading [%llu, %llu)", (unsigned long long)at,
                     (unsigned long long)from, (unsigned long long)to);
    }
}

static void check_block(struct tensor_index *index, const struct block *block,
                        const unsigned char *expected) {
    static _Alignas(SYS_DIRECT_BLOCK) char bounce[SYS_DIRECT_BLOCK];
    static _Alignas(16) char work[READER_WORK_BYTES];
    struct reader reader = {.converter = requantised_convert, .work = work};
    for (int direct = 0; direct < 2; direct++) {
        if (direct && source_open_direct(&index->sources[0]))
            break; /* skipped without direct I/O; gates/test_direct_io.c checks that direct I/O is used where
                      the file system allows it */
        if (direct) reader.bounce = (struct bounce){bounce, sizeof bounce};
        check_part(&reader, block, expected, 0, block->bytes);
        assert_int_equal(reader.bytes_direct, direct ? reader.bytes_read : 0);
        assert_true(reader.bytes_read > 0 && reader.bytes_read <= block_file_bytes(block));
        /* Reads parts of growing size at aligned and unaligned offsets. */
        for (uint64_t n = 1; n < block->bytes; n = n * 5 / 4 + 1)
            for (uint64_t from = n % 7; from < block->bytes; from += block->bytes / 25 | 1)
                check_part(&reader, block, expected, from, from + n < block->bytes ? from + n : block->bytes);
    }
}

static void open_block(struct tensor_index *index, struct block *block) {
    struct block_ref ref = {.kind = &kind};
    struct error e = {0};
    component_open(&sys, path, index, &e);
    assert_ok(&e);
    block_bind(&sys, &ref, index, dims, block, &e);
    assert_ok(&e);
}

/* Checks that the packed size is a third of the kernels' size, and checks the number of bytes read, gaps
 * between slices included. */
static void check_sizes(const struct block *block, uint64_t file_element, uint64_t element) {
    assert_true(block->bytes <= (2 * VALUES + O) * element + 4 * ARENA_ALIGN);
    assert_int_equal(block_file_bytes(block), (2 * T * VALUES + O) * file_element);
}

static void test_last_slice_bits(void **state) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static unsigned char expected[PACKED_MAX];
    for (int layout = 0; layout < N_LAYOUTS; layout++)
        for (int i = 0; i < 3; i++) {
            struct tensor_index index;
            struct block block;
            uint64_t element = (uint64_t)dtype_bits(dtypes[i]) / 8;
            write_file((enum layout)layout, dtypes[i]);
            open_block(&index, &block);
            check_sizes(&block, element, element);
            expect(&block, element, expected);
            check_block(&index, &block, expected);
            block_destroy(&sys, &block);
            index_destroy(&index);
        }
}

/* Tests slices that are converted while they are read: f32 to bf16, bf16 to f32, f16 to f8. */
static void test_converted_slice_bits(void **state) {
    static const struct {
        enum dtype from, to;
    } pairs[] = {{DTYPE_F32, DTYPE_BF16}, {DTYPE_BF16, DTYPE_F32}, {DTYPE_F16, DTYPE_F8_E4M3}};
    static unsigned char expected[PACKED_MAX], stored[PACKED_MAX];
    static float numbers[VALUES];
    for (int i = 0; i < 3; i++) {
        struct tensor_index index;
        struct block block;
        uint64_t element = (uint64_t)dtype_bits(pairs[i].from) / 8, at = 0;
        write_file(SAFETENSORS, pairs[i].from);
        open_block(&index, &block);
        expect(&block, element, stored);
        for (int k = 0; k < block.n_segments; k++) {
            struct packed_segment *g = &block.segments[k];
            int64_t values = (int64_t)(g->bytes / element);
            g->conversion = (struct packed_conversion){
                .from = pairs[i].from, .to = pairs[i].to, .from_scale = 1, .to_scale = 1};
            requantised_convert(&g->conversion, stored + g->packed_offset, numbers, expected + at, 0, values);
            g->packed_offset = at;
            g->bytes = (uint64_t)dtype_bytes(pairs[i].to, values);
            at = align_up(at + g->bytes, ARENA_ALIGN);
        }
        block.bytes = at;
        check_sizes(&block, element, (uint64_t)dtype_bits(pairs[i].to) / 8);
        check_block(&index, &block, expected);
        block_destroy(&sys, &block);
        index_destroy(&index);
    }
}

static void expect_refused_bind(const int32_t *other, enum status code, const char *word) {
    struct block_ref ref = {.kind = &kind};
    struct tensor_index index;
    struct block block;
    struct error e = {0};
    component_open(&sys, path, &index, &e);
    assert_ok(&e);
    block_bind(&sys, &ref, &index, other, &block, &e);
    if (e.code != code || !strstr(e.expected, word)) fail_msg("%s: %s", status_name(e.code), e.expected);
    block_destroy(&sys, &block);
    index_destroy(&index);
}

static void test_wrong_shape_refused(void **state) {
    write_file(SAFETENSORS, DTYPE_F32);
    expect_refused_bind((int32_t[N_DIMS]){O, I, K, 1, PART, O - PART}, SHAPE, "[5, 197, 1, 3, 3]");
    expect_refused_bind((int32_t[N_DIMS]){O, I + 1, K, T, PART, O - PART}, SHAPE, "[5, 198, 3, 3, 3]");
    expect_refused_bind((int32_t[N_DIMS]){O, I, K, T, PART, 2}, SHAPE, "[4, 197, 3, 3, 3]");
    write_file(GGUF_MERGED, DTYPE_F32);
    expect_refused_bind((int32_t[N_DIMS]){O, I + 1, K, T, PART, O - PART}, SHAPE, "[5, 198, 3, 3, 3]");
}

/* Block types are refused, because quantisation blocks would straddle slices. */
static void test_block_types_refused(void **state) {
    enum { ROWS = 32 };
    static unsigned char zeros[ROWS * I * T * K * K * 2];
    int32_t shape[] = {ROWS, I, T, K, K}, flat[] = {ROWS * I * T * K * K / 32, 32};
    const int32_t other[N_DIMS] = {ROWS, I, K, T, 16, 16};
    struct error e = {0};
    struct named_tensor tensors[] = {{"bias", tensor_make(zeros, DTYPE_F32, 1, (int32_t[]){ROWS})},
                                     {"both.weight", tensor_make(zeros, DTYPE_Q8_0, 2, flat)},
                                     {"kernel.weight", tensor_make(zeros, DTYPE_Q8_0, 2, flat)}};
    struct gguf_metadata metadata[] = {
        {.key = "general.architecture", .kind = GGUF_STRING, .text = "made"},
        {.key = "comfy.gguf.orig_shape.both.weight", .kind = GGUF_I32, .array = shape, .n = 5},
        {.key = "comfy.gguf.orig_shape.kernel.weight", .kind = GGUF_I32, .array = shape, .n = 5}};
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_write_made(&sys, path, metadata, 3, tensors, 3, NULL, &e);
    assert_ok(&e);
    expect_refused_bind(other, UNSUPPORTED, "multiple of the type's block size");
}

static void test_truncated_file_reported(void **state) {
    static unsigned char got[PACKED_MAX];
    struct reader reader = {0};
    struct tensor_index index;
    struct block block;
    struct error e = {0};
    write_file(SAFETENSORS, DTYPE_F32);
    open_block(&index, &block);
    assert_int_equal(truncate(path, index.sources[0].identity.bytes - 1), 0);
    assert_int_equal(reader_read(&reader, &block, 0, block.bytes, (char *)got, &e), CHANGED);
    block_destroy(&sys, &block);
    index_destroy(&index);
}

static int set_up(void **state) {
    sys_init_machine(&sys);
    /* build/, because /tmp may not allow direct I/O */
    strcpy(folder, access("build", W_OK) ? "/tmp/sluice_slices_XXXXXX" : "build/sluice_slices_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) || sys_memory_use(&sys).live_bytes[LINE_HOST] ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_slice_bits),         cmocka_unit_test(test_converted_slice_bits),
        cmocka_unit_test(test_wrong_shape_refused),     cmocka_unit_test(test_block_types_refused),
        cmocka_unit_test(test_truncated_file_reported),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
