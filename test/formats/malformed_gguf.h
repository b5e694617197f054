/* Malformed GGUF files, each with one defect, for test_gguf.c. Names of tests and rows begin with the number
 * of the defect (G01 ...).
 *
 * Each file is opened twice: with counted memory, and with a header buffer of exactly the requested size, so
 * that a sanitizer detects reads beyond the buffer. Small files are also opened truncated at every byte.
 *
 * Split files (G41): test_gguf.c. Architectures of models (G39): test/models/layouts/gguf.txt. Dequantised
 * values (G42): test_dequantise.c. */
#ifndef SLUICE_TEST_MALFORMED_GGUF_H
#define SLUICE_TEST_MALFORMED_GGUF_H

#include "loaders/gguf/gguf.h"
#include "test/lib/malformed_files.h"

#include <time.h>

#define HEAD(n_tensors, n_pairs) "'GGUF 3 " #n_tensors ":8 " #n_pairs ":8 "
/* A tensor entry: name, dimensions (fastest first) after their number, type, offset. */
#define INFO(name, dims, type, offset) "$" name " " dims " " #type " " #offset ":8 "
/* Text of a tensor of four floats. */
#define FOUR(name, offset) INFO(name, "1 4:8", 0, offset)
#define ONE_FILE(info)     HEAD(1, 0) info "/ .16 "
/* Text of a file with one metadata pair and one tensor. */
#define WITH(pair)       HEAD(1, 1) pair FOUR("a", 0) "/ .16 "
#define U32(key, number) "$" key " 4 " #number " "

enum kind_in_lines { U8 = 0, BOOL = 7, STRING = 8, ARRAY = 9 };

struct row_of_gguf {
    const char *id, *line;
    enum status code;
    const char *word; /* word that the error message must have; NULL: any message */
    size_t slack;     /* bytes of padding at the file's end that may be cut off */
};

static const struct row_of_gguf gguf_rows[] = {
    {"four floats", ONE_FILE(FOUR("a", 0)), OK, NULL, 0},
    {"nothing", HEAD(0, 0), OK, NULL, 0},
    {"version 2", "'GGUF 2 1:8 0:8 " FOUR("a", 0) "/ .16", OK, NULL, 0},
    {"G03 version 0", "'GGUF 0 0:8 0:8", VERSION, "expected 2 or 3", 0},
    {"G03 version 1", "'GGUF 1 0 0 .8", VERSION, "expected 2 or 3", 0},
    {"G03 version 4", "'GGUF 4 0:8 0:8", VERSION, "expected 2 or 3", 0},
    {"G04 big-endian", "'GGUF 0x03000000 0:8 0:8", VERSION, "big-endian", 0},
    {"G05 2^63 tensors", "'GGUF 3 0x8000000000000000:8 0:8 .1000", LIMIT, "too many tensors", 0},
    {"G05 -1 tensors", "'GGUF 3 -1:8 0:8 .1000", LIMIT, "18446744073709551615", 0},
    {"G05 2^40 tensors", "'GGUF 3 0x10000000000:8 0:8 .1000", LIMIT, "100000", 0},
    {"G05 more than fit", "'GGUF 3 50000:8 0:8 .900", TRUNC, "50000 tensors", 0},
    {"G06 2^63 keys", "'GGUF 3 0:8 0x8000000000000000:8 .1000", LIMIT, "too many metadata keys", 0},
    {"G06 -1 keys", "'GGUF 3 0:8 -1:8 .1000", LIMIT, "18446744073709551615", 0},
    {"G06 2^32 keys", "'GGUF 3 0:8 0x100000000:8 .1000", LIMIT, "65536", 0},
    {"G06 more than fit", "'GGUF 3 0:8 65536:8 .900", TRUNC, "65536 keys", 0},
    {"G07 80 bytes each wrap", "'GGUF 3 0x0333333333333334:8 0:8 .1000", LIMIT, "tensors", 0},
    {"G07 64 bytes each wrap", "'GGUF 3 0:8 0x0400000000000001:8 .1000", LIMIT, "keys", 0},
    {"G08 a key more", HEAD(0, 2) U32("x", 1), TRUNC, "2 keys", 0},
    /* Header with wrong counts: a tensor is parsed as a metadata key, or a key as a tensor, until some field
       has an impossible value. */
    {"G08 a key more, then a tensor", HEAD(1, 2) U32("x", 1) INFO("a", "8 4000:8 1:8 1:8 1:8", 0, 0), BOUNDS,
     "byte 54", 0},
    {"G08 a key fewer", HEAD(1, 1) U32("x", 1) "$y 8 $text " FOUR("a", 0) "/ .16", LIMIT, "byte 62", 0},
    {"G09 key of 2^64-1", HEAD(0, 1) "-1:8 'general 4 1", BOUNDS, "18446744073709551615", 0},
    {"G09 key of 2^63", HEAD(0, 1) "0x8000000000000000:8 'general 4 1", BOUNDS, "9223372036854775808", 0},
    {"G09 key of the rest and 1", HEAD(0, 1) "16:8 'general 4 1", BOUNDS, "at most 15", 0},
    {"G10 key of 0", WITH("0:8 4 1 "), META, "empty", 0},
    {"G10 key with NUL", WITH("3:8 'a .1 'b 4 1 "), META, "NUL", 0},
    {"G10 key of 70,000", WITH("$x*70000 4 1 "), LIMIT, "70000", 0},
    {"G10 key of 65,535", WITH("$x*65535 4 1 "), OK, NULL, 0},
    {"G11 key twice", HEAD(0, 3) U32("x", 1) U32("y", 1) U32("x", 2), DUP, "'x'", 0},
    {"G12 kind 13", WITH("$x 13 0 "), TYPE, "13", 0},
    {"G12 kind -1", WITH("$x -1 0 "), TYPE, "4294967295", 0},
    {"G13 array of kind 13", WITH("$x 9 13 1:8 0 "), TYPE, "13", 0},
    {"G13 array of arrays", WITH("$x 9 9 1:8 0 0:8 "), UNSUPPORTED, "array of arrays", 0},
    {"G14 2^60 u8", WITH("$x 9 0 0x1000000000000000:8 "), BOUNDS, "1152921504606846976", 0},
    {"G14 2^60 strings", WITH("$x 9 8 0x1000000000000000:8 "), BOUNDS, "1152921504606846976", 0},
    {"G14 2^60 bools", WITH("$x 9 7 0x1000000000000000:8 "), BOUNDS, "1152921504606846976", 0},
    {"G14 2^61 u64", WITH("$x 9 10 0x2000000000000000:8 "), BOUNDS, "elements", 0},
    {"G15 third string too long", HEAD(0, 1) "$x 9 8 4:8 $a $b 100:8 'cc $dd", BOUNDS, "string of 100", 0},
    {"G15 string of 16 MB", WITH("$x 8 $y*16777216 "), OK, NULL, 0},
    {"G15 string of more", WITH("$x 8 $y*16777217 "), LIMIT, "16777217", 0},
    {"G16 bool 7", WITH("$x 7 7:1 "), META, "neither 0 nor 1", 0},
    {"G16 bool 7 in an array", WITH("$x 9 7 3:8 1:1 0:1 7:1 "), META, "neither 0 nor 1", 0},
    {"G17 architecture", WITH("$general.architecture 8 $\xff\xfe "), UTF8, "general.architecture", 0},
    {"G17 tokens", WITH("$tokenizer.ggml.tokens 9 8 2:8 $\xff\xfe $\xc3 "), OK, NULL, 0},
    {"G17 some string", WITH("$general.description 8 $\xff\xfe "), OK, NULL, 0},
    {"G17 key", WITH("$x\xff 4 1 "), UTF8, "key", 0},
    {"G17 name", ONE_FILE(FOUR("a\xff", 0)), UTF8, "name of a tensor", 0},
    {"G18 alignment 0", WITH(U32("general.alignment", 0)), ALIGN, "found 0", 0},
    {"G18 alignment 13", WITH(U32("general.alignment", 13)), ALIGN, "found 13", 0},
    {"G18 alignment 2^30", WITH(U32("general.alignment", 0x40000000)), ALIGN, "1073741824", 0},
    {"G18 alignment 2^31", WITH(U32("general.alignment", 0x80000000)), ALIGN, "2147483648", 0},
    {"G18 alignment 65,536", HEAD(1, 1) U32("general.alignment", 65536) FOUR("a", 0) "/65536 .16", OK, NULL,
     0},
    {"G18 alignment 1", HEAD(1, 1) U32("general.alignment", 1) FOUR("a", 0) ".16", OK, NULL, 0},
    {"G19 alignment of i32", WITH("$general.alignment 5 32 "), META, "must be u32", 0},
    {"G19 alignment of u64", WITH("$general.alignment 10 32:8 "), META, "must be u32", 0},
    {"G19 alignment of text", WITH("$general.alignment 8 $32 "), META, "must be u32", 0},
    {"G19 alignment of an array", WITH("$general.alignment 9 4 1:8 32 "), META, "must be u32", 0},
    {"G20 name of 0", ONE_FILE("0:8 1 4:8 0 0:8 "), META, "empty", 0},
    {"G20 name of 1,024", ONE_FILE(FOUR("x*1024", 0)), LIMIT, "1024", 0},
    {"G20 name of 1,023", ONE_FILE(FOUR("x*1023", 0)), OK, NULL, 0},
    {"G20 name of 2^64-1", ONE_FILE("-1:8 'a 1 4:8 0 0:8 "), BOUNDS, "18446744073709551615", 0},
    {"G20 name with NUL", ONE_FILE("3:8 'a .1 'b 1 4:8 0 0:8 "), META, "NUL", 0},
    {"G21 name of 100", ONE_FILE(FOUR("x*100", 0)), OK, NULL, 0},
    {"G22 name twice", HEAD(3, 0) FOUR("a", 0) FOUR("b", 32) FOUR("a", 64) "/ .80", DUP, "'a'", 0},
    {"G22 name and place twice", HEAD(2, 0) FOUR("a", 0) FOUR("a", 0) "/ .80", DUP, "'a'", 0},
    {"G23 scalar", HEAD(1, 0) INFO("a", "0", 0, 0) "/ .4", OK, NULL, 0},
    {"G23 scalar of a block", ONE_FILE(INFO("a", "0", 2, 0)), SHAPE, "Q4_0", 0},
    {"G23 5 dimensions", ONE_FILE(INFO("a", "5 2:8 1:8 2:8 1:8 1:8", 0, 0)), OK, NULL, 0},
    {"G23 8 dimensions", ONE_FILE(INFO("a", "8 2:8 1:8 2:8 1:8 1:8 1:8 1:8 1:8", 0, 0)), OK, NULL, 0},
    {"G23 9 dimensions", ONE_FILE(INFO("a", "9 4:8 1:8 1:8 1:8 1:8 1:8 1:8 1:8 1:8", 0, 0)), LIMIT,
     "dimensions", 0},
    {"G23 2^32-1 dimensions", ONE_FILE(INFO("a", "-1 4:8", 0, 0)), LIMIT, "4294967295", 0},
    {"G24 dimension 0", ONE_FILE(INFO("a", "2 0:8 4:8", 0, 0)), OK, NULL, 47},
    {"G24 dimension -1", ONE_FILE(INFO("a", "2 -1:8 4:8", 0, 0)), LIMIT, "18446744073709551615", 0},
    {"G24 dimension 2^31", ONE_FILE(INFO("a", "2 0x80000000:8 4:8", 0, 0)), LIMIT, "2147483648", 0},
    {"G25 {2^32,2^32}", ONE_FILE(INFO("a", "2 0x100000000:8 0x100000000:8", 0, 0)), LIMIT, "4294967296", 0},
    {"G26 {2^63-1,2}", ONE_FILE(INFO("a", "2 0x7fffffffffffffff:8 2:8", 24, 0)), LIMIT, "tensor 'a'", 0},
    {"G27 Q4_0", ONE_FILE(INFO("a", "1 5124095576030431008:8", 2, 0)), LIMIT, "5124095576030431008", 0},
    {"G28 65,537 four times", ONE_FILE(INFO("a", "4 65537:8 65537:8 65537:8 65537:8", 0, 0)), OVERFLOW,
     "63 bits", 0},
    {"G28 bytes overflow", ONE_FILE(INFO("a", "3 0x7fffffff:8 0x7fffffff:8 2:8", 28, 0)), OVERFLOW, "63 bits",
     0},
    {"G28 an overflowing product with a 0",
     ONE_FILE(INFO("a", "5 65537:8 65537:8 65537:8 65537:8 0:8", 0, 0)), OK, NULL, 23},
    {"G30 100 columns of Q4_K", ONE_FILE(INFO("a", "2 100:8 2:8", 12, 0)), SHAPE,
     "multiple of the block size 256", 0},
    {"G30 16 columns of Q4_0", ONE_FILE(INFO("a", "2 16:8 2:8", 2, 0)), SHAPE,
     "multiple of the block size 32", 0},
    {"G31 offset 8", ONE_FILE(FOUR("a", 8)), ALIGN, "found 8", 0},
    {"G32 offset 2^64-32", ONE_FILE(FOUR("a", 0xffffffffffffffe0)), BOUNDS, "past the end of the file", 0},
    {"G32 offset 2^63", ONE_FILE(FOUR("a", 0x8000000000000000)), BOUNDS, "past the end of the file", 0},
    {"G32 of nothing", ONE_FILE(INFO("a", "1 0:8", 0, 0xffffffffffffffe0)), BOUNDS,
     "past the end of the file", 0},
    {"G33 a byte short", HEAD(1, 0) FOUR("a", 0) "/ .15", TRUNC, "at least 80", 0},
    {"G33 a byte short, second", HEAD(2, 0) FOUR("a", 0) FOUR("b", 32) "/ .47", TRUNC, "'b'", 0},
    {"G33 no data", HEAD(1, 0) FOUR("a", 0), TRUNC, "at least 80", 0},
    {"G34 overlap", HEAD(2, 0) INFO("a", "1 16:8", 0, 0) INFO("b", "1 16:8", 0, 32) "/ .200", OVERLAP, "'b'",
     0},
    {"G34 same offset", HEAD(2, 0) FOUR("a", 0) FOUR("b", 0) "/ .200", OVERLAP, "overlaps another tensor", 0},
    {"G34 in any order", HEAD(2, 0) FOUR("a", 32) FOUR("b", 0) "/ .48", OK, NULL, 0},
    {"G34 nothing within", HEAD(2, 0) INFO("a", "1 16:8", 0, 0) INFO("b", "1 0:8", 0, 32) "/ .64", OK, NULL,
     0},
    {"G34 a hole", HEAD(2, 0) FOUR("a", 0) FOUR("b", 64) "/ .80", BOUNDS, "belong to no tensor", 0},
    {"G34 a hole at the start", ONE_FILE(FOUR("a", 32)) ".32", BOUNDS, "belong to no tensor", 0},
    {"G35 padding wraps", HEAD(2, 0) INFO("a", "1 0x3fffffffffffffff:8", 0, 0) FOUR("b", 0) "/ .16", LIMIT,
     "'a'", 0},
    {"G36 sum wraps",
     HEAD(2, 0) INFO("a", "1 0x7fffffffffffffc0:8", 24, 0)
         INFO("b", "1 0x7fffffffffffffc0:8", 24, 0x7fffffffffffffc0) "/ .16",
     LIMIT, "'a'", 0},
    {"G36 two of 2^62",
     HEAD(2, 0) INFO("a", "2 0x7fffffff:8 0x7fffffff:8", 24, 0)
         INFO("b", "2 0x7fffffff:8 0x7fffffff:8", 24, 0x3fffffff00000020) "/ .16",
     TRUNC, "'a'", 0},
    {"G37 padding", ONE_FILE(FOUR("a", 0)) "/", OK, NULL, 16},
    {"G37 junk", ONE_FILE(FOUR("a", 0)) "'junk .300", OK, NULL, 304},
    {"G38 no array", WITH("$comfy.gguf.orig_shape.a 5 4 "), META, "orig_shape.a", 0},
    {"G38 of f32", WITH("$comfy.gguf.orig_shape.a 9 6 2:8 0 0 "), META, "orig_shape.a", 0},
    {"G38 product", WITH("$comfy.gguf.orig_shape.a 9 5 2:8 2 3 "), META, "number of elements", 0},
    {"G38 negative", WITH("$comfy.gguf.orig_shape.a 9 5 2:8 -2 -2 "), META, "orig_shape.a", 0},
    {"G38 9 dimensions", WITH("$comfy.gguf.orig_shape.a 9 5 9:8 4 1 1 1 1 1 1 1 1 "), META, "at most 8", 0},
    {"G38 [2,2]", WITH("$comfy.gguf.orig_shape.a 9 5 2:8 2 2 "), OK, NULL, 0},
    {"G38 of no tensor here", WITH("$comfy.gguf.orig_shape.b 9 5 2:8 2 3 "), OK, NULL, 0},
    {"G39 architecture of u32", WITH(U32("general.architecture", 1)), META, "must be a string", 0},
    {"G39 architecture with NUL", WITH("$general.architecture 8 3:8 'a .1 'b "), META, "NUL", 0},
    {"G40 block_count 0", HEAD(0, 2) "$general.architecture 8 $x " U32("x.block_count", 0), META,
     "x.block_count", 0},
    {"G40 block_count 513", HEAD(0, 2) "$general.architecture 8 $x " U32("x.block_count", 513), META, "513",
     0},
    {"G40 block_count 2^32-1", HEAD(0, 2) "$general.architecture 8 $x " U32("x.block_count", -1), META,
     "4294967295", 0},
    {"G40 block_count f32", HEAD(0, 2) "$general.architecture 8 $x $x.block_count 6 0x3f800000", META,
     "found 1", 0},
    {"G40 block_count text", HEAD(0, 2) "$general.architecture 8 $x $x.block_count 8 $12", META,
     "found string", 0},
    {"G40 block_count 512", HEAD(0, 2) "$general.architecture 8 $x " U32("x.block_count", 512), OK, NULL, 0},
    {"G40 of another", HEAD(0, 2) "$general.architecture 8 $x " U32("y.block_count", 0), OK, NULL, 0},
    {"G42 scales",
     HEAD(3, 0) INFO("a", "1 32:8", 2, 0) INFO("b", "1 32:8", 39, 32)
         INFO("c", "1 64:8", 40, 64) "/ 0x7e00:2 .30 255:1 .31 0x7f:1 0xff:1 .34",
     OK, NULL, 0},
};

/* Allocates exactly the requested header size, so that a sanitizer detects reads beyond the header. */
static inline void *reserve_exactly(struct sys *sys, size_t bytes) {
    (void)sys;
    return calloc(1, bytes);
}

static inline int commit_nothing(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)sys, (void)line, (void)memory, (void)bytes;
    return 0;
}

static inline void decommit_nothing(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)sys, (void)line, (void)memory, (void)bytes;
}

static inline void unreserve_exactly(struct sys *sys, void *memory, size_t bytes) {
    (void)sys, (void)bytes;
    free(memory);
}

static inline enum status open_exactly(const char *path, struct error *e) {
    struct sys sys;
    struct tensor_index index;
    sys_init_machine(&sys);
    sys.reserve = reserve_exactly, sys.unreserve = unreserve_exactly;
    sys.commit = commit_nothing, sys.decommit = decommit_nothing;
    *e = (struct error){0};
    if (gguf_open(&sys, path, &index, e) == OK) index_destroy(&index);
    return e->code;
}

static inline void expect_gguf(const char *id, const char *name, enum status code, const char *word) {
    struct error e;
    malformed_expect(gguf_open, id, name, code, word);
    assert_int_equal(open_exactly(malformed_path(name), &e), code);
}

static inline void expect_line(const struct row_of_gguf *row) {
    struct bytes file = bytes_of(row->line);
    malformed_write("row.gguf", file.at, file.n);
    expect_gguf(row->id, "row.gguf", row->code, row->word);
    for (size_t n = file.n; file.n <= CUT_BYTES_MAX && n--;) {
        struct error e;
        assert_int_equal(truncate(malformed_path("row.gguf"), (off_t)n), 0);
        enum status code = open_exactly(malformed_path("row.gguf"), &e);
        assert_int_equal(malformed_open(gguf_open, malformed_path("row.gguf"), &e), code);
        if ((code == OK) != (row->code == OK && n + row->slack >= file.n))
            fail_msg("%s: %s when cut at byte %zu", row->id, status_name(code), n);
    }
    free(file.at);
}

TEST(test_gguf_rows) {
    for (size_t i = 0; i < sizeof gguf_rows / sizeof *gguf_rows; i++) expect_line(&gguf_rows[i]);
}

TEST(test_G01_short_files) {
    for (size_t n = 0; n < 24; n++) {
        malformed_write("short.gguf", "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", n);
        expect_gguf("G01", "short.gguf", TRUNC, "at least 24");
    }
}

TEST(test_G02_foreign_files) {
    static const struct {
        const char *text, *kind;
    } files[] = {
        {"FUGG", "46 55 47 47"},
        {"PK\3\4", "zip"},
        {"<!DOCTYPE html>", "HTML"},
        {"version https://git-lfs.github.com/spec/v1", "git-lfs"},
        {"\x80\x02}q", "pickle"},
        {"{\"a\": 1}", "JSON"},
        {"\x10\0\0\0\0\0\0\0{\"__me", "safetensors"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[64] = {0};
        memcpy(file, files[i].text, i == 6 ? 14 : strlen(files[i].text));
        malformed_write("foreign.gguf", file, sizeof file);
        expect_gguf("G02", "foreign.gguf", BADMAGIC, files[i].kind);
    }
}

TEST(test_G13_depth) {
    struct bytes file = bytes_of(HEAD(0, 1) "$x 9");
    for (int i = 0; i < 1000000; i++) {
        bytes_number(&file, ARRAY, 4);
        bytes_number(&file, 1, 8);
    }
    malformed_write("deep.gguf", file.at, file.n);
    expect_gguf("G13", "deep.gguf", UNSUPPORTED, "array of arrays");
    free(file.at);
}

TEST(test_G29_types) {
    static const int64_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38}, unknown[] = {43, 44, 0x7fffffff, -1};
    for (int i = 0; i < 12; i++) {
        char line[200];
        int64_t type = i < 8 ? removed[i] : unknown[i - 8];
        snprintf(line, sizeof line, HEAD(1, 0) "$a 1 256:8 %lld 0:8 / .1024", (long long)type);
        expect_line(&(struct row_of_gguf){"G29", line, TYPE, i < 8 ? "removed" : "unknown type", 0});
    }
}

/* Writes a sparse file that holds only the header on disk. */
static void put_sparse(const char *name, const char *line, int64_t bytes) {
    struct bytes file = bytes_of(line);
    malformed_write(name, file.at, file.n);
    assert_int_equal(truncate(malformed_path(name), bytes), 0);
    free(file.at);
}

TEST(test_long_arrays) {
    put_sparse("array.gguf", HEAD(0, 1) "$x 9 0 268435456:8", 300 << 20);
    malformed_expect(gguf_open, "256 MB of u8", "array.gguf", OK, NULL);
    put_sparse("array.gguf", HEAD(0, 1) "$x 9 0 268435457:8", 300 << 20);
    malformed_expect(gguf_open, "a byte more", "array.gguf", LIMIT, "array is too long");
    put_sparse("array.gguf", HEAD(0, 1) "$x 9 8 33554433:8", 300 << 20);
    malformed_expect(gguf_open, "empty strings", "array.gguf", LIMIT, "array is too long");
    put_sparse("array.gguf", HEAD(0, 3) "$x 9 0 268435456:8", (int64_t)2 << 30);
    malformed_expect(gguf_open, "the rest is zeros", "array.gguf", META, "empty");
}

static void put_many(const char *to, int n_pairs, int n_tensors) {
    struct bytes file = bytes_of("'GGUF 3");
    bytes_print_words(&file, "%d:8 %d:8", n_tensors, n_pairs);
    for (int i = 0; i < n_pairs; i++) {
        bytes_print_words(&file, "$k%d %d 1:1", i * 7919 % n_pairs, U8);
    }
    for (int i = 0; i < n_tensors; i++) {
        bytes_print_words(&file, "$t%d 0 0 %d:8", i * 7919 % n_tensors, 32 * i);
    }
    bytes_words(&file, "/");
    bytes_fill(&file, 0, 32 * (size_t)n_tensors);
    malformed_write(to, file.at, file.n);
    free(file.at);
}

/* Allocates pages that were touched before, because the time of page faults grows faster than the file. */
enum { PAGES_BYTES = 64 << 20 };
static char *pages, *pages_at;

static void *alloc_touched_pages(struct sys *sys, enum memory_line line, size_t bytes) {
    (void)sys, (void)line;
    char *memory = pages_at;
    pages_at += (bytes + 63) / 64 * 64;
    assert_true(pages_at <= pages + PAGES_BYTES);
    return memset(memory, 0, bytes);
}

static void *reserve_pages(struct sys *sys, size_t bytes) {
    return alloc_touched_pages(sys, LINE_HOST, bytes);
}

static void free_touched_pages(struct sys *sys, void *memory) {
    (void)sys, (void)memory;
}

static void unreserve_pages(struct sys *sys, void *memory, size_t bytes) {
    (void)sys, (void)memory, (void)bytes;
}

static double seconds_of(const char *name) {
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&sys);
    sys.alloc = alloc_touched_pages, sys.release = free_touched_pages;
    sys.reserve = reserve_pages, sys.unreserve = unreserve_pages;
    sys.commit = commit_nothing, sys.decommit = decommit_nothing;
    pages_at = pages;
    clock_t began = clock();
    assert_int_equal(gguf_open(&sys, malformed_path(name), &index, &e), OK);
    double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    index_destroy(&index);
    return seconds;
}

/* Checks that ten times as many entries take about ten times as long; a quadratic search would take a hundred
 * times as long. Each time is the minimum of several runs, against load on the machine. Measured 2026-11: 10
 * to 13 times, by processor and sanitizer. */
TEST(test_G43_caps) {
    double few = 1e9, most = 1e9;
    put_many("few.gguf", 6553, 10000);
    put_many("most.gguf", 65536, 100000);
    expect_gguf("G43", "most.gguf", OK, NULL);
    assert_non_null(pages = malloc(PAGES_BYTES));
    for (int i = 0; i < 40 && (i < 5 || most > 40 * few); i++) {
        double seconds = seconds_of("few.gguf");
        if (seconds < few) few = seconds;
        seconds = seconds_of("most.gguf");
        if (seconds < most) most = seconds;
    }
    free(pages);
    printf("G43: %.2f ms for a tenth of the maximum, %.2f ms for the maximum: %.1f times\n", 1e3 * few,
           1e3 * most, most / few);
    assert_true(most <= 40 * few);
    put_many("many.gguf", 65537, 0);
    expect_gguf("a key more", "many.gguf", LIMIT, "65536");
    put_many("many.gguf", 0, 100001);
    expect_gguf("a tensor more", "many.gguf", LIMIT, "100000");
}

#endif
