/* An operator waits only for the weights that it reads, so copies and compute overlap within one block.
 *
 * The ring holds one block of several products, packed in the order of use. Under the virtual clock, the step
 * time is compared with a plain loop over operators and pieces. The paced device measures the gain and checks
 * weight bytes. */
#include "engine/run/executor.h"
#include "engine/run/plan.h"
#include "bench/dev/timed.h"
#include "kernels/ops.h"
#include "bench/dev/paced.h"
#include "test/lib/word_file.h"
#include "test/lib/seeded.h"

#include <string.h>
#include <time.h>

enum { OPS = 6, BLOCKS = 5, STEPS = 6, COLUMNS = 1024, TOKENS = 64 };

struct products {
    struct tensor weight[OPS];
};

/* Setting of the test family. last_first: forward_products uses the last weight first. */
struct order {
    bool last_first;
};

static void forward_products(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct products *w = weights;
    const struct order *order = scope->settings;
    int32_t rows = w->weight[0].dim[0];
    struct tensor in = context_tensor(x, DTYPE_F32, 2, (int32_t[]){TOKENS, COLUMNS});
    struct tensor out = context_tensor(x, DTYPE_F32, 2, (int32_t[]){TOKENS, rows});
    for (int i = 0; i < OPS; i++)
        op_linear(x, out, in, w->weight[order->last_first ? OPS - 1 - i : i], (struct epilogue){0});
}

static const struct block_kind kind_products = {.name = "products",
                                                .format = "block.%d",
                                                .weights_bytes = sizeof(struct products),
                                                .forward = forward_products};

static void declare_nothing(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
}

static const struct family family_products = {
    .name = "products", .kind = FAMILY_DENOISER, .state.bytes = 1, .state.declare = declare_nothing};

static struct fixture {
    struct sys *sys;
    struct byte_source source;
    struct component component;
    struct block blocks[BLOCKS];
    struct packed_segment segments[BLOCKS];
    const struct block *list[BLOCKS];
    struct stage stage;
    struct lane lane;
    struct visit_list visits;
    struct run run;
    struct run_hooks hooks;
    struct run_need need;
    struct plan plan;
    struct residents residents;
    double ended[STEPS];
} fixture;

static enum status evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    fixture.ended[visit->evaluation] = fixture.sys->clock(fixture.sys);
    return e->code;
}

static enum status stage_ended(void *user, int stage, struct error *e) {
    return e->code;
}

static bool never_cancel(void *user, const struct visit *visit, double done, struct error *e) {
    return true;
}

static void make_block(int b, int32_t rows) {
    struct tensor weight = tensor_make(NULL, DTYPE_BF16, 2, (int32_t[]){rows, COLUMNS});
    uint64_t bytes = (uint64_t)tensor_bytes(&weight);
    fixture.segments[b] = (struct packed_segment){
        .source = &fixture.source, .file_offset = (uint64_t)b * OPS * bytes, .bytes = OPS * bytes};
    struct block *block = &fixture.blocks[b];
    *block = (struct block){.kind = &kind_products,
                            .number = b,
                            .index = &fixture.component.index,
                            .segments = &fixture.segments[b],
                            .n_segments = 1,
                            .n_tensors = OPS,
                            .bytes = OPS * bytes};
    for (int i = 0; i < OPS; i++)
        block->tensors[i] = (struct packed_tensor){.offset = (size_t)i * sizeof(struct tensor),
                                                   .packed_offset = (uint64_t)i * bytes,
                                                   .shape = weight};
    fixture.list[b] = block;
}

/* Builds a model whose weights have `rows` rows each; file 0 of `sys` contains their bytes. */
static void fixture_make(struct sys *sys, struct device *device, int32_t rows, bool last_first, int readers) {
    struct error e = {0};
    fixture = (struct fixture){.sys = sys, .visits.sys = sys, .residents = {.sys = sys, .device = device}};
    fixture.source = (struct byte_source){.sys = sys, .path = "made-up weights", .file = 0};
    sys->identify(sys, 0, &fixture.source.identity);
    fixture.component = (struct component){.family = &family_products,
                                           .sys = sys,
                                           .index = {.sys = sys, .sources = &fixture.source, .n_sources = 1},
                                           .blocks = fixture.blocks,
                                           .n_blocks = BLOCKS};
    memcpy(fixture.component.settings, &(struct order){last_first}, sizeof(struct order));
    for (int b = 0; b < BLOCKS; b++) make_block(b, rows);
    fixture.stage = (struct stage){.name = "denoise",
                                   .component = &fixture.component,
                                   .blocks = fixture.list,
                                   .n_blocks = BLOCKS,
                                   .n_model_blocks = BLOCKS,
                                   .lanes = &fixture.lane,
                                   .n_lanes = 1,
                                   .n_groups = 1,
                                   .evaluations = STEPS};
    for (int i = 0; i < STEPS * BLOCKS; i++)
        visit_add(&fixture.visits,
                  (struct visit){.block = i % BLOCKS,
                                 .n_lanes = 1,
                                 .evaluation = i / BLOCKS,
                                 .ends_evaluation = i % BLOCKS + 1 == BLOCKS},
                  &e);
    fixture.hooks = (struct run_hooks){
        .evaluation_ended = evaluation_ended, .stage_ended = stage_ended, .tick = never_cancel};
    fixture.run =
        (struct run){sys, device, &fixture.stage, 1, &fixture.visits, &fixture.hooks, readers, NULL, false};
    assert_int_equal(e.code, OK);
}

/* Runs with a ring of one block and nothing resident. Returns the steady-state seconds per step. */
static double fixture_run(const struct rates *rates, uint64_t staging_bytes) {
    struct error e = {0};
    fixture.need.rates = *rates;
    fixture.need.separate = true;
    assert_int_equal(executor_measure(&fixture.run, true, &fixture.need, &e), OK);
    plan_begin(&fixture.need, &fixture.plan);
    fixture.plan.stage[0].ring_bytes = fixture.blocks[0].bytes;
    fixture.plan.stage[0].staging_bytes = staging_bytes;
    plan_evaluate(&fixture.need, &fixture.plan);
    executor_run(&fixture.run, &fixture.need, &fixture.plan, &fixture.residents, NULL, &e);
    if (e.code != OK) printf("%s\n", e.what);
    assert_int_equal(e.code, OK);
    residents_destroy(&fixture.residents);
    visit_list_destroy(&fixture.visits);
    return (fixture.ended[STEPS - 1] - fixture.ended[STEPS - 3]) / 2;
}

/* Returns the time at which a block is computed if its copy starts at 0 and proceeds in parts of `part`
 * bytes. An operator starts when the last byte of its weight has arrived. */
static double block_seconds(uint64_t weight, uint64_t part, double bus, double operator, bool last_first) {
    double now = 0;
    for (int i = 0; i < OPS; i++) {
        uint64_t to = weight * (uint64_t)(last_first ? OPS - i : i + 1);
        uint64_t there = (to + part - 1) / part * part, all = weight * OPS;
        double arrives = (double)(there < all ? there : all) / bus;
        now = (now > arrives ? now : arrives) + operator;
    }
    return now;
}

struct timed_case {
    /* weight: bytes of a weight. part: bytes that become available together, a multiple of the copy piece. */
    uint64_t weight, part;
    double load; /* compute time of an operator divided by the copy time of its weight */
};

static double run_timed(const struct timed_case *c, double bus, bool last_first) {
    static struct timed timed;
    double block = (double)(c->weight * OPS) / bus, flops = 2.0 * TOKENS * (double)(c->weight / 2);
    struct rates rates = {.h2d = bus, .disk = 1e18, .host_copy = 1e18};
    rates.ops.per_second[CLASS_LINEAR] = flops * OPS / (c->load * block);
    timed_init(&timed, &rates.ops, bus, rates.disk);
    fixture_make(&timed.sys, &timed.device, (int32_t)(c->weight / 2 / COLUMNS), last_first, 0);
    double seconds = fixture_run(&rates, PLAN_STAGING);
    double expected = BLOCKS * block_seconds(c->weight, c->part, bus, c->load * block / OPS, last_first);
    double predicted = timing_predict(&fixture.need, &fixture.plan, 0).evaluation_seconds;
    double no_overlap = BLOCKS * block * (1 + c->load), floor = BLOCKS * block * (c->load > 1 ? c->load : 1);
    printf("%d x %d weights of %d MiB, compute/copy %.2f, %s: %.4f s; lower bound %.4f, no overlap %.4f\n",
           BLOCKS, OPS, (int)(c->weight >> 20), c->load, last_first ? "reversed" : "in order", seconds, floor,
           no_overlap);
    assert_true(seconds > expected * (1 - 1e-6) && seconds < expected * (1 + 1e-6));
    assert_true(seconds <= predicted * (1 + 1e-6));
    if (last_first) assert_true(seconds > no_overlap * (1 - 1e-6));
    return seconds / no_overlap;
}

/* The last case has a block of more pieces than the store can wait for one by one. */
TEST(overlap_matches_virtual_clock) {
    static const struct timed_case cases[] = {
        {20 << 20, 8 << 20, 1}, {20 << 20, 8 << 20, 0.25}, {20 << 20, 8 << 20, 4}, {64 << 20, 24 << 20, 1}};
    for (int i = 0; i < COUNT_OF(cases); i++) {
        double in_order = run_timed(&cases[i], 12e9, false);
        run_timed(&cases[i], 12e9, true);
        assert_true(in_order < (cases[i].load == 1 ? 0.7 : 0.9));
    }
}

enum { PACED_ROWS = 512, CHECK_STRIDE = 61 };
static const double paced_bus = 0.3e9;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
/* builds with sanitizers compute as slowly as the paced bus copies, so they check only the bytes */
static const double minimum_gain = 0;
#else
static const double minimum_gain = 0.15;
#endif

/* Returns the 16-bit word of the test file at a byte offset: a 16-bit hash of the offset. */
static uint16_t word_at(uint64_t offset) {
    return (uint16_t)(offset / 2 * 0x9e3779b97f4a7c15u >> 40);
}

/* A device that checks samples of each weight's bytes, then sleeps for the operator's compute time. */
struct checking_device {
    struct device device; /* first member, because struct device * is cast to this structure */
    double seconds;
    int n_operators, n_wrong;
};

static void cost_nothing(const struct device *device, const struct op *op, struct op_cost *cost) {
    *cost = (struct op_cost){0};
}

static enum status prepare_nothing(struct device *device, const struct op *op, struct error *e) {
    return OK;
}

static enum status check_weight(struct device *device, const struct op *op, void *workspace,
                                struct error *e) {
    struct checking_device *l = (struct checking_device *)device;
    const struct tensor *weight = &op->in[1];
    bool last_first = ((const struct order *)(const void *)fixture.component.settings)->last_first;
    int block = l->n_operators / OPS % BLOCKS, i = l->n_operators % OPS;
    uint64_t bytes = (uint64_t)tensor_bytes(weight);
    uint64_t offset = ((uint64_t)block * OPS + (uint64_t)(last_first ? OPS - 1 - i : i)) * bytes;
    const uint16_t *words = weight->data;
    bool right = true;
    for (uint64_t k = 0; k < bytes / 2; k += CHECK_STRIDE)
        right = right && words[k] == word_at(offset + 2 * k);
    l->n_wrong += !right;
    l->n_operators++;
    nanosleep(&(struct timespec){.tv_nsec = (long)(l->seconds * 1e9)}, NULL);
    return e->code;
}

static double run_paced(bool last_first, int readers) {
    struct error e = {0};
    struct sys sys;
    struct rates rates = {.h2d = paced_bus, .disk = 1e9, .host_copy = 4e9};
    struct checking_device checker = {
        .device = {
            .name = "checking", .cost = cost_nothing, .prepare = prepare_nothing, .run = check_weight}};
    /* each operator takes as long as copying one weight */
    checker.seconds = PACED_ROWS * COLUMNS * 2 / paced_bus;
    sys_init_machine(&sys);
    sys.read_at = read_words;
    sys.identify = identify_words;
    struct device *paced = paced_open(&sys, &checker.device, paced_bus, &e);
    assert_non_null(paced);
    fixture_make(&sys, paced, PACED_ROWS, last_first, readers);
    double seconds = fixture_run(&rates, 1 << 20); /* 1 MiB of staging: two buffers, each for half a weight */
    assert_int_equal(checker.n_wrong, 0);
    assert_int_equal(checker.n_operators, OPS * BLOCKS * STEPS);
    paced->destroy(paced);
    for (int i = 0; i < N_MEMORY_LINES; i++) assert_int_equal(sys.use.live_bytes[i], 0);
    return seconds;
}

TEST(overlap_gains_on_paced_device) {
    double no_overlap = 2 * BLOCKS * OPS * PACED_ROWS * COLUMNS * 2 / paced_bus;
    for (int readers = 1; readers < 4; readers++) {
        double in_order = run_paced(false, readers), last_first = run_paced(true, readers);
        printf("paced, %d readers: in order %.4f s per step, reversed %.4f; no overlap %.4f\n", readers,
               in_order, last_first, no_overlap);
        assert_true(last_first > no_overlap * 0.98);
        if (minimum_gain > 0) assert_true(in_order < last_first * (1 - minimum_gain));
    }
}

enum { AWAITED_MAX = 16 };
static struct {
    const void *data[AWAITED_MAX];
    int n;
} awaited;

static bool record_await(void *user, const struct tensor *tensor) {
    awaited.data[awaited.n++] = tensor->data;
    return true;
}

static enum status run_nothing(struct device *device, const struct op *op, void *workspace, struct error *e) {
    return e->code;
}

/* Operand i in these tests has its data at places[i], which has APART bytes. */
enum { APART = 1 << 10 };
static char places[AWAITED_MAX][APART];

static struct tensor tensor_at_place(int i, int rank, int32_t a, int32_t b, int32_t c) {
    struct tensor t = tensor_make(NULL, DTYPE_F32, rank, (int32_t[]){a, b, c, c});
    t.data = places[i];
    return t;
}

/* Checks that the last operator awaited the data of operands 1 to n, each once. */
static void expect_awaited(int n) {
    assert_int_equal(awaited.n, n);
    for (int i = 1; i <= n; i++) {
        int times = 0;
        for (int k = 0; k < n; k++) times += awaited.data[k] == places[i];
        assert_int_equal(times, 1);
    }
    awaited.n = 0;
}

static struct tensor rows(int i) {
    return tensor_at_place(i, 2, 2, 8, 0);
}

static struct tensor vector(int i) {
    return tensor_at_place(i, 1, 8, 0, 0);
}

static struct tensor matrix(int i) {
    return tensor_at_place(i, 2, 8, 8, 0);
}

TEST(operators_await_every_input) {
    struct error e = {0};
    struct device device = {.name = "nothing", .cost = cost_nothing, .run = run_nothing};
    struct context context = {.device = &device, .error = &e, .await = record_await}, *x = &context;
    awaited.n = 0;
    struct epilogue epilogue = {.bias = vector(3), .residual = rows(4)};
    op_linear(x, rows(0), rows(1), matrix(2), epilogue);
    expect_awaited(4);
    epilogue.gate = vector(5);
    op_linear(x, rows(0), rows(1), matrix(2), epilogue);
    expect_awaited(5);
    op_linear_few(x, rows(0), rows(1), matrix(2), vector(3), 0);
    expect_awaited(3);
    op_attention(x, rows(0), rows(1), rows(2), rows(3),
                 (struct attention_options){.queries = 2, .keys = 2, .scale = 1});
    expect_awaited(3);
    op_attention(x, rows(0), rows(1), rows(2), rows(3),
                 (struct attention_options){
                     .queries = 2, .keys = 2, .scale = 1, .relative_bias = tensor_at_place(4, 2, 2, 3, 0)});
    expect_awaited(4);
    op_relative_bias(x, tensor_at_place(0, 2, 2, 3, 0), tensor_at_place(1, 2, 8, 2, 0),
                     (struct distance_buckets){20});
    expect_awaited(1);
    struct modulation m = {.scale = vector(3), .gate = vector(4), .base = rows(5)};
    op_rms_norm(x, rows(0), rows(1), vector(2), 0, m);
    expect_awaited(5);
    op_layer_norm(x, rows(0), rows(1), (struct affine){.scale = vector(2)}, 0);
    expect_awaited(2);
    struct affine affine = {vector(2), vector(3), vector(4), vector(5)};
    op_layer_norm(x, rows(0), rows(1), affine, 0);
    expect_awaited(5);
    op_add(x, rows(0), rows(1), tensor_at_place(2, 2, 1, 8, 0));
    expect_awaited(2);
    struct group_norm norm = {tensor_at_place(2, 2, 4, 2, 0), vector(3), vector(4)};
    op_group_norm(x, rows(0), rows(1), norm);
    expect_awaited(4);
    op_group_statistics(x, tensor_at_place(0, 2, 4, 2, 0), tensor_at_place(1, 3, 2, 2, 8),
                        (struct rows_before){0}, 4, 0);
    expect_awaited(1);
    struct rotation rotation = {.heads = 2, .pairs = ROPE_HALVES, .norm = tensor_at_place(3, 1, 4, 0, 0)};
    op_rope(x, rows(0), rows(1), tensor_at_place(2, 3, 2, 2, 2), rotation);
    expect_awaited(3);
    op_glu(x, rows(0), rows(1), rows(2), ACTIVATION_SILU);
    expect_awaited(2);
    op_copy(x, rows(0), rows(1));
    expect_awaited(1);
    op_broadcast_row(x, rows(0), tensor_at_place(1, 2, 1, 8, 0));
    expect_awaited(1);
    struct conv_options conv = {.norm = {tensor_at_place(5, 2, 4, 2, 0), tensor_at_place(6, 1, 3, 0, 0),
                                         tensor_at_place(7, 1, 3, 0, 0)},
                                .upsample = 1};
    conv.norm.statistics.dim[0] = 3;
    op_conv2d(
        x, tensor_at_place(0, 3, 4, 4, 3), tensor_at_place(1, 3, 4, 4, 3), tensor_at_place(2, 4, 3, 3, 3),
        (struct epilogue){.bias = tensor_at_place(3, 1, 3, 0, 0), .residual = tensor_at_place(4, 3, 4, 4, 3)},
        conv);
    expect_awaited(7);
    op_patchify(x, tensor_at_place(0, 2, 1, 12, 0), tensor_at_place(1, 3, 3, 2, 2),
                (struct patches){.side = 2});
    expect_awaited(1);
    assert_int_equal(e.code, OK);
}

int main(void) {
    return run_all_tests(NULL, NULL);
}
