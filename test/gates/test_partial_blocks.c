/* Blocks that have arrived only in part: failures and cancellation between acquiring a block and awaiting its
 * bytes; blocks that arrive in many pieces; weights that are row ranges of one tensor in the file. Builds
 * without oneDNN, so that ThreadSanitizer can check it. */
#include "engine/run/reader.h"
#include "bench/dev/paced.h"
#include "test/lib/store_fixture.h"
#include "test/lib/synthetic_run.h"

#include <sched.h>

enum { PLANS = 30, MODELS = 40, STAGING_PAGES = 4 };

/* duration of the slow read in microseconds */
enum { SLOW_US = 500000 };

static struct store *open_slow_block(bool separate, struct error *e) {
    struct packed_place place;
    one_block(5 << 20, 0);
    store_fixture.separate = separate;
    if (separate) store_fixture.plan.stage[0].staging_bytes = 2 * PLAN_COPY_PIECE;
    store_fixture.need.separate = separate;
    store_fixture.readers = 1;
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    atomic_store(&fault_sys.random, 1); /* fault_sys delays the first read by about half a second */
    fault_sys.delay_us = SLOW_US;
    memory_checker_restart();
    struct store *store = store_fixture_open(e);
    assert_int_equal(store_begin_stage(store, 0, e), OK);
    assert_int_equal(store_acquire(store, 0, &place, e), OK);
    /* wait until the block has a place in the ring and its first read has started */
    while (!atomic_load(&fault_sys.count[CALL_READ])) sched_yield();
    assert_int_equal(store_count(store).bytes_read, 0);
    return store;
}

/* Reading the second piece of a block fails after the acquire: awaiting the bytes returns the error. */
TEST(failed_piece_fails_await) {
    for (int separate = 0; separate < 2; separate++) {
        struct error e = {0};
        char line[1200];
        struct store *store = open_slow_block(separate, &e);
        /* fails the second read: the first has already started */
        fault_sys_fail(&fault_sys, CALL_READ, 1, 0);
        assert_int_equal(store_await(store, 0, store_fixture.blocks[0][0].bytes, &e), IO);
        assert_non_null(strstr(error_line(&e, line, sizeof line), store_fixture.files.folder));
        e = (struct error){0};
        assert_int_equal(store_await(store, 0, 1, &e), IO);
        if (separate) store_release(store, 0);
        store_close(store);
        store_fixture_remove();
    }
}

/* Releasing a block waits until a read of the block in flight ends, before another block reuses the memory.
 */
TEST(cancelled_await_waits_for_read) {
    for (int separate = 0; separate < 2; separate++) {
        struct error e = {0};
        struct store *store = open_slow_block(separate, &e);
        store_fixture.ticks_left = 2;
        assert_int_equal(store_await(store, 0, 1, &e), CANCELLED);
        assert_int_equal(reads_in_flight(), 1);
        store_release(store, 0);
        assert_int_equal(reads_in_flight(), 0);
        store_close(store);
        assert_int_equal(memory_checker.n_reads, 1);
        store_fixture_remove();
    }
}

/* Random models on a device with its own memory; slow reads let the reader threads finish in any order. */
TEST(reads_finish_in_any_order) {
    for (int i = 0, n = 0; n < MODELS; i++) {
        store_fixture_make(seed_base + 20000 + (uint64_t)i);
        bool wanted = store_fixture.separate && store_fixture.readers > 1;
        fault_sys.delay_us = 1000;
        if (wanted) run_whole(false);
        n += wanted;
        store_fixture_remove();
    }
}

/* Behind a bus every block arrives in pieces of one page; operators wait for the pieces that they read. */
TEST(pieces_keep_bits) {
    synthetic_make();
    seeded_state = seed_base + 10000;
    synthetic_expect(false);
    synthetic_use_bus(20e6);
    for (int i = 0; i < PLANS; i++) {
        synthetic_random_plan(25, 20);
        for (int s = 0; s < SYNTHETIC_STAGES; s++)
            synthetic.plan.stage[s].staging_bytes = PLAN_PAGE * (2 + below(STAGING_PAGES - 1));
        synthetic.plan.keep = false;
        plan_evaluate(&synthetic.need, &synthetic.plan);
        synthetic.run.readers = (int)below(4);
        fault_sys.delay_us = below(2) ? 0 : 300;
        synthetic_run_same(false);
        assert_true(memory_checker.pages_peak <= planned_pages() + STAGING_PAGES * PLAN_PAGE);
    }
    synthetic_remove();
}

enum { SHORT, LONG, BOTH, COLUMNS };

static const int32_t part_dims[] = {3, 5, 8, 7};

struct part_weights {
    struct tensor swapped, alone, above, swapped_bias;
};

static const int part_rows[] = {SHORT, LONG, SHORT};
#define PART_WEIGHT(field, parts, tail, rank_, rows_)                                                        \
    {                                                                                                        \
        .offset = offsetof(struct part_weights, field), .names = {"whole." #field},                          \
        .checkpoint_name = "fused[" parts "/3]." tail, .part_rows = part_rows, .rank = rank_, .dim = {       \
            rows_,                                                                                           \
            COLUMNS                                                                                          \
        }                                                                                                    \
    }

static const struct weight_spec part_table[] = {
    PART_WEIGHT(swapped, "2,1", "weight", 2, BOTH),
    PART_WEIGHT(alone, "1", "weight", 2, LONG),
    PART_WEIGHT(above, "0,1", "weight", 2, BOTH),
    PART_WEIGHT(swapped_bias, "1,0", "bias", 1, BOTH),
};

static const struct block_kind part_kind = BLOCK_KIND("parts", "parts", part_table, part_weights, NULL);

/* Compares rows of a packed weight (from row `row`) with rows of a tensor in the file (from row `from`). */
static void assert_rows(struct tensor weight, int32_t row, const char *tensor, int32_t from, int32_t rows) {
    const struct index_entry *entry = index_find(&store_fixture.files.index, tensor);
    uint64_t row_bytes = entry->bytes / (uint64_t)entry->dim[0];
    assert_memory_equal((char *)weight.data + (uint64_t)row * row_bytes,
                        store_fixture.files.contents[entry->source] + entry->offset +
                            (uint64_t)from * row_bytes,
                        (uint64_t)rows * row_bytes);
}

static void bind_parts(int32_t rows, struct block *block, struct error *e) {
    const struct block_ref ref = {.kind = &part_kind};
    memory_checker_init(seed_base);
    synthetic_files_begin(&store_fixture.files, &fault_sys.sys, seed_base);
    synthetic_files_add(&store_fixture.files, "fused.weight", DTYPE_BF16, 2, (int32_t[]){rows, 7});
    synthetic_files_add(&store_fixture.files, "fused.bias", DTYPE_F32, 1, (int32_t[]){rows});
    synthetic_files_end(&store_fixture.files);
    block_bind(&fault_sys.sys, &ref, &store_fixture.files.index, part_dims, block, e);
}

static void unbind_parts(struct block *block) {
    block_destroy(&fault_sys.sys, block);
    index_destroy(&store_fixture.files.index);
    synthetic_files_remove(&store_fixture.files);
    assert_int_equal(fault_sys_live_bytes(&fault_sys), 0);
}

/* Weights take one part, two parts, or two parts in reverse order of a fused tensor. */
TEST(fused_tensor_parts_are_packed) {
    struct block block;
    struct error e = {0};
    struct part_weights w;
    struct reader reader = {0};
    bind_parts(11, &block, &e);
    assert_ok(&e);
    char *packed = calloc(1, block.bytes);
    assert_int_equal(reader_read(&reader, &block, 0, block.bytes, packed, &e), OK);
    block_point(&block, packed_contiguous(&block, packed), &w);
    assert_rows(w.swapped, 0, "fused.weight", 8, 3);
    assert_rows(w.swapped, 3, "fused.weight", 3, 5);
    assert_rows(w.alone, 0, "fused.weight", 3, 5);
    assert_rows(w.above, 0, "fused.weight", 0, 8);
    assert_rows(w.swapped_bias, 0, "fused.bias", 3, 5);
    assert_rows(w.swapped_bias, 5, "fused.bias", 0, 3);
    for (int i = 0; i < block.n_tensors; i++)
        assert_int_equal(block.tensors[i].packed_offset % ARENA_ALIGN, 0);
    free(packed);
    unbind_parts(&block);
}

/* A fused tensor with too few rows for its parts is rejected. */
TEST(short_fused_tensor_is_rejected) {
    struct block block;
    struct error e = {0};
    bind_parts(10, &block, &e);
    assert_int_equal(e.code, SHAPE);
    assert_string_equal(e.found, "[10, 7]");
    assert_string_equal(e.expected, "[11, 7]");
    unbind_parts(&block);
}

/* Direct reads go straight to staging. Only the disk blocks at both ends of a piece use the bounce buffer,
 * which has one page. If all bytes passed through the bounce buffer, there would be thousands of reads. */
TEST(direct_reads_skip_bounce_buffer) {
    one_block(5 << 20, 0);
    store_fixture.separate = store_fixture.need.separate = true;
    store_fixture.plan.stage[0].staging_bytes = PLAN_STAGING;
    store_fixture_open_direct(UINT64_MAX);
    store_fixture.plan.bounce_bytes = store_fixture.need.bounce_bytes =
        PLAN_PAGE * (uint64_t)store_fixture.readers;
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    memory_checker_restart();
    run_whole(false);
    uint64_t pieces = store_fixture.blocks[0][0].bytes / (PLAN_STAGED_PIECE - PLAN_PAGE) + 1;
    assert_true(memory_checker.n_reads >= (int)pieces && memory_checker.n_reads <= 3 * (int)pieces);
    store_fixture_remove();
}

int main(void) {
    return run_seeded_tests();
}
