#include "test/lib/golden.h"

#include "engine/run/resident_memory.h"
#include "test/lib/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct golden_state golden_state;

bool on_gpu(void) {
    return golden_state.device->memory;
}

void *device_bytes(size_t bytes) {
    void *memory = shared_map(&golden_state.sys, golden_state.device, LINE_STATE, bytes);
    assert_non_null(memory);
    return memory;
}

void device_bytes_free(void *memory, size_t bytes) {
    shared_unmap(&golden_state.sys, golden_state.device, LINE_STATE, memory, bytes);
}

enum { MEMORY_HEAD = ARENA_ALIGN };

struct memory_head {
    void *before;
    size_t bytes;
};

void *test_memory(size_t bytes) {
    size_t whole = (MEMORY_HEAD + bytes + MEMORY_HEAD - 1) / MEMORY_HEAD * MEMORY_HEAD;
    char *memory = on_gpu() ? device_bytes(whole) : aligned_alloc(MEMORY_HEAD, whole);
    assert_non_null(memory);
    memset(memory, 0, whole);
    *(struct memory_head *)memory = (struct memory_head){golden_state.memory, whole};
    golden_state.memory = memory;
    return memory + MEMORY_HEAD;
}

void test_memory_free_to(void *mark) {
    while (golden_state.memory != mark) {
        void *memory = golden_state.memory;
        struct memory_head head = *(struct memory_head *)memory;
        golden_state.memory = head.before;
        on_gpu() ? device_bytes_free(memory, head.bytes) : free(memory);
    }
}

struct tensor test_tensor(enum dtype dtype, int rank, const int32_t *dim) {
    struct tensor t = tensor_make(NULL, dtype, rank, dim);
    t.data = test_memory((size_t)tensor_bytes(&t));
    return t;
}

struct tensor test_copy(struct tensor t) {
    struct tensor copy = test_tensor(t.dtype, t.rank, t.dim);
    memcpy(copy.data, t.data, (size_t)tensor_bytes(&t));
    return copy;
}

struct tensor read_tensor(const struct tensor_index *index, const char *name) {
    const struct index_entry *entry = index_find(index, name);
    if (!entry) fail_msg("no tensor %s in the file", name);
    struct error e = {0};
    struct tensor t = test_tensor(entry->dtype, entry->rank, entry->dim);
    source_read(&index->sources[entry->source], t.data, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    return t;
}

bool has_golden(const struct golden *g, const char *name) {
    return index_find(&g->tensors, name) != NULL;
}

struct tensor golden(const struct golden *g, const char *name) {
    return read_tensor(&g->tensors, name);
}

double distance(const float *a, const float *truth, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)truth[i];
        difference += d * d;
        size += (double)truth[i] * (double)truth[i];
    }
    double error = difference > 0 ? sqrt(difference / size) : 0;
    return isfinite(error) ? error : INFINITY;
}

double largest_difference(const float *a, const float *b, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= largest)) largest = isnan(d) ? INFINITY : d;
    }
    return largest;
}

/* Returns the row of the tolerance table that names the tensor, or the empty row at the table's end. */
static const struct tolerance *tolerance_of(const struct tolerance *table, const char *tensor) {
    while (table->tensor && strcmp(table->tensor, tensor)) table++;
    return table;
}

void expect_error(const struct golden *g, const char *name, const char *detail, double error) {
    static const struct tolerance none[] = {{0}};
    const struct tolerance *t =
        tolerance_of(g->fixture->gpu_tolerances && on_gpu() ? g->fixture->gpu_tolerances : none, name);
    if (!t->tensor) t = tolerance_of(golden_state.tolerances, name);
    if (!t->tensor) fail_msg("no row for %s in the tolerance table", name);
    bool good = error <= t->most;
    printf("  %-12s %-24s %-10s %.2e  known %.2e  tolerated %.2e%s\n", g->name, name, detail, error,
           t->measured, t->most, good ? "" : "  MISSED");
    golden_state.misses += !good;
}

/* Computes the largest and the mean difference from the reference, divided by the reference's rms. */
static void error_extremes(const float *a, const float *truth, int64_t n, double *largest, double *bias) {
    double size = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        size += (double)truth[i] * (double)truth[i];
        sum += (double)a[i] - (double)truth[i];
    }
    double rms = sqrt(size / (double)n);
    *largest = largest_difference(a, truth, n) / rms;
    *bias = fabs(sum / (double)n) / rms;
}

/* Compares with tolerances of 1.5 times PyTorch's bf16 error.
 *
 * The tolerated mean error is at least 4 standard deviations of the mean of n unbiased errors with PyTorch's
 * rms error. The tolerated maximum is at least 4 times PyTorch's rms error, because a maximum measured over
 * few values is too small. */
static void expect_like_bf16(const struct golden *g, const char *name, const json_t *known, const float *a,
                             const float *truth, int64_t n) {
    double l2 = json_real_value(json_object_get(known, "l2")), largest, bias;
    double most = fmax(json_real_value(json_object_get(known, "max")), 4 * l2);
    double independent = json_number_value(json_object_get(known, "n"));
    double mean = json_real_value(json_object_get(known, "bias")) +
                  4 * l2 / sqrt(independent > 0 ? independent : (double)n);
    double error = distance(a, truth, n);
    error_extremes(a, truth, n, &largest, &bias);
    bool good = error <= 1.5 * l2 + 1e-7 && largest <= 1.5 * most + 1e-7 && bias <= 1.5 * mean + 1e-7;
    printf("  %-12s %-30s %.2e max %.2e bias %.2e; ratio to PyTorch's in bf16 %.2f, %.2f%s\n", g->name, name,
           error, largest, bias, error / l2, largest / most, good && l2 > 0 ? "" : "  MISSED");
    golden_state.misses += !(good && l2 > 0);
}

/* True if all reference values are 0. A relative error to such a tensor is meaningless. */
static bool is_zero(const float *values, int64_t n) {
    int64_t zeros = 0;
    while (zeros < n && values[zeros] == 0) zeros++;
    return zeros == n;
}

static void expect_zeros(const struct golden *g, const char *name, const float *a, int64_t n) {
    bool good = is_zero(a, n);
    printf("  %-12s %-30s zeros%s\n", g->name, name, good ? "" : "  MISSED");
    golden_state.misses += !good;
}

void expect_values(const struct golden *g, const char *name, const char *detail, const float *a,
                   const float *truth, int64_t n) {
    char key[96];
    snprintf(key, sizeof key, "%s%s%s", name, *detail ? " " : "", detail);
    const json_t *known = golden_state.precision == PRECISION_BF16 ? json_object_get(g->bf16, key) : NULL;
    if (is_zero(truth, n)) {
        expect_zeros(g, key, a, n);
        return;
    }
    known ? expect_like_bf16(g, key, known, a, truth, n)
          : expect_error(g, name, detail, distance(a, truth, n));
}

void expect_close(const struct golden *g, const char *name, struct tensor t, const float *truth) {
    assert_true(tensor_packed(&t));
    expect_values(g, name, "", t.data, truth, tensor_elements(&t));
}

void golden_folder(const struct fixture *f, char path[GOLDEN_PATH]) {
    const char *folder = getenv("GOLDEN");
    snprintf(path, GOLDEN_PATH, "%s/%s", folder ? folder : "test/golden", f->name);
}

static const char *path_in(const char *folder, const char *name) {
    char *path = test_memory(2 * GOLDEN_PATH);
    snprintf(path, 2 * GOLDEN_PATH, "%s/%s", folder, name);
    return path;
}

const char *golden_model(const struct golden *g) {
    char other[GOLDEN_PATH];
    const char *name = g->fixture->model_of;
    if (name) golden_folder(&(struct fixture){.name = name}, other);
    return path_in(name ? other : g->path, "model");
}

const struct sluice_model_options *golden_options(const struct golden *g, const char *model,
                                                  const char *folder) {
    struct model_paths *paths = test_memory(sizeof *paths);
    paths->model = model;
    for (int i = 0; i < SLUICE_CONTROLS_MAX && g->fixture->control_nets[i]; i++)
        paths->control_net[i] = path_in(folder, g->fixture->control_nets[i]);
    if (g->fixture->redux) paths->redux = path_in(folder, g->fixture->redux);
    if (g->fixture->upscaler) paths->upscaler = path_in(folder, g->fixture->upscaler);
    return model_options(paths);
}

static void open_model(struct golden *g) {
    struct error e = {0};
    model_open(&golden_state.sys, golden_options(g, golden_model(g), g->path), &g->model, &e);
    assert_ok(&e);
}

static void open_data(struct golden *g, const struct fixture *f) {
    char path[GOLDEN_PATH + 32], line[1024];
    struct error e = {0};
    g->fixture = f;
    g->name = f->name;
    golden_folder(f, g->path);
    snprintf(path, sizeof path, "%s/expect.json", g->path);
    g->expect = json_load_file(path, 0, NULL);
    /* An invalid expect.json must fail: without cases the fixture would pass every test. */
    if (!access(path, R_OK)) assert_non_null(g->expect);
    snprintf(path, sizeof path, "%s/bf16.json", g->path);
    g->bf16 = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, "%s/reference.safetensors", g->path);
    /* The folder in the environment variable GOLDEN may lack fixtures. */
    if (access(path, R_OK) && getenv("GOLDEN")) return;
    safetensors_open(&golden_state.sys, path, &g->tensors, &e);
    if (e.code != OK) printf("%s\n", error_line(&e, line, sizeof line));
}

static void close_data(struct golden *g) {
    json_decref(g->expect);
    json_decref(g->bf16);
    index_destroy(&g->tensors);
}

enum { RUNS_MAX = 1024, LABEL = 96 };

struct golden_run {
    struct golden *golden;
    const struct suite *suite;
    const struct golden_test *test;
};

static bool can_compute(enum precision precision) {
    const char *lacks = golden_state.device->unsupported[precision];
    if (lacks) printf("SKIP %s: %s\n", precision_name(precision), lacks);
    return !lacks;
}

static void run_golden_test(void **state) {
    const struct golden_run *run = *state;
    if (!run->golden->model)
        run->golden->fixture->open ? run->golden->fixture->open(run->golden) : open_model(run->golden);
    golden_state.suite = run->suite;
    golden_state.test = run->test;
    golden_state.tolerances = on_gpu() ? run->suite->gpu_tolerances : run->suite->tolerances;
    golden_state.misses = 0;
    golden_state.precision = on_gpu() ? PRECISION_BF16 : run->test->precision;
    if (golden_state.precision != PRECISION_F32 && !can_compute(golden_state.precision)) return;
    if (golden_state.precision == PRECISION_BF16 && !run->golden->fixture->open)
        assert_non_null(run->golden->bf16);
    run->test->body(run->golden);
    assert_int_equal(golden_state.misses, 0);
}

static int free_golden_test(void **state) {
    test_memory_free_to(NULL);
    return 0;
}

static bool runs_on(const struct golden_test *test, const struct golden *g) {
    if ((on_gpu() && !test->gpu) || !g->tensors.n_entries) return false;
    if (g->fixture->without_bf16 && (on_gpu() || test->precision != PRECISION_F32)) return false;
    return !test->needs || has_golden(g, test->needs);
}

static struct golden_run runs[RUNS_MAX];
static char labels[RUNS_MAX][LABEL];
static struct CMUnitTest units[RUNS_MAX];

/* Appends the tests of a suite to the n tests in `units`; returns the new number of tests. */
static int add_suite(struct golden *g, const struct suite *suite, int n) {
    for (int i = 0; i < suite->n_tests; i++) {
        const struct golden_test *test = &suite->tests[i];
        if (!runs_on(test, g)) continue;
        assert_true(n < RUNS_MAX);
        runs[n] = (struct golden_run){g, suite, test};
        snprintf(labels[n], LABEL, "%s: %s: %s", g->name, suite->name, test->name);
        units[n] = (struct CMUnitTest){.name = labels[n],
                                       .test_func = run_golden_test,
                                       .teardown_func = free_golden_test,
                                       .initial_state = &runs[n]};
        n++;
    }
    return n;
}

bool golden_begin(void) {
    struct error e = {0};
    char line[1024];
    sys_init_machine(&golden_state.sys);
    golden_state.device = device_open(&golden_state.sys, test_device(), GOLDEN_THREADS, false, &e);
    if (!golden_state.device) printf("%s\n0 passed, 1 failed\n", error_line(&e, line, sizeof line));
    return golden_state.device;
}

void golden_end(void) {
    golden_state.device->destroy(golden_state.device);
}

static bool is_selected(const struct suite *suite, const struct fixture *fixture, char **names) {
    if (!*names) return true;
    while (*names && strcmp(*names, suite->name) && strcmp(*names, fixture->name)) names++;
    return *names;
}

int golden_main(const char *group, const struct suite *const *(*suites_of)(const struct fixture *f),
                char **names) {
    int n = 0;
    if (n_fixtures > FIXTURES_MAX) abort();
    if (!golden_begin()) return 1;
    for (int i = 0; i < n_fixtures; i++) {
        const struct suite *const *suites = suites_of(&fixtures[i]);
        int before = n;
        if (!suites) continue;
        open_data(&golden_state.data[i], &fixtures[i]);
        for (; *suites; suites++)
            if (is_selected(*suites, &fixtures[i], names)) n = add_suite(&golden_state.data[i], *suites, n);
        if (n == before && !on_gpu() && !*names) printf("%s: no reference data\n", fixtures[i].name);
    }
    int failed = n ? _cmocka_run_group_tests(group, units, (size_t)n, NULL, NULL) : 1;
    printf("%d passed, %d failed\n", n > failed ? n - failed : 0, failed);
    for (int i = 0; i < n_fixtures; i++) {
        struct golden *g = &golden_state.data[i];
        if (g->model) g->fixture->close ? g->fixture->close(g) : model_close(g->model);
        close_data(g);
    }
    golden_end();
    return failed != 0;
}
