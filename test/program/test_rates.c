/* Rates (disk and bus bandwidth, arithmetic throughput): valid and invalid files, defaults, names of links,
 * effect on plans, and the benches that measure rates. */
#include "engine/bench/bench.h"
#include "engine/job/open.h"
#include "engine/machine/rates_file.h"
#include "engine/api/session.h"
#include "engine/sluice_bench.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char full[] =
    "{\"version\":1,\"machine\":\"a \\u00fc machine\",\"threads\":4,\"disk\":5e8,"
    "\"host_copy\":6000000000,\"h2d\":1.25e10,\"ops\":{\"linear\":1e11,\"linear_bf16\":2e11,"
    "\"attention\":3e11,\"conv\":4e11,\"bytes\":4e10}}";

static void reads_a_full_file(void **state) {
    struct rates r = {0};
    struct error e = {0};
    assert_int_equal(rates_read("cpu", NULL, full, 0, &r, &e), OK);
    assert_true(r.disk == 5e8 && r.host_copy == 6e9 && r.h2d == 1.25e10);
    for (int i = 0; i < N_OP_CLASSES - 1; i++) assert_true(r.ops.per_second[i] == (i + 1) * 1e11);
    assert_true(r.ops.per_second[CLASS_BYTES] == 4e10);
}

/* With fewer threads than measured, arithmetic rates are lower, and the memory rate only with few threads.
 * With more threads, rates are not higher. */
static void fewer_threads_are_slower(void **state) {
    static const struct {
        int threads;
        double linear, bytes;
    } cases[] = {{1, 1.25e10, 1e10}, {4, 5e10, 4e10}, {6, 7.5e10, 4e10}, {8, 1e11, 4e10}, {64, 1e11, 4e10}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct rates r = {0};
        struct error e = {0};
        static const char text[] =
            "{\"version\":1,\"threads\":8,\"disk\":5e8,\"ops\":{\"linear\":1e11,\"bytes\":4e10}}";
        assert_int_equal(rates_read("cpu", NULL, text, cases[i].threads, &r, &e), OK);
        assert_true(r.ops.per_second[CLASS_LINEAR] == cases[i].linear && r.disk == 5e8);
        assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == cases[i].linear / 2); /* assumed */
        assert_true(r.ops.per_second[CLASS_BYTES] == cases[i].bytes);
    }
}

/* The assumed bf16 rate is half of the f32 rate, unless the rates file has a bf16 rate. */
static void bf16_is_assumed_from_f32(void **state) {
    struct rates r;
    struct error e = {0};
    rates_default("cpu", 2, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == r.ops.per_second[CLASS_LINEAR] / 2);
    assert_int_equal(rates_read("cpu", NULL, "{\"version\":1,\"ops\":{\"linear\":6e11}}", 0, &r, &e), OK);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == 3e11);
    assert_int_equal(rates_read("cpu", NULL, "{\"version\":1,\"ops\":{\"linear_bf16\":9e11}}", 0, &r, &e),
                     OK);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == 9e11 && r.ops.per_second[CLASS_LINEAR] == 6e11);
}

static void linear_rate_depends_on_precision(void **state) {
    struct op_rates rates = {.per_second = {[CLASS_LINEAR] = 1e9, [CLASS_LINEAR_BF16] = 4e9}};
    struct op op = {.kind = OP_LINEAR};
    op.in[0] = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){5, 100});
    op.out = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){5, 1000});
    assert_float_equal(op_seconds(&op, &rates), 1e-3, 1e-9);
    op.precision = PRECISION_BF16;
    assert_float_equal(op_seconds(&op, &rates), 0.25e-3, 1e-9);
}

/* The key `cuda` sets rates of the GPU only; rates that a file lacks keep their defaults. */
static void rates_of_each_device(void **state) {
    static const char both[] =
        "{\"version\":1,\"ops\":{\"linear\":6e11},\"cuda\":{\"linear\":3e13,\"bytes\":5e11}}";
    struct rates cpu, gpu, assumed;
    struct error e = {0};
    rates_default("cpu", 2, &cpu);
    rates_default("cuda", 0, &gpu);
    assumed = gpu;
    assert_true(gpu.ops.per_second[CLASS_LINEAR_BF16] > 10 * cpu.ops.per_second[CLASS_LINEAR]);
    assert_int_equal(rates_read("cpu", NULL, both, 0, &cpu, &e), OK);
    assert_int_equal(rates_read("cuda", NULL, both, 0, &gpu, &e), OK);
    assert_true(cpu.ops.per_second[CLASS_LINEAR] == 6e11 && gpu.ops.per_second[CLASS_LINEAR] == 3e13);
    assert_true(cpu.ops.per_second[CLASS_BYTES] < 5e11 && gpu.ops.per_second[CLASS_BYTES] == 5e11);
    assert_true(gpu.ops.per_second[CLASS_LINEAR_BF16] == assumed.ops.per_second[CLASS_LINEAR_BF16]);
    assert_int_equal(rates_read("cuda", NULL, "{\"version\":1,\"cuda\":{\"lineal\":1}}", 0, &gpu, &e), META);
}

static void missing_rates_stay_unchanged(void **state) {
    struct rates r, before;
    struct error e = {0};
    rates_default("cpu", 2, &before);
    r = before;
    assert_int_equal(rates_read("cpu", NULL, "{\"version\":1,\"ops\":{\"conv\":7}}", 0, &r, &e), OK);
    assert_true(r.ops.per_second[CLASS_CONV] == 7);
    r.ops.per_second[CLASS_CONV] = before.ops.per_second[CLASS_CONV];
    assert_memory_equal(&r, &before, sizeof r);
}

static const struct {
    const char *text;
    enum status code;
    int exit;
} invalid_files[] = {
    {"", JSON, 3},
    {"garbage", JSON, 3},
    {"{", JSON, 3},
    {"{\"version\":1} and more", JSON, 3},
    {"[1]", META, 3},
    {"3", JSON, 3},
    {"{}", META, 3},
    {"{\"version\":2}", META, 3},
    {"{\"version\":\"1\"}", META, 3},
    {"{\"version\":1,\"disk\":0}", USAGE, 2},
    {"{\"version\":1,\"disk\":0.0}", USAGE, 2},
    {"{\"version\":1,\"disk\":-5}", USAGE, 2},
    {"{\"version\":1,\"disk\":0.5}", USAGE, 2},
    {"{\"version\":1,\"disk\":1e19}", USAGE, 2},
    {"{\"version\":1,\"disk\":1e400}", LIMIT, 3},
    {"{\"version\":1,\"disk\":99999999999999999999999999}", LIMIT, 3},
    {"{\"version\":1,\"disk\":NaN}", JSON, 3},
    {"{\"version\":1,\"disk\":Infinity}", JSON, 3},
    {"{\"version\":1,\"disk\":\"1e9\"}", META, 3},
    {"{\"version\":1,\"disk\":null}", META, 3},
    {"{\"version\":1,\"disk\":true}", META, 3},
    {"{\"version\":1,\"disk\":[1]}", META, 3},
    {"{\"version\":1,\"disk\":1,\"disk\":2}", DUP, 3},
    {"{\"version\":1,\"dics\":1}", META, 3},
    {"{\"version\":1,\"machine\":7}", META, 3},
    {"{\"version\":1,\"threads\":1.5}", META, 3},
    {"{\"version\":1,\"threads\":0}", META, 3},
    {"{\"version\":1,\"threads\":-1}", META, 3},
    {"{\"version\":1,\"threads\":1000000000000000000}", META, 3},
    {"{\"version\":1,\"ops\":1}", META, 3},
    {"{\"version\":1,\"ops\":{\"linaer\":1}}", META, 3},
    {"{\"version\":1,\"ops\":{\"linear\":0}}", USAGE, 2},
    {"{\"version\":1,\"ops\":{\"linear\":{}}}", META, 3},
    {"{\"version\":1,\"ops\":{\"linear\":1,\"linear\":1}}", DUP, 3},
    {"{\"version\":1,\"machine\":[[[[[[[[1]]]]]]]]}", LIMIT, 3},
    {"{\"version\":1,\"machine\":\"\xff\"}", UTF8, 3},
    {"\xef\xbb\xbf{\"version\":1}", JSON, 3},
};

static void refuses_invalid_files(void **state) {
    for (size_t i = 0; i < sizeof invalid_files / sizeof *invalid_files; i++) {
        struct rates r = {0};
        struct error e = {0};
        char *text = NULL;
        rates_read("cpu", NULL, invalid_files[i].text, 0, &r, &e);
        if (e.code != invalid_files[i].code || e.exit != invalid_files[i].exit)
            fail_msg("%s: %s, exit %d", invalid_files[i].text, status_name(e.code), e.exit);
        assert_true(e.what[0] && e.where[0]);
        struct error again = {0};
        assert_int_equal(rates_merge(invalid_files[i].text, &r, "m", 1, &text, &again), e.code);
        assert_null(text);
    }
}

static void defaults_follow_from_device_and_threads(void **state) {
    struct rates one, same, four, many, none;
    rates_default("cpu", 1, &one);
    rates_default("cpu", 1, &same);
    rates_default("cpu", 4, &four);
    rates_default("cpu", 64, &many);
    rates_default("cpu", 0, &none);
    assert_memory_equal(&one, &same, sizeof one);
    assert_memory_equal(&one, &none, sizeof one);
    assert_true(one.disk > 0 && one.host_copy > 0 && one.h2d > 0);
    for (int i = 0; i < N_OP_CLASSES; i++) {
        assert_true(one.ops.per_second[i] > 0);
        assert_true(four.ops.per_second[i] == 4 * one.ops.per_second[i]);
    }
    /* Above some thread count only the default arithmetic rate grows, not the default memory rate. */
    assert_true(many.ops.per_second[CLASS_BYTES] == four.ops.per_second[CLASS_BYTES]);
    assert_true(many.ops.per_second[CLASS_LINEAR] == 64 * one.ops.per_second[CLASS_LINEAR]);
}

static void merges_rates_of_two_benches(void **state) {
    struct rates bus = {.disk = 2e9, .host_copy = 1e10}, ops = {0}, r = {0};
    struct error e = {0};
    char *first, *second, *third;
    ops.ops.per_second[CLASS_LINEAR] = 3e11;
    ops.ops.per_second[CLASS_BYTES] = 4e10;
    assert_int_equal(rates_merge(NULL, &bus, "one", 0, &first, &e), OK);
    assert_null(strstr(first, "ops"));
    assert_null(strstr(first, "threads"));
    assert_int_equal(rates_merge(first, &ops, "two", 8, &second, &e), OK);
    assert_int_equal(rates_read("cpu", NULL, second, 0, &r, &e), OK);
    assert_true(r.disk == 2e9 && r.host_copy == 1e10 && r.h2d == 0);
    assert_true(r.ops.per_second[CLASS_LINEAR] == 3e11 && r.ops.per_second[CLASS_CONV] == 0);
    assert_non_null(strstr(second, "\"two\""));
    assert_null(strstr(second, "\"one\""));
    /* Merging new operator rates into a rates file keeps the file's other rates. */
    ops = (struct rates){.ops.per_second[CLASS_CONV] = 5e11};
    assert_int_equal(rates_merge(second, &ops, "two", 8, &third, &e), OK);
    assert_int_equal(rates_read("cpu", NULL, third, 0, &r, &e), OK);
    assert_true(r.ops.per_second[CLASS_LINEAR] == 3e11 && r.ops.per_second[CLASS_CONV] == 5e11);
    assert_true(r.disk == 2e9);
    free(first), free(second), free(third);
}

static void names_kinds_of_links(void **state) {
    static const struct {
        double gbytes;
        const char *disk, *pinned;
    } links[] = {
        {0, "hard disk", "PCIe Gen3 x1 or narrower"},     {0.15, "hard disk", "PCIe Gen3 x1 or narrower"},
        {0.53, "SATA SSD", "PCIe Gen3 x1 or narrower"},   {3.1, "NVMe Gen3", "PCIe Gen3 x4"},
        {6.2, "NVMe Gen4", "PCIe Gen3 x8 or Gen4 x4"},    {6.9, "NVMe Gen4", "PCIe Gen3 x8 or Gen4 x4"},
        {12.4, "NVMe Gen5", "PCIe Gen3 x16 or Gen4 x8"},  {24, "page cache", "PCIe Gen4 x16 or Gen5 x8"},
        {26.5, "page cache", "PCIe Gen4 x16 or Gen5 x8"}, {55, "page cache", "PCIe Gen5 x16"},
        {400, "page cache", "a link wider than PCIe"},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        assert_string_equal(link_of_disk(links[i].gbytes * 1e9), links[i].disk);
        assert_string_equal(link_of_pinned(links[i].gbytes * 1e9), links[i].pinned);
    }
}

/* ---- rates in plans ---- */

struct planning {
    sluice_model *model;
    sluice_session *session;
    struct sluice_request request;
};

static struct planning open_planning(int threads) {
    struct planning p = {.request = {.struct_size = sizeof p.request}};
    struct sluice_error error;
    struct sluice_model_options from = {.struct_size = sizeof from, .model = "test/golden/zimage_a/model"};
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = "cpu", .threads = threads};
    assert_int_equal(sluice_model_open(&from, &p.model, &error), 0);
    assert_int_equal(sluice_session_open(p.model, &options, &p.session, &error), 0);
    sluice_request_defaults(p.model, &p.request);
    p.request.width = 64;
    p.request.height = 48;
    p.request.steps = 2;
    p.request.max_ram_bytes = 512 << 20;
    return p;
}

static void close_planning(struct planning *p) {
    sluice_session_close(p->session);
    sluice_model_close(p->model);
}

/* Predicted computing time in seconds of one evaluation in every stage. */
static double compute_seconds(struct planning *p) {
    struct job job;
    struct error e = {0};
    double seconds = 0;
    assert_int_equal(job_open(&job, &(struct job_context){.model = p->model, .device = p->session->device},
                              &p->request, NULL, &e),
                     OK);
    for (int s = 0; s < job.need->n_stages; s++)
        for (int i = 0; i < job.need->stage[s].n_blocks; i++) seconds += job.need->stage[s].block_seconds[i];
    job_close(&job);
    return seconds;
}

static void rates_change_predicted_times(void **state) {
    struct planning one = open_planning(1), two = open_planning(2);
    double by_default = compute_seconds(&one);
    assert_true(by_default > 0);
    assert_float_equal(compute_seconds(&two) / by_default, 0.5, 1e-6);
    one.request.rates =
        "{\"version\":1,\"ops\":{\"linear\":1e9,\"attention\":1e9,\"conv\":1e9,\"bytes\":1e9}}";
    two.request.rates =
        "{\"version\":1,\"ops\":{\"linear\":2e9,\"attention\":2e9,\"conv\":2e9,\"bytes\":2e9}}";
    double slow = compute_seconds(&one);
    assert_true(slow > 2 * by_default);
    assert_float_equal(compute_seconds(&two) / slow, 0.5, 1e-6);
    close_planning(&one);
    close_planning(&two);
}

static json_t *query(struct planning *p) {
    char *text;
    bool fits;
    struct sluice_error error;
    assert_int_equal(sluice_plan_query(p->session, &p->request, NULL, &text, &fits, &error), 0);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    sluice_free(text);
    return json;
}

static void assert_key(const json_t *json, const char *key, const char *text) {
    assert_string_equal(json_string_value(json_object_get(json, key)), text);
}

static void plans_name_their_rates(void **state) {
    struct planning p = open_planning(1);
    json_t *first = query(&p), *second = query(&p);
    assert_key(first, "rates", "default");
    assert_key(second, "hash", json_string_value(json_object_get(first, "hash")));
    json_decref(first), json_decref(second);
    p.request.rates = full;
    first = query(&p);
    assert_key(first, "rates", "given");
    p.request.rates_name = "my rates.json";
    second = query(&p);
    assert_key(second, "rates", "my rates.json");
    assert_key(second, "hash", json_string_value(json_object_get(first, "hash")));
    json_decref(first), json_decref(second);
    p.request.rates_name = "not \xff UTF-8";
    first = query(&p);
    assert_key(first, "rates", "not ? UTF-8");
    json_decref(first);
    close_planning(&p);
}

static void assert_seconds(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    assert_true(json_is_number(value) && json_number_value(value) > 0);
}

/* With the lowest and highest rates that a rates file may contain, all times are finite and above 0. */
static void extreme_rates_give_finite_plans(void **state) {
    static const char *const extremes[] = {
        "{\"version\":1,\"disk\":1,\"ops\":{\"linear\":1,\"attention\":1,\"conv\":1,\"bytes\":1}}",
        "{\"version\":1,\"disk\":1e18,\"ops\":{\"linear\":1e18,\"attention\":1e18,\"conv\":1e18,\"bytes\":"
        "1e18}}",
        "{\"version\":1,\"disk\":1,\"ops\":{\"linear\":1e18,\"attention\":1e18,\"conv\":1e18,\"bytes\":1e18}"
        "}",
        "{\"version\":1,\"disk\":1e18,\"ops\":{\"linear\":1,\"attention\":1,\"conv\":1,\"bytes\":1}}",
    };
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes; i++) {
        struct planning p = open_planning(1);
        size_t k;
        json_t *item;
        p.request.rates = extremes[i];
        json_t *plan = query(&p);
        p.request.max_ram_bytes =
            json_integer_value(json_object_get(json_object_get(plan, "least"), "ram_bytes"));
        json_decref(plan);
        plan = query(&p);
        assert_seconds(plan, "seconds");
        assert_seconds(plan, "floor_seconds");
        json_array_foreach(json_object_get(plan, "stages"), k, item) assert_seconds(item, "seconds");
        json_array_foreach(json_object_get(plan, "advice"), k, item) {
            assert_seconds(item, "seconds");
        }
        json_decref(plan);
        close_planning(&p);
    }
}

static void refused_rates_are_an_error_of_the_request(void **state) {
    struct planning p = open_planning(1);
    struct sluice_error error;
    char *text;
    bool fits;
    p.request.rates = "{\"version\":1,\"disk\":0}";
    assert_int_equal(sluice_plan_query(p.session, &p.request, NULL, &text, &fits, &error), SLUICE_USAGE);
    assert_int_equal(error.exit_code, 2);
    assert_null(text);
    p.request.rates = "garbage";
    p.request.prompt = "a fox";
    assert_int_equal(sluice_run(p.session, &p.request, &error), SLUICE_JSON);
    assert_int_equal(error.exit_code, 3);
    close_planning(&p);
}

/* Sets a value in a stage of a plan and reads the plan back. Returns the error code; 0: the new plan has the
 * value. */
static int read_back_stage_value(struct planning *p, const char *key, json_t *value) {
    json_t *plan = query(p), *again = NULL;
    json_t *stage = json_array_get(json_object_get(plan, "stages"), 1);
    struct sluice_error error;
    char *text = NULL;
    bool fits;
    assert_null(json_object_get(stage, key));
    json_object_set(stage, key, value);
    char *edited = json_dumps(plan, 0);
    p->request.plan = edited;
    int status = sluice_plan_query(p->session, &p->request, NULL, &text, &fits, &error);
    p->request.plan = NULL;
    if (!status) {
        again = json_loads(text, 0, NULL);
        const json_t *read = json_object_get(json_array_get(json_object_get(again, "stages"), 1), key);
        assert_true(json_integer_value(value) ? json_equal(read, value) : !read);
    }
    sluice_free(text);
    free(edited);
    json_decref(again), json_decref(plan), json_decref(value);
    return status;
}

static void copier_settings_are_read_back(void **state) {
    struct planning p = open_planning(1);
    assert_int_equal(read_back_stage_value(&p, "depth", json_integer(1)), 0);
    assert_int_equal(read_back_stage_value(&p, "depth", json_integer(0)), 0);
    assert_int_equal(read_back_stage_value(&p, "no_wrap", json_integer(1)), 0);
    assert_int_equal(read_back_stage_value(&p, "waits", json_integer(1)), 0);
    assert_int_equal(read_back_stage_value(&p, "depth", json_integer(-1)), SLUICE_META);
    assert_int_equal(read_back_stage_value(&p, "depth", json_integer((json_int_t)1 << 40)), SLUICE_META);
    assert_int_equal(read_back_stage_value(&p, "depth", json_real(1)), SLUICE_META);
    assert_int_equal(read_back_stage_value(&p, "no_wrap", json_integer(2)), SLUICE_META);
    assert_int_equal(read_back_stage_value(&p, "waits", json_string("1")), SLUICE_META);
    close_planning(&p);
}

/* ---- benches ---- */

static int n_files(const char *folder) {
    DIR *dir = opendir(folder);
    int n = -2; /* . and .. */
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static double stop_at;

static bool on_progress(void *user, double fraction, const char *what) {
    assert_true(fraction >= 0 && fraction <= 1 && what[0]);
    return fraction < stop_at;
}

typedef int benching(const struct sluice_bench_options *options, char **json, char **rates,
                     struct sluice_error *error);

/* Runs a bench that must fail with the given code and set no output. */
static void bench_fails(benching *bench, struct sluice_bench_options options, int code, int exit_code) {
    struct sluice_error error;
    char *json, *rates;
    options.struct_size = sizeof options;
    assert_int_equal(bench(&options, &json, &rates, &error), code);
    assert_int_equal(error.exit_code, exit_code);
    assert_true(!json && !rates && error.what[0]);
}

static void bus_measures_and_leaves_nothing(void **state) {
    char folder[] = "/tmp/sluice-rates-XXXXXX", *json, *rates;
    struct sluice_error error;
    struct rates r = {0};
    struct error e = {0};
    assert_non_null(mkdtemp(folder));
    struct sluice_bench_options options = {
        .struct_size = sizeof options, .threads = 1, .folder = folder, .saved = full};
    assert_int_equal(sluice_bench_bus(&options, &json, &rates, &error), 0);
    assert_int_equal(n_files(folder), 0);
    json_t *root = json_loads(json, 0, NULL), *row;
    size_t i, n_disk = 0, n_copies = 0;
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        n_disk += !strcmp(json_string_value(json_object_get(row, "path")), "disk");
        n_copies += !strcmp(json_string_value(json_object_get(row, "path")), "host_copy");
        assert_true(json_integer_value(json_object_get(row, "bytes")) >= 1 << 16);
        assert_true(json_real_value(json_object_get(row, "gbytes_per_second")) > 0);
    }
    assert_true(n_disk >= 4 && n_copies == 4);
    assert_int_equal(rates_read("cpu", NULL, rates, 0, &r, &e), OK);
    assert_true(r.host_copy > 0 && r.host_copy != 6e9 && r.ops.per_second[CLASS_LINEAR] == 1e11);
    json_decref(root);
    sluice_free(json), sluice_free(rates);
    options.saved = NULL;
    options.on_progress = on_progress;
    for (int stop = 0; stop < 3; stop++) { /* cancels a bench at 0, 5 and 25 % of its progress */
        stop_at = (double[]){0, 0.05, 0.25}[stop];
        bench_fails(sluice_bench_bus, options, SLUICE_CANCELLED, 130);
        assert_int_equal(n_files(folder), 0);
    }
    rmdir(folder);
}

static void bus_reports_errors(void **state) {
    struct sluice_bench_options nowhere = {.folder = "/nowhere/at/all"}, proc = {.folder = "/proc"};
    struct sluice_bench_options missing = {.file = "/nowhere/at/all"}, small = {.file = "test/packages.txt"};
    struct sluice_bench_options folder = {.file = "test"}, threads = {.threads = -1}, bad = {.saved = "x"};
    bench_fails(sluice_bench_bus, nowhere, SLUICE_OUTPUT, 6);
    bench_fails(sluice_bench_bus, proc, SLUICE_OUTPUT, 6);
    bench_fails(sluice_bench_bus, missing, SLUICE_MISSING, 3);
    bench_fails(sluice_bench_bus, small, SLUICE_LIMIT, 3);
    bench_fails(sluice_bench_bus, folder, SLUICE_LIMIT, 3);
    bench_fails(sluice_bench_bus, threads, SLUICE_USAGE, 2);
    bench_fails(sluice_bench_bus, bad, SLUICE_JSON, 3);
}

static void ops_can_be_stopped(void **state) {
    struct sluice_bench_options options = {.threads = 1, .on_progress = on_progress};
    stop_at = 0.1; /* cancels the bench after its first matrix product */
    bench_fails(sluice_bench_ops, options, SLUICE_CANCELLED, 130);
    bench_fails(sluice_bench_ops, (struct sluice_bench_options){.threads = 5000}, SLUICE_USAGE, 2);
    bench_fails(sluice_bench_ops, (struct sluice_bench_options){.saved = "{}"}, SLUICE_META, 3);
}

static void slower_thread_counts_are_reported(void **state) {
    /* Prints rates of two threads relative to one thread: faster, equal, slower, only the rate of two
     * measured, only the rate of one measured. */
    struct op_rates one = {.per_second = {[CLASS_LINEAR] = 100, [CLASS_ATTENTION] = 80, [CLASS_CONV] = 80}};
    struct op_rates all = {.per_second = {[CLASS_LINEAR] = 190, [CLASS_ATTENTION] = 80, [CLASS_CONV] = 60}};
    all.per_second[CLASS_BYTES] = 5;
    one.per_second[CLASS_LINEAR_BF16] = 7;
    json_t *slower = ops_slower(&one, &all, 2), *class = json_array_get(slower, 0);
    assert_int_equal(json_array_size(slower), 1);
    assert_string_equal(json_string_value(json_object_get(class, "op")), "conv");
    assert_int_equal(json_integer_value(json_object_get(class, "threads")), 2);
    assert_true(json_real_value(json_object_get(class, "of_one_thread")) == 0.75);
    json_decref(slower);
    slower = ops_slower(&all, &all, 2);
    assert_int_equal(json_array_size(slower), 0);
    json_decref(slower);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_full_file),
        cmocka_unit_test(bf16_is_assumed_from_f32),
        cmocka_unit_test(linear_rate_depends_on_precision),
        cmocka_unit_test(rates_of_each_device),
        cmocka_unit_test(missing_rates_stay_unchanged),
        cmocka_unit_test(fewer_threads_are_slower),
        cmocka_unit_test(refuses_invalid_files),
        cmocka_unit_test(defaults_follow_from_device_and_threads),
        cmocka_unit_test(merges_rates_of_two_benches),
        cmocka_unit_test(names_kinds_of_links),
        cmocka_unit_test(rates_change_predicted_times),
        cmocka_unit_test(plans_name_their_rates),
        cmocka_unit_test(extreme_rates_give_finite_plans),
        cmocka_unit_test(refused_rates_are_an_error_of_the_request),
        cmocka_unit_test(copier_settings_are_read_back),
        cmocka_unit_test(bus_measures_and_leaves_nothing),
        cmocka_unit_test(bus_reports_errors),
        cmocka_unit_test(ops_can_be_stopped),
        cmocka_unit_test(slower_thread_counts_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
