#include "test/lib/tokenizer_files.h"

#include "bench/dev/synthetic_tokenizer.h"

#include <jansson.h>
#include <math.h>
#include <time.h>
#include <zlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

struct sys tokenizer_sys;

static void assert_nothing_left(void) {
    assert_int_equal(sys_memory_use(&tokenizer_sys).live_bytes[LINE_HOST], 0);
}

enum status tokenizer_open_path(const char *path, struct tokenizer **t, struct error *e) {
    enum { OURS_MAX = 64 << 20 };
    *e = (struct error){0};
    sys_init_machine(&tokenizer_sys);
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    enum status status = tokenizer_open(&tokenizer_sys, path, t, e);
    hang_guard(0, 0);
    assert_int_equal(status, e->code);
    assert_true(sys_memory_use(&tokenizer_sys).peak_bytes[LINE_HOST] <= malformed_size(path) + OURS_MAX);
    if (status == OK) return OK;
    assert_null(*t);
    assert_nothing_left();
    return status;
}

static struct tokenizer *open_good(const char *path, const char *kind) {
    struct tokenizer *t;
    struct error e;
    char line[1024];
    if (tokenizer_open_path(path, &t, &e)) fail_msg("%s", error_line(&e, line, sizeof line));
    if (kind) assert_string_equal(tokenizer_kind(t), kind);
    return t;
}

struct tokenizer *tokenizer_open_good(const char *name, const char *kind) {
    return open_good(malformed_path(name), kind);
}

void tokenizer_close_clean(struct tokenizer *t) {
    tokenizer_close(t);
    assert_nothing_left();
}

void assert_ids(struct tokenizer *t, const char *text, size_t bytes, const int32_t *want, int n) {
    struct error e = {0};
    int32_t *ids;
    int got;
    char line[1024];
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    if (tokenizer_encode(t, text, bytes, &ids, &got, &e)) fail_msg("%s", error_line(&e, line, sizeof line));
    hang_guard(0, 0);
    if (got != n || (n && memcmp(ids, want, (size_t)n * sizeof *ids)))
        fail_msg("\"%.100s\": %d ids, first %d, expected %d", text, got, got ? ids[0] : -1, n);
    tokenizer_sys.release(&tokenizer_sys, ids);
}

void expect_open_failure(const char *name, enum status code, const char *word) {
    struct tokenizer *t;
    struct error e;
    char line[2048];
    if (tokenizer_open_path(malformed_path(name), &t, &e) == OK)
        fail_msg("opened, expected %s: %s", status_name(code), word);
    error_line(&e, line, sizeof line);
    if (e.code != code || !strstr(line, word) || !strstr(e.where, malformed_path("")))
        fail_msg("%s: %s; expected %s: %s", status_name(e.code), line, status_name(code), word);
}

void expect_text_failure(const char *name, const char *text, enum status code, const char *word) {
    malformed_write_text(name, text);
    expect_open_failure("", code, word);
}

void compare_cases(const char *model, const char *cases) {
    json_t *list = json_load_file(cases, JSON_ALLOW_NUL, NULL), *one;
    size_t i;
    assert_true(json_array_size(list) > 0);
    struct tokenizer *t = open_good(model, NULL);
    json_array_foreach(list, i, one) {
        const json_t *text = json_object_get(one, "text"), *ids = json_object_get(one, "ids");
        int32_t want[65536];
        assert_true(json_is_string(text) && json_array_size(ids) < 65536);
        for (size_t k = 0; k < json_array_size(ids); k++)
            want[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        assert_ids(t, json_string_value(text), json_string_length(text), want, (int)json_array_size(ids));
    }
    json_decref(list);
    tokenizer_close_clean(t);
}

void tokenizer_unpack(const char *kind, const char *name) {
    char path[256], bytes[4096];
    snprintf(path, sizeof path, "test/golden/tokens/%s/%s", kind, name);
    if (access(path, R_OK)) snprintf(path, sizeof path, "test/golden/tokens/%s/%s.gz", kind, name);
    gzFile from = gzopen(path, "rb");
    FILE *to = fopen(malformed_path(name), "wb");
    assert_true(from && to);
    for (int n; (n = gzread(from, bytes, sizeof bytes)) > 0;)
        assert_int_equal(fwrite(bytes, 1, (size_t)n, to), n);
    assert_int_equal(gzclose(from), Z_OK);
    assert_int_equal(fclose(to), 0);
}

void compare_packed(const char *kind, const char *const *files) {
    for (int i = 0; files[i]; i++) tokenizer_unpack(kind, files[i]);
    tokenizer_unpack(kind, "cases.json");
    compare_cases(malformed_path(""), malformed_path("cases.json"));
    malformed_write_text("cases.json", NULL);
    for (int i = 0; files[i]; i++) malformed_write_text(files[i], NULL);
}

static const char *failing_name, *failing_text;

static enum status open_and_encode(struct sys *sys, struct error *e) {
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int n_ids;
    if (!tokenizer_open(sys, malformed_path(failing_name), &t, e))
        tokenizer_encode(t, failing_text, strlen(failing_text), &ids, &n_ids, e);
    sys->release(sys, ids);
    tokenizer_close(t);
    return e->code;
}

void expect_memory_failures(const char *name, const char *text) {
    failing_name = name, failing_text = text;
    assert_true(malformed_fail_allocations(open_and_encode) > 10);
}

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

void json_failures_set_up(void) {
    json_set_alloc_funcs(failing_json_alloc, free);
}

void expect_json_failures(const char *name) {
    struct tokenizer *t = NULL;
    struct error e = {0};
    sys_init_machine(&tokenizer_sys);
    json_calls = 0;
    assert_int_equal(tokenizer_open(&tokenizer_sys, malformed_path(name), &t, &e), OK);
    tokenizer_close_clean(t);
    long n = json_calls;
    assert_true(n > 100);
    for (long at = 1; at <= n; at++) {
        e = (struct error){0};
        json_calls = 0;
        json_fails_at = at;
        enum status status = tokenizer_open(&tokenizer_sys, malformed_path(name), &t, &e);
        if (status != MEMORY) fail_msg("allocation %ld: %s %s", at, status_name(status), e.what);
        tokenizer_close_clean(t);
    }
    json_fails_at = 0;
}

/* Returns the CPU seconds of this thread to encode the text: the best of n. Other programs' load changes wall
 * time. */
static double seconds(struct tokenizer *t, const char *text, size_t bytes, int n) {
    double best = 1e9;
    for (int i = 0; i < n; i++) {
        struct error e = {0};
        struct timespec start, end;
        int32_t *ids;
        int n_ids;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        hang_guard(HANG_SECONDS, WAIT_SECONDS);
        assert_int_equal(tokenizer_encode(t, text, bytes, &ids, &n_ids, &e), OK);
        hang_guard(0, 0);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        double took = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        if (took < best) best = took;
        tokenizer_sys.release(&tokenizer_sys, ids);
    }
    return best;
}

void expect_linear_time(struct tokenizer *t, const char *const *units) {
    enum { LONG = 1000000, TRIES = 5 };
    struct bytes text = {0};
    for (size_t i = 0; units[i]; i++, text.n = 0) {
        size_t unit = strlen(units[i]), n = LONG / unit;
        for (size_t k = 0; k < n; k++) bytes_put(&text, units[i], unit);
        double tenth = seconds(t, (char *)text.at, n / 10 * unit, TRIES), whole = 1e9;
        /* An encoder of quadratic time would take a hundred times as long. */
        for (int k = 0; k < TRIES && whole > 40 * tenth + 0.01; k++)
            whole = fmin(whole, seconds(t, (char *)text.at, n * unit, 1));
        if (whole > 40 * tenth + 0.01)
            fail_msg("unit %zu: %.4f s, ten times the text %.4f s", i, tenth, whole);
    }
    free(text.at);
}

struct tokenizer *open_synthetic(const char *kind, int n_ids, const char *without) {
    struct synthetic_tokenizer made;
    struct error e = {0};
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(synthetic_tokenizer_make(&tokenizer_sys, kind, n_ids, &made, &e), OK);
    assert_nothing_left();
    for (int i = 0; i < made.n_files; i++)
        if (!without || strcmp(made.files[i].name, without))
            malformed_write(made.files[i].name, made.files[i].text, made.files[i].bytes);
    struct tokenizer *t = tokenizer_open_good("", NULL);
    assert_non_null(strstr(kind, tokenizer_kind(t)));
    for (int i = 0; i < made.n_files; i++) malformed_write_text(made.files[i].name, NULL);
    synthetic_tokenizer_destroy(&made);
    return t;
}

void expect_synthetic_failure(const char *kind, int n_ids, const char *word) {
    struct synthetic_tokenizer made;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(synthetic_tokenizer_make(&tokenizer_sys, kind, n_ids, &made, &e), USAGE);
    assert_int_equal(made.n_files, 0);
    assert_non_null(strstr(error_line(&e, line, sizeof line), word));
}

int gpt2_character(int byte) {
    if (byte <= 32) return 256 + byte;
    if (byte == 0x7F) return 289;
    if (byte >= 0x80 && byte <= 0xA0) return 290 + byte - 0x80;
    return byte == 0xAD ? 323 : byte;
}
