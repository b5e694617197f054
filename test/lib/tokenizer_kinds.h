/* What the tests of CLIP's and T5's tokenizers share: packed goldens and made-up tokenizers. */
#ifndef SLUICE_TEST_TOKENIZER_KINDS_H
#define SLUICE_TEST_TOKENIZER_KINDS_H

#include "engine/bench/tokenizer_make.h"
#include "test/lib/tokenizer_files.h"

#include <zlib.h>

static inline void expect_folder_failure(const char *name, const char *text, enum status code,
                                         const char *says) {
    put_file(name, text);
    expect_open_failure(folder, code, says);
}

/* A file of test/golden/tokens, or its packed form, into the test's folder. */
static inline void unpack(const char *kind, const char *name) {
    char path[256], out[256], bytes[4096];
    snprintf(path, sizeof path, "test/golden/tokens/%s/%s", kind, name);
    if (access(path, R_OK)) snprintf(path, sizeof path, "test/golden/tokens/%s/%s.gz", kind, name);
    snprintf(out, sizeof out, "%s/%s", folder, name);
    gzFile from = gzopen(path, "rb");
    FILE *to = fopen(out, "wb");
    assert_true(from && to);
    for (int n; (n = gzread(from, bytes, sizeof bytes)) > 0;)
        assert_int_equal(fwrite(bytes, 1, (size_t)n, to), n);
    assert_int_equal(gzclose(from), Z_OK);
    assert_int_equal(fclose(to), 0);
}

/* Ids of test/golden/tokens/KIND, whose tokenizer is these files. */
static inline void compare_packed(const char *kind, const char *const *files) {
    char cases[128];
    for (int i = 0; files[i]; i++) unpack(kind, files[i]);
    unpack(kind, "cases.json");
    snprintf(cases, sizeof cases, "%s/cases.json", folder);
    compare_cases(folder, cases);
    unlink(cases);
    for (int i = 0; files[i]; i++) put_file(files[i], NULL);
}

/* A made-up tokenizer without the file of that name (NULL: with all). */
static inline struct tokenizer *open_made(const char *kind, int n_ids, const char *without) {
    struct made_tokenizer made;
    struct tokenizer *t;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&sys);
    assert_int_equal(tokenizer_make(&sys, kind, n_ids, &made, &e), OK);
    assert_nothing_left();
    for (int i = 0; i < made.n_files; i++)
        if (!without || strcmp(made.files[i].name, without))
            put_bytes(made.files[i].name, made.files[i].text, made.files[i].bytes);
    if (open_path(folder, &t, &e)) fail_msg("%s", error_line(&e, line, sizeof line));
    assert_string_equal(tokenizer_kind(t), kind);
    for (int i = 0; i < made.n_files; i++) put_file(made.files[i].name, NULL);
    made_tokenizer_destroy(&made);
    return t;
}

static inline void expect_made_failure(const char *kind, int n_ids, const char *says) {
    struct made_tokenizer made;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&sys);
    assert_int_equal(tokenizer_make(&sys, kind, n_ids, &made, &e), USAGE);
    assert_int_equal(made.n_files, 0);
    assert_non_null(strstr(error_line(&e, line, sizeof line), says));
}

#endif
