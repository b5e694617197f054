/* GGUF files of the reference writer (test/golden/gguf, made by gguf_files.py): tensors, metadata and
 * configuration, split files, folders, writing, and faults of memory and disk. Malformed files:
 * malformed_gguf.h. Random damage: test_damaged_files.c. */
#include "test/formats/malformed_gguf.h"

#include <unistd.h>

static const char types_file[] = "test/golden/gguf/types.gguf",
                  aligned_file[] = "test/golden/gguf/aligned.gguf";

/* Element types, and the size in bytes of a row of 512 values. */
static const struct {
    const char *name;
    enum dtype dtype;
    uint64_t row_bytes;
} types[] = {
    {"F32", DTYPE_F32, 2048},      {"F16", DTYPE_F16, 1024},      {"Q4_0", DTYPE_Q4_0, 288},
    {"Q4_1", DTYPE_Q4_1, 320},     {"Q5_0", DTYPE_Q5_0, 352},     {"Q5_1", DTYPE_Q5_1, 384},
    {"Q8_0", DTYPE_Q8_0, 544},     {"Q2_K", DTYPE_Q2_K, 168},     {"Q3_K", DTYPE_Q3_K, 220},
    {"Q4_K", DTYPE_Q4_K, 288},     {"Q5_K", DTYPE_Q5_K, 352},     {"Q6_K", DTYPE_Q6_K, 420},
    {"Q8_K", DTYPE_OTHER, 584},    {"IQ2_XXS", DTYPE_OTHER, 132}, {"IQ2_XS", DTYPE_OTHER, 148},
    {"IQ3_XXS", DTYPE_OTHER, 196}, {"IQ1_S", DTYPE_OTHER, 100},   {"IQ4_NL", DTYPE_IQ4_NL, 288},
    {"IQ3_S", DTYPE_OTHER, 220},   {"IQ2_S", DTYPE_OTHER, 164},   {"IQ4_XS", DTYPE_IQ4_XS, 272},
    {"I8", DTYPE_I8, 512},         {"I16", DTYPE_I16, 1024},      {"I32", DTYPE_I32, 2048},
    {"I64", DTYPE_I64, 4096},      {"F64", DTYPE_F64, 4096},      {"IQ1_M", DTYPE_OTHER, 112},
    {"BF16", DTYPE_BF16, 1024},    {"TQ1_0", DTYPE_OTHER, 108},   {"TQ2_0", DTYPE_OTHER, 132},
    {"MXFP4", DTYPE_MXFP4, 272},   {"NVFP4", DTYPE_NVFP4, 288},   {"Q1_0", DTYPE_OTHER, 72},
};
enum { N_TYPES = sizeof types / sizeof *types };

static void expect_type(const struct tensor_index *index, int i) {
    char name[32];
    unsigned char bytes[8192];
    snprintf(name, sizeof name, "type.%s", types[i].name);
    const struct index_entry *entry = index_find(index, name);
    assert_non_null(entry);
    assert_int_equal(entry->dtype, types[i].dtype);
    assert_true(entry->rank == 2 && entry->dim[0] == 2 && entry->dim[1] == 512 && entry->scale == 1);
    assert_int_equal(entry->bytes, 2 * types[i].row_bytes);
    if (entry->dtype == DTYPE_OTHER)
        assert_string_equal(entry->type_name, types[i].name);
    else
        assert_null(entry->type_name);
    malformed_read(index, entry, bytes);
    for (uint64_t k = 0; k < entry->bytes; k++) assert_int_equal(bytes[k], k % 251);
}

static void expect_types(const char *path) {
    float floats[24];
    char longest[128];
    struct tensor_index index = malformed_index(gguf_open, path);
    assert_int_equal(index.n_entries, N_TYPES + 2);
    for (int i = 0; i < N_TYPES; i++) expect_type(&index, i);
    memset(longest, 'n', 127), longest[127] = 0;
    assert_int_equal(index_find(&index, longest)->bytes, 12);
    const struct index_entry *five = index_find(&index, "five");
    static const int32_t dim[5] = {2, 3, 1, 2, 2};
    assert_int_equal(five->rank, 5);
    assert_memory_equal(five->dim, dim, sizeof dim);
    malformed_read(&index, five, floats);
    for (int i = 0; i < 24; i++) assert_true(floats[i] == (float)i);
    malformed_close(&index);
}

TEST(test_tensor_data_of_every_type) {
    expect_types(types_file);
    struct bytes file = bytes_of_file(types_file);
    file.at[4] = 2;
    malformed_write("two.gguf", file.at, file.n);
    expect_types(malformed_path("two.gguf"));
    free(file.at);
}

TEST(test_custom_alignment) {
    uint16_t bias[5];
    struct tensor_index index = malformed_index(gguf_open, aligned_file);
    const struct index_entry *conv = index_find(&index, "conv.weight"), *b = index_find(&index, "bias");
    static const int32_t dim[4] = {320, 4, 3, 3};
    assert_int_equal(conv->rank, 4);
    assert_memory_equal(conv->dim, dim, sizeof dim);
    assert_true(conv->dtype == DTYPE_Q4_0 && conv->bytes == 320 * 36 / 32 * 18 && conv->offset % 64 == 0);
    malformed_read(&index, b, bias);
    static const uint16_t halves[5] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
    assert_memory_equal(bias, halves, sizeof bias);
    malformed_close(&index);
}

static void expect_cuts_of(const char *path, size_t most) {
    struct bytes file = bytes_of_file(path);
    malformed_write("cut.gguf", file.at, file.n < most ? file.n : most);
    for (size_t n = file.n < most ? file.n : most; n--;) {
        struct error e;
        assert_int_equal(truncate(malformed_path("cut.gguf"), (off_t)n), 0);
        enum status code = open_exactly(malformed_path("cut.gguf"), &e);
        if (code != TRUNC && code != BOUNDS) fail_msg("cut at byte %zu: %s", n, status_name(code));
    }
    free(file.at);
}

/* The fixture aligned.gguf ends with ten bytes of data padded to 64. */
TEST(test_truncation_refused) {
    expect_cuts_of(types_file, 4500);
    expect_cuts_of(aligned_file, (size_t)malformed_size(aligned_file) - 54);
}

static struct gguf *read_header(struct sys *sys, const char *path) {
    struct byte_source source;
    struct gguf *header;
    struct error e = {0};
    sys_init_machine(sys);
    assert_int_equal(source_open(sys, path, &source, &e), OK);
    assert_int_equal(gguf_read(&source, &header, &e), OK);
    source_close(&source);
    return header;
}

static double number_at(const struct gguf *header, const char *key, enum gguf_kind kind, uint64_t i) {
    struct gguf_value value;
    if (!gguf_find(header, key, &value)) fail_msg("key %s is missing", key);
    assert_int_equal(value.kind, kind);
    assert_true(value.array ? i < value.n : value.n == 1);
    return gguf_number(&value, i);
}

TEST(test_metadata) {
    struct sys sys;
    struct gguf_value value;
    struct gguf *header = read_header(&sys, types_file);
    assert_string_equal(gguf_architecture(header), "test");
    assert_true(number_at(header, "test.u8", GGUF_U8, 0) == 200);
    assert_true(number_at(header, "test.i8", GGUF_I8, 0) == -3);
    assert_true(number_at(header, "test.u16", GGUF_U16, 0) == 60000);
    assert_true(number_at(header, "test.i16", GGUF_I16, 0) == -30000);
    assert_true(number_at(header, "test.u32", GGUF_U32, 0) == 4000000000.0);
    assert_true(number_at(header, "test.i32", GGUF_I32, 0) == -2000000000);
    assert_true(number_at(header, "test.u64", GGUF_U64, 0) == 0x1p63 + 2048);
    assert_true(number_at(header, "test.i64", GGUF_I64, 0) == -0x1p53);
    assert_true(number_at(header, "test.f32", GGUF_F32, 0) == (double)1e-6f);
    assert_true(number_at(header, "test.f64", GGUF_F64, 0) == 1.0 / 3);
    assert_true(number_at(header, "test.bool", GGUF_BOOL, 0) == 1);
    assert_true(number_at(header, "test.ints", GGUF_I32, 1) == -4);
    assert_true(number_at(header, "test.floats", GGUF_F32, 1) == 1e10);
    assert_true(gguf_find(header, "test.ints", &value) && value.array && value.n == 3);
    assert_true(gguf_number(&value, 3) == 0);
    assert_false(gguf_find(header, "test", &value));
    assert_false(gguf_find(header, "zzz", &value));
    gguf_close(header);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

static void expect_texts(const struct gguf *header, const char *key, int n, const char *const *texts) {
    struct gguf_value value;
    struct gguf_text text;
    uint64_t place = 0;
    assert_true(gguf_find(header, key, &value));
    for (int i = 0; i < n; i++) {
        assert_true(gguf_next_text(&value, &place, &text));
        assert_int_equal(text.bytes, strlen(texts[i]));
        assert_memory_equal(text.text, texts[i], text.bytes);
    }
    assert_false(gguf_next_text(&value, &place, &text));
    assert_true(gguf_number(&value, 0) == 0);
}

TEST(test_string_arrays) {
    struct sys sys;
    struct gguf_value value;
    struct gguf_text text;
    uint64_t place = 0;
    struct gguf *header = read_header(&sys, types_file);
    expect_texts(header, "test.string", 1, (const char *[]){"Gr\303\274\303\237e"});
    expect_texts(header, "test.strings", 3, (const char *[]){"a", "", "ccc"});
    assert_true(gguf_find(header, "test.u8", &value));
    assert_false(gguf_next_text(&value, &place, &text));
    gguf_close(header);
    struct bytes file = bytes_of(HEAD(0, 1) "$x 9 8 0:8");
    malformed_write("none.gguf", file.at, file.n);
    header = read_header(&sys, malformed_path("none.gguf"));
    expect_texts(header, "x", 0, NULL);
    assert_string_equal(gguf_architecture(header), "");
    gguf_close(header);
    free(file.at);
}

TEST(test_configuration_from_metadata) {
    struct config config;
    struct error e = {0};
    double real = 0;
    int blocks = 0;
    struct tensor_index index = malformed_index(gguf_open, types_file);
    assert_int_equal(config_parse(index.sys, types_file, index.config, NULL, &config, &e), OK);
    assert_string_equal(config_string(&config, "general.architecture", ""), "test");
    assert_string_equal(config_string(&config, "test.string", ""), "Gr\303\274\303\237e");
    assert_int_equal(config_int(&config, "test.block_count", 1, 99, &blocks, &e), OK);
    assert_int_equal(blocks, 7);
    assert_int_equal(config_float(&config, "test.f32", 0, 1, &real, &e), OK);
    assert_true(real == 1e-6);
    assert_true(config_find(&config, "test.ints.1")->number == -4);
    assert_true(config_find(&config, "test.bool")->kind == CONFIG_BOOL);
    assert_true(config_find(&config, "test.u64")->number == 0x1p63 + 2048);
    assert_null(config_find(&config, "test.strings.0"));
    config_destroy(&config);
    malformed_close(&index);
}

/* A model configuration omits metadata that it cannot hold; with too many keys there is no configuration. */
TEST(test_values_beyond_configuration_ignored) {
    struct bytes file =
        bytes_of(HEAD(0, 7) "$nan 6 0x7fc00000 $inf 12 0x7ff0000000000000:8 $bytes 8 $\xff\xfe "
                            "$nul 8 3:8 'a .1 'b $k*241 4 1 $long 8 $x*8192 $array 9 5 65:8 .260");
    malformed_write("odd.gguf", file.at, file.n);
    free(file.at);
    struct tensor_index index = malformed_index(gguf_open, malformed_path("odd.gguf"));
    assert_string_equal(index.config, "{}");
    malformed_close(&index);
    put_many("many.gguf", 65536, 0);
    index = malformed_index(gguf_open, malformed_path("many.gguf"));
    assert_null(index.config);
    malformed_close(&index);
}

#define PART(no, count, tensors, name)                                                                       \
    HEAD(1, 3)                                                                                               \
    "$split.no 2 " #no ":2 $split.count 2 " #count ":2 $split.tensors.count 5 " #tensors " $" name           \
    " 1 4:8 0 0:8 / .16"

static void put_line(const char *name, const char *line) {
    struct bytes file = bytes_of(line);
    malformed_write(name, file.at, file.n);
    free(file.at);
}

static void put_parts(const char *name, const char *first, const char *second) {
    char path[64];
    malformed_make_folder(name);
    snprintf(path, sizeof path, "%s/x-00001-of-00002.gguf", name);
    put_line(path, first);
    snprintf(path, sizeof path, "%s/x-00002-of-00002.gguf", name);
    if (second) put_line(path, second);
}

static const struct {
    const char *id, *first, *second;
    enum status code;
    const char *word;
} splits[] = {
    {"two parts", PART(0, 2, 2, "a"), PART(1, 2, 2, "b"), OK, NULL},
    {"G41 one is absent", PART(0, 2, 2, "a"), NULL, MISSING, "part 2 of 2"},
    {"G41 numbers repeat", PART(0, 2, 2, "a"), PART(0, 2, 2, "b"), DUP, "same number"},
    {"G41 another's part", PART(0, 2, 2, "a"), PART(2, 3, 2, "b"), META, "part 3 of 3"},
    {"G41 a name in both", PART(0, 2, 2, "a"), PART(1, 2, 2, "a"), DUP, "'a'"},
    {"G41 fewer tensors", PART(0, 2, 3, "a"), PART(1, 2, 3, "b"), MISSING, "expected 3"},
    {"G41 not the first", PART(1, 2, 2, "a"), PART(1, 2, 2, "b"), UNSUPPORTED, "part 2 of 2"},
    {"G41 three parts", PART(0, 3, 2, "a"), PART(1, 3, 2, "b"), MISSING, "-00001-of-00003.gguf"},
    {"G41 300 parts", PART(0, 300, 2, "a"), PART(1, 300, 2, "b"), META, "0 to 256"},
    {"G41 second is broken", PART(0, 2, 2, "a"), "'GGUF", TRUNC, "00002-of"},
};

TEST(test_split) {
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char name[32], path[64];
        snprintf(name, sizeof name, "split%zu", i);
        put_parts(name, splits[i].first, splits[i].second);
        snprintf(path, sizeof path, "%s/x-00001-of-00002.gguf", name);
        expect_gguf(splits[i].id, path, splits[i].code, splits[i].word);
        malformed_expect(component_open, splits[i].id, name, splits[i].code, splits[i].word);
    }
    struct tensor_index index = malformed_index(component_open, malformed_path("split0"));
    assert_true(index.n_sources == 2 && index.n_entries == 2);
    assert_non_null(strstr(index.sources[index_find(&index, "b")->source].path, "00002-of"));
    malformed_close(&index);
    put_line("split0/named-otherwise.gguf", PART(0, 2, 2, "a"));
    expect_gguf("no number in its name", "split0/named-otherwise.gguf", MISSING, "-00001-of-00002.gguf");
}

TEST(test_component_found_in_folder) {
    static const char one[] = ONE_FILE(FOUR("a", 0));
    malformed_make_folder("folder");
    put_line("folder/x-00002-of-00002.gguf", one);
    malformed_expect(component_open, "a later part", "folder", MISSING, "first part");
    put_line("folder/x.gguf", one);
    malformed_expect(component_open, "one", "folder", OK, NULL);
    put_line("folder/y.gguf", one);
    malformed_expect(component_open, "two", "folder", UNSUPPORTED, "y.gguf");
    malformed_write("folder/x.fp16.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    malformed_expect(component_open, "safetensors first", "folder", OK, NULL);
    put_line("folder/named.safetensors", one);
    malformed_expect(component_open, "by its magic", "folder/named.safetensors", OK, NULL);
    malformed_write("folder/named.gguf", "\2\0\0\0\0\0\0\0{}..............", 24);
    malformed_expect(component_open, "not by its name", "folder/named.gguf", BADMAGIC, "a safetensors file");
}

TEST(test_candidate_file_names) {
    struct sys sys;
    sys_init_machine(&sys);
    assert_true(component_is_candidate("x.gguf") && component_is_candidate("x-00001-of-00003.gguf"));
    assert_false(component_is_candidate("x-00002-of-00003.gguf"));
    assert_true(gguf_is(&sys, types_file));
    assert_false(gguf_is(&sys, "test/golden/gguf_files.py"));
    assert_false(gguf_is(&sys, "test/golden"));
    assert_false(gguf_is(&sys, malformed_path("none")));
}

static float written[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static unsigned char blocks[2 * 34 * 3];
static const int32_t shape[4] = {5, -1, 0, 7};

static const struct gguf_metadata metadata[] = {
    {.key = "general.architecture", .kind = GGUF_STRING, .text = "lumina2"},
    {.key = "x.count", .kind = GGUF_U32, .number = 4e9},
    {.key = "x.below", .kind = GGUF_I32, .number = -5},
    {.key = "x.eps", .kind = GGUF_F32, .number = 1e-6},
    {.key = "x.on", .kind = GGUF_BOOL, .number = 1},
    {.key = "x.shape", .kind = GGUF_I32, .array = shape, .n = 4},
};

static struct named_tensor written_tensors[3];

static void describe_written(void) {
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (unsigned char)(7 * i);
    written_tensors[0] = (struct named_tensor){"w", tensor_make(written, DTYPE_F32, 2, (int32_t[]){2, 3})};
    written_tensors[1] = (struct named_tensor){"q", tensor_make(blocks, DTYPE_Q8_0, 2, (int32_t[]){3, 64})};
    written_tensors[2] = (struct named_tensor){"s", tensor_make(written, DTYPE_F32, 0, NULL)};
}

static enum status copy_piece(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    uint64_t *done = user;
    (void)e;
    memcpy(to, (const char *)written_tensors[i].tensor.data + done[i], bytes);
    done[i] += bytes;
    return OK;
}

static enum status write_three(struct sys *sys, bool made, struct error *e) {
    uint64_t done[3] = {0};
    struct tensor_maker maker = {done, copy_piece};
    return gguf_write_made(sys, malformed_path("out/w.gguf"), metadata, sizeof metadata / sizeof *metadata,
                           written_tensors, 3, made ? &maker : NULL, e);
}

static void expect_written_data(void) {
    unsigned char bytes[sizeof blocks];
    float floats[6];
    struct tensor_index index = malformed_index(gguf_open, malformed_path("out/w.gguf"));
    const struct index_entry *w = index_find(&index, "w"), *q = index_find(&index, "q");
    assert_true(w->rank == 2 && w->dim[0] == 2 && w->dim[1] == 3 && w->offset % 32 == 0);
    assert_true(q->dtype == DTYPE_Q8_0 && q->dim[0] == 3 && q->dim[1] == 64 && q->offset % 32 == 0);
    assert_true(index_find(&index, "s")->rank == 0);
    malformed_read(&index, w, floats);
    malformed_read(&index, q, bytes);
    assert_memory_equal(floats, written, sizeof written);
    assert_memory_equal(bytes, blocks, sizeof blocks);
    assert_string_equal(index.config,
                        "{\"general.architecture\":\"lumina2\",\"x.below\":-5,\"x.count\":4000000000,"
                        "\"x.eps\":9.9999999999999995e-7,\"x.on\":true,\"x.shape\":[5,-1,0,7]}");
    malformed_close(&index);
    assert_int_equal(malformed_size(malformed_path("out/w.gguf")) % 32, 0);
}

TEST(test_written_file_reads_back) {
    struct sys sys;
    struct error e = {0};
    sys_init_machine(&sys);
    malformed_make_folder("out");
    for (int made = 0; made < 2; made++) {
        assert_int_equal(write_three(&sys, made, &e), OK);
        expect_written_data();
    }
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

TEST(test_unwritable_metadata_refused) {
    struct sys sys;
    sys_init_machine(&sys);
    const struct tensor t = tensor_make(written, DTYPE_F32, 1, (int32_t[]){6});
    const struct tensor fp8 = tensor_make(written, DTYPE_F8_E4M3, 1, (int32_t[]){6});
    const struct tensor part = tensor_make(blocks, DTYPE_Q8_0, 2, (int32_t[]){2, 40});
    const struct {
        struct named_tensor tensors[2];
        const char *key;
        enum status code;
    } cases[] = {
        {{{"a", t}, {"a", t}}, "k", DUP},
        {{{"a", t}, {"", t}}, "k", META},
        {{{"a", t}, {"\xff", t}}, "k", UTF8},
        {{{"a", t}, {"b", fp8}}, "k", UNSUPPORTED},
        {{{"a", t}, {"b", part}}, "k", UNSUPPORTED},
        {{{"a", t}, {"b", t}}, "", META},
        {{{"a", t}, {"b", t}}, "other", DUP},
    };
    malformed_make_folder("unwritable");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e = {0};
        const struct gguf_metadata pairs[] = {{.key = "other", .kind = GGUF_BOOL},
                                              {.key = cases[i].key, .kind = GGUF_BOOL}};
        assert_int_equal(
            gguf_write_made(&sys, malformed_path("unwritable/a"), pairs, 2, cases[i].tensors, 2, NULL, &e),
            cases[i].code);
    }
    assert_int_equal(rmdir(malformed_path("unwritable")), 0);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

static enum status act_open(struct sys *sys, struct error *e) {
    struct tensor_index index;
    if (gguf_open(sys, types_file, &index, e) == OK) index_destroy(&index);
    return e->code;
}

static enum status act_open_parts(struct sys *sys, struct error *e) {
    struct tensor_index index;
    if (component_open(sys, malformed_path("split0/x-00001-of-00002.gguf"), &index, e) == OK)
        index_destroy(&index);
    return e->code;
}

static enum status act_write(struct sys *sys, struct error *e) {
    return write_three(sys, true, e);
}

TEST(test_no_leak_after_fault) {
    assert_true(malformed_fail_calls(act_open, NULL) + malformed_fail_calls(act_open_parts, NULL) +
                    malformed_fail_calls(act_write, expect_written_data) >
                100);
    assert_int_equal(remove(malformed_path("out/w.gguf")), 0);
    assert_int_equal(rmdir(malformed_path("out")), 0);
}

static void *(*reserve_any)(struct sys *sys, size_t bytes);

static void *reserve_little(struct sys *sys, size_t bytes) {
    return bytes > 80 << 20 ? NULL : reserve_any(sys, bytes);
}

/* With little address space a file with a short header opens, and one with a long header is refused. */
TEST(test_address_space_limit) {
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&sys);
    reserve_any = sys.reserve;
    sys.reserve = reserve_little;
    put_sparse("large.gguf", HEAD(1, 0) INFO("a", "1 0x4000000:8", 0, 0), 300 << 20);
    assert_int_equal(gguf_open(&sys, malformed_path("large.gguf"), &index, &e), OK);
    index_destroy(&index);
    put_sparse("large.gguf", HEAD(0, 1) "$x 9 0 100000000:8", 300 << 20);
    assert_int_equal(gguf_open(&sys, malformed_path("large.gguf"), &index, &e), MEMORY);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
}

int main(void) {
    describe_written();
    return tests_main(malformed_set_up, malformed_tear_down);
}
