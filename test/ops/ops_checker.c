#include "test/ops/ops_checker.h"

#include <errno.h>
#include <malloc.h>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifndef __SANITIZE_ADDRESS__
enum { COUNTS_HEAP = 1 };

int64_t heap_live;
static int64_t heap_peak;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void *count_allocated(void *p) {
    if (!p) return p;
    int64_t live = __atomic_add_fetch(&heap_live, (int64_t)malloc_usable_size(p) + 16, __ATOMIC_SEQ_CST);
    int64_t peak = __atomic_load_n(&heap_peak, __ATOMIC_SEQ_CST);
    while (live > peak &&
           !__atomic_compare_exchange_n(&heap_peak, &peak, live, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return p;
}

static void count_freed(void *p) {
    if (p) __atomic_sub_fetch(&heap_live, (int64_t)malloc_usable_size(p) + 16, __ATOMIC_SEQ_CST);
}

void *malloc(size_t n) {
    return count_allocated(__libc_malloc(n));
}

void *calloc(size_t n, size_t each) {
    return count_allocated(__libc_calloc(n, each));
}

void *realloc(void *p, size_t n) {
    count_freed(p);
    return count_allocated(__libc_realloc(p, n));
}

void *memalign(size_t align, size_t n) {
    return count_allocated(__libc_memalign(align, n));
}

void *aligned_alloc(size_t align, size_t n) {
    return memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n) {
    *p = memalign(align, n);
    return *p ? 0 : ENOMEM;
}

void free(void *p) {
    count_freed(p);
    __libc_free(p);
}
#else
enum { COUNTS_HEAP = 0 };
int64_t heap_live;
static int64_t heap_peak;
#endif

enum { CANARY = 4096 };

struct ops_checker checker;
char *workspace;

static void checker_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    checker.two->cost(checker.two, op, cost);
}

static void prepare_counted(const struct op *op, const struct op_cost *cost) {
    int64_t before = heap_live, ours = sys_memory_use(&checker.sys).live_bytes[LINE_HOST];
    assert_int_equal(checker.two->prepare(checker.two, op, &problem), OK);
    int64_t kept = heap_live - before - (sys_memory_use(&checker.sys).live_bytes[LINE_HOST] - ours);
    if (!COUNTS_HEAP) return;
    int64_t *most = &checker.primitive_most[op->kind == OP_CONV2D];
    if (cost->n_primitives && kept / cost->n_primitives > *most) *most = kept / cost->n_primitives;
    uint64_t predicted = 0;
    for (int i = 0; i < cost->n_primitives; i++) predicted += cost->primitive[i].bytes;
    assert_true(kept <= (int64_t)predicted);
}

/* Checks that a run leaves no heap allocations. Exception: with AMX, oneDNN keeps a tile layout per process
 * from its first bf16 product on (measured: 928 bytes, oneDNN 2.6.3, a Xeon of 2026). */
static void check_kept(int64_t bytes) {
    enum { TILES_MOST = 4096 };
    static int64_t kept;
    kept += bytes;
    assert_true(bytes >= 0 && kept <= TILES_MOST);
}

static uint64_t run_guarded(struct device *device, const struct op *op) {
    struct op_cost cost;
    device->cost(device, op, &cost);
    assert_true(cost.workspace_bytes + CANARY <= WORKSPACE_MAX);
    memset(workspace, 0xff, cost.workspace_bytes);
    memset(workspace + cost.workspace_bytes, 0xa5, CANARY);
    struct memory_use use = sys_memory_use(&checker.sys);
    int64_t before = heap_peak = heap_live;
    assert_int_equal(device->run(device, op, workspace, &problem), OK);
    if (COUNTS_HEAP) {
        if (cost.internal_bytes)
            checker.hidden_most =
                fmax(checker.hidden_most, (double)(heap_peak - before) / (double)cost.internal_bytes);
        if (heap_peak - before > (int64_t)cost.internal_bytes)
            fail_msg("%s: %lld bytes of heap during the run, cost() predicts %llu", op_name(op->kind),
                     (long long)(heap_peak - before), (unsigned long long)cost.internal_bytes);
        check_kept(heap_live - before);
    }
    struct memory_use after = sys_memory_use(&checker.sys);
    assert_memory_equal(&use, &after, sizeof use);
    for (int i = 0; i < CANARY; i++)
        assert_int_equal((unsigned char)workspace[cost.workspace_bytes + (uint64_t)i], 0xa5);
    return hash_out(op);
}

/* Saves what the operator changes in `memory`, or restores it: the output, which may also be an input, and
 * the sums of group statistics in pieces. */
static void copy_changed(const struct op *op, char *memory, bool back) {
    const struct tensor *const changed[] = {&op->out, &op->in[1]};
    for (int i = 0; i < (op->kind == OP_GROUP_STATISTICS && op->in[1].rank ? 2 : 1); i++) {
        const struct tensor *t = changed[i];
        size_t bytes = (size_t)((tensor_rows(t) - 1) * t->row_bytes) +
                       (size_t)tensor_columns(t) * (size_t)dtype_bits(t->dtype) / 8;
        assert_true(memory + bytes <= pool + POOL_BYTES);
        memcpy(back ? t->data : memory, back ? memory : t->data, bytes);
        memory += bytes;
    }
}

static enum status checker_run(struct device *device, const struct op *op, void *unused, struct error *e) {
    struct op_cost cold, warm;
    checker.two->cost(checker.two, op, &cold);
    prepare_counted(op, &cold);
    checker.two->cost(checker.two, op, &warm);
    assert_true(cold.workspace_bytes == warm.workspace_bytes && cold.internal_bytes == warm.internal_bytes);
    assert_true(cold.n_primitives == warm.n_primitives);
    for (int i = 0; i < cold.n_primitives; i++) {
        assert_true(cold.primitive[i].id == warm.primitive[i].id);
        assert_true(cold.primitive[i].bytes == warm.primitive[i].bytes);
    }
    char *before = pool + pool_used;
    copy_changed(op, before, false);
    uint64_t first = run_guarded(checker.two, op);
    copy_changed(op, before, true);
    assert_int_equal(checker.one->prepare(checker.one, op, &problem), OK);
    assert_true(run_guarded(checker.one, op) == first);
    copy_changed(op, before, true);
    assert_true(run_guarded(checker.two, op) == first);
    checker.calls++;
    return OK;
}

int ops_set_up(void **state) {
    sys_init_machine(&checker.sys);
    checker.device = (struct device){.name = "checker", .cost = checker_cost, .run = checker_run};
    checker.two = cpu_open(&checker.sys, 2, &problem);
    checker.one = cpu_open(&checker.sys, 1, &problem);
    workspace = mmap(NULL, WORKSPACE_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool_open();
    x = (struct context){.device = &checker.device,
                         .workspace = workspace,
                         .workspace_bytes = WORKSPACE_MAX,
                         .error = &problem};
    return !checker.two || !checker.one || workspace == MAP_FAILED;
}

int ops_tear_down(void **state) {
    checker.two->destroy(checker.two);
    checker.one->destroy(checker.one);
    assert_int_equal(sys_memory_use(&checker.sys).live_bytes[LINE_HOST], 0);
    printf("  %d calls; prepared heap at most %lld per product, %lld per convolution; heap during a run at "
           "most %.2f "
           "of the prediction\n",
           checker.calls, (long long)checker.primitive_most[0], (long long)checker.primitive_most[1],
           checker.hidden_most);
    /* Some heap use must have been counted, else a library bypasses this test's malloc. */
    assert_true(!COUNTS_HEAP || checker.primitive_most[0] > 0);
    return 0;
}
