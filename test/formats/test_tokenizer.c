/* Byte-level BPE tokenizers: ids against the reference's, and files and texts with one defect each. Names of
 * tests begin with the number of the defect (t01 ...).
 *
 * Golden ids come from Hugging Face tokenizers (test/golden/tokens.py). Malformed files derive from one small
 * tokenizer: 256 bytes with ids in byte order, a few merges. Each opening runs under a hang guard, must
 * release all memory, and allocates at most 64 MiB beyond the file's size.
 *
 * Ids beyond the embedding's rows: test/models/layouts/gguf.txt. The token limit of prompts:
 * test_user_errors.c. Random damage: test_damaged_files.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "test/lib/tokenizer_files.h"

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

/* GPT-2's bytes_to_unicode, written independently of the loader. */
static int alphabet(int byte) {
    if (byte <= 32) return 256 + byte;
    if (byte == 0x7F) return 289;
    if (byte >= 0x80 && byte <= 0xA0) return 290 + byte - 0x80;
    return byte == 0xAD ? 323 : byte;
}

static const char *chosen(const char *given, const char *fallback) {
    return given ? given : fallback;
}

/* Returns the text of tokenizer.json. Freed by the caller. */
static char *write_json(struct recipe r) {
    const struct recipe *d = &defaults;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    fprintf(out, "{%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"added_tokens\":[%s],\"model\":{%s,\"vocab\":{",
            chosen(r.members, d->members), chosen(r.normalizer, d->normalizer),
            chosen(r.pre_tokenizer, d->pre_tokenizer), chosen(r.added, d->added), chosen(r.model, d->model));
    for (int byte = 0; byte < 256; byte++) fprintf(out, "\"\\u%04x\":%d,", (unsigned)alphabet(byte), byte);
    fprintf(out, "%s},\"merges\":[%s]}}", chosen(r.vocab, d->vocab), chosen(r.merges, d->merges));
    assert_int_equal(fclose(out), 0);
    return text;
}

static struct tokenizer *open_recipe(struct recipe recipe) {
    struct tokenizer *t;
    struct error e;
    char line[1024], *text = write_json(recipe);
    tokenizer_put(tokenizer_json, text, strlen(text));
    free(text);
    if (tokenizer_open_path(tokenizer_json, &t, &e) != OK) fail_msg("%s", error_line(&e, line, sizeof line));
    return t;
}

static void expect_text_failure(const char *text, enum status code, const char *says) {
    tokenizer_put(tokenizer_json, text, strlen(text));
    expect_open_failure(tokenizer_json, code, says);
}

static void expect_failure(struct recipe recipe, enum status code, const char *says) {
    char *text = write_json(recipe);
    expect_text_failure(text, code, says);
    free(text);
}

static void test_goldens(void **state) {
    (void)state;
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

static void test_merge_order(void **state) {
    (void)state;
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

static void test_added_tokens(void **state) {
    (void)state;
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

static void test_unknown_bytes(void **state) {
    (void)state;
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
        struct tokenizer *t;
        struct error e;
        snprintf(text, sizeof text, head, rows[i].members);
        tokenizer_put(tokenizer_json, text, strlen(text));
        assert_int_equal(tokenizer_open_path(tokenizer_json, &t, &e), OK);
        assert_ids(t, "abcda", 5, rows[i].ids, rows[i].n);
        tokenizer_close_clean(t);
    }
    char text[1024];
    snprintf(text, sizeof text, head, ",\"unk_token\":\"#\"");
    expect_text_failure(text, META, "unk_token");
}

/* Patterns for which PCRE2's and Oniguruma's syntax or Unicode differ; expected: Oniguruma. */
static void test_patterns_as_oniguruma(void **state) {
    (void)state;
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
    IDS(t,
        "\xf0\x9e\x93\x90"
        "b",
        0xF0, 0x9E, 0x93, 256);
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("\\\\d*")}); /* a regex with empty matches */
    IDS(t, "ab1bc", 'a', 'b', '1', 'b', 'c');
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("z"),
                                    .normalizer = "null"}); /* text between matches forms pieces */
    IDS(t, "abzbce\xcc\x81", AB, 'z', BC, 'e', 0xCC, 0x81);
    tokenizer_close_clean(t);
}

static void put_in_folder(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/old/%s", tokenizer_folder, name);
    if (text)
        tokenizer_put(path, text, strlen(text));
    else
        unlink(path);
}

static void test_vocab_json_and_merges_txt(void **state) {
    (void)state;
    char path[64];
    struct tokenizer *t;
    struct error e;
    snprintf(path, sizeof path, "%s/old", tokenizer_folder);
    assert_int_equal(mkdir(path, 0777), 0);
    expect_open_failure(path, MISSING, "tokenizer");
    put_in_folder("vocab.json", "{\"a\":0,\"b\":1,\"#\":2,\"##\":3,\"ab\":4}");
    expect_open_failure(path, MISSING, "merges.txt");
    put_in_folder("merges.txt", "#version: 0.2\n# #\r\na b\n\n");
    put_in_folder("added_tokens.json", "{\"<x>\":5,\"<y>\":6}");
    put_in_folder("special_tokens_map.json", "{\"eos_token\":{\"content\":\"<x>\"}}");
    assert_int_equal(tokenizer_open_path(path, &t, &e), OK);
    IDS(t, "ab##<x>b<y>", 4, 3, 5, 1, 6);
    tokenizer_close_clean(t);
    put_in_folder("tokenizer_config.json",
                  "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"added_tokens_decoder\":{"
                  "\"7\":{\"content\":\"<z>\",\"special\":true}}}");
    assert_int_equal(tokenizer_open_path(path, &t, &e), OK);
    IDS(t, "a<z>", 0, 7);
    assert_int_equal(tokenizer_special(t, "<x>"), -1);
    tokenizer_close_clean(t);
    put_in_folder("tokenizer_config.json", "{\"added_tokens_decoder\":{\"x7\":{\"content\":\"<z>\"}}}");
    expect_open_failure(path, META, "x7");
    put_in_folder("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizer\"}");
    expect_open_failure(path, UNSUPPORTED, "LlamaTokenizer");
    put_in_folder("tokenizer_config.json", NULL);
    put_in_folder("merges.txt", "a b c\n");
    expect_open_failure(path, META, "two parts");
    put_in_folder("merges.txt", "a \xff\n");
    expect_open_failure(path, UTF8, "byte 2");
    static const char *const names[] = {"vocab.json", "merges.txt", "added_tokens.json",
                                        "special_tokens_map.json"};
    for (int i = 0; i < 4; i++) put_in_folder(names[i], NULL);
    assert_int_equal(rmdir(path), 0);
}

static void test_t01_damaged_json(void **state) {
    (void)state;
    char *text = write_json((struct recipe){0});
    for (size_t n = 0; n < strlen(text); n++) {
        struct tokenizer *t;
        struct error e;
        tokenizer_put(tokenizer_json, text, n);
        assert_int_equal(tokenizer_open_path(tokenizer_json, &t, &e), JSON);
    }
    free(text);
    char *deep = malloc(1000001);
    memset(deep, '[', 1000000);
    deep[1000000] = 0;
    expect_text_failure(deep, LIMIT, "nested");
    free(deep);
    tokenizer_put(tokenizer_json, "{", 1);
    assert_int_equal(truncate(tokenizer_json, (off_t)2 << 30), 0);
    expect_open_failure(tokenizer_json, LIMIT, "256000000");
    expect_text_failure("[]", META, "an object");
    expect_text_failure("{}", META, "pre_tokenizer");
}

static void test_t02_vocabulary(void **state) {
    (void)state;
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

static void test_t03_merges(void **state) {
    (void)state;
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

static void test_t04_added_tokens(void **state) {
    (void)state;
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

static void test_t05_lengths_and_template(void **state) {
    (void)state;
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

static void test_t06_unsupported(void **state) {
    (void)state;
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

static void test_t06_backtracking(void **state) {
    (void)state;
    struct tokenizer *t = open_recipe((struct recipe){.pre_tokenizer = SPLIT("(a+)+(b|c)")});
    struct error e = {0};
    int32_t *ids;
    int n;
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    assert_int_equal(tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40, &ids, &n, &e),
                     LIMIT);
    hang_guard(0, 0);
    assert_null(ids);
    assert_non_null(strstr(e.where, tokenizer_folder));
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

static void test_t14_texts(void **state) {
    (void)state;
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
static void test_linear_time(void **state) {
    (void)state;
    struct tokenizer *t =
        open_recipe((struct recipe){.added = "{\"id\":300,\"content\":\"<|end|>\",\"lstrip\":true}"});
    expect_linear_time(t, (const char *const[]){"abcxxbca", "\xcc\x81\xcc\xa3", "  \t ", "<|en",
                                                "\xcc\xa3\xe3\x82\x99\xcc\x95", NULL});
    tokenizer_close_clean(t);
}

static void test_every_allocation_fails(void **state) {
    (void)state;
    static const char text[] = "abc e\xcc\x81 <|end|> xx\n";
    char *json =
        write_json((struct recipe){.model = "\"ignore_merges\":true",
                                   .added = "{\"id\":300,\"content\":\"e\\u0301\",\"normalized\":true}"});
    tokenizer_put(tokenizer_json, json, strlen(json));
    free(json);
    expect_memory_failures(tokenizer_json, text);
}

/* Fails one of Jansson's allocations: a JSON member lost in this way would silently give other tokens. */
static long json_calls, json_fails_at;
static void *failing_json_alloc(size_t bytes) {
    if (++json_calls == json_fails_at) return NULL;
#ifdef __SANITIZE_ADDRESS__
    __lsan_disable(); /* Jansson leaks when its allocations fail */
    void *memory = malloc(bytes);
    __lsan_enable();
    return memory;
#else
    return malloc(bytes);
#endif
}

static void test_every_json_allocation_fails(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct error e = {0};
    tokenizer_close_clean(open_recipe((struct recipe){.model = "\"ignore_merges\":true"}));
    sys_init_machine(&tokenizer_sys);
    json_calls = 0;
    assert_int_equal(tokenizer_open(&tokenizer_sys, tokenizer_json, &t, &e), OK);
    tokenizer_close_clean(t);
    long n = json_calls;
    assert_true(n > 100);
    for (long at = 1; at <= n; at++) {
        sys_init_machine(&tokenizer_sys);
        e = (struct error){0};
        json_calls = 0;
        json_fails_at = at;
        enum status status = tokenizer_open(&tokenizer_sys, tokenizer_json, &t, &e);
        if (status != MEMORY) fail_msg("allocation %ld: %s %s", at, status_name(status), e.what);
        tokenizer_close_clean(t);
    }
    json_fails_at = 0;
}

static void test_open_bytes(void **state) {
    (void)state;
    struct stat s;
    tokenizer_close_clean(open_recipe((struct recipe){0}));
    assert_int_equal(stat(tokenizer_json, &s), 0);
    uint64_t bound = tokenizer_open_bytes(&tokenizer_sys, tokenizer_json);
    assert_true(bound > (uint64_t)s.st_size);
    assert_int_equal(tokenizer_open_bytes(&tokenizer_sys, tokenizer_folder), bound);
    assert_int_equal(truncate(tokenizer_json, 10 * s.st_size), 0);
    assert_true(tokenizer_open_bytes(&tokenizer_sys, tokenizer_json) > bound);
}

int main(void) {
    json_set_alloc_funcs(failing_json_alloc, free); /* set before the first use of Jansson */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_unknown_bytes),
        cmocka_unit_test(test_patterns_as_oniguruma),
        cmocka_unit_test(test_vocab_json_and_merges_txt),
        cmocka_unit_test(test_t01_damaged_json),
        cmocka_unit_test(test_t02_vocabulary),
        cmocka_unit_test(test_t03_merges),
        cmocka_unit_test(test_t04_added_tokens),
        cmocka_unit_test(test_t05_lengths_and_template),
        cmocka_unit_test(test_t06_unsupported),
        cmocka_unit_test(test_t06_backtracking),
        cmocka_unit_test(test_t14_texts),
        cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_every_json_allocation_fails),
        cmocka_unit_test(test_open_bytes),
    };
    int n = sizeof tests / sizeof *tests,
        failed = cmocka_run_group_tests(tests, tokenizer_make_folder, tokenizer_remove_folder);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
