/* Watches every operator call of the CUDA tests, on a GPU or under the emulator: prepares it, poisons the
 * workspace and guards what lies behind it, repeats the call and compares the bits, and sees that nothing but
 * the result has changed: not other operands, not the gaps between rows. Under the address sanitizer what
 * lies between operands may not even be read. Costs are compared with those of the device that is only
 * planned for. */
#ifndef SLUICE_TEST_CUDA_WATCH_H
#define SLUICE_TEST_CUDA_WATCH_H

#include "kernels/cuda/cuda.h"
#include "test/lib/ops_operands.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes)   ((void)(from), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(from, bytes) ((void)(from), (void)(bytes))
#endif

enum { CANARY = 4096, WORKSPACE_MAX = 224 << 20, OPERANDS_MAX = 128 << 20, GUARD = 512, SPANS_MAX = 64 };

struct watch {
    struct device device; /* first */
    struct sys sys;
    struct device *cuda, *planned;
    char *operands, *workspace; /* shared with the GPU */
    char *snapshot, *result;    /* of the operands */
    size_t used;
    int shift; /* every operand begins so many bytes behind a multiple of 256 */
    struct {
        size_t from, bytes;
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

/* How much behind operands and workspace is watched for reads: the more, the slower. */
enum { MOAT = 1 << 20 };

/* Only operands and the workspace that the call may use can be touched, from here to watch_let. */
static void watch_forbid(uint64_t workspace_bytes) {
    ASAN_POISON_MEMORY_REGION(watch.operands, watch.used + MOAT);
    for (int i = 0; i < watch.n_spans; i++)
        ASAN_UNPOISON_MEMORY_REGION(watch.operands + watch.spans[i].from, watch.spans[i].bytes);
    ASAN_POISON_MEMORY_REGION(watch.workspace + workspace_bytes, MOAT);
}

static void watch_let(uint64_t workspace_bytes) {
    ASAN_UNPOISON_MEMORY_REGION(watch.operands, watch.used + MOAT);
    ASAN_UNPOISON_MEMORY_REGION(watch.workspace + workspace_bytes, MOAT);
}

/* The result's values become what they were. */
static void put_back(const struct tensor *t) {
    int64_t bytes = (int64_t)tensor_columns(t) * dtype_bits(t->dtype) / 8;
    for (int64_t i = 0; i < tensor_rows(t); i++) {
        char *row = (char *)t->data + i * t->row_bytes;
        memcpy(row, watch.snapshot + (row - watch.operands), (size_t)bytes);
    }
}

static uint64_t run_guarded(const struct op *op, uint64_t workspace_bytes, bool keep) {
    memset(watch.workspace, 0xff, workspace_bytes);
    memset(watch.workspace + workspace_bytes, 0xa5, CANARY);
    watch_forbid(workspace_bytes);
    watch.cuda->run(watch.cuda, op, watch.workspace, &problem);
    assert_no_problem();
    watch_wait();
    watch_let(workspace_bytes);
    for (int i = 0; i < CANARY; i++)
        assert_int_equal((unsigned char)watch.workspace[workspace_bytes + (uint64_t)i], 0xa5);
    if (keep) memcpy(watch.result, watch.operands, watch.used);
    uint64_t bits = hash_out(op);
    put_back(&op->out);
    if (op->kind == OP_GROUP_STATISTICS && op->in[1].rank) put_back(&op->in[1]);
    if (memcmp(watch.operands, watch.snapshot, watch.used))
        fail_msg("%s wrote where nothing of its own lies", op_name(op->kind));
    if (keep) memcpy(watch.operands, watch.result, watch.used);
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
    uint64_t first = run_guarded(op, cost.workspace_bytes, false);
    if (run_guarded(op, cost.workspace_bytes, true) != first)
        fail_msg("%s: the same call gave other bits", op_name(op->kind));
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
    watch.planned = cuda_planned(&watch.sys, &problem);
    watch.cuda = watch.planned ? cuda_open(&watch.sys, 0, &problem) : NULL;
    assert_no_problem();
    watch.cuda->memory->provide(watch.cuda, 1, &problem); /* loads kernels */
    assert_no_problem();
    watch.operands = watch.cuda->memory->take_shared(watch.cuda, OPERANDS_MAX + MOAT);
    watch.workspace = watch.cuda->memory->take_shared(watch.cuda, WORKSPACE_MAX + MOAT);
    watch.snapshot = malloc(OPERANDS_MAX);
    watch.result = malloc(OPERANDS_MAX);
    pool_open();
    watch_forget();
    operand_take = watch_take;
    operand_forget = watch_forget;
    operand_rounding = nearest_bf16;
    x = (struct context){.device = &watch.device,
                         .precision = PRECISION_BF16,
                         .workspace = watch.workspace,
                         .workspace_bytes = WORKSPACE_MAX,
                         .error = &problem};
    return !watch.operands || !watch.workspace || !watch.snapshot || !watch.result;
}

static int tear_down(void **state) {
    (void)state;
    if (!watch.cuda) return 0; /* set_up has said why */
    const struct device_memory *memory = watch.cuda->memory;
    memory->give_shared(watch.cuda, watch.operands, OPERANDS_MAX + MOAT);
    memory->give_shared(watch.cuda, watch.workspace, WORKSPACE_MAX + MOAT);
    watch.cuda->destroy(watch.cuda);
    watch.planned->destroy(watch.planned);
    free(watch.snapshot);
    free(watch.result);
    printf("  %d calls, bits %016llx\n", watch.calls, (unsigned long long)watch.all_bits);
    return 0;
}

#endif
