/* Gemma's tokenizer (SentencePiece BPE): ids against the reference's (test/golden/tokens_gemma.py) in three
 * file formats, and files with one defect each. Small files: the 256 tokens of bytes, then a few pieces. */
#include "test/lib/temporary_folder.h"
#include "test/lib/tokenizer_files.h"

static const char tokenizer_json[] = "tokenizer.json", tokenizer_model[] = "tokenizer.model",
                  kind[] = "SentencePiece BPE";

#define MARK "\xe2\x96\x81"

/* Parts of a small tokenizer.json; NULL takes the default. */
struct recipe {
    const char *normalizer, *pre_tokenizer, *pieces, *merges, *more;
    int missing; /* byte whose token is missing; 0: none */
};

enum { EOS = 256, BOS, BLANK, A, B, AB, BLANK_A, E_ACUTE, SIZE };

#define NORMALIZER "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define SPLIT                                                                                                \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" "                                                        \
    "\"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}"
#define PIECES                                                                                               \
    ",\"<eos>\":256,\"<bos>\":257,\"" MARK "\":258,\"a\":259,\"b\":260,\"ab\":261,\"" MARK                   \
    "a\":262,\"\xc3\xa9\":263"
#define MERGES   "[\"a\",\"b\"],[\"" MARK "\",\"a\"]"
#define FALLBACK "\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false"

static void write_recipe(struct recipe r) {
    struct bytes b = {0};
    bytes_print(&b, "{\"version\":\"1.0\",\"normalizer\":%s,\"pre_tokenizer\":%s,",
                r.normalizer ? r.normalizer : NORMALIZER, r.pre_tokenizer ? r.pre_tokenizer : SPLIT);
    bytes_print(&b,
                "\"added_tokens\":[{\"id\":256,\"content\":\"<eos>\",\"special\":true,\"normalized\":false},"
                "{\"id\":257,\"content\":\"<bos>\",\"special\":true,\"normalized\":false}],");
    bytes_print(&b, "\"model\":{\"type\":\"BPE\",%s,\"vocab\":{", r.more ? r.more : FALLBACK);
    for (int i = 0; i < 256; i++)
        bytes_print(&b, "%s\"<0x%02X>%s\":%d", i ? "," : "", (unsigned)i, i && i == r.missing ? "x" : "", i);
    bytes_print(&b, "%s},\"merges\":[%s]}}", r.pieces ? r.pieces : PIECES, r.merges ? r.merges : MERGES);
    malformed_write(tokenizer_json, b.at, b.n);
    free(b.at);
}

static void expect_failure(struct recipe r, enum status code, const char *says) {
    write_recipe(r);
    expect_open_failure("", code, says);
}

TEST(goldens) {
    compare_packed("gemma", (const char *const[]){tokenizer_json, NULL});
    compare_packed("gemma", (const char *const[]){tokenizer_model, NULL});
    tokenizer_unpack("gemma", "gemma.gguf");
    tokenizer_unpack("gemma", "cases.json");
    compare_cases(malformed_path("gemma.gguf"), malformed_path("cases.json"));
    malformed_write_text("gemma.gguf", NULL);
    malformed_write_text("cases.json", NULL);
}

TEST(special_tokens_of_all_formats) {
    static const char *const names[] = {tokenizer_json, tokenizer_model, "gemma.gguf"};
    for (int i = 0; i < 3; i++) {
        tokenizer_unpack("gemma", names[i]);
        struct tokenizer *t = tokenizer_open_good(names[i], kind);
        assert_int_equal(tokenizer_special(t, "<bos>"), 2);
        assert_int_equal(tokenizer_special(t, "<end_of_turn>"), 13);
        assert_int_equal(tokenizer_special(t, "fox"), -1);
        assert_int_equal(tokenizer_size(t), 1000);
        tokenizer_close_clean(t);
        malformed_write_text(names[i], NULL);
    }
}

/* ComfyUI's files have the content of tokenizer.model in a tensor. */
TEST(stored_model) {
    struct tokenizer *t;
    struct error e = {0};
    size_t n;
    tokenizer_unpack("gemma", tokenizer_model);
    char *bytes = read_file(malformed_path(tokenizer_model), &n);
    malformed_write_text(tokenizer_model, NULL);
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(tokenizer_open_stored(&tokenizer_sys, "x.safetensors", bytes, n, &t, &e), OK);
    assert_string_equal(tokenizer_kind(t), kind);
    IDS(t, "<bos>", 2);
    tokenizer_close_clean(t);
    free(bytes);
}

TEST(ids_of_characters) {
    write_recipe((struct recipe){0});
    struct tokenizer *t = tokenizer_open_good("", kind);
    assert_int_equal(tokenizer_size(t), SIZE);
    IDS(t, "ab a", AB, BLANK_A);
    IDS(t, " ab", BLANK, AB);
    IDS(t, "a" MARK "b", A, BLANK, B);
    IDS(t, "\xc3\xa9\xc3\xa8", E_ACUTE, 0xc3, 0xa8);
    IDS(t, "a<bos> b\n", A, BOS, BLANK, B, '\n');
    IDS(t, "a\0b", A, 0, B);
    assert_ids(t, "", 0, NULL, 0);
    tokenizer_close_clean(t);
    /* The order of the merges decides. */
    write_recipe((struct recipe){.merges = "[\"" MARK "\",\"a\"],[\"a\",\"b\"]", .pre_tokenizer = "null"});
    t = tokenizer_open_good("", kind);
    IDS(t, " ab", BLANK_A, B);
    tokenizer_close_clean(t);
    write_recipe((struct recipe){.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[" NORMALIZER "]}"});
    t = tokenizer_open_good("", kind);
    IDS(t, " ab", BLANK, AB);
    tokenizer_close_clean(t);
    /* A whole text that is a token is not merged. */
    write_recipe((struct recipe){.more = "\"byte_fallback\":true,\"ignore_merges\":true", .merges = ""});
    t = tokenizer_open_good("", kind);
    IDS(t, "ab", AB);
    IDS(t, "ab ", A, B, BLANK);
    tokenizer_close_clean(t);
}

TEST(malformed_files_refused) {
    expect_failure((struct recipe){.missing = 0x41}, META, "<0x41>");
    expect_failure((struct recipe){.more = "\"byte_fallback\":false"}, UNSUPPORTED, "byte_fallback");
    expect_failure((struct recipe){.more = "\"fuse_unk\":true"}, UNSUPPORTED, "byte_fallback");
    expect_failure((struct recipe){.more = FALLBACK ",\"end_of_word_suffix\":\"</w>\""}, UNSUPPORTED,
                   "end_of_word_suffix");
    expect_failure((struct recipe){.normalizer = "null"}, UNSUPPORTED, "pre_tokenizer");
    expect_failure(
        (struct recipe){.normalizer =
                            "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}"},
        UNSUPPORTED, "Replace");
    expect_failure((struct recipe){.normalizer = "{\"type\":\"NFC\"}",
                                   .pre_tokenizer = "{\"type\":\"ByteLevel\","
                                                    "\"add_prefix_space\":false}"},
                   UNSUPPORTED, "byte_fallback");
    expect_failure((struct recipe){.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"}}"},
                   UNSUPPORTED, "pre_tokenizer type");
    expect_failure((struct recipe){.merges = "[\"a\",\"c\"]"}, META, "not in the vocabulary");
    malformed_write_text(tokenizer_json, NULL);
}

/* Changes single bytes of tokenizer.model: the fields of the trainer and the normalizer at its end. */
TEST(malformed_models_refused) {
    size_t n;
    tokenizer_unpack("gemma", tokenizer_model);
    char *bytes = read_file(malformed_path(tokenizer_model), &n);
    struct tokenizer *t;
    struct error e;
    /* The normalizer: "identity", then field 3 (add_dummy_prefix) and field 4 (remove_extra_whitespaces). */
    char *prefix = memmem(bytes, n, "\x18\x00\x20\x00\x28\x01", 6);
    if (!prefix) prefix = memmem(bytes, n, "\x18\x00\x20\x00", 4);
    assert_non_null(prefix);
    static const char *const says[] = {"add_dummy_prefix", "remove_extra_whitespaces"};
    for (int i = 0; i < 2; i++) {
        prefix[1 + 2 * i] = 1;
        malformed_write(tokenizer_model, bytes, n);
        expect_open_failure("", UNSUPPORTED, says[i]);
        prefix[1 + 2 * i] = 0;
    }
    malformed_write_text("tokenizer_config.json", "{\"tokenizer_class\":\"T5Tokenizer\"}");
    malformed_write(tokenizer_model, bytes, n);
    expect_open_failure("", UNSUPPORTED, "GemmaTokenizer");
    malformed_write_text("tokenizer_config.json", "{\"tokenizer_class\":\"GemmaTokenizerFast\"}");
    tokenizer_close_clean(tokenizer_open_good("", kind));
    malformed_write_text("tokenizer_config.json", NULL);
    for (size_t i = 0; i < n; i += 61) {
        malformed_write(tokenizer_model, bytes, i);
        assert_int_not_equal(tokenizer_open_path(malformed_path(tokenizer_model), &t, &e), OK);
        char byte = bytes[i];
        bytes[i] = (char)(byte ^ (1 + (int)(i % 255)));
        malformed_write(tokenizer_model, bytes, n);
        bytes[i] = byte;
        if (tokenizer_open_path(malformed_path(tokenizer_model), &t, &e) == OK) tokenizer_close_clean(t);
    }
    malformed_write_text(tokenizer_model, NULL);
    free(bytes);
}

TEST(every_allocation_fails) {
    write_recipe((struct recipe){0});
    expect_memory_failures("", "ab<eos> \xc3\xa8\n");
    expect_json_failures("");
    malformed_write_text(tokenizer_json, NULL);
    static const char *const names[] = {tokenizer_model, "gemma.gguf"};
    for (int i = 0; i < 2; i++) {
        tokenizer_unpack("gemma", names[i]);
        expect_memory_failures(names[i], "a fox<bos> \xc3\xa8\n");
        malformed_write_text(names[i], NULL);
    }
}

TEST(linear_time) {
    tokenizer_unpack("gemma", tokenizer_json);
    struct tokenizer *t = tokenizer_open_good(tokenizer_json, kind);
    expect_linear_time(t, (const char *const[]){"a", " ", "the fox ", "\xf0\x9f\xa6\x8a", NULL});
    tokenizer_close_clean(t);
    malformed_write_text(tokenizer_json, NULL);
}

TEST(synthetic) {
    static const int sizes[] = {300, 1000, 5000};
    for (int i = 0; i < 3; i++) {
        struct tokenizer *t = open_synthetic(kind, sizes[i], NULL);
        assert_true(tokenizer_size(t) <= sizes[i]);
        assert_true(tokenizer_special(t, "<bos>") >= 0);
        tokenizer_close_clean(t);
    }
    expect_synthetic_failure(kind, 259, "260");
}

int main(void) {
    json_failures_set_up();
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
