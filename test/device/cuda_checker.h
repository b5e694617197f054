/* Watches every operator call of the CUDA tests, on a GPU or under the emulator. Operands and workspace lie
 * in the device's memory, as they do when pictures are drawn. A call is prepared and made twice: with an
 * allocation of its own for each of them, so that what knows allocations (compute-sanitizer, the address
 * sanitizer) sees every access beyond one; then with all operands in one allocation and the workspace guarded
 * behind its end, so that what was written where nothing of the call's lies is seen without such a tool. Both
 * give the same bits, and nothing but the result has changed: not other operands, not the gaps between rows.
 * Costs are compared with those of the device that is only planned for, launches with what the call is said
 * to make. */
#ifndef SLUICE_TEST_CUDA_CHECKER_H
#define SLUICE_TEST_CUDA_CHECKER_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/work.h"
#include "test/device/device_memory.h"
#include "test/device/emulated.h"
#include "test/lib/ops_operands.h"

enum { CANARY = 4096, WORKSPACE_MAX = 224 << 20, OPERANDS_MAX = 128 << 20, GUARD = 512, SPANS_MAX = 64 };

struct watch {
    struct device device; /* first */
    struct sys sys;
    struct device *cuda, *planned;
    char *operands, *snapshot, *result; /* the host's: as tests see them, as they were, as they became */
    char *together, *workspace;         /* the device's: of all operands in their places, of any call */
    size_t used;
    int shift; /* every operand begins so many bytes behind a multiple of 256 */
    struct span {
        size_t from, bytes;
        char *apart; /* the device's, while it has an allocation of its own */
    } spans[SPANS_MAX];
    int n_spans;
    uint64_t bits; /* of all results since somebody set it to 0 */
    uint64_t all_bits;
    int calls;
};

static struct watch watch;

/* --- operands --- */

static void watch_forget(void) {
    watch.used = GUARD;
    watch.n_spans = 0;
}

static void *watch_take(size_t bytes) {
    size_t at = watch.used + (size_t)watch.shift;
    watch.used = (at + bytes + GUARD + 255) / 256 * 256;
    assert_true(watch.used <= OPERANDS_MAX && watch.n_spans < SPANS_MAX);
    watch.spans[watch.n_spans].from = at;
    watch.spans[watch.n_spans++].bytes = bytes;
    return watch.operands + at;
}

/* To nearest even, as the device rounds to bf16; by remainders instead of bits. */
static double nearest_bf16(double value) {
    int exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    if (exponent < -125) exponent = -125; /* below that steps are no smaller */
    return ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8);
}

/* --- calls --- */

static void assert_no_problem(void) {
    char line[1200];
    if (problem.code) fail_msg("%s", error_line(&problem, line, sizeof line));
}

static void watch_wait(void) {
    double stalled = 0;
    watch.cuda->memory->wait(watch.cuda, &stalled, &problem);
    assert_no_problem();
}

/* The operand that this address lies in. */
static struct span *span_of(const void *address) {
    size_t at = (size_t)((const char *)address - watch.operands);
    for (int i = 0; i < watch.n_spans; i++)
        if (at >= watch.spans[i].from && at < watch.spans[i].from + watch.spans[i].bytes)
            return &watch.spans[i];
    fail_msg("an operand lies where none was taken");
    return NULL;
}

static void *on_device(const void *host) {
    if (!host) return NULL;
    const struct span *span = span_of(host);
    size_t at = (size_t)((const char *)host - watch.operands);
    return span->apart ? span->apart + (at - span->from) : watch.together + at;
}

/* What adapts the weight of a product, on the device, until the next call. */
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

/* The same call, its operands on the device. */
static struct op op_on_device(const struct op *op) {
    struct op moved = *op;
    moved.in[1].adapters = adapters_on_device(op->in[1].adapters);
    const struct tensor *list[OP_OPERANDS_MAX + 1];
    int n = op_operands(&moved, list);
    list[n++] = &moved.out;
    for (int i = 0; i < n; i++) {
        struct tensor *t = (struct tensor *)list[i]; /* of moved, which is ours */
        if (!t->rank) continue;
        t->data = on_device(t->data);
        t->scales = on_device(t->scales);
    }
    return moved;
}

/* So many as the call is said to make. Operands that begin elsewhere than plans put them may take more. */
static void assert_launches(const struct op *op, long launches) {
    struct work_list list;
    int said = 0;
    cuda_work(op, &list);
    for (int i = 0; i < list.n; i++) said += list.rows[i].launches;
    if (emulated() && watch.shift % 16 == 0 && launches != said)
        fail_msg("%s launches %ld kernels, not %d", op_name(op->kind), launches, said);
}

static void run_on_device(const struct op *op, void *workspace) {
    struct op moved = op_on_device(op);
    long before = emulated_launches();
    watch.cuda->run(watch.cuda, &moved, workspace, &problem);
    assert_no_problem();
    assert_launches(op, emulated_launches() - before);
    watch_wait();
}

/* Each operand and the workspace by itself. */
static void run_apart(const struct op *op, uint64_t workspace_bytes) {
    char *memory[SPANS_MAX + 1];
    for (int i = 0; i < watch.n_spans; i++) {
        struct span *span = &watch.spans[i];
        memory[i] = device_memory_take(span->bytes + (size_t)watch.shift);
        assert_non_null(memory[i]);
        span->apart = memory[i] + watch.shift;
        assert_true(device_memory_put(watch.cuda, span->apart, watch.operands + span->from, span->bytes));
    }
    memory[watch.n_spans] = device_memory_take(workspace_bytes);
    assert_non_null(memory[watch.n_spans]);
    assert_true(device_memory_fill(watch.cuda, memory[watch.n_spans], 0xff, workspace_bytes));
    run_on_device(op, memory[watch.n_spans]);
    for (int i = 0; i < watch.n_spans; i++) {
        struct span *span = &watch.spans[i];
        assert_true(device_memory_get(watch.cuda, watch.operands + span->from, span->apart, span->bytes));
        span->apart = NULL;
    }
    for (int i = 0; i <= watch.n_spans; i++) device_memory_give(memory[i]);
}

/* All in their places. */
static void run_together(const struct op *op) {
    assert_true(device_memory_put(watch.cuda, watch.together, watch.operands, watch.used));
    run_on_device(op, watch.workspace);
    assert_true(device_memory_get(watch.cuda, watch.operands, watch.together, watch.used));
}

static void run_guarded(const struct op *op, uint64_t workspace_bytes) {
    unsigned char canary[CANARY];
    assert_true(device_memory_fill(watch.cuda, watch.workspace, 0xff, workspace_bytes));
    assert_true(device_memory_fill(watch.cuda, watch.workspace + workspace_bytes, 0xa5, CANARY));
    run_together(op);
    assert_true(device_memory_get(watch.cuda, canary, watch.workspace + workspace_bytes, CANARY));
    for (int i = 0; i < CANARY; i++) assert_int_equal(canary[i], 0xa5);
}

/* The result's values become what they were. */
static void put_back(const struct tensor *t) {
    int64_t bytes = (int64_t)tensor_columns(t) * dtype_bits(t->dtype) / 8;
    for (int64_t i = 0; i < tensor_rows(t); i++) {
        char *row = (char *)t->data + i * t->row_bytes;
        memcpy(row, watch.snapshot + (row - watch.operands), (size_t)bytes);
    }
}

/* The bits of what a run gave. Then everything is as it was before. */
static uint64_t take_bits(const struct op *op) {
    uint64_t bits = hash_out(op);
    put_back(&op->out);
    if (op->kind == OP_GROUP_STATISTICS && op->in[1].rank) put_back(&op->in[1]);
    if (memcmp(watch.operands, watch.snapshot, watch.used))
        fail_msg("%s wrote where nothing of its own lies", op_name(op->kind));
    return bits;
}

static void watch_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device;
    struct op_cost planned;
    watch.cuda->cost(watch.cuda, op, cost);
    watch.planned->cost(watch.planned, op, &planned);
    assert_memory_equal(cost, &planned, sizeof planned);
}

static enum status watch_run(struct device *device, const struct op *op, void *unused, struct error *e) {
    (void)device, (void)unused, (void)e;
    struct op_cost cost;
    watch_cost(NULL, op, &cost);
    assert_true(cost.workspace_bytes + CANARY <= WORKSPACE_MAX);
    watch.cuda->prepare(watch.cuda, op, &problem);
    assert_no_problem();
    memcpy(watch.snapshot, watch.operands, watch.used);
    run_apart(op, cost.workspace_bytes);
    uint64_t first = take_bits(op);
    run_guarded(op, cost.workspace_bytes);
    memcpy(watch.result, watch.operands, watch.used);
    if (take_bits(op) != first) fail_msg("%s: the same call gave other bits", op_name(op->kind));
    memcpy(watch.operands, watch.result, watch.used);
    watch.bits = (watch.bits ^ first) * 0x100000001b3u;
    watch.all_bits = (watch.all_bits ^ first) * 0x100000001b3u;
    watch.calls++;
    return OK;
}

/* --- opening --- */

static int set_up(void **state) {
    (void)state;
    sys_init_machine(&watch.sys);
    watch.device = (struct device){.name = "watch", .cost = watch_cost, .run = watch_run};
    watch.planned = cuda_plan_device(&watch.sys, NULL, &problem);
    watch.cuda = watch.planned ? cuda_open(&watch.sys, 0, &problem) : NULL;
    assert_no_problem();
    watch.device.operands = watch.cuda->operands;
    watch.cuda->memory->preallocate(watch.cuda, 1, &problem); /* loads kernels */
    assert_no_problem();
    watch.operands = aligned_alloc(256, OPERANDS_MAX);
    watch.together = device_memory_take(OPERANDS_MAX);
    watch.workspace = device_memory_take(WORKSPACE_MAX);
    watch.snapshot = malloc(OPERANDS_MAX);
    watch.result = malloc(OPERANDS_MAX);
    pool_open();
    watch_forget();
    operand_alloc = watch_take;
    operand_free_all = watch_forget;
    operand_rounding = nearest_bf16;
    x = (struct context){.device = &watch.device,
                         .precision = PRECISION_BF16,
                         .workspace = watch.workspace,
                         .workspace_bytes = WORKSPACE_MAX,
                         .error = &problem};
    return !watch.operands || !watch.together || !watch.workspace || !watch.snapshot || !watch.result;
}

static int tear_down(void **state) {
    (void)state;
    if (!watch.cuda) return 0; /* set_up has said why */
    device_memory_give(watch.together);
    device_memory_give(watch.workspace);
    watch.cuda->destroy(watch.cuda);
    watch.planned->destroy(watch.planned);
    free(watch.operands);
    free(watch.snapshot);
    free(watch.result);
    printf("  %d calls, bits %016llx\n", watch.calls, (unsigned long long)watch.all_bits);
    return 0;
}

#endif
