/* Prompts with masked padding, with templates tokenised separately and with quoted parts tokenised by
 * character, against diffusers (test/golden/prompts.py). Also text that is deleted from prompts, and stripped
 * white space. */
#include "engine/open/prompt.h"
#include "engine/open/prompt_syntax.h"
#include "test/lib/check.h"
#include "test/lib/fault_sys.h"

#include <jansson.h>
#include <string.h>

enum { TOKENS = 40 }; /* maximum number of tokens of a prompt in the fixture */

static struct sys machine;
static struct tokenizer *qwen, *t5;

/* Recipes of the fixture's forms. longcat.drop_idx differs from the template's number of tokens on purpose:
 * prompt_tokens.drop_idx must be the latter. */
static const struct text_recipe longcat = {
    .template_before = "<|im_start|>system\nAs an expert<|im_end|>\n<|im_start|>user\n",
    .template_apart = true,
    .quotes_by_character = true,
    .pad = "<|endoftext|>",
    .masks_padding = true,
    .tokens_max = 100 + TOKENS,
    .drop_idx = 100,
    .image_prompt = {.template_before = "<|im_start|>system\nAs an expert<|im_end|>\n<|im_start|>user\n",
                     .before = "<|vision_start|>",
                     .pad = "<|image_pad|>",
                     .after = "<|vision_end|>"}};
static const struct text_recipe right = {.template_before = "<|im_start|>user\nsay: ",
                                         .template_after = "<|im_end|>\n<|im_start|>assistant\n",
                                         .pad = "<|endoftext|>",
                                         .masks_padding = true,
                                         .tokens_max = TOKENS};
static const struct text_recipe chroma = {
    .eos = "</s>", .pad = "<pad>", .masks_padding = true, .padding_max = 1, .tokens_max = TOKENS};

static int int_of(const json_t *one, const char *key) {
    return (int)json_integer_value(json_object_get(one, key));
}

static struct prompt_tokens encode(const struct text_recipe *recipe, const char *text,
                                   const json_t *pictures) {
    struct prompt_tokens tokens;
    struct error e = {0};
    int32_t n = (int32_t)json_integer_value(json_array_get(pictures, 0));
    const struct tokenizer *tokenizer = recipe->eos ? t5 : qwen;
    if (pictures)
        prompt_encode_pictured(&machine, recipe, tokenizer, text, strlen(text), &n, 1, &tokens, &e);
    else
        prompt_encode(&machine, recipe, tokenizer, text, strlen(text), true, &tokens, &e);
    check(e.code == OK, "\"%s\": %s", text, e.what);
    return tokens;
}

static void test_tokens_equal_diffusers(void) {
    json_t *cases = json_load_file("test/golden/prompts.json", 0, NULL), *one;
    struct text_recipe left = right;
    left.pads_left = true;
    size_t i;
    check(json_array_size(cases) > 100, "the reference data are missing");
    json_array_foreach(cases, i, one) {
        const char *text = json_string_value(json_object_get(one, "text"));
        const char *form = json_string_value(json_object_get(one, "form"));
        const json_t *ids = json_object_get(one, "ids");
        const struct text_recipe *recipe = !strcmp(form, "longcat")  ? &longcat
                                           : !strcmp(form, "chroma") ? &chroma
                                           : !strcmp(form, "left")   ? &left
                                                                     : &right;
        struct prompt_tokens tokens = encode(recipe, text, json_object_get(one, "pictures"));
        int n = (int)json_array_size(ids), same = tokens.n_ids == n;
        for (int k = 0; k < n && same; k++)
            same = tokens.ids[k] == json_integer_value(json_array_get(ids, (size_t)k));
        check(same, "%s, \"%s\": wrong ids, %d instead of %d", form, text, tokens.n_ids, n);
        check(tokens.first_key == int_of(one, "first_key") && tokens.n_keys == int_of(one, "n_keys"),
              "%s, \"%s\": keys %d, %d instead of %d, %d", form, text, tokens.first_key, tokens.n_keys,
              int_of(one, "first_key"), int_of(one, "n_keys"));
        check(tokens.drop_idx == int_of(one, "drop_idx"), "%s, \"%s\": %d tokens are dropped", form, text,
              tokens.drop_idx);
        prompt_destroy(&machine, &tokens);
    }
    json_decref(cases);
}

/* `cut` decides whether the user is warned of a truncated prompt. */
static void test_cut_is_reported(void) {
    static const char nines[] = "9999999999999999999999999999999999999999999999999999";
    char text[TOKENS + 8], quoted[TOKENS + 8];
    for (int n = TOKENS - 1; n <= TOKENS + 1; n++) {
        snprintf(text, sizeof text, "%.*s", n, nines);
        snprintf(quoted, sizeof quoted, "'%.*s'", n - 2, nines);
        struct prompt_tokens a = encode(&longcat, text, NULL), b = encode(&longcat, quoted, NULL);
        check(a.cut == (n > TOKENS) && b.cut == (n > TOKENS), "%d tokens: cut %d and %d", n, a.cut, b.cut);
        prompt_destroy(&machine, &a);
        prompt_destroy(&machine, &b);
    }
}

/* Words with an apostrophe keep their text. The reference confuses two such words in a prompt, so this test
 * has its own expected pieces. */
static void test_quotes(void) {
    static const char text[] = "it's 'fox's' and \"dog's\" 'a";
    static const struct {
        const char *text;
        bool quoted;
    } pieces[] = {{"it's ", false}, {"'fox's'", true}, {" and ", false}, {"\"dog's\"", true}, {" 'a", false}};
    char masked[sizeof text];
    size_t at = 0, bytes = sizeof text - 1;
    quotes_mask(text, bytes, masked);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces && at < bytes; i++) {
        bool quoted = !pieces[i].quoted;
        size_t n = quotes_piece(text, masked, at, bytes, &quoted);
        check(n == strlen(pieces[i].text) && !memcmp(text + at, pieces[i].text, n) &&
                  quoted == pieces[i].quoted,
              "\"%.*s\" instead of \"%s\"", (int)n, text + at, pieces[i].text);
        at += n;
    }
    check(at == bytes, "%d of %d bytes", (int)at, (int)bytes);
}

static void test_deleted_text(void) {
    static const char *const with[] = {"[IMG]", "a[IMG][IMG] fox[IMG]", "[IM[IMG]G]", "[IMG"};
    static const char *const without[] = {"", "a fox", "[IMG]", "[IMG"};
    struct text_recipe deleting = right;
    deleting.deleted = "[IMG]";
    for (int i = 0; i < 4; i++) {
        struct prompt_tokens a = encode(&deleting, with[i], NULL), b = encode(&right, without[i], NULL);
        check(a.n_keys == b.n_keys && !memcmp(a.ids, b.ids, (size_t)a.n_ids * sizeof *a.ids),
              "\"%s\" is not read as \"%s\"", with[i], without[i]);
        prompt_destroy(&machine, &a);
        prompt_destroy(&machine, &b);
    }
}

/* Characters as Python's str.strip removes; U+200B and white space within a prompt stay. */
static void test_stripped_space(void) {
    static const char *const with[] = {" \t\n", "  a  fox\r\n",
                                       "\x1c\x1f\xc2\x85\xc2\xa0"
                                       "a fox\xe3\x80\x80",
                                       "\xe2\x80\x8b fox\xe2\x80\x8b", "a\xe2\x80\x83"};
    static const char *const without[] = {"", "a  fox", "a fox", "\xe2\x80\x8b fox\xe2\x80\x8b", "a"};
    struct text_recipe stripping = right;
    stripping.strips = true;
    for (int i = 0; i < 5; i++) {
        struct prompt_tokens a = encode(&stripping, with[i], NULL), b = encode(&right, without[i], NULL);
        check(a.n_keys == b.n_keys && !memcmp(a.ids, b.ids, (size_t)a.n_ids * sizeof *a.ids),
              "\"%s\" is not read as \"%s\"", with[i], without[i]);
        prompt_destroy(&machine, &a);
        prompt_destroy(&machine, &b);
    }
}

/* A long prompt has the number of tokens that plans assume, also if the tokenizer splits the text after the
 * prompt into more tokens than the published one (5). */
static void test_longest_prompt(void) {
    struct text_recipe apart = right;
    struct error e = {0};
    int longest = 0, published = 0;
    char text[2 * TOKENS + 1];
    memset(text, '9', sizeof text - 1);
    text[sizeof text - 1] = 0;
    apart.pad = NULL;
    apart.template_after_tokens = 5;
    struct prompt_tokens tokens = encode(&apart, text, NULL);
    prompt_longest(&machine, &apart, qwen, &longest, &e);
    prompt_longest(&machine, &apart, NULL, &published, &e);
    check(e.code == OK && tokens.cut && tokens.n_ids == longest && longest > TOKENS && published == TOKENS,
          "%d tokens, %d assumed, %d without a tokenizer", tokens.n_ids, longest, published);
    prompt_destroy(&machine, &tokens);
}

static void test_failed_allocations(void) {
    static const char text[] = "a 'sign' with \"quotes\"";
    struct fault_sys faulty;
    struct tokenizer *tokenizer = NULL;
    struct error e = {0};
    enum status code = MEMORY;
    long n = 0;
    fault_sys_init(&faulty, 1);
    tokenizer_open(&faulty.sys, "test/golden/qwen_edit/model/tokenizer", &tokenizer, &e);
    int64_t live = fault_sys_live_bytes(&faulty);
    while (code == MEMORY && e.code == OK && n < 1000) {
        struct prompt_tokens tokens;
        struct error failure = {0};
        fault_sys_fail(&faulty, CALL_ALLOC, ++n, 0);
        code = prompt_encode_pictured(&faulty.sys, &longcat, tokenizer, text, strlen(text), (int32_t[]){6}, 1,
                                      &tokens, &failure);
        prompt_destroy(&faulty.sys, &tokens);
        check(fault_sys_live_bytes(&faulty) == live, "memory leaks after failure of allocation %ld", n);
    }
    check(code == OK && n > 20, "%s %d after failure of allocation %ld", e.what, (int)code, n);
    fault_sys_fail(&faulty, CALL_ALLOC, 0, 0);
    tokenizer_close(tokenizer);
}

int main(void) {
    struct error e = {0};
    sys_init_machine(&machine);
    check(tokenizer_open(&machine, "test/golden/qwen_edit/model/tokenizer", &qwen, &e) == OK &&
              tokenizer_open(&machine, "test/golden/flux_a/model/tokenizer_2", &t5, &e) == OK,
          "%s", e.what);
    if (e.code == OK) {
        test_tokens_equal_diffusers();
        test_cut_is_reported();
        test_quotes();
        test_deleted_text();
        test_stripped_space();
        test_longest_prompt();
        test_failed_allocations();
    }
    tokenizer_close(qwen);
    tokenizer_close(t5);
    check(sys_memory_use(&machine).live_bytes[LINE_HOST] == 0, "memory leaks");
    return finish();
}
