/* CLIP's tokenizer: ids against the reference's (test/golden/tokens_flux.py), from both file formats; and its
 * special rules: matches are pieces, lower case, end-of-word marks, special tokens that the configuration
 * only names. */

#include "test/lib/tokenizer_files.h"

TEST(test_goldens) {
    compare_packed("clip", (const char *const[]){"vocab.json", "merges.txt", "tokenizer_config.json",
                                                 "special_tokens_map.json", NULL});
    compare_packed("clip_json", (const char *const[]){"tokenizer.json", NULL});
}

/* Vocabulary: the letters a, b and their merges. */
static const char vocab[] =
    "{\"a\":0,\"b\":1,\"!\":2,\"a</w>\":3,\"b</w>\":4,\"!</w>\":5,\"ab\":6,\"ab</w>\":7,"
    "\"<|startoftext|>\":8,\"<|endoftext|>\":9}";
static const char merges[] = "#version: 0.2\na b</w>\na b\n";

static struct tokenizer *open_small(const char *config, const char *special_map) {
    malformed_write_text("vocab.json", vocab);
    malformed_write_text("merges.txt", merges);
    malformed_write_text("tokenizer_config.json", config);
    malformed_write_text("special_tokens_map.json", special_map);
    return tokenizer_open_good("", "CLIP BPE");
}

TEST(test_ids_of_words) {
    struct tokenizer *t = open_small(NULL, NULL); /* the loader recognises CLIP by its tokens */
    assert_int_equal(tokenizer_size(t), 10);
    assert_int_equal(tokenizer_special(t, "<|endoftext|>"), 9);
    IDS(t, "ab", 7);
    IDS(t, "aab", 0, 7);
    IDS(t, "aba", 6, 3);
    IDS(t, " \tAB  a\n!!", 7, 3, 2, 5);
    IDS(t, "c", 9); /* the byte c has no token and becomes <|endoftext|> */
    assert_ids(t, " \n ", 3, NULL, 0);
    IDS(t, "a<|endoftext|>b", 3, 9, 4);
    tokenizer_close_clean(t);
}

/* Where flags or ids of special tokens contradict each other, the last one in the file applies. Absent
 * special tokens get the defaults of transformers' CLIPTokenizer class. */
TEST(test_named_tokens) {
    struct tokenizer *t = open_small("{\"tokenizer_class\":\"CLIPTokenizer\",\"pad_token\":\"!\"}", NULL);
    IDS(t, "a!!", 3, 2, 2);
    tokenizer_close_clean(t);
    t = open_small(
        "{\"tokenizer_class\":\"CLIPTokenizer\"}",
        "{\"bos_token\":{\"content\":\"<|startoftext|>\",\"normalized\":true},\"pad_token\":\"<x>\"}");
    IDS(t, "<|StartOfText|>a<x>", 8, 3, 10); /* matched ignoring case; <x> gets the next free id */
    assert_int_equal(tokenizer_size(t), 11);
    tokenizer_close_clean(t);
    t = open_small("{\"added_tokens_decoder\":{\"8\":{\"content\":\"<|startoftext|>\",\"normalized\":true}},"
                   "\"bos_token\":\"<|startoftext|>\"}",
                   "{\"pad_token\":\"!\"}");
    IDS(t, "<|STARTOFTEXT|>!", 8, 5);
    tokenizer_close_clean(t);
    expect_text_failure("tokenizer_config.json",
                        "{\"tokenizer_class\":\"CLIPTokenizer\",\"bos_token\":{\"content\":5}}", META,
                        "a string");
    expect_text_failure("tokenizer_config.json",
                        "{\"tokenizer_class\":\"CLIPTokenizer\",\"added_tokens_decoder\":{\"3\":{"
                        "\"content\":\"b</w>\"}}}",
                        META, "conflicts");
    expect_text_failure("tokenizer_config.json", "{\"tokenizer_class\":\"BertTokenizer\"}", UNSUPPORTED,
                        "BertTokenizer");
    malformed_write_text("tokenizer_config.json", NULL);
    malformed_write_text("special_tokens_map.json", NULL);
    expect_text_failure("merges.txt", "a c</w>\n", META, "c</w>");
}

#define JSON(normalizers, split, suffix)                                                                     \
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" normalizers "]},\"pre_tokenizer\":{\"type\":" \
    "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]+\"}," split           \
    "},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]},\"model\":{\"type\":\"BPE\","                   \
    "\"end_of_word_suffix\":" suffix ",\"vocab\":{\"a\":0,\"b\":1,\"ab.\":2,\"b.\":3},"                      \
    "\"merges\":[[\"a\",\"b.\"]]}}"
#define REPLACE(regex, to)                                                                                   \
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"" regex "\"},\"content\":\"" to "\"}"
#define KEEP "\"behavior\":\"Removed\",\"invert\":true"

TEST(test_malformed_json_refused) {
    static const struct {
        const char *text;
        enum status code;
        const char *says;
    } rows[] = {
        {JSON("{\"type\":\"Lowercase\"},{\"type\":\"NFC\"}", KEEP, "\".\""), UNSUPPORTED, "NFC"},
        {JSON("{\"type\":\"Lowercase\"}," REPLACE("\\\\s+", " "), KEEP, "\".\""), UNSUPPORTED, "Replace"},
        {JSON(REPLACE("\\\\s", " "), KEEP, "\".\""), UNSUPPORTED, "\\s"},
        {JSON(REPLACE("\\\\s+", "_"), KEEP, "\".\""), UNSUPPORTED, "Replace"},
        {JSON("", "\"behavior\":\"Removed\",\"invert\":false", "\".\""), UNSUPPORTED, "invert"},
        {JSON("", "\"behavior\":\"MergedWithNext\"", "\".\""), UNSUPPORTED, "MergedWithNext"},
        {JSON("", KEEP, "\"a suffix of 17 by\""), LIMIT, "17 bytes"},
        {JSON("", KEEP, "5"), META, "suffix"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_text_failure("tokenizer.json", rows[i].text, rows[i].code, rows[i].says);
    malformed_write_text("tokenizer.json", JSON("{\"type\":\"Lowercase\"}", KEEP, "\".\""));
    struct tokenizer *t = tokenizer_open_good("tokenizer.json", NULL);
    IDS(t, "xxAB-bab", 2, 1, 2);
    tokenizer_close_clean(t);
    malformed_write_text("tokenizer.json", NULL);
}

TEST(test_every_allocation_fails) {
    tokenizer_close_clean(open_small("{\"bos_token\":\"<|startoftext|>\"}", NULL));
    expect_memory_failures("", "AB <|endoftext|> \xc3\x89!");
}

TEST(test_linear_time) {
    struct tokenizer *t = open_small(NULL, NULL);
    expect_linear_time(t,
                       (const char *const[]){"abab", "\xcc\x81\xcc\xa3", "  \t ", "<|en", "\xc4\xb0", NULL});
    tokenizer_close_clean(t);
}

/* Generated tokenizers have the requested size, and their bytes are in the published order. */
TEST(test_generated_tokenizer) {
    static const int sizes[] = {514, 1000, 49408};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct tokenizer *t = open_synthetic("CLIP BPE", sizes[i], NULL);
        assert_int_equal(tokenizer_size(t), sizes[i]);
        assert_int_equal(tokenizer_special(t, "<|endoftext|>"), sizes[i] - 1);
        IDS(t, "<|startoftext|> !", sizes[i] - 2, 256);
        tokenizer_close_clean(t);
    }
    expect_synthetic_failure("CLIP BPE", 513, "514");
    expect_synthetic_failure("OpenCLIP BPE", 513, "514");
    struct tokenizer *t = open_synthetic("OpenCLIP BPE", 600, NULL);
    assert_int_equal(tokenizer_special(t, "!"), 0);
    tokenizer_close_clean(t);
}

int main(void) {
    return tests_main(malformed_set_up, malformed_tear_down);
}
