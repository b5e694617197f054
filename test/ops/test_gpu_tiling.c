/* Host-side functions of the CUDA device: the hash table of prepared shapes, panels of products, bands of
 * convolutions, workspace layouts. Needs no GPU and no CUDA. */
#include "kernels/cuda/conv.h"
#include "kernels/cuda/hash_table.h"
#include "kernels/cuda/linear.h"

#include "test/lib/seeded.h"

struct entry {
    int32_t key[3];
    int value;
};

static struct sys sys;
static int allocations_left;
static void *(*real_alloc)(struct sys *sys, enum memory_line line, size_t bytes);

static void *limited_alloc(struct sys *s, enum memory_line line, size_t bytes) {
    return allocations_left-- > 0 ? real_alloc(s, line, bytes) : NULL;
}

static struct hash_table table(int allocations) {
    sys_init_machine(&sys);
    real_alloc = sys.alloc;
    sys.alloc = limited_alloc;
    allocations_left = allocations;
    return (struct hash_table){
        .sys = &sys, .key_bytes = sizeof(int32_t[3]), .entry_bytes = sizeof(struct entry)};
}

static struct entry entry_of(int i) {
    return (struct entry){{1 + i % 7, i / 7 % 11 - 5, i / 77}, i};
}

TEST(hash_table_keeps_every_key) {
    enum { N = 1000 };
    struct hash_table keys = table(100);
    assert_null(hash_table_find(&keys, entry_of(0).key));
    for (int i = 0; i < N; i++) {
        struct entry entry = entry_of(i);
        assert_null(hash_table_find(&keys, entry.key));
        struct entry *added = hash_table_add(&keys, &entry);
        assert_ptr_equal(added, hash_table_find(&keys, entry.key));
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(((struct entry *)hash_table_find(&keys, entry_of(i).key))->value, i);
    assert_int_equal(keys.n, N);
    int n_found = 0;
    for (uint64_t i = 0; i < keys.capacity; i++) n_found += hash_table_at(&keys, i) != NULL;
    assert_int_equal(n_found, N);
    sys.release(&sys, keys.entries);
}

TEST(hash_table_survives_failed_growth) {
    struct hash_table keys = table(1);
    int n = 0;
    for (struct entry entry = entry_of(0); hash_table_add(&keys, &entry); entry = entry_of(n)) n++;
    assert_true(n > 0 && n == (int)keys.n);
    for (int i = 0; i < n; i++)
        assert_int_equal(((struct entry *)hash_table_find(&keys, entry_of(i).key))->value, i);
    assert_null(hash_table_find(&keys, entry_of(n).key));
    sys.release(&sys, keys.entries);
}

static struct op linear_op(int32_t m, int32_t n, int32_t k, enum dtype dtype) {
    return (struct op){.kind = OP_LINEAR,
                       .precision = PRECISION_BF16,
                       .in = {tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){m, k}),
                              tensor_make(NULL, dtype, 2, (int32_t[]){n, k})},
                       .out = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){m, n})};
}

TEST(panels_are_bounded) {
    static const int32_t shapes[][2] = {{1, 1},        {64, 20},      {3840, 3840}, {10240, 3840},
                                        {3840, 10240}, {200, 100000}, {65, 1 << 24}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t n = shapes[i][0], k = shapes[i][1];
        struct op op = linear_op(5, shapes[i][0], shapes[i][1], DTYPE_F16);
        int64_t panel = linear_panel(&op), panels = (n + panel - 1) / panel;
        assert_true(panel > 0 && panel <= n && (panel == n || panel % 64 == 0));
        assert_true(2 * (panel - 64) * k <= 64 << 20);
        assert_true(panels * panel - n < panel);
        op = linear_op(5, shapes[i][0], shapes[i][1], DTYPE_BF16);
        assert_true(linear_converts(&op) == (k % 8 != 0));
        if (k % 8 == 0) assert_int_equal(linear_panel(&op), n);
    }
}

/* Checks that the parts of a workspace are aligned to 256 bytes and do not overlap. */
static void assert_consecutive(const uint64_t *offset, const uint64_t *bytes, int n, uint64_t end) {
    for (int i = 0; i < n; i++) {
        assert_int_equal(offset[i] % 256, 0);
        assert_true(offset[i] + bytes[i] <= (i + 1 < n ? offset[i + 1] : end));
    }
}

TEST(workspace_parts_do_not_overlap) {
    struct op op = linear_op(33, 130, 77, DTYPE_F16);
    op.epilogue.bias = tensor_make(NULL, DTYPE_F16, 1, (int32_t[]){130});
    struct linear_layout l = cuda_linear_layout(&op);
    assert_consecutive((uint64_t[]){l.in, l.weight, l.bias, l.products},
                       (uint64_t[]){33 * 77 * 2, 130 * 77 * 2, 130 * 4, LINEAR_LIBRARY_BYTES}, 4, l.end);
    struct op conv = {.kind = OP_CONV2D,
                      .in = {tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){1000, 300, 12}),
                             tensor_make(NULL, DTYPE_BF16, 4, (int32_t[]){5, 12, 3, 3}),
                             tensor_make(NULL, DTYPE_BF16, 1, (int32_t[]){5})},
                      .out = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){1000, 300, 5}),
                      .conv = {.upsample = 1}};
    conv.conv.norm.statistics = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){4, 2});
    struct conv_layout c = cuda_conv_layout(&conv);
    assert_int_equal(c.band, 218); /* 8 Mi values in rows of 300 pixels, with at least 128 channels */
    assert_consecutive((uint64_t[]){c.norm, c.bias, c.weights, c.in, c.out, c.library},
                       (uint64_t[]){3 * 12 * 4, 5 * 4, 8 * 9 * 16 * 2, 220 * 302 * 16 * 2, 218 * 300 * 8 * 2,
                                    CONV_LIBRARY_BYTES},
                       6, c.end);
}

int main(void) {
    return run_all_tests(NULL, NULL);
}
