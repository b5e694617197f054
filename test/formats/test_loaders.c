/* Loaders: safetensors (malformed_safetensors.h), components of several files, configurations, JSON, writing,
 * and each of these with failing memory or disk. Names of tests and rows of shard indexes begin with the
 * number of the defect (X01 ...). A wrong total_size (X05): test_user_errors.c. */
#include "test/formats/malformed_safetensors.h"

#include "loaders/json.h"
#include "test/lib/fault_sys.h"
#include "test/lib/temporary_folder.h"

#include <errno.h>

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

TEST(index_rows) {
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

TEST(X02_fifo) {
    make_sharded("fifo", WEIGHT_MAP("{\"a\":\"pipe.safetensors\"}"));
    assert_int_equal(mkfifo(malformed_path("fifo/pipe.safetensors"), 0600), 0);
    expect_component("X02 FIFO", "fifo", IO, "regular");
}

TEST(X03_two_shards) {
    make_sharded("both", WEIGHT_MAP(GOOD_MAP));
    put_tensors("both/two.safetensors",
                "{\"b\":" F32_ENTRY("[2]", "[0,8]") ",\"a\":" F32_ENTRY("[1]", "[8,12]") "}", 12);
    expect_component("X03 in two shards", "both", DUP, "'a'");
}

TEST(X04_million_entries) {
    struct bytes t = {0};
    bytes_print(&t, "{\"weight_map\":");
    for (int i = 0; i < 1000000; i++) bytes_print(&t, "%c\"t%d\":\"one.safetensors\"", i ? ',' : '{', i);
    bytes_print(&t, "}}");
    make_sharded("million", (const char *)t.at);
    free(t.at);
    expect_component("X04 10^6 entries", "million", LIMIT, "100000");
}

TEST(shard_limit) {
    struct bytes t = {0};
    bytes_print(&t, "{\"weight_map\":");
    for (int i = 0; i < 300; i++) bytes_print(&t, "%c\"t%d\":\"%d.safetensors\"", i ? ',' : '{', i, i);
    bytes_print(&t, "}}");
    make_sharded("shards", (const char *)t.at);
    free(t.at);
    expect_component("300 shards", "shards", LIMIT, "256");
}

/* Each of two files has fewer tensors than the limit, but together they have more. */
TEST(tensor_limit_across_shards) {
    make_sharded("heavy", WEIGHT_MAP("{\"t0\":\"one.safetensors\",\"u\":\"two.safetensors\"}"));
    struct bytes t = {0};
    add_tensors(&t, LOADER_TENSORS_MAX);
    put_tensors("heavy/one.safetensors", (const char *)t.at, 0);
    free(t.at);
    expect_component("tensors in all shards", "heavy", LIMIT, "all shards");
}

TEST(index_over_shards) {
    make_sharded("merged", WEIGHT_MAP(GOOD_MAP));
    struct tensor_index index = malformed_index(component_open, malformed_path("merged"));
    assert_int_equal(index.n_sources, 2);
    assert_int_equal(index.n_entries, 2);
    const struct index_entry *a = index_find(&index, "a"), *b = index_find(&index, "b");
    assert_non_null(strstr(index.sources[a->source].path, "one.safetensors"));
    assert_non_null(strstr(index.sources[b->source].path, "two.safetensors"));
    float read[4];
    malformed_read(&index, a, read);
    malformed_close(&index);
}

/* A snapshot of the Hugging Face cache holds only links to ../../blobs. */
TEST(hub_cache) {
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
TEST(file_preference_in_folder) {
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

TEST(config_values) {
    static const char text[] =
        "{\"rope\": {\"theta\": 1e4, \"on\": true}, \"axes\": [16, [56, 57]], \"none\": null,"
        "\"name\": \"Z\\u00e9\", \"empty\": {}, \"no_axes\": [], \"big\": 9007199254740992, "
        "\"huge\": 1000000000000000019884624838656}";
    struct config config;
    struct error e;
    assert_int_equal(read_config(text, strlen(text), &config, &e), OK);
    assert_int_equal(config.n_values, 10);
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
    /* An integer beyond 64 bits is a real number, such as the model_max_length of some tokenizers. */
    assert_false(config_find(&config, "huge")->integer);
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

TEST(invalid_configs_refused) {
    static const struct {
        enum status code;
        const char *texts[8];
    } configs[] = {
        {JSON,
         {"", "[1]", "\"a\"", "\xef\xbb\xbf{}", "{} x", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": 1,}"}},
        {DUP, {"{\"a\": 1, \"a\": 2}", "{\"a.b\": 1, \"a\": {\"b\": 2}}"}},
        {UTF8, {"{\"a\": \"\xff\"}", "{\"a\": \"\\ud800\"}"}},
        {META, {"{\"a\": \"\\u0000\"}"}},
        {LIMIT, {"{\"a\": 1e999}"}},
        {OK, {"{}"}},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (int k = 0; k < 8 && configs[i].texts[k]; k++)
            expect_config(configs[i].texts[k], configs[i].code);
}

static void expect_long_config(struct bytes *t, enum status code) {
    expect_config((const char *)t->at, code);
    free(t->at);
    *t = (struct bytes){0};
}

TEST(config_limits) {
    struct bytes t = {0};
    for (size_t depth = 64; depth <= 65; depth++) {
        bytes_print(&t, "{\"a\":");
        bytes_fill(&t, '[', depth - 1);
        bytes_fill(&t, ']', depth - 1);
        bytes_print(&t, "}");
        expect_long_config(&t, depth > 64 ? LIMIT : OK);
    }
    bytes_print(&t, "{\"a\":");
    bytes_fill(&t, '[', 1000000);
    expect_long_config(&t, LIMIT);
    bytes_print(&t, "{\"a\":[0");
    for (int i = 0; i < 65536; i++) bytes_print(&t, ",0");
    bytes_print(&t, "]}");
    expect_long_config(&t, LIMIT);
    bytes_print(&t, "{\"");
    bytes_fill(&t, 'k', 254);
    bytes_print(&t, "\":[0]}");
    expect_long_config(&t, LIMIT);
    bytes_print(&t, "{\"a\":\"");
    bytes_fill(&t, 'k', 1 << 20);
    bytes_print(&t, "\"}");
    expect_long_config(&t, LIMIT);
}

TEST(json_error_position) {
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

static float written[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static uint8_t written_bytes[3] = {7, 8, 9};

static const char out_path[] = "out/a.safetensors";

static enum status write_two(struct sys *sys, struct error *e) {
    const struct named_tensor tensors[] = {
        {"w \"quoted\"\n", tensor_make(written, DTYPE_F32, 2, (int32_t[]){2, 3})},
        {"bytes", tensor_make(written_bytes, DTYPE_U8, 1, (int32_t[]){3})},
    };
    return safetensors_write(sys, malformed_path(out_path), tensors, 2, e);
}

static void expect_written(void) {
    float floats[6];
    uint8_t bytes[3];
    struct tensor_index index = malformed_index(safetensors_open, malformed_path(out_path));
    const struct index_entry *w = index_find(&index, "w \"quoted\"\n"), *b = index_find(&index, "bytes");
    assert_true(w->rank == 2 && w->dim[0] == 2 && w->dim[1] == 3 && w->bytes == sizeof floats);
    assert_int_equal(w->offset % 8, 0);
    malformed_read(&index, w, floats);
    malformed_read(&index, b, bytes);
    assert_memory_equal(floats, written, sizeof floats);
    assert_memory_equal(bytes, written_bytes, sizeof bytes);
    malformed_close(&index);
}

TEST(written_file_reads_back) {
    static struct fault_sys w;
    struct error e = {0};
    malformed_make_folder("out");
    fault_sys_init(&w, 1);
    assert_int_equal(write_two(&w.sys, &e), OK);
    expect_written();
    fault_sys_fail(&w, CALL_WRITE, 1, LONG_MAX);
    w.fault = FAULT_SHORT; /* every call writes half of the bytes */
    assert_int_equal(write_two(&w.sys, &e), OK);
    expect_written();
}

/* A failed write leaves the former file and no other. */
static void expect_unharmed(void) {
    expect_written();
    assert_int_equal(count_files(malformed_path("out")), 1);
}

TEST(no_file_after_write_fault) {
    static struct fault_sys w;
    struct error e = {0};
    assert_true(malformed_fail_calls(write_two, expect_unharmed) > 10);
    fault_sys_init(&w, 1);
    fault_sys_fail(&w, CALL_WRITE, 1, 0);
    assert_int_equal(write_two(&w.sys, &e), OUTPUT);
    assert_string_equal(e.found, strerror(ENOSPC));
    expect_unharmed();
    e = (struct error){0};
    assert_int_equal(safetensors_write(&w.sys, malformed_path("none/a.safetensors"), NULL, 0, &e), OUTPUT);
    assert_string_equal(e.found, strerror(ENOENT));
}

TEST(unwritable_tensors_refused) {
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
    assert_int_equal(count_files(malformed_path("unwritable")), 0);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

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

TEST(every_call_fails_once) {
    make_sharded("memory", WEIGHT_MAP(GOOD_MAP));
    malformed_write_text("memory/config.json", "{\"a\": {\"b\": \"c\"}, \"d\": [1, 2]}");
    assert_true(malformed_fail_calls(open_component, NULL) > 10);
    assert_true(malformed_fail_calls(open_config, NULL) > 3);
}

int main(void) {
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
