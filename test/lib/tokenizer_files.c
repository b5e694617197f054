#include "test/lib/tokenizer_files.h"

#include <sys/stat.h>
#include <time.h>

char tokenizer_folder[] = "/tmp/sluice_tokenizer_XXXXXX";
char tokenizer_json[64];

void tokenizer_put(const char *path, const char *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

struct sys tokenizer_sys;

void tokenizer_assert_nothing_left(void) {
    assert_int_equal(sys_memory_use(&tokenizer_sys).live_bytes[LINE_HOST], 0);
}

enum status tokenizer_open_path(const char *path, struct tokenizer **t, struct error *e) {
    *e = (struct error){0};
    struct stat s = {0};
    (void)!stat(path, &s);
    sys_init_machine(&tokenizer_sys);
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    enum status status = tokenizer_open(&tokenizer_sys, path, t, e);
    hang_guard(0, 0);
    assert_int_equal(status, e->code);
    assert_true(sys_memory_use(&tokenizer_sys).peak_bytes[LINE_HOST] <= s.st_size + OURS_MAX);
    if (status == OK) return OK;
    assert_null(*t);
    tokenizer_assert_nothing_left();
    return status;
}

void tokenizer_close_clean(struct tokenizer *t) {
    tokenizer_close(t);
    tokenizer_assert_nothing_left();
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

void expect_open_failure(const char *path, enum status code, const char *text_in_error) {
    struct tokenizer *t;
    struct error e;
    char line[2048];
    if (tokenizer_open_path(path, &t, &e) == OK)
        fail_msg("opened, expected %s: %s", status_name(code), text_in_error);
    error_line(&e, line, sizeof line);
    if (e.code != code || !strstr(line, text_in_error) || !strstr(e.where, tokenizer_folder))
        fail_msg("%s: %s; expected %s: %s", status_name(e.code), line, status_name(code), text_in_error);
}

void compare_cases(const char *model, const char *cases) {
    struct tokenizer *t;
    struct error e;
    char line[1024];
    json_t *list = json_load_file(cases, JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(list) > 0);
    if (tokenizer_open_path(model, &t, &e) != OK) fail_msg("%s", error_line(&e, line, sizeof line));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_object_get(json_array_get(list, i), "text");
        const json_t *ids = json_object_get(json_array_get(list, i), "ids");
        int32_t want[65536];
        assert_true(json_is_string(text) && json_array_size(ids) < 65536);
        for (size_t k = 0; k < json_array_size(ids); k++)
            want[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        assert_ids(t, json_string_value(text), json_string_length(text), want, (int)json_array_size(ids));
    }
    json_decref(list);
    tokenizer_close_clean(t);
}

/* Returns the CPU time of this thread. Wall time would include other programs' load. */
static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the CPU seconds to encode the text: the best of five. */
static double seconds(struct tokenizer *t, const char *text, size_t bytes) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        struct error e = {0};
        int32_t *ids;
        int n;
        double start = processor_seconds();
        hang_guard(HANG_SECONDS, WAIT_SECONDS);
        assert_int_equal(tokenizer_encode(t, text, bytes, &ids, &n, &e), OK);
        hang_guard(0, 0);
        double took = processor_seconds() - start;
        if (took < best) best = took;
        tokenizer_sys.release(&tokenizer_sys, ids);
    }
    return best;
}

static void *(*real_alloc)(struct sys *, enum memory_line, size_t);
static int allocs_left;

static void *failing_alloc(struct sys *s, enum memory_line line, size_t bytes) {
    return allocs_left-- > 0 ? real_alloc(s, line, bytes) : NULL;
}

void expect_memory_failures(const char *path, const char *text) {
    int n = 0;
    for (enum status status = MEMORY; status != OK; n++) {
        struct tokenizer *t = NULL;
        struct error e = {0};
        int32_t *ids = NULL;
        int n_ids;
        sys_init_machine(&tokenizer_sys);
        real_alloc = tokenizer_sys.alloc;
        tokenizer_sys.alloc = failing_alloc;
        allocs_left = n;
        status = tokenizer_open(&tokenizer_sys, path, &t, &e);
        if (!status) status = tokenizer_encode(t, text, strlen(text), &ids, &n_ids, &e);
        if (status && status != MEMORY) fail_msg("allocation %d: %s", n, e.what);
        tokenizer_sys.release(&tokenizer_sys, ids);
        tokenizer_close_clean(t);
    }
    assert_true(n > 10);
}

void expect_linear_time(struct tokenizer *t, const char *const *units) {
    enum { LONG = 1000000 };
    char *text = malloc(LONG + 16);
    for (size_t i = 0; units[i]; i++) {
        size_t unit = strlen(units[i]), n = LONG / unit;
        for (size_t k = 0; k < n; k++) memcpy(text + k * unit, units[i], unit);
        double tenth = seconds(t, text, n / 10 * unit), whole = seconds(t, text, n * unit);
        if (whole > 40 * tenth + 0.01) /* an encoder of quadratic time would take a hundred times as long */
            fail_msg("unit %zu: %.4f s, ten times the text %.4f s", i, tenth, whole);
    }
    free(text);
}

void tokenizer_put_bytes(const char *name, const char *text, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", tokenizer_folder, name);
    if (text)
        tokenizer_put(path, text, bytes);
    else
        unlink(path);
}

void tokenizer_put_file(const char *name, const char *text) {
    tokenizer_put_bytes(name, text, text ? strlen(text) : 0);
}

int tokenizer_make_folder(void **state) {
    (void)state;
    if (!mkdtemp(tokenizer_folder)) return -1;
    snprintf(tokenizer_json, sizeof tokenizer_json, "%s/tokenizer.json", tokenizer_folder);
    return 0;
}

int tokenizer_remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {
        "tokenizer.json",          "vocab.json",   "merges.txt",    "tokenizer_config.json",
        "special_tokens_map.json", "spiece.model", "tokenizer.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) tokenizer_put_file(names[i], NULL);
    return rmdir(tokenizer_folder);
}
