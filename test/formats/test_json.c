/* The JSON reader against Jansson's parser, and documents with failing allocations. */
#include "test/lib/cmocka_tests.h"
#include <locale.h>

#include "engine/base/random.h"
#include "loaders/json.h"

/* Allocator of an embedding program, with a header before each block, which free() must not release. */
enum { HEADER = 32 };
static long calls, fails_at, live;

static void *embedder_alloc(size_t bytes) {
    if (++calls == fails_at) return NULL;
    char *memory = malloc(HEADER + bytes);
    live += memory != NULL;
    return memory ? memory + HEADER : NULL;
}

static void embedder_free(void *memory) {
    if (!memory) return;
    live--;
    free((char *)memory - HEADER);
}

static enum status decode(const char *text, uint64_t bytes, size_t flags, json_t **root) {
    struct error e = {0};
    struct json_text whole = {.path = "row", .text = text, .bytes = bytes};
    /* The copy is exactly as long as the text, so that a sanitizer detects reads beyond it. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    whole.text = copy;
    enum status status = json_decode(&whole, flags, root, &e);
    free(copy);
    assert_int_equal(status, e.code);
    assert_int_equal(status == OK, *root != NULL);
    return status;
}

/* Compares the two parsers: they must give equal values, or both give an error. */
static void compare(const char *text, uint64_t bytes, size_t flags) {
    json_error_t failure;
    json_t *ours,
        *theirs = json_loadb(text, bytes, flags | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &failure);
    enum status status = decode(text, bytes, flags, &ours);
    if ((status == OK) != (theirs != NULL))
        fail_msg("'%.*s': %s, Jansson: '%s'", (int)bytes, text, status_name(status),
                 theirs ? "" : failure.text);
    if (theirs && !json_equal(ours, theirs))
        fail_msg("'%.*s': another value than Jansson's", (int)bytes, text);
    json_decref(ours);
    json_decref(theirs);
}

static const char document[] =
    " {\"a\" : [1, -0, 0, -12, 0.5, 1e3, -2.25E-7, 1e+2, 123456789012345678, 9223372036854775807],\n"
    "\"\\u00e9\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\" : {\"\" : [], \"o\" : {}}, "
    "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\":"
    "[true,false , null, \"\", \"x\", [[[\"deep\"]]]], \"long\": "
    "\"0123456789abcdefghijklmnopqrstuvwxyz\"}\t\r\n";

TEST(same_as_jansson_on_syntax_cases) {
    enum { TEXTS_MAX = 40 };
    static const struct {
        enum status code;
        const char *texts[TEXTS_MAX];
    } rows[] = {
        {JSON, {"",        " ",           "{",         "[1,]",     "[,1]",
                "[1 2]",   "{\"a\":1,}",  "{\"a\" 1}", "{a:1}",    "{\"a\":1 \"b\":2}",
                "[1]x",    "[1}",         "01",        "-",        "1.",
                ".5",      "1e",          "+1",        "NaN",      "Infinity",
                "tru",     "truex",       "'a'",       "\"a",      "\"a\\\"",
                "\"\\x\"", "\"\\u12g4\"", "\"\\u12\"", "\"\x01\"", "\"\t\""}},
        {LIMIT, {"9223372036854775808", "-9223372036854775809", "1e999", "-1e999"}},
        {DUP, {"{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}"}},
        {META, {"\"\\u0000\"", "{\"\\u0000\":1}"}},
        {UTF8,
         {"\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
          "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\""}},
        {OK, {"1e-999", "-9223372036854775808", "\"\\uD83D\\uDE00\"", " null ", document}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < TEXTS_MAX && rows[i].texts[k]; k++) {
            const char *text = rows[i].texts[k];
            json_t *root;
            enum status status = decode(text, strlen(text), 0, &root);
            if (status != rows[i].code) fail_msg("'%s': %s", text, status_name(status));
            json_decref(root);
            compare(text, strlen(text), 0);
            compare(text, strlen(text), JSON_DECODE_INT_AS_REAL);
            compare(text, strlen(text), JSON_ALLOW_NUL);
        }
}

/* Compares the parsers on texts with changed, removed and inserted bytes, and on truncated texts. */
TEST(same_as_jansson_on_damaged_text) {
    static const char bytes[] = "\"\\{}[],:0-.eEu \n\x01\x80\xc3truefalsn";
    uint64_t seed = 17, n = sizeof document - 1;
    for (uint64_t cut = 0; cut <= n; cut++) compare(document, cut, 0);
    for (int round = 0; round < 20000; round++) {
        char text[sizeof document + 4];
        uint64_t length = n;
        memcpy(text, document, n);
        for (uint64_t edits = 1 + random_below(&seed, 3); edits > 0; edits--) {
            uint64_t at = random_below(&seed, length - 1);
            char byte = bytes[random_below(&seed, sizeof bytes - 1)];
            switch (random_below(&seed, 3)) {
            case 0:
                memmove(text + at, text + at + 1, --length - at);
                break;
            case 1:
                memmove(text + at + 1, text + at, length++ - at);
                /* fall through */
            default:
                text[at] = byte;
            }
        }
        compare(text, length, round & 1 ? JSON_ALLOW_NUL : 0);
    }
}

TEST(decimal_comma_locale) {
    json_t *root;
    char *before = strdup(setlocale(LC_ALL, NULL));
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    for (int i = 0; i < 3 && !setlocale(LC_ALL, names[i]); i++)
        ;
    assert_int_equal(decode("1.5", 3, 0, &root), OK);
    assert_true(json_real_value(root) == 1.5);
    json_decref(root);
    setlocale(LC_ALL, before);
    free(before);
}

TEST(parse_without_memory) {
    json_t *root;
    calls = 0;
    assert_int_equal(decode(document, sizeof document - 1, 0, &root), OK);
    json_decref(root);
    long n = calls;
    assert_true(n > 30);
    for (fails_at = 1; fails_at <= n; fails_at++) {
        calls = 0;
        assert_int_equal(decode(document, sizeof document - 1, 0, &root), MEMORY);
        assert_int_equal(live, 0);
    }
    fails_at = 0;
}

static char *build(void) {
    unsigned json_failures = failed_json_allocations();
    json_t *root = json_object(), *list = json_array();
    for (int i = 0; i < 20; i++)
        json_push(list, json_pack("{s:i, s:s}", "i", i, "name", "a name of some length"));
    json_put(root, "list", list);
    json_put(root, "number", json_real(1.5));
    json_count_failure(json_object_update_new(root, json_pack("{s:b, s:n}", "yes", 1, "nothing")));
    return json_to_text(root, JSON_INDENT(1), json_failures);
}

/* JSON output is the complete text or NULL, and free() releases it, whatever allocator Jansson uses. */
TEST(print_without_memory) {
    calls = 0;
    char *whole = build();
    assert_non_null(whole);
    assert_int_equal(live, 0);
    long n = calls;
    assert_true(n > 100);
    for (fails_at = 1; fails_at <= n; fails_at++) {
        calls = 0;
        char *text = build();
        if (text) assert_string_equal(text, whole);
        if (text) assert_true(fails_at > n / 2); /* printing alone makes fewer allocations */
        free(text);
    }
    fails_at = 0;
    free(whole);
}

/* Published tokenizer_config.json files have "model_max_length": 10^30, rounded to a double. */
TEST(integers_beyond_64_bits_in_documents) {
    static const char text[] = "[1000000000000000019884624838656, -9223372036854775809, 9223372036854775807]";
    struct error e = {0};
    json_t *root;
    assert_int_equal(json_parse("row", text, sizeof text - 1, 4, &root, &e), OK);
    assert_true(json_real_value(json_array_get(root, 0)) == 1e30);
    assert_true(json_real_value(json_array_get(root, 1)) == -0x1p63);
    assert_true(json_integer_value(json_array_get(root, 2)) == INT64_MAX);
    json_decref(root);
}

TEST(embedder_keeps_its_allocator) {
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    assert_true(alloc == embedder_alloc && release == embedder_free);
}

int main(void) {
    json_set_alloc_funcs(embedder_alloc, embedder_free);
    return run_all_tests(NULL, NULL);
}
