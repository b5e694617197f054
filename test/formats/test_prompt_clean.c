/* Prompt cleaning of Wan's pipelines (HTML references, white space), compared with diffusers
 * (test/golden/prompt_clean.py): the supported names, numeric references at the edges of Unicode, all white
 * space. Also other names, invalid UTF-8, and long texts. */
#include "engine/open/prompt.h"
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

static void test_cases_equal_diffusers(void) {
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

static void test_other_names_stay(void) {
    static const char text[] = "&clubs; &eacute &AMP; &NotEqualTilde; &nbs; &apos";
    struct error e = {0};
    size_t bytes = 0;
    char *got = NULL;
    prompt_clean(&machine, text, strlen(text), &got, &bytes, &e);
    check(got && bytes == strlen(text) && !memcmp(got, text, bytes), "\"%s\" became \"%.*s\" %s", text,
          (int)bytes, got ? got : "", e.what);
    machine.release(&machine, got);
}

static void test_invalid_utf8_refused(void) {
    struct error e = {0};
    size_t bytes = 0;
    char *got = NULL;
    check(prompt_clean(&machine, "fox \xff", 5, &got, &bytes, &e) == UTF8 && !got,
          "invalid UTF-8 is accepted: %s", e.what);
}

/* A million bytes of ampersands, incomplete references or blanks take linear time and memory. */
static void test_long_texts_in_linear_time(void) {
    static const char *const parts[] = {"&", "&#", "&#x", "&nbs", " "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t part = strlen(parts[i]), n = 1000000 / part, bytes = 0;
        char *text = malloc(n * part), *got = NULL;
        struct error e = {0};
        if (!text) abort();
        for (size_t k = 0; k < n; k++) memcpy(text + k * part, parts[i], part);
        prompt_clean(&machine, text, n * part, &got, &bytes, &e);
        size_t want = !strcmp(parts[i], " ") ? 0 : n * part;
        check(got && bytes == want, "\"%s\" a million times: %zu bytes instead of %zu", parts[i], bytes,
              want);
        machine.release(&machine, got);
        free(text);
    }
}

int main(void) {
    sys_init_machine(&machine);
    test_cases_equal_diffusers();
    test_other_names_stay();
    test_invalid_utf8_refused();
    test_long_texts_in_linear_time();
    struct memory_use use = sys_memory_use(&machine);
    check(!use.live_bytes[LINE_HOST], "%lld bytes leak", (long long)use.live_bytes[LINE_HOST]);
    return finish();
}
