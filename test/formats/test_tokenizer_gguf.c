/* Tokenizers in GGUF metadata: ids against the reference's, and metadata with one defect each (t12: the
 * number of the defect).
 *
 * The expected ids are those that the same tokenizers give when stored in other formats
 * (test/golden/tokens_gguf.py made the files). Files are built key by key from two small tokenizers; defects
 * of GGUF itself: test_gguf.c. */

#include "loaders/gguf/gguf.h"
#include "test/lib/tokenizer_files.h"

#include <math.h>

static const char tokenizer_gguf[] = "tokenizer.gguf";
static struct bytes keys;
static int n_keys;

static void put_string(const char *key, const char *text) {
    if (!text) return;
    bytes_print_words(&keys, "$%s %d $%s", key, GGUF_STRING, text);
    n_keys++;
}

static void begin_array(const char *key, int kind, int n) {
    bytes_print_words(&keys, "$%s %d %d %d:8", key, GGUF_ARRAY, kind, n);
    n_keys++;
}

static void add_string(const char *text) {
    bytes_number(&keys, strlen(text), 8);
    bytes_put(&keys, text, strlen(text));
}

/* Writes a GGUF file of the collected keys, and removes the keys. */
static void write_keys(void) {
    struct bytes file = {0};
    bytes_print_words(&file, "'GGUF 3 0:8 %d:8", n_keys);
    bytes_put(&file, keys.at, keys.n);
    malformed_write(tokenizer_gguf, file.at, file.n);
    free(file.at);
    keys.n = 0, n_keys = 0;
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

enum { AB = 256, ABC, END, THINK, SPARE, MORE, TOKENS_MAX = 300 };

static char byte_texts[256][3];

static int bpe_tokens(const struct recipe *r, struct token *tokens) {
    int n = 0;
    for (int byte = r->few ? 'a' : 0; byte < (r->few ? 'd' : 256); byte++) {
        int code = gpt2_character(byte);
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
    int n_types = n - r->types_less;
    if (!r->no_tokens) begin_array("tokenizer.ggml.tokens", GGUF_STRING, n);
    for (int i = 0; i < n && !r->no_tokens; i++) add_string(tokens[i].text);
    if (r->no_types) return;
    begin_array("tokenizer.ggml.token_type", r->types_kind ? r->types_kind : GGUF_I32, n_types);
    for (int i = 0; i < n_types; i++) bytes_number(&keys, (uint32_t)tokens[i].type, 4);
}

static void write_bpe(struct recipe r) {
    struct token tokens[TOKENS_MAX];
    int n = bpe_tokens(&r, tokens);
    put_string("general.architecture", r.architecture);
    put_string("tokenizer.ggml.model", r.model ? r.model : "gpt2");
    put_string("tokenizer.ggml.pre", r.pre ? r.pre : "qwen2");
    put_tokens(&r, tokens, n);
    if (!r.no_merges) begin_array("tokenizer.ggml.merges", GGUF_STRING, r.merge ? 3 : 2);
    if (!r.no_merges) add_string("a b"), add_string("ab c");
    if (r.merge) add_string(r.merge);
    write_keys();
}

static void write_unigram(struct recipe r) {
    struct token tokens[TOKENS_MAX];
    int n = unigram_tokens(&r, tokens);
    put_string("tokenizer.ggml.model", "t5");
    put_tokens(&r, tokens, n);
    if (!r.no_scores) begin_array("tokenizer.ggml.scores", GGUF_F32, n - r.scores_less);
    for (int i = 0; i < n - r.scores_less && !r.no_scores; i++) bytes_put(&keys, &tokens[i].score, 4);
    bytes_print_words(&keys, "$tokenizer.ggml.add_space_prefix %d %d:1", GGUF_BOOL, !r.no_prefix);
    n_keys++;
    if (r.table) {
        begin_array("tokenizer.ggml.precompiled_charsmap", r.table_kind ? r.table_kind : GGUF_U8,
                    (int)r.table_bytes);
        bytes_put(&keys, r.table, r.table_bytes);
    }
    write_keys();
}

static void expect_bpe_failure(struct recipe r, enum status code, const char *says) {
    write_bpe(r);
    expect_open_failure(tokenizer_gguf, code, says);
}

static void expect_unigram_failure(struct recipe r, enum status code, const char *says) {
    write_unigram(r);
    expect_open_failure(tokenizer_gguf, code, says);
}

/* Opens a GGUF tokenizer and expects the ids of the same tokenizer in another file format. */
static void compare_golden(const char *file, const char *cases) {
    tokenizer_unpack("gguf", file);
    if (strstr(cases, "tokenizer_cases")) {
        compare_cases(malformed_path(file), cases);
    } else {
        tokenizer_unpack(cases, "cases.json");
        compare_cases(malformed_path(file), malformed_path("cases.json"));
    }
}

TEST(goldens) {
    compare_golden("qwen.gguf", "test/golden/zimage_a/tokenizer_cases.json");
    compare_golden("t5.gguf", "t5_json");
    compare_golden("t5_added.gguf", "t5_json");
}

TEST(bpe_ids) {
    write_bpe((struct recipe){0});
    struct tokenizer *t = tokenizer_open_good(tokenizer_gguf, "BPE");
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

TEST(unigram_ids) {
    write_unigram((struct recipe){0});
    struct tokenizer *t = tokenizer_open_good(tokenizer_gguf, "unigram");
    assert_int_equal(tokenizer_size(t), 107);
    assert_int_equal(tokenizer_special(t, "</s>"), 1);
    assert_int_equal(tokenizer_special(t, "<extra_id_0>"), 106);
    IDS(t, "ab  b</s><extra_id_99>", 3, 6, 3, 5, 1, 7);
    tokenizer_close_clean(t);
    /* A user-defined token's score must not change the penalty of unknown characters. */
    write_unigram((struct recipe){.token = &(struct token){"<mine>", USER, -1000}});
    t = tokenizer_open_good(tokenizer_gguf, "unigram");
    assert_int_equal(tokenizer_special(t, "<mine>"), 7);
    assert_int_equal(tokenizer_size(t), 108);
    IDS(t, "a<mine>x", 3, 4, 7, 3, 2);
    tokenizer_close_clean(t);
}

/* The pre-tokenizer is the model's default if the file names none. */
TEST(pre_tokenizer) {
    static const char says[] = "tokenizer.ggml.pre is not supported";
    write_bpe((struct recipe){.pre = "default", .architecture = "qwen3"});
    tokenizer_close_clean(tokenizer_open_good(tokenizer_gguf, "BPE"));
    write_bpe((struct recipe){.pre = "", .architecture = "qwen2"});
    tokenizer_close_clean(tokenizer_open_good(tokenizer_gguf, "BPE"));
    expect_bpe_failure((struct recipe){.pre = "default"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.pre = "default", .architecture = "llama"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.pre = "llama-bpe", .architecture = "qwen3"}, UNSUPPORTED, says);
    expect_bpe_failure((struct recipe){.model = "bert"}, UNSUPPORTED, "found \"bert\"");
    expect_bpe_failure((struct recipe){.model = "llama"}, UNSUPPORTED, "add_space_prefix");
    expect_bpe_failure((struct recipe){.model = ""}, MISSING, "tokenizer.ggml.model is missing");
}

TEST(t12_lengths) {
    static const char says[] = "has a different length than the list of tokens";
    expect_bpe_failure((struct recipe){.types_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.types_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.scores_less = 1}, META, says);
    expect_unigram_failure((struct recipe){.scores_less = 107}, META, says);
}

TEST(t12_byte_tokens) {
    static const char *const wrong[] = {"<0x-1>", "<0xZZ>", "<0x1>", "<0x111>", "0x41", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct token token = {wrong[i], BYTE, 0};
        expect_bpe_failure((struct recipe){.token = &token}, META, "a token for a byte is invalid");
        expect_unigram_failure((struct recipe){.token = &token}, META, "a token for a byte is invalid");
    }
    struct token byte = {"<0x41>", BYTE, 0};
    expect_bpe_failure((struct recipe){.token = &byte}, UNSUPPORTED, "<0x41>");
    write_unigram((struct recipe){.token = &byte});
    tokenizer_close_clean(tokenizer_open_good(tokenizer_gguf, "unigram"));
}

TEST(unknown_kinds_refused) {
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
    expect_open_failure(tokenizer_gguf, DUP, "\"[PAD]\"");
}

TEST(malformed_tokens_refused) {
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
    struct tokenizer *t = tokenizer_open_good(tokenizer_gguf, "BPE");
    assert_int_equal(tokenizer_size(t), MORE + 1);
    tokenizer_close_clean(t);
}

TEST(malformed_merges_refused) {
    expect_bpe_failure((struct recipe){.merge = "ab"}, META, "does not have two parts");
    expect_bpe_failure((struct recipe){.merge = "a b c"}, META, "does not have two parts");
    expect_bpe_failure((struct recipe){.merge = "a zz"}, META, "not in the vocabulary");
    expect_bpe_failure((struct recipe){.merge = "b c"}, META, "a text that is not in the vocabulary");
    expect_bpe_failure((struct recipe){.merge = "<|end|> <|end|>"}, META, "longer than any token");
}

TEST(malformed_character_map_refused) {
    expect_unigram_failure((struct recipe){.table = "abc", .table_bytes = 3}, BOUNDS, "normalisation table");
    expect_unigram_failure((struct recipe){.table = "\x7f\0\0\0abcd", .table_bytes = 8}, BOUNDS,
                           "an invalid length");
    expect_unigram_failure((struct recipe){.table = "\1\1", .table_bytes = 2, .table_kind = GGUF_BOOL}, META,
                           "not an array of bytes");
}

/* Every truncation must fail, and no changed byte may cause worse than an error. */
TEST(damage_never_crashes) {
    for (int unigram = 0; unigram < 2; unigram++) {
        unigram ? write_unigram((struct recipe){0}) : write_bpe((struct recipe){.few = true});
        struct bytes file = bytes_of_file(malformed_path(tokenizer_gguf));
        for (size_t i = 0; i < file.n; i++) {
            struct tokenizer *t;
            struct error e;
            malformed_write(tokenizer_gguf, file.at, i);
            assert_int_not_equal(tokenizer_open_path(malformed_path(tokenizer_gguf), &t, &e), OK);
            unsigned char byte = file.at[i];
            file.at[i] ^= (unsigned char)(1 + i % 255);
            malformed_write(tokenizer_gguf, file.at, file.n);
            file.at[i] = byte;
            if (tokenizer_open_path(malformed_path(tokenizer_gguf), &t, &e) == OK) tokenizer_close_clean(t);
        }
        free(file.at);
    }
}

TEST(every_allocation_fails) {
    write_bpe((struct recipe){0});
    expect_memory_failures(tokenizer_gguf, "abc<|end|> d");
    write_unigram((struct recipe){0});
    expect_memory_failures(tokenizer_gguf, "ab <extra_id_3>b");
}

int main(void) {
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
