/* Tokenizers in GGUF metadata: ids against the reference's, and metadata with one defect each (t12: the
 * number of the defect).
 *
 * The expected ids are those that the same tokenizers give when stored in other formats
 * (test/golden/tokens_gguf.py made the files). Files are built key by key from two small tokenizers; defects
 * of GGUF itself: test_gguf.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "test/lib/tokenizer_kinds.h"

#include "loaders/gguf/gguf.h"

struct bytes {
    char at[1 << 16];
    size_t n;
};

static void add(struct bytes *b, const void *from, size_t n) {
    assert_true(b->n + n <= sizeof b->at);
    if (n) memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void add_u32(struct bytes *b, uint32_t value) {
    add(b, &value, sizeof value);
}

static void add_u64(struct bytes *b, uint64_t value) {
    add(b, &value, sizeof value);
}

static void add_string(struct bytes *b, const char *text, size_t n) {
    add_u64(b, n);
    add(b, text, n);
}

static struct bytes keys;
static uint64_t n_keys;

static void begin_key(const char *key, uint32_t kind) {
    add_string(&keys, key, strlen(key));
    add_u32(&keys, kind);
    n_keys++;
}

static void put_string(const char *key, const char *text) {
    if (!text) return;
    begin_key(key, GGUF_STRING);
    add_string(&keys, text, strlen(text));
}

static void begin_array(const char *key, uint32_t kind, uint64_t n) {
    begin_key(key, GGUF_ARRAY);
    add_u32(&keys, kind);
    add_u64(&keys, n);
}

static void write_keys(void) {
    static struct bytes file;
    file.n = 0;
    add(&file, "GGUF\3\0\0\0", 8);
    add_u64(&file, 0);
    add_u64(&file, n_keys);
    add(&file, keys.at, keys.n);
    tokenizer_put_bytes("tokenizer.gguf", file.at, file.n);
}

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, NOT_USED, BYTE };

struct token {
    const char *text;
    int type;
    float score;
};

/* A test's changes to a small tokenizer; NULL, 0: unchanged. */
struct recipe {
    const char *architecture, *model, *pre;
    const struct token *token;
    const char *merge;
    int types_less, scores_less;
    int types_kind, tokens_kind;
    bool no_tokens, no_merges, no_scores, no_types, no_unknown;
    bool no_prefix; /* add_space_prefix is false */
    bool few;       /* the vocabulary has three byte tokens instead of 256 */
    int table_kind;
    const char *table;
    size_t table_bytes;
};

/* GPT-2's bytes_to_unicode, written independently of the loader. */
static int alphabet(int byte) {
    if (byte <= 32) return 256 + byte;
    if (byte == 0x7F) return 289;
    if (byte >= 0x80 && byte <= 0xA0) return 290 + byte - 0x80;
    return byte == 0xAD ? 323 : byte;
}

enum { AB = 256, ABC, END, THINK, SPARE, MORE, TOKENS_MAX = 300 };

static char byte_texts[256][3];

static int bpe_tokens(const struct recipe *r, struct token *tokens) {
    int n = 0;
    for (int byte = r->few ? 'a' : 0; byte < (r->few ? 'd' : 256); byte++) {
        int code = alphabet(byte);
        if (code < 128)
            snprintf(byte_texts[n], 3, "%c", code);
        else
            snprintf(byte_texts[n], 3, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 63));
        tokens[n] = (struct token){byte_texts[n], NORMAL, 0};
        n++;
    }
    tokens[n++] = (struct token){"ab", NORMAL, 0};
    tokens[n++] = (struct token){"abc", NORMAL, 0};
    tokens[n++] = (struct token){"<|end|>", CONTROL, 0};
    tokens[n++] = (struct token){"<think>", USER, 0};
    tokens[n++] = (struct token){"[PAD260]", NOT_USED, 0};
    if (r->token) tokens[n++] = *r->token;
    tokens[n++] = (struct token){"[PAD]", NOT_USED, 0};
    tokens[n++] = (struct token){"[PAD]", NOT_USED, 0};
    return n;
}

static int unigram_tokens(const struct recipe *r, struct token *tokens) {
    static const struct token pieces[] = {
        {"<pad>", CONTROL, 0}, {"</s>", CONTROL, 0}, {"<unk>", UNKNOWN, 0}, {"\xe2\x96\x81", NORMAL, -2},
        {"a", NORMAL, -3},     {"b", NORMAL, -3},    {"ab", NORMAL, -4},
    };
    int n = sizeof pieces / sizeof *pieces;
    memcpy(tokens, pieces, sizeof pieces);
    if (r->no_unknown) tokens[2].type = NORMAL;
    if (r->token) tokens[n++] = *r->token;
    for (int i = 0; i < 100; i++) tokens[n++] = (struct token){"[PAD]", NOT_USED, -10000};
    return n;
}

static void put_tokens(const struct recipe *r, const struct token *tokens, int n) {
    if (!r->no_tokens) begin_array("tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)n);
    for (int i = 0; i < n && !r->no_tokens; i++) add_string(&keys, tokens[i].text, strlen(tokens[i].text));
    if (!r->no_types)
        begin_array("tokenizer.ggml.token_type", r->types_kind ? (uint32_t)r->types_kind : GGUF_I32,
                    (uint64_t)(n - r->types_less));
    for (int i = 0; i < n - r->types_less && !r->no_types; i++) add_u32(&keys, (uint32_t)tokens[i].type);
}

static void write_bpe(struct recipe r) {
    struct token tokens[TOKENS_MAX];
    int n = bpe_tokens(&r, tokens);
    keys.n = n_keys = 0;
    put_string("general.architecture", r.architecture);
    put_string("tokenizer.ggml.model", r.model ? r.model : "gpt2");
    put_string("tokenizer.ggml.pre", r.pre ? r.pre : "qwen2");
    put_tokens(&r, tokens, n);
    if (!r.no_merges) begin_array("tokenizer.ggml.merges", GGUF_STRING, r.merge ? 3 : 2);
    if (!r.no_merges) add_string(&keys, "a b", 3);
    if (!r.no_merges) add_string(&keys, "ab c", 4);
    if (r.merge) add_string(&keys, r.merge, strlen(r.merge));
    write_keys();
}

static void write_unigram(struct recipe r) {
    struct token tokens[TOKENS_MAX];
    int n = unigram_tokens(&r, tokens);
    keys.n = n_keys = 0;
    put_string("tokenizer.ggml.model", "t5");
    put_tokens(&r, tokens, n);
    if (!r.no_scores) begin_array("tokenizer.ggml.scores", GGUF_F32, (uint64_t)(n - r.scores_less));
    for (int i = 0; i < n - r.scores_less && !r.no_scores; i++) add(&keys, &tokens[i].score, 4);
    begin_key("tokenizer.ggml.add_space_prefix", GGUF_BOOL);
    add(&keys, r.no_prefix ? "" : "\1", 1);
    if (r.table) {
        begin_array("tokenizer.ggml.precompiled_charsmap", r.table_kind ? (uint32_t)r.table_kind : GGUF_U8,
                    r.table_bytes);
        add(&keys, r.table, r.table_bytes);
    }
    write_keys();
}

static const char *gguf_path(void) {
    static char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.gguf", tokenizer_folder);
    return path;
}

static struct tokenizer *open_written(const char *kind) {
    struct tokenizer *t;
    struct error e;
    char line[1024];
    if (tokenizer_open_path(gguf_path(), &t, &e)) fail_msg("%s", error_line(&e, line, sizeof line));
    assert_string_equal(tokenizer_kind(t), kind);
    return t;
}

static void expect_bpe_failure(struct recipe r, enum status code, const char *says) {
    write_bpe(r);
    expect_open_failure(gguf_path(), code, says);
}

static void expect_unigram_failure(struct recipe r, enum status code, const char *says) {
    write_unigram(r);
    expect_open_failure(gguf_path(), code, says);
}

/* Opens a GGUF tokenizer and expects the ids of the same tokenizer in another file format. */
static void compare_golden(const char *name, const char *cases) {
    char file[64], path[128];
    snprintf(file, sizeof file, "%s.gguf", name);
    tokenizer_unpack("gguf", file);
    snprintf(path, sizeof path, "%s/%s", tokenizer_folder, file);
    if (strstr(cases, "tokenizer_cases")) {
        compare_cases(path, cases);
    } else {
        char unpacked[128];
        tokenizer_unpack(cases, "cases.json");
        snprintf(unpacked, sizeof unpacked, "%s/cases.json", tokenizer_folder);
        compare_cases(path, unpacked);
        unlink(unpacked);
    }
    unlink(path);
}

static void test_goldens(void **state) {
    (void)state;
    compare_golden("qwen", "test/golden/zimage_a/tokenizer_cases.json");
    compare_golden("t5", "t5_json");
    compare_golden("t5_added", "t5_json");
}

static void test_bpe_ids(void **state) {
    (void)state;
    write_bpe((struct recipe){0});
    struct tokenizer *t = open_written("BPE");
    assert_int_equal(tokenizer_size(t), THINK + 1);
    assert_int_equal(tokenizer_special(t, "<|end|>"), END);
    assert_int_equal(tokenizer_special(t, "<think>"), THINK);
    assert_int_equal(tokenizer_special(t, "[PAD260]"), -1);
    IDS(t, "abc<|end|>ab", ABC, END, AB);
    IDS(t, "a\xc3\xa9", 'a', 0xC3, 0xA9);
    IDS(t, "e\xcc\x81", 0xC3, 0xA9); /* NFC composes the two characters */
    IDS(t, "[PAD]", '[', 'P', 'A', 'D', ']');
    tokenizer_close_clean(t);
}

static void test_unigram_ids(void **state) {
    (void)state;
    write_unigram((struct recipe){0});
    struct tokenizer *t = open_written("unigram");
    assert_int_equal(tokenizer_size(t), 107);
    assert_int_equal(tokenizer_special(t, "</s>"), 1);
    assert_int_equal(tokenizer_special(t, "<extra_id_0>"), 106);
    IDS(t, "ab  b</s><extra_id_99>", 3, 6, 3, 5, 1, 7);
    tokenizer_close_clean(t);
    /* A user-defined token's score must not change the penalty of unknown characters. */
    write_unigram((struct recipe){.token = &(struct token){"<mine>", USER, -1000}});
    t = open_written("unigram");
    assert_int_equal(tokenizer_special(t, "<mine>"), 7);
    assert_int_equal(tokenizer_size(t), 108);
    IDS(t, "a<mine>x", 3, 4, 7, 3, 2);
    tokenizer_close_clean(t);
}

/* The pre-tokenizer is the model's default if the file names none. */
static void test_pre_tokenizer(void **state) {
    (void)state;
    static const char says[] = "tokenizer.ggml.pre is not supported";
    write_bpe((struct recipe){.pre = "default", .architecture = "qwen3"});
    tokenizer_close_clean(open_written("BPE"));
    write_bpe((struct recipe){.pre = "", .architecture = "qwen2"});
    tokenizer_close_clean(open_written("BPE"));
    expect_bpe_failure((struct recipe){.pre = "default"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.pre = "default", .architecture = "llama"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.pre = "llama-bpe", .architecture = "qwen3"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.model = "llama"}, UNSUPPORTED, "found \"llama\"");
    expect_bpe_failure((struct recipe){.model = ""}, MISSING, "tokenizer.ggml.model is missing");
}

static void test_t12_lengths(void **state) {
    (void)state;
    static const char says[] = "has a different length than the list of tokens";
    expect_bpe_failure((struct recipe){.types_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.types_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.scores_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.scores_less = 107}, META, says);
}

static void test_t12_byte_tokens(void **state) {
    (void)state;
    static const char *const wrong[] = {"<0x-1>", "<0xZZ>", "<0x1>", "<0x111>", "0x41", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct token token = {wrong[i], BYTE, 0};
        expect_bpe_failure((struct recipe){.token = &token}, META, "a token for a byte is invalid");
        expect_unigram_failure((struct recipe){.token = &token}, META, "a token for a byte is invalid");
    }
    struct token byte = {"<0x41>", BYTE, 0};
    expect_bpe_failure((struct recipe){.token = &byte}, UNSUPPORTED, "<0x41>");
    write_unigram((struct recipe){.token = &byte});
    tokenizer_close_clean(open_written("unigram"));
}

static void test_unknown_kinds_refused(void **state) {
    (void)state;
    expect_bpe_failure((struct recipe){.no_tokens = true}, MISSING, "tokenizer.ggml.tokens is missing");
    expect_bpe_failure((struct recipe){.no_merges = true}, MISSING, "tokenizer.ggml.merges is missing");
    expect_bpe_failure((struct recipe){.types_kind = GGUF_F32}, META, "an unknown token type");
    expect_unigram_failure((struct recipe){.no_scores = true}, MISSING, "tokenizer.ggml.scores is missing");
    expect_unigram_failure((struct recipe){.no_prefix = true}, UNSUPPORTED, "add_space_prefix");
    expect_unigram_failure((struct recipe){.no_unknown = true}, META, "the unknown piece's id");
    static const int types[] = {0, 7, -1, INT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct token token = {"x!", types[i], 0};
        expect_bpe_failure((struct recipe){.token = &token}, META, "an unknown token type");
        expect_unigram_failure((struct recipe){.token = &token}, META, "an unknown token type");
    }
    /* Without token types all tokens are normal, none special. */
    write_bpe((struct recipe){.no_types = true, .token = &(struct token){"y!", NORMAL, 0}});
    expect_open_failure(gguf_path(), DUP, "\"[PAD]\"");
}

static void test_malformed_tokens_refused(void **state) {
    (void)state;
    char longest[600];
    memset(longest, 'x', sizeof longest);
    longest[599] = 0;
    expect_bpe_failure((struct recipe){.token = &(struct token){"abc", NORMAL, 0}}, DUP, "\"abc\"");
    expect_bpe_failure((struct recipe){.token = &(struct token){"", CONTROL, 0}}, META, "added token");
    expect_bpe_failure((struct recipe){.token = &(struct token){longest, CONTROL, 0}}, LIMIT, "added token");
    expect_bpe_failure((struct recipe){.token = &(struct token){"\xff", CONTROL, 0}}, META, "added token");
    expect_unigram_failure((struct recipe){.token = &(struct token){"a", NORMAL, 0}}, DUP, "\"a\"");
    expect_unigram_failure((struct recipe){.token = &(struct token){"", NORMAL, 0}}, META, "is empty");
    expect_unigram_failure((struct recipe){.token = &(struct token){longest, NORMAL, 0}}, LIMIT, "too long");
    expect_unigram_failure((struct recipe){.token = &(struct token){"\xff", NORMAL, 0}}, UTF8, "not UTF-8");
    expect_unigram_failure((struct recipe){.token = &(struct token){"x", NORMAL, NAN}}, META, "score");
    expect_unigram_failure((struct recipe){.token = &(struct token){"x", UNKNOWN, 0}}, META, "two unknown");
    /* A token may be invalid UTF-8, because no text ever produces such a token. */
    write_bpe((struct recipe){.token = &(struct token){"\xff", NORMAL, 0}});
    struct tokenizer *t = open_written("BPE");
    assert_int_equal(tokenizer_size(t), MORE + 1);
    tokenizer_close_clean(t);
}

static void test_malformed_merges_refused(void **state) {
    (void)state;
    expect_bpe_failure((struct recipe){.merge = "ab"}, META, "does not have two parts");
    expect_bpe_failure((struct recipe){.merge = "a b c"}, META, "does not have two parts");
    expect_bpe_failure((struct recipe){.merge = "a zz"}, META, "not in the vocabulary");
    expect_bpe_failure((struct recipe){.merge = "b c"}, META, "a text that is not in the vocabulary");
    expect_bpe_failure((struct recipe){.merge = "<|end|> <|end|>"}, META, "longer than any token");
}

static void test_malformed_character_map_refused(void **state) {
    (void)state;
    expect_unigram_failure((struct recipe){.table = "abc", .table_bytes = 3}, BOUNDS, "normalisation table");
    expect_unigram_failure((struct recipe){.table = "\x7f\0\0\0abcd", .table_bytes = 8}, BOUNDS,
                           "an invalid length");
    expect_unigram_failure((struct recipe){.table = "\1\1", .table_bytes = 2, .table_kind = GGUF_BOOL}, META,
                           "not an array of bytes");
}

/* Every truncation must fail, and no changed byte may cause worse than an error. */
static void test_damage_never_crashes(void **state) {
    (void)state;
    for (int unigram = 0; unigram < 2; unigram++) {
        unigram ? write_unigram((struct recipe){0}) : write_bpe((struct recipe){.few = true});
        static char file[1 << 16], changed[1 << 16];
        FILE *from = fopen(gguf_path(), "rb");
        assert_non_null(from);
        size_t n = fread(file, 1, sizeof file, from);
        assert_int_equal(fclose(from), 0);
        for (size_t i = 0; i < n; i++) {
            struct tokenizer *t;
            struct error e;
            tokenizer_put_bytes("tokenizer.gguf", file, i);
            assert_int_not_equal(tokenizer_open_path(gguf_path(), &t, &e), OK);
            memcpy(changed, file, n);
            changed[i] ^= (char)(1 + i % 255);
            tokenizer_put_bytes("tokenizer.gguf", changed, n);
            if (tokenizer_open_path(gguf_path(), &t, &e) == OK) tokenizer_close_clean(t);
        }
    }
}

static void test_every_allocation_fails(void **state) {
    (void)state;
    write_bpe((struct recipe){0});
    expect_memory_failures(gguf_path(), "abc<|end|> d");
    write_unigram((struct recipe){0});
    expect_memory_failures(gguf_path(), "ab <extra_id_3>b");
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_bpe_ids),
        cmocka_unit_test(test_unigram_ids),
        cmocka_unit_test(test_pre_tokenizer),
        cmocka_unit_test(test_t12_lengths),
        cmocka_unit_test(test_t12_byte_tokens),
        cmocka_unit_test(test_unknown_kinds_refused),
        cmocka_unit_test(test_malformed_tokens_refused),
        cmocka_unit_test(test_malformed_merges_refused),
        cmocka_unit_test(test_malformed_character_map_refused),
        cmocka_unit_test(test_damage_never_crashes),
        cmocka_unit_test(test_every_allocation_fails),
    };
    int n = sizeof tests / sizeof *tests,
        failed = cmocka_run_group_tests(tests, tokenizer_make_folder, tokenizer_remove_folder);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
