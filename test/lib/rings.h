/* What the golden tests share: fixtures (test/golden/make.py) found and opened, their rings read, errors
 * compared with a table of gates, and a bench on which one block's real forward runs on the CPU device, or on
 * the one that SLUICE_TEST_DEVICE names. A GPU computes in bf16: it runs the tests of that precision and
 * those that have gates for it.
 *
 * GOLDEN=DIR takes other fixtures than the committed ones: make.py --seed N --out DIR draws other sizes. */
#ifndef SLUICE_TEST_RINGS_H
#define SLUICE_TEST_RINGS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/api/devices.h"
#include "engine/open/model.h"
#include "engine/run/pins.h"
#include "kernels/ops.h"
#include "test/lib/device.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIXTURES_MAX = 16, RING_THREADS = 2, RING_SCRATCH = 64 << 20 };

struct fixture {
    char name[256], path[512];
    json_t *expect, *bf16; /* bf16: the reference's errors there (test/golden/bf16.py) */
    struct tensor_index rings;
    struct sluice_model *model;
    bool used; /* a test runs on it; only then its model is open */
};

/* How close a ring must be. measured: the worst of the committed fixtures and seeds 3 and 4, under AVX-512
 * and under DNNL_MAX_CPU_ISA=AVX2. gate: about three times that, and never more than the project's (1e-5 a
 * block, 2e-5 the final latent). An error of exactly the gate passes, so that a gate of 0 asks for equal
 * bits. */
struct gate {
    const char *ring;
    double measured, gate;
};

struct ring_test {
    const char *name;
    void (*body)(const struct fixture *f);
    enum precision precision; /* in bf16 rings that the reference's errors there are known of have 1.5 times
                                 these as gates; all others keep those of f32 */
    bool gpu;                 /* runs there too, in bf16 */
    const char *needs;        /* a ring: it runs on the fixtures that have it; NULL: on all */
};

static struct rings_state {
    struct sys sys;
    struct device *device;
    struct fixture fixtures[FIXTURES_MAX];
    int n_fixtures;
    const struct gate *gates;
    int misses;               /* of the test that runs */
    enum precision precision; /* likewise */
    void *memory;             /* of the test that runs: each piece starts with a pointer to the one before */
} rings_state;

/* ---- memory and rings of one test ---- */

static inline bool on_gpu(void) {
    return rings_state.device->memory;
}

/* That the device reaches; zeroed, aligned to ARENA_ALIGN. */
static inline void *device_bytes(size_t bytes) {
    void *memory = shared_map(&rings_state.sys, rings_state.device, LINE_STATE, bytes);
    assert_non_null(memory);
    return memory;
}

static inline void device_bytes_free(void *memory, size_t bytes) {
    shared_unmap(&rings_state.sys, rings_state.device, LINE_STATE, memory, bytes);
}

enum { RING_HEAD = ARENA_ALIGN };

struct ring_head {
    void *before;
    size_t bytes;
};

/* Zeroed, freed at the end of the test. */
static inline void *test_memory(size_t bytes) {
    size_t whole = (RING_HEAD + bytes + RING_HEAD - 1) / RING_HEAD * RING_HEAD;
    char *memory = on_gpu() ? device_bytes(whole) : aligned_alloc(RING_HEAD, whole);
    assert_non_null(memory);
    memset(memory, 0, whole);
    *(struct ring_head *)memory = (struct ring_head){rings_state.memory, whole};
    rings_state.memory = memory;
    return memory + RING_HEAD;
}

/* Back to what rings_state.memory was, NULL for everything. */
static inline void test_memory_free_to(void *mark) {
    while (rings_state.memory != mark) {
        void *memory = rings_state.memory;
        struct ring_head head = *(struct ring_head *)memory;
        rings_state.memory = head.before;
        on_gpu() ? device_bytes_free(memory, head.bytes) : free(memory);
    }
}

static inline struct tensor test_tensor(enum dtype dtype, int rank, const int32_t *dim) {
    struct tensor t = tensor_make(NULL, dtype, rank, dim);
    t.data = test_memory((size_t)tensor_bytes(&t));
    return t;
}

static inline struct tensor test_copy(struct tensor t) {
    struct tensor copy = test_tensor(t.dtype, t.rank, t.dim);
    memcpy(copy.data, t.data, (size_t)tensor_bytes(&t));
    return copy;
}

static inline void assert_ok(const struct error *e) {
    char line[1024];
    if (e->code != OK) fail_msg("%s", error_line(e, line, sizeof line));
}

static inline struct tensor read_tensor(const struct tensor_index *index, const char *name) {
    const struct index_entry *entry = index_find(index, name);
    if (!entry) fail_msg("there is no tensor %s", name);
    struct error e = {0};
    struct tensor t = test_tensor(entry->dtype, entry->rank, entry->dim);
    source_read(&index->sources[entry->source], t.data, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    return t;
}

static inline bool has_ring(const struct fixture *f, const char *name) {
    return index_find(&f->rings, name) != NULL;
}

static inline struct tensor ring(const struct fixture *f, const char *name) {
    return read_tensor(&f->rings, name);
}

/* A ring without its batch of one. */
static inline struct tensor ring_single(const struct fixture *f, const char *name) {
    struct tensor t = ring(f, name);
    assert_int_equal(t.dim[0], 1);
    return tensor_reshape(t, t.rank - 1, t.dim + 1);
}

/* ---- comparing ---- */

/* Relative L2 distance from the truth; infinite for what is no number. */
static inline double distance(const float *a, const float *truth, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)truth[i];
        difference += d * d;
        size += (double)truth[i] * (double)truth[i];
    }
    double error = sqrt(difference / size);
    return isfinite(error) ? error : INFINITY;
}

static inline double largest_difference(const float *a, const float *b, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= largest)) largest = isnan(d) ? INFINITY : d;
    }
    return largest;
}

/* Prints a row of the table of errors and counts a miss; the test fails at its end, so that all rows are
 * seen. */
static inline void expect_error(const struct fixture *f, const char *name, const char *detail, double error) {
    const struct gate *g = rings_state.gates;
    while (g->ring && strcmp(g->ring, name)) g++;
    if (!g->ring) fail_msg("no gate for ring %s", name);
    bool good = error <= g->gate;
    printf("  %-12s %-24s %-10s %.2e  known %.2e  gate %.2e%s\n", f->name, name, detail, error, g->measured,
           g->gate, good ? "" : "  MISSED");
    rings_state.misses += !good;
}

/* By the truth's rms: the largest difference and the mean one. */
static inline void spread(const float *a, const float *truth, int64_t n, double *largest, double *bias) {
    double size = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        size += (double)truth[i] * (double)truth[i];
        sum += (double)a[i] - (double)truth[i];
    }
    double rms = sqrt(size / (double)n);
    *largest = largest_difference(a, truth, n) / rms;
    *bias = fabs(sum / (double)n) / rms;
}

/* At most 1.5 times the reference's error. The bias of n errors of its size that have none is below 4 times
 * their mean's deviation. */
static inline void expect_like_bf16(const struct fixture *f, const char *name, const json_t *known,
                                    const float *a, const float *truth, int64_t n) {
    double l2 = json_real_value(json_object_get(known, "l2")), largest, bias;
    double most = json_real_value(json_object_get(known, "max"));
    double independent = json_number_value(json_object_get(known, "n"));
    double mean = json_real_value(json_object_get(known, "bias")) +
                  4 * l2 / sqrt(independent > 0 ? independent : (double)n);
    double error = distance(a, truth, n);
    spread(a, truth, n, &largest, &bias);
    bool good = error <= 1.5 * l2 + 1e-7 && largest <= 1.5 * most + 1e-7 && bias <= 1.5 * mean + 1e-7;
    printf("  %-12s %-30s %.2e max %.2e bias %.2e; of PyTorch's in bf16 %.2f, %.2f%s\n", f->name, name, error,
           largest, bias, error / l2, largest / most, good && l2 > 0 ? "" : "  MISSED");
    rings_state.misses += !(good && l2 > 0);
}

/* n packed values against as many. */
static inline void expect_values(const struct fixture *f, const char *name, const char *detail,
                                 const float *a, const float *truth, int64_t n) {
    char key[96];
    snprintf(key, sizeof key, "%s%s%s", name, *detail ? " " : "", detail);
    const json_t *known = rings_state.precision == PRECISION_BF16 ? json_object_get(f->bf16, key) : NULL;
    known ? expect_like_bf16(f, key, known, a, truth, n)
          : expect_error(f, name, detail, distance(a, truth, n));
}

static inline void expect_close(const struct fixture *f, const char *name, struct tensor t,
                                const float *truth) {
    assert_true(tensor_packed(&t));
    expect_values(f, name, "", t.data, truth, tensor_elements(&t));
}

/* ---- fixtures ---- */

static inline int fixture_order(const void *a, const void *b) {
    return strcmp(((const struct fixture *)a)->name, ((const struct fixture *)b)->name);
}

static inline void open_rings(struct fixture *f) {
    char path[1024], line[1024];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/bf16.json", f->path);
    f->bf16 = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, "%s/rings.safetensors", f->path);
    safetensors_open(&rings_state.sys, path, &f->rings, &e);
    if (e.code != OK) printf("%s\n", error_line(&e, line, sizeof line));
}

static inline void open_model(struct fixture *f) {
    char path[1024];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/model", f->path);
    struct sluice_model_options options = {.struct_size = sizeof options, .model = path};
    model_open(&rings_state.sys, &options, &f->model, &e);
    assert_ok(&e);
}

static inline int open_fixtures(void **state) {
    (void)state;
    for (int i = 0; i < rings_state.n_fixtures; i++)
        if (rings_state.fixtures[i].used) open_model(&rings_state.fixtures[i]);
    return 0;
}

static inline int close_fixtures(void **state) {
    (void)state;
    for (int i = 0; i < rings_state.n_fixtures; i++) {
        struct fixture *f = &rings_state.fixtures[i];
        json_decref(f->expect);
        json_decref(f->bf16);
        index_destroy(&f->rings);
        model_close(f->model);
    }
    return 0;
}

/* Every folder with an expect.json. */
static inline void find_fixtures(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *entry; d && (entry = readdir(d)) && rings_state.n_fixtures < FIXTURES_MAX;) {
        struct fixture *f = &rings_state.fixtures[rings_state.n_fixtures];
        char path[1024];
        snprintf(f->name, sizeof f->name, "%s", entry->d_name);
        snprintf(f->path, sizeof f->path, "%s/%s", folder, entry->d_name);
        snprintf(path, sizeof path, "%s/expect.json", f->path);
        f->expect = entry->d_name[0] == '.' ? NULL : json_load_file(path, 0, NULL);
        if (f->expect) open_rings(f);
        rings_state.n_fixtures += f->expect != NULL;
    }
    if (d) closedir(d);
    qsort(rings_state.fixtures, (size_t)rings_state.n_fixtures, sizeof *rings_state.fixtures, fixture_order);
}

struct ring_run {
    const struct fixture *fixture;
    const struct ring_test *test;
};

static inline bool runs_on(const struct ring_test *test, const struct fixture *f) {
    if (on_gpu() && !test->gpu) return false;
    return !test->needs || has_ring(f, test->needs);
}

static inline bool can_compute(enum precision precision) {
    const char *lacks = rings_state.device->lacks[precision];
    if (lacks) printf("SKIP %s: %s\n", precision_name(precision), lacks);
    return !lacks;
}

static inline void run_ring_test(void **state) {
    const struct ring_run *run = *state;
    rings_state.misses = 0;
    rings_state.precision = on_gpu() ? PRECISION_BF16 : run->test->precision;
    if (rings_state.precision != PRECISION_F32 && !can_compute(rings_state.precision)) return;
    if (rings_state.precision == PRECISION_BF16) assert_non_null(run->fixture->bf16);
    run->test->body(run->fixture);
    assert_int_equal(rings_state.misses, 0);
}

static inline int free_ring_test(void **state) {
    (void)state;
    test_memory_free_to(NULL);
    return 0;
}

/* Runs all tests on all fixtures of a folder; on a GPU those for it, with its own gates. Gates end with an
 * empty one. Returns main's status. */
static inline int rings_main_in(const char *folder, const char *group, const struct ring_test *tests, int n,
                                const struct gate *gates, const struct gate *gpu_gates) {
    enum { RUNS_MAX = 256, LABEL = 320 };
    static struct ring_run runs[RUNS_MAX];
    static char labels[RUNS_MAX][LABEL];
    static struct CMUnitTest units[RUNS_MAX];
    struct error e = {0};
    char line[1024];
    sys_init_machine(&rings_state.sys);
    rings_state.device = device_open(&rings_state.sys, test_device(), RING_THREADS, false, &e);
    if (!rings_state.device) printf("%s\n0 passed, 1 failed\n", error_line(&e, line, sizeof line));
    if (!rings_state.device) return 1;
    rings_state.gates = on_gpu() ? gpu_gates : gates;
    find_fixtures(folder);
    int n_runs = 0;
    for (int i = 0; i < rings_state.n_fixtures; i++)
        for (int k = 0; k < n && n_runs < RUNS_MAX; k++) {
            if (!runs_on(&tests[k], &rings_state.fixtures[i])) continue;
            rings_state.fixtures[i].used = true;
            runs[n_runs] = (struct ring_run){&rings_state.fixtures[i], &tests[k]};
            snprintf(labels[n_runs], LABEL, "%s: %s", rings_state.fixtures[i].name, tests[k].name);
            units[n_runs] = (struct CMUnitTest){.name = labels[n_runs],
                                                .test_func = run_ring_test,
                                                .teardown_func = free_ring_test,
                                                .initial_state = &runs[n_runs]};
            n_runs++;
        }
    int failed =
        n_runs ? _cmocka_run_group_tests(group, units, (size_t)n_runs, open_fixtures, close_fixtures) : 1;
    if (!n_runs) printf("no fixtures in %s\n", folder);
    printf("%d passed, %d failed\n", n_runs > failed ? n_runs - failed : 0, failed);
    rings_state.device->destroy(rings_state.device);
    return failed != 0;
}

static inline int rings_main(const char *group, const struct ring_test *tests, int n,
                             const struct gate *gates, const struct gate *gpu_gates) {
    const char *folder = getenv("GOLDEN");
    return rings_main_in(folder ? folder : "test/golden", group, tests, n, gates, gpu_gates);
}

/* ---- the bench ---- */

/* The device that prepares an operator and finds it a workspace when it comes. */
struct eager {
    struct device device;
    struct device *target;
};

static inline void eager_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

static inline enum status eager_run(struct device *device, const struct op *op, void *none, struct error *e) {
    struct device *target = ((struct eager *)device)->target;
    struct op_cost cost = {0};
    double stalled = 0;
    (void)none;
    target->cost(target, op, &cost);
    void *workspace = device_bytes(cost.workspace_bytes + 1);
    if (target->prepare(target, op, e) == OK) target->run(target, op, workspace, e);
    if (e->code == OK) device_wait(target, &stalled, e);
    device_bytes_free(workspace, cost.workspace_bytes + 1);
    return e->code;
}

/* One lane of a component, on which its blocks' forwards run one by one. */
struct bench {
    const struct component *component;
    struct lane lane;
    const void *settings;
    struct eager eager;
    struct context context;
    struct arena state, scratch;
    struct error error;
};

/* The lane's tensors are the caller's; its state is declared here. */
static inline struct bench *bench_open(const struct fixture *f, int slot, struct lane lane) {
    struct bench *b = test_memory(sizeof *b);
    bool ok = true;
    b->component = &f->model->component[slot];
    b->settings = b->component->settings;
    b->lane = lane;
    b->lane.state = test_memory(b->component->family->lane_state_bytes);
    b->state = arena_counting();
    b->component->family->declare(b->component, &b->lane, 1, &b->state, &b->state, &ok);
    b->state = (struct arena){.bytes = b->state.peak};
    b->state.base = test_memory(b->state.bytes);
    memset(b->lane.state, 0, b->component->family->lane_state_bytes);
    b->component->family->declare(b->component, &b->lane, 1, &b->state, &b->state, &ok);
    assert_true(ok);
    b->scratch = (struct arena){.bytes = RING_SCRATCH, .base = device_bytes(RING_SCRATCH)};
    b->eager = (struct eager){{.name = "eager", .cost = eager_cost, .run = eager_run}, rings_state.device};
    b->context = (struct context){.device = &b->eager.device,
                                  .precision = rings_state.precision,
                                  .scratch = &b->scratch,
                                  .error = &b->error};
    return b;
}

static inline void bench_close(struct bench *b) {
    device_bytes_free(b->scratch.base, RING_SCRATCH);
}

/* Reads the block's image and runs its forward once. */
static inline void bench_visit(struct bench *b, const struct block *block, float timestep) {
    char *image = device_bytes(block->bytes);
    void *weights = calloc(1, block->kind->weights_bytes);
    for (int i = 0; i < block->n_segments; i++) {
        const struct image_segment *s = &block->segments[i];
        source_read(&block->index->sources[s->source], image + s->image_offset, s->bytes, s->file_offset,
                    &b->error);
    }
    block_point(block, image, weights);
    struct visit_scope scope = {.settings = b->settings,
                                .lane = &b->lane,
                                .number = block->number,
                                .n_timesteps = 1,
                                .timesteps = &timestep};
    b->scratch.used = 0;
    block->kind->forward(&b->context, weights, &scope);
    free(weights);
    device_bytes_free(image, block->bytes);
    assert_ok(&b->error);
}

/* The block of that name. */
static inline const struct block *bench_block(const struct bench *b, const char *name) {
    for (int i = 0; i < b->component->n_blocks; i++)
        if (!strcmp(b->component->blocks[i].name, name)) return &b->component->blocks[i];
    fail_msg("there is no block %s", name);
    return NULL;
}

/* The rows of these tokens, of a text encoder. */
static inline void bench_gather(struct bench *b, struct tensor ids) {
    struct block rows;
    block_gather_rows(&rings_state.sys, &b->component->tables[0], ids.data, ids.dim[0], &rows, &b->error);
    assert_ok(&b->error);
    bench_visit(b, &rows, 0);
    block_destroy(&rings_state.sys, &rows);
}

/* All visits of one evaluation, as the family lists them. */
static inline void bench_all(struct bench *b, float timestep) {
    struct visit_list list = {.sys = &rings_state.sys};
    component_visits(b->component, 0, &b->lane, 1, 1, &list, &b->error);
    for (int i = 0; i < list.n_visits; i++)
        bench_visit(b, &b->component->blocks[list.visits[i].block], timestep);
    visit_list_destroy(&list);
}

#endif
