/* Prompts as WAN's pipelines clean them, against diffusers' (test/golden/prompt_clean.py): every name that
 * HTML has for a character, numbers at the edges of what is one, white space of all kinds; and what is not
 * text, or has no memory. */
#include "engine/open/prompt_clean.h"
#include "test/lib/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct sys machine;

static json_t *read_cases(void) {
    enum { MOST = 1 << 22 };
    gzFile file = gzopen("test/golden/tokens/cleaned.json.gz", "rb");
    char *text = malloc(MOST);
    int n = file && text ? gzread(file, text, MOST) : 0;
    json_t *cases = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    free(text);
    if (file) gzclose(file);
    return cases;
}

static void test_cases(void) {
    json_t *cases = read_cases(), *row;
    size_t i;
    check(json_array_size(cases) > 700, "only %zu cases", json_array_size(cases));
    json_array_foreach(cases, i, row) {
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "cleaned");
        struct error e = {0};
        char *got = NULL;
        size_t bytes = 0;
        prompt_clean(&machine, json_string_value(text), json_string_length(text), &got, &bytes, &e);
        check(got && bytes == json_string_length(want) && !memcmp(got, json_string_value(want), bytes),
              "case %zu: \"%s\" became \"%.*s\", not \"%s\" %s", i, json_string_value(text), (int)bytes,
              got ? got : "", json_string_value(want), e.what);
        machine.release(&machine, got);
    }
    json_decref(cases);
}

static void test_wrong_text(void) {
    struct error e = {0};
    size_t bytes = 0;
    char *got = NULL;
    check(prompt_clean(&machine, "fox \xff", 5, &got, &bytes, &e) == UTF8 && !got, "no UTF-8: %s", e.what);
}

/* A sign and nothing behind it, a million times; the same of a name that stands for more bytes than it has.
 */
static void test_long_texts(void) {
    static const char *const parts[] = {"&", "&#", "&nGt;", "&#x", "&CounterClockwiseContourIntegra", " "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t part = strlen(parts[i]), n = 1000000 / part, bytes = 0;
        char *text = malloc(n * part), *got = NULL;
        struct error e = {0};
        if (!text) abort();
        for (size_t k = 0; k < n; k++) memcpy(text + k * part, parts[i], part);
        prompt_clean(&machine, text, n * part, &got, &bytes, &e);
        size_t want = !strcmp(parts[i], " ") ? 0 : !strcmp(parts[i], "&nGt;") ? n * 6 : n * part;
        check(got && bytes == want, "a million of \"%s\": %zu bytes, not %zu", parts[i], bytes, want);
        machine.release(&machine, got);
        free(text);
    }
}

int main(void) {
    sys_init_machine(&machine);
    test_cases();
    test_wrong_text();
    test_long_texts();
    struct memory_use use = sys_memory_use(&machine);
    check(!use.live_bytes[LINE_HOST], "%lld bytes are left", (long long)use.live_bytes[LINE_HOST]);
    return finish();
}
