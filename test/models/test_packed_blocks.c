/* Packed blocks with quantised weights: for every kind of slice, the rows in the packed block equal rows of
 * the file, and each row has its scales at the right place.
 *
 * The file is a buffer of random bytes except the scales: row r has the scale r + 1; block b of row r has
 * tile_code(r, b) at its place in the tiled layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/random.h"
#include "engine/run/block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE, FIRST, SECOND, THIRD, COLUMNS, SIDE, TWO_PARTS, PARTS, N_DIMS };
enum { FILE_BYTES = 1 << 21, TILE_BYTES = 512, GROUP_VALUES = 16 };

static unsigned char *file;
static uint64_t file_used;
static struct sys sys;

struct weights {
    struct tensor a, b, c;
};

static const int part_rows[] = {FIRST, SECOND, THIRD};
/* Weight table row of one of three parts of a fused tensor, like q, k and v in attention. */
#define PART(field_, part_, rows_)                                                                           \
    {                                                                                                        \
        .offset = offsetof(struct weights, field_), .names = {#field_ ".weight"},                            \
        .checkpoint_name = "all[" #part_ "/3].weight", .part_rows = part_rows, .rank = 2, .dim = {           \
            rows_,                                                                                           \
            COLUMNS                                                                                          \
        }                                                                                                    \
    }
static const struct weight_spec thirds[] = {PART(a, 0, FIRST), PART(b, 1, SECOND), PART(c, 2, THIRD)};
/* Weight table of a weight that is two parts of a fused tensor in exchanged order, like shift and scale in
 * AdaLN. */
static const struct weight_spec swapped[] = {{.offset = offsetof(struct weights, a),
                                              .names = {"a.weight"},
                                              .checkpoint_name = "all[2,1/3].weight",
                                              .part_rows = part_rows,
                                              .rank = 2,
                                              .dim = {TWO_PARTS, COLUMNS}}};
static const struct weight_spec whole[] = {ROW_MATRIX(WEIGHTS_OF(weights), a, WHOLE, COLUMNS, "all")};
/* Weight table of blocks that have one of PARTS equal parts of a tensor's rows each. */
static const struct weight_spec equal_parts[] = {
    ROW_MATRIX(WITH(WEIGHTS_OF(weights), .row_parts = PARTS), a, WHOLE, COLUMNS, "all")};
static const struct weight_spec convolution[] = {
    ROW_KERNEL(WEIGHTS_OF(weights), a, WHOLE, COLUMNS, SIDE, "all")};

static const struct block_kind in_thirds =
    BLOCK_KIND("thirds", "thirds", thirds, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);
static const struct block_kind in_swapped =
    BLOCK_KIND("swapped", "swapped", swapped, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);
static const struct block_kind in_whole =
    BLOCK_KIND("whole", "whole", whole, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);
static const struct block_kind in_parts =
    BLOCK_KIND("parts", "all.%d", equal_parts, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);
static const struct block_kind table =
    BLOCK_KIND("table", "table", whole, weights, NULL, .embedding_table = true);
static const struct block_kind convolving =
    BLOCK_KIND("conv", "conv", convolution, weights, NULL, .update_rate = UPDATE_PER_EVALUATION);

static unsigned char tile_code(int64_t row, int64_t block) {
    return (unsigned char)((row * 7 + block * 13 + 1) & 127);
}

/* Returns a scale's offset in the tiled layout (cuBLAS documentation, "1D Block Scaling Factors Layout"). */
static int64_t tile_place(int64_t row, int64_t block, int64_t columns_of_tiles) {
    int64_t tile = row / 128 * columns_of_tiles + block / 4;
    return tile * TILE_BYTES + row % 32 * 16 + row / 32 % 4 * 4 + block % 4;
}

static uint64_t take(uint64_t bytes) {
    uint64_t at = file_used;
    file_used += bytes + 3; /* tensor offsets in files need not be aligned */
    assert_true(file_used <= FILE_BYTES);
    return at;
}

/* Adds a section of scales and returns its bytes in the file. */
static unsigned char *add_section(struct index_entry *entry, uint64_t bytes, int32_t rows) {
    struct index_entry scales = {.offset = take(bytes), .bytes = bytes};
    index_add_scales(entry, &scales, rows);
    return file + scales.offset;
}

static void add_row_scales(struct index_entry *entry) {
    unsigned char *to = add_section(entry, (uint64_t)entry->dim[0] * sizeof(float), 1);
    for (int32_t r = 0; r < entry->dim[0]; r++) {
        float scale = (float)(r + 1);
        memcpy(to + (uint64_t)r * sizeof scale, &scale, sizeof scale);
    }
}

/* Adds the group scales of I4_ROT256: tile_code of row and group. */
static void add_group_scales(struct index_entry *entry) {
    int64_t groups = entry->dim[1] / GROUP_VALUES;
    unsigned char *to = add_section(entry, (uint64_t)(entry->dim[0] * groups), 1);
    for (int64_t i = 0; i < entry->dim[0] * groups; i++) to[i] = tile_code(i / groups, i % groups);
}

static void add_tiles(struct index_entry *entry) {
    int64_t blocks = entry->dim[1] / dtype_tiled_values(entry->dtype), tiles = (blocks + 3) / 4;
    unsigned char *to = add_section(entry, (uint64_t)((entry->dim[0] + 127) / 128 * tiles * TILE_BYTES), 128);
    for (int64_t r = 0; r < entry->dim[0]; r++)
        for (int64_t b = 0; b < blocks; b++) to[tile_place(r, b, tiles)] = tile_code(r, b);
}

struct file_of_one_tensor {
    struct index_entry entry;
    struct byte_source source;
    struct tensor_index index;
};

static void make(struct file_of_one_tensor *m, enum dtype dtype, bool row_scales, int rank,
                 const int32_t *dim) {
    *m = (struct file_of_one_tensor){
        .entry = {.name = "all.weight", .dtype = dtype, .rank = rank, .scale = 0.25f},
        .source = {.path = "made.safetensors"}};
    m->index =
        (struct tensor_index){.entries = &m->entry, .n_entries = 1, .sources = &m->source, .n_sources = 1};
    int64_t values = 1;
    for (int i = 0; i < rank; i++) values *= m->entry.dim[i] = dim[i];
    file_used = 5;
    m->entry.bytes = (uint64_t)dtype_bytes(dtype, values);
    m->entry.offset = take(m->entry.bytes);
    struct tensor shape = tensor_make(NULL, dtype, rank, dim);
    int64_t head = tensor_scales_head(&shape);
    unsigned char *to = head ? add_section(&m->entry, (uint64_t)head, 0) : NULL;
    for (int64_t i = 0; i < head; i++) to[i] = (unsigned char)(i + 1);
    if (row_scales) add_row_scales(&m->entry);
    if (dtype == DTYPE_I4_ROT256) add_group_scales(&m->entry);
    if (dtype_tiled_values(dtype)) add_tiles(&m->entry);
}

static enum status bind(struct file_of_one_tensor *m, const struct block_kind *kind, const int32_t *dims,
                        struct block *block, struct error *e) {
    struct block_ref ref = {.kind = kind, .number = dims[PARTS] > 1 ? 2 : 0};
    *e = (struct error){0};
    return block_bind(&sys, &ref, &m->index, dims, block, e);
}

/* Copies all segments of a block to memory, which the caller frees. Segments neither overlap nor exceed the
 * packed block. */
static unsigned char *read_packed(const struct block *block) {
    unsigned char *packed = calloc(1, block->bytes + 1);
    uint64_t at = 0;
    assert_non_null(packed);
    assert_int_equal(block->bytes % ARENA_ALIGN, 0);
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *s = &block->segments[i];
        assert_true(s->packed_offset >= at && s->bytes <= block->bytes - s->packed_offset);
        assert_true(s->file_offset + s->bytes <= file_used);
        memcpy(packed + s->packed_offset, file + s->file_offset, s->bytes);
        at = s->packed_offset + s->bytes;
    }
    return packed;
}

/* Expects that row `row` of the packed weight equals row `from` of the file's tensor. */
static void check_row(const struct file_of_one_tensor *m, const struct tensor *t, int64_t row, int64_t from) {
    uint64_t bytes = (uint64_t)t->row_bytes;
    int64_t scale_row = t->scale_row + row;
    assert_memory_equal((char *)t->data + (uint64_t)row * bytes,
                        file + m->entry.offset + (uint64_t)from * bytes, bytes);
    assert_true(t->scale == 0.25f);
    assert_int_equal(t->scales != NULL, m->entry.scales.bytes > 0);
    if (!t->scales) return;
    int values = dtype_tiled_values(t->dtype);
    int64_t head = tensor_scales_head(t);
    const unsigned char *scales = t->scales;
    for (int64_t i = 0; i < head; i++) assert_int_equal(scales[i], (unsigned char)(i + 1));
    scales += head;
    if (!values) {
        assert_true(((const float *)(const void *)scales)[scale_row] == (float)(from + 1));
        int64_t groups = t->dtype == DTYPE_I4_ROT256 ? tensor_columns(t) / GROUP_VALUES : 0;
        scales += t->scale_rows * (int64_t)sizeof(float) + scale_row * groups;
        for (int64_t i = 0; i < groups; i++) assert_int_equal(scales[i], tile_code(from, i));
        return;
    }
    int64_t blocks = tensor_columns(t) / values;
    for (int64_t b = 0; b < blocks; b++)
        assert_int_equal(scales[tile_place(scale_row, b, (blocks + 3) / 4)], tile_code(from, b));
}

static void check_rows(const struct file_of_one_tensor *m, const struct tensor *t, int64_t first,
                       int64_t from, int64_t n) {
    for (int64_t r = 0; r < n; r++) check_row(m, t, first + r, from + r);
}

static const struct {
    enum dtype dtype;
    bool row_scales;
} stored[] = {
    {DTYPE_BF16, false},        {DTYPE_F8_E4M3, false}, {DTYPE_F8_E4M3, true},    {DTYPE_F8_E5M2, true},
    {DTYPE_I8, false},          {DTYPE_I8, true},       {DTYPE_Q4_0, false},      {DTYPE_Q8_0, false},
    {DTYPE_Q6_K, false},        {DTYPE_MXFP4, false},   {DTYPE_NVFP4, false},     {DTYPE_NVFP4_TILED, false},
    {DTYPE_MXFP8_TILED, false}, {DTYPE_I8_ROT64, true}, {DTYPE_NVFP4_AWQ, false}, {DTYPE_I4_ROT256, true}};
enum { N_STORED = sizeof stored / sizeof *stored };

/* Row counts of three parts of a fused tensor: multiples of the 128 rows of a scale tile, fractions of a
 * tile, and more than one tile. */
static const int32_t rows_of_parts[][3] = {{128, 256, 128}, {96, 160, 256}, {1, 2, 130}, {300, 84, 16}};

static void set_dims(int32_t dims[N_DIMS], const int32_t rows[3]) {
    const int32_t values[N_DIMS] = {rows[0] + rows[1] + rows[2], rows[0], rows[1], rows[2], 512, 3,
                                    rows[1] + rows[2],           1};
    memcpy(dims, values, sizeof values);
}

/* `weight_end` is the offset in the packed block at which data and scales end; reshaping keeps it. */
static void check_end(const struct block *block, const unsigned char *packed, const struct tensor *t) {
    const unsigned char *end = (const unsigned char *)t->data + tensor_bytes(t);
    if (t->scales) end = (const unsigned char *)t->scales + tensor_scales_bytes(t);
    assert_true(t->weight_end == (uint64_t)(end - packed) && t->weight_end <= block->bytes);
    struct tensor row = tensor_reshape(*t, 1, (int32_t[]){(int32_t)tensor_elements(t)});
    assert_true(row.weight_end == t->weight_end);
}

static void slice(int i_stored, const int32_t rows[3]) {
    int32_t dims[N_DIMS], first = 0;
    struct file_of_one_tensor m;
    struct block block;
    struct weights w;
    struct error e;
    set_dims(dims, rows);
    make(&m, stored[i_stored].dtype, stored[i_stored].row_scales, 2, (int32_t[]){dims[WHOLE], dims[COLUMNS]});
    assert_int_equal(bind(&m, &in_thirds, dims, &block, &e), OK);
    unsigned char *packed = read_packed(&block);
    block_point(&block, packed_contiguous(&block, packed), &w);
    const struct tensor *parts[] = {&w.a, &w.b, &w.c};
    for (int i = 0; i < 3; first += rows[i++]) {
        check_rows(&m, parts[i], 0, first, rows[i]);
        struct tensor half = tensor_slice(*parts[i], rows[i] / 2, rows[i] - rows[i] / 2);
        check_rows(&m, &half, 0, first + rows[i] / 2, half.dim[0]);
        assert_true(half.weight_end == parts[i]->weight_end);
        check_end(&block, packed, parts[i]);
        check_end(&block, packed, &half);
    }
    assert_true(m.entry.used);
    free(packed);
    block_destroy(&sys, &block);
}

static void test_slice_rows_and_scales(void **state) {
    for (int s = 0; s < N_STORED; s++)
        for (size_t i = 0; i < sizeof rows_of_parts / sizeof *rows_of_parts; i++) slice(s, rows_of_parts[i]);
}

/* A block with one of four equal parts of a tensor has the part with its number, here the third, for any
 * number of rows: parts may start and end within a tile of scales. */
static void test_equal_parts_rows_and_scales(void **state) {
    static const int32_t rows_of_part[] = {1, 96, 128, 130};
    for (int s = 0; s < N_STORED; s++)
        for (size_t i = 0; i < sizeof rows_of_part / sizeof *rows_of_part; i++) {
            const int32_t rows = rows_of_part[i],
                          dims[N_DIMS] = {[WHOLE] = rows, [COLUMNS] = 512, [PARTS] = 4};
            struct file_of_one_tensor m;
            struct block block;
            struct weights w;
            struct error e;
            make(&m, stored[s].dtype, stored[s].row_scales, 2, (int32_t[]){4 * rows, 512});
            assert_int_equal(bind(&m, &in_parts, dims, &block, &e), OK);
            assert_string_equal(block.name, "all.2");
            unsigned char *packed = read_packed(&block);
            block_point(&block, packed_contiguous(&block, packed), &w);
            assert_int_equal(w.a.dim[0], rows);
            check_rows(&m, &w.a, 0, 2 * rows, rows);
            check_end(&block, packed, &w.a);
            free(packed);
            block_destroy(&sys, &block);
            make(&m, stored[s].dtype, stored[s].row_scales, 2, (int32_t[]){rows, 512});
            assert_int_equal(bind(&m, &in_parts, dims, &block, &e), SHAPE);
            block_destroy(&sys, &block);
        }
}

/* Parts that cut a tile of scales are refused. */
static void test_exchanged_parts_rows_and_scales(void **state) {
    for (int s = 0; s < N_STORED; s++)
        for (size_t i = 0; i < sizeof rows_of_parts / sizeof *rows_of_parts; i++) {
            const int32_t *rows = rows_of_parts[i];
            bool cuts = dtype_tiled_values(stored[s].dtype) && (rows[2] % 128 || rows[0] % 128);
            int32_t dims[N_DIMS];
            struct file_of_one_tensor m;
            struct block block;
            struct weights w;
            struct error e;
            set_dims(dims, rows);
            make(&m, stored[s].dtype, stored[s].row_scales, 2, (int32_t[]){dims[WHOLE], dims[COLUMNS]});
            enum status code = bind(&m, &in_swapped, dims, &block, &e);
            assert_int_equal(code, cuts ? UNSUPPORTED : OK);
            if (cuts) assert_non_null(strstr(e.what, "is split at a row"));
            if (code == OK) {
                unsigned char *packed = read_packed(&block);
                block_point(&block, packed_contiguous(&block, packed), &w);
                check_rows(&m, &w.a, 0, rows[0] + rows[1], rows[2]);
                check_rows(&m, &w.a, rows[2], rows[0], rows[1]);
                free(packed);
            }
            block_destroy(&sys, &block);
        }
}

static void test_embedding_lookup_rows(void **state) {
    enum { N = 8, RUNS = 5 }; /* RUNS: expected number of reads, one for each group of consecutive rows */
    const int32_t dims[N_DIMS] = {[WHOLE] = 300, [COLUMNS] = 512},
                  ids[N] = {298, 299, 0, 17, 18, 19, 19, 128};
    for (int s = 0; s < N_STORED; s++) {
        struct file_of_one_tensor m;
        struct block whole_table, rows;
        struct weights w;
        struct error e;
        make(&m, stored[s].dtype, stored[s].row_scales, 2, (int32_t[]){300, 512});
        enum status code = bind(&m, &table, dims, &whole_table, &e);
        if (dtype_tiled_values(stored[s].dtype) || stored[s].dtype == DTYPE_I4_ROT256) {
            assert_int_equal(code, UNSUPPORTED);
            assert_non_null(strstr(e.expected, "rows can be read separately"));
            block_destroy(&sys, &whole_table);
            continue;
        }
        assert_int_equal(code, OK);
        assert_int_equal(block_gather_rows(&sys, &whole_table, ids, N, &rows, &e), OK);
        assert_int_equal(rows.n_segments, RUNS * whole_table.n_segments);
        unsigned char *packed = read_packed(&rows);
        block_point(&rows, packed_contiguous(&rows, packed), &w);
        assert_int_equal(w.a.dim[0], N);
        for (int i = 0; i < N; i++) check_row(&m, &w.a, i, ids[i]);
        free(packed);
        block_destroy(&sys, &rows);
        assert_int_equal(block_gather_rows(&sys, &whole_table, (int32_t[]){1, 300}, 2, &rows, &e), SHAPE);
        block_destroy(&sys, &rows);
        block_destroy(&sys, &whole_table);
    }
}

static void expect(struct file_of_one_tensor *m, const struct block_kind *kind, const int32_t *dims,
                   enum status code, const char *word) {
    struct block block;
    struct error e;
    bind(m, kind, dims, &block, &e);
    if (e.code != code || (word && !strstr(e.expected, word)))
        fail_msg("%s, not %s: %s, expected %s", status_name(e.code), status_name(code), e.what, e.expected);
    block_destroy(&sys, &block);
}

static void test_unsupported_types_refused(void **state) {
    const int32_t dims[N_DIMS] = {64, 16, 16, 32, 100, 3, 48}, shape[] = {64, 100, 3, 3};
    const int32_t other_dims[N_DIMS] = {63, 16, 16, 32, 104, 3, 48}, other[] = {63, 104, 3, 3};
    struct file_of_one_tensor m;
    make(&m, DTYPE_Q4_K, false, 2, shape);
    expect(&m, &in_whole, dims, UNSUPPORTED, "the type's block size");
    make(&m, DTYPE_U8, false, 2, shape);
    expect(&m, &in_whole, dims, UNSUPPORTED, "a quantised type");
    make(&m, DTYPE_OTHER, false, 2, shape);
    expect(&m, &in_whole, dims, UNSUPPORTED, "a quantised type");
    make(&m, DTYPE_F8_E4M3, true, 2, shape);
    expect(&m, &in_whole, dims, OK, NULL);
    make(&m, DTYPE_F8_E4M3, false, 4, shape);
    expect(&m, &convolving, dims, OK, NULL);
    make(&m, DTYPE_F8_E4M3, true, 4, shape);
    expect(&m, &convolving, dims, UNSUPPORTED, "one scale");
    /* Quantisation blocks may span rows if the tensor consists of whole blocks. */
    make(&m, DTYPE_Q4_0, false, 4, shape);
    expect(&m, &convolving, dims, OK, NULL);
    make(&m, DTYPE_Q4_0, false, 4, other);
    expect(&m, &convolving, other_dims, UNSUPPORTED, "the type's block size");
    make(&m, DTYPE_Q4_0, false, 2, other);
    expect(&m, &in_whole, other_dims, UNSUPPORTED, "the type's block size");
    make(&m, DTYPE_Q4_K, false, 2, (int32_t[]){64, 104});
    expect(&m, &in_whole, (int32_t[N_DIMS]){64, 16, 16, 32, 104, 3, 48}, OK, NULL);
}

static int set_up(void **state) {
    uint64_t random = 1;
    sys_init_machine(&sys);
    file = malloc(FILE_BYTES);
    for (int i = 0; file && i < FILE_BYTES; i++) file[i] = (unsigned char)random_next(&random);
    return file ? 0 : -1;
}

static int tear_down(void **state) {
    free(file);
    return sys_memory_use(&sys).live_bytes[LINE_HOST] ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slice_rows_and_scales),
        cmocka_unit_test(test_equal_parts_rows_and_scales),
        cmocka_unit_test(test_exchanged_parts_rows_and_scales),
        cmocka_unit_test(test_embedding_lookup_rows),
        cmocka_unit_test(test_unsupported_types_refused),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
