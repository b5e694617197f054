#include "test/lib/tokenizer_kinds.h"

#include <zlib.h>

void expect_folder_failure(const char *name, const char *text, enum status code, const char *text_in_error) {
    tokenizer_put_file(name, text);
    expect_open_failure(tokenizer_folder, code, text_in_error);
}

void tokenizer_unpack(const char *kind, const char *name) {
    char path[256], out[256], bytes[4096];
    snprintf(path, sizeof path, "test/golden/tokens/%s/%s", kind, name);
    if (access(path, R_OK)) snprintf(path, sizeof path, "test/golden/tokens/%s/%s.gz", kind, name);
    snprintf(out, sizeof out, "%s/%s", tokenizer_folder, name);
    gzFile from = gzopen(path, "rb");
    FILE *to = fopen(out, "wb");
    assert_true(from && to);
    for (int n; (n = gzread(from, bytes, sizeof bytes)) > 0;)
        assert_int_equal(fwrite(bytes, 1, (size_t)n, to), n);
    assert_int_equal(gzclose(from), Z_OK);
    assert_int_equal(fclose(to), 0);
}

void compare_packed(const char *kind, const char *const *files) {
    char cases[128];
    for (int i = 0; files[i]; i++) tokenizer_unpack(kind, files[i]);
    tokenizer_unpack(kind, "cases.json");
    snprintf(cases, sizeof cases, "%s/cases.json", tokenizer_folder);
    compare_cases(tokenizer_folder, cases);
    unlink(cases);
    for (int i = 0; files[i]; i++) tokenizer_put_file(files[i], NULL);
}

struct tokenizer *open_synthetic(const char *kind, int n_ids, const char *without) {
    struct synthetic_tokenizer made;
    struct tokenizer *t;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(synthetic_tokenizer_make(&tokenizer_sys, kind, n_ids, &made, &e), OK);
    tokenizer_assert_nothing_left();
    for (int i = 0; i < made.n_files; i++)
        if (!without || strcmp(made.files[i].name, without))
            tokenizer_put_bytes(made.files[i].name, made.files[i].text, made.files[i].bytes);
    if (tokenizer_open_path(tokenizer_folder, &t, &e)) fail_msg("%s", error_line(&e, line, sizeof line));
    assert_non_null(strstr(kind, tokenizer_kind(t)));
    for (int i = 0; i < made.n_files; i++) tokenizer_put_file(made.files[i].name, NULL);
    synthetic_tokenizer_destroy(&made);
    return t;
}

void expect_synthetic_failure(const char *kind, int n_ids, const char *text_in_error) {
    struct synthetic_tokenizer made;
    struct error e = {0};
    char line[1024];
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(synthetic_tokenizer_make(&tokenizer_sys, kind, n_ids, &made, &e), USAGE);
    assert_int_equal(made.n_files, 0);
    assert_non_null(strstr(error_line(&e, line, sizeof line), text_in_error));
}
