/* Malformed safetensors files, each with one defect, for test_loaders.c. Names of tests and rows begin with
 * the number of the defect (S01 ...). Small files are also opened truncated at every byte.
 *
 * Whole models with an unsupported element type or without tensors: test_user_errors.c. Random damage:
 * test_damaged_files.c. */
#ifndef SLUICE_TEST_MALFORMED_SAFETENSORS_H
#define SLUICE_TEST_MALFORMED_SAFETENSORS_H

#include "test/lib/malformed_files.h"

/* Writes a file of n header bytes after the declared header length, followed by zeros. Returns its size. */
static size_t put_file(const char *name, const void *header, size_t n, uint64_t length, size_t data) {
    struct bytes file = {0};
    bytes_number(&file, length, 8);
    bytes_put(&file, header, n);
    bytes_fill(&file, 0, data);
    malformed_write(name, file.at, file.n);
    free(file.at);
    return file.n;
}

static void put_tensors(const char *name, const char *header, size_t data) {
    put_file(name, header, strlen(header), strlen(header), data);
}

struct row {
    const char *id;
    const char *header;
    size_t data_bytes;
    enum status code;
    const char *word; /* word that the error message must have; NULL: any message */
};

/* Expects the result in the table row for a file with n header bytes and the given declared header length. A
 * small file must fail to open when cut at any byte, unless the cut removes only bytes that no tensor covers.
 */
static void expect_header(const struct row *row, size_t n, uint64_t length) {
    size_t bytes = put_file("row", row->header, n, length, row->data_bytes);
    malformed_expect(safetensors_open, row->id, "row", row->code, row->word);
    for (size_t cut = bytes; bytes <= CUT_BYTES_MAX && cut-- > 0;) {
        struct error e;
        assert_int_equal(truncate(malformed_path("row"), (off_t)cut), 0);
        if (malformed_open(safetensors_open, malformed_path("row"), &e) == OK && row->code != BOUNDS)
            fail_msg("%s: OK when cut at byte %zu", row->id, cut);
    }
}

#define F32_ENTRY(shape, offsets)  "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE_TENSOR(shape, offsets) "{\"a\":" F32_ENTRY(shape, offsets) "}"
#define OF_DTYPE(dtype, shape, offsets)                                                                      \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define WITH_METADATA(value) "{\"__metadata__\":" value ",\"a\":" F32_ENTRY("[4]", "[0,16]") "}"

static const struct row rows[] = {
    {"S02 N=0", "", 0, JSON, "begins with zeros"},
    {"S02 N=1", "{", 0, JSON, "byte 9"},
    {"S03 no JSON", "hello world", 0, JSON, "byte 8"},
    {"S03 cut in string", "{\"a", 0, JSON, "byte 11"},
    {"S03 cut in number", "{\"a\":{\"shape\":[1", 0, JSON, "byte 24"},
    {"S03 cut in escape", "{\"a\\", 0, JSON, "byte 12"},
    {"S03 bad escape", "{\"a\\x\":{}}", 0, JSON, "byte 12"},
    {"S03 bad value", "{\"a\":{\"dtype\":F32}}", 0, JSON, "tensor 'a'"},
    {"S03 trailing comma", "{\"a\":" F32_ENTRY("[4]", "[0,16]") ",}", 16, JSON, "a name"},
    {"S03 no comma", "{\"a\":" F32_ENTRY("[4]", "[0,16]") "\"b\":1}", 16, JSON, "tensor 'a'"},
    {"S03 no colon", "{\"a\"}", 0, JSON, "a colon"},
    {"S03 no value", "{\"a\":}", 0, JSON, NULL},
    {"S03 wrong bracket", "{\"a\":{\"dtype\":\"F32\"]}", 0, JSON, NULL},
    {"S04 invalid UTF-8", "{\"\xff\":" F32_ENTRY("[4]", "[0,16]") "}", 16, UTF8, NULL},
    {"S04 lone surrogate", "{\"\\uD800\":" F32_ENTRY("[4]", "[0,16]") "}", 16, UTF8, NULL},
    {"S04 two high surrogates", "{\"\\uD800\\uD800\":" F32_ENTRY("[4]", "[0,16]") "}", 16, UTF8, NULL},
    {"S04 byte order mark", "\xef\xbb\xbf{}", 0, JSON, "byte 8"},
    {"S04 NUL in name", "{\"a\\u0000b\":" F32_ENTRY("[4]", "[0,16]") "}", 16, META, NULL},
    {"S04 empty name", "{\"\":" F32_ENTRY("[4]", "[0,16]") "}", 16, META, "empty"},
    {"S05 leading space", "\t \r\n " ONE_TENSOR("[4]", "[0,16]"), 16, OK, NULL},
    {"S05 trailing space", ONE_TENSOR("[4]", "[0,16]") "\r\n\t ", 16, OK, NULL},
    {"S06 trailing garbage", ONE_TENSOR("[4]", "[0,16]") " x", 16, JSON, "byte 64"},
    {"S07 array", "[{}]", 0, JSON, "an object"},
    {"S07 string", "\"a\"", 0, JSON, "an object"},
    {"S08 depth 5", "{\"a\":{\"x\":[[[1]]]}}", 0, LIMIT, "nested"},
    {"S08 depth 4", "{\"a\":{\"x\":[[1]]}}", 0, META, "dtype"},
    {"S09 extra field", "{\"a\":{\"x\":[1,{}],\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, OK,
     NULL},
    {"S10 no dtype", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, META, "dtype"},
    {"S10 dtype number", OF_DTYPE("7", "[4]", "[0,16]"), 16, META, "dtype"},
    {"S10 F31", OF_DTYPE("\"F31\"", "[4]", "[0,16]"), 16, TYPE, "F31"},
    {"S10 f16", OF_DTYPE("\"f16\"", "[4]", "[0,8]"), 8, TYPE, "f16"},
    {"S10 entry is number", "{\"a\":1}", 0, META, "object"},
    {"S11 C64", OF_DTYPE("\"C64\"", "[2]", "[0,16]"), 16, OK, NULL},
    {"S11 F6", OF_DTYPE("\"F6_E2M3\"", "[4]", "[0,3]"), 3, OK, NULL},
    {"S11 FNUZ", OF_DTYPE("\"F8_E4M3FNUZ\"", "[4]", "[0,4]"), 4, OK, NULL},
    {"S11 E8M0", OF_DTYPE("\"F8_E8M0\"", "[4]", "[0,4]"), 4, OK, NULL},
    {"S12 no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16, META, "shape"},
    {"S12 shape string", ONE_TENSOR("\"4\"", "[0,16]"), 16, META, "shape"},
    {"S12 [-1]", ONE_TENSOR("[-1]", "[0,16]"), 16, SHAPE, "-1"},
    {"S12 [1.0]", ONE_TENSOR("[1.0]", "[0,4]"), 4, META, "integer"},
    {"S12 [1e3]", ONE_TENSOR("[1e3]", "[0,4000]"), 16, META, "integer"},
    {"S12 2^64", ONE_TENSOR("[18446744073709551616]", "[0,16]"), 16, LIMIT, "tensor 'a'"},
    {"S12 2^31", ONE_TENSOR("[2147483648]", "[0,16]"), 16, LIMIT, "2147483648"},
    {"S12 9 dims", ONE_TENSOR("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, LIMIT, "dimensions"},
    {"S12 8 dims", ONE_TENSOR("[1,1,1,1,1,1,1,1]", "[0,4]"), 4, OK, NULL},
    {"S13 [2,2^64-2]", ONE_TENSOR("[2,18446744073709551614]", "[0,16]"), 16, LIMIT, NULL},
    {"S13 [2,2^63-1]", ONE_TENSOR("[2,9223372036854775807]", "[0,16]"), 16, LIMIT, NULL},
    {"S13 zero first", ONE_TENSOR("[0,18446744073709551615,2]", "[0,0]"), 0, LIMIT, NULL},
    {"S13 zero last", ONE_TENSOR("[18446744073709551615,2,0]", "[0,0]"), 0, LIMIT, NULL},
    {"S13 product wraps", ONE_TENSOR("[65536,65536,65536,65536]", "[0,0]"), 0, OVERFLOW, NULL},
    {"S13 product wraps, zero last", ONE_TENSOR("[65536,65536,65536,65536,0]", "[0,0]"), 0, OK, NULL},
    {"S14 scalar", ONE_TENSOR("[]", "[0,4]"), 4, OK, NULL},
    {"S14 [2,0]", ONE_TENSOR("[2,0]", "[0,0]"), 0, OK, NULL},
    {"S15 one offset", ONE_TENSOR("[4]", "[16]"), 16, META, "data_offsets"},
    {"S15 three offsets", ONE_TENSOR("[4]", "[0,16,32]"), 16, META, "data_offsets"},
    {"S15 no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16, META, "data_offsets"},
    {"S15 end before begin", ONE_TENSOR("[4]", "[16,0]"), 16, BOUNDS, "[16, 0]"},
    {"S15 negative", ONE_TENSOR("[4]", "[-16,0]"), 16, BOUNDS, "-16"},
    {"S15 float", ONE_TENSOR("[4]", "[0,16.0]"), 16, META, "data_offsets"},
    {"S16 end beyond file", ONE_TENSOR("[4]", "[0,17]"), 16, BOUNDS, "17"},
    {"S16 end 2^63-1", ONE_TENSOR("[4]", "[0,9223372036854775807]"), 16, BOUNDS, NULL},
    {"S16 end 2^64-1", ONE_TENSOR("[4]", "[0,18446744073709551615]"), 16, BOUNDS, "63 bits"},
    {"S17 F64", OF_DTYPE("\"F64\"", "[4]", "[0,16]"), 16, SHAPE, "expected 32"},
    {"S18 12 bits", OF_DTYPE("\"F4\"", "[1,3]", "[0,2]"), 2, SHAPE, "12 bits"},
    {"S19 hole", "{\"a\":" F32_ENTRY("[1]", "[0,4]") ",\"b\":" F32_ENTRY("[1]", "[8,12]") "}", 12, BOUNDS,
     "belong to no tensor"},
    {"S19 hole at start", ONE_TENSOR("[1]", "[4,8]"), 8, BOUNDS, "belong to no tensor"},
    {"S20 overlap", "{\"a\":" F32_ENTRY("[2]", "[0,8]") ",\"b\":" F32_ENTRY("[2]", "[4,12]") "}", 12, OVERLAP,
     "'b'"},
    {"S21 trailing bytes", ONE_TENSOR("[4]", "[0,16]"), 20, BOUNDS, "belong to no tensor"},
    {"S21 file short", ONE_TENSOR("[4]", "[0,16]"), 14, TRUNC, "14"},
    {"S22 same name", "{\"a\":" F32_ENTRY("[1]", "[0,4]") ",\"a\":" F32_ENTRY("[1]", "[4,8]") "}", 8, DUP,
     "'a'"},
    {"S22 escaped", "{\"a\":" F32_ENTRY("[1]", "[0,4]") ",\"\\u0061\":" F32_ENTRY("[1]", "[4,8]") "}", 8, DUP,
     "'a'"},
    {"S23 dtype twice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, DUP, "dtype"},
    {"S24 number", WITH_METADATA("{\"k\":1}"), 16, META, "__metadata__"},
    {"S24 array", WITH_METADATA("{\"k\":[]}"), 16, META, "__metadata__"},
    {"S24 object", WITH_METADATA("{\"k\":{}}"), 16, META, "__metadata__"},
    {"S24 null value", WITH_METADATA("{\"k\":null}"), 16, META, "__metadata__"},
    {"S24 string", WITH_METADATA("\"k\""), 16, META, "__metadata__"},
    {"S24 twice", WITH_METADATA("{},\"__metadata__\":{}"), 16, DUP, "__metadata__"},
    {"S24 key twice", WITH_METADATA("{\"k\":\"1\",\"k\":\"2\"}"), 16, DUP, NULL},
    {"S24 null", WITH_METADATA("null"), 16, OK, NULL},
    {"S24 no null", WITH_METADATA("nul"), 16, JSON, NULL},
    {"S24 strings", WITH_METADATA("{\"format\":\"pt\"}"), 16, OK, NULL},
    {"S24 not UTF-8", WITH_METADATA("{\"k\":\"\xc0\x80\"}"), 16, UTF8, NULL},
    {"S27 any order", "{\"b\":" F32_ENTRY("[1]", "[4,8]") ",\"a\":" F32_ENTRY("[1]", "[0,4]") "}", 8, OK,
     NULL},
    {"S27 misaligned", ONE_TENSOR("[4]", "[0,16]") " ", 16, OK, NULL},
    {"S28 empty", "{}", 0, OK, NULL},
    {"S28 empty with data", "{}", 4, BOUNDS, "belong to no tensor"},
};

TEST(test_malformed_files_refused) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_header(&rows[i], strlen(rows[i].header), strlen(rows[i].header));
}

TEST(test_S02_lengths) {
    const char *one = ONE_TENSOR("[4]", "[0,16]");
    expect_header(&(struct row){"S02 N=file-7", one, 0, BOUNDS, "header extends"}, strlen(one),
                  strlen(one) + 1);
    expect_header(&(struct row){"S02 N=2^64-1", "{}", 0, LIMIT, "18446744073709551615"}, 2, UINT64_MAX);
    expect_header(&(struct row){"S02 N=100000001", "{}", 0, LIMIT, "100000001"}, 2, 100000001);
    expect_header(&(struct row){"S06 trailing NULs", "{}\0\0", 0, JSON, "0x00"}, 4, 4);
}

TEST(test_S01_short_files) {
    for (size_t n = 0; n < 8; n++) {
        malformed_write("short", "version ", n);
        malformed_expect(safetensors_open, "S01", "short", TRUNC, "at least 8");
    }
}

TEST(test_S02_other_formats_refused) {
    static const struct {
        const char *text, *kind;
    } files[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs"},
        {"<!DOCTYPE html><html></html>", "HTML"},
        {"PK\3\4\x2d\1\1\1\1\1\1\1", "zip"},
        {"\x80\x02}q\1X\1\1\1", "pickle"},
        {"GGUF\3\1\1\1\1", "GGUF"},
        {"{\"weight_map\": {}}", "JSON"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        malformed_write_text("foreign", files[i].text);
        malformed_expect(safetensors_open, "foreign", "foreign", BADMAGIC, files[i].kind);
    }
}

static void expect_text(const char *id, struct bytes *t, size_t data, enum status code, const char *word) {
    expect_header(&(struct row){id, (const char *)t->at, data, code, word}, t->n, t->n);
    free(t->at);
    *t = (struct bytes){0};
}

TEST(test_S08_depth) {
    struct bytes t = {0};
    bytes_print(&t, "{\"a\":{\"x\":");
    bytes_fill(&t, '[', 1000000);
    bytes_fill(&t, ']', 1000000);
    bytes_print(&t, "}}");
    expect_text("S08", &t, 0, LIMIT, "nested");
}

TEST(test_S20_same_place) {
    struct bytes t = {0};
    for (int i = 0; i < 1000; i++) bytes_print(&t, "%c\"t%d\":" F32_ENTRY("[4]", "[0,16]"), i ? ',' : '{', i);
    bytes_print(&t, "}");
    expect_text("S20", &t, 16, OVERLAP, NULL);
}

TEST(test_S25_metadata_string) {
    struct bytes t = {0};
    bytes_print(&t, "{\"__metadata__\":{\"k\":\"}{][\\\"\\\\");
    bytes_fill(&t, '}', 10 << 20);
    bytes_print(&t, "\"},\"a\":" F32_ENTRY("[4]", "[0,16]") "}");
    expect_text("S25", &t, 16, OK, NULL);
}

static void add_tensors(struct bytes *t, int n) {
    for (int i = 0; i < n; i++) bytes_print(t, "%c\"t%d\":" F32_ENTRY("[0]", "[0,0]"), i ? ',' : '{', i);
    bytes_print(t, "}");
}

TEST(test_S26_million_entries) {
    struct bytes t = {0};
    for (int i = 0; i < 1000000; i++)
        bytes_print(&t, "%c\"tensor.%07d\":" F32_ENTRY("[000000004]", "[0000000000,0000000016]"),
                    i ? ',' : '{', i);
    bytes_print(&t, "}");
    assert_true(t.n > 85000000 && t.n < 100000000);
    expect_text("S26", &t, 16, LIMIT, "100000"); /* the file is parsed within the hang guard's limit */
}

TEST(test_S26_maximum_entries) {
    struct bytes t = {0};
    add_tensors(&t, LOADER_TENSORS_MAX);
    expect_text("at the cap of tensors", &t, 0, OK, NULL);
    add_tensors(&t, LOADER_TENSORS_MAX + 1);
    expect_text("one tensor more", &t, 0, LIMIT, "100000");
    for (size_t n = LOADER_NAME_MAX; n <= LOADER_NAME_MAX + 1; n++) {
        bytes_print(&t, "{\"");
        bytes_fill(&t, 'n', n);
        bytes_print(&t, "\":" F32_ENTRY("[4]", "[0,16]") "}");
        expect_text("length of a name", &t, 16, n > LOADER_NAME_MAX ? LIMIT : OK, NULL);
    }
}

/* Tests JSON headers that would take gigabytes if parsed to a document tree. */
TEST(test_headers_that_inflate_memory) {
    struct bytes t = {0};
    bytes_print(&t, "{\"a\":{\"x\":\"");
    bytes_fill(&t, 'x', 90000000);
    bytes_print(&t, "\"}}");
    expect_text("long entry", &t, 0, LIMIT, "entry is too long");
    bytes_print(&t, "{\"__metadata__\":{\"x\":\"");
    bytes_fill(&t, 'x', 90000000);
    bytes_print(&t, "\"}}");
    expect_text("long metadata", &t, 0, LIMIT, "__metadata__ is too long");
    bytes_print(&t, "{\"__metadata__\":{");
    for (int i = 0; i < 70000; i++) bytes_print(&t, "%s\"%d\":\"\"", i ? "," : "", i);
    bytes_print(&t, "}}");
    expect_text("many metadata", &t, 0, LIMIT, "too many values");
    for (int i = 0; i < 17000; i++) {
        bytes_print(&t, "%c\"%d", i ? ',' : '{', i);
        bytes_fill(&t, 'n', 1000);
        bytes_print(&t, "\":" F32_ENTRY("[0]", "[0,0]"));
    }
    bytes_print(&t, "}");
    expect_text("long names", &t, 0, LIMIT, "names");
}

TEST(test_entry_fields) {
    put_tensors("entries",
                "{\"z.1\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                "\"b\\u002Fc\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}} ",
                16);
    struct tensor_index index = malformed_index(safetensors_open, malformed_path("entries"));
    assert_int_equal(index.n_entries, 2);
    assert_string_equal(index.entries[0].name, "b/c");
    assert_int_equal(index.entries[0].dtype, DTYPE_OTHER);
    const struct index_entry *z = index_find(&index, "z.1");
    assert_int_equal(z->dtype, DTYPE_BF16);
    assert_true(z->rank == 2 && z->dim[0] == 2 && z->dim[1] == 3 && z->source == 0);
    assert_int_equal(z->offset, malformed_size(malformed_path("entries")) - 12);
    assert_int_equal(z->bytes, 12);
    malformed_close(&index);
}

#endif
