/* Rates (disk and bus bandwidth, arithmetic throughput): valid and invalid files, defaults, names of links,
 * effect on plans, and the benches that measure rates. */
#include "engine/bench/bench.h"
#include "engine/job/open.h"
#include "engine/machine/rates_file.h"
#include "engine/sluice_bench.h"
#include "test/lib/rig.h"
#include "test/lib/seeded.h"

static const char full[] =
    "{\"version\":1,\"machine\":\"a \\u00fc machine\",\"threads\":4,\"disk\":5e8,"
    "\"host_copy\":6000000000,\"h2d\":1.25e10,\"ops\":{\"linear\":1e11,\"linear_bf16\":2e11,"
    "\"linear_int8\":3e11,\"attention\":4e11,\"attention_int8\":5e11,\"conv\":6e11,\"bytes\":4e10}}";

/* Reads a valid rates file over the rates in *r. */
static void read_valid(const char *device, const char *text, int threads, struct rates *r) {
    struct error e = {0};
    assert_int_equal(rates_read(device, NULL, text, threads, r, &e), OK);
}

TEST(reads_a_full_file) {
    struct rates r = {0};
    read_valid("cpu", full, 0, &r);
    assert_true(r.disk == 5e8 && r.host_copy == 6e9 && r.h2d == 1.25e10);
    for (int i = 0; i < N_OP_CLASSES - 1; i++) assert_true(r.ops.per_second[i] == (i + 1) * 1e11);
    assert_true(r.ops.per_second[CLASS_BYTES] == 4e10);
}

/* With fewer threads than measured, arithmetic rates are lower, and the memory rate only with few threads.
 * With more threads, rates are not higher. */
TEST(fewer_threads_are_slower) {
    static const struct {
        int threads;
        double linear, bytes;
    } cases[] = {{1, 1.25e10, 1e10}, {4, 5e10, 4e10}, {6, 7.5e10, 4e10}, {8, 1e11, 4e10}, {64, 1e11, 4e10}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct rates r = {0};
        static const char text[] =
            "{\"version\":1,\"threads\":8,\"disk\":5e8,\"ops\":{\"linear\":1e11,\"bytes\":4e10}}";
        read_valid("cpu", text, cases[i].threads, &r);
        assert_true(r.ops.per_second[CLASS_LINEAR] == cases[i].linear && r.disk == 5e8);
        assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == cases[i].linear / 2); /* assumed */
        assert_true(r.ops.per_second[CLASS_BYTES] == cases[i].bytes);
    }
}

/* The assumed bf16 rate is half of the f32 rate, and int8's 2.5 times, unless the rates file has these rates.
 */
TEST(reduced_precisions_are_assumed_from_f32) {
    struct rates r;
    rates_default("cpu", 2, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == r.ops.per_second[CLASS_LINEAR] / 2);
    read_valid("cpu", "{\"version\":1,\"ops\":{\"linear\":6e11}}", 0, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == 3e11);
    read_valid("cpu", "{\"version\":1,\"ops\":{\"linear_bf16\":9e11}}", 0, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR_BF16] == 9e11 && r.ops.per_second[CLASS_LINEAR] == 6e11);
    assert_true(r.ops.per_second[CLASS_LINEAR_INT8] == 1.5e12);
    read_valid("cpu", "{\"version\":1,\"ops\":{\"linear_int8\":7e11,\"attention\":4e11}}", 0, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR_INT8] == 7e11);
    assert_true(r.ops.per_second[CLASS_ATTENTION_INT8] == 4e11);
}

TEST(linear_rate_depends_on_precision) {
    struct op_rates rates = {
        .per_second = {[CLASS_LINEAR] = 1e9, [CLASS_LINEAR_BF16] = 4e9, [CLASS_LINEAR_INT8] = 8e9}};
    struct op op = {.kind = OP_LINEAR};
    op.in[0] = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){5, 100});
    op.out = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){5, 1000});
    assert_float_equal(op_seconds(&op, &rates), 1e-3, 1e-9);
    op.precision = PRECISION_BF16;
    assert_float_equal(op_seconds(&op, &rates), 0.25e-3, 1e-9);
    op.precision = PRECISION_INT8;
    assert_float_equal(op_seconds(&op, &rates), 0.125e-3, 1e-9);
}

/* The key `cuda` sets rates of the GPU only; rates that a file lacks keep their defaults. */
TEST(rates_of_each_device) {
    static const char both[] =
        "{\"version\":1,\"ops\":{\"linear\":6e11},\"cuda\":{\"linear\":3e13,\"bytes\":5e11}}";
    struct rates cpu, gpu, assumed;
    struct error e = {0};
    rates_default("cpu", 2, &cpu);
    rates_default("cuda", 0, &gpu);
    assumed = gpu;
    assert_true(gpu.ops.per_second[CLASS_LINEAR_BF16] > 10 * cpu.ops.per_second[CLASS_LINEAR]);
    read_valid("cpu", both, 0, &cpu);
    read_valid("cuda", both, 0, &gpu);
    assert_true(cpu.ops.per_second[CLASS_LINEAR] == 6e11 && gpu.ops.per_second[CLASS_LINEAR] == 3e13);
    assert_true(cpu.ops.per_second[CLASS_BYTES] < 5e11 && gpu.ops.per_second[CLASS_BYTES] == 5e11);
    assert_true(gpu.ops.per_second[CLASS_LINEAR_BF16] == assumed.ops.per_second[CLASS_LINEAR_BF16]);
    assert_int_equal(rates_read("cuda", NULL, "{\"version\":1,\"cuda\":{\"lineal\":1}}", 0, &gpu, &e), META);
}

TEST(missing_rates_stay_unchanged) {
    struct rates r, before;
    rates_default("cpu", 2, &before);
    r = before;
    read_valid("cpu", "{\"version\":1,\"ops\":{\"conv\":7}}", 0, &r);
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
    {"{\"version\":1,\"disk\":99999999999999999999999999}", USAGE, 2},
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

TEST(refuses_invalid_files) {
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

TEST(defaults_follow_from_device_and_threads) {
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

TEST(merges_rates_of_two_benches) {
    struct rates bus = {.disk = 2e9, .host_copy = 1e10}, ops = {0}, r = {0};
    struct error e = {0};
    char *first, *second, *third;
    ops.ops.per_second[CLASS_LINEAR] = 3e11;
    ops.ops.per_second[CLASS_BYTES] = 4e10;
    assert_int_equal(rates_merge(NULL, &bus, "one", 0, &first, &e), OK);
    assert_null(strstr(first, "ops"));
    assert_null(strstr(first, "threads"));
    assert_int_equal(rates_merge(first, &ops, "two", 8, &second, &e), OK);
    read_valid("cpu", second, 0, &r);
    assert_true(r.disk == 2e9 && r.host_copy == 1e10 && r.h2d == 0);
    assert_true(r.ops.per_second[CLASS_LINEAR] == 3e11 && r.ops.per_second[CLASS_CONV] == 0);
    assert_non_null(strstr(second, "\"two\""));
    assert_null(strstr(second, "\"one\""));
    /* Merging new operator rates into a rates file keeps the file's other rates. */
    ops = (struct rates){.ops.per_second[CLASS_CONV] = 5e11};
    assert_int_equal(rates_merge(second, &ops, "two", 8, &third, &e), OK);
    read_valid("cpu", third, 0, &r);
    assert_true(r.ops.per_second[CLASS_LINEAR] == 3e11 && r.ops.per_second[CLASS_CONV] == 5e11);
    assert_true(r.disk == 2e9);
    free(first), free(second), free(third);
}

TEST(names_kinds_of_links) {
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

static const char model_path[] = "test/golden/zimage_a/model";

static struct sluice_request request_of(struct rig *rig) {
    struct sluice_request request = {.struct_size = sizeof request};
    sluice_request_defaults(rig->model, &request);
    request.width = 64;
    request.height = 48;
    request.steps = 2;
    request.max_ram_bytes = 512 << 20;
    return request;
}

/* Predicted computing time in seconds of one evaluation in every stage, with a number of threads. */
static double compute_seconds(int threads, const char *rates) {
    struct rig rig;
    struct job job;
    struct error e = {0};
    double seconds = 0;
    assert_true(rig_open(&rig, model_path, threads, 1));
    struct sluice_request request = request_of(&rig);
    request.rates = rates;
    const struct job_context context = {.model = rig.model, .device = rig.session->device};
    assert_int_equal(job_open(&job, &context, &request, NULL, &e), OK);
    for (int s = 0; s < job.need->n_stages; s++)
        for (int i = 0; i < job.need->stage[s].n_blocks; i++) seconds += job.need->stage[s].block_seconds[i];
    job_close(&job);
    rig_close(&rig);
    return seconds;
}

TEST(rates_change_predicted_times) {
    static const char one[] =
        "{\"version\":1,\"ops\":{\"linear\":1e9,\"attention\":1e9,\"conv\":1e9,\"bytes\":1e9}}";
    static const char two[] =
        "{\"version\":1,\"ops\":{\"linear\":2e9,\"attention\":2e9,\"conv\":2e9,\"bytes\":2e9}}";
    double by_default = compute_seconds(1, NULL), slow = compute_seconds(1, one);
    assert_true(by_default > 0 && slow > 2 * by_default);
    assert_float_equal(compute_seconds(2, NULL) / by_default, 0.5, 1e-6);
    assert_float_equal(compute_seconds(2, two) / slow, 0.5, 1e-6);
}

TEST(plans_name_their_rates) {
    static const struct {
        const char *rates, *rates_name, *expected;
    } rows[] = {{NULL, NULL, "default"},
                {NULL, NULL, "default"},
                {full, NULL, "given"},
                {full, "my rates.json", "my rates.json"},
                {full, "not \xff UTF-8", "not ? UTF-8"}};
    struct rig rig;
    json_t *plan[5];
    assert_true(rig_open(&rig, model_path, 1, 1));
    struct sluice_request request = request_of(&rig);
    for (int i = 0; i < 5; i++) {
        request.rates = rows[i].rates;
        request.rates_name = rows[i].rates_name;
        plan[i] = query(&rig, &request, NULL);
        assert_string_equal(word(plan[i], "rates"), rows[i].expected);
        /* the hash depends on the rates, not on their name */
        if (i == 1 || i == 3) assert_string_equal(word(plan[i], "hash"), word(plan[i - 1], "hash"));
    }
    rig_close(&rig);
}

/* With the lowest and highest rates that a rates file may contain, all times are finite and above 0. */
TEST(extreme_rates_give_finite_plans) {
    static const char *const extremes[] = {"1", "1e18"};
    struct rig rig;
    json_t *item;
    assert_true(rig_open(&rig, model_path, 1, 1));
    for (int i = 0; i < 4; i++) {
        const char *disk = extremes[i / 2], *ops = extremes[i % 2];
        struct sluice_request request = request_of(&rig);
        const char *rates = format_text(
            "{\"version\":1,\"disk\":%s,\"ops\":{\"linear\":%s,\"attention\":%s,\"conv\":%s,\"bytes\":%s}}",
            disk, ops, ops, ops, ops);
        request.rates = rates;
        request.max_ram_bytes = ram(query(&rig, &request, NULL), "least");
        json_t *plan = query(&rig, &request, NULL), *advice = json_object_get(plan, "advice");
        assert_true(real(plan, "seconds") > 0 && real(plan, "floor_seconds") > 0);
        for (size_t k = 0; (item = stage_at(plan, k)); k++) assert_true(real(item, "seconds") > 0);
        for (size_t k = 0; (item = json_array_get(advice, k)); k++) assert_true(real(item, "seconds") > 0);
    }
    rig_close(&rig);
}

TEST(refused_rates_are_an_error_of_the_request) {
    struct rig rig;
    struct sluice_error error;
    char *text;
    bool fits;
    assert_true(rig_open(&rig, model_path, 1, 1));
    struct sluice_request request = request_of(&rig);
    request.rates = "{\"version\":1,\"disk\":0}";
    assert_int_equal(sluice_plan_query(rig.session, &request, NULL, &text, &fits, &error), SLUICE_USAGE);
    assert_int_equal(error.exit_code, 2);
    assert_null(text);
    request.rates = "garbage";
    request.prompt = "a fox";
    run_refused(&rig, &request, "JSON", 3, "");
    rig_close(&rig);
}

/* A plan file with a changed value of a stage: the plan has this value, or the file is refused. */
TEST(copier_settings_are_read_back) {
    const struct {
        const char *key;
        json_t *value;
        int code;
    } rows[] = {
        {"depth", json_integer(1), SLUICE_OK},    {"depth", json_integer(0), SLUICE_OK},
        {"no_wrap", json_integer(1), SLUICE_OK},  {"waits", json_integer(1), SLUICE_OK},
        {"depth", json_integer(-1), SLUICE_META}, {"depth", json_integer((json_int_t)1 << 40), SLUICE_META},
        {"depth", json_real(1), SLUICE_META},     {"no_wrap", json_integer(2), SLUICE_META},
        {"waits", json_string("1"), SLUICE_META}};
    struct rig rig;
    assert_true(rig_open(&rig, model_path, 1, 1));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sluice_request request = request_of(&rig);
        struct sluice_error error;
        char *text = NULL;
        bool fits;
        json_t *plan = query(&rig, &request, NULL), *value = rig_own(&rig, rows[i].value);
        assert_null(json_object_get(stage_at(plan, 1), rows[i].key));
        json_object_set(stage_at(plan, 1), rows[i].key, value);
        request.plan = plan_text(&rig, plan);
        assert_int_equal(sluice_plan_query(rig.session, &request, NULL, &text, &fits, &error), rows[i].code);
        if (rows[i].code) continue;
        json_t *again = rig_own(&rig, json_loads(text, 0, NULL));
        assert_int_equal(number(stage_at(again, 1), rows[i].key), json_integer_value(value));
        assert_int_equal(!json_object_get(stage_at(again, 1), rows[i].key), !json_integer_value(value));
        sluice_free(text);
    }
    rig_close(&rig);
}

/* ---- benches ---- */

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

TEST(bus_measures_and_leaves_nothing) {
    char folder[] = "/tmp/sluice-rates-XXXXXX", *json, *rates;
    struct sluice_error error;
    struct rates r = {0};
    assert_non_null(mkdtemp(folder));
    struct sluice_bench_options options = {
        .struct_size = sizeof options, .threads = 1, .folder = folder, .saved = full};
    assert_int_equal(sluice_bench_bus(&options, &json, &rates, &error), 0);
    assert_int_equal(count_files(folder), 0);
    json_t *root = json_loads(json, 0, NULL), *rows = json_object_get(root, "rows"), *row;
    int n_disk = 0, n_copies = 0;
    for (size_t i = 0; (row = json_array_get(rows, i)); i++) {
        n_disk += !strcmp(word(row, "path"), "disk");
        n_copies += !strcmp(word(row, "path"), "host_copy");
        assert_true(number(row, "bytes") >= 1 << 16 && real(row, "gbytes_per_second") > 0);
    }
    assert_true(n_disk >= 4 && n_copies == 4);
    read_valid("cpu", rates, 0, &r);
    assert_true(r.host_copy > 0 && r.host_copy != 6e9 && r.ops.per_second[CLASS_LINEAR] == 1e11);
    json_decref(root);
    sluice_free(json), sluice_free(rates);
    options.saved = NULL;
    options.on_progress = on_progress;
    for (int stop = 0; stop < 3; stop++) { /* cancels a bench at 0, 5 and 25 % of its progress */
        stop_at = (double[]){0, 0.05, 0.25}[stop];
        bench_fails(sluice_bench_bus, options, SLUICE_CANCELLED, 130);
        assert_int_equal(count_files(folder), 0);
    }
    rmdir(folder);
}

TEST(bus_reports_errors) {
    static const struct {
        struct sluice_bench_options options;
        int code, exit_code;
    } rows[] = {{{.folder = "/nowhere/at/all"}, SLUICE_OUTPUT, 6},
                {{.folder = "/proc"}, SLUICE_OUTPUT, 6},
                {{.file = "/nowhere/at/all"}, SLUICE_MISSING, 3},
                {{.file = "test/packages.txt"}, SLUICE_LIMIT, 3},
                {{.file = "test"}, SLUICE_LIMIT, 3},
                {{.threads = -1}, SLUICE_USAGE, 2},
                {{.saved = "x"}, SLUICE_JSON, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bench_fails(sluice_bench_bus, rows[i].options, rows[i].code, rows[i].exit_code);
}

TEST(ops_can_be_stopped) {
    struct sluice_bench_options options = {.threads = 1, .on_progress = on_progress};
    stop_at = 0.1; /* cancels the bench after its first matrix product */
    bench_fails(sluice_bench_ops, options, SLUICE_CANCELLED, 130);
    bench_fails(sluice_bench_ops, (struct sluice_bench_options){.threads = 5000}, SLUICE_USAGE, 2);
    bench_fails(sluice_bench_ops, (struct sluice_bench_options){.saved = "{}"}, SLUICE_META, 3);
}

TEST(slower_thread_counts_are_reported) {
    /* Prints rates of two threads relative to one thread: faster, equal, slower, only the rate of two
     * measured, only the rate of one measured. */
    struct op_rates one = {.per_second = {[CLASS_LINEAR] = 100, [CLASS_ATTENTION] = 80, [CLASS_CONV] = 80}};
    struct op_rates all = {.per_second = {[CLASS_LINEAR] = 190, [CLASS_ATTENTION] = 80, [CLASS_CONV] = 60}};
    all.per_second[CLASS_BYTES] = 5;
    one.per_second[CLASS_LINEAR_BF16] = 7;
    json_t *slower = ops_slower(&one, &all, 2), *class = json_array_get(slower, 0);
    assert_int_equal(json_array_size(slower), 1);
    assert_string_equal(word(class, "op"), "conv");
    assert_int_equal(number(class, "threads"), 2);
    assert_true(real(class, "of_one_thread") == 0.75);
    json_decref(slower);
    slower = ops_slower(&all, &all, 2);
    assert_int_equal(json_array_size(slower), 0);
    json_decref(slower);
}

int main(void) {
    return run_all_tests(NULL, NULL) + finish();
}
