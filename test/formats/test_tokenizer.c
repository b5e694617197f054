/* Byte-level BPE tokenizers: ids against the reference's, and files and texts with one defect each. Names of
 * tests begin with the number of the defect (t01 ...).
 *
 * Golden ids come from Hugging Face tokenizers (test/golden/tokens.py). Malformed files derive from one small
 * tokenizer: 256 bytes with ids in byte order, a few merges. Each opening runs under a hang guard, must
 * release all memory, and allocates at most 64 MiB beyond the file's size.
 *
 * Ids beyond the embedding's rows: test/models/layouts/gguf.txt. The token limit of prompts:
 * test_user_errors.c. Random damage: test_damaged_files.c. */
#include "test/lib/tokenizer_files.h"

#include <dirent.h>
#include <jansson.h>
#include <sys/stat.h>

/* Parts of a tokenizer.json; NULL takes the default. */
struct recipe {
    const char *vocab;  /* vocabulary entries after the 256 byte tokens */
    const char *merges; /* elements of the array of merges */
    const char *model;  /* further members of the model object */
    const char *added;  /* elements of the array of added tokens */
    const char *normalizer, *pre_tokenizer;
    const char *members; /* further members of the tokenizer.json document */
};

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(regex)                                                                                         \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex          \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}"
#define QWEN2                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "                        \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

enum { AB = 256, BC, ABC, XX, EOT = 300 };

static const struct recipe defaults = {
    .vocab = "\"ab\":256,\"bc\":257,\"abc\":258,\"xx\":259",
    .merges = "\"a b\",[\"b\",\"c\"],\"ab c\",\"x x\"",
    .model = "\"type\":\"BPE\",\"unk_token\":null,\"byte_fallback\":false",
    .added = "{\"id\":300,\"content\":\"<|end|>\",\"special\":true,\"normalized\":false}",
    .normalizer = "{\"type\":\"NFC\"}",
    .pre_tokenizer = SPLIT(QWEN2),
    .members = "\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"post_processor\":null",
};

static const char *chosen(const char *given, const char *fallback) {
    return given ? given : fallback;
}

/* Writes tokenizer.json. */
static void write_recipe(struct recipe r) {
    const struct recipe *d = &defaults;
    struct bytes b = {0};
    bytes_print(&b, "{%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"added_tokens\":[%s],",
                chosen(r.members, d->members), chosen(r.normalizer, d->normalizer),
                chosen(r.pre_tokenizer, d->pre_tokenizer), chosen(r.added, d->added));
    bytes_print(&b, "\"model\":{%s,\"vocab\":{", chosen(r.model, d->model));
    for (int byte = 0; byte < 256; byte++)
        bytes_print(&b, "\"\\u%04x\":%d,", (unsigned)gpt2_character(byte), byte);
    bytes_print(&b, "%s},\"merges\":[%s]}}", chosen(r.vocab, d->vocab), chosen(r.merges, d->merges));
    malformed_write("tokenizer.json", b.at, b.n);
    free(b.at);
}

static struct tokenizer *open_recipe(struct recipe recipe) {
    write_recipe(recipe);
    return tokenizer_open_good("tokenizer.json", NULL);
}

static void expect_json_failure(const char *text, enum status code, const char *says) {
    malformed_write_text("tokenizer.json", text);
    expect_open_failure("tokenizer.json", code, says);
}

static void expect_failure(struct recipe recipe, enum status code, const char *says) {
    write_recipe(recipe);
    expect_open_failure("tokenizer.json", code, says);
}

TEST(goldens) {
    DIR *golden = opendir("test/golden");
    assert_non_null(golden);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(golden));) {
        char model[512], cases[512];
        snprintf(model, sizeof model, "test/golden/%s/model/tokenizer", entry->d_name);
        snprintf(cases, sizeof cases, "test/golden/%s/tokenizer_cases.json", entry->d_name);
        if (access(cases, R_OK)) continue;
        compare_cases(model, cases);
        n++;
    }
    closedir(golden);
    assert_true(n > 0);
}

TEST(merge_order) {
    struct tokenizer *t = open_recipe((struct recipe){0});
    assert_int_equal(tokenizer_size(t), 301);
    IDS(t, "abc", ABC);
    IDS(t, "bcab", BC, AB);
    IDS(t, "xxx", XX, 'x'); /* of pairs with equal ranks the leftmost is merged first */
    IDS(t, "ab bc", AB, ' ', BC);
    IDS(t, "a\xc3\xa9", 'a', 0xC3, 0xA9);
    IDS(t, "e\xcc\x81", 0xC3, 0xA9); /* NFC composes the two characters */
    IDS(t, "a\0b", 'a', 0, 'b');
    assert_ids(t, "", 0, NULL, 0);
    tokenizer_close_clean(t);
    /* The merge "b c" has a better rank than "a b". */
    t = open_recipe((struct recipe){.merges = "\"b c\",\"a b\",\"ab c\""});
    IDS(t, "abc", 'a', BC);
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.merges = "\"b c\",\"a b\"", .model = "\"ignore_merges\":true"});
    IDS(t, "abc", ABC);
    IDS(t, "abcx", 'a', BC, 'x');
    tokenizer_close_clean(t);
}

TEST(added_tokens) {
    static const char added[] =
        "{\"id\":300,\"content\":\"<e>\",\"special\":true},{\"id\":301,\"content\":\"<e>x\",\"normalized\":"
        "false},"
        "{\"id\":302,\"content\":\"<l>\",\"lstrip\":true},{\"id\":303,\"content\":\"<r>\",\"rstrip\":true},"
        "{\"id\":304,\"content\":\"one\",\"single_word\":true},{\"id\":256,\"content\":\"ab\",\"special\":"
        "true},"
        "{\"id\":305,\"content\":\"e\\u0301\",\"normalized\":true}";
    struct tokenizer *t = open_recipe((struct recipe){.added = added});
    assert_int_equal(tokenizer_special(t, "<e>"), 300);
    assert_int_equal(tokenizer_special(t, "ab"), 256);
    assert_int_equal(tokenizer_special(t, "xx"), -1);
    IDS(t, "<e><e>x<e", 300, 301, '<', 'e');
    IDS(t, "a \t<l> b", 'a', 302, ' ', 'b');
    IDS(t, "a <r>\xe3\x80\x80\n b", 'a', ' ', 303, 'b');
    IDS(t, "one ones", 304, ' ', 'o', 'n', 'e', 's');
    IDS(t, "(one)", '(', 304, ')');
    IDS(t, "\xc3\xa9one", 305, 'o', 'n',
        'e'); /* a single_word token is not matched after another added token */
    IDS(t, "abc", 256, 'c');
    IDS(t, "\xc3\xa9 e\xcc\x81", 305, ' ', 305);
    tokenizer_close_clean(t);
}

TEST(unknown_bytes) {
    static const char head[] =
        "{\"pre_tokenizer\":" SPLIT("x+") ",\"model\":{\"vocab\":{\"a\":0,\"?\":1},\"merges\":[]%s}}";
    static const struct {
        const char *members;
        int n;
        int32_t ids[6];
    } rows[] = {
        {"", 2, {0, 0}},
        {",\"unk_token\":\"?\"", 5, {0, 1, 1, 1, 0}},
        {",\"unk_token\":\"?\",\"fuse_unk\":true", 3, {0, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        snprintf(text, sizeof text, head, rows[i].members);
        malformed_write_text("tokenizer.json", text);
        struct tokenizer *t = tokenizer_open_good("tokenizer.json", NULL);
        assert_ids(t, "abcda", 5, rows[i].ids, rows[i].n);
        tokenizer_close_clean(t);
    }
    char text[1024];
    snprintf(text, sizeof text, head, ",\"unk_token\":\"#\"");
    expect_json_failure(text, META, "unk_token");
}

/* Patterns for which PCRE2's and Oniguruma's syntax or Unicode differ; expected: Oniguruma. */
TEST(patterns_as_oniguruma) {
    struct tokenizer *t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("\\\\s+|\\\\S")});
    IDS(t, "ab", 'a', 'b');
    tokenizer_close_clean(t);
    /* U+180E is no white space; U+1E4D0 is a letter since Unicode 15: no split between a and b */
    t = open_recipe((struct recipe){.merges = "\"a b\"", .pre_tokenizer = SPLIT("\\\\s|[ab]+")});
    IDS(t, "ab\xe1\xa0\x8e", AB, 0xE1, 0xA0, 0x8E);
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.vocab = "\"\\u0132b\":256",
                                    .merges = "\"\\u0132 b\"", /* GPT-2's character of byte 0x90 */
                                    .pre_tokenizer = SPLIT("\\\\p{L}+")});
    IDS(t, "\360\236\223\220b", 0xF0, 0x9E, 0x93, 256); /* U+1E4D0 */
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("\\\\d*")}); /* a regex with empty matches */
    IDS(t, "ab1bc", 'a', 'b', '1', 'b', 'c');
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("z"),
                                    .normalizer = "null"}); /* text between matches forms pieces */
    IDS(t, "abzbce\xcc\x81", AB, 'z', BC, 'e', 0xCC, 0x81);
    tokenizer_close_clean(t);
}

TEST(vocab_json_and_merges_txt) {
    malformed_write_text("tokenizer.json", NULL);
    expect_open_failure("", MISSING, "tokenizer");
    expect_text_failure("vocab.json", "{\"a\":0,\"b\":1,\"#\":2,\"##\":3,\"ab\":4}", MISSING, "merges.txt");
    malformed_write_text("merges.txt", "#version: 0.2\n# #\r\na b\n\n");
    malformed_write_text("added_tokens.json", "{\"<x>\":5,\"<y>\":6}");
    malformed_write_text("special_tokens_map.json", "{\"eos_token\":{\"content\":\"<x>\"}}");
    struct tokenizer *t = tokenizer_open_good("", NULL);
    IDS(t, "ab##<x>b<y>", 4, 3, 5, 1, 6);
    tokenizer_close_clean(t);
    static const char config[] = "tokenizer_config.json";
    malformed_write_text(config, "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"added_tokens_decoder\":{"
                                 "\"7\":{\"content\":\"<z>\",\"special\":true}}}");
    t = tokenizer_open_good("", NULL);
    IDS(t, "a<z>", 0, 7);
    assert_int_equal(tokenizer_special(t, "<x>"), -1);
    tokenizer_close_clean(t);
    expect_text_failure(config, "{\"added_tokens_decoder\":{\"x7\":{\"content\":\"<z>\"}}}", META, "x7");
    expect_text_failure(config, "{\"tokenizer_class\":\"LlamaTokenizer\"}", UNSUPPORTED, "LlamaTokenizer");
    malformed_write_text(config, NULL);
    expect_text_failure("merges.txt", "a b c\n", META, "two parts");
    expect_text_failure("merges.txt", "a \xff\n", UTF8, "byte 2");
    static const char *const names[] = {"vocab.json", "merges.txt", "added_tokens.json",
                                        "special_tokens_map.json"};
    for (int i = 0; i < 4; i++) malformed_write_text(names[i], NULL);
}

TEST(t01_damaged_json) {
    write_recipe((struct recipe){0});
    for (int64_t n = malformed_size(malformed_path("tokenizer.json")); n-- > 0;) {
        assert_int_equal(truncate(malformed_path("tokenizer.json"), n), 0);
        expect_open_failure("tokenizer.json", JSON, "");
    }
    struct bytes deep = {0};
    bytes_fill(&deep, '[', 1000000);
    expect_json_failure((char *)deep.at, LIMIT, "nested");
    free(deep.at);
    malformed_write_text("tokenizer.json", "{");
    assert_int_equal(truncate(malformed_path("tokenizer.json"), (off_t)2 << 30), 0);
    expect_open_failure("tokenizer.json", LIMIT, "256000000");
    expect_json_failure("[]", META, "an object");
    expect_json_failure("{}", META, "pre_tokenizer");
}

TEST(t02_vocabulary) {
    expect_failure((struct recipe){.vocab = "\"q1\":-1"}, META, "-1");
    expect_failure((struct recipe){.vocab = "\"q1\":4294967296"}, META, "4294967296");
    expect_failure((struct recipe){.vocab = "\"q1\":1.5"}, META, "\"q1\"");
    expect_failure((struct recipe){.vocab = "\"q1\":\"7\""}, META, "a string");
    expect_failure((struct recipe){.vocab = "\"q1\":97"}, META, "97");
    expect_failure((struct recipe){.vocab = "\"q1\":999,\"q1\":998"}, DUP, "q1");
    expect_failure((struct recipe){.vocab = "\"\\ud800\":999"}, UTF8, "");
    struct tokenizer *t =
        open_recipe((struct recipe){.vocab = "\"ab\":99999,\"bc\":500,\"abc\":501,\"xx\":16777215"});
    IDS(t, "xxab", 16777215, 99999);
    assert_int_equal(tokenizer_size(t), 16777216);
    tokenizer_close_clean(t);
}

TEST(t03_merges) {
    expect_failure((struct recipe){.merges = "\"a qq\""}, META, "\"qq\"");
    expect_failure((struct recipe){.merges = "\"a x\""}, META, "\"ax\"");
    expect_failure((struct recipe){.merges = "\"abc abc\""}, META, "longer");
    expect_failure((struct recipe){.merges = "\"a\""}, META, "two parts");
    expect_failure((struct recipe){.merges = "\"a b c\""}, META, "two parts");
    expect_failure((struct recipe){.merges = "[\"a\"]"}, META, "two parts");
    expect_failure((struct recipe){.merges = "[\"a\",\"b\",\"c\"]"}, META, "two parts");
    expect_failure((struct recipe){.merges = "[\"a\",1]"}, META, "two parts");
    expect_failure((struct recipe){.merges = "7"}, META, "merge rule 0");
}

TEST(t04_added_tokens) {
    expect_failure((struct recipe){.added = "{\"id\":97,\"content\":\"<e>\"}"}, META, "97");
    expect_failure((struct recipe){.added = "{\"id\":300,\"content\":\"ab\"}"}, META, "256");
    expect_failure(
        (struct recipe){.added = "{\"id\":300,\"content\":\"<e>\"},{\"id\":300,\"content\":\"<f>\"}"}, META,
        "<f>");
    expect_failure(
        (struct recipe){.added = "{\"id\":256,\"content\":\"ab\"},{\"id\":256,\"content\":\"ab\"}"}, DUP,
        "\"ab\"");
    expect_failure((struct recipe){.added = "{\"id\":-1,\"content\":\"<e>\"}"}, META, "-1");
    expect_failure((struct recipe){.added = "{\"content\":\"<e>\"}"}, META, "<e>");
    expect_failure((struct recipe){.added = "{\"id\":300,\"content\":\"\"}"}, META, "0 bytes");
    expect_failure((struct recipe){.added = "{\"id\":300,\"content\":5}"}, META, "an integer");
    expect_failure((struct recipe){.added = "{\"id\":300,\"content\":\"<e>\",\"lstrip\":1}"}, META, "lstrip");
    expect_failure((struct recipe){.added = "5"}, META, "nothing");
    char long_token[400];
    snprintf(long_token, sizeof long_token, "{\"id\":300,\"content\":\"%0257d\"}", 0);
    expect_failure((struct recipe){.added = long_token}, LIMIT, "257 bytes");
}

TEST(t05_lengths_and_template) {
#define TEMPLATE(id, tokens)                                                                                 \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"" id        \
    "\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"A\":{\"id\":\"A\",\"ids\":[300],\"tokens\":["     \
    "\"" tokens "\"]}}}"
    expect_failure((struct recipe){.members = TEMPLATE("B", "<|end|>")}, META, "\"B\"");
    expect_failure((struct recipe){.members = TEMPLATE("A", "<none>")}, META, "\"A\"");
    expect_failure((struct recipe){.members = "\"padding\":{\"strategy\":{\"Fixed\":0}}"}, META, "Fixed 0");
    expect_failure((struct recipe){.members = "\"truncation\":{\"max_length\":8,\"stride\":8}"}, META,
                   "stride 8");
    expect_failure((struct recipe){.members = "\"version\":\"2.0\""}, VERSION, "2.0");
    tokenizer_close_clean(open_recipe((struct recipe){.members = TEMPLATE("A", "<|end|>")}));
    tokenizer_close_clean(open_recipe((struct recipe){
        .members =
            "\"truncation\":{\"max_length\":8,\"stride\":7},\"padding\":{\"strategy\":\"BatchLongest\"}"}));
}

TEST(t06_unsupported) {
    static const struct {
        const char *pattern, *says;
    } patterns[] = {
        {SPLIT("(a"), "compile"},
        {SPLIT("\\\\w+"), "\\w"},
        {SPLIT("[a-z&&[b]]"), "&&"},
        {SPLIT("^a"), "^"},
        {SPLIT("a{2}+"), "{2}+"},
        {SPLIT("(?m:a)"), "(?m:"},
        {SPLIT("(*ACCEPT)"), "(*AC"},
        {SPLIT("\\\\p{Foo}"), "compile"},
        {SPLIT("[[:alpha:]]"), "[:"},
        {SPLIT("\\\\"), "\\"},
        {SPLIT("(?R)"), "(?R)"},
        {SPLIT("\\\\p"), "\\p"},
        {"{\"type\":\"Whitespace\"}", "Whitespace"},
        {"{\"type\":\"ByteLevel\",\"use_regex\":true}", "add_prefix_space"},
        {BYTE_LEVEL, "use_regex"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}," BYTE_LEVEL "]}", "Digits"},
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        expect_failure((struct recipe){.pre_tokenizer = patterns[i].pattern}, UNSUPPORTED, patterns[i].says);
    expect_failure((struct recipe){.pre_tokenizer = "null"}, META, "pre_tokenizer");
    expect_failure((struct recipe){.normalizer = "{\"type\":\"NFKC\"}"}, UNSUPPORTED, "NFKC");
    expect_failure((struct recipe){.model = "\"byte_fallback\":true"}, UNSUPPORTED, "byte_fallback");
    expect_failure((struct recipe){.model = "\"dropout\":0.1"}, UNSUPPORTED, "dropout");
}

TEST(t06_backtracking) {
    struct tokenizer *t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("(a+)+(b|c)")});
    struct error e = {0};
    int32_t *ids;
    int n;
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    assert_int_equal(tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40, &ids, &n, &e),
                     LIMIT);
    hang_guard(0, 0);
    assert_null(ids);
    assert_non_null(strstr(e.where, malformed_path("tokenizer.json")));
    tokenizer_close_clean(t);
}

static void expect_usage(struct tokenizer *t, const char *text, size_t bytes, enum status code,
                         const char *says) {
    struct error e = {0};
    int32_t *ids;
    int n;
    char line[1024];
    assert_int_equal(tokenizer_encode(t, text, bytes, &ids, &n, &e), code);
    assert_int_equal(e.exit, 2);
    assert_null(ids);
    assert_non_null(strstr(error_line(&e, line, sizeof line), says));
}

TEST(t14_texts) {
    struct tokenizer *t = open_recipe((struct recipe){0});
    static const char *const invalid[] = {"ab\xff", "ab\xc3", "ab\xc0\x80", "ab\xed\xa0\x80",
                                          "ab\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        expect_usage(t, invalid[i], strlen(invalid[i]), UTF8, "byte 2 of the text");
    char *text = malloc(10 * TEXT_MAX);
    memset(text, ' ', 10 * TEXT_MAX);
    expect_usage(t, text, TEXT_MAX + TEXT_MAX / 4 + 1, LIMIT,
                 "1310721"); /* a text one byte above the limit */
    expect_usage(t, text, 10 * TEXT_MAX, LIMIT, "10485760");
    free(text);
    tokenizer_close_clean(t);
}

/* A long word with cascading merges, marks that normalisation reorders, white space that makes the pattern
 * backtrack, and prefixes of added tokens: time must be linear. */
TEST(linear_time) {
    struct tokenizer *t =
        open_recipe((struct recipe){.added = "{\"id\":300,\"content\":\"<|end|>\",\"lstrip\":true}"});
    expect_linear_time(t, (const char *const[]){"abcxxbca", "\xcc\x81\xcc\xa3", "  \t ", "<|en",
                                                "\xcc\xa3\xe3\x82\x99\xcc\x95", NULL});
    tokenizer_close_clean(t);
}

TEST(every_allocation_fails) {
    write_recipe((struct recipe){.model = "\"ignore_merges\":true",
                                 .added = "{\"id\":300,\"content\":\"e\\u0301\",\"normalized\":true}"});
    expect_memory_failures("tokenizer.json", "abc e\xcc\x81 <|end|> xx\n");
}

TEST(every_json_allocation_fails) {
    tokenizer_close_clean(open_recipe((struct recipe){.model = "\"ignore_merges\":true"}));
    expect_json_failures("tokenizer.json");
}

TEST(open_bytes) {
    tokenizer_close_clean(open_recipe((struct recipe){0}));
    const char *path = malformed_path("tokenizer.json");
    int64_t bytes = malformed_size(path);
    uint64_t bound = tokenizer_open_bytes(&tokenizer_sys, path);
    assert_true(bound > (uint64_t)bytes);
    assert_int_equal(tokenizer_open_bytes(&tokenizer_sys, malformed_path("")), bound);
    assert_int_equal(truncate(path, 10 * bytes), 0);
    assert_true(tokenizer_open_bytes(&tokenizer_sys, path) > bound);
}

int main(void) {
    json_failures_set_up();
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
