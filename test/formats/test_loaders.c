/* Loaders: safetensors (malformed_safetensors.h), components of several files, configurations, JSON, writing,
 * and each of these with failing memory or disk. Names of tests and rows of shard indexes begin with the
 * number of the defect (X01 ...). A wrong total_size (X05): test_user_errors.c. */
#include "test/formats/malformed_safetensors.h"

#include <dirent.h>
#include <errno.h>

#include "loaders/json.h"

static void expect_component(const char *id, const char *name, enum status code, const char *word) {
    malformed_expect(component_open, id, name, code, word);
}

/* Makes a folder with shards one (tensor a) and two (tensor b), and an index with the given weight_map. */
static void make_sharded(const char *name, const char *index) {
    char path[300];
    malformed_make_folder(name);
    snprintf(path, sizeof path, "%s/one.safetensors", name);
    put_tensors(path, ONE_TENSOR("[4]", "[0,16]"), 16);
    snprintf(path, sizeof path, "%s/two.safetensors", name);
    put_tensors(path, "{\"b\":" F32_ENTRY("[2]", "[0,8]") "}", 8);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
    malformed_write_text(path, index);
}

#define WEIGHT_MAP(map) "{\"metadata\":{\"total_size\":24},\"weight_map\":" map "}"
#define GOOD_MAP        "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}"

static const struct {
    const char *id, *index;
    enum status code;
    const char *word;
} index_rows[] = {
    {"two shards", WEIGHT_MAP(GOOD_MAP), OK, NULL},
    {"X01 absolute", WEIGHT_MAP("{\"a\":\"/tmp/one.safetensors\"}"), BOUNDS, "leaves the model folder"},
    {"X01 parent", WEIGHT_MAP("{\"a\":\"../one.safetensors\"}"), BOUNDS, "leaves the model folder"},
    {"X01 parent within", WEIGHT_MAP("{\"a\":\"x/../../one.safetensors\"}"), BOUNDS,
     "leaves the model folder"},
    {"X01 parent last", WEIGHT_MAP("{\"a\":\"x/..\"}"), BOUNDS, "leaves the model folder"},
    {"X01 dots in a name", WEIGHT_MAP("{\"a\":\"..one.safetensors\"}"), MISSING, "shard"},
    {"X01 NUL", WEIGHT_MAP("{\"a\":\"one.safetensors\\u0000\"}"), BOUNDS, "leaves the model folder"},
    {"X01 empty", WEIGHT_MAP("{\"a\":\"\"}"), BOUNDS, "leaves the model folder"},
    {"X02 absent", WEIGHT_MAP("{\"a\":\"none.safetensors\"}"), MISSING, "none.safetensors"},
    {"X02 folder", WEIGHT_MAP("{\"a\":\".\"}"), IO, "regular"},
    {"X03 lacks it", WEIGHT_MAP("{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}"), MISSING, "'b'"},
    {"X03 wrong shard", WEIGHT_MAP("{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}"), MISSING, "'a'"},
    {"X03 file twice", WEIGHT_MAP("{\"a\":\"one.safetensors\",\"b\":\"./one.safetensors\"}"), DUP,
     "two shards"},
    {"X03 mapped twice", WEIGHT_MAP("{\"a\":\"one.safetensors\",\"\\u0061\":\"one.safetensors\"}"), DUP,
     "'a'"},
    {"X04 array", WEIGHT_MAP("[]"), META, "weight_map"},
    {"X04 absent", "{}", META, "weight_map"},
    {"X04 number", WEIGHT_MAP("{\"a\":1}"), META, "string"},
    {"X04 twice", "{\"weight_map\":" GOOD_MAP ",\"weight_map\":" GOOD_MAP "}", DUP, "weight_map"},
    {"X04 not JSON", "{\"metadata\":{x},\"weight_map\":" GOOD_MAP "}", JSON, "byte"},
    {"X04 cut", "{\"weight_map\":{\"a\":", JSON, "byte"},
    {"X04 deep", WEIGHT_MAP("{\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}"), LIMIT, "nested"},
    {"X05 total_size", "{\"metadata\":{\"total_size\":1},\"weight_map\":" GOOD_MAP "}", OK, NULL},
};

static void test_index_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof index_rows / sizeof *index_rows; i++) {
        char name[32], path[64];
        snprintf(name, sizeof name, "index%zu", i);
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
        make_sharded(name, index_rows[i].index);
        expect_component(index_rows[i].id, name, index_rows[i].code, index_rows[i].word);
        for (size_t n = 0; n < strlen(index_rows[i].index); n++) {
            struct error e;
            malformed_write(path, index_rows[i].index, n);
            if (malformed_open(component_open, malformed_path(name), &e) == OK)
                fail_msg("%s: OK when cut at byte %zu", index_rows[i].id, n);
        }
    }
}

static void test_X02_fifo(void **state) {
    (void)state;
    make_sharded("fifo", WEIGHT_MAP("{\"a\":\"pipe.safetensors\"}"));
    assert_int_equal(mkfifo(malformed_path("fifo/pipe.safetensors"), 0600), 0);
    expect_component("X02 FIFO", "fifo", IO, "regular");
}

static void test_X03_two_shards(void **state) {
    (void)state;
    make_sharded("both", WEIGHT_MAP(GOOD_MAP));
    put_tensors("both/two.safetensors",
                "{\"b\":" F32_ENTRY("[2]", "[0,8]") ",\"a\":" F32_ENTRY("[1]", "[8,12]") "}", 12);
    expect_component("X03 in two shards", "both", DUP, "'a'");
}

static void test_X04_million_entries(void **state) {
    (void)state;
    struct text t = {0};
    text_add(&t, "{\"weight_map\":");
    for (int i = 0; i < 1000000; i++) text_add(&t, "%c\"t%d\":\"one.safetensors\"", i ? ',' : '{', i);
    text_add(&t, "}}");
    make_sharded("million", t.text);
    free(t.text);
    expect_component("X04 10^6 entries", "million", LIMIT, "100000");
}

static void test_shard_limit(void **state) {
    (void)state;
    struct text t = {0};
    text_add(&t, "{\"weight_map\":");
    for (int i = 0; i < 300; i++) text_add(&t, "%c\"t%d\":\"%d.safetensors\"", i ? ',' : '{', i, i);
    text_add(&t, "}}");
    make_sharded("shards", t.text);
    free(t.text);
    expect_component("300 shards", "shards", LIMIT, "256");
}

/* Each of two files has fewer tensors than the limit, but together they have more. */
static void test_tensor_limit_across_shards(void **state) {
    (void)state;
    make_sharded("heavy", WEIGHT_MAP("{\"t0\":\"one.safetensors\",\"u\":\"two.safetensors\"}"));
    struct text t = {0};
    add_tensors(&t, LOADER_TENSORS_MAX);
    put_tensors("heavy/one.safetensors", t.text, 0);
    free(t.text);
    expect_component("tensors in all shards", "heavy", LIMIT, "all shards");
}

static void test_index_over_shards(void **state) {
    (void)state;
    make_sharded("merged", WEIGHT_MAP(GOOD_MAP));
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&sys);
    assert_int_equal(component_open(&sys, malformed_path("merged"), &index, &e), OK);
    assert_int_equal(index.n_sources, 2);
    assert_int_equal(index.n_entries, 2);
    const struct index_entry *a = index_find(&index, "a"), *b = index_find(&index, "b");
    assert_non_null(strstr(index.sources[a->source].path, "one.safetensors"));
    assert_non_null(strstr(index.sources[b->source].path, "two.safetensors"));
    float read[4];
    assert_int_equal(source_read(&index.sources[a->source], read, a->bytes, a->offset, &e), OK);
    index_destroy(&index);
}

/* A snapshot of the Hugging Face cache holds only links to ../../blobs. */
static void test_hub_cache(void **state) {
    (void)state;
    make_sharded("blobs", WEIGHT_MAP(GOOD_MAP));
    malformed_make_folder("snapshots");
    malformed_make_folder("snapshots/1");
    static const char *const names[] = {"one.safetensors", "two.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        char to[64], at[64];
        snprintf(to, sizeof to, "../../blobs/%s", names[i]);
        snprintf(at, sizeof at, "snapshots/1/%s", names[i]);
        assert_int_equal(symlink(to, malformed_path(at)), 0);
    }
    expect_component("hub cache", "snapshots/1", OK, NULL);
}

/* Adds model files to a folder by ascending preference: the folder opens the most recently added file. */
static void test_file_preference_in_folder(void **state) {
    (void)state;
    static const struct {
        const char *file;
        enum status code;
        const char *word;
    } steps[] = {
        {"readme.txt", MISSING, "one *.safetensors"},
        {"model-00001-of-00002.safetensors", MISSING, "shards without their index"},
        {"x.fp16.safetensors", OK, NULL},
        {"y.bf16.safetensors", UNSUPPORTED, "several"},
        {"x.safetensors", OK, NULL},
        {"y.safetensors", UNSUPPORTED, "y.safetensors"},
        {"model.safetensors", OK, NULL},
        {"diffusion_pytorch_model.safetensors", OK, NULL},
        {"model.safetensors.index.json", JSON, "model.safetensors.index.json"},
    };
    malformed_make_folder("choice");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char path[128];
        snprintf(path, sizeof path, "choice/%s", steps[i].file);
        if (strstr(path, ".json") || steps[i].code == MISSING)
            malformed_write_text(path, "no JSON");
        else
            put_tensors(path, ONE_TENSOR("[4]", "[0,16]"), 16);
        expect_component(steps[i].file, "choice", steps[i].code, steps[i].word);
    }
    expect_component("a file by name", "choice/x.safetensors", OK, NULL);
    expect_component("no such file", "choice/none.safetensors", MISSING, "none.safetensors");
    expect_component("a file as folder", "choice/x.safetensors/y", MISSING, NULL);
}

static enum status read_config(const char *text, size_t bytes, struct config *config, struct error *e) {
    static struct sys sys;
    sys_init_machine(&sys);
    *e = (struct error){0};
    malformed_write("config", text, bytes);
    enum status code = config_read(&sys, malformed_path("config"), config, e);
    if (code != OK) assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
    return code;
}

static void test_config_values(void **state) {
    (void)state;
    static const char text[] =
        "{\"rope\": {\"theta\": 1e4, \"on\": true}, \"axes\": [16, [56, 57]], \"none\": null,"
        "\"name\": \"Z\\u00e9\", \"empty\": {}, \"no_axes\": [], \"big\": 9007199254740992}";
    struct config config;
    struct error e;
    assert_int_equal(read_config(text, strlen(text), &config, &e), OK);
    assert_int_equal(config.n_values, 9);
    int axis = 0, none = 3;
    double theta = 0;
    bool on = false;
    assert_int_equal(config_int(&config, "axes.1.0", 0, 100, &axis, &e), OK);
    assert_int_equal(config_float(&config, "rope.theta", 0, 1e9, &theta, &e), OK);
    assert_int_equal(config_bool(&config, "rope.on", &on, &e), OK);
    assert_int_equal(config_int(&config, "no_axes", 0, 100, &none, &e), OK);
    assert_int_equal(config_find(&config, "no_axes")->kind, CONFIG_EMPTY);
    assert_true(none == 3 && axis == 56 && theta == 1e4 && on);
    assert_string_equal(config_string(&config, "name", ""), "Z\xc3\xa9");
    assert_int_equal(config_find(&config, "none")->kind, CONFIG_NULL);
    assert_true(config_find(&config, "big")->integer && !config_find(&config, "rope.theta")->integer);
    struct sys *sys = config.sys;
    config_destroy(&config);
    assert_int_equal(sys_memory_use(sys).live_bytes[LINE_HOST], 0);
}

static void expect_config(const char *text, enum status code) {
    struct config config;
    struct error e;
    read_config(text, strlen(text), &config, &e);
    if (e.code != code) fail_msg("%.60s: %s, expected %s", text, status_name(e.code), status_name(code));
    config_destroy(&config);
}

static void test_invalid_configs_refused(void **state) {
    (void)state;
    expect_config("", JSON);
    expect_config("[1]", JSON);
    expect_config("\"a\"", JSON);
    expect_config("\xef\xbb\xbf{}", JSON);
    expect_config("{} x", JSON);
    expect_config("{\"a\": NaN}", JSON);
    expect_config("{\"a\": Infinity}", JSON);
    expect_config("{\"a\": 1,}", JSON);
    expect_config("{\"a\": 1, \"a\": 2}", DUP);
    expect_config("{\"a.b\": 1, \"a\": {\"b\": 2}}", DUP);
    expect_config("{\"a\": \"\xff\"}", UTF8);
    expect_config("{\"a\": \"\\ud800\"}", UTF8);
    expect_config("{\"a\": \"\\u0000\"}", META);
    expect_config("{\"a\": 18446744073709551616}", LIMIT);
    expect_config("{\"a\": 1e999}", LIMIT);
    expect_config("{}", OK);
}

static void expect_long_config(struct text *t, enum status code) {
    expect_config(t->text, code);
    free(t->text);
    *t = (struct text){0};
}

static void test_config_limits(void **state) {
    (void)state;
    struct text t = {0};
    for (size_t depth = 64; depth <= 65; depth++) {
        text_add(&t, "{\"a\":");
        text_fill(&t, '[', depth - 1);
        text_fill(&t, ']', depth - 1);
        text_add(&t, "}");
        expect_long_config(&t, depth > 64 ? LIMIT : OK);
    }
    text_add(&t, "{\"a\":");
    text_fill(&t, '[', 1000000);
    expect_long_config(&t, LIMIT);
    text_add(&t, "{\"a\":[0");
    for (int i = 0; i < 65536; i++) text_add(&t, ",0");
    text_add(&t, "]}");
    expect_long_config(&t, LIMIT);
    text_add(&t, "{\"");
    text_fill(&t, 'k', 254);
    text_add(&t, "\":[0]}");
    expect_long_config(&t, LIMIT);
    text_add(&t, "{\"a\":\"");
    text_fill(&t, 'k', 1 << 20);
    text_add(&t, "\"}");
    expect_long_config(&t, LIMIT);
}

static void test_json_error_position(void **state) {
    (void)state;
    static const char text[] = "{\"a\": [1, \"[[[\\\"[\"], \"b\": }";
    struct error e = {0};
    json_t *root;
    assert_int_equal(json_parse("some.json", text, strlen(text), 2, &root, &e), JSON);
    assert_null(root);
    assert_non_null(strstr(e.where, "some.json, byte "));
    e = (struct error){0};
    assert_int_equal(json_parse("some.json", "[[]]", 4, 1, &root, &e), LIMIT);
    assert_non_null(strstr(e.where, "byte 1"));
    e = (struct error){0};
    assert_int_equal(json_parse("some.json", "[[]]", 4, 2, &root, &e), OK);
    json_decref(root);
}

static void *(*real_alloc)(struct sys *, enum memory_line, size_t);
static int64_t (*real_write)(struct sys *, int, const void *, size_t);
static int (*real_flush)(struct sys *, int);
static int (*real_rename)(struct sys *, const char *, const char *);
static int allocs_left, writes_left; /* number of write calls that succeed before one fails */
static size_t write_most;
static int flush_result, rename_result;

static void *failing_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    return allocs_left-- > 0 ? real_alloc(sys, line, bytes) : NULL;
}

static int64_t failing_write(struct sys *sys, int file, const void *from, size_t bytes) {
    if (writes_left-- <= 0) return -ENOSPC;
    return real_write(sys, file, from, bytes < write_most ? bytes : write_most);
}

static int failing_flush(struct sys *sys, int file) {
    return flush_result ? flush_result : real_flush(sys, file);
}

static int failing_rename(struct sys *sys, const char *from, const char *to) {
    return rename_result ? rename_result : real_rename(sys, from, to);
}

static void init_faulty(struct sys *sys) {
    sys_init_machine(sys);
    real_alloc = sys->alloc, sys->alloc = failing_alloc;
    real_write = sys->write, sys->write = failing_write;
    real_flush = sys->flush, sys->flush = failing_flush;
    real_rename = sys->rename, sys->rename = failing_rename;
    allocs_left = writes_left = INT32_MAX;
    write_most = SIZE_MAX;
    flush_result = rename_result = 0;
}

static int count_files(const char *name) {
    DIR *files = opendir(malformed_path(name));
    assert_non_null(files);
    int n = 0;
    while (readdir(files)) n++;
    closedir(files);
    return n - 2;
}

static float written[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static uint8_t written_bytes[3] = {7, 8, 9};

static enum status write_two(struct sys *sys, const char *path, struct error *e) {
    const struct named_tensor tensors[] = {
        {"w \"quoted\"\n", tensor_make(written, DTYPE_F32, 2, (int32_t[]){2, 3})},
        {"bytes", tensor_make(written_bytes, DTYPE_U8, 1, (int32_t[]){3})},
    };
    *e = (struct error){0};
    enum status code = safetensors_write(sys, path, tensors, 2, e);
    assert_int_equal(sys_memory_use(sys).live_bytes[LINE_HOST], 0);
    return code;
}

static void expect_written(const char *path) {
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    float floats[6];
    uint8_t bytes[3];
    sys_init_machine(&sys);
    assert_int_equal(safetensors_open(&sys, path, &index, &e), OK);
    const struct index_entry *w = index_find(&index, "w \"quoted\"\n"), *b = index_find(&index, "bytes");
    assert_true(w->rank == 2 && w->dim[0] == 2 && w->dim[1] == 3 && w->bytes == sizeof floats);
    assert_int_equal(w->offset % 8, 0);
    assert_int_equal(source_read(&index.sources[0], floats, w->bytes, w->offset, &e), OK);
    assert_int_equal(source_read(&index.sources[0], bytes, b->bytes, b->offset, &e), OK);
    assert_memory_equal(floats, written, sizeof floats);
    assert_memory_equal(bytes, written_bytes, sizeof bytes);
    index_destroy(&index);
}

static void test_written_file_reads_back(void **state) {
    (void)state;
    struct sys sys;
    struct error e;
    init_faulty(&sys);
    malformed_make_folder("out");
    for (write_most = 1; write_most < 8; write_most++) {
        assert_int_equal(write_two(&sys, malformed_path("out/a.safetensors"), &e), OK);
        expect_written(malformed_path("out/a.safetensors"));
    }
    assert_int_equal(count_files("out"), 1);
}

static void test_no_file_after_write_fault(void **state) {
    (void)state;
    struct sys sys;
    struct error e;
    init_faulty(&sys);
    malformed_make_folder("faults");
    assert_int_equal(write_two(&sys, malformed_path("faults/a.safetensors"), &e), OK);
    for (int n = 0; n < 3; n++) {
        writes_left = n;
        assert_int_equal(write_two(&sys, malformed_path("faults/a.safetensors"), &e), OUTPUT);
        assert_string_equal(e.found, strerror(ENOSPC));
    }
    writes_left = INT32_MAX;
    flush_result = -EIO;
    assert_int_equal(write_two(&sys, malformed_path("faults/a.safetensors"), &e), OUTPUT);
    flush_result = 0;
    rename_result = -EACCES;
    assert_int_equal(write_two(&sys, malformed_path("faults/a.safetensors"), &e), OUTPUT);
    rename_result = 0;
    write_most = 0;
    assert_int_equal(write_two(&sys, malformed_path("faults/a.safetensors"), &e), OUTPUT);
    assert_int_equal(count_files("faults"), 1);
    expect_written(malformed_path("faults/a.safetensors"));
    assert_int_equal(write_two(&sys, malformed_path("none/a.safetensors"), &e), OUTPUT);
    assert_string_equal(e.found, strerror(ENOENT));
}

static void test_unwritable_tensors_refused(void **state) {
    (void)state;
    struct sys sys;
    sys_init_machine(&sys);
    const struct tensor t = tensor_make(written, DTYPE_F32, 1, (int32_t[]){6});
    const struct tensor other = {.dtype = DTYPE_OTHER};
    const struct {
        struct named_tensor tensors[2];
        enum status code;
    } cases[] = {
        {{{"a", t}, {"a", t}}, DUP},
        {{{"a", t}, {"", t}}, META},
        {{{"a", t}, {"__metadata__", t}}, META},
        {{{"a", t}, {"\xff", t}}, UTF8},
        {{{"a", t}, {"b", other}}, UNSUPPORTED},
    };
    malformed_make_folder("unwritable");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e = {0};
        assert_int_equal(safetensors_write(&sys, malformed_path("unwritable/a"), cases[i].tensors, 2, &e),
                         cases[i].code);
    }
    assert_int_equal(count_files("unwritable"), 0);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

/* Runs an operation that uses the file and memory functions of `sys`, and frees the operation's result. */
typedef enum status operation(struct sys *sys, struct error *e);

static enum status open_component(struct sys *sys, struct error *e) {
    struct tensor_index index;
    if (component_open(sys, malformed_path("memory"), &index, e) == OK) index_destroy(&index);
    return e->code;
}

static enum status open_config(struct sys *sys, struct error *e) {
    struct config config;
    if (config_read(sys, malformed_path("memory/config.json"), &config, e) == OK) config_destroy(&config);
    return e->code;
}

static enum status write_file(struct sys *sys, struct error *e) {
    return write_two(sys, malformed_path("memory/out"), e);
}

static operation *const operations[] = {open_component, open_config, write_file};

static void test_every_alloc_fails_once(void **state) {
    (void)state;
    make_sharded("memory", WEIGHT_MAP(GOOD_MAP));
    malformed_write_text("memory/config.json", "{\"a\": {\"b\": \"c\"}, \"d\": [1, 2]}");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        struct sys sys;
        struct error e = {0};
        int n = 0;
        init_faulty(&sys);
        for (allocs_left = n; operations[i](&sys, &e) != OK; allocs_left = ++n) {
            assert_int_equal(e.code, MEMORY);
            assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
            e = (struct error){0};
        }
        assert_true(n > 1);
        assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
    }
    assert_int_equal(count_files("memory"), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_files_refused),
        cmocka_unit_test(test_S02_lengths),
        cmocka_unit_test(test_S01_short_files),
        cmocka_unit_test(test_S02_other_formats_refused),
        cmocka_unit_test(test_S08_depth),
        cmocka_unit_test(test_S20_same_place),
        cmocka_unit_test(test_S25_metadata_string),
        cmocka_unit_test(test_S26_million_entries),
        cmocka_unit_test(test_S26_maximum_entries),
        cmocka_unit_test(test_headers_that_inflate_memory),
        cmocka_unit_test(test_entry_fields),
        cmocka_unit_test(test_index_rows),
        cmocka_unit_test(test_X02_fifo),
        cmocka_unit_test(test_X03_two_shards),
        cmocka_unit_test(test_X04_million_entries),
        cmocka_unit_test(test_shard_limit),
        cmocka_unit_test(test_tensor_limit_across_shards),
        cmocka_unit_test(test_index_over_shards),
        cmocka_unit_test(test_hub_cache),
        cmocka_unit_test(test_file_preference_in_folder),
        cmocka_unit_test(test_config_values),
        cmocka_unit_test(test_invalid_configs_refused),
        cmocka_unit_test(test_config_limits),
        cmocka_unit_test(test_json_error_position),
        cmocka_unit_test(test_written_file_reads_back),
        cmocka_unit_test(test_no_file_after_write_fault),
        cmocka_unit_test(test_unwritable_tensors_refused),
        cmocka_unit_test(test_every_alloc_fails_once),
    };
    int n = sizeof tests / sizeof *tests,
        failed = cmocka_run_group_tests(tests, malformed_set_up, malformed_tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
