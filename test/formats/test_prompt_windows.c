/* Prompts in windows of 77 tokens with weighted words, against AUTOMATIC1111's web UI
 * (test/golden/windows.py). Also tests rules that only Sluice has: other padding tokens, the maximum number
 * of windows, BREAK within brackets, invalid weights. */
#include "engine/open/prompt_syntax.h"
#include "engine/open/prompt.h"
#include "engine/base/random.h"
#include "test/lib/check.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 77, WINDOWS = 64 };

static struct sys machine;
static struct tokenizer *tokenizer;
static int32_t first, last;
static const struct text_recipe clip = {.bos = "<|startoftext|>",
                                        .eos = "<|endoftext|>",
                                        .pad = "<|endoftext|>",
                                        .tokens_max = TOKENS,
                                        .windows_max = WINDOWS};

static struct prompt_tokens encode_by(const struct text_recipe *recipe, const char *text, bool weighs,
                                      enum status wanted) {
    struct prompt_tokens tokens;
    struct error e = {0};
    char line[1024];
    enum status code = prompt_encode(&machine, recipe, tokenizer, text, strlen(text), weighs, &tokens, &e);
    check(code == wanted, "\"%.40s\": %s", text, error_line(&e, line, sizeof line));
    return tokens;
}

/* Checks one window: start and end token, padding, ids and weights. */
static void check_window(const struct prompt_tokens *tokens, int window, const json_t *ids,
                         const json_t *weights, const char *text) {
    const int32_t *id = tokens->ids + window * TOKENS;
    const float *weight = tokens->weights ? tokens->weights + window * TOKENS : NULL;
    int n = (int)json_array_size(ids);
    bool same = id[0] == first && id[n + 1] == last;
    for (int i = 0; i < n; i++) same &= id[1 + i] == json_integer_value(json_array_get(ids, (size_t)i));
    for (int i = n + 2; i < TOKENS; i++) same &= id[i] == last;
    check(same, "\"%s\": wrong ids in window %d", text, window);
    for (int i = 0; i < TOKENS && weight; i++) {
        const json_t *wanted = i && i <= n ? json_array_get(weights, (size_t)i - 1) : NULL;
        check(weight[i] == (wanted ? (float)json_number_value(wanted) : 1),
              "\"%s\": wrong weight %d in window %d", text, i, window);
    }
}

static void test_windows_equal_webui(void) {
    json_t *cases = json_load_file("test/golden/windows.json", 0, NULL), *one;
    size_t i;
    check(json_array_size(cases) > 100, "the reference data are missing");
    json_array_foreach(cases, i, one) {
        const char *text = json_string_value(json_object_get(one, "text"));
        const json_t *ids = json_object_get(one, "ids"), *weights = json_object_get(one, "weights");
        int n = (int)json_array_size(ids);
        struct prompt_tokens tokens =
            encode_by(&clip, text, json_is_true(json_object_get(one, "weighs")), OK);
        check(tokens.n_ids == n * TOKENS && tokens.window == TOKENS && !tokens.cut, "\"%s\": %d ids", text,
              tokens.n_ids);
        check(!tokens.weights == !weights, "\"%s\": weights although all are 1, or none", text);
        check(tokens.pooled_row == (int)json_array_size(json_array_get(ids, 0)) + 1, "\"%s\": pooled row %d",
              text, tokens.pooled_row);
        for (int k = 0; k < n && tokens.n_ids == n * TOKENS; k++)
            check_window(&tokens, k, json_array_get(ids, (size_t)k), json_array_get(weights, (size_t)k),
                         text);
        prompt_destroy(&machine, &tokens);
    }
    json_decref(cases);
}

/* OpenCLIP pads with another token than CLIP; the tokens before the padding are equal. */
static void test_padding_token(void) {
    struct text_recipe open = clip;
    open.pad = NULL;
    open.pad_with_id_0 = true;
    struct prompt_tokens a = encode_by(&clip, "a fox BREAK b", true, OK),
                         b = encode_by(&open, "a fox BREAK b", true, OK);
    bool ended = false;
    check(a.n_ids == 2 * TOKENS && b.n_ids == a.n_ids, "%d and %d ids", a.n_ids, b.n_ids);
    for (int i = 0; i < a.n_ids && b.n_ids == a.n_ids; i++) {
        if (i % TOKENS == 0) ended = false;
        check(b.ids[i] == (ended ? 0 : a.ids[i]), "id %d is %d", i, (int)b.ids[i]);
        ended |= a.ids[i] == last;
    }
    prompt_destroy(&machine, &a);
    prompt_destroy(&machine, &b);
    /* The padding token of the tokenizer's folder overrides the recipe's. */
    check(prompt_pad(&clip, tokenizer) == last && prompt_pad(&open, tokenizer) == 0,
          "wrong padding token of a recipe");
    tokenizer_set_pad(tokenizer, 7);
    a = encode_by(&clip, "a", true, OK);
    check(a.n_ids == TOKENS && a.ids[TOKENS - 1] == 7, "padding token of the folder is not used");
    tokenizer_set_pad(tokenizer, -1);
    prompt_destroy(&machine, &a);
}

static void test_window_limit(void) {
    static char text[2 * 75 * WINDOWS + 8];
    for (int more = -1; more < 2; more++) {
        int n = 75 * WINDOWS + more;
        for (int i = 0; i < n; i++) memcpy(text + 2 * i, " a", 3);
        struct prompt_tokens tokens = encode_by(&clip, text, true, OK);
        check(tokens.n_ids == WINDOWS * TOKENS && tokens.cut == (more > 0), "%d tokens: %d ids, cut %d", n,
              tokens.n_ids, tokens.cut);
        prompt_destroy(&machine, &tokens);
    }
    struct text_recipe two = clip;
    two.windows_max = 2;
    struct prompt_tokens tokens = encode_by(&two, "a BREAK b BREAK c", true, OK);
    check(tokens.n_ids == 2 * TOKENS && tokens.cut, "%d ids, cut %d", tokens.n_ids, tokens.cut);
    prompt_destroy(&machine, &tokens);
    tokens = encode_by(&two, "a BREAK b BREAK BREAK", true, OK);
    check(tokens.n_ids == 2 * TOKENS && !tokens.cut, "%d ids, cut %d", tokens.n_ids, tokens.cut);
    prompt_destroy(&machine, &tokens);
}

/* Checks the weighted pieces of a prompt, written "text|weight text|weight", with / for BREAK. */
static void expect_pieces(const char *text, const char *wanted) {
    struct emphasis m;
    struct error e = {0};
    char found[256] = "";
    size_t n = 0;
    check(emphasis_read(&machine, text, strlen(text), &m, &e) == OK, "\"%s\": %s", text, e.what);
    for (int i = 0; i < m.n_pieces; i++)
        if (m.piece[i].breaks)
            n += (size_t)snprintf(found + n, sizeof found - n, "/");
        else
            n += (size_t)snprintf(found + n, sizeof found - n, "%.*s|%g ", (int)m.piece[i].bytes,
                                  m.text + m.piece[i].first, m.piece[i].weight);
    check(!strcmp(found, wanted), "\"%s\" is split as %s", text, found);
    emphasis_destroy(&machine, &m);
}

static void test_bracket_rules(void) {
    expect_pieces("(a BREAK b:1.5)", "a|1.5 /b|1.5 ");
    expect_pieces("(a:1.2.3)", "a:1.2.3|1.1 ");
    expect_pieces("(a:1.5", "a:1.5|1.1 ");
    expect_pieces("(a:--1)", "a:--1|1.1 ");
    expect_pieces("(a:1000)(b:-1000)", "a|1000 b|-1000 ");
    expect_pieces("", "");
    expect_pieces("()", "");
    expect_pieces("\\(a\\)", "(a)|1 ");
    expect_pieces("(a)(b)", "ab|1.1 ");
    expect_pieces("(a[b)c]", "a|1.1 b|1 c|0.909091 ");
}

/* Random brackets: pieces are consecutive parts of the text, and neighbours have different weights. */
static void test_random_brackets(void) {
    static const char *const parts[] = {"(",      ")",     "[", "]", "\\", ":",       ":1.2)",
                                        ": .5 )", "BREAK", " ", "a", ",",  "\xc3\xa9"};
    const uint64_t n_parts = sizeof parts / sizeof *parts;
    uint64_t random = 5;
    for (int i = 0; i < 5000; i++) {
        char text[160] = "";
        struct emphasis m;
        struct error e = {0};
        size_t at = 0;
        for (uint64_t k = random_below(&random, 24); k > 0; k--)
            strcat(text, parts[random_below(&random, n_parts)]);
        enum status code = emphasis_read(&machine, text, strlen(text), &m, &e);
        bool good = code == OK;
        for (int k = 0; k < m.n_pieces && good; k++) {
            good &= m.piece[k].first == at && m.piece[k].breaks == !m.piece[k].bytes;
            good &= !k || m.piece[k].breaks || m.piece[k - 1].breaks ||
                    m.piece[k].weight != m.piece[k - 1].weight;
            at += m.piece[k].bytes;
        }
        check(good, "\"%s\": %s", text, e.what);
        emphasis_destroy(&machine, &m);
    }
}

static void test_invalid_weights_refused(void) {
    static char many[4 * EMPHASIS_BRACKETS_MAX + 8];
    memset(many, '(', EMPHASIS_BRACKETS_MAX + 1);
    prompt_destroy(&machine, &(struct prompt_tokens){0});
    struct prompt_tokens tokens = encode_by(&clip, many, true, USAGE);
    prompt_destroy(&machine, &tokens);
    tokens = encode_by(&clip, many, false, OK);
    prompt_destroy(&machine, &tokens);
    many[EMPHASIS_BRACKETS_MAX] = 0; /* nested brackets multiply to 1.1 to the power 1000 */
    strcat(many, "a");
    tokens = encode_by(&clip, many, true, USAGE);
    prompt_destroy(&machine, &tokens);
    const char *const wrong[] = {"(a:1001)", "(a:-1000.5)", "((a:999):2)",
                                 "(a:9999999999999999999999999999)"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tokens = encode_by(&clip, wrong[i], true, USAGE);
        prompt_destroy(&machine, &tokens);
    }
    check(emphasis_detect("a (red:1.3) fox") && !emphasis_detect("a (red) fox"),
          "a prompt with explicit weights is not detected, or one without is");
}

int main(void) {
    struct error e = {0};
    sys_init_machine(&machine);
    if (tokenizer_open(&machine, "test/golden/tokens/clip", &tokenizer, &e) != OK) {
        check(false, "%s", e.what);
        return finish();
    }
    first = tokenizer_special(tokenizer, clip.bos);
    last = tokenizer_special(tokenizer, clip.eos);
    test_windows_equal_webui();
    test_padding_token();
    test_window_limit();
    test_bracket_rules();
    test_random_brackets();
    test_invalid_weights_refused();
    tokenizer_close(tokenizer);
    check(sys_memory_use(&machine).live_bytes[LINE_HOST] == 0, "memory leaks");
    return finish();
}
