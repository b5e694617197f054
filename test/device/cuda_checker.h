/* A device that checks every operator call of the CUDA tests, on a GPU or under the emulator. Each call runs
 * twice in device memory: with one allocation per operand, so that compute-sanitizer or ASan finds every
 * access beyond an operand; then with all operands in one allocation and a guarded workspace, which finds
 * stray writes without compute-sanitizer or ASan.
 *
 * Both runs must give equal bits and change only the result, not other operands or gaps between rows. Costs
 * are compared with those of the planning device, launches with cuda_work(). */
#ifndef SLUICE_TEST_CUDA_CHECKER_H
#define SLUICE_TEST_CUDA_CHECKER_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/work.h"
#include "test/device/device_memory.h"
#include "test/device/emulated.h"
#include "test/lib/ops_operands.h"

enum { CANARY = 4096, WORKSPACE_MAX = 224 << 20, OPERANDS_MAX = 128 << 20, GUARD = 512, SPANS_MAX = 64 };

struct checker {
    struct device device; /* first member: struct device * is cast to this type */
    struct sys sys;
    struct device *cuda, *planned;
    /* host memory: the test's operands; a copy from before the call; the operands after the call */
    char *operands, *snapshot, *result;
    char *together, *workspace; /* device memory: all operands in one allocation; the workspace of any call */
    size_t used;
    int shift; /* offset in bytes of every operand from a multiple of 256 */
    struct span {
        size_t from, bytes;
        char *apart; /* the operand's own device memory, during the run with separate allocations */
    } spans[SPANS_MAX];
    int n_spans;
    uint64_t bits; /* hash of the results of all calls since the test set it to 0 */
    uint64_t all_bits;
    int calls;
};

static struct checker checker;

static void checker_reset(void) {
    checker.used = GUARD;
    checker.n_spans = 0;
}

static void *checker_alloc(size_t bytes) {
    size_t at = checker.used + (size_t)checker.shift;
    checker.used = (at + bytes + GUARD + 255) / 256 * 256;
    assert_true(checker.used <= OPERANDS_MAX && checker.n_spans < SPANS_MAX);
    checker.spans[checker.n_spans].from = at;
    checker.spans[checker.n_spans++].bytes = bytes;
    return checker.operands + at;
}

static void checker_wait(void) {
    double stalled = 0;
    checker.cuda->memory->wait(checker.cuda, &stalled, &problem);
    assert_ok(&problem);
}

/* Returns the test operand that contains the address. */
static struct span *span_of(const void *address) {
    size_t at = (size_t)((const char *)address - checker.operands);
    for (int i = 0; i < checker.n_spans; i++)
        if (at >= checker.spans[i].from && at < checker.spans[i].from + checker.spans[i].bytes)
            return &checker.spans[i];
    fail_msg("an operand lies outside the allocated operands");
    return NULL;
}

static void *on_device(const void *host) {
    if (!host) return NULL;
    const struct span *span = span_of(host);
    size_t at = (size_t)((const char *)host - checker.operands);
    return span->apart ? span->apart + (at - span->from) : checker.together + at;
}

/* Returns a copy of the adapters with device pointers; valid until the next call. */
static const struct low_rank *adapters_on_device(const struct low_rank *from) {
    enum { ADAPTERS_MAX = 8 };
    static struct low_rank moved[ADAPTERS_MAX];
    const struct low_rank *first = from ? moved : NULL;
    for (int i = 0; from; from = from->next, i++) {
        assert_true(i < ADAPTERS_MAX);
        moved[i] = *from;
        moved[i].up.data = on_device(from->up.data);
        moved[i].next = from->next ? &moved[i + 1] : NULL;
    }
    return first;
}

/* Returns a copy of the operator call with device pointers. */
static struct op op_on_device(const struct op *op) {
    struct op moved = *op;
    moved.in[1].adapters = adapters_on_device(op->in[1].adapters);
    const struct tensor *list[OP_OPERANDS_MAX + 1];
    int n = op_operands(&moved, list);
    list[n++] = &moved.out;
    for (int i = 0; i < n; i++) {
        struct tensor *t = (struct tensor *)list[i]; /* list points at fields of `moved`, not const */
        if (!t->rank) continue;
        t->data = on_device(t->data);
        t->scales = on_device(t->scales);
    }
    return moved;
}

/* Compares the number of launches with the prediction of cuda_work(). Operands that are less aligned than in
 * plans may need more launches. */
static void assert_launches(const struct op *op, long launches) {
    struct work_list list;
    int expected = 0;
    cuda_work(op, &list);
    for (int i = 0; i < list.n; i++) expected += list.rows[i].launches;
    if (emulated() && checker.shift % 16 == 0 && launches != expected)
        fail_msg("%s launches %ld kernels, expected %d", op_name(op->kind), launches, expected);
}

static void run_on_device(const struct op *op, void *workspace) {
    struct op moved = op_on_device(op);
    long before = emulated_launches();
    checker.cuda->run(checker.cuda, &moved, workspace, &problem);
    assert_ok(&problem);
    assert_launches(op, emulated_launches() - before);
    checker_wait();
}

/* Runs an operator with a separate device allocation for each operand and for the workspace. */
static void run_apart(const struct op *op, uint64_t workspace_bytes) {
    char *memory[SPANS_MAX + 1];
    for (int i = 0; i < checker.n_spans; i++) {
        struct span *span = &checker.spans[i];
        memory[i] = device_memory_take(span->bytes + (size_t)checker.shift);
        assert_non_null(memory[i]);
        span->apart = memory[i] + checker.shift;
        assert_true(device_memory_put(checker.cuda, span->apart, checker.operands + span->from, span->bytes));
    }
    memory[checker.n_spans] = device_memory_take(workspace_bytes);
    assert_non_null(memory[checker.n_spans]);
    assert_true(device_memory_fill(checker.cuda, memory[checker.n_spans], 0xff, workspace_bytes));
    run_on_device(op, memory[checker.n_spans]);
    for (int i = 0; i < checker.n_spans; i++) {
        struct span *span = &checker.spans[i];
        assert_true(device_memory_get(checker.cuda, checker.operands + span->from, span->apart, span->bytes));
        span->apart = NULL;
    }
    for (int i = 0; i <= checker.n_spans; i++) device_memory_give(memory[i]);
}

static void run_together(const struct op *op) {
    assert_true(device_memory_put(checker.cuda, checker.together, checker.operands, checker.used));
    run_on_device(op, checker.workspace);
    assert_true(device_memory_get(checker.cuda, checker.operands, checker.together, checker.used));
}

static void run_guarded(const struct op *op, uint64_t workspace_bytes) {
    unsigned char canary[CANARY];
    assert_true(device_memory_fill(checker.cuda, checker.workspace, 0xff, workspace_bytes));
    assert_true(device_memory_fill(checker.cuda, checker.workspace + workspace_bytes, 0xa5, CANARY));
    run_together(op);
    assert_true(device_memory_get(checker.cuda, canary, checker.workspace + workspace_bytes, CANARY));
    for (int i = 0; i < CANARY; i++) assert_int_equal(canary[i], 0xa5);
}

/* Restores an operand's values from the copy made before the call. */
static void restore(const struct tensor *t) {
    int64_t bytes = (int64_t)tensor_columns(t) * dtype_bits(t->dtype) / 8;
    for (int64_t i = 0; i < tensor_rows(t); i++) {
        char *row = (char *)t->data + i * t->row_bytes;
        memcpy(row, checker.snapshot + (row - checker.operands), (size_t)bytes);
    }
}

/* Returns the hash of the result and restores the result's memory; fails if other bytes have changed. */
static uint64_t take_bits(const struct op *op) {
    uint64_t bits = hash_out(op);
    restore(&op->out);
    if (op->kind == OP_GROUP_STATISTICS && op->in[1].rank) restore(&op->in[1]);
    if (memcmp(checker.operands, checker.snapshot, checker.used))
        fail_msg("%s wrote outside its result", op_name(op->kind));
    return bits;
}

static void checker_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device;
    struct op_cost planned;
    checker.cuda->cost(checker.cuda, op, cost);
    checker.planned->cost(checker.planned, op, &planned);
    assert_memory_equal(cost, &planned, sizeof planned);
}

static enum status checker_run(struct device *device, const struct op *op, void *unused, struct error *e) {
    (void)device, (void)unused, (void)e;
    struct op_cost cost;
    checker_cost(NULL, op, &cost);
    assert_true(cost.workspace_bytes + CANARY <= WORKSPACE_MAX);
    checker.cuda->prepare(checker.cuda, op, &problem);
    assert_ok(&problem);
    memcpy(checker.snapshot, checker.operands, checker.used);
    run_apart(op, cost.workspace_bytes);
    uint64_t first = take_bits(op);
    run_guarded(op, cost.workspace_bytes);
    memcpy(checker.result, checker.operands, checker.used);
    if (take_bits(op) != first) fail_msg("%s: the second call gave different bits", op_name(op->kind));
    memcpy(checker.operands, checker.result, checker.used);
    checker.bits = (checker.bits ^ first) * 0x100000001b3u;
    checker.all_bits = (checker.all_bits ^ first) * 0x100000001b3u;
    checker.calls++;
    return OK;
}

static int set_up(void **state) {
    (void)state;
    sys_init_machine(&checker.sys);
    checker.device = (struct device){.name = "checker", .cost = checker_cost, .run = checker_run};
    checker.planned = cuda_plan_device(&checker.sys, NULL, &problem);
    checker.cuda = checker.planned ? cuda_open(&checker.sys, 0, &problem) : NULL;
    assert_ok(&problem);
    checker.device.operands = checker.cuda->operands;
    checker.cuda->memory->preallocate(checker.cuda, 1, &problem); /* loads the CUDA kernels */
    assert_ok(&problem);
    checker.operands = aligned_alloc(256, OPERANDS_MAX);
    checker.together = device_memory_take(OPERANDS_MAX);
    checker.workspace = device_memory_take(WORKSPACE_MAX);
    checker.snapshot = malloc(OPERANDS_MAX);
    checker.result = malloc(OPERANDS_MAX);
    pool_open();
    checker_reset();
    operand_alloc = checker_alloc;
    operand_free_all = checker_reset;
    operand_rounding = nearest_bf16;
    x = (struct context){.device = &checker.device,
                         .precision = PRECISION_BF16,
                         .workspace = checker.workspace,
                         .workspace_bytes = WORKSPACE_MAX,
                         .error = &problem};
    return !checker.operands || !checker.together || !checker.workspace || !checker.snapshot ||
           !checker.result;
}

static int tear_down(void **state) {
    (void)state;
    if (!checker.cuda) return 0; /* set_up has reported why the device did not open */
    device_memory_give(checker.together);
    device_memory_give(checker.workspace);
    checker.cuda->destroy(checker.cuda);
    checker.planned->destroy(checker.planned);
    free(checker.operands);
    free(checker.snapshot);
    free(checker.result);
    printf("  %d calls, bits %016llx\n", checker.calls, (unsigned long long)checker.all_bits);
    return 0;
}

#endif
